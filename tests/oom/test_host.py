"""Host memory by the limit that applies: the machine, or the control group of a container, from files as Linux
writes them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from vramscope.memory.host import Host
from vramscope.oom_diagnosis.diagnosis import diagnose
from vramscope.oom_diagnosis.facts import Facts

GIB = 1 << 30
NO_LIMIT = "9223372036854771712"


class Machine:
    """64 GiB, 40 of them available, in files below a folder. ``mount`` and ``group`` make it a container."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.groups = folder / "proc", folder / "groups"
        self.write(self.proc / "meminfo", f"MemTotal: {64 << 20} kB\nMemFree: 1 kB\nMemAvailable: {40 << 20} kB\n")
        self.write(self.proc / "vmstat", "nr_free_pages 5\noom_kill 7\n")
        self.write(self.proc / "self" / "statm", "1000 2048 300 1 0 500 0\n")
        self.write(self.proc / "self" / "cgroup", "")
        self.write(self.proc / "self" / "mountinfo", "22 1 254:0 / / rw - ext4 /dev/vda rw\n")

    def write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def mount(self, version: int, root: str, path: str) -> None:
        """``root``: the mounted group; ``path``: the group of the process."""
        kind = "cgroup2 none rw" if version == 2 else "cgroup none rw,memory"
        self.write(self.proc / "self" / "mountinfo", f"40 30 0:35 {root} {self.groups} rw,relatime shared:9 - {kind}\n")
        self.write(self.proc / "self" / "cgroup", f"{'0::' if version == 2 else '4:memory:'}{path}\n")

    def group(self, name: str, version: int, limit: str, used: int, files: int = 0, kills: int = 0) -> None:
        folder = self.groups / name
        if version == 2:
            seen = ("memory.max", "memory.current", "memory.events"), ("inactive_file", "active_file")
            killed = f"low 0\nhigh 0\nmax 12\noom 3\noom_kill {kills}\noom_group_kill 0\n"
        else:
            seen = (
                ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.oom_control"),
                ("total_inactive_file", "total_active_file"),
            )
            killed = f"oom_kill_disable 0\nunder_oom 0\noom_kill {kills}\n"
        for file, text in zip(seen[0], (limit, str(used), killed), strict=True):
            self.write(folder / file, f"{text}\n")
        self.write(folder / "memory.stat", f"anon 5\n{seen[1][0]} {files // 2}\n{seen[1][1]} {files - files // 2}\n")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_without_a_limit_the_machines_memory_counts(machine: Machine) -> None:
    host = Host(machine.proc)
    assert (host.total_bytes(), host.read().host_used_bytes) == (64 * GIB, 24 * GIB)
    machine.write(machine.proc / "vmstat", "oom_kill 9\n")
    assert host.kills() == 2, "those before it was made are not this run's"


@pytest.mark.parametrize("version", [1, 2])
def test_a_container_has_its_own_limit(machine: Machine, version: int) -> None:
    """Docker's own namespace: the group is the root of the mount. Pages of files are freed before a process is
    killed.
    """
    machine.mount(version, "/", "/")
    machine.group(".", version, str(8 * GIB), 7 * GIB, files=3 * GIB, kills=4)
    host = Host(machine.proc)
    assert (host.total_bytes(), host.read().host_used_bytes) == (8 * GIB, 4 * GIB)
    machine.group(".", version, str(8 * GIB), 8 * GIB, files=3 * GIB, kills=5)
    assert host.kills() == 1
    assert host.read().process_rss_bytes > 0


@pytest.mark.parametrize("version", [1, 2])
def test_a_limit_of_a_parent_group_counts(machine: Machine, version: int) -> None:
    """A Slurm job or a Kubernetes pod: the step or container inside has no limit, or a larger one."""
    machine.mount(version, "/", "/job/step/task")
    unlimited = "max" if version == 2 else NO_LIMIT
    machine.group(".", version, unlimited, 50 * GIB)
    machine.group("job", version, str(16 * GIB), 12 * GIB)
    machine.group("job/step", version, str(32 * GIB), 3 * GIB)
    machine.group("job/step/task", version, unlimited, 2 * GIB, kills=1)
    host = Host(machine.proc)
    assert (host.total_bytes(), host.read().host_used_bytes) == (16 * GIB, 12 * GIB)
    machine.group("job/step/task", version, unlimited, 2 * GIB, kills=2)
    assert host.kills() == 1, "of this process's own group"


@pytest.mark.parametrize("version", [1, 2])
def test_the_cgroup_is_found_where_it_is_mounted(machine: Machine, version: int) -> None:
    machine.mount(version, "/docker/4f1c", "/docker/4f1c")
    machine.group(".", version, str(8 * GIB), 5 * GIB)
    assert Host(machine.proc).total_bytes() == 8 * GIB
    machine.mount(version, "/docker/4f1c", "/elsewhere")
    assert Host(machine.proc).read().host_used_bytes == 5 * GIB


@pytest.mark.parametrize("limit", [str(100 * GIB), NO_LIMIT, "max", "nonsense"])
def test_an_unlimited_container_has_the_machines_memory(machine: Machine, limit: str) -> None:
    machine.mount(2, "/", "/")
    machine.group(".", 2, limit, 5 * GIB)
    host = Host(machine.proc)
    assert (host.total_bytes(), host.read().host_used_bytes) == (64 * GIB, 24 * GIB)


def test_cgroup_2_beside_version_1_is_ignored(machine: Machine) -> None:
    machine.mount(1, "/", "/slurm/uid_7")
    machine.group("slurm/uid_7", 1, str(4 * GIB), GIB)
    beside = f"41 31 0:38 / {machine.groups / 'unified'} rw - cgroup2 cgroup2 rw\n"
    mounted = machine.proc / "self" / "mountinfo"
    mounted.write_text(beside + mounted.read_text())
    (machine.groups / "unified").mkdir()
    joined = machine.proc / "self" / "cgroup"
    joined.write_text("0::/init\n" + joined.read_text())
    assert Host(machine.proc).total_bytes() == 4 * GIB


def test_a_dead_worker_without_kills_is_not_memory() -> None:
    killed = Facts(kind="worker_killed", worker=12, rss_bytes=GIB, host_used_bytes=8 * GIB, host_total_bytes=8 * GIB)
    assert diagnose(killed).kind == "outside_pytorch", "no text reports a kill"
    sure = diagnose(replace(killed, host_kills=1))
    assert sure.kind == "outside_pytorch"
    assert "Linux has ended 1 process for lack of memory during the run." in sure.sentence
    assert diagnose(replace(killed, host_kills=0)).kind == ""


def test_the_rank_is_named_where_there_are_several() -> None:
    """With one process, the rank is left out."""
    for kind, kills in (("host", None), ("cublas", None), ("worker_killed", 0), ("pytorch", None)):
        facts = Facts(kind=kind, rank=3, world_size=8, host_kills=kills)
        assert " on rank 3 of 8" in diagnose(facts).sentence, kind
        assert "rank" not in diagnose(replace(facts, world_size=1)).sentence
