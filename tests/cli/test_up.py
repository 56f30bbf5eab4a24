"""A node runs until it is told to stop, says what happens to it, and leaves nothing behind."""

import json
import re
import signal
import stat
from datetime import datetime
from pathlib import Path

import pytest

from meshbus.cli.exit import Exit
from meshbus.cli.up import _show, notice_row
from meshbus.engine.base.notices import Acked, Announced, DownReason, Matched, Negotiated, PeerFailed, SessionUp
from meshbus.errors import SlowConsumer
from meshbus.keyfile import create_psk
from meshbus.names.channel import ChannelName
from meshbus.policy.registry import Mismatch
from meshbus.wire.messages.membership import AckReason
from meshbus.wire.subprotocol import SubprotocolVersion
from tests.cli.conftest import Meshbus
from tests.cli.running import running


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_node_starts_prints_its_addresses_and_stops(tmp_path: Path, number: signal.Signals) -> None:
    create_psk(tmp_path / "mesh.key")
    with running(tmp_path / "a", "", "--bind", "127.0.0.1:0") as node:
        socket = tmp_path / "a" / "run" / "admin.sock"
        assert node.admin == str(socket)
        assert node.address.startswith("127.0.0.1:")
        assert stat.S_IMODE(socket.stat().st_mode) == 0o600
        assert stat.S_IMODE(socket.parent.stat().st_mode) == 0o700
        assert stat.S_IMODE((tmp_path / "a" / "id.toml").stat().st_mode) == 0o600
        code, err = node.stop(number)
        assert (code, err) == (Exit.OK, "meshbus: stopped\n")
        assert not socket.exists()


def test_sighup_does_not_end_a_node_without_a_policy_file(tmp_path: Path) -> None:
    create_psk(tmp_path / "mesh.key")
    with running(tmp_path / "a") as node:
        node.process.send_signal(signal.SIGHUP)
        assert "move the policy to a file of its own" in node.notice("policy_refused")["problem"]
        assert node.stop() == (Exit.OK, "meshbus: stopped\n")


def test_notices_are_printed_and_a_second_node_on_the_same_socket_is_refused(
    meshbus: Meshbus, tmp_path: Path, home: Path
) -> None:
    create_psk(tmp_path / "mesh.key")
    with running(tmp_path / "a") as node:
        other = tmp_path / "b.toml"
        other.write_text('psk_file = "mesh.key"\nephemeral = true\n', "utf-8")
        way = ["--config", other, "--connect", node.address, "--public-key", node.public_key]
        assert meshbus("peers", *way).code == Exit.OK
        assert node.notice("session_up")["initiated"] is False
        result = meshbus("up", other, "--bind", node.address, "--admin", home / "x" / "admin.sock")
        assert (result.code, result.out) == (Exit.USAGE, "")
        assert "is used by another program" in result.err
        result = meshbus("up", other, "--admin", node.admin)
        assert (result.code, result.out) == (Exit.USAGE, "")
        assert "another node serves it" in result.err


def test_applications_attach_to_a_node_and_refusals_are_printed(tmp_path: Path) -> None:
    import zmq

    create_psk(tmp_path / "mesh.key")
    edge = '[[edge]]\npublishers = "tcp://127.0.0.1:*"\nchannels_in = ["sensors/"]\n'
    with running(tmp_path / "a", edge) as node, zmq.Context() as context, context.socket(zmq.XPUB) as lidar:
        (places,) = node.status["edge"]
        lidar.connect(places["publishers"])
        assert lidar.recv() == b"\x01"
        lidar.send_multipart([b"other/a", b"1"])
        told = node.notice("refusal")
        assert (told["direction"], told["topic"], told["reason"]) == ("publish", "other/a", "not_exposed")
        assert node.stop() == (Exit.OK, "meshbus: stopped\n")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--bind", "nowhere"], "bind (from an argument): invalid address 'nowhere'"),
        (["--set", "hearbeat_s=1"], "hearbeat_s (from an argument): unknown setting"),
        (["none.toml"], "config (from none.toml): the file does not exist"),
        ([], "psk_file: no mesh key is configured; create one with `meshbus key psk FILE`"),
    ],
)
def test_the_error_of_a_node_that_cannot_start_has_the_reason(
    meshbus: Meshbus, arguments: list[str], complaint: str
) -> None:
    result = meshbus("up", *arguments)
    assert (result.code, result.out) == (Exit.USAGE, "")
    assert result.err.startswith(f"meshbus: {complaint}")
    assert result.err.count("\n") == 1


def test_notices_become_rows() -> None:
    assert notice_row(SessionUp(255, 1, initiated=True)) == {
        "notice": "session_up",
        "node_id": "00000000000000ff",
        "session_id": "0000000000000001",
        "initiated": True,
    }
    assert notice_row(PeerFailed(255, DownReason.SILENT))["reason"] == "silent"
    assert notice_row(Negotiated(255, frozenset({0x4D01, 0x0600})))["compatible"] == ["0x0600", "0x4d01"]
    differ = (Mismatch(0x4D02, SubprotocolVersion(1), SubprotocolVersion(2)),)
    assert notice_row(Negotiated(255, frozenset(), differ))["incompatible"] == ["0x4d02 (here 1.0, there 2.0)"]
    assert notice_row(SlowConsumer("a", 3, 1)) == {
        "notice": "slow_consumer",
        "subscription": "a",
        "pending": 3,
        "dropped": 1,
    }


def test_rows_contain_no_reprs() -> None:
    refused = ((ChannelName("a"), AckReason.UNAUTHORIZED),)
    row = notice_row(Matched(1, 255, (ChannelName("b"),), (), refused))
    assert row["added"] == ["b"]
    assert row["refused"] == [["a", "unauthorized"]]
    assert notice_row(Acked(1, 255, ChannelName("a"), accepted=False, reason=AckReason.UNKNOWN_CHANNEL))["reason"] == (
        "unknown_channel"
    )


def test_a_terminal_gets_sentences_with_times_and_a_pipe_gets_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _show(SessionUp(255, 1, initiated=False), json=False, name_of=lambda _: "west-rover")
    out, err = capsys.readouterr()
    row = json.loads(out)
    assert (row["notice"], row["name"], err) == ("session_up", "west-rover", "")
    datetime.fromisoformat(row["at"])
    monkeypatch.setattr("meshbus.cli.output.is_terminal", lambda: True)
    _show(SessionUp(255, 1, initiated=False), json=False, name_of=lambda _: "west-rover")
    _show(Announced(255, direct=True), json=False)
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(r"meshbus: \d{4}-\d\d-\d\d \d\d:\d\d:\d\d west-rover \(00000000000000ff\) connected\n", err)


def test_nodes_that_may_connect_are_named_on_the_command_line(tmp_path: Path, meshbus: Meshbus) -> None:
    create_psk(tmp_path / "mesh.key")
    with running(tmp_path / "a", "", "--accept", "00000000000000ff", "--accept", "00000000000000fe") as node:
        assert node.stop() == (Exit.OK, "meshbus: stopped\n")
    result = meshbus("up", "--accept", "robot")
    assert result.code == Exit.USAGE
    assert "accept[0] (from an argument): expected a node id" in result.err
