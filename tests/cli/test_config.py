"""Every setting is shown with its value and its source, and no secret."""

from pathlib import Path

import pytest

from meshbus.cli.exit import Exit
from meshbus.config import NodeConfig
from tests.cli.conftest import Meshbus

HEX = "0123456789abcdef" * 4


def test_every_setting_is_shown_with_its_source(meshbus: Meshbus, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "node.toml").write_text(
        'bind = "[::1]:9000"\nsubnet = "3.7"\n'
        '[[channels]]\nname = "a"\npriority = 3\nsubscribe_caps = { require_tags = ["x"] }\n'
        f'[[peers]]\naddress = "h:1"\nnode_id = "ff"\npublic_key = "{HEX}"\n',
        "utf-8",
    )
    monkeypatch.setenv("MESHBUS_TAGS", "a,b")
    result = meshbus("config", "show", "node.toml", "--set", "heartbeat_s=2")
    assert (result.code, result.err) == (Exit.OK, "")
    shown = {row["setting"]: (row["value"], row["source"]) for row in result.rows}
    assert list(shown) == list(NodeConfig.__struct_fields__)
    assert shown["bind"] == ("[::1]:9000", "node.toml")
    assert shown["subnet"] == ("3.7", "node.toml")
    assert shown["tags"] == (["a", "b"], "the environment")
    assert shown["heartbeat_s"] == (2, "an argument")
    assert shown["max_packet"] == ("auto", "default")
    assert shown["channels"][0] == [{"name": "a", "priority": 3, "subscribe_caps": {"require_tags": ["x"]}}]
    assert shown["peers"][0] == [{"address": "h:1", "node_id": "00000000000000ff", "public_key": HEX}]


def test_the_mesh_key_is_hidden(meshbus: Meshbus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESHBUS_PSK", HEX)
    result = meshbus("config", "show")
    assert HEX not in result.out
    assert {"setting": "psk", "value": "(hidden)", "source": "the environment"} in result.rows


def test_a_terminal_gets_a_table(meshbus: Meshbus, terminal: None) -> None:
    out = meshbus("config", "show").out
    assert "127.0.0.1:0" in out
    assert "{" not in out


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("hearbeat_s = 1", "hearbeat_s (from node.toml): unknown setting; did you mean 'heartbeat_s'?"),
        ("bind = 9000", "bind (from node.toml): expected host:port such as '10.0.0.7:9000', got 9000"),
        ("bind = ", "config (from node.toml): the file is not valid TOML: Invalid value (at "),
        (
            "[[channels]]\nnayme = 'a'",
            "channels[0].nayme (from node.toml): unknown setting; did you mean 'name'?",
        ),
        (
            f"psk = '{HEX}'",
            "psk (from node.toml): other users can read this file (mode 0644); run `chmod 600 node.toml`",
        ),
    ],
)
def test_the_error_of_a_bad_file_is_one_line(meshbus: Meshbus, home: Path, content: str, complaint: str) -> None:
    (home / "node.toml").write_text(content, "utf-8")
    (home / "node.toml").chmod(0o644)
    result = meshbus("config", "show", "node.toml")
    assert (result.code, result.out) == (Exit.USAGE, "")
    assert result.err.startswith(f"meshbus: {complaint}")
    assert result.err.count("\n") == 1
