"""A tier in this process's memory: the smallest there can be, for tests and as a pattern for stores elsewhere."""

from collections import OrderedDict

from octavo.execution.tiers.interface import TierError
from octavo.ops.weight import Bytes


class MemoryTier:
    """A Tier that holds blobs in a dictionary. Owner: the thread of its tier."""

    def __init__(self, capacity: int, name: str = "memory") -> None:
        self.name = name
        self.capacity = capacity
        self.generation = 0
        self.blobs: OrderedDict[bytes, bytes] = OrderedDict()

    def keys(self) -> list[bytes]:
        """See Tier."""
        return list(self.blobs)

    def put(self, key: bytes, blob: Bytes) -> None:
        """See Tier."""
        self.blobs[key] = blob.tobytes()
        self.blobs.move_to_end(key)

    def get(self, key: bytes, into: Bytes) -> int:
        """See Tier."""
        blob = self.blobs.get(key)
        if blob is None:
            raise TierError("missing")
        self.blobs.move_to_end(key)
        part = memoryview(blob)[: len(into)]
        into.data[: len(part)] = part
        return len(blob)

    def delete(self, key: bytes) -> None:
        """See Tier."""
        self.blobs.pop(key, None)

    def clear(self, generation: int) -> None:
        """See Tier."""
        self.blobs.clear()
        self.generation = generation

    def close(self) -> None:
        """See Tier."""
