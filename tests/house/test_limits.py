"""Every bounded structure in the source is a row of docs/limits.md, and the page says what the source says."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.house.tree import PACKAGE, modules
from tools import limits

BOUNDED = {"BoundedMap", "Rates"}
"""Structures of ours that evict by themselves."""
NOT_STATE = {
    "compute/continuity.py": {"MAX_SPAN"},  # of one proof
    "compute/ledger.py": {"MAX_PARTS"},  # of one checkpoint
    "compute/migration/handler.py": {"MAX_SELF_DELIVERIES"},  # of one message
    "compute/reconciling.py": {"MAX_TRIES"},  # tries
    "compute/store.py": {"MAX_BEGUN"},  # of one record
    "edge/bridge.py": {"MAX_MESSAGE_BYTES"},  # of one message
    "edge/bytestream.py": {"MAX_BUFFERS"},  # of one system call
    "edge/zmtp/protocol.py": {"MAX_CONTEXT_BYTES", "MAX_TTL"},  # of one message
    "engine/channels/history_client.py": {"MAX_DISORDERS"},  # tries
    "engine/channels/history_server.py": {"MAX_PAGE_BYTES"},  # of one answer
    "engine/channels/publish.py": {"MAX_INFLIGHT"},  # sends of one call
    "engine/channels/request.py": {"_MAX_DEADLINE_MS", "_MAX_ID"},  # numbers of the wire
    "engine/directory/announce.py": {"MAX_VERSION"},  # a number of the wire
    "engine/directory/directory.py": {"MAX_HEAT_BLOBS"},  # of one announcement
    "engine/replicas/leading.py": {"_MAX_CHUNKS", "_MAX_ROUNDS"},  # messages and questions of this node
    "engine/replicas/sets.py": {"MAX_RUNS"},  # messages of this node
    "engine/routes/pingwaves.py": {"MAX_HOPS"},  # of one pingwave
    "engine/routes/proximity.py": {"MAX_LATENCY_US"},  # a time
    "engine/session/handshake.py": {"MAX_TRIES"},  # of one message
    "engine/session/link.py": {"MAX_PADDING", "MAX_TRAIN_BYTES", "MAX_TRAIN_PACKETS"},  # of one train
    "engine/session/stream.py": {"MAX_JUMP"},  # a distance of numbers
    "engine/settings.py": {"MAX_CHANNELS_PER_PEER"},  # a default; its row is in engine/channels/admission.py
    "engine/streams/congestion.py": {"MAX_WINDOW"},  # of this node's sending
    "engine/streams/ordering.py": {"MAX_ASKED"},  # of one packet
    "engine/streams/repeating.py": {"MAX_AHEAD", "MAX_KEPT"},  # of this node's sending
    "engine/streams/reorder.py": {"_MAX_NUMBER", "_MAX_SEQUENCE"},  # numbers of the wire
    "engine/streams/reliable.py": {"MAX_ACKS"},  # of one packet
    "engine/streams/retransmit.py": {"MAX_RESENDS"},  # tries
    "engine/streams/traffic.py": {"MAX_GRANTS"},  # of one packet
    "log/columns.py": {"MAX_APPEND_BYTES"},  # of one call
    "log/embedded/block.py": {"MAX_SEQ"},  # a number
    "log/folder.py": {"_MAX_SLUG"},  # of one name
    "log/packets/recorder.py": {"_MAX_SAMPLING"},  # a number
    "log/positions.py": {"MAX_MARKS"},  # its row is in node/logs/positionmarks.py
    "log/tail.py": {"MAX_EVENTS"},  # of one call
    "node/admin.py": {"MAX_U32"},  # a number
    "node/driving/driver.py": {"MAX_BURST"},  # of one train
    "node/logs/pageserver.py": {"MAX_READS"},  # threads
    "node/replicas/replicapublish.py": {"MAX_PAYLOAD"},  # of one event
    "node/driving/udp.py": {"MAX_DATAGRAMS", "MAX_TRAINS"},  # of one drain
    "node/unix.py": {"MAX_ANSWER"},  # of one line
    "policy/channels.py": {"_MAX_U32"},  # a number
    "policy/limits.py": {"MAX_FAILURES"},  # tries
    "policy/tag.py": {"MAX_CHANNEL_BYTES", "MAX_CHANNEL_TAGS"},  # of one announcement
    "policy/views.py": {"_MAX_NUMBER"},  # a number
    "web/snapshot.py": {"MAX_BYTES", "MAX_NAMED", "MAX_ROWS", "MAX_TEXT"},  # of one document
}
"""Constants that look like bounds of state and are not."""


def checked() -> Iterator[tuple[str, ast.Module]]:
    for path in modules():
        inside = path.relative_to(PACKAGE).as_posix()
        if inside.split("/")[0] in limits.ROOMS:
            yield inside, ast.parse(path.read_text("utf-8"))


def constants(tree: ast.Module) -> set[str]:
    """Return the constants of a module that limit a number of things."""
    assigned = [
        *(target for one in tree.body if isinstance(one, ast.Assign) for target in one.targets),
        *(one.target for one in tree.body if isinstance(one, ast.AnnAssign)),
    ]
    names = {target.id for target in assigned if isinstance(target, ast.Name)}
    return {name for name in names if name.lstrip("_").startswith("MAX_") and not name.endswith("_S")}


def rows_of(tree: ast.Module) -> set[str]:
    """Return the names that the rows of a module mention."""
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "BOUNDS":
            return {node.id for node in ast.walk(statement.value) if isinstance(node, ast.Name)}
    return set()


def structures(tree: ast.Module) -> Iterator[ast.expr]:
    """Yield the expressions that bound a map, a set of rates or a queue."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in BOUNDED and node.args:
                yield node.args[2 if node.func.id == "Rates" else 0]
            elif node.func.id == "deque":
                yield from (keyword.value for keyword in node.keywords if keyword.arg == "maxlen")


def test_every_bound_is_a_row() -> None:
    missing = {
        inside: sorted(left)
        for inside, tree in checked()
        if (left := constants(tree) - rows_of(tree) - NOT_STATE.get(inside, set()))
    }
    assert not missing, f"add these to BOUNDS in their module, or to NOT_STATE here with a reason: {missing}"


def test_every_bounded_structure_takes_its_bound_from_a_constant() -> None:
    parts = {"bound", "MAX_MEMBERS", "SAMPLES", "0"}  # arguments that are passed on, and fixed sizes
    odd = [
        f"{inside}: {ast.unparse(size)}"
        for inside, tree in checked()
        for size in structures(tree)
        if not ast.unparse(size).lstrip("_").startswith("MAX_") and ast.unparse(size) not in parts
    ]
    assert not odd, f"give these a constant MAX_… and a row in BOUNDS: {odd}"


def test_what_is_no_state_is_still_there() -> None:
    found = {inside: constants(tree) for inside, tree in checked()}
    gone = {inside: names - found.get(inside, set()) for inside, names in NOT_STATE.items()}
    assert not {inside: names for inside, names in gone.items() if names}


def test_names_are_unique_and_counters_are_moved_where_the_bound_is() -> None:
    rows = limits.rows()
    twice = [name for name, count in Counter(row.bound.name for row in rows).items() if count > 1]
    assert not twice
    source = {path: path.read_text("utf-8") for path in modules()}
    for _, bound in rows:
        what, _, why = bound.told.partition(".")
        if what == "forget":
            users = [path for path, text in source.items() if f'"{why}"' in text and _counts(text, why)]
            assert users, f"nothing counts forget.{why}"


def _counts(text: str, why: str) -> bool:
    return f'forgetting("{why}")' in text or f'add("forget", "{why}"' in text


def test_the_page_is_up_to_date() -> None:
    assert limits.PAGE.read_text("utf-8") == limits.page(), "run `python -m tools.limits` to write docs/limits.md"


def test_rows_are_found_in_every_room_that_remembers() -> None:
    assert {Path(row.module.replace(".", "/")).parts[1] for row in limits.rows()} >= {
        "engine",
        "policy",
        "node",
        "edge",
    }
