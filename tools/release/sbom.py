"""A bill of materials in the form of CycloneDX 1.6: which packages are in the Debian package, and under which licence."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import Distribution
from typing import Any


def bill(version: str, packages: Mapping[str, Distribution]) -> dict[str, Any]:
    """Return the document; it has no time and no serial number, so the same packages give the same bytes."""
    root = f"pkg:pypi/meshbus@{version}"
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": root,
                "name": "meshbus",
                "version": version,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
                "purl": root,
            }
        },
        "components": [_component(name, package) for name, package in packages.items()],
        "dependencies": [{"ref": root, "dependsOn": [_purl(name, package) for name, package in packages.items()]}],
    }


def _component(name: str, package: Distribution) -> dict[str, Any]:
    purl = _purl(name, package)
    found: dict[str, Any] = {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": package.version,
        "purl": purl,
    }
    licence = _licence(package)
    return found if licence is None else {**found, "licenses": [licence]}


def _purl(name: str, package: Distribution) -> str:
    return f"pkg:pypi/{name}@{package.version}"


def _licence(package: Distribution) -> dict[str, Any] | None:
    """Return what a package says about its licence; None if it says nothing."""
    expression = (package.metadata.get_all("License-Expression") or [""])[0]
    if expression:
        return {"expression": expression}
    classified = [
        line.rpartition(" :: ")[2]
        for line in package.metadata.get_all("Classifier") or ()
        if line.startswith("License ::") and line != "License :: OSI Approved"
    ]
    # Some packages have the whole text in this field.
    named = (package.metadata.get_all("License") or [""])[0].strip()
    name = classified[0] if classified else named.splitlines()[0] if named else None
    return None if name is None else {"license": {"name": name}}
