"""What names a block's contents: a chained hash of all that decides its numbers or who may see it."""

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

BlockId = int
BlockHash = bytes

_DIGEST_BYTES = 32  # collisions cost 2**128 work: a hit cannot be forged


@dataclass(frozen=True, slots=True)
class MediaSpan:
    """Positions of a prompt that stand for an image, a sound or a video. `digest` is a hash of its content."""

    start: int
    length: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class CacheScope:
    """Who shares cached blocks: only sequences of equal scopes, and beyond `media` only with equal content there.

    `adapter` names weights that are added to the model's.
    """

    salt: str = ""
    adapter: str = ""
    media: tuple[MediaSpan, ...] = ()

    def media_in(self, start: int, end: int) -> bytes:
        """What media puts into the positions from `start` to `end`; nothing where there is none."""
        parts: list[bytes] = []
        for span in self.media:
            if span.start < end and span.start + span.length > start:
                place = (len(span.digest), span.start, span.length)
                parts += [number.to_bytes(8, "little") for number in place] + [span.digest]
        return b"".join(parts)


def root_hash(*fields: str) -> BlockHash:
    """The parent of a first block. Each field is length-prefixed, so no two lists of fields run together.

    Args:
        fields: what blocks must share beyond their tokens, in a fixed order: model fingerprint, salt, adapter ...
    """
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES, person=b"octavo-root")
    for field in fields:
        encoded = field.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(8, "little"))
        digest.update(encoded)
    return digest.digest()


def block_hash(parent: BlockHash, token_ids: Sequence[int], media: bytes = b"") -> BlockHash:
    """The hash of a full block that follows `parent`. Unambiguous, since parents and blocks have one length."""
    return hashlib.blake2b(parent + array("I", token_ids).tobytes() + media, digest_size=_DIGEST_BYTES).digest()


def extend_hashes(
    hashes: list[BlockHash],
    root: BlockHash,
    token_ids: Sequence[int],
    block_size: int,
    scope: CacheScope | None = None,
) -> None:
    """Append the hash of the next full block of `token_ids` to its chain."""
    start = len(hashes) * block_size
    end = start + block_size
    parent = hashes[-1] if hashes else root
    media = scope.media_in(start, end) if scope is not None and scope.media else b""
    hashes.append(block_hash(parent, token_ids[start:end], media))
