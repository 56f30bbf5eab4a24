"""Options that several commands share: the configuration, and how to reach a mesh."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

from cyclopts import Parameter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from meshbus.config import NodeConfig
    from meshbus.config.loader import Setting

Config: TypeAlias = Annotated[
    Path | None,
    Parameter(help="Configuration file; default: $MESHBUS_CONFIG, or node.toml in your configuration directory."),
]
Overrides: TypeAlias = Annotated[
    list[str] | None, Parameter("--set", help="Override one setting: --set heartbeat_s=2. May be repeated.")
]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class MeshOptions:
    """Options that select how a command reaches a mesh; cli/reach.py interprets them."""

    admin: Annotated[
        Path | None, Parameter(help="Admin socket of a running node; default: the configured one, if it exists.")
    ] = None
    config: Annotated[
        Path | None, Parameter(help="Run a temporary node with this configuration, and connect to its peers.")
    ] = None
    connect: Annotated[str | None, Parameter(help="Run a temporary node, and connect to this host:port.")] = None
    public_key: Annotated[str | None, Parameter(help="Public key of the node to connect to.")] = None
    node_id: Annotated[
        str | None, Parameter(help="Id of a plain net-mesh node to connect to; --public-key is then its Noise key.")
    ] = None
    direct: Annotated[
        bool,
        Parameter(help="Use a direct handshake, for a plain net-mesh node that waits in `accept`.", show_default=False),
    ] = False
    overrides: Overrides = None
    context: Annotated[
        str | None,
        Parameter(help="Use this context (see `meshbus ctx`); default: $MESHBUS_CONTEXT, or the current one."),
    ] = None


def ways_given(options: MeshOptions) -> bool:
    """Return whether the options themselves say how to reach a mesh."""
    return (options.admin, options.config, options.connect) != (None, None, None)


def gather_settings(config: Path | None, overrides: Sequence[str] | None = None) -> dict[str, Setting]:
    """Collect the settings of all sources, unparsed; --set overrides the other sources."""
    import os

    from meshbus.config.loader import read_texts
    from meshbus.config.node import CONFIG_VARIABLE, default_file, gather

    if config is None and not os.environ.get(CONFIG_VARIABLE):
        usual = default_file()
        config = usual if usual.is_file() else None
    return {**gather(config), **read_texts(dict(map(_pair, overrides or ())))}


def build_config(settings: Mapping[str, Setting]) -> NodeConfig:
    """Build the configuration. Raises ConfigError for an unknown or invalid setting."""
    from meshbus.config.loader import build
    from meshbus.config.node import NodeConfig
    from meshbus.config.spelling import READERS

    return build(NodeConfig, settings, READERS)


def load_config(config: Path | None, overrides: Sequence[str] | None = None) -> NodeConfig:
    """Collect the settings and build the configuration."""
    return build_config(gather_settings(config, overrides))


def _pair(text: str) -> tuple[str, str]:
    from meshbus.errors import ConfigError

    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError("--set", f"expected key=value, such as heartbeat_s=2, got {text!r}")
    if key.strip() == "psk":  # the value is not repeated: the message may be logged
        raise ConfigError(
            "--set",
            "psk on a command line is visible to every user of this machine; put the key into a file with mode 0600 and"
            " use --set psk_file=FILE, or pass it on standard input with --set psk_file=/dev/stdin",
        )
    return key.strip(), value.strip()
