"""What is not installed is named, with the command that installs it."""

import tomllib

import pytest

from meshbus.cli import extras as subject
from meshbus.cli.exit import Exit
from meshbus.errors import PipelineError
from tests.cli.conftest import Meshbus
from tests.house.tree import ROOT


def test_every_package_belongs_to_the_extra_that_installs_it() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    for name, extra in subject.PACKAGES.items():
        assert any(text.startswith(name.replace("_", "-")) for text in extras[extra]), (
            f"{extra} does not install {name}"
        )
    installed = {text.split(">")[0].split("<")[0].replace("-", "_") for texts in extras.values() for text in texts}
    imported = {"opentelemetry" if name.startswith("opentelemetry_") else name for name in installed}
    assert {name for name in imported if not name.startswith("meshbus[")} == set(subject.PACKAGES)


def test_what_is_missing_is_found_without_an_import() -> None:
    assert subject.missing(("json", "no_such_package")) == ["no_such_package"]


def test_the_first_missing_package_is_refused() -> None:
    subject.needs(("json",), "spark")
    with pytest.raises(PipelineError, match=r"no_such_package is not installed; run: pip install 'meshbus\[spark\]'"):
        subject.needs(("json", "no_such_package"), "spark")


def test_a_command_without_its_optional_package_names_it(meshbus: Meshbus, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ModuleNotFoundError("No module named 'pyarrow.parquet'", name="pyarrow.parquet")

    monkeypatch.setattr("meshbus.keyfile.load_identity", fail)
    result = meshbus("key", "show")
    assert (result.code, result.out) == (Exit.FAILED, "")
    assert result.err == "meshbus: pyarrow is not installed; run: pip install 'meshbus[arrow]'\n"


def test_help_shows_what_to_install(meshbus: Meshbus, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "pip install" not in meshbus("--help").out
    monkeypatch.setattr(subject, "missing", list)
    assert "meshbus[spark]" in meshbus("--help").out


def test_the_demo_lists_missing_packages_before_it_starts(meshbus: Meshbus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "missing", lambda _: ["pyspark"])
    result = meshbus("demo", "out")
    assert result.code == Exit.FAILED
    assert result.err == "meshbus: pyspark is not installed; run: pip install 'meshbus[spark]'\n"
