"""Host memory between the device and slower tiers: pages by key, and which are free."""

from dataclasses import dataclass
from typing import Protocol

from octavo.kernels.cpu.allocate import give_back, mapped_bytes
from octavo.ops.weight import Bytes


class DevicePages(Protocol):
    """A device's cache as tiers see it: blocks that are copied out and in. The worker's thread only."""

    @property
    def page_bytes(self) -> int: ...

    def read_page(self, block: int, into: Bytes) -> None:
        """Copy a block's contents, [page_bytes], to host memory."""
        ...

    def write_page(self, block: int, page: Bytes) -> None:
        """Copy [page_bytes] of host memory into a block."""
        ...

    def release(self) -> None:
        """Give all memory back to the system; the contents are lost."""
        ...


@dataclass(slots=True, eq=False)
class Page:
    """A page in use. `users`: transfers under way; a page that was dropped is free once there are none."""

    key: bytes
    number: int
    data: Bytes
    ready: bool = False
    users: int = 0
    dropped: bool = False


class HostPages:
    """`count` pages that take memory only once they are used. Owner: the worker's thread.

    Whoever keeps the books below (cache/tiers.py) knows how many there are; a page too many is refused all the same.
    """

    def __init__(self, count: int, page_bytes: int) -> None:
        self._memory = mapped_bytes(count * page_bytes)
        self._data = self._memory.reshape(count, page_bytes)
        self._free = list(range(count - 1, -1, -1))
        self._pages: dict[bytes, Page] = {}

    def take(self, key: bytes) -> Page | None:
        """A page for a key, instead of what the key had; None when none is free."""
        self.drop(key)
        if not self._free:
            return None
        number = self._free.pop()
        page = self._pages[key] = Page(key, number, self._data[number])
        return page

    def find(self, key: bytes) -> Page | None:
        """The page of a key whose contents are there."""
        page = self._pages.get(key)
        return page if page is not None and page.ready else None

    def drop(self, key: bytes) -> None:
        """Forget a key, if it is known."""
        page = self._pages.pop(key, None)
        if page is not None:
            page.dropped = True
            self._settle(page)

    def fail(self, page: Page) -> None:
        """Its contents did not come."""
        if self._pages.get(page.key) is page:
            self.drop(page.key)

    def use(self, page: Page) -> None:
        """A transfer begins."""
        page.users += 1

    def done(self, page: Page) -> None:
        """A transfer is over."""
        page.users -= 1
        self._settle(page)

    def clear(self) -> None:
        """Forget everything."""
        for key in list(self._pages):
            self.drop(key)

    def release(self) -> None:
        """Give the memory back to the system if nothing is in it."""
        if len(self._free) == len(self._data):
            give_back(self._memory)

    def _settle(self, page: Page) -> None:
        if page.dropped and not page.users:
            self._free.append(page.number)
