"""Z85, the text form of CURVE keys: 32 bytes as 40 characters that survive a configuration file."""

from __future__ import annotations

_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_VALUES = {character: value for value, character in enumerate(_ALPHABET)}


def encode_z85(data: bytes) -> str:
    """Write bytes, a multiple of four, as text."""
    if len(data) % 4:
        raise ValueError("Z85 takes a multiple of four bytes")
    text = ""
    for at in range(0, len(data), 4):
        number = int.from_bytes(data[at : at + 4], "big")
        text += "".join(_ALPHABET[number // 85**place % 85] for place in (4, 3, 2, 1, 0))
    return text


def decode_z85(text: str) -> bytes:
    """Read bytes from text. Raises ValueError for anything that `encode_z85` does not write."""
    if len(text) % 5:
        raise ValueError("Z85 text comes in groups of five characters")
    data = b""
    for at in range(0, len(text), 5):
        number = 0
        for character in text[at : at + 5]:
            if character not in _VALUES:
                raise ValueError(f"{character!r} is no character of Z85")
            number = number * 85 + _VALUES[character]
        if number >= 1 << 32:
            raise ValueError(f"{text[at : at + 5]!r} is above four bytes")
        data += number.to_bytes(4, "big")
    return data
