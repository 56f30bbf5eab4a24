"""What a verb runs with: a configuration (a file, the environment, what was typed), and the way to a mesh."""

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
    Path | None, Parameter(help="The configuration file; by default MESHBUS_CONFIG, or node.toml in your folder.")
]
Overrides: TypeAlias = Annotated[
    list[str] | None, Parameter("--set", help="One setting over all others: --set heartbeat_s=2. May be repeated.")
]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Way:
    """The options by which a verb finds a mesh; cli/reach.py opens what they lead to."""

    admin: Annotated[
        Path | None, Parameter(help="The admin socket of a running node; by default the usual one, if it is there.")
    ] = None
    config: Annotated[
        Path | None, Parameter(help="Be a node for a moment, with this configuration, and connect to its peers.")
    ] = None
    connect: Annotated[str | None, Parameter(help="Be a node for a moment, and connect to this host:port.")] = None
    public_key: Annotated[str | None, Parameter(help="The public key of the node to connect to.")] = None
    node_id: Annotated[
        str | None, Parameter(help="The id of a plain net-mesh node to connect to; its public key is its Noise key.")
    ] = None
    overrides: Overrides = None


def gather_settings(config: Path | None, overrides: Sequence[str] | None = None) -> dict[str, Setting]:
    """Collect the settings as they are written, the strongest of each with its source."""
    import os

    from meshbus.config.loader import read_texts
    from meshbus.config.node import CONFIG_VARIABLE, default_file, gather

    if config is None and not os.environ.get(CONFIG_VARIABLE):
        usual = default_file()
        config = usual if usual.is_file() else None
    return {**gather(config), **read_texts(dict(map(_pair, overrides or ())))}


def build_config(settings: Mapping[str, Setting]) -> NodeConfig:
    """Make the configuration; raises ConfigError for what does not fit."""
    from meshbus.config.loader import build
    from meshbus.config.node import NodeConfig
    from meshbus.config.spelling import READERS

    return build(NodeConfig, settings, READERS)


def load_config(config: Path | None, overrides: Sequence[str] | None = None) -> NodeConfig:
    """Collect the settings and make the configuration."""
    return build_config(gather_settings(config, overrides))


def _pair(text: str) -> tuple[str, str]:
    from meshbus.errors import ConfigError

    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError("--set", f"{text!r} is not a setting: write key=value, such as heartbeat_s=2")
    return key.strip(), value.strip()
