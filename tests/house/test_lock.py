"""The locks: exact, hashed, without addresses, in agreement with each other and with pyproject.toml."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.house.tree import ROOT

LOCKS = sorted((ROOT / "requirements").glob("*.txt"))
RUN, DEV = (ROOT / "requirements" / name for name in ("run.txt", "dev.txt"))
REWRITE = "run `make lock`"


def _entries(lock: Path) -> list[tuple[Requirement, int]]:
    """Each locked requirement with the number of its hashes."""
    lines = [line for line in lock.read_text("utf-8").splitlines() if not line.lstrip().startswith("#")]
    entries = re.split(r"(?<!\\)\n", "\n".join(lines).strip())
    return [
        (Requirement(entry.partition("\\")[0]), len(re.findall(r"--hash=sha256:[0-9a-f]{64}\b", entry)))
        for entry in entries
    ]


def _pins(lock: Path) -> dict[str, set[str]]:
    """The versions of each name; there may be several, for different Pythons."""
    pins: dict[str, set[str]] = {}
    for requirement, _ in _entries(lock):
        pins.setdefault(canonicalize_name(requirement.name), set()).add(str(requirement.specifier))
    return pins


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_a_lock_is_exact_hashed_and_without_addresses(lock: Path) -> None:
    text = lock.read_text("utf-8")
    assert not re.search(r"://|^\s*-(-index|-extra-index|-find-links|i |f )", text, re.MULTILINE), (
        "an address in the lock"
    )
    for requirement, hashes in _entries(lock):
        assert re.fullmatch(r"==[^,*]+", str(requirement.specifier)), f"{requirement} is not exact; {REWRITE}"
        assert requirement.url is None, f"{requirement} names an address; {REWRITE}"
        assert hashes, f"{requirement} has no hash; {REWRITE}"


def test_the_development_lock_holds_the_run_lock() -> None:
    dev = _pins(DEV)
    differ = {name: (pins, dev.get(name)) for name, pins in _pins(RUN).items() if dev.get(name) != pins}
    assert not differ, f"run.txt and dev.txt disagree: {differ}; {REWRITE}"


@pytest.mark.parametrize("name", ["site", "web"])
def test_what_is_installed_beside_the_development_lock_agrees_with_it(name: str) -> None:
    dev = _pins(DEV)
    beside = _pins(ROOT / "requirements" / f"{name}.txt")
    differ = {one: (pins, dev[one]) for one, pins in beside.items() if not pins <= dev.get(one, pins)}
    assert not differ, f"{name}.txt and dev.txt disagree: {differ}; {REWRITE}"


def test_the_run_lock_holds_the_project_at_allowed_versions() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    extras = project["project"]["optional-dependencies"]
    wanted = [
        *project["project"]["dependencies"],
        *extras["arrow"],
        *extras["fast"],
        *extras["report"],
        *project["build-system"]["requires"],
    ]
    pins = _pins(RUN)
    for requirement in map(Requirement, wanted):
        locked = pins.get(canonicalize_name(requirement.name))
        assert locked, f"run.txt lacks {requirement.name}; add it to run.in and {REWRITE}"
        for pin in locked:
            assert requirement.specifier.contains(pin.removeprefix("==")), (
                f"{requirement} does not allow the locked {pin}"
            )


def test_the_oracles_are_no_extras() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    names = {
        canonicalize_name(Requirement(text).name)
        for extra in [project["dependencies"], *project["optional-dependencies"].values()]
        for text in extra
    }
    assert not names & {"net-mesh", "net-mesh-sdk", "noiseprotocol", "pyzmq"}, "an oracle serves tests only"


def test_every_extra_is_imported_somewhere() -> None:
    """An extra that nothing imports installs packages for nothing."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    source = "\n".join(path.read_text("utf-8") for path in (ROOT / "src").rglob("*.py"))
    indirect = {"pandas": "pyspark imports it"}
    spelled = {
        "opentelemetry-exporter-otlp-proto-http": "opentelemetry.exporter.otlp.proto.http",
        "opentelemetry-sdk": "opentelemetry.sdk",
        "prometheus-client": "prometheus_client",
        "protobuf": "google.protobuf",
        "vl-convert-python": "vl_convert",
    }
    unused = [
        f"{extra}: {name}"
        for extra, texts in extras.items()
        for name in (Requirement(text).name for text in texts)
        if name not in {"meshbus", *indirect}
        and not re.search(rf"^\s*(import|from) {spelled.get(name, name)}\b", source, re.MULTILINE)
    ]
    assert not unused, f"nothing imports {', '.join(unused)}; remove it from pyproject.toml"
