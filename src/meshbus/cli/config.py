"""`meshbus config`: show the configuration of a node, and where each setting comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cyclopts import App

from meshbus.cli.options import Config, Overrides
from meshbus.cli.output import Json, show_rows

if TYPE_CHECKING:
    from meshbus.config import NodeConfig

app = App(name="config")


@app.command
def show(config: Config = None, /, *, overrides: Overrides = None, json: Json = False) -> None:
    """Show every setting with its value and source. The mesh key is hidden."""
    from meshbus.cli.options import build_config, gather_settings

    settings = gather_settings(config, overrides)
    made = build_config(settings)
    rows = [
        {
            "setting": name,
            "value": _value(made, name),
            "source": settings[name].source if name in settings else "default",
        }
        for name in made.__struct_fields__
    ]
    show_rows(rows, ("setting", "value", "source"), json=json, empty="")


def _value(config: NodeConfig, name: str) -> object:
    value = getattr(config, name)
    if name == "psk" and value is not None:
        return "(hidden)"
    if name == "max_packet" and value is None:
        return "auto"
    return plain(value)


def plain(value: object) -> object:
    """Return a setting as a file would spell it."""
    import msgspec

    from meshbus.config import Endpoint
    from meshbus.names.subnet import SubnetId

    match value:
        case Endpoint() | SubnetId():
            return str(value)
        case bytes():
            return value.hex()
        case msgspec.Struct():
            return {
                field.name: f"{item:016x}" if field.name == "node_id" else plain(item)
                for field in msgspec.structs.fields(value)
                if (item := getattr(value, field.name)) != field.default
            }
        case list() | tuple():
            return [plain(item) for item in value]
        case dict():
            return {key: plain(item) for key, item in value.items()}
        case None | bool() | int() | float():
            return value
        case _:
            return str(value)
