"""What Octavo believes of a machine, from files as Linux writes them, and what it makes of the environment."""

from dataclasses import replace
from pathlib import Path

import pytest

from octavo.config.environment import read_environment
from octavo.config.machine import Machine, Placement, place_threads, read_machine
from octavo.errors import ConfigError

GIB = 1 << 30


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


MEMINFO = f"MemTotal: {16 * GIB // 1024} kB\nMemAvailable: {10 * GIB // 1024} kB\n"


def test_without_limits(tmp_path: Path) -> None:
    machine = read_machine(write(tmp_path, {"proc/meminfo": MEMINFO}))
    assert machine.memory_total == 16 * GIB
    assert machine.memory_available == 10 * GIB
    assert machine.cpu_quota is None
    assert machine.cores == machine.cpus


def test_limits_of_a_container_v2(tmp_path: Path) -> None:
    machine = read_machine(
        write(
            tmp_path,
            {
                "proc/meminfo": MEMINFO,
                "proc/self/cgroup": "0::/pod/box\n",
                "sys/fs/cgroup/pod/cpu.max": "150000 100000\n",
                "sys/fs/cgroup/pod/box/cpu.max": "max 100000\n",
                "sys/fs/cgroup/pod/box/memory.max": f"{4 * GIB}\n",
                "sys/fs/cgroup/pod/box/memory.current": f"{GIB}\n",
            },
        )
    )
    assert machine.cpu_quota == 1.5
    assert machine.memory_total == 4 * GIB
    assert machine.memory_available == 3 * GIB


def test_limits_of_a_container_v1(tmp_path: Path) -> None:
    machine = read_machine(
        write(
            tmp_path,
            {
                "proc/meminfo": MEMINFO,
                "proc/self/cgroup": "4:memory:/box\n2:cpu,cpuacct:/box\n",
                "sys/fs/cgroup/cpu/box/cpu.cfs_quota_us": "200000\n",
                "sys/fs/cgroup/cpu/box/cpu.cfs_period_us": "100000\n",
                "sys/fs/cgroup/memory/box/memory.limit_in_bytes": f"{2 * GIB}\n",
                "sys/fs/cgroup/memory/box/memory.usage_in_bytes": f"{GIB // 2}\n",
            },
        )
    )
    assert machine.cpu_quota == 2.0
    assert machine.memory_total == 2 * GIB
    assert machine.memory_available == 3 * GIB // 2


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"sys/fs/cgroup/cpu.max": "50000 100000\n"}, 0.5),  # a namespace: the group is its own root
        ({"sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
        ({"sys/fs/cgroup/cpu.max": "300000\n"}, 3.0),
        ({"sys/fs/cgroup/cpu.max": "nonsense\n"}, None),
        ({"sys/fs/cgroup/cpu.max": "100000 0\n"}, None),
        (
            {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"},
            None,
        ),
    ],
)
def test_quotas(tmp_path: Path, files: dict[str, str], quota: float | None) -> None:
    groups = "0::/\n2:cpu,cpuacct:/docker/4711\n"
    assert read_machine(write(tmp_path, {"proc/self/cgroup": groups, **files})).cpu_quota == quota


def test_a_cpuset_and_its_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {1, 2, 9, 33}, raising=False)
    lists = {"node0": "0-7,32-39\n", "node1": "8-15\n", "node2": "16-31\n", "node10": "\n"}
    files = {f"sys/devices/system/node/{name}/cpulist": text for name, text in lists.items()}
    files |= {
        f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list": text
        for cpu, text in ((1, "1,33\n"), (33, "1,33\n"), (2, "2,34\n"), (9, "9,41\n"))
    }
    machine = read_machine(write(tmp_path, files))
    assert machine.cpus == (1, 2, 9, 33)
    assert machine.cores == (1, 2, 9)
    assert machine.nodes == ((1, 2, 33), (9,))
    assert machine.node_numbers == (0, 1)
    assert place_threads(3, machine) == Placement((1, 2, 9), (0, 0, 1), (0, 1))
    assert place_threads(4, machine) == Placement((1, 2, 33, 9), (0, 0, 0, 1), (0, 1))  # two threads of a core


NODES = ((0, 1, 2, 3, 4, 5, 8, 9, 10, 11, 12, 13), (6, 7, 14, 15))  # a core's second thread is 8 above


@pytest.mark.parametrize(
    ("threads", "cpus", "shares"),
    [
        (2, (0, 6), (1, 1)),
        (3, (0, 1, 6), (2, 1)),
        (8, (0, 1, 2, 3, 4, 5, 6, 7), (6, 2)),
        (16, (0, 1, 2, 3, 4, 5, 8, 9, 10, 11, 12, 13, 6, 7, 14, 15), (12, 4)),
    ],
)
def test_threads_are_shared_out_by_the_cores_of_nodes(
    threads: int, cpus: tuple[int, ...], shares: tuple[int, ...]
) -> None:
    machine = Machine(tuple(range(16)), tuple(range(8)), None, GIB, GIB, NODES, (0, 3))
    placement = place_threads(threads, machine)
    assert placement.cpus == cpus
    assert tuple(placement.nodes.count(node) for node in (0, 1)) == shares
    assert placement.nodes == tuple(sorted(placement.nodes))
    assert placement.numbers == (0, 3)


def test_threads_are_left_to_the_system_where_nothing_is_gained() -> None:
    machine = Machine(tuple(range(16)), tuple(range(8)), None, GIB, GIB, NODES, (0, 3))
    assert place_threads(1, machine) == Placement()
    assert place_threads(17, machine) == Placement()
    assert place_threads(8, replace(machine, nodes=(tuple(range(16)),), node_numbers=(0,))) == Placement()
    assert place_threads(8, replace(machine, nodes=(), node_numbers=())) == Placement()


@pytest.mark.parametrize(
    ("stat", "available"),
    [
        ("", GIB),
        (f"anon 5\ninactive_file {GIB}\nactive_file 7\n", 2 * GIB),
        (f"inactive_file {9 * GIB}\n", 4 * GIB),
        ("inactive_file many\n", GIB),
    ],
)
def test_cached_files_of_a_container_can_be_had(tmp_path: Path, stat: str, available: int) -> None:
    files = {
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": "0::/box\n",
        "sys/fs/cgroup/box/memory.max": f"{4 * GIB}\n",
        "sys/fs/cgroup/box/memory.current": f"{3 * GIB}\n",
        "sys/fs/cgroup/box/memory.stat": stat,
    }
    assert read_machine(write(tmp_path, files)).memory_available == available


def test_a_full_group_above_bounds_what_a_small_one_may_take(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": "0::/all/box\n",
        "sys/fs/cgroup/all/box/memory.max": f"{4 * GIB}\n",
        "sys/fs/cgroup/all/box/memory.current": f"{GIB}\n",
        "sys/fs/cgroup/all/memory.max": f"{8 * GIB}\n",
        "sys/fs/cgroup/all/memory.current": f"{7 * GIB}\n",
    }
    machine = read_machine(write(tmp_path, files))
    assert (machine.memory_total, machine.memory_available) == (4 * GIB, GIB)


@pytest.mark.parametrize(
    ("space", "data", "total", "available"),
    [
        ("unlimited", "unlimited", 16, 10),
        (f"{8 * GIB}", "unlimited", 8, 6),
        ("unlimited", f"{4 * GIB}", 4, 3),
        (f"{6 * GIB}", f"{4 * GIB}", 4, 3),
        (f"{GIB}", "unlimited", 1, 0),
    ],
)
def test_limits_of_the_process_itself(tmp_path: Path, space: str, data: str, total: int, available: int) -> None:
    """`ulimit -v` counts what is mapped, files too; `ulimit -d` private memory alone."""
    files = {
        "proc/meminfo": MEMINFO,
        "proc/self/limits": f"Limit  Soft Limit  Hard Limit  Units\n"
        f"Max data size             {data}            unlimited            bytes\n"
        f"Max address space         {space}            unlimited            bytes\n",
        "proc/self/status": f"VmPeak: 1 kB\nVmSize:\t {2 * GIB // 1024} kB\nVmData:\t {GIB // 1024} kB\n",
    }
    machine = read_machine(write(tmp_path, files))
    assert (machine.memory_total, machine.memory_available) == (total * GIB, available * GIB)


def test_threads_of_one_core_count_once(tmp_path: Path) -> None:
    everywhere = {f"sys/devices/system/cpu/cpu{n}/topology/thread_siblings_list": "0-511\n" for n in range(512)}
    machine = read_machine(write(tmp_path, everywhere))
    assert len(machine.cores) == 1


def test_this_machine_can_be_read() -> None:
    machine = read_machine()
    assert machine.cpus
    assert set(machine.cores) <= set(machine.cpus)
    assert 0 < machine.memory_available <= machine.memory_total


def test_environment() -> None:
    found = read_environment(
        {"OCTAVO_CACHE_DIR": "/tmp/c", "OCTAVO_THREADS": "3", "OCTAVO_LOG_LEVEL": "DEBUG", "VLLM_API_KEY": "k"}
    )
    assert (found.cache_dir, found.threads, found.log_level, found.api_key) == (Path("/tmp/c"), 3, "debug", "k")
    assert read_environment({"HOME": "/h"}).cache_dir == Path("/h/.cache/octavo")
    assert read_environment({"HOME": "/h", "XDG_CACHE_HOME": "/x"}).cache_dir == Path("/x/octavo")
    assert read_environment({"OCTAVO_API_KEY": "own", "VLLM_API_KEY": "other"}).api_key == "own"
    assert read_environment({"VLLM_LOGGING_LEVEL": "DEBUG"}).log_level == "debug"
    assert read_environment({"VLLM_LOGGING_LEVEL": "DEBUG", "OCTAVO_LOG_LEVEL": "error"}).log_level == "error"
    assert read_environment({"VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "65"}).keep_alive_timeout == 65


@pytest.mark.parametrize(
    "variables",
    [{"OCTAVO_THREADS": "many"}, {"OCTAVO_THREADS": "0"}, {"OCTAVO_ISA": "mmx"}, {"OCTAVO_LOG_LEVEL": "loud"}],
)
def test_wrong_variables_are_named(variables: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=next(iter(variables))):
        read_environment(variables)
