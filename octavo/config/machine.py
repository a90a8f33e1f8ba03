"""What this machine is, as far as this process may use it: CPUs and memory."""

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Machine:
    """A reading of the host.

    `cpus` are the CPU numbers this process may run on, `cores` one of them for each physical core, `cpu_quota` the
    CPUs' worth of time a container grants (None: unlimited), `nodes` the CPUs beside each part of the memory (NUMA) and
    `node_numbers` what Linux calls these parts.
    Memory is in bytes, container limits applied.
    """

    cpus: tuple[int, ...]
    cores: tuple[int, ...]
    cpu_quota: float | None
    memory_total: int
    memory_available: int
    nodes: tuple[tuple[int, ...], ...] = ()
    node_numbers: tuple[int, ...] = ()


def read_machine(root: Path = Path("/")) -> Machine:
    """Look at the host. `root` stands in for / in tests: files that are missing mean "no limit"."""
    cpus = _allowed_cpus()
    total, available = _memory(root)
    nodes = _nodes(root, cpus)
    return Machine(
        cpus=cpus,
        cores=_one_per_core(root, cpus),
        cpu_quota=_cpu_quota(root),
        memory_total=total,
        memory_available=available,
        nodes=tuple(nodes.values()),
        node_numbers=tuple(nodes),
    )


@dataclass(frozen=True, slots=True)
class Placement:
    """Where threads run on a machine whose memory has several parts.

    `cpus` holds a CPU for each thread, `nodes` the part of the memory it is beside, from 0 up, threads of a node
    together, and `numbers` what Linux calls these. All are empty where the system places threads.
    """

    cpus: tuple[int, ...] = ()
    nodes: tuple[int, ...] = ()
    numbers: tuple[int, ...] = ()

    def __str__(self) -> str:
        shares = [str(self.nodes.count(node)) for node in sorted(set(self.nodes))]
        return f"{' + '.join(shares)} threads" if shares else "by the system"


def place_threads(threads: int, machine: Machine) -> Placement:
    """Each node's share of the threads in proportion to its cores; none where there is one node, or only one would run
    any, or there are fewer CPUs than threads."""
    homes = [tuple(cpu for cpu in machine.cores if cpu in node) for node in machine.nodes]
    if threads > sum(map(len, homes)):  # two threads of a core are wanted
        homes = list(machine.nodes)
    total = sum(map(len, homes))
    if len(homes) < 2 or threads > total:
        return Placement()
    placed: list[tuple[int, int]] = []
    numbers: list[int] = []
    before = 0
    for number, home in zip(machine.node_numbers, homes, strict=True):
        share = threads * (before + len(home)) // total - threads * before // total
        before += len(home)
        if share:
            placed += [(cpu, len(numbers)) for cpu in home[:share]]
            numbers.append(number)
    if len(numbers) < 2:
        return Placement()
    return Placement(tuple(cpu for cpu, _ in placed), tuple(node for _, node in placed), tuple(numbers))


def _allowed_cpus() -> tuple[int, ...]:
    if hasattr(os, "sched_getaffinity"):  # Linux
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def _one_per_core(root: Path, cpus: tuple[int, ...]) -> tuple[int, ...]:
    """The first allowed CPU of each physical core; two threads of one core share its arithmetic units."""
    first: dict[str, int] = {}
    for cpu in cpus:
        siblings = _read(root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").strip()
        first.setdefault(siblings or str(cpu), cpu)
    return tuple(first.values())


def _nodes(root: Path, cpus: tuple[int, ...]) -> dict[int, tuple[int, ...]]:
    """The allowed CPUs of each node that has any, by the nodes' numbers, in order."""
    folder = root / "sys/devices/system/node"
    nodes: dict[int, tuple[int, ...]] = {}
    for path in folder.glob("node[0-9]*/cpulist"):
        members = _cpu_list(_read(path))
        nodes[int(path.parent.name[4:])] = tuple(cpu for cpu in cpus if cpu in members)
    return {number: nodes[number] for number in sorted(nodes) if nodes[number]}


def _cpu_list(text: str) -> set[int]:
    """The numbers of "0-3,8"."""
    found: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first.isdecimal() and (last or first).isdecimal():
            found.update(range(int(first), int(last or first) + 1))
    return found


def _cpu_quota(root: Path) -> float | None:
    """CPUs' worth of time granted by control groups (v2: cpu.max; v1: cpu.cfs_quota_us), the tightest of the path."""
    quotas = [q for text in _group_files(root, "cpu", "cpu.max") if (q := _ratio(*text.split()[:2])) is not None]
    for quota, period in zip(
        _group_files(root, "cpu", "cpu.cfs_quota_us"), _group_files(root, "cpu", "cpu.cfs_period_us"), strict=False
    ):
        ratio = _ratio(quota, period)
        if ratio is not None:
            quotas.append(ratio)
    return min(quotas, default=None)


def _ratio(quota: str, period: str = "100000") -> float | None:
    if not quota.strip().isdecimal() or not period.strip().isdecimal() or int(period) == 0:
        return None  # "max" or -1: unlimited
    return int(quota) / int(period)


def _memory(root: Path) -> tuple[int, int]:
    """Bytes in all and bytes available, both within the tightest control group."""
    fields = {
        name: int(rest.split()[0]) * 1024
        for name, _, rest in (line.partition(":") for line in _read(root / "proc/meminfo").splitlines())
        if rest.split() and rest.split()[0].isdecimal()
    }
    total = fields.get("MemTotal") or _physical_memory()
    available = fields.get("MemAvailable", total)
    cached = [_cached_files(text) for text in _group_files(root, "memory", "memory.stat")]
    for limit_name, used_name in (
        ("memory.max", "memory.current"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        limits = _group_files(root, "memory", limit_name)
        used = _group_files(root, "memory", used_name)
        for limit, current, files in zip(limits, used, cached + [0] * len(limits), strict=False):
            if not limit.strip().isdecimal() or not current.strip().isdecimal():
                continue
            if int(limit) < total:
                total = int(limit)
            available = min(available, max(0, int(limit) - max(0, int(current) - files)))
    for limit, current in _process_limits(root):
        total, available = min(total, limit), min(available, max(0, limit - current))
    return total, available


def _process_limits(root: Path) -> list[tuple[int, int]]:
    """(limit, in use) in bytes of the address space and the private memory of this process: ulimit -v, -d (proc(5))."""
    limits, status = _read(root / "proc/self/limits"), _read(root / "proc/self/status")
    found: list[tuple[int, int]] = []
    for name, field in (("Max address space", "VmSize:"), ("Max data size", "VmData:")):
        limit = [line.removeprefix(name).split()[0] for line in limits.splitlines() if line.startswith(name)]
        used = [line.split()[1] for line in status.splitlines() if line.startswith(field)]
        if limit and used and limit[0].isdecimal() and used[0].isdecimal():
            found.append((int(limit[0]), int(used[0]) * 1024))
    return found


def _cached_files(stat: str) -> int:
    """Bytes of a group's use that are cached files long unread: given up before anything else is (memory.stat)."""
    for line in stat.splitlines():
        name, _, count = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file") and count.strip().isdecimal():
            return int(count)
    return 0


def _physical_memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 8 << 30  # unknown system: a cautious guess, overridden by --kv-cache-memory-bytes


def _group_files(root: Path, controller: str, name: str) -> list[str]:
    """Contents of `name` in this process's control group and all above it, v2 and v1 hierarchies."""
    base = root / "sys/fs/cgroup"
    found: list[str] = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        mount = base / controller if controllers else base
        group = Path(path.strip().lstrip("/"))
        for folder in (group, *group.parents):
            text = _read(mount / folder / name)
            if text:
                found.append(text)
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
