"""Contexts are added, chosen, listed and deleted."""

from pathlib import Path

from meshbus.cli.exit import Exit
from tests.cli.conftest import Meshbus


def test_the_life_of_a_context(meshbus: Meshbus, home: Path) -> None:
    assert meshbus("ctx", "ls").out == ""
    assert "context west added; the current context is west" in meshbus("ctx", "add", "west", "--admin", "a.sock").err
    assert (
        "context east added; the current context is west"
        in meshbus(
            "ctx", "add", "east", "--connect", "10.0.0.7:9000", "--public-key", "ab" * 32, "--set", "psk_file=mesh.key"
        ).err
    )
    assert meshbus("ctx", "ls").rows == [
        {
            "context": "east",
            "current": False,
            "connect": "10.0.0.7:9000",
            "public_key": "ab" * 32,
            "set": ["psk_file=mesh.key"],
        },
        {"context": "west", "current": True, "admin": str(home / "a.sock")},
    ]
    assert meshbus("ctx", "use", "east").code == Exit.OK
    assert meshbus("ctx", "show").row["connect"] == "10.0.0.7:9000"
    assert "context west replaced" in meshbus("ctx", "add", "west", "--admin", "b.sock").err
    assert "it was the current one" in meshbus("ctx", "rm", "east").err
    assert "no context is in use" in meshbus("ctx", "show").err
    assert meshbus("ctx", "use", "west").code == Exit.OK
    assert "no context is in use" in meshbus("ctx", "off").err
    assert "deleted" in meshbus("ctx", "rm", "west").err


def test_what_a_context_cannot_be(meshbus: Meshbus) -> None:
    for arguments, complaint in [
        (["add", "west"], "give one of --admin, --config and --connect"),
        (["add", "a/b", "--admin", "x"], "cannot be the name of a context"),
        (["add", "b", "--context", "c"], "give the options that the context is to hold"),
        (["use", "west"], "create it with `meshbus ctx add west`"),
        (["rm", "west"], "unknown context 'west'"),
    ]:
        result = meshbus("ctx", *arguments)
        assert (result.code, result.out) == (Exit.USAGE, "")
        assert complaint in result.err


def test_a_command_that_asks_a_local_node_needs_a_socket(meshbus: Meshbus) -> None:
    meshbus("ctx", "add", "far", "--connect", "10.0.0.7:9000", "--public-key", "ab" * 32)
    result = meshbus("replica", "status")
    assert result.code == Exit.USAGE
    assert "--admin: required, because the context reaches another node" in result.err
