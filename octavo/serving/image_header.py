"""How large an image becomes, read from its header alone: nothing is decoded.

PNG (W3C Recommendation, third edition, with APNG's acTL), JPEG (ITU-T T.81, annex B), GIF89a, WebP (RFC 9649).
"""

from collections.abc import Iterator
from dataclasses import dataclass

_PNG = b"\x89PNG\r\n\x1a\n"
_MOST_CHUNKS = 100_000
# JPEG markers that start a frame; C4, C8 and CC are tables and an extension.
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}


@dataclass(frozen=True, slots=True)
class ImageHeader:
    """Pixels and frames that an image tells of itself."""

    kind: str
    width: int
    height: int
    frames: int = 1


def read_image_header(data: bytes) -> ImageHeader | None:
    """The header of an image; None for what is no image of a known kind, has no size, or ends before it is told."""
    header = None
    if data.startswith(_PNG):
        header = _png(data)
    elif data.startswith(b"\xff\xd8\xff"):
        header = _jpeg(data)
    elif data[:6] in (b"GIF87a", b"GIF89a"):
        header = _gif(data)
    elif data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        header = _webp(data)
    return header if header and header.width > 0 and header.height > 0 else None


def _png(data: bytes) -> ImageHeader | None:
    if len(data) < 33 or data[12:16] != b"IHDR":
        return None
    width, height = int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
    frames = 1
    position = 8
    for _ in range(_MOST_CHUNKS):
        kind = data[position + 4 : position + 8]
        if kind == b"acTL":
            frames = max(1, int.from_bytes(data[position + 8 : position + 12], "big"))
        if len(kind) < 4 or kind == b"IDAT":  # acTL stands before the first of them
            break
        position += 12 + int.from_bytes(data[position : position + 4], "big")
    return ImageHeader("png", width, height, frames)


def _jpeg(data: bytes) -> ImageHeader | None:
    position = 2
    for _ in range(_MOST_CHUNKS):
        while data[position : position + 2] == b"\xff\xff":  # fill bytes
            position += 1
        if len(data) < position + 9 or data[position] != 0xFF:
            return None
        if data[position + 1] in _FRAMES:
            height = int.from_bytes(data[position + 5 : position + 7], "big")
            width = int.from_bytes(data[position + 7 : position + 9], "big")
            return ImageHeader("jpeg", width, height)
        position += 2 + int.from_bytes(data[position + 2 : position + 4], "big")
    return None


def _gif(data: bytes) -> ImageHeader | None:
    if len(data) < 13:
        return None
    width, height = int.from_bytes(data[6:8], "little"), int.from_bytes(data[8:10], "little")
    frames = sum(1 for _ in _gif_images(data))
    return ImageHeader("gif", width, height, frames) if frames else None


def _gif_images(data: bytes) -> Iterator[int]:
    """Positions of the image descriptors."""
    position = 13 + _color_table(data[10])
    while position < len(data):
        if data[position] == 0x2C and len(data) >= position + 10:
            yield position
            position += 11 + _color_table(data[position + 9])
        elif data[position] == 0x21:
            position += 2
        else:
            return
        while position < len(data) and data[position]:  # sub-blocks, up to an empty one
            position += 1 + data[position]
        position += 1


def _color_table(flags: int) -> int:
    return 3 << ((flags & 7) + 1) if flags & 0x80 else 0


def _webp(data: bytes) -> ImageHeader | None:
    kind, body = data[12:16], data[20:]
    if kind == b"VP8X" and len(body) >= 10:
        width, height = int.from_bytes(body[4:7], "little") + 1, int.from_bytes(body[7:10], "little") + 1
        return ImageHeader("webp", width, height, max(1, _webp_frames(data)))
    if kind == b"VP8L" and len(body) >= 5 and body[0] == 0x2F:
        bits = int.from_bytes(body[1:5], "little")
        return ImageHeader("webp", (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1)
    if kind == b"VP8 " and len(body) >= 10 and body[3:6] == b"\x9d\x01\x2a":
        width, height = int.from_bytes(body[6:8], "little") & 0x3FFF, int.from_bytes(body[8:10], "little") & 0x3FFF
        return ImageHeader("webp", width, height)
    return None


def _webp_frames(data: bytes) -> int:
    position, frames = 12, 0
    for _ in range(_MOST_CHUNKS):
        kind = data[position : position + 4]
        if len(kind) < 4:
            break
        frames += kind == b"ANMF"
        size = int.from_bytes(data[position + 4 : position + 8], "little")
        position += 8 + size + (size & 1)
    return frames
