"""Typed views of a node's tags: its hardware, GPU, models and tools, written to tags and read back (policy.md §8.1).

Writing omits fields that are zero or empty. Reading is lenient, because other nodes wrote the tags: a bad number becomes
0, an unknown vendor `unknown`, an unknown modality `text`, and an unknown key is ignored. If two tags have the same key,
the later one in byte order counts. Sets of tags, and filters over them, are in policy/capability.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from functools import cache
from typing import Any, ClassVar, Self, TypeAlias

import msgspec

GPU_TAG = "hardware.gpu"
"""The presence tag: filters treat a node without it as one without a GPU (policy.md §8.5)."""

Values: TypeAlias = Mapping[str, str]
"""Values of the tags on an axis, by key: `hardware.memory_gb` → `64`."""

_MAX_NUMBER = 0xFFFFFFFFFFFFFFFF


class GpuVendor(StrEnum):
    """Vendor of a GPU."""

    NVIDIA = "nvidia"
    AMD = "amd"
    INTEL = "intel"
    APPLE = "apple"
    QUALCOMM = "qualcomm"
    UNKNOWN = "unknown"


class Modality(StrEnum):
    """Kind of input or output of a model."""

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
    """A group of tags with one prefix, with one field for each key."""

    prefix: ClassVar[str]

    def write(self) -> Iterator[str]:
        """Return the tags of this view."""
        return self.write_under(self.prefix)

    def write_under(self, prefix: str) -> Iterator[str]:
        """Return the tags of this view under another prefix."""
        for name in self.__struct_fields__:
            text = _text(getattr(self, name))
            if text:
                yield f"{prefix}{name}={text}"

    @classmethod
    def read(cls, values: Values) -> Self:
        """Return the view of a node's values."""
        return cls.of(
            {name: values[cls.prefix + name] for name in cls.__struct_fields__ if cls.prefix + name in values}
        )

    @classmethod
    def of(cls, texts: Mapping[str, str]) -> Self:
        """Return the view with the parsed texts of its fields; other keys are ignored."""
        return cls(**{name: read(texts[name]) for name, read in _readers(cls).items() if name in texts})

    @classmethod
    def owns(cls, key: str) -> bool:
        """Return whether a tag with this key belongs to the view, so that setting the view replaces it."""
        return key.startswith(cls.prefix) and key.removeprefix(cls.prefix) in cls.__struct_fields__


class Hardware(View, frozen=True, kw_only=True):
    """The hardware of the machine."""

    prefix = "hardware."

    cpu_cores: int = 0
    cpu_threads: int = 0
    memory_gb: int = 0
    storage_gb: int = 0
    network_gbps: int = 0


class Gpu(View, frozen=True, kw_only=True):
    """The first GPU of the machine; further ones are not encoded (policy.md §8.1)."""

    prefix = "hardware.gpu."

    vendor: GpuVendor = GpuVendor.UNKNOWN
    model: str = ""
    vram_gb: int = 0
    compute_units: int = 0
    tensor_cores: int = 0
    fp16_tflops_x10: int = 0

    def write(self) -> Iterator[str]:
        """Return the tags of this view, the presence tag first."""
        yield GPU_TAG
        yield from self.write_under(self.prefix)

    @classmethod
    def owns(cls, key: str) -> bool:
        """Return whether a tag with this key belongs to the view, so that setting the view replaces it."""
        return key == GPU_TAG or key.startswith(cls.prefix)


class NumberedView(View, frozen=True, kw_only=True):
    """A view of which a node may have several, each with an index in its prefix."""

    @classmethod
    def read_all(cls, values: Values) -> tuple[Self, ...]:
        """Return all views of this kind, in the order of their indexes."""
        found: defaultdict[int, dict[str, str]] = defaultdict(dict)
        for key, text in values.items():
            index, dot, name = key.removeprefix(cls.prefix).partition(".")
            if key.startswith(cls.prefix) and dot and _is_number(index):
                found[int(index)][name] = text
        return tuple(cls.of(found[index]) for index in sorted(found))

    @classmethod
    def owns(cls, key: str) -> bool:
        """Return whether a tag with this key belongs to one of these views."""
        return key.startswith(cls.prefix)


class Model(NumberedView, frozen=True, kw_only=True):
    """A model that a node can run."""

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
    """A tool that a node offers. Its schemas, if it has any, are in the metadata under `tool::<tool_id>::`."""

    prefix = "software.tool."

    tool_id: str = ""
    name: str = ""
    version: str = "1.0.0"
    requires: tuple[str, ...] = ()
    estimated_time_ms: int = 0
    stateless: bool = False

    def write_under(self, prefix: str) -> Iterator[str]:
        """Return the tags of this view; `stateless` is always written (policy.md §8.1)."""
        yield from super().write_under(prefix)
        # policy.md §8.1: unlike other flags, it is written even if it is false.
        if not self.stateless:
            yield f"{prefix}stateless=false"


def write_all(views: tuple[NumberedView, ...]) -> Iterator[str]:
    """Return the tags of numbered views of one kind."""
    for index, view in enumerate(views):
        yield from view.write_under(f"{view.prefix}{index}.")


def _text(value: Any) -> str:
    """Return the text of a field, or an empty text if it gets no tag."""
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
    # 20 digits are enough for a u64, and int() raises an error for very long texts.
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
    # policy.md §8.1: flags are written only if true, as `true`; any other text is false.
    bool: "true".__eq__,
    GpuVendor: _vendor,
    tuple[str, ...]: _words,
    tuple[Modality, ...]: _modalities,
}


@cache
def _readers(view: type[View]) -> dict[str, Callable[[str], Any]]:
    return {field.name: _READERS[field.type] for field in msgspec.structs.fields(view)}
