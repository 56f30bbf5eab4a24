"""The packages of a release: what is in them."""

import io
import platform
import sys
import tarfile
from importlib.metadata import distribution, version
from pathlib import Path, PurePosixPath

import pytest

from tools.release import archive, bundle, sbom, trial


def test_a_package_has_what_a_node_needs_and_no_spark() -> None:
    names = list(bundle.needed())
    assert names == sorted(names)
    assert {"numpy", "pynacl", "cffi", "pyarrow", "numba", "llvmlite", "starlette", "anyio"} <= set(names)
    assert not {"meshbus", "pyspark", "pytest"} & set(names)
    assert set(bundle.needed(())) < set(names), "extras add packages"


def test_files_lie_below_the_library_and_are_there() -> None:
    files = dict(bundle.files_of(distribution("msgspec")))
    assert PurePosixPath("msgspec/__init__.py") in files
    assert all(source.is_file() for source in files.values())
    assert not [place for place in files if ".." in place.parts or place.suffix == ".pyc"]


def test_the_bill_names_every_package_once_with_its_licence() -> None:
    packages = bundle.needed()
    document = sbom.bill(version("meshbus"), packages)
    found = {row["name"]: row for row in document["components"]}
    assert list(found) == list(packages)
    assert len({row["bom-ref"] for row in document["components"]}) == len(packages)
    assert found["numpy"]["version"] == version("numpy")
    assert not [name for name, row in found.items() if "licenses" not in row], "a package without a known licence"


def test_an_archive_is_the_same_whenever_it_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1800000000")
    for name in ("one", "two"):
        folder = tmp_path / name / "site"
        folder.mkdir(parents=True)
        for page in ("b.html", "a.html") if name == "one" else ("a.html", "b.html"):
            (folder / page).write_text(page, "utf-8")
    first, second = (archive.pack(tmp_path / name / "site") for name in ("one", "two"))
    assert first == second
    with tarfile.open(fileobj=io.BytesIO(first)) as opened:
        assert opened.getnames() == ["site/a.html", "site/b.html"]


def test_a_trial_needs_packages_and_tells_interpreters_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"run `make release` first"):
        trial.packages_in(tmp_path)
    assert trial.version_of(sys.executable) == platform.python_version()
    assert trial.version_of(str(tmp_path / "python3.99")) == ""


def test_the_round_of_a_trial_passes_here() -> None:
    exec(compile(trial.ROUND, "round", "exec"), {"__name__": "__main__"})
