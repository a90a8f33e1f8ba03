"""What one kernel does in one run, how its time is taken, and which ceiling of the machine bounds it."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from octavo.kernels.cpu.allocate import aligned_bytes
from octavo.kernels.cpu.library import NativeLibrary, load_library
from octavo.kernels.cpu.team import ThreadTeam
from octavo.ops.weight import Bytes

Kind = Literal["f32", "int8", "bf16"]

_KINDS: tuple[Kind, ...] = ("f32", "int8", "bf16")  # as octavo_multiply counts them

_PIECE = 1 << 20  # octavo_read_bytes deals out pieces of this size: less does not reach every thread
_LARGE = 512 << 20  # no cache holds it
_TURNS = 400_000  # of multiplications in registers: a few milliseconds


@dataclass(frozen=True, slots=True)
class Work:
    """A run of `count` equal operations of a kernel.

    Attributes:
        bytes: that one operation has to read and write, each once.
        operations: multiplications and additions of one; an exponential or a comparison counts as one.
        kind: what they are computed with.
        touched: bytes that a whole run touches: which of the machine's caches could hold them.
    """

    op: str
    detail: str
    run: Callable[[], None]
    count: int
    bytes: int
    operations: int
    touched: int
    kind: Kind = "f32"


@dataclass(frozen=True, slots=True)
class Figure:
    """What was measured of one operation. `share`: of what the ceiling that bounds it would allow, 1 = all."""

    op: str
    detail: str
    threads: int
    seconds: float
    bytes: int
    operations: int
    bound: str
    share: float

    @property
    def gigabytes_per_second(self) -> float:
        """Of what it has to read and write."""
        return self.bytes / self.seconds / 1e9

    @property
    def gigaflops(self) -> float:
        """Thousand million operations a second."""
        return self.operations / self.seconds / 1e9


@dataclass
class Bench:
    """One library with one team, and what the machine can do with it. Probed when asked, the best of several times."""

    library: NativeLibrary
    team: ThreadTeam
    repeats: int = 7
    _reading: dict[int, float] = field(default_factory=dict[int, float])
    _peaks: dict[Kind, float] = field(default_factory=dict[Kind, float])
    _probed: Bytes | None = None

    def seconds(self, run: Callable[[], None]) -> float:
        """The least time of a run, after one that warms up."""
        return min(_timed(run) for _ in range(self.repeats + 1))

    def reading(self, touched: int) -> float:
        """Bytes a second that the team reads of a working set of this size (to the next power of two)."""
        size = min(_LARGE, max(_PIECE * self.team.threads, 1 << (touched - 1).bit_length()))
        if size not in self._reading:
            data = aligned_bytes(size)
            data[:] = 1
            call, handle = self.library.call.octavo_read_bytes, self.team.handle
            turns = max(1, (32 << 20) // size)

            def read() -> None:
                for _ in range(turns):
                    call(handle, data.ctypes.data, size)

            self._reading[size] = turns * size / self.seconds(read)
        return self._reading[size]

    @property
    def memory(self) -> float:
        """Bytes a second out of memory that no cache holds."""
        return self.reading(_LARGE)

    def probe(self) -> float:
        """Bytes a second out of memory now, read once: what is put beside a figure of the same moment."""
        if self._probed is None:
            self._probed = aligned_bytes(_LARGE)
            self._probed[:] = 1
        data, call = self._probed, self.library.call.octavo_read_bytes
        return _LARGE / _timed(lambda: call(self.team.handle, data.ctypes.data, _LARGE))

    def peak(self, kind: Kind) -> float:
        """Operations a second in registers; 0 where the processor has no instruction for the kind."""
        if kind not in self._peaks:
            done = 0

            def multiply() -> None:
                nonlocal done
                done = self.library.call.octavo_multiply(self.team.handle, _KINDS.index(kind), _TURNS)

            seconds = self.seconds(multiply)
            self._peaks[kind] = done / seconds
        return self._peaks[kind]

    def measure(self, work: Work) -> Figure:
        """Time a work and put it beside its ceiling."""
        seconds = self.seconds(work.run) / work.count
        moved, computed = work.bytes / self.reading(work.touched), work.operations / self.peak(work.kind)
        bound = "reading" if moved >= computed else f"{work.kind} registers"
        return Figure(
            work.op,
            work.detail,
            self.team.threads,
            seconds,
            work.bytes,
            work.operations,
            bound,
            max(moved, computed) / seconds,
        )


def benches(isa: str, threads: Sequence[int], repeats: int) -> list[Bench]:
    """One for each number of threads."""
    library = load_library(isa)
    return [Bench(library, ThreadTeam(library, count), repeats) for count in threads]


def _timed(run: Callable[[], None]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
