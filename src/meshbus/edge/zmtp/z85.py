"""Z85, the text encoding of CURVE keys: 32 bytes become 40 printable characters."""

from __future__ import annotations

_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_VALUES = {character: value for value, character in enumerate(_ALPHABET)}


def encode_z85(data: bytes) -> str:
    """Encode bytes as text. Raises ValueError unless their number is a multiple of four."""
    if len(data) % 4:
        raise ValueError(f"Z85 encodes a multiple of 4 bytes, got {len(data)}")
    text = ""
    for at in range(0, len(data), 4):
        number = int.from_bytes(data[at : at + 4], "big")
        text += "".join(_ALPHABET[number // 85**place % 85] for place in (4, 3, 2, 1, 0))
    return text


def decode_z85(text: str) -> bytes:
    """Decode text. Raises ValueError if `encode_z85` cannot have made it."""
    if len(text) % 5:
        raise ValueError(f"Z85 text has a multiple of 5 characters, got {len(text)}")
    data = b""
    for at in range(0, len(text), 5):
        number = 0
        for character in text[at : at + 5]:
            if character not in _VALUES:
                raise ValueError(f"{character!r} is not a Z85 character")
            number = number * 85 + _VALUES[character]
        # Five characters can express more than four bytes hold.
        if number >= 1 << 32:
            raise ValueError(f"Z85 group {text[at : at + 5]!r} does not fit 4 bytes")
        data += number.to_bytes(4, "big")
    return data
