"""Forks, exits, kills: what becomes of the samples, and that the process never hangs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from waiting import eventually

from vramscope.protocol import messages
from vramscope.transport.spool_dir import session_folders

TRAINING = """
import atexit, multiprocessing, os, signal, sys, threading, time, warnings
# From 3.12 on Python warns of any fork beside threads; torch has threads of its own without us.
warnings.filterwarnings("ignore", "This process", DeprecationWarning)
from vramscope.protocol import series, messages
from vramscope.guard import guard
from vramscope.transport.ring import Ring
from vramscope.transport.sender import Sender
from vramscope.settings import Settings
from vramscope.transport.spool import Spool

def column(*values):
    return b"".join(value.to_bytes(8, "little", signed=True) for value in values)

def sample(step):
    return messages.Block(stream="samples", device=0, rows=1, columns={"time_ns": column(step), "step": column(step)})

def attached():
    return messages.Attached(project="tests", name="a run", rank=0, world_size=1, host="here", pid=os.getpid(), start_ns=1,
                         framework="loop", devices=[], python="3", torch="2", agent_version="0")

def started():
    guard.raise_faults = True
    settings = Settings.from_environment(flush_ms=20)
    sender = Sender(settings, session=f"{os.getpid():012d}", run="r" * 16, rank=0, first_message=attached, ring=Ring(),
                    spool=Spool(settings.spool_dir, settings.spool_bytes))
    sender.start()
    return sender

if __name__ == "__main__":
    sender = started()
"""


class Training:
    """A process that sends; its code is what follows ``sender = started()``."""

    def __init__(self, tmp_path: Path, server: str, code: str, **environ: str) -> None:
        script = tmp_path / "train.py"
        indented = "".join(f"    {line}\n" for line in code.strip().splitlines())
        script.write_text(TRAINING + indented)
        environment = {
            **os.environ,
            "VRAMSCOPE_SERVER": server,
            "VRAMSCOPE_SPOOL_DIR": str(tmp_path / "spool"),
            **environ,
        }
        pipe = subprocess.PIPE
        words = [sys.executable, str(script)]
        self.process = subprocess.Popen(words, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self, timeout_s: float = 30) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=timeout_s)
        return self.process.returncode, out, err


def on_disk(tmp_path: Path) -> list[messages.Batch]:
    found = []
    for folder in session_folders(tmp_path / "spool"):
        for kept in folder.batches():
            body = folder.read_batch(kept)
            assert body is not None
            found.append(messages.decode_batch(body))
    return found


def test_at_the_interpreters_exit_pending_data_is_sent(tmp_path, collector):
    training = Training(
        tmp_path,
        collector.url,
        """
atexit.register(sender.close)
for step in range(100):
    sender.ring.put(sample(step))
sender.ring.put(messages.Ended(time_ns=1, state="finished"))
""",
    )
    code, _, err = training.end()
    assert (code, err) == (0, "")
    assert collector.steps == list(range(100))
    assert isinstance(collector.messages[-1], messages.Ended)


def test_at_exit_a_hung_server_takes_the_deadline_at_most(tmp_path, collector):
    collector.mode = "hang"
    training = Training(
        tmp_path,
        collector.url,
        """
for step in range(100):
    sender.ring.put(sample(step))
time.sleep(0.3)
atexit.register(lambda: print(time.monotonic() - began))
atexit.register(sender.close)
began = time.monotonic()
""",
        VRAMSCOPE_CLOSE_TIMEOUT_S="0.5",
    )
    code, out, _ = training.end()
    assert code == 0
    assert float(out) < 1.5
    assert sum(m.rows for batch in on_disk(tmp_path) for m in batch.messages if isinstance(m, messages.Block)) == 100


def test_an_exit_without_close_does_not_hang(tmp_path, collector):
    collector.mode = "hang"
    code, _, err = Training(tmp_path, collector.url, "sender.ring.put(sample(1))\ntime.sleep(0.2)").end(10)
    assert (code, err) == (0, "")


def test_a_forked_child_sends_nothing_and_ends_normally(tmp_path, collector):
    training = Training(
        tmp_path,
        collector.url,
        """
os.register_at_fork(after_in_child=sender.after_fork_in_child)
for step in range(50):
    sender.ring.put(sample(step))
    if step % 5 == 0:
        child = os.fork()
        if child == 0:
            sender.ring.put(sample(10**6))
            assert sender.flush(0.1) is False
            assert sender.close() is False
            assert threading.active_count() == 1
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    time.sleep(0.002)
print(sender.close())
""",
    )
    code, out, err = training.end()
    assert (code, out, err) == (0, "True\n", "")
    assert collector.steps == list(range(50))
    assert {batch.session for batch in collector.batches} == {f"{training.process.pid:012d}"}


def test_a_child_forked_without_hooks_sends_nothing(tmp_path, collector):
    training = Training(
        tmp_path,
        collector.url,
        """
sender.ring.put(sample(1))
sender.flush()
child = os.fork()
if child == 0:
    sender.ring.put(sample(2))
    sender.close()
    sys.exit(0)
os.waitpid(child, 0)
sender.ring.put(sample(3))
sender.close()
""",
    )
    code, _, err = training.end()
    assert (code, err) == (0, "")
    assert collector.steps == [1, 3]


def test_forks_during_an_outage_leave_the_spool_alone(tmp_path):
    training = Training(
        tmp_path,
        "http://127.0.0.1:9",
        """
os.register_at_fork(after_in_child=sender.after_fork_in_child)
children = []
for step in range(20):
    sender.ring.put(sample(step))
    sender.flush()
    child = os.fork()
    if child == 0:
        time.sleep(60)  # outlives the parent, as an orphaned data loader does
        os._exit(0)
    children.append(child)
sender.close()
from vramscope.transport.spool_dir import session_folders
[folder] = session_folders(sender.settings.spool_dir)
until = time.monotonic() + 10
while not (free := folder.lock()) and time.monotonic() < until:
    time.sleep(0.01)  # the youngest child may not have run at all yet
print(free, flush=True)
for child in children:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
""",
    )
    code, out, _ = training.end()
    assert (code, out) == (0, "True\n")
    batches = on_disk(tmp_path)
    assert [batch.sequence for batch in batches] == list(range(1, len(batches) + 1))
    assert sum(m.rows for batch in batches for m in batch.messages if isinstance(m, messages.Block)) == 20


def test_a_spawned_child_is_a_session_of_its_own(tmp_path, collector):
    script = """
def child():
    mine = started()
    mine.ring.put(sample(2))
    mine.close()

if __name__ == "__main__":
    sender.ring.put(sample(1))
    process = multiprocessing.get_context("spawn").Process(target=child)
    process.start()
    process.join()
    sender.close()
    sys.exit(process.exitcode)
"""
    path = tmp_path / "spawning.py"
    path.write_text(TRAINING + script)
    environment = {**os.environ, "VRAMSCOPE_SERVER": collector.url, "VRAMSCOPE_SPOOL_DIR": str(tmp_path / "spool")}
    done = subprocess.run([sys.executable, str(path)], env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(collector.steps) == [1, 2]
    assert len({batch.session for batch in collector.batches}) == 2


def test_after_a_kill_only_the_last_flush_is_missing(tmp_path, collector):
    training = Training(
        tmp_path,
        collector.url,
        """
for step in range(10**6):
    sender.ring.put(sample(step))
    time.sleep(0.002)
    if step == 100:
        print("go", flush=True)
""",
    )
    assert training.line() == "go"
    training.process.send_signal(signal.SIGKILL)
    training.end()
    eventually(lambda: len(collector.steps) > 50)
    assert collector.steps == list(range(len(collector.steps)))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_exits_the_interpreter_closes_the_sender(tmp_path, collector, number):
    training = Training(
        tmp_path,
        collector.url,
        """
atexit.register(sender.close)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
sender.ring.put(sample(1))
print("go", flush=True)
time.sleep(30)
""",
    )
    assert training.line() == "go"
    training.process.send_signal(number)
    code, _, _ = training.end()
    assert code == (143 if number == signal.SIGTERM else -signal.SIGINT)
    assert collector.steps == [1]


def test_a_signal_handler_may_close_in_the_middle_of_anything(tmp_path, collector):
    # The handler runs on the main thread, between two of its instructions: also while that thread is inside the ring.
    training = Training(
        tmp_path,
        collector.url,
        """
signal.signal(signal.SIGALRM, lambda *_: (sender.close(2), print("closed", flush=True), os._exit(0)))
signal.setitimer(signal.ITIMER_REAL, 0.3)
while True:
    sender.ring.put(sample(1))
""",
    )
    started = time.monotonic()
    code, out, _ = training.end()
    assert (code, out) == (0, "closed\n")
    assert time.monotonic() - started < 10
