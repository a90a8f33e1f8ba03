"""Which part of a packed matrix belongs to which memory node: the panels that the node's threads read."""

import mmap

import pytest

from octavo.config.machine import Placement
from octavo.kernels.cpu.packer import NativePacker
from octavo.kernels.cpu.placement import node_parts, place_weights
from octavo.ops.conformance import stored
from tests.conformance.devices import ISAS, library, team

PLACEMENTS = ((0, 1), (0, 0, 0, 1), (0, 0, 1, 1, 2), (0, 1, 2, 3, 4, 5, 6, 7))


@pytest.fixture
def packer():
    return NativePacker(library(ISAS[0]), team(ISAS[0]))


@pytest.mark.parametrize("nodes", PLACEMENTS, ids=str)
@pytest.mark.parametrize("rows", [(512,), (7,), (96, 32, 32), (176, 176), (16, 5, 400)], ids=str)
def test_every_panel_belongs_to_the_node_of_the_thread_that_reads_it(packer, rows, nodes):
    weight = packer.matrix([stored("q8_0", count, 64, count) for count in rows])
    panels = [(segment.data, panel) for segment in weight.segments for panel in range(-(-segment.rows // 16))]
    parts = list(node_parts(weight, nodes))
    assert sum(size for _, size, _ in parts) == sum(segment.data.nbytes for segment in weight.segments)
    for thread, node in enumerate(nodes):
        for data, panel in panels[len(panels) * thread // len(nodes) : len(panels) * (thread + 1) // len(nodes)]:
            first = data.ctypes.data + panel * packer.packed_bytes("q8_0", 16, 64)
            assert [found for start, size, found in parts if start <= first < start + size] == [node]


def test_whole_pages_are_asked_for_by_linux_numbers(packer):
    weights = [packer.matrix([stored("f32", 1024, 512, 1)]), packer.matrix([stored("q8_0", 16, 32, 2)])]
    asked = []
    placed = place_weights(weights, Placement((4, 5, 9), (0, 0, 1), (2, 5)), lambda *part: asked.append(part))
    assert placed == sum(size for _, size, _ in asked)
    assert [number for _, _, number in asked] == [2, 5]  # the small matrix has no page of its own
    assert all(address % mmap.PAGESIZE == size % mmap.PAGESIZE == 0 for address, size, _ in asked)
    size = 1024 * 512 * 4
    assert size - 4 * mmap.PAGESIZE <= placed <= size
    assert asked[0][1] == pytest.approx(2 * asked[1][1], abs=4 * mmap.PAGESIZE + 2 * size // 64)


def test_nothing_is_moved_where_there_is_one_node(packer):
    weight = packer.matrix([stored("f32", 1024, 512, 1)])
    assert place_weights([weight], Placement(), lambda *part: pytest.fail(f"moved {part}")) == 0
