"""Batches wait on disk, bounded, whole or not at all; a disk that takes nothing is no disaster."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from vramscope.process import terminal
from vramscope.transport.spool import MIB, Spool
from vramscope.transport.spool_dir import ATTACHED, HEADER, SessionFolder, session_folders

SESSION = "abcdef0123"


@pytest.fixture(autouse=True)
def nothing_said_before():
    terminal.forget_printed()


def spool_in(directory: Path, max_bytes: int = 16 * MIB, session: str = SESSION) -> Spool:
    spool = Spool(directory, max_bytes)
    spool.begin(session=session, server="http://127.0.0.1:1")
    return spool


def drained(spool: Spool) -> list[tuple[int, bytes]]:
    found = []
    while (oldest := spool.oldest()) is not None:
        kept, body = oldest
        found.append((kept.sequence, body))
        spool.remove(kept)
    return found


def files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.rglob("*") if path.is_file())


def test_nothing_is_created_before_a_batch_has_to_wait(tmp_path):
    spool = spool_in(tmp_path / "deep" / "spool")
    assert spool.oldest() is None
    spool.close()
    assert list(tmp_path.iterdir()) == []


def test_batches_come_back_in_order_and_leave_nothing_behind(tmp_path):
    spool = spool_in(tmp_path)
    spool.introduce(b"who")
    for sequence in (1, 2, 10):
        spool.append(sequence, 3, b"batch %d" % sequence)
    assert (len(spool), spool.kept_batches) == (3, 3)
    assert drained(spool) == [(1, b"batch 1"), (2, b"batch 2"), (10, b"batch 10")]
    spool.close()
    assert list(tmp_path.iterdir()) == []


def test_another_process_finds_batches_and_their_server(tmp_path):
    spool = spool_in(tmp_path)
    spool.introduce(b"who")
    spool.append(7, 3, b"batch")
    spool.close()
    [folder] = session_folders(tmp_path)
    session = folder.read_session()
    assert session is not None
    assert (session.server, session.session) == ("http://127.0.0.1:1", SESSION)
    assert (folder.path / "attached.msgpack").read_bytes() == b"who"
    [kept] = folder.batches()
    assert (kept.sequence, kept.rows, folder.read_batch(kept)) == (7, 3, b"batch")


def test_only_its_owner_may_read_it(tmp_path):
    spool = spool_in(tmp_path)
    spool.append(1, 1, b"batch")
    for path in (tmp_path / SESSION).rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / SESSION).stat().st_mode) == 0o700


def test_a_full_spool_drops_its_oldest_and_counts_them(tmp_path):
    spool = spool_in(tmp_path, max_bytes=MIB)
    for sequence in range(1, 41):
        spool.append(sequence, 2, bytes(60_000))
        assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) <= MIB
    kept = [sequence for sequence, _ in drained(spool)]
    assert kept == list(range(41 - len(kept), 41))
    assert len(kept) >= 14
    assert spool.dropped_batches == 40 - len(kept)
    assert spool.dropped_rows == 2 * spool.dropped_batches


def test_small_files_count_with_the_blocks_that_they_take(tmp_path):
    spool = spool_in(tmp_path, max_bytes=MIB)
    for sequence in range(1, 400):
        spool.append(sequence, 1, b"tiny")
    assert len(spool) <= MIB // 4096
    assert spool.dropped_batches > 100


def test_a_batch_larger_than_the_spool_is_dropped_by_itself(tmp_path):
    spool = spool_in(tmp_path, max_bytes=MIB)
    spool.append(1, 5, bytes(2 * MIB))
    assert (len(spool), spool.dropped_rows) == (0, 5)


def test_finished_sessions_are_evicted_first_running_ones_never(tmp_path, capsys):
    dead = spool_in(tmp_path, session="dead00000000")
    for sequence in range(1, 9):
        dead.append(sequence, 1, bytes(50_000))
    dead.close()
    living = spool_in(tmp_path, session="living000000")
    for sequence in range(1, 5):
        living.append(sequence, 1, bytes(50_000))
    mine = spool_in(tmp_path, max_bytes=MIB)
    for sequence in range(1, 11):
        mine.append(sequence, 1, bytes(50_000))
    assert len(living) == 4
    assert len(drained(living)) == 4
    assert len(SessionFolder(tmp_path / "dead00000000").batches()) < 8
    assert len(mine) == 10
    assert "oldest batches of earlier runs" in capsys.readouterr().err


@pytest.mark.parametrize("cut", [0, 3, HEADER.size, HEADER.size + 2])
def test_a_file_cut_short_by_a_crash_is_ignored_and_counted(tmp_path, cut):
    spool = spool_in(tmp_path)
    for sequence in (1, 2, 3):
        spool.append(sequence, 4, b"some batch")
    [victim] = (tmp_path / SESSION).glob("*2-4.batch")
    victim.write_bytes(victim.read_bytes()[:cut])
    assert [sequence for sequence, _ in drained(spool)] == [1, 3]
    assert (spool.dropped_batches, spool.dropped_rows) == (1, 4)


def test_a_changed_file_is_ignored(tmp_path):
    spool = spool_in(tmp_path)
    spool.append(1, 4, b"some batch")
    [victim] = (tmp_path / SESSION).glob("*.batch")
    victim.write_bytes(victim.read_bytes()[:-1] + b"!")
    assert drained(spool) == []


def test_a_removed_folder_is_a_counted_loss(tmp_path):
    spool = spool_in(tmp_path)
    spool.append(1, 4, b"some batch")
    for path in (tmp_path / SESSION).iterdir():
        path.unlink()
    (tmp_path / SESSION).rmdir()
    assert drained(spool) == []
    assert spool.dropped_rows == 4
    spool.append(2, 1, b"next")  # into memory
    assert drained(spool) == [(2, b"next")]
    spool.close()


def test_a_folder_that_cannot_be_made_means_memory_and_one_line(tmp_path, capsys):
    (tmp_path / "file").write_text("in the way")
    spool = spool_in(tmp_path / "file" / "spool", max_bytes=MIB)
    for sequence in range(1, 31):
        spool.append(sequence, 1, bytes(100_000))
    assert "memory" in spool.location
    assert spool.kept_bytes <= MIB
    assert spool.dropped_batches == 20
    assert [sequence for sequence, _ in drained(spool)] == list(range(21, 31))
    assert capsys.readouterr().err.count("cannot write to") == 1


def test_batches_in_memory_go_to_disk_when_it_works_again(tmp_path):
    blocker = tmp_path / "spool"
    blocker.write_text("in the way")
    spool = spool_in(tmp_path / "spool")
    spool.append(1, 1, b"one")
    blocker.unlink()
    spool.close()
    [folder] = session_folders(tmp_path / "spool")
    assert [kept.sequence for kept in folder.batches()] == [1]


def test_after_a_full_disk_all_batches_are_there_in_order(tmp_path, capsys, small_disk, monkeypatch):
    disk = small_disk(400).path
    ballast = disk / "a checkpoint"
    ballast.write_bytes(bytes(200_000))
    spool = spool_in(disk / "spool")
    for sequence in range(1, 11):
        spool.append(sequence, 1, bytes([sequence]) * 50_000)
    assert 2 <= spool.batches_on_disk <= 4, "200 KB of room, and what a file takes more"
    assert "memory" in spool.location
    ballast.unlink()
    spool.append(11, 1, b"at once")
    assert spool.batches_on_disk <= 4, "not asked again so soon"
    monkeypatch.setattr("vramscope.transport.spool.RETRY_DISK_S", 0.0)
    spool._retry_disk_at_s = 0.0
    spool.append(12, 1, b"later")
    assert spool.batches_on_disk > 4, "what was in memory outlives the process now, as far as it fits"
    assert capsys.readouterr().err.count("cannot write to") == 1
    assert [sequence for sequence, _ in drained(spool)] == list(range(1, 13))
    spool.close()
    assert (spool.dropped_batches, files(disk / "spool")) == (0, [])


def test_a_folder_made_on_a_full_disk_gets_session_json_later(small_disk, monkeypatch):
    disk = small_disk(100)
    ballast = disk.fill()
    spool = spool_in(disk.path / "spool")
    spool.introduce(b"who we are")
    spool.append(1, 1, b"one")
    assert "memory" in spool.location
    ballast.unlink()
    spool._retry_disk_at_s = 0.0
    spool.append(2, 1, b"two")
    spool.close()
    [folder] = session_folders(disk.path / "spool")
    assert folder.read_session().session == SESSION
    assert [kept.sequence for kept in folder.batches()] == [1, 2]
    assert (folder.path / ATTACHED).read_bytes() == b"who we are"


def run_script(body: str, *arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
    head = "import sys\nfrom pathlib import Path\nfrom vramscope.transport.spool import Spool, MIB\n"
    words = [sys.executable, "-c", head + body, *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, **options)  # type: ignore[call-overload]


def test_a_full_disk_means_memory_and_no_half_written_file(tmp_path):
    # RLIMIT_FSIZE makes the write itself fail in the middle of a file, as a full disk does.
    done = run_script(
        """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
spool = Spool(Path(sys.argv[1]), 16 * MIB)
spool.begin(session="abcdef0123", server="http://127.0.0.1:1")
spool.append(1, 1, bytes(1000))
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
spool.append(2, 1, bytes(50_000))
spool.append(3, 1, bytes(10))
print([spool.oldest()[0].sequence, len(spool), "memory" in spool.location])
""",
        tmp_path,
    )
    assert done.stdout == "[1, 3, True]\n", done.stderr
    assert done.stderr.count("vramscope: cannot write to") == 1
    assert [name for name in files(tmp_path) if "tmp" in name] == []
    [folder] = session_folders(tmp_path)
    [kept] = folder.batches()
    assert folder.read_batch(kept) == bytes(1000)


def test_a_read_only_folder_means_memory_and_one_line():
    # /proc takes no files from anybody, not even from root, for whom a folder without write permission is none.
    done = run_script(
        """
spool = Spool(Path("/proc/vramscope"), 16 * MIB)
spool.begin(session="abcdef0123", server="http://127.0.0.1:1")
spool.append(1, 1, b"one")
spool.append(2, 1, b"two")
print(len(spool), spool.oldest()[1])
spool.close()
"""
    )
    assert done.stdout == "2 b'one'\n", done.stderr
    assert done.stderr.count("\n") == 1


def test_one_process_at_a_time_locks_a_session(tmp_path):
    spool = spool_in(tmp_path)
    spool.append(1, 1, b"one")
    assert not SessionFolder(tmp_path / SESSION).lock()
    spool.close()
    folder = SessionFolder(tmp_path / SESSION)
    assert folder.lock()
    assert not SessionFolder(tmp_path / SESSION).lock()
    folder.unlock()
    assert SessionFolder(tmp_path / SESSION).lock()


def test_a_killed_process_leaves_whole_files_and_no_lock(tmp_path):
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            """
import sys
from pathlib import Path
from vramscope.transport.spool import Spool, MIB
spool = Spool(Path(sys.argv[1]), 64 * MIB)
spool.begin(session="abcdef0123", server="http://127.0.0.1:1")
for sequence in range(1, 10**9):
    spool.append(sequence, 1, bytes([sequence % 251]) * 30_000)
    if sequence == 50:
        print("go", flush=True)
""",
            str(tmp_path),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "go\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    [folder] = session_folders(tmp_path)
    assert folder.lock()
    batches = folder.batches()
    assert len(batches) >= 50
    for kept in batches:
        assert folder.read_batch(kept) == bytes([kept.sequence % 251]) * 30_000
    assert folder.broken_files == 0
    folder.unlock()


def test_a_forked_child_does_not_lock_the_parents_session(tmp_path):
    spool = spool_in(tmp_path)
    spool.append(1, 1, b"one")
    ready, go = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        spool.after_fork_in_child()
        os.write(ready[1], b"x" if len(spool) == 0 else b"?")
        os.read(go[0], 1)
        os._exit(0)
    assert os.read(ready[0], 1) == b"x"
    assert not SessionFolder(tmp_path / SESSION).lock(), "the child must not give the parent's lock away"
    spool.close()
    other = SessionFolder(tmp_path / SESSION)
    assert other.lock(), "the child must not go on holding it"
    other.unlock()
    os.write(go[1], b"x")
    os.waitpid(child, 0)
    for descriptor in (*ready, *go):
        os.close(descriptor)


def test_making_and_removing_a_session_do_not_collide(tmp_path):
    stop = threading.Event()

    def tidy() -> None:
        while not stop.is_set():
            for folder in session_folders(tmp_path):
                if folder.lock():
                    if folder.read_session() is not None:
                        folder.tidy()
                    folder.unlock()

    thread = threading.Thread(target=tidy)
    thread.start()
    try:
        for number in range(100):
            spool = spool_in(tmp_path, session=f"session{number:05d}")
            spool.append(1, 1, b"one")
            assert spool.batches_on_disk == 1
            assert drained(spool) == [(1, b"one")]
            spool.close()
    finally:
        stop.set()
        thread.join()


def test_a_refused_batch_is_set_aside_with_the_reason(tmp_path):
    spool = spool_in(tmp_path)
    spool.set_aside(3, 2, b"bad", "the server said: no")
    spool.close()
    refused = tmp_path / SESSION / "refused"
    assert sorted(path.read_bytes() for path in refused.iterdir()) == [b"bad", b"the server said: no\n"]
    assert spool.set_aside_batches == 1


def test_refused_batches_are_bounded(tmp_path):
    spool = spool_in(tmp_path)
    for sequence in range(1, 40):
        spool.set_aside(sequence, 1, b"bad", "no")
    assert spool.set_aside_batches == 16
    assert spool.dropped_batches == 23


def test_urgent_batches_are_bounded_and_evicted_last(tmp_path):
    spool = spool_in(tmp_path, max_bytes=MIB)
    for sequence in range(1, 16):
        spool.append(sequence, 2, bytes(60_000))
    last = 1 << 39
    taken = [spool.keep_now(last + number, 1, bytes(60_000), b"who") for number in range(10)]
    assert taken == [True] * 4 + [False] * 6, "a quarter of the bound, as long as nobody makes room"
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) < MIB * 5 // 4
    spool.take_over()
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) <= MIB
    assert spool.dropped_rows == 2 * (15 - (len(spool) - 4)) > 0
    assert spool.keep_now(last + 4, 1, bytes(60_000), b"who"), "there is room again"
    spool.take_over()
    assert [sequence for sequence, _ in drained(spool)][-5:] == [last + number for number in range(5)]
