"""Events from and to a shell: through a running node, and as a node for a moment."""

import base64
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from meshbus.cli.events import _judge, _show_event, _show_report, _stdin_events, _write_event
from meshbus.cli.exit import Exit
from meshbus.keyfile import create_psk
from tests.children import child
from tests.cli.conftest import Meshbus
from tests.cli.running import QUICK, SCRIPT, Running, running
from tests.patience import PATIENCE_S

CHANNEL = "test/events"


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mesh")
    create_psk(folder / "mesh.key")
    (folder / "me.toml").write_text(f'psk_file = "mesh.key"\nephemeral = true\n{QUICK}', "utf-8")
    return folder


@pytest.fixture(scope="module")
def node(mesh: Path) -> Iterator[Running]:
    """A node with one channel that asks for a token, and one that lets nobody publish."""
    closed = '[[channels]]\nname = "test/closed"\nrequire_token = true\n[[channels]]\nprefix = ""\n'
    with running(mesh / "a", closed) as started:
        yield started


class Subscriber(NamedTuple):
    """`meshbus sub` in a process of its own, live."""

    process: subprocess.Popen[bytes]
    first: str
    """Its first line on standard error."""

    def end(self) -> tuple[int, bytes]:
        out, _ = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, out


@contextmanager
def subscriber_of(*arguments: str) -> Iterator[Subscriber]:
    pipe = subprocess.PIPE
    with child([SCRIPT, "sub", *arguments], stdout=pipe, stderr=pipe, stdin=subprocess.DEVNULL) as process:
        assert process.stderr is not None
        yield Subscriber(process, process.stderr.readline().decode())


def _own(mesh: Path, node: Running) -> list[str]:
    return ["--config", str(mesh / "me.toml"), "--connect", node.address, "--public-key", node.public_key]


def _rows(out: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


def test_published_through_the_socket_received_by_another_node(meshbus: Meshbus, mesh: Path, node: Running) -> None:
    with subscriber_of(CHANNEL, *_own(mesh, node), "--count", "3") as subscriber:
        assert subscriber.first == f"meshbus: subscribed to {CHANNEL}\n"
        result = meshbus("pub", CHANNEL, "one", "two", "grüß", "--admin", node.admin)
        assert (result.code, result.err) == (Exit.OK, "")
        assert result.rows == [{"attempted": 1, "delivered": 1, "errors": [], "filtered": [], "log_seq": None}] * 3
        code, out = subscriber.end()
    assert code == Exit.OK
    assert [row["payload"] for row in _rows(out)] == ["one", "two", "grüß"]
    assert {row["publisher"] for row in _rows(out)} == {node.status["node_id"]}


def test_published_by_a_temporary_node_received_through_the_socket(mesh: Path) -> None:
    lines = b"first\nsecond\r\n\nno newline"
    with (
        running(mesh / "b") as node,
        subscriber_of(CHANNEL, "--admin", node.admin, "--count", "4", "--raw") as subscriber,
    ):
        answer = subprocess.run(
            [SCRIPT, "pub", CHANNEL, *_own(mesh, node), "--wait", "20"],
            input=lines,
            capture_output=True,
            check=False,
        )
        assert (answer.returncode, answer.stderr) == (Exit.OK, b"")
        assert [row["delivered"] for row in _rows(answer.stdout)] == [1, 1, 1, 1]
        code, out = subscriber.end()
    assert (code, out) == (Exit.OK, b"first\nsecond\n\nno newline\n")


def test_any_bytes_are_published_as_one_event(mesh: Path, node: Running) -> None:
    blob = bytes(range(256))
    with subscriber_of(f"{CHANNEL}/raw", *_own(mesh, node), "--count", "1") as subscriber:
        answer = subprocess.run(
            [SCRIPT, "pub", f"{CHANNEL}/raw", "--raw", "--reliable", "--admin", node.admin],
            input=blob,
            capture_output=True,
            check=False,
        )
        assert answer.returncode == Exit.OK
        _, out = subscriber.end()
    (row,) = _rows(out)
    assert base64.b64decode(row["payload_base64"]) == blob


def test_files_are_events_and_events_become_files(mesh: Path, tmp_path: Path) -> None:
    frames = {name: os.urandom(size) for name, size in (("a.png", 3 << 20), ("b.png", 200_000), ("c.png", 3))}
    for name, frame in frames.items():
        (tmp_path / name).write_bytes(frame)
    files = [part for name in frames for part in ("--file", str(tmp_path / name))]
    with running(mesh / "camera") as node:
        for publishing, receiving in (
            (["--admin", node.admin], _own(mesh, node)),
            ([*_own(mesh, node), "--wait", "20"], ["--admin", node.admin]),
        ):
            out = tmp_path / f"out {len(publishing)}"
            with subscriber_of("cameras/front", *receiving, "--count", "3", "--out", str(out)) as subscriber:
                answer = subprocess.run(
                    [SCRIPT, "pub", "cameras/front", *publishing, "--reliable", *files],
                    capture_output=True,
                    check=False,
                )
                assert (answer.returncode, answer.stderr) == (Exit.OK, b"")
                code, lines = subscriber.end()
            assert code == Exit.OK
            rows = _rows(lines)
            assert [row["bytes"] for row in rows] == [3 << 20, 200_000, 3]
            assert [Path(row["file"]).read_bytes() for row in rows] == list(frames.values())
            assert {Path(row["file"]).name for row in rows} == {f"00000{n}-cameras.front" for n in (1, 2, 3)}


def test_a_file_that_is_there_is_not_overwritten(tmp_path: Path) -> None:
    row = {"channel": "a/b", "payload": "new", "pub_seq": None}
    (tmp_path / "000001-a.b").write_bytes(b"old")
    written = _write_event(tmp_path, 1, row)
    assert written == {"channel": "a/b", "pub_seq": None, "file": str(tmp_path / "000001-a.b-2"), "bytes": 3}
    assert (tmp_path / "000001-a.b").read_bytes() == b"old"
    assert (tmp_path / "000001-a.b-2").read_bytes() == b"new"


def test_a_subscription_begins_in_the_log_of_the_publisher(meshbus: Meshbus, mesh: Path) -> None:
    logged = 'log_dir = "logs"\n[[channels]]\nprefix = "test/"\nlog = "published"\n[[channels]]\nprefix = ""\n'
    with running(mesh / "logged", logged) as node:
        meshbus("pub", CHANNEL, "zero", "one", "two", "--admin", node.admin, "--wait", 0)
        for since, expected in (("1", ["one", "two"]), ("first", ["zero", "one"])):
            result = meshbus("sub", CHANNEL, *_own(mesh, node), "--since", since, "--count", 2)
            assert result.code == Exit.OK
            assert [row["payload"] for row in result.rows] == expected
        for arguments, code, complaint in (
            (("other", "--since", "0"), Exit.FAILED, "does not log it"),
            ((CHANNEL, "--since", "soon"), Exit.USAGE, "must be a publish number"),
        ):
            result = meshbus("sub", *arguments, *_own(mesh, node))
            assert (result.code, result.out) == (code, "")
            assert complaint in result.err


def test_without_subscribers_the_exit_status_is_3(meshbus: Meshbus, node: Running) -> None:
    result = meshbus("pub", "test/nobody", "x", "--admin", node.admin, "--wait", 0.1)
    assert result.code == Exit.UNREACHABLE
    assert result.row["attempted"] == 0
    assert result.err.startswith("meshbus: no subscribers of test/nobody")


def test_a_time_limit_ends_a_subscription(meshbus: Meshbus, mesh: Path, node: Running) -> None:
    result = meshbus("sub", "test/quiet", *_own(mesh, node), "--timeout", 0.5)
    assert (result.code, result.out) == (Exit.OK, "")
    result = meshbus("sub", "test/quiet", *_own(mesh, node), "--timeout", 0.5, "--count", 1)
    assert (result.code, result.out) == (Exit.UNREACHABLE, "")
    assert result.err.endswith("meshbus: received 0 events in 0.5 s\n")


def test_a_refused_subscription_exits_with_status_4(meshbus: Meshbus, mesh: Path, node: Running) -> None:
    result = meshbus("sub", "test/closed", *_own(mesh, node))
    assert (result.code, result.out) == (Exit.DENIED, "")
    assert "refused: unauthorized" in result.err
    assert result.err.count("\n") == 1


def test_a_subscription_that_was_never_live_differs_from_one_without_events(
    meshbus: Meshbus, mesh: Path, node: Running
) -> None:
    node.process.send_signal(signal.SIGSTOP)
    try:
        result = meshbus("sub", "test/quiet", *_own(mesh, node), "--timeout", 0.2)
    finally:
        node.process.send_signal(signal.SIGCONT)
    assert (result.code, result.out) == (Exit.UNREACHABLE, "")
    assert result.err.startswith("meshbus: not subscribed to test/quiet after 0.2 s")


def test_a_subscription_without_a_publisher_differs_from_one_without_events(meshbus: Meshbus, mesh: Path) -> None:
    with running(mesh / "alone") as alone:
        result = meshbus("sub", "test/quiet", "--admin", alone.admin, "--timeout", 0.2)
    assert (result.code, result.out) == (Exit.UNREACHABLE, "")
    assert "no publisher has accepted it yet" in result.err


def test_refusing_publishers_are_shown_beside_accepting_ones(meshbus: Meshbus, mesh: Path, node: Running) -> None:
    with running(mesh / "other") as other:
        both = mesh / "both.toml"
        peers = "".join(
            f'[[peers]]\naddress = "{one.address}"\npublic_key = "{one.public_key}"\n' for one in (node, other)
        )
        both.write_text(f'psk_file = "mesh.key"\nephemeral = true\n{peers}', "utf-8")
        result = meshbus("sub", "test/closed", "--config", both, "--timeout", 3)
        assert result.code == Exit.OK
        assert "meshbus: subscribed to test/closed" in result.err
        assert f"{node.status['node_id']} refused test/closed: unauthorized" in result.err


def test_a_refused_publish_exits_with_status_4(meshbus: Meshbus, node: Running) -> None:
    result = meshbus("pub", "test/closed", "x", "--admin", node.admin, "--wait", 0)
    assert (result.code, result.out) == (Exit.DENIED, "")
    assert "may not publish on 'test/closed'" in result.err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["pub", "Bad", "x"], "channel 'Bad': upper case"),
        (["pub", "", "x"], "channel"),
        (["pub"], 'command "pub" parameter CHANNEL requires an argument'),
        (["pub", "a", "x", "--wait", "long"], "invalid value for --wait"),
        (["pub", "a", "x", "--file", "y"], "--file: cannot be used with"),
        (["pub", "a", "--file", "/nowhere/frame.bin"], "--file: /nowhere/frame.bin is not a file"),
        (["sub", "a", "--out", "/dev/null/frames"], "--out: /dev/null/frames cannot be made"),
        (["sub", "Bad"], "channel 'Bad': upper case"),
        (["sub", "a", "--when-full", "explode"], 'invalid value "explode" for --when-full. Choose from: "block"'),
        (["sub", "a", "--count", "many"], "invalid value for --count"),
    ],
)
def test_the_error_of_bad_input_is_one_line(
    meshbus: Meshbus, node: Running, arguments: list[str], complaint: str
) -> None:
    result = meshbus(*arguments, "--admin", node.admin)
    assert (result.code, result.out) == (Exit.USAGE, "")
    assert complaint in result.err
    assert result.err.count("\n") == 1


@pytest.mark.parametrize("arguments", [["pub", "--wait", "0"], ["sub"]], ids=["pub", "sub"])
def test_ctrl_c_exits_at_once_without_output(mesh: Path, arguments: list[str]) -> None:
    pipe = subprocess.PIPE
    with (
        running(mesh / f"interrupted-{arguments[0]}") as node,
        child(
            [SCRIPT, *arguments, "test/interrupted", "--admin", node.admin], stdin=pipe, stdout=pipe, stderr=pipe
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stderr is not None
        if arguments == ["sub"]:
            assert b"subscribed" in process.stderr.readline()
        else:
            process.stdin.write(b"x\n")
            process.stdin.flush()
            assert process.stdout is not None
            process.stdout.readline()  # it has published, and waits for the next line
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=PATIENCE_S) == Exit.INTERRUPTED
        assert process.stderr.read() == b""


@pytest.mark.parametrize(
    ("chunks", "events"),
    [
        ([], []),
        ([b"a\nb\r\n"], [b"a", b"b"]),
        ([b"a", b"b\n\nc"], [b"ab", b"", b"c"]),
        ([b"a\r"], [b"a"]),
        ([b"x" * 700_000, b"y" * 700_000, b"\nz"], [b"x" * 700_000 + b"y" * 700_000, b"z"]),
    ],
    ids=["nothing", "lines", "pieces", "unended", "long"],
)
def test_lines_become_events(chunks: list[bytes], events: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    source = iter([*chunks, b""])
    monkeypatch.setattr("os.read", lambda _handle, _size: next(source))
    assert list(_stdin_events(0, raw=False)) == events


def test_a_line_without_end_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshbus.cli.events._MOST", 1001)
    monkeypatch.setattr("os.read", lambda _handle, size: b"x" * size)
    for raw in (False, True):
        assert list(_stdin_events(0, raw=raw)) == [b"x" * 1001], "one byte too many, so that it is refused"


def test_raw_input_is_one_event(monkeypatch: pytest.MonkeyPatch) -> None:
    source = iter([b"a\n", b"b\r", b""])
    monkeypatch.setattr("os.read", lambda _handle, _size: next(source))
    assert list(_stdin_events(0, raw=True)) == [b"a\nb\r"]


def test_the_exit_status_follows_from_the_report() -> None:
    for expected, events, attempted, delivered, logged in (
        (Exit.OK, 0, 0, 0, 0),
        (Exit.UNREACHABLE, 1, 0, 0, 0),
        (Exit.OK, 1, 2, 2, 0),
        (Exit.PARTIAL, 1, 2, 1, 0),
        (Exit.OK, 1, 2, 2, 1),
        (Exit.PARTIAL, 1, 2, 1, 1),
        (Exit.LOGGED, 2, 0, 0, 2),
    ):
        totals = {"events": events, "attempted": attempted, "delivered": delivered, "logged": logged}
        assert _judge(totals, "a") is expected


def test_an_event_that_is_logged_without_subscribers_is_not_to_be_published_again(meshbus: Meshbus, mesh: Path) -> None:
    logged = f'log_dir = "logs"\n[[channels]]\nname = "{CHANNEL}"\nlog = "published"\n'
    with running(mesh / "alone", logged) as node:
        result = meshbus("pub", CHANNEL, "one", "--admin", node.admin, "--wait", 0)
        assert result.code == Exit.LOGGED
        assert result.row == {"attempted": 0, "delivered": 0, "errors": [], "filtered": [], "log_seq": 0}
        assert result.err == (
            f"meshbus: no subscribers of {CHANNEL}; the event is logged: do not publish again, "
            f"`meshbus sub {CHANNEL} --since first` reads the log\n"
        )
        result = meshbus("pub", CHANNEL, "two", "three", "--admin", node.admin, "--wait", 0)
        assert [row["log_seq"] for row in result.rows] == [1, 2]
        assert "2 events logged" in result.err
        result = meshbus("sub", CHANNEL, *_own(mesh, node), "--since", "first", "--count", 3)
        assert [row["payload"] for row in result.rows] == ["one", "two", "three"]


def test_a_log_is_read_from_the_publisher_that_is_named(meshbus: Meshbus, mesh: Path) -> None:
    logged = f'log_dir = "logs"\n[[channels]]\nname = "{CHANNEL}"\nlog = "published"\n'
    with running(mesh / "one", logged) as one, running(mesh / "two", logged) as two:
        both = mesh / "both.toml"
        peers = "".join(
            f'[[peers]]\naddress = "{node.address}"\npublic_key = "{node.public_key}"\n' for node in (one, two)
        )
        both.write_text(f'psk_file = "mesh.key"\nephemeral = true\n{QUICK}{peers}', "utf-8")
        for node, text in ((one, "from one"), (two, "from two")):
            meshbus("pub", CHANNEL, text, "--admin", node.admin, "--wait", 0)
        for node, text in ((one, "from one"), (two, "from two")):
            wanted = ["--since", "first", "--publisher", node.status["node_id"], "--count", 1]
            result = meshbus("sub", CHANNEL, "--config", both, *wanted)
            assert [row["payload"] for row in result.rows] == [text]
        unclear = meshbus("sub", CHANNEL, "--config", both, "--since", "first")
        assert unclear.code == Exit.USAGE
        assert "choose with publisher" in unclear.err
        wrong = meshbus("sub", CHANNEL, "--config", both, "--publisher", "one")
        assert (wrong.code, wrong.err) == (
            Exit.USAGE,
            "meshbus: --publisher: expected a node id of up to 16 hex digits, got 'one'\n",
        )
        with subscriber_of(CHANNEL, "--admin", one.admin, "--publisher", two.status["node_id"]) as refused:
            code, _ = refused.end()
            assert code == Exit.UNREACHABLE, "one is not connected to two"


def test_a_terminal_gets_lines(terminal: None, capsys: pytest.CaptureFixture[str]) -> None:
    _show_event({"channel": "a", "payload": "up\033[2Jand away"}, raw=False, json=False)
    _show_event({"channel": "a", "payload_base64": "/w=="}, raw=False, json=False)
    _show_event({"channel": "a", "payload": ""}, raw=False, json=False)
    assert capsys.readouterr().out == "a  up\\x1b[2Jand away\na  b'\\xff'\na  \n"
    leg = {"node_id": "ff", "code": "backpressure", "problem": "slow"}
    _show_report(
        {
            "attempted": 2,
            "delivered": 1,
            "errors": [leg],
            "filtered": [{"node_id": "0f", "why": "subnet"}],
            "log_seq": None,
        },
        json=False,
    )
    out, err = capsys.readouterr()
    assert out == "delivered to 1 of 2 subscribers\n"
    assert err == "meshbus: ff: slow\nmeshbus: 0f: not allowed to receive it: subnet\n"


def test_raw_payloads_are_written_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.TextIOWrapper(io.BytesIO())
    monkeypatch.setattr(sys, "stdout", written)
    _show_event({"channel": "a", "payload_base64": "/wo="}, raw=True, json=False)
    assert written.buffer.getvalue() == b"\xff\n\n"
