"""What names a block's contents: a chained hash of all that decides its numbers or who may see it."""

import hashlib
from array import array
from collections.abc import Sequence

BlockId = int
BlockHash = bytes

_DIGEST_BYTES = 32  # collisions cost 2**128 work: a hit cannot be forged


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


def block_hash(parent: BlockHash, token_ids: Sequence[int]) -> BlockHash:
    """The hash of a full block that follows `parent`. Unambiguous, since a parent has one length."""
    return hashlib.blake2b(parent + array("I", token_ids).tobytes(), digest_size=_DIGEST_BYTES).digest()


def extend_hashes(hashes: list[BlockHash], root: BlockHash, token_ids: Sequence[int], block_size: int) -> None:
    """Append the hash of the next full block of `token_ids` to its chain."""
    start = len(hashes) * block_size
    parent = hashes[-1] if hashes else root
    hashes.append(block_hash(parent, token_ids[start : start + block_size]))
