"""Where packed weights lie on a machine whose memory has several parts: beside the threads that read them.

Source: mbind(2), set_mempolicy(2). There is no wrapper in the C library, so the system call is made by its number.
"""

import ctypes
import mmap
import os
import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import cast

from octavo.config.machine import Placement
from octavo.ops.weight import Bytes, PackedWeight

_MBIND = {"x86_64": 237, "aarch64": 235}.get(platform.machine())
_PREFERRED = 1  # MPOL_PREFERRED: another node, if this one is full
_MOVE = 2  # MPOL_MF_MOVE: pages that only this process has mapped
_PANEL = 16  # rows

Bind = Callable[[int, int, int], None]


def place_weights(weights: Iterable[PackedWeight], placement: Placement, bind: Bind | None = None) -> int:
    """Move the whole pages of each node's part of each matrix there; returns their bytes, 0 where there is one node.

    Args:
        bind: (address, bytes, node number) of whole pages; mbind(2) unless a test has its own.

    Raises:
        OSError: the system refuses, as containers without CAP_SYS_NICE may.
    """
    asked = 0
    if not placement.nodes:
        return asked
    for weight in weights:
        for address, size, node in node_parts(weight, placement.nodes):
            first = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
            last = (address + size) // mmap.PAGESIZE * mmap.PAGESIZE
            if last > first:
                (bind or _bind)(first, last - first, placement.numbers[node])
                asked += last - first
    return asked


def node_parts(weight: PackedWeight, nodes: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """(address, bytes, node) of what each node's threads read: native/src/linear.cpp deals panels out to threads in
    order, each a run as long as any other, through all segments of a matrix."""
    panels = [-(-segment.rows // _PANEL) for segment in weight.segments]
    threads, total, before = len(nodes), sum(panels), 0
    for segment, count in zip(weight.segments, panels, strict=True):
        data = cast(Bytes, segment.data)
        address, size = data.ctypes.data, data.nbytes
        for node in range(max(nodes) + 1):
            first = nodes.index(node)
            bounds = [total * thread // threads - before for thread in (first, first + nodes.count(node))]
            start, end = (min(max(bound, 0), count) for bound in bounds)
            if end > start:
                yield address + size * start // count, size * end // count - size * start // count, node
        before += count


def _bind(address: int, size: int, node: int) -> None:
    if _MBIND is None:
        raise OSError(f"no number of mbind is known for {platform.machine()}")
    words = (ctypes.c_ulong * (node // 64 + 1))()
    words[node // 64] = 1 << node % 64
    call = ctypes.CDLL(None, use_errno=True).syscall
    arguments = (ctypes.c_void_p(address), ctypes.c_ulong(size), ctypes.c_ulong(_PREFERRED), words)
    bits = ctypes.c_ulong(64 * len(words) + 1)
    if call(ctypes.c_long(_MBIND), *arguments, bits, ctypes.c_ulong(_MOVE)):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
