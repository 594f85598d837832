"""Small pictures, made here."""

from __future__ import annotations

import base64
import zlib


def halves(
    width: int, height: int, upper: tuple[int, int, int], lower: tuple[int, int, int]
) -> str:
    """The data URL of a PNG of two colours (red, green, blue), one above the other."""
    rows = [upper] * (height // 2) + [lower] * (height - height // 2)
    pixels = b"".join(b"\0" + bytes(row) * width for row in rows)  # each row begins with its filter
    header = width.to_bytes(4, "big") + height.to_bytes(4, "big") + b"\x08\x02\0\0\0"
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(pixels)), (b"IEND", b""))
    chunks = [
        len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")
        for kind, data in parts
    ]
    return (
        "data:image/png;base64,"
        + base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"".join(chunks)).decode()
    )
