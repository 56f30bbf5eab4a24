"""Typed views of a node's tags: its hardware, GPU, models and tools, written to tags and read back.

Writing leaves out what is zero or empty. Reading is lenient, because the tags are other people's: a bad number is 0,
an unknown vendor is `unknown`, an unknown modality is `text`, an unknown key is nothing. Where two tags claim the same
key, the later in byte order wins. Sets of tags and filters over them are in policy/capability.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from functools import cache
from typing import Any, ClassVar, Self, TypeAlias

import msgspec

GPU_TAG = "hardware.gpu"
"""The presence tag: without it a node has no GPU as far as filters are concerned."""

Values: TypeAlias = Mapping[str, str]
"""The values that a node's tags give to keys on an axis: `hardware.memory_gb` → `64`."""

_MAX_NUMBER = 0xFFFFFFFFFFFFFFFF


class GpuVendor(StrEnum):
    """Who made a GPU."""

    NVIDIA = "nvidia"
    AMD = "amd"
    INTEL = "intel"
    APPLE = "apple"
    QUALCOMM = "qualcomm"
    UNKNOWN = "unknown"


class Modality(StrEnum):
    """What a model takes or gives."""

    TEXT = "text"
    IMAGE = "image"
    AUDIO = "audio"
    VIDEO = "video"
    CODE = "code"
    EMBEDDING = "embedding"
    TOOL_USE = "tool_use"


_VENDORS = {vendor.value: vendor for vendor in GpuVendor}
_MODALITIES = {modality.value: modality for modality in Modality}


class View(msgspec.Struct, frozen=True, kw_only=True):
    """A group of tags under one prefix, one field per key."""

    prefix: ClassVar[str]

    def write(self) -> Iterator[str]:
        """Return the tags that say this."""
        return self.write_under(self.prefix)

    def write_under(self, prefix: str) -> Iterator[str]:
        """Return the same tags under another prefix."""
        for name in self.__struct_fields__:
            text = _text(getattr(self, name))
            if text:
                yield f"{prefix}{name}={text}"

    @classmethod
    def read(cls, values: Values) -> Self:
        """Read the view from a node's values."""
        return cls.of(
            {name: values[cls.prefix + name] for name in cls.__struct_fields__ if cls.prefix + name in values}
        )

    @classmethod
    def of(cls, texts: Mapping[str, str]) -> Self:
        """Build the view from the texts of its fields; what is no field is ignored."""
        return cls(**{name: read(texts[name]) for name, read in _readers(cls).items() if name in texts})

    @classmethod
    def owns(cls, key: str) -> bool:
        """Return whether a tag of this key belongs to the view, and is replaced with it."""
        return key.startswith(cls.prefix) and key.removeprefix(cls.prefix) in cls.__struct_fields__


class Hardware(View, frozen=True, kw_only=True):
    """The machine."""

    prefix = "hardware."

    cpu_cores: int = 0
    cpu_threads: int = 0
    memory_gb: int = 0
    storage_gb: int = 0
    network_gbps: int = 0


class Gpu(View, frozen=True, kw_only=True):
    """The machine's first GPU; others have no tags."""

    prefix = "hardware.gpu."

    vendor: GpuVendor = GpuVendor.UNKNOWN
    model: str = ""
    vram_gb: int = 0
    compute_units: int = 0
    tensor_cores: int = 0
    fp16_tflops_x10: int = 0

    def write(self) -> Iterator[str]:
        """Return the tags that say this, the presence tag first."""
        yield GPU_TAG
        yield from self.write_under(self.prefix)

    @classmethod
    def owns(cls, key: str) -> bool:
        """Return whether a tag of this key belongs to the view, and is replaced with it."""
        return key == GPU_TAG or key.startswith(cls.prefix)


class NumberedView(View, frozen=True, kw_only=True):
    """A view of which a node has any number, each under its own index."""

    @classmethod
    def read_all(cls, values: Values) -> tuple[Self, ...]:
        """Read all of them, in the order of their indexes."""
        found: defaultdict[int, dict[str, str]] = defaultdict(dict)
        for key, text in values.items():
            index, dot, name = key.removeprefix(cls.prefix).partition(".")
            if key.startswith(cls.prefix) and dot and _is_number(index):
                found[int(index)][name] = text
        return tuple(cls.of(found[index]) for index in sorted(found))

    @classmethod
    def owns(cls, key: str) -> bool:
        """Return whether a tag of this key belongs to one of these views."""
        return key.startswith(cls.prefix)


class Model(NumberedView, frozen=True, kw_only=True):
    """A model a node can run."""

    prefix = "software.model."

    id: str = ""
    family: str = ""
    parameters_b_x10: int = 0
    context_length: int = 0
    quantization: str = ""
    modalities: tuple[Modality, ...] = ()
    tokens_per_sec: int = 0
    loaded: bool = False


class Tool(NumberedView, frozen=True, kw_only=True):
    """A tool a node offers. Its schemas, where it has some, are in the metadata under `tool::<tool_id>::`."""

    prefix = "software.tool."

    tool_id: str = ""
    name: str = ""
    version: str = "1.0.0"
    requires: tuple[str, ...] = ()
    estimated_time_ms: int = 0
    stateless: bool = False

    def write_under(self, prefix: str) -> Iterator[str]:
        """Return the tags that say this; whether the tool is stateless is always said."""
        yield from super().write_under(prefix)
        if not self.stateless:
            yield f"{prefix}stateless=false"


def write_all(views: tuple[NumberedView, ...]) -> Iterator[str]:
    """Return the tags of many numbered views of one kind."""
    for index, view in enumerate(views):
        yield from view.write_under(f"{view.prefix}{index}.")


def _text(value: Any) -> str:
    """Write a field; empty when it is not worth a tag."""
    match value:
        case bool():
            return "true" if value else ""
        case int():
            return str(value) if value else ""
        case tuple():
            return ",".join(value)
        case GpuVendor.UNKNOWN:
            return ""
        case _:
            return str(value)


def _is_number(text: str) -> bool:
    # Twenty digits hold every number of the wire, and int() refuses to read very long ones.
    return len(text) <= 20 and text.isascii() and text.isdigit()


def _number(text: str) -> int:
    digits = text.removeprefix("+")
    return int(digits) if _is_number(digits) and int(digits) <= _MAX_NUMBER else 0


def _vendor(text: str) -> GpuVendor:
    return _VENDORS.get(text, GpuVendor.UNKNOWN)


def _words(text: str) -> tuple[str, ...]:
    return tuple(word for word in text.split(",") if word)


def _modalities(text: str) -> tuple[Modality, ...]:
    return tuple(_MODALITIES.get(word, Modality.TEXT) for word in _words(text))


_READERS: Mapping[Any, Callable[[str], Any]] = {
    int: _number,
    str: str,
    bool: "true".__eq__,
    GpuVendor: _vendor,
    tuple[str, ...]: _words,
    tuple[Modality, ...]: _modalities,
}


@cache
def _readers(view: type[View]) -> dict[str, Callable[[str], Any]]:
    return {field.name: _READERS[field.type] for field in msgspec.structs.fields(view)}
