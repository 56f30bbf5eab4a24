"""Contexts are kept in a file of the user, and options on the command line win over them."""

import stat
from pathlib import Path

import pytest

from meshbus.cli.contexts import Contexts, applied, check_name, place, table_of
from meshbus.cli.options import MeshOptions
from meshbus.errors import ConfigError


@pytest.fixture(autouse=True)
def _home(home: Path) -> None:
    """Each test has a user of its own."""


def save(**tables: MeshOptions) -> Contexts:
    contexts = Contexts(next(iter(tables)), {name: table_of(options) for name, options in tables.items()})
    contexts.write()
    return contexts


def test_contexts_are_read_as_they_were_written_and_others_cannot_read_them() -> None:
    assert Contexts.read().tables == {}
    options = MeshOptions(
        connect="10.0.0.7:9000", public_key="ab", direct=True, overrides=['psk_file=/a "b"', "name=ü"]
    )
    save(west=options)
    assert stat.S_IMODE(place().stat().st_mode) == 0o600
    found = Contexts.read()
    assert found.current == "west"
    assert applied(MeshOptions(), {}) == options


def test_a_path_is_kept_as_seen_from_everywhere(home: Path) -> None:
    save(here=MeshOptions(admin=Path("run/admin.sock")))
    assert applied(MeshOptions(), {}).admin == home / "run" / "admin.sock"


def test_the_context_of_a_command_wins_over_the_environment_and_that_over_the_current_one() -> None:
    save(**{name: MeshOptions(connect=f"{name}:1") for name in ("a", "b", "c")})
    assert applied(MeshOptions(), {}).connect == "a:1"
    assert applied(MeshOptions(), {"MESHBUS_CONTEXT": "b"}).connect == "b:1"
    assert applied(MeshOptions(context="c"), {"MESHBUS_CONTEXT": "b"}).connect == "c:1"


def test_a_command_that_says_how_to_reach_a_mesh_uses_no_context() -> None:
    save(a=MeshOptions(connect="a:1"))
    own = MeshOptions(admin=Path("/x"))
    assert applied(own, {"MESHBUS_CONTEXT": "a"}) is own
    assert applied(MeshOptions(overrides=["name=x"]), {}).overrides == ["name=x"]


def test_settings_of_a_command_follow_those_of_the_context() -> None:
    save(a=MeshOptions(connect="a:1", overrides=["name=a"]))
    assert applied(MeshOptions(overrides=["name=b"]), {}).overrides == ["name=a", "name=b"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("current = ", "is not valid TOML"),
        ("[a]\npsk = 1\n", "may only hold admin, config"),
        ("a = 1\n", "may only hold"),
    ],
)
def test_a_damaged_file_is_named(text: str, complaint: str) -> None:
    place().parent.mkdir(parents=True)
    place().write_text(text, "utf-8")
    with pytest.raises(ConfigError, match=complaint) as caught:
        applied(MeshOptions(), {})
    assert str(place()) in str(caught.value)


@pytest.mark.parametrize("name", ["", "a b", "-a", "current", "a" * 65, "a.b"])
def test_some_names_are_not_allowed(name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be the name of a context"):
        check_name(name)


def test_an_unknown_context_names_the_others() -> None:
    with pytest.raises(ConfigError, match="there are none yet"):
        Contexts.read().get("west")
    with pytest.raises(ConfigError, match="choose from a, b"):
        save(a=MeshOptions(connect="a:1"), b=MeshOptions(connect="b:1")).get("west")
    with pytest.raises(ConfigError, match="--context: not allowed with --admin"):
        applied(MeshOptions(context="a", admin=Path("/x")), {})


def test_a_newer_file_is_refused_and_no_context_has_the_name_of_its_version() -> None:
    place().parent.mkdir(parents=True, exist_ok=True)
    place().write_text("file_version = 2\n")
    with pytest.raises(ConfigError, match="settings file, version 2, was written by a newer meshbus"):
        Contexts.read()
    with pytest.raises(ConfigError, match="cannot be the name of a context"):
        check_name("file_version")
