"""A verb runs with a file, the environment and what was typed."""

import subprocess
import sys
from pathlib import Path

import pytest

from meshbus.cli.options import gather_settings, load_config
from meshbus.config.node import default_file
from meshbus.errors import ConfigError


def test_the_default_file_is_read_if_it_exists(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_config(None).heartbeat_s == 5
    default_file().parent.mkdir(parents=True)
    default_file().write_text("heartbeat_s = 4\n", "utf-8")
    assert load_config(None).heartbeat_s == 4
    (home / "other.toml").write_text("heartbeat_s = 3\n", "utf-8")
    monkeypatch.setenv("MESHBUS_CONFIG", "other.toml")
    assert load_config(None).heartbeat_s == 3
    (home / "named.toml").write_text("heartbeat_s = 2\n", "utf-8")
    assert load_config(Path("named.toml")).heartbeat_s == 2


def test_values_are_converted_to_the_type_of_their_setting(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESHBUS_HEARTBEAT_S", "9")
    config = load_config(None, ["heartbeat_s=2", "tags = a,b", "profile=false", "metadata={a = 'b=c'}"])
    assert (config.heartbeat_s, config.tags, config.profile, config.metadata) == (2, ("a", "b"), False, {"a": "b=c"})
    assert gather_settings(None, ["heartbeat_s=2"])["heartbeat_s"].source == "an argument"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("heartbeat_s", "--set: expected key=value, such as heartbeat_s=2, got 'heartbeat_s'"),
        ("=2", "--set: expected key=value"),
        ("hartbeat_s=2", "hartbeat_s (from an argument): unknown setting; did you mean 'heartbeat_s'?"),
        (
            "heartbeat_s=x",
            "heartbeat_s (from an argument): expected a number of seconds in (0, 86400], got 'x'",
        ),
    ],
)
def test_the_error_names_a_mistyped_setting(home: Path, text: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None, [text])
    assert str(caught.value).startswith(complaint)


@pytest.mark.usefixtures("home")
def test_the_mesh_key_comes_from_a_file_or_standard_input_and_not_from_the_command_line() -> None:
    with pytest.raises(ConfigError, match="visible to every user") as caught:
        load_config(None, [f"psk={'7e' * 32}"])
    assert "7e7e" not in str(caught.value)
    code = "from meshbus.cli.options import load_config as load; print(load(None, ['psk_file=/dev/stdin']).load_psk().hex())"
    piped = subprocess.run([sys.executable, "-c", code], input="7e" * 32, capture_output=True, text=True, check=True)
    assert piped.stdout.strip() == "7e" * 32
