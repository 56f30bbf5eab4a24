"""Which door a verb goes through, and what it says when there is none."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshbus.cli.exit import Exit, Refusal
from meshbus.cli.reach import ask_node
from meshbus.keyfile import create_psk
from meshbus.names.identity import Identity
from meshbus.node.driving.udp import UdpSocket
from tests.cli.conftest import Meshbus
from tests.cli.running import QUICK, Running, running

KEY = "11" * 32
OTHER = Identity.generate(lambda size: bytes(range(size))).entity_id.hex()
"""The public key of a node that does not run."""


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mesh")
    create_psk(folder / "mesh.key")
    (folder / "me.toml").write_text(f'psk_file = "mesh.key"\nephemeral = true\n{QUICK}', "utf-8")
    (folder / "stranger.key").write_text("99" * 32, "utf-8")
    (folder / "stranger.key").chmod(0o600)
    return folder


@pytest.fixture(scope="module")
def node(mesh: Path) -> Iterator[Running]:
    with running(mesh / "a") as started:
        yield started


def test_connect_through_the_admin_socket(meshbus: Meshbus, node: Running) -> None:
    result = meshbus("peers", "--admin", node.admin)
    assert (result.code, result.err) == (Exit.OK, "")


def test_connect_as_a_temporary_node(meshbus: Meshbus, node: Running, mesh: Path) -> None:
    way = ["--connect", node.address, "--public-key", node.public_key]
    result = meshbus("peers", "--config", mesh / "me.toml", *way)
    assert result.code == Exit.OK
    assert result.row["node_id"] == node.status["node_id"]
    assert result.row["address"] == node.address


def test_a_plain_node_is_named_by_its_id_and_its_noise_key(meshbus: Meshbus, node: Running, mesh: Path) -> None:
    key, node_id = node.status["noise_public_key"], node.status["node_id"]
    way = ["--connect", node.address, "--public-key", key, "--node-id", node_id]
    assert meshbus("peers", "--config", mesh / "me.toml", *way).row["node_id"] == node_id


def test_connect_with_the_configured_peers(meshbus: Meshbus, node: Running, mesh: Path, home: Path) -> None:
    peer = f'[[peers]]\naddress = "{node.address}"\npublic_key = "{node.public_key}"\n'
    lost = f'[[peers]]\naddress = "127.0.0.1:9"\npublic_key = "{node.public_key}"\nnode_id = "01"\n'
    key = f'psk_file = "{mesh / "mesh.key"}"\nephemeral = true\nhandshake_attempts = 1\n{QUICK}'
    (home / "one.toml").write_text(key + peer, "utf-8")
    assert meshbus("peers", "--config", "one.toml").row["node_id"] == node.status["node_id"]
    (home / "both.toml").write_text(key + peer + lost, "utf-8")
    result = meshbus("peers", "--config", "both.toml")
    assert result.code == Exit.OK, "one of two is enough"
    assert result.row["node_id"] == node.status["node_id"]
    assert result.err.count("\n") == 1
    (home / "lost.toml").write_text(key + lost, "utf-8")
    assert meshbus("peers", "--config", "lost.toml").code == Exit.UNREACHABLE


def test_the_default_socket_is_used_if_it_exists(
    meshbus: Meshbus, node: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert meshbus("peers").code == Exit.USAGE
    monkeypatch.setenv("MESHBUS_ADMIN_SOCKET", node.admin)
    assert meshbus("peers").code == Exit.OK


def test_another_mesh_key_cannot_connect(meshbus: Meshbus, node: Running, mesh: Path) -> None:
    result = meshbus(
        "peers", "--config", mesh / "me.toml", "--set", f"psk_file={mesh / 'stranger.key'}", "--set",
        "handshake_attempts=1", "--connect", node.address, "--public-key", node.public_key,
    )  # fmt: skip
    assert (result.code, result.out) == (Exit.UNREACHABLE, "")
    assert result.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (["--admin", "none.sock"], 3, "none.sock: there is no such socket; start a node with `meshbus up`"),
        (["--admin", "x", "--config", "y"], 2, "--admin: not allowed with --config or --connect"),
        (["--admin", "x", "--connect", "h:1"], 2, "--admin: not allowed with --config or --connect"),
        (["--connect", "127.0.0.1:9"], 2, "--public-key: required with --connect"),
        (["--public-key", KEY], 2, "--connect: required with --public-key"),
        (["--node-id", "1"], 2, "--connect: required with --public-key"),
        (["--direct"], 2, "--connect: required with --public-key, --node-id and --direct"),
        (["--connect", "nowhere", "--public-key", KEY], 2, "--connect[0].address (from an argument): invalid address 'nowhere'"),
        (["--connect", "h:1", "--public-key", "x"], 2, "--connect[0].public_key (from an argument): expected 64 hex"),
        (["--config", "none.toml"], 2, "config (from none.toml): the file does not exist"),
        (["--set", f"psk={KEY}"], 2, "psk on a command line is visible to every user"),
        (["--set", "psk_file=KEYFILE"], 2, "peers: no peer is configured; give --connect and --public-key"),
        (["--config", "me", "--connect"], 2, "parameter --connect requires an argument"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("verb", [["peers"], ["pub", "a", "x"], ["sub", "a"]], ids=lambda verb: verb[0])
def test_contradicting_options_are_errors_of_one_line(
    meshbus: Meshbus, verb: list[str], arguments: list[str], code: int, complaint: str
) -> None:
    result = meshbus(*verb, *arguments)
    assert (result.code, result.out) == (code, "")
    assert complaint in result.err
    assert result.err.startswith("meshbus: ")
    assert result.err.count("\n") == 1


def test_a_wrong_port_is_reported_at_once_and_not_as_a_wrong_key(meshbus: Meshbus, mesh: Path) -> None:
    with UdpSocket.bind("127.0.0.1", 0) as free:
        address = f"127.0.0.1:{free.address[1]}"
    result = meshbus(
        "peers",
        "--config",
        mesh / "me.toml",
        "--set",
        "handshake_attempts=2",
        "--connect",
        address,
        "--public-key",
        OTHER,
    )
    assert result.code == Exit.UNREACHABLE
    first, last = result.err.splitlines()
    for line in (first, last):
        assert line.startswith(f"meshbus: no program listens at {address}, the machine there reports")


def test_the_error_of_a_wrong_public_key_shows_the_typed_key(meshbus: Meshbus, node: Running, mesh: Path) -> None:
    result = meshbus(
        "peers", "--config", mesh / "me.toml", "--set", "handshake_attempts=1", "--connect", node.address,
        "--public-key", OTHER,
    )  # fmt: skip
    assert result.code == Exit.UNREACHABLE
    assert f"its public key is {OTHER}" in result.err
    counted = {row["counter"] for row in meshbus("counters", "--admin", node.admin).rows}
    assert "drop.transit_stranger" in counted


def test_a_node_that_does_not_answer_is_reported_before_the_last_attempt(meshbus: Meshbus, mesh: Path) -> None:
    with UdpSocket.bind("127.0.0.1", 0) as silent:
        result = meshbus(
            "peers", "--config", mesh / "me.toml", "--set", "handshake_attempts=2", "--connect",
            f"127.0.0.1:{silent.address[1]}", "--public-key", OTHER,
        )  # fmt: skip
    first, last = result.err.splitlines()
    assert first == f"meshbus: no answer yet from 127.0.0.1:{silent_port(last)}; trying again"
    assert "run `meshbus counters` there" in last


def silent_port(line: str) -> str:
    """Return the port in an error message."""
    return line.partition("127.0.0.1:")[2].partition(" ")[0]


def test_a_noise_key_without_a_node_id_is_an_error(meshbus: Meshbus, mesh: Path) -> None:
    noise = "ff" * 31 + "7f"
    result = meshbus("peers", "--config", mesh / "me.toml", "--connect", "127.0.0.1:9", "--public-key", noise)
    assert result.code == Exit.USAGE
    assert noise in result.err
    assert "node_id" in result.err


@pytest.mark.parametrize(("do", "fields"), [("dance", {}), ("peers", {"by": "age"})])
def test_a_node_of_another_version_is_not_blamed_on_the_user(node: Running, do: str, fields: dict[str, str]) -> None:
    with pytest.raises(Refusal, match=rf"admin\.sock: the node does not know the request '{do}' .* restart it with"):
        asyncio.run(ask_node(Path(node.admin), None, do, **fields))


def test_a_value_that_a_node_refuses_says_nothing_about_versions(node: Running) -> None:
    with pytest.raises(Refusal, match=r"^request: is not a valid command: Expected `str`"):
        asyncio.run(ask_node(Path(node.admin), None, "publish", channel=5))
