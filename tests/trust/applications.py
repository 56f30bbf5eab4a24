"""Applications of a fleet, as programs of their own: what they say they published and received is what tests compare.

A publisher numbers its events, and an event counts when `meshbus pub` has reported it. A subscriber is `meshbus sub`, and what it
prints is what it got. Nothing here knows how events travel.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from meshbus.cli.exit import Exit
from tests.children import child
from tests.cli.running import SCRIPT
from tests.patience import PATIENCE_S

_PIPES: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}


def event(channel: str, number: int) -> str:
    """Return the payload of an event."""
    return f"{channel}#{number}"


class Publisher:
    """`meshbus pub`, fed with one event after the other until it is enough."""

    def __init__(self, process: subprocess.Popen[str], channel: str, pause_s: float) -> None:
        self._process = process
        self._channel = channel
        self._pause_s = pause_s
        self._enough = threading.Event()
        self.reports: list[dict[str, Any]] = []
        """What the program has said about each event, in their order."""
        self._feeding = threading.Thread(target=self._feed, daemon=True)
        self._feeding.start()

    @property
    def published(self) -> list[str]:
        """The events that the program says it has published."""
        return [event(self._channel, number) for number in range(len(self.reports))]

    def check_running(self) -> None:
        """Fail with what the program says if it has ended."""
        assert self._process.stderr is not None
        assert self._process.poll() is None, self._process.stderr.read()

    def finish(self) -> list[str]:
        """End publishing; return what was published, all of it to every subscriber and to the log."""
        self._enough.set()
        self._feeding.join(PATIENCE_S)
        assert self._process.stdin is not None
        self._process.stdin.close()
        code = self._process.wait(PATIENCE_S)
        assert self._process.stderr is not None
        assert code == Exit.OK, self._process.stderr.read()
        assert [report["log_seq"] for report in self.reports] == list(range(len(self.reports)))
        assert not any(report["errors"] or report["filtered"] for report in self.reports)
        return self.published

    def _feed(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(OSError, ValueError):  # it has ended, or was ended with the test
            while not self._enough.is_set():
                self._process.stdin.write(event(self._channel, len(self.reports)) + "\n")
                self._process.stdin.flush()
                line = self._process.stdout.readline()
                self.reports.append(json.loads(line))
                time.sleep(self._pause_s)  # the load that the test asked for


class Subscriber:
    """`meshbus sub`, and what it has printed."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.got: list[str] = []
        """The events, in the order in which they were printed."""
        self._process = process
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with suppress(ValueError):  # ended with the test
            for line in self._process.stdout:
                self.got.append(line.rstrip("\n"))


@contextmanager
def publishing(admin: str, channel: str, pause_s: float) -> Iterator[Publisher]:
    """Publish through a running node inside `with`."""
    command: list[str | Path] = [SCRIPT, "pub", channel, "--reliable", "--wait", "0", "--admin", admin]
    with child(command, stdin=subprocess.PIPE, **_PIPES) as process:
        yield Publisher(process, channel, pause_s)


@contextmanager
def subscribing(admin: str, channel: str, *arguments: str) -> Iterator[Subscriber]:
    """Subscribe through a running node inside `with`."""
    command: list[str | Path] = [SCRIPT, "sub", channel, "--raw", "--admin", admin, *arguments]
    with child(command, stdin=subprocess.DEVNULL, **_PIPES) as process:
        assert process.stderr is not None
        first = process.stderr.readline()
        assert first.startswith(f"meshbus: subscribed to {channel}"), first
        yield Subscriber(process)
