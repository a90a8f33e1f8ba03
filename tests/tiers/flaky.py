"""A tier that fails, loses, spoils, tears and confuses what it is given, as chance will have it."""

import random
from errno import EIO, ENOSPC

from octavo.execution.tiers.memory import MemoryTier

HARM = ("fail", "full", "lose", "spoil", "tear", "swap", "age")


class FlakyTier:
    """A MemoryTier whose calls go wrong, each with probability `rate`, in one of the ways of `harm`.

    Delays are not its business: see TieredExecutor.work.
    """

    def __init__(self, capacity, rate=0.0, seed=0, harm=HARM, name="memory"):
        self.inner = MemoryTier(capacity, name)
        self.name, self.capacity = name, capacity
        self.rate, self.harm = rate, harm
        self.harmed = 0
        self._random = random.Random(seed)

    @property
    def generation(self):
        return self.inner.generation

    def keys(self):
        return self.inner.keys()

    def put(self, key, blob):
        harm = self._chance()
        if harm == "fail":
            raise OSError(EIO, "input/output error")
        if harm == "full":
            raise OSError(ENOSPC, "no space left on device")
        if harm == "lose":
            return
        if harm == "spoil":
            blob = blob.copy()
            blob[self._random.randrange(len(blob))] ^= 1 << self._random.randrange(8)
        if harm == "tear":
            blob = blob[: self._random.randrange(len(blob))]
        self.inner.put(key, blob)

    def get(self, key, into):
        harm = self._chance()
        if harm == "fail":
            raise OSError(EIO, "input/output error")
        if harm == "lose":
            self.inner.delete(key)
        if harm == "swap" and len(self.inner.blobs) > 1:
            key = self._random.choice(list(self.inner.blobs))
        length = self.inner.get(key, into)
        if harm == "spoil":
            into[self._random.randrange(len(into))] ^= 1 << self._random.randrange(8)
        if harm == "tear":
            return self._random.randrange(length)
        return length

    def delete(self, key):
        if self._chance() == "fail":
            raise OSError(EIO, "input/output error")
        self.inner.delete(key)

    def clear(self, generation):
        if self._chance() == "age":  # it says yes, and keeps everything
            self.inner.generation = generation
            return
        self.inner.clear(generation)

    def close(self):
        self.inner.close()

    def _chance(self):
        if self._random.random() >= self.rate:
            return None
        self.harmed += 1
        return self._random.choice(self.harm)
