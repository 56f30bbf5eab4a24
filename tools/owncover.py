"""Measure each module with its own test file alone: `make owncover ARGS='policy/gateway wire'`.

A module that only other modules' tests reach is not tested by its own. For every module this runs
`tests/<room>/test_<module>.py` under coverage, lines and branches, and prints the share that it reached and the lines that
it missed. Without arguments it takes every module, which takes many minutes; it is not a part of `make test`.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.house.tree import PACKAGE, ROOT, is_only_a_face, modules, name_of, own_test_of


class Result(NamedTuple):
    """What one test file reached of its module."""

    module: str
    percent: float
    missed: str
    """Numbers of lines and ranges of them, as in `12, 20-24`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one line per module; return 1 if a test fails or a module is below the threshold."""
    parser = argparse.ArgumentParser(prog="owncover", description="Measure each module with its own test file alone.")
    parser.add_argument("modules", nargs="*", help="modules or rooms under src/meshbus, such as policy/gateway or wire")
    parser.add_argument("--at-least", type=float, default=0.0, metavar="PERCENT", help="exit with status 1 below this")
    options = parser.parse_args(arguments)
    try:
        chosen = list(choose(options.modules))
    except ValueError as error:
        parser.error(str(error))
    status = 0
    for module in chosen:
        try:
            result = measure(module)
        except RuntimeError as error:
            print(f"{name_of(module)}: {error}", file=sys.stderr)
            status = 1
            continue
        print(f"{result.percent:6.1f} %  {result.module}  {result.missed}".rstrip(), flush=True)
        if result.percent < options.at_least:
            status = 1
    return status


def choose(names: Sequence[str]) -> Iterator[Path]:
    """Yield the modules that have a test of their own, of the named rooms and files or of all."""
    testable = [module for module in modules() if not is_only_a_face(module)]
    if not names:
        yield from testable
    for name in names:
        place = PACKAGE / name
        found = [module for module in testable if module.is_relative_to(place) or module == place.with_suffix(".py")]
        if not found:
            raise ValueError(f"no module or room {name!r} in {name_of(PACKAGE)}; choose one such as policy/gateway")
        yield from found


def measure(module: Path) -> Result:
    """Run the module's own test file under coverage; raises RuntimeError if a test fails."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "COVERAGE_FILE": f"{folder}/data"}
        tests = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-n0", name_of(own_test_of(module))]
        _run("run", *tests, environment=environment)
        _run("json", "-q", f"--include={module}", "-o", f"{folder}/report.json", environment=environment)
        report = json.loads(Path(folder, "report.json").read_text("utf-8"))
    (found,) = report["files"].values()
    return Result(name_of(module), found["summary"]["percent_covered"], _ranges(found["missing_lines"]))


def _run(*arguments: str, environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "coverage", *arguments]
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise RuntimeError(f"coverage {arguments[0]} failed:\n{(ran.stdout + ran.stderr)[-2000:]}")


def _ranges(lines: Sequence[int]) -> str:
    """Write 3, 4, 5, 9 as 3-5, 9."""
    parts: list[list[int]] = []
    for line in lines:
        if parts and line == parts[-1][-1] + 1:
            parts[-1].append(line)
        else:
            parts.append([line])
    return ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)


if __name__ == "__main__":
    sys.exit(main())
