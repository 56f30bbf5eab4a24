"""Declarations of payloads: which codec and which fields a channel has, in a pipeline's configuration or beside a log.

A declaration applies to one channel or to every channel with a prefix. A channel's own declaration wins, then the longest
prefix, then what is stored beside the log (log/schemas.py); a channel without a declaration is raw. Columns of payloads
are decoded by spark/lake/decode.py in Spark, and by spark/lake/payloads.py as Arrow batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from meshbus.errors import ConfigError
from meshbus.log.payload import Codec, Field, check_declared, parse_fields
from meshbus.log.schemas import Version, read_versions

__all__ = ["Codec", "Declaration", "Form", "Stored", "codec_of", "declared_for", "form_of", "in_order", "stored_in"]


class Declaration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The declaration of the payloads of one channel, or of all channels with a prefix."""

    name: str | None = None
    """Name of the channel."""
    prefix: str | None = None
    """Instead of a name: applies to every channel that starts with it."""
    codec: Codec = Codec.RAW
    """Format of the payloads."""
    schema: str = ""
    """Fields that payloads must have, in Spark's DDL syntax: `temp DOUBLE NOT NULL, unit STRING`; not for raw and utf8."""
    descriptor: str = ""
    """Protobuf only: path of a file with the FileDescriptorSet, as `protoc --include_imports --descriptor_set_out` writes."""
    message: str = ""
    """Protobuf only: full name of the message, such as `sensors.Reading`."""

    def __post_init__(self) -> None:
        if (self.name is None) == (self.prefix is None):
            raise ConfigError("channels", "each entry must have either 'name' or 'prefix', not both")
        check_declared(self.codec, self.schema, descriptor=bool(self.descriptor), message=bool(self.message))

    def below(self, folder: Path) -> Declaration:
        """Return the declaration with the path of its descriptor relative to a folder."""
        return msgspec.structs.replace(self, descriptor=str(folder / self.descriptor)) if self.descriptor else self


class Stored(msgspec.Struct, frozen=True):
    """A schema that is stored beside a log, valid for the events of that log from `first` to before `end`."""

    channel: str
    log_id: bytes
    version: Version
    end: int | None = None


class Form(msgspec.Struct, frozen=True):
    """All that decoding needs: a plain value that contains no path, so that any worker can use it."""

    codec: Codec
    fields: tuple[Field, ...] = ()
    descriptor: bytes = b""
    message: str = ""


def form_of(declaration: Declaration | Stored) -> Form:
    """Return what decoding needs, with the content of the descriptor file. Raises ConfigError if it cannot be read."""
    if isinstance(declaration, Stored):
        version = declaration.version
        return Form(version.codec, parse_fields(version.schema), version.descriptor, version.message)
    return Form(
        declaration.codec,
        parse_fields(declaration.schema),
        read_descriptor(declaration.descriptor) if declaration.descriptor else b"",
        declaration.message,
    )


def read_descriptor(path: str) -> bytes:
    """Return the content of a file with a descriptor set. Raises ConfigError if it cannot be read."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError("descriptor", f"{path} cannot be read: {error.strerror}") from None


def in_order(declarations: Iterable[Declaration | Stored]) -> list[Declaration | Stored]:
    """Return declarations such that the first one that fits an event decides: names, longest prefixes, stored ones."""

    def rank(declaration: Declaration | Stored) -> tuple[int, int]:
        if isinstance(declaration, Stored):
            return 2, 0
        return (0, 0) if declaration.prefix is None else (1, -len(declaration.prefix))

    return sorted(declarations, key=rank)


def declared_for(
    declarations: Iterable[Declaration | Stored], channel: str, log_id: bytes, first: int, end: int
) -> list[Declaration | Stored | None]:
    """Return the declarations that apply to events from `first` to before `end` of a log; None stands for no declaration."""
    found: list[Declaration | Stored | None] = []
    covered = 0
    for declaration in in_order(declarations):
        if isinstance(declaration, Stored):
            since, until = declaration.version.first, end if declaration.end is None else declaration.end
            events = min(until, end) - max(since, first)
            if (declaration.channel, declaration.log_id) == (channel, log_id) and events > 0:
                found.append(declaration)
                covered += events
        elif declaration.name == channel or (declaration.prefix is not None and channel.startswith(declaration.prefix)):
            return [declaration]
    return found if covered >= end - first else [*found, None]


def codec_of(declaration: Declaration | Stored | None) -> Codec:
    """Return the codec of a declaration; raw if there is none."""
    if declaration is None:
        return Codec.RAW
    return declaration.version.codec if isinstance(declaration, Stored) else declaration.codec


def stored_in(folder: Path, channel: str, log_id: bytes) -> Sequence[Stored]:
    """Return the schemas that are stored beside a log, each with the end of its range."""
    versions = read_versions(folder)
    ends = [*(version.first for version in versions[1:]), None]
    return [Stored(channel, log_id, version, end) for version, end in zip(versions, ends, strict=False)]
