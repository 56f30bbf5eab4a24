"""The command line. It does nothing that the Python API cannot do.

Each command or group of commands is one module, which is loaded when it is used. Heavy imports are inside the functions,
so that `meshbus --help` loads neither numpy nor the node.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cyclopts import App, CycloptsError

TRACEBACK_VARIABLE = "MESHBUS_TRACEBACK"
"""Environment variable; if set, unexpected errors show their traceback."""

VERBS = {
    "demo": ("meshbus.cli.demo:demo", "Run a small fleet, then the data pipeline on its logs."),
    "up": ("meshbus.cli.up:up", "Run a node until it is stopped."),
    "pub": ("meshbus.cli.events:pub", "Publish events and show how many subscribers got them."),
    "sub": ("meshbus.cli.events:sub", "Show the events of a channel as they arrive."),
    "req": ("meshbus.cli.requests:req", "Send a request to a node and show the reply."),
    "reply": ("meshbus.cli.requests:reply", "Answer the requests of other nodes."),
    "status": ("meshbus.cli.status:status", "Show whether a node runs, and how it is."),
    "top": ("meshbus.cli.top:top", "Watch a node live: rates, peers, drops with their reason."),
    "peers": ("meshbus.cli.peers:peers", "List the peers of a node."),
    "channels": ("meshbus.cli.channels:channels", "List the channels that a node knows, with their traffic."),
    "ping": ("meshbus.cli.ping:ping", "Measure the round trip to a peer."),
    "bench": ("meshbus.cli.bench:app", "Measure events per second and latency between two nodes."),
    "counters": ("meshbus.cli.counters:counters", "Show what a node sent, received, dropped and refused."),
    "replica": ("meshbus.cli.replica:app", "Show, change and verify the replicas of a channel."),
    "daemon": ("meshbus.cli.daemon:app", "Run, show, move and stop the daemons of a node."),
    "key": ("meshbus.cli.key:app", "Create and show identities and mesh keys."),
    "token": ("meshbus.cli.token:app", "Issue, delegate, show, verify and revoke permission tokens."),
    "revoke": ("meshbus.cli.revoke:app", "Revoke a node, a right or a token in the whole fleet, and show what was."),
    "pins": ("meshbus.cli.pins:app", "Show and reset which nodes were seen secure."),
    "policy": ("meshbus.cli.policy:app", "Check, compare and apply a policy, and show who changed it."),
    "invite": ("meshbus.cli.invite:app", "Let a new node join: make, list, approve and withdraw invites."),
    "join": ("meshbus.cli.join:join", "Make this machine a node of a fleet, by the token of an invite."),
    "audit": ("meshbus.cli.audit:audit", "Show who changed what about policy, members and keys."),
    "rotate": ("meshbus.cli.rotate:app", "Replace secrets of a running node without ending a session."),
    "log": ("meshbus.cli.log:app", "List, show, follow, verify and seal logs on disk."),
    "packets": ("meshbus.cli.packets:app", "List and show recorded packets."),
    "ctx": ("meshbus.cli.ctx:app", "Save, choose and list contexts: how commands reach a node."),
    "new": ("meshbus.cli.new:new", "Write the configuration of a new node, by asking or from options."),
    "config": ("meshbus.cli.config:app", "Show the configuration of a node."),
    "pipeline": ("meshbus.cli.pipeline:app", "Make Spark tables from logs and packets, and replay policies on them."),
    "check": ("meshbus.cli.check:check", "Check a configuration and this machine."),
    "systemd": ("meshbus.cli.systemd:systemd", "Print a unit that runs a node as a service."),
    "completion": ("meshbus.cli.completion:completion", "Print the completion script of a shell."),
}
"""The commands: where each is implemented, and its help text."""

NEEDS = {"demo": "spark", "pipeline": "spark"}
"""The commands that do nothing useful without an extra; the help says so where it is not installed."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit status; an error is one line on standard error."""
    from cyclopts import CycloptsError

    from meshbus.cli.exit import Exit, code_of, sentence_of
    from meshbus.cli.output import note
    from meshbus.errors import MeshError

    arguments = sys.argv[1:] if argv is None else list(argv)
    try:
        result = application()(arguments, exit_on_error=False, print_error=False, result_action="return_value")
        sys.stdout.flush()
    except CycloptsError as error:
        note(_usage(error))
        return Exit.USAGE
    except BrokenPipeError:
        # The reader of the pipe has closed it. Redirect stdout, so that Python does not fail when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.OK
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except (MeshError, OSError) as error:
        note(sentence_of(error))
        return code_of(error)
    except Exception as error:  # a bug in meshbus is also reported in one line
        if os.environ.get(TRACEBACK_VARIABLE):
            raise
        if isinstance(error, ModuleNotFoundError) and (lacking := _optional(error)):
            note(lacking)
            return Exit.FAILED
        kind = type(error).__name__
        note(
            f"unexpected {kind}: {sentence_of(error)}; this is a bug, please report it with the traceback that "
            f"{TRACEBACK_VARIABLE}=1 shows"
        )
        return Exit.FAILED
    return int(result) if isinstance(result, int) else Exit.OK


def _optional(error: ModuleNotFoundError) -> str:
    """Return the sentence about a missing package if an extra installs it, otherwise nothing."""
    from meshbus.cli.extras import PACKAGES, advice

    name = (error.name or "").partition(".")[0]
    return advice(name) if name in PACKAGES else ""


def application() -> App:
    """Return the command line; each command is loaded when it is used."""
    from cyclopts import App, Parameter

    from meshbus import __version__

    app = App(
        name="meshbus",
        help="An event mesh for fleets, whose log is a Spark table.",
        version=__version__,
        help_format="plaintext",  # a third faster than loading a Markdown parser
        suppress_keyboard_interrupt=False,
        default_parameter=Parameter(negative=()),
    )
    for name, (place, summary) in VERBS.items():
        app.command(place, name=name, help=summary + _lacks(name))
    return app


def _lacks(verb: str) -> str:
    """Return what to install before a command can be used, or nothing."""
    from meshbus.cli.extras import SPARK, missing

    extra = NEEDS.get(verb)
    return f" Needs pip install 'meshbus[{extra}]'." if extra and missing(SPARK) else ""


def _usage(error: CycloptsError) -> str:
    """Return a usage error as one line that ends with the help command."""
    from cyclopts import UnknownCommandError

    error.verbose = False
    chain = list(error.command_chain or ())
    if isinstance(error, UnknownCommandError) and not chain:
        what = _unknown_verb((error.unused_tokens or [""])[0])  # str(error) would load every command
    else:
        what = " ".join(str(error).split()).rstrip(".?")
    return f"{what[:1].lower()}{what[1:]}; see `{' '.join(['meshbus', *chain])} --help`"


def _unknown_verb(given: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(given, VERBS, n=1)
    return f"unknown command {given!r}" + (f" (did you mean {near[0]!r}?)" if near else "")
