"""The packages of a release: what is in them."""

from importlib.metadata import distribution, version
from pathlib import PurePosixPath

from tools.release import bundle, sbom


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
