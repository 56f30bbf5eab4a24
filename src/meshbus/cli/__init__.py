"""Words for people: verbs of the command line. Nothing here can do what the API cannot.

A family of verbs is a file of its own, loaded when one of its verbs is used, and what is heavy is imported inside the
verb: `meshbus --help` loads neither numpy nor the node.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cyclopts import App, CycloptsError

TRACEBACK_VARIABLE = "MESHBUS_TRACEBACK"
"""Set it to see where an unexpected error came from."""

VERBS = {
    "demo": ("meshbus.cli.demo:demo", "Run a small fleet, and then the pipeline over what it logged."),
    "up": ("meshbus.cli.up:up", "Run a node until it is told to stop."),
    "pub": ("meshbus.cli.events:pub", "Publish events, and say who got them."),
    "sub": ("meshbus.cli.events:sub", "Show the events of a channel as they arrive."),
    "peers": ("meshbus.cli.peers:peers", "List the peers of a node."),
    "key": ("meshbus.cli.key:app", "Make and show identities and mesh keys."),
    "token": ("meshbus.cli.token:app", "Issue, hand on, show and verify permissions."),
    "log": ("meshbus.cli.log:app", "List, show, follow, verify and seal logs on disk."),
    "packets": ("meshbus.cli.packets:app", "List and show what flight recorders wrote."),
    "config": ("meshbus.cli.config:app", "Show what a node would run with."),
    "pipeline": ("meshbus.cli.pipeline:app", "Make Spark tables of logs and packets, and replay policies over them."),
    "check": ("meshbus.cli.check:check", "Check a configuration and this machine, and say what to do."),
}
"""Each verb: where it is, and what it does."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and give its exit code; what goes wrong is one sentence on standard error."""
    from cyclopts import CycloptsError

    from meshbus.cli.exit import Exit, code_of, sentence_of
    from meshbus.cli.output import note
    from meshbus.errors import MeshError

    arguments = sys.argv[1:] if argv is None else list(argv)
    try:
        result = _app()(arguments, exit_on_error=False, print_error=False, result_action="return_value")
        sys.stdout.flush()
    except CycloptsError as error:
        note(_usage(error))
        return Exit.USAGE
    except BrokenPipeError:
        # Whoever read our results has enough; Python must not complain about it when it flushes at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.OK
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except (MeshError, OSError) as error:
        note(sentence_of(error))
        return code_of(error)
    except Exception as error:  # the last stop: a mistake of ours is one sentence too
        if os.environ.get(TRACEBACK_VARIABLE):
            raise
        kind = type(error).__name__
        note(f"unexpected {kind}: {sentence_of(error)}; please report it, with what {TRACEBACK_VARIABLE}=1 shows")
        return Exit.FAILED
    return int(result) if isinstance(result, int) else Exit.OK


def _app() -> App:
    from cyclopts import App, Parameter

    from meshbus import __version__

    app = App(
        name="meshbus",
        help="An event mesh for fleets, whose log is a Spark table.",
        version=__version__,
        help_format="plaintext",  # a third quicker than loading a Markdown parser
        suppress_keyboard_interrupt=False,
        default_parameter=Parameter(negative=()),
    )
    for name, (place, summary) in VERBS.items():
        app.command(place, name=name, help=summary)
    return app


def _usage(error: CycloptsError) -> str:
    """Make one sentence of a mistake on the command line, and say where to look."""
    from cyclopts import UnknownCommandError

    error.verbose = False
    chain = list(error.command_chain or ())
    if isinstance(error, UnknownCommandError) and not chain:
        what = _unknown_verb((error.unused_tokens or [""])[0])  # the error's own text would load every verb
    else:
        what = " ".join(str(error).split()).rstrip(".?")
    return f"{what[:1].lower()}{what[1:]}; see `{' '.join(['meshbus', *chain])} --help`"


def _unknown_verb(given: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(given, VERBS, n=1)
    return f"there is no command {given!r}" + (f", did you mean {near[0]!r}" if near else "")
