"""How a page travels to a tier and back: what a blob looks like, and when one may be used.

Layout, little-endian: magic 8, layout 4, key length 4, page length 8, generation 8, fingerprint 32, key 64 (zeros
behind it), BLAKE2b-256 of all before it and of the page 32, zeros up to 256; then the page.
"""

import hashlib
import struct
from dataclasses import dataclass

import numpy as np

from octavo.execution.tiers.interface import TierError
from octavo.ops.weight import Bytes

HEADER_BYTES = 256
_MAGIC = b"OCTAVOKV"
_LAYOUT = 1
_HEAD = struct.Struct("<8sIIQQ32s64s")
_DIGEST_BYTES = 32
_KEY_BYTES = 64


@dataclass(frozen=True, slots=True)
class Envelope:
    """Seals pages and opens blobs.

    Args:
        fingerprint: 32 bytes that name whatever else decides what the numbers in a page mean: model, element type,
            block size, layout. Blobs of another fingerprint are foreign.
        page_bytes: length of every page.
    """

    fingerprint: bytes
    page_bytes: int

    @property
    def blob_bytes(self) -> int:
        """Length of every blob."""
        return HEADER_BYTES + self.page_bytes

    def seal(self, key: bytes, generation: int, page: Bytes, blob: Bytes) -> None:
        """Fill `blob` with a page and what is needed to trust it."""
        head = _HEAD.pack(_MAGIC, _LAYOUT, len(key), self.page_bytes, generation, self.fingerprint, key)
        blob[HEADER_BYTES:] = page
        digest = _digest(head, blob[HEADER_BYTES:])
        blob[:HEADER_BYTES] = np.frombuffer((head + digest).ljust(HEADER_BYTES, b"\0"), np.uint8)

    def open(self, key: bytes, generation: int, blob: Bytes, length: int, page: Bytes) -> None:
        """Copy the page out of a blob of `length` bytes that was read as `key`.

        Raises:
            TierError: it must not be used: "torn", "foreign", "stale" or "corrupt". `page` is unchanged.
        """
        if length != self.blob_bytes:
            raise TierError("torn", f"{length} bytes instead of {self.blob_bytes}")
        head = blob[: _HEAD.size].tobytes()
        magic, layout, key_length, page_bytes, found, fingerprint, name = _HEAD.unpack(head)
        if (magic, layout, page_bytes, fingerprint) != (_MAGIC, _LAYOUT, self.page_bytes, self.fingerprint):
            raise TierError("foreign", "made by something else")
        digest = blob[_HEAD.size : _HEAD.size + _DIGEST_BYTES].tobytes()
        if digest != _digest(head, blob[HEADER_BYTES:]):
            raise TierError("corrupt", "the checksum differs")
        if key_length > _KEY_BYTES or name[:key_length] != key:
            raise TierError("foreign", "it holds another block")
        if found != generation:
            raise TierError("stale", f"generation {found} instead of {generation}")
        page[:] = blob[HEADER_BYTES:]


def _digest(head: bytes, page: Bytes) -> bytes:
    digest = hashlib.blake2b(head, digest_size=_DIGEST_BYTES)
    digest.update(page.data)
    return digest.digest()
