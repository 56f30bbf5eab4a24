"""Prepare the folder of a replicated log for appending.

A crash leaves the state after a prefix of the writes, which is repaired as in every log (log/embedded/recovery.py).
Damage to what had been synced does not stop a replica, because other members have the events: the log is cut before the
damage, what was there is kept in `_aside/damaged-…`, and the log says that it is damaged until a new ballot is stored.

Each step leaves a folder that is still seen as damaged until the file with the new opening is on the disk.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from msgspec import UNSET
from msgspec.structs import replace

from meshbus.errors import LogError, LogFault
from meshbus.log.embedded.controls import Opening, State, encode_record, state_after
from meshbus.log.embedded.hot import HotIndex
from meshbus.log.embedded.inventory import Inventory, take_inventory
from meshbus.log.embedded.logmanifest import Manifest, Replica, load_manifest, store_manifest
from meshbus.log.embedded.marks import end_of, read_mark
from meshbus.log.embedded.recovery import Opened, Recovered, create_hot, holds_events, repair, sync_folders
from meshbus.log.embedded.upkeep import expire
from meshbus.log.folder import ASIDE, HOT, LOCK, MANIFEST, OLD, hot_files, is_aside, turn_of
from meshbus.log.segment import Segment, describe_segment

if TYPE_CHECKING:
    from meshbus.log.files import Files
    from meshbus.names.channel import ChannelName


class RecoveredReplica(NamedTuple):
    """A replicated log that is ready for appending."""

    log: Recovered
    state: State
    damage: str
    """What was damaged and is now in `_aside`; empty if nothing was."""


class Place(NamedTuple):
    """Where a replica is, and what it has to be."""

    files: Files
    folder: Path
    channel: ChannelName
    log_id: bytes
    """Of a replica that has to be created; one that exists keeps its own."""


def recover_replica(place: Place, now_ns: int) -> RecoveredReplica:
    """Create or repair a replica; raises LogError if the folder holds another log, or cannot be used."""
    files, folder = place.files, place.folder
    for name in (HOT, OLD, ASIDE):
        files.make_folder(folder / name)
    created = not (folder / MANIFEST).exists()
    manifest, damage = _manifest(place, now_ns)
    sync_folders(files, folder)
    mark = read_mark(folder)
    whole = _whole_segments(folder, manifest)
    if len(whole) < len(manifest.segments):
        bad = manifest.segments[len(whole)]
        damage = f"{bad.name} is missing or cut off"
        _move(files, folder, [folder / part.name for part in manifest.segments[len(whole) :]])
        manifest = store_manifest(files, folder, replace(manifest, segments=whole))
    elif whole != manifest.segments:
        manifest = store_manifest(files, folder, replace(manifest, segments=whole))
    found = take_inventory(folder, manifest)
    damage = damage or found.damage
    if not damage and end_of(found.live) < mark.synced:
        damage = "the last hot file is missing, or shorter than what was synced"
    if not damage and not found.live and (manifest.hot_from or mark.number):
        damage = "the last hot file is missing"
    state = _state(manifest, found.live)
    if found.skipped_to is not None:
        known = replace(manifest, replica=Replica(state.runs, state.gaps))
        manifest = expire(files, folder, known, found.skipped_to, now_ns)
        found = take_inventory(folder, manifest)
    if damage:
        return RecoveredReplica(_cut_before_damage(place, manifest, found, state, now_ns), _hurt(state), damage)
    return RecoveredReplica(repair(files, folder, manifest, found, created=created), state, "")


def _manifest(place: Place, now_ns: int) -> tuple[Manifest, str]:
    """Return the manifest, a new one if there is none or it is damaged, and what is damaged."""
    files, folder, channel, log_id = place
    damage, manifest = "", None
    try:
        manifest = load_manifest(folder)
    except FileNotFoundError:
        damage = f"{MANIFEST} is missing" if holds_events(folder) else ""
    except LogError as error:
        if error.fault is not LogFault.CORRUPT:
            raise
        damage = f"{MANIFEST} is damaged"
    if manifest is None:
        if damage:
            kept = {LOCK, ASIDE, HOT, OLD}
            _move(files, folder, [path for path in folder.iterdir() if path.name not in kept])
            _move(files, folder, [path for _, path in hot_files(folder)])
        manifest = store_manifest(files, folder, Manifest(str(channel), log_id.hex(), now_ns, replica=Replica()))
    # Whatever its id: the mesh key may have changed since it was created, and its rows have the id.
    if manifest.channel != channel or manifest.replica is UNSET:
        kind = "replica" if manifest.replica is not UNSET else "log without replicas"
        raise LogError(
            LogFault.FOREIGN, f"{folder} is a {kind} of {manifest.channel}, not the replica of {channel}: move it away"
        )
    return manifest, damage


def _whole_segments(folder: Path, manifest: Manifest) -> tuple[Segment, ...]:
    """Return the segments before the first that is missing or has another size than it should."""
    whole: list[Segment] = []
    for segment in manifest.segments:
        path = folder / segment.name
        size = path.stat().st_size if path.exists() else None
        if size != segment.bytes and (size is not None or segment.remote is UNSET):
            # A crash may have come between a segment that was healed and the manifest.
            healed = describe_segment(path, manifest.id_bytes) if size else None
            if healed is None:
                break
            whole.append(healed)
        else:
            whole.append(segment)
    return tuple(whole)


def _state(manifest: Manifest, live: list[HotIndex]) -> State:
    if live:
        return state_after(live[-1].controls, live[-1].end)
    known = Replica() if manifest.replica is UNSET else manifest.replica
    return State(None, tuple(run for run in known.epochs if run[1] < manifest.hot_from), known.gaps)


def _hurt(state: State) -> State:
    return replace(state, damaged=True)


def _cut_before_damage(place: Place, manifest: Manifest, found: Inventory, state: State, now_ns: int) -> Recovered:
    """Begin a new turn behind the last whole block, and move aside what does not count any more."""
    files, folder = place.files, place.folder
    end = found.live[-1].end if found.live else manifest.hot_from
    live = [index for index in found.live if index.header.first < end]
    replaced = [index.path for index in found.live[len(live) :]]
    if live and found.torn and not replaced:
        _copy(files, folder, live[-1].path)
    turn = 1 + max((turn_of(path) for _, path in hot_files(folder)), default=0)
    opening = Opening(_hurt(state), after=turn_of(live[-1].path) if live else -1)
    index, handle = create_hot(files, folder, manifest, end, now_ns, Opened(turn, encode_record(opening), end))
    try:
        for known in live:
            _sync(files, known.path)
        files.fsync(handle)
    finally:
        files.close(handle)
    files.fsync_folder(folder / HOT)
    if live:
        live[-1].cut(end)
    _move(files, folder, [*replaced, *found.beyond, *found.stale, *found.replaced])
    return repair(files, folder, manifest, Inventory([*live, index], [], None, [], "", []), created=False)


def _sync(files: Files, path: Path) -> None:
    handle = files.reopen(path)
    try:
        files.fsync(handle)
    finally:
        files.close(handle)


def _damage_folder(files: Files, folder: Path) -> Path:
    """Return a new folder for what is damaged."""
    number = 0
    while (place := folder / ASIDE / f"damaged-{number}").exists():
        number += 1
    files.make_folder(place)
    files.fsync_folder(folder / ASIDE)
    return place


def _move(files: Files, folder: Path, paths: list[Path]) -> None:
    """Move files to where nobody takes them for a part of the log."""
    there = [path for path in paths if path.is_file() and not is_aside(path)]
    if not there:
        return
    target = _damage_folder(files, folder)
    for path in there:
        files.rename(path, target / f"{path.name}.damaged")
    for changed in {target, *(path.parent for path in there)}:
        files.fsync_folder(changed)


def _copy(files: Files, folder: Path, path: Path) -> None:
    """Keep a copy of a damaged file, of which the log goes on using the first part."""
    target = _damage_folder(files, folder) / f"{path.name}.damaged"
    with suppress(FileNotFoundError):
        files.write_aside(target, target.with_name(f"_{target.name}.aside"), [path.read_bytes()])
