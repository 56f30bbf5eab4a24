"""Write docs/settings.md: every setting of a node, of a policy and of a pipeline, from the types that read them.

    python -m tools.settings

The meaning of a setting is the text below its field, the allowed values and the default come from its type. A test holds
the page to this program.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from meshbus.cli.config import plain
from meshbus.config.edge import EdgeEntry
from meshbus.config.loader import describe
from meshbus.config.node import ChannelEntry, NodeConfig, PeerEntry
from meshbus.config.otel import OtelEntry
from meshbus.config.policy import ChannelRule, ExportEntry, GatewayEntry, PolicyConfig
from meshbus.config.spelling import READERS
from meshbus.config.subscription import SubscriptionEntry
from meshbus.config.web import WebEntry
from meshbus.policy.assign import LevelRule, SubnetRule
from meshbus.policy.capability import CapabilityFilter
from meshbus.spark.lake.codec import Declaration
from meshbus.spark.lake.subscribercount import PrefixSubscription
from meshbus.spark.run.pipelineconfig import PipelineConfig

PAGE = Path(__file__).parent.parent / "docs" / "settings.md"

_HEAD = """\
# Settings

Written from the types in `src/meshbus/config` by `python -m tools.settings`.

A node reads its settings from a TOML file, then from the environment, then from arguments; a later source overrides an
earlier one. `heartbeat_s` in the file is `MESHBUS_HEARTBEAT_S` in the environment, `--set heartbeat_s=2` on the command
line, and `heartbeat_s=2` in `meshbus.Node.open`. Relative paths in a file are relative to the file. An unknown setting
or an invalid value is an error that names the setting and its source. `meshbus config show` prints every setting with
its value and its source, and `meshbus check` looks for mistakes.
"""


class Section(NamedTuple):
    """One table of settings."""

    title: str
    about: str
    kind: type[msgspec.Struct]


NODE = (
    Section("Node", "Keys at the top of the file.", NodeConfig),
    Section("`[[channels]]`", "One entry for each channel or prefix.", ChannelEntry),
    Section(
        "`publish_caps` and `subscribe_caps`",
        "Conditions in a `[[channels]]` entry on the capabilities that a node announces; all of them must hold.",
        CapabilityFilter,
    ),
    Section("`[[peers]]`", "One entry for each node to connect to.", PeerEntry),
    Section("`[[subscriptions]]`", "One entry for each standing subscription.", SubscriptionEntry),
    Section("`[web]`", "A live page, metrics and health over HTTP.", WebEntry),
    Section("`[otel]`", "Metrics to an OpenTelemetry collector.", OtelEntry),
    Section("`[[edge]]`", "One entry for each bridge to ZeroMQ applications.", EdgeEntry),
    Section("`[[exports]]`", "One entry for each exported channel of a gateway.", ExportEntry),
    Section("`[[subnet_rules]]`", "Rules that assign peers to subnets; the first match wins.", SubnetRule),
    Section("`[[level_rules]]`", "Rules that set single levels of the subnet of a peer.", LevelRule),
)
POLICY = (
    Section("Policy", "Keys at the top of the file that `policy_file` of a node names.", PolicyConfig),
    Section("`[[channels]]` of a policy", "One entry for each channel or prefix.", ChannelRule),
    Section("`[[gateways]]` of a policy", "One entry for each gateway.", GatewayEntry),
)
PIPELINE = (
    Section("Pipeline", "The file of `meshbus pipeline run`.", PipelineConfig),
    Section("`[[channels]]` of a pipeline", "How the payloads of a channel are decoded.", Declaration),
    Section("`[[subscriptions]]` of a pipeline", "Subscriptions that the tables cannot know.", PrefixSubscription),
)


def page() -> str:
    """Return docs/settings.md."""
    return "\n".join([_HEAD, *(_section(section) for section in (*NODE, *POLICY, *PIPELINE))])


def meanings(kind: type[msgspec.Struct]) -> dict[str, str]:
    """Return the text below each field of a struct, on one line; fields without one are missing."""
    found: dict[str, str] = {}
    for one in reversed(kind.__mro__):  # a struct may add fields to another one
        if issubclass(one, msgspec.Struct) and one is not msgspec.Struct:
            found |= dict(_texts(_class(one)))
    return found


def _class(kind: type) -> ast.ClassDef:
    (found,) = (
        node
        for node in ast.parse(inspect.getsource(inspect.getmodule(kind) or kind)).body
        if isinstance(node, ast.ClassDef) and node.name == kind.__name__
    )
    return found


def _texts(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, text in zip(node.body, node.body[1:], strict=False):
        match field, text:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(words))),
            ):
                yield name, " ".join(words.split())


def _section(section: Section) -> str:
    texts = meanings(section.kind)
    rows = [
        f"| `{field.name}` | {_cell(describe(field.type, READERS))} | {_default(field)} | {_cell(texts[field.name])} |"
        for field in msgspec.structs.fields(section.kind)
    ]
    head = ["| setting | value | default | meaning |", "|---|---|---|---|"]
    return "\n".join([f"## {section.title}", "", section.about, "", *head, *rows, ""])


def _default(field: Any) -> str:
    if field.required:
        return "required"
    default = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    match plain(default):
        case None | () | [] | {} | "":
            return "–"
        case bool() as value:
            return f"`{str(value).lower()}`"
        case value:
            return f"`{value}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
    print(f"wrote {PAGE}")
