"""Run the benchmarks given on the command line, or all of them, and print their tables."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from types import ModuleType

from bench.harness import begin, describe_machine, save


def bench_names() -> list[str]:
    """Return the names of all benchmarks: their file names without `bench_`."""
    return sorted(path.stem.removeprefix("bench_") for path in Path(__file__).parent.glob("bench_*.py"))


def own_options(module: ModuleType, given: list[str]) -> argparse.Namespace:
    """Parse the options that only one benchmark has; exits with a message if it has no such options."""
    parser = argparse.ArgumentParser(prog=f"python -m bench {module.__name__.removeprefix('bench.bench_')}")
    if hasattr(module, "add_options"):
        module.add_options(parser)
    return parser.parse_args(given)


def main() -> int:
    """Run the benchmarks, print their tables, and save them if requested."""
    names = bench_names()
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=__doc__,
        epilog="Options that only one benchmark has are described at the top of its file.",
        allow_abbrev=False,
    )
    parser.add_argument("bench", nargs="*", help=f"one of: {', '.join(names)}")
    parser.add_argument(
        "--quick", action="store_true", help="run fewer and shorter rounds; the results are only indicative"
    )
    parser.add_argument("--save", action="store_true", help="append the results to bench/results")
    arguments, own = parser.parse_known_args()
    unknown = sorted(set(arguments.bench) - set(names))
    if unknown:
        parser.error(f"unknown benchmark {', '.join(unknown)}; choose from {', '.join(names)}")
    print(" · ".join(f"{name} {value}" for name, value in describe_machine().items()), "\n")
    for name in arguments.bench or names:
        module = importlib.import_module(f"bench.bench_{name}")
        begun = begin(name, quick=arguments.quick)
        tables = []
        for table in module.run(arguments.quick, *([own_options(module, own)] if own else [])):
            print(table.render(), flush=True)  # as soon as it is there: some benchmarks take long
            tables.append(table)
        if arguments.save:
            print(f"saved in {save(begun, tables)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
