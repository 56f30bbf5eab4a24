"""The policies that packets were recorded under: one small numbered file each, beside the packets.

    <folder>/_policies/0000000003.json

The number is the `policy_version` of the rows. It never changes its meaning in this folder: a policy that is used again,
also after a restart, gets the same number. So every recorded packet can be judged again.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from meshbus.errors import UNDECODABLE, LogError, LogFault
from meshbus.formats import Format
from meshbus.log.files import translated
from meshbus.log.folder import aside
from meshbus.policy.bound import Bound, By
from meshbus.policy.gatewaypolicy import GatewayPolicy

if TYPE_CHECKING:
    from meshbus.log.files import Files

POLICIES = "_policies"
MOST = 1_024
"""Policies that are kept before the oldest are removed: bounds the folder if policies change often."""
MAX_UNWRITTEN = 64
"""Policies that wait for the disk. Our choice: they change once a second at most, and are written several times a second."""

BOUNDS = (
    Bound(
        name="unwritten_policies",
        what="policies of a gateway that wait to be written beside its record",
        by=By.PEER,
        per_node=MAX_UNWRITTEN,
        full="the oldest goes; the packets that were judged by it are lost with it, as the disk refuses both",
        counter="lost_disk of the recorder",
    ),
)

ON_DISK = (
    Format(
        name="recorded policy",
        where="`log_dir/_packets/*/_policies/*.json`",
        what="the policies that packets were recorded under",
        version=1,
        mark='`"version"`; 1 if it is missing',
        refused="the flight recorder, and replays of what it recorded",
    ),
)

_NAME = re.compile(r"(\d{10})\.json")


def load_policies(folder: Path) -> dict[int, GatewayPolicy]:
    """Return the policies in a recorder's folder by number; raises LogError if one is damaged, unreadable or newer."""
    found: dict[int, GatewayPolicy] = {}
    for path in sorted((folder / POLICIES).glob("*.json")):
        match = _NAME.fullmatch(path.name)
        if match is None:
            continue
        with translated(path, "cannot read"):
            content = path.read_bytes()
        try:
            found[int(match[1])] = decode_policy(content, path)
        except UNDECODABLE as error:
            raise LogError(
                LogFault.CORRUPT, f"{path} is not a policy: {error}; restore it from a copy, or remove it"
            ) from None
    return found


class _Versioned(msgspec.Struct, frozen=True):
    version: int = 1


def encode_policy(policy: GatewayPolicy) -> bytes:
    """Return the content of a file."""
    content = {"version": ON_DISK[0].version, **msgspec.structs.asdict(policy)}
    return msgspec.json.format(msgspec.json.encode(content), indent=1)


def decode_policy(content: bytes, path: Path) -> GatewayPolicy:
    """Return the policy in the content of a file. Raises LogError if a newer meshbus wrote it, msgspec.MsgspecError."""
    # What a newer policy says beyond this would be ignored, and packets judged by less than was in force.
    if problem := ON_DISK[0].problem(msgspec.json.decode(content, type=_Versioned).version):
        raise LogError(LogFault.NEWER, f"{path}: {problem}")
    return msgspec.json.decode(content, type=GatewayPolicy)


class PolicyBook:
    """Numbers policies in memory, and writes new ones to files later."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        known = load_policies(folder)
        self._numbers = {policy: number for number, policy in known.items()}
        # Above all known numbers: rows refer to them, so none may be used for another policy.
        self._next = max(known, default=0) + 1
        self._unwritten: dict[int, GatewayPolicy] = {}

    def number_of(self, policy: GatewayPolicy) -> int:
        """Return the number of a policy, a new one if needed; writes no file."""
        number = self._numbers.get(policy)
        if number is None:
            number = self._numbers[policy] = self._next
            self._unwritten[number] = policy
            self._next += 1
            if len(self._unwritten) > MAX_UNWRITTEN:
                # The disk refuses them, and with them the rows that refer to them.
                oldest = self._unwritten.pop(next(iter(list(self._unwritten))), None)
                if oldest is not None:  # not written meanwhile by the other thread
                    del self._numbers[oldest]
        return number

    def write(self, files: Files) -> None:
        """Write new policies durably, and remove the oldest beyond MOST."""
        for number, policy in list(self._unwritten.items()):
            path = self._path(number)
            with translated(path, "cannot write"):
                # Before the rows that refer to it: the recorder writes policies first (`drain`).
                files.write_aside(path, aside(path), [encode_policy(policy)])
            self._unwritten.pop(number, None)  # the other thread may have dropped it
        if len(self._numbers) > MOST:
            known = list(
                self._numbers.items()
            )  # a copy in one step, because the other thread may add policies meanwhile
            for policy, number in sorted(known, key=lambda item: item[1])[:-MOST]:
                with translated(self._path(number), "cannot remove"):
                    files.remove(self._path(number))
                del self._numbers[policy]

    def _path(self, number: int) -> Path:
        return self._folder / POLICIES / f"{number:010d}.json"
