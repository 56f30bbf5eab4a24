"""Hostile bytes for decoders: whatever arrives, only a RemoteProtocolError may come out."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from meshbus.errors import RemoteProtocolError

RANDOMS = 100_000
SMALL_SAMPLE = 64
"""Up to this size every byte of a sample takes all 255 other values; above, each bit flips and a few extremes follow."""

Decoder = Callable[[Any], object]


def assert_survives(decoder: Decoder, valid_samples: Sequence[bytes], *, randoms: int = RANDOMS, seed: int = 0) -> None:
    """Check that a decoder takes its samples from every kind of buffer, and lives through damage and noise.

    Each sample must decode, to equal values from bytes, bytearray and memoryview. Then come all its truncations, all
    its damaged copies and `randoms` noisy buffers, half of which start as a sample does, to get past the first checks.
    """
    for sample in valid_samples:
        value = decoder(sample)
        assert decoder(bytearray(sample)) == value
        assert decoder(memoryview(sample)) == value
    for sample in valid_samples:
        _feed(decoder, (sample[:length] for length in range(len(sample))))
        _feed(decoder, _damaged(sample))
        _feed(decoder, (sample + tail for tail in (b"\0", b"\xff", bytes(16), sample)))
    _feed(decoder, _noise(random.Random(seed), valid_samples, randoms))


def _feed(decoder: Decoder, buffers: Iterator[bytes]) -> None:
    for buffer in buffers:
        try:
            decoder(buffer)
        except RemoteProtocolError:
            continue
        except Exception as error:
            raise AssertionError(f"{type(error).__name__} escaped from {buffer.hex()}") from error


def _damaged(sample: bytes) -> Iterator[bytes]:
    for index, old in enumerate(sample):
        if len(sample) <= SMALL_SAMPLE:
            values = set(range(256))
        else:
            values = {old ^ (1 << bit) for bit in range(8)} | {0x00, 0x01, 0x7F, 0x80, 0xFF}
        for value in values - {old}:
            yield sample[:index] + bytes((value,)) + sample[index + 1 :]


def _noise(rng: random.Random, samples: Sequence[bytes], count: int) -> Iterator[bytes]:
    for number in range(count):
        # One buffer in a thousand is as long as a datagram can be.
        tail = rng.randbytes(rng.randrange(9000) if number % 1000 == 0 else rng.randrange(201))
        if samples and number % 2:
            sample = rng.choice(samples)
            yield sample[: rng.randrange(len(sample) + 1)] + tail
        else:
            yield tail
