"""Settings of daemons: what a node runs, or lets move to it, without a program.

Each `[[daemons]]` table of a file is one daemon. This module only checks the settings and finds the code; node/daemons/daemons.py
runs it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from meshbus.compute.daemon import DaemonFactory
from meshbus.config.spelling import NodeId
from meshbus.errors import ChannelError, ConfigError
from meshbus.names.channel import ChannelName
from meshbus.names.nodename import check_node_name


class DaemonEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A daemon that the node runs, or lets move to it."""

    name: str
    """Name of the daemon; every node of the mesh derives the same identity from it, unless `key` is set."""
    factory: str
    """What creates it: `module:factory`, such as `detector:Detector`, in an installed module or below `daemons_path`."""
    inputs: tuple[str, ...] = ()
    """Channels whose logs it reads: `CHANNEL` of this node, or of its members if it is replicated, or `CHANNEL@NODE` of
    another node, by name or id. They count only where it is started for the first time."""
    output: ChannelName | None = None
    """Channel for what it returns; this node must log it, or it must be replicated."""
    run: bool = True
    """Start it here if this node has no record of it; on all nodes but one set it to false, so that it can only move here."""
    key: Path | None = None
    """File with a secret of its own, created on first use; nodes that have only the name could then not pretend to be it."""
    orchestrators: tuple[NodeId, ...] = ()
    """Ids of the nodes that may move it, by default all."""
    checkpoints: ChannelName | None = None
    """Replicated channel for its checkpoints: if its node dies, another that has the same entry continues it. Its output
    must be replicated too."""
    skip_gaps: bool = False
    """Continue after events that are gone from the log of an input, instead of stopping there."""

    def __post_init__(self) -> None:
        check_node_name(self.name)
        module, colon, attribute = self.factory.partition(":")
        if not (module and colon and attribute):
            raise ConfigError("factory", f"must be 'module:factory', such as 'detector:Detector', got {self.factory!r}")
        for text in self.inputs:
            channel, at, node = text.partition("@")
            try:
                ChannelName(channel)
            except ChannelError as error:
                raise ConfigError("inputs", str(error)) from None
            if at and not node:
                raise ConfigError("inputs", f"{text!r} names no node after '@'; write its name or id, or leave '@' out")

    def load_factory(self, path: Sequence[Path] = ()) -> DaemonFactory:
        """Return what creates the daemon; modules are also looked for in the directories of `path`.

        Raises ConfigError if the module cannot be imported or has no such factory.
        """
        module, _, attribute = self.factory.partition(":")
        for folder in reversed(path):
            if str(folder) not in sys.path:
                sys.path.insert(0, str(folder))
        try:
            found = getattr(importlib.import_module(module), attribute)
        except Exception as error:
            problem = f"{self.factory!r} of daemon {self.name!r} cannot be loaded: {error!r}; see also daemons_path"
            raise ConfigError("factory", problem) from error
        if not callable(found):
            raise ConfigError(
                "factory", f"{self.factory!r} of daemon {self.name!r} cannot be called; name a class or function"
            )
        factory: DaemonFactory = found
        return factory
