"""Host memory of child processes and shared memory: each page counts once, and unknown stays unknown."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import loader_workers
import pytest
from collector import Collector
from loader_workers import BATCH
from training import Arrived, run

from vramscope.guard import guard
from vramscope.memory import process_tree
from vramscope.memory.host import Host, highest_resident_bytes
from vramscope.memory.process_tree import ProcessTree, TreeMemory, TreeMemoryReader
from vramscope.protocol.series import UNKNOWN

MIB = 1 << 20
SLACK = 24 * MIB
"""What a worker allocates besides the test's own arrays: its interpreter touches pages that it had from its parent."""
pytestmark = pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux")


Waiting = dict[str, tuple[int, TreeMemory]]


@pytest.fixture(scope="module")
def waiting() -> Waiting:
    """By case of ``loader_workers``: shared bytes before the workers began, and the tree while their batches wait."""
    answer = subprocess.run(
        [sys.executable, loader_workers.__file__], capture_output=True, text=True, check=True
    ).stdout
    return {name: (shared, TreeMemory(**tree)) for name, (shared, tree) in json.loads(answer).items()}


def test_batches_that_wait_are_shared_memory_to_the_byte(waiting: Waiting) -> None:
    """The loop has one batch and the workers have prepared four, which no process maps before it is asked for."""
    before, read = waiting["small"]
    assert read.child_processes == 2
    assert read.shared_memory_bytes - before == 5 * BATCH


def test_batches_in_named_files_are_counted_as_well(waiting: Waiting) -> None:
    """With the strategy file_system no process keeps a descriptor. Each file begins with a page of PyTorch's own."""
    before, read = waiting["named files"]
    assert read.shared_memory_bytes - before == 5 * (BATCH + os.sysconf("SC_PAGE_SIZE"))


def test_a_worker_has_what_it_filled_and_not_what_it_shares(waiting: Waiting) -> None:
    (_, small), (_, large), (_, loaded) = (waiting[name] for name in ("small", "large", "loaded"))
    assert abs(large.child_processes_bytes - small.child_processes_bytes - 128 * MIB) < SLACK
    assert 64 * MIB <= large.largest_child_bytes < 64 * MIB + SLACK
    assert abs(loaded.child_processes_bytes - small.child_processes_bytes) < SLACK, "the parent has the 256 MiB"
    assert loaded.process_anonymous_bytes >= 256 * MIB


def test_without_children_there_are_none_and_their_memory_is_zero() -> None:
    """Zero is known: the kernel lists the children of each thread."""
    program = "import os; from vramscope.memory.process_tree import ProcessTree; print(ProcessTree().read(os.getpid()))"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert "child_processes=0, child_processes_bytes=0, largest_child_bytes=-1, shared_memory_bytes=0" in answer


ROLLUP = "0-1 ---p 0 00:00 0 [rollup]\nRss: 9 kB\nAnonymous: {0} kB\nPss_Anon: {1} kB\nPss_Shmem: {2} kB\nPrivate_Dirty: {3} kB\n"


class Proc:
    """A folder like /proc, with processes that a test describes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(self, pid: int, children: str = "", rollup: str | None = None) -> None:
        (self.folder / f"{pid}/task/{pid}").mkdir(parents=True)
        (self.folder / f"{pid}/fd").mkdir()
        (self.folder / f"{pid}/task/{pid}/children").write_text(children)
        (self.folder / f"{pid}/status").write_text("Name:\tpython\nRssAnon:\t   2048 kB\nRssShmem:\t 8 kB\n")
        if rollup is not None:
            (self.folder / f"{pid}/smaps_rollup").write_text(rollup)

    def read(self) -> TreeMemory:
        return ProcessTree(self.folder, self.folder / "shm").read(1)


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    (tmp_path / "shm").mkdir()
    return Proc(tmp_path)


def test_children_of_children_count(proc: Proc) -> None:
    proc.add(1, "2 3 ")
    proc.add(2, "4 ", ROLLUP.format(300, 300, 5, 300))
    proc.add(3, "", ROLLUP.format(900, 300, 20, 120))
    proc.add(4, "", ROLLUP.format(50, 50, 0, 50))
    assert proc.read() == TreeMemory(2048 << 10, 3, 450 << 10, 300 << 10, 0)


def test_a_worker_that_has_ended_is_left_out(proc: Proc) -> None:
    """It is listed until its parent waits for it, with an empty file, or it has gone since the list was read."""
    proc.add(1, "2 3 4 ")
    proc.add(2, "", ROLLUP.format(300, 300, 0, 300))
    proc.add(3, "", "")
    assert proc.read() == TreeMemory(2048 << 10, 1, 300 << 10, 300 << 10, 0)


def test_an_older_kernel_leaves_the_sum_unknown(proc: Proc) -> None:
    proc.add(1, "2 ")
    proc.add(2, "", "0-1 ---p [rollup]\nRss: 9 kB\nPss: 4 kB\n")
    assert proc.read() == TreeMemory(2048 << 10, 1, UNKNOWN, UNKNOWN, 0)


def test_a_kernel_that_lists_no_children_leaves_them_unknown(proc: Proc) -> None:
    proc.add(1)
    (proc.folder / "1/task/1/children").unlink()
    assert proc.read() == TreeMemory(2048 << 10)


def test_a_process_name_that_is_cut_within_a_character_hides_nothing(proc: Proc) -> None:
    """Linux keeps 15 bytes of the name of a script that is started by its own name."""
    proc.add(1)
    status = proc.folder / "1/status"
    status.write_bytes(b"Name:\te-" + "é".encode() * 6 + b"\xc3\n" + status.read_bytes())
    assert proc.read() == TreeMemory(2048 << 10, 0, 0, UNKNOWN, 0)
    (proc.folder / "self").symlink_to("1")
    assert Host(proc.folder).unfiled_bytes() == 2056 << 10
    status.write_bytes(status.read_bytes() + b"VmHWM:\t640 kB\n")
    assert highest_resident_bytes(status) == 640 << 10


def test_without_proc_all_is_unknown(tmp_path: Path) -> None:
    assert ProcessTree(tmp_path / "none", tmp_path).read(1) == TreeMemory()


def test_another_users_files_leave_shared_memory_unknown(proc: Proc, monkeypatch: pytest.MonkeyPatch) -> None:
    proc.add(1, "2 ")
    proc.add(2, "", ROLLUP.format(300, 300, 0, 300))
    listed = Path.iterdir

    def refused(folder: Path) -> Iterator[Path]:
        if folder == proc.folder / "2/fd":
            raise PermissionError(13, "Permission denied")
        return listed(folder)

    monkeypatch.setattr(Path, "iterdir", refused)
    assert proc.read() == TreeMemory(2048 << 10, 1, 300 << 10, 300 << 10, UNKNOWN)


def test_readings_that_take_long_are_made_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measuring children takes 0.2 s here and comes again after 80 s: 0.25 % of a core. Other readings take 10 ms, every 4 s."""
    at, used, measured, pauses = [100.0], [0.0], [], []
    reader = TreeMemoryReader()

    def pause(length: float) -> bool:
        at[0] += length
        pauses.append(length)
        return at[0] > 270

    def read(pid: int, *, measures: bool) -> TreeMemory:
        used[0] += 0.2 if measures else 0.01
        if measures:
            measured.append(at[0])
        return TreeMemory(5)

    monkeypatch.setattr(reader._stop, "wait", pause)
    monkeypatch.setattr(process_tree.time, "thread_time", lambda: used[0])
    monkeypatch.setattr(process_tree.time, "monotonic", lambda: at[0])
    monkeypatch.setattr(reader._tree, "read", read)
    reader._run()
    assert measured == [pytest.approx(100, abs=0.1), pytest.approx(182, abs=2), pytest.approx(264, abs=4)]
    assert pauses[:4] == [0.0, 2.0, pytest.approx(4.0), pytest.approx(4.0)]
    assert (reader.newest, reader.cpu_seconds) == (TreeMemory(5), pytest.approx(used[0]))


def test_between_measurements_ended_workers_do_not_count_and_new_ones_are_unknown(proc: Proc) -> None:
    """Minutes may pass between two of them where the workers are large."""
    proc.add(1, "2 3 ")
    proc.add(2, "", ROLLUP.format(300, 300, 0, 300))
    proc.add(3, "", ROLLUP.format(900, 900, 0, 900))
    tree, children = ProcessTree(proc.folder, proc.folder / "shm"), proc.folder / "1/task/1/children"
    assert tree.read(1) == TreeMemory(2048 << 10, 2, 1200 << 10, 900 << 10, 0)
    children.write_text("2 ")
    assert tree.read(1, measures=False) == TreeMemory(2048 << 10, 1, 300 << 10, 300 << 10, 0)
    proc.add(4, "", ROLLUP.format(50, 50, 0, 50))
    children.write_text("2 4 ")
    assert tree.read(1, measures=False) == TreeMemory(2048 << 10, 2, UNKNOWN, UNKNOWN, 0)
    assert tree.read(1) == TreeMemory(2048 << 10, 2, 350 << 10, 300 << 10, 0)


def test_a_reading_that_fails_leaves_nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The values before would be sent as those of now. The next reading is tried all the same."""
    monkeypatch.setattr(guard, "raise_faults", False)
    answers, seen = iter([TreeMemory(5), MemoryError(), TreeMemory(6)]), []
    reader = TreeMemoryReader()

    def read(pid: int, *, measures: bool) -> TreeMemory:
        answer = next(answers)
        if isinstance(answer, MemoryError):
            raise answer
        return answer

    def pause(length: float) -> bool:
        seen.append(reader.newest)
        return len(seen) > 3

    monkeypatch.setattr(reader._stop, "wait", pause)
    monkeypatch.setattr(reader._tree, "read", read)
    reader._run()
    assert seen == [TreeMemory(), TreeMemory(5), TreeMemory(), TreeMemory(6)]


TRAINING = """
import time
from torch.utils.data import DataLoader, TensorDataset
session = agent.attach(model)
train(2)
loader = DataLoader(TensorDataset(torch.ones(4096, 1024)), batch_size=1024, num_workers=2, multiprocessing_context="fork")
batches = iter(loader)
next(batches)
time.sleep(5)
train(2)
batches = None
agent.detach()
"""


@pytest.mark.gpu
def test_samples_have_the_parts(collector: Collector, spool: Path) -> None:
    run(TRAINING, collector, spool)
    samples = [row for row in Arrived(collector).rows("samples") if "child_processes" in row]
    most = max(samples, key=lambda row: row["child_processes"])
    assert most["child_processes"] == 2
    assert 0 < most["largest_child_bytes"] < most["child_processes_bytes"]
    assert most["shared_memory_bytes"] >= 3 * 4 * MIB, "three batches wait"
    assert 0 < most["process_anonymous_bytes"] < most["process_rss_bytes"]
