"""``vramscope sync``: what a process left on disk reaches the server, once and in order, however that process ended."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from collector import Collector, attached, sample

from vramscope.protocol import messages as wire_messages
from vramscope.settings import Settings
from vramscope.transport import batching, sync
from vramscope.transport.ring import Ring
from vramscope.transport.sender import Sender
from vramscope.transport.spool import Spool
from vramscope.transport.spool_dir import session_folders
from vramscope.transport.sync import main as sync_main


@pytest.fixture
def spool_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VRAMSCOPE_SPOOL_DIR", str(tmp_path / "spool"))
    return tmp_path / "spool"


def leave(spool_dir: Path, server: str, session: str = "abcdef0123", count: int = 5, first: int = 1) -> None:
    """Leave the batches of a process whose server never answered."""
    spool = Spool(spool_dir, 64 * 1024**2)
    spool.begin(session=session, server=server)
    spool.introduce(batching.encode(attached(name=session)))
    for sequence in range(first, first + count):
        found = [attached(name=session)] if sequence == 1 else []
        batch = wire_messages.Batch(
            wire=1,
            session=session,
            run="r" * 8,
            rank=0,
            sequence=sequence,
            sent_ns=1,
            messages=[*found, sample(sequence)],
        )
        spool.append(sequence, 1, batching.encode(batch))
    spool.close()


def test_everything_is_sent_in_order_and_the_folder_is_clean(spool_dir, collector, capsys):
    leave(spool_dir, collector.url)
    assert sync_main([]) == 0
    assert collector.steps == [1, 2, 3, 4, 5]
    assert list(spool_dir.iterdir()) == []
    output = capsys.readouterr().out
    assert re.fullmatch(rf"Sent 5 batches \([\d.]+ KiB\) of 1 session to {re.escape(collector.url)}\.\n", output)


def test_nothing_to_do_is_done(spool_dir, capsys):
    assert sync_main([]) == 0
    assert f"Nothing to send in {spool_dir}." in capsys.readouterr().out


def test_sessions_go_oldest_first_each_to_its_own_server(spool_dir, collector):
    with Collector() as other:
        leave(spool_dir, collector.url, "zzzzzzzz01")
        leave(spool_dir, collector.url, "aaaaaaaa02")
        leave(spool_dir, other.url, "mmmmmmmm03")
        assert sync_main([]) == 0
        assert list(dict.fromkeys(batch.session for batch in collector.batches)) == ["zzzzzzzz01", "aaaaaaaa02"]
        assert {batch.session for batch in other.batches} == {"mmmmmmmm03"}


def test_a_named_server_gets_everything(spool_dir, collector):
    leave(spool_dir, "http://127.0.0.1:9", "zzzzzzzz01")
    leave(spool_dir, "http://127.0.0.1:9", "aaaaaaaa02")
    assert sync_main(["--server", collector.url]) == 0
    assert len(collector.batches) == 10


def test_without_a_server_it_says_so_and_everything_stays(spool_dir, capsys):
    leave(spool_dir, "http://127.0.0.1:9")
    assert sync_main([]) == 4
    captured = capsys.readouterr()
    assert "no server at http://127.0.0.1:9" in captured.err
    assert captured.out.startswith(
        f"Sent nothing.\nStill in {spool_dir}: 5 batches of 1 session; `vramscope sync --server URL`"
    )
    [folder] = session_folders(spool_dir)
    assert len(folder.batches()) == 5


def test_an_absent_server_does_not_delay_the_others(spool_dir, collector, capsys):
    leave(spool_dir, "http://127.0.0.1:9", "aaaaaaaa01")
    leave(spool_dir, collector.url, "bbbbbbbb02")
    assert sync_main([]) == 4
    assert {batch.session for batch in collector.batches} == {"bbbbbbbb02"}
    sent, stays = capsys.readouterr().out.splitlines()
    assert re.fullmatch(rf"Sent 5 batches \(.*\) of 1 session to {re.escape(collector.url)}\.", sent), "to no other"
    assert "5 batches of 1 session;" in stays


def test_a_server_without_the_session_gets_attached_first(spool_dir, collector):
    # The first batches reached another server while the process lived; only the later ones are on disk.
    leave(spool_dir, collector.url, first=40)
    assert sync_main([]) == 0
    assert collector.batches[0].messages == [attached(name="abcdef0123"), sample(40)]


def test_json_is_one_object(spool_dir, collector, capsys):
    leave(spool_dir, collector.url)
    assert sync_main(["--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["exit_code"] == 0
    assert (result["sessions"], result["sent_batches"], result["left_batches"]) == (1, 5, 0)
    assert result["servers"] == [collector.url]


@pytest.mark.parametrize("words", [["--server", "not an address"], ["--nonsense"], ["word"]])
def test_wrong_arguments_are_reported(spool_dir, words, capsys):
    assert sync_main(words) == 2
    assert "vramscope sync" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("mode", "code"), [("refuse", 1), ("wrong_version", 1), ("hang", 4), ("trickle", 4), ("drop", 4)]
)
def test_a_refusing_server_leaves_everything_on_disk(spool_dir, collector, monkeypatch, mode, code):
    leave(spool_dir, collector.url)
    collector.mode = mode
    with monkeypatch.context() as impatient:
        impatient.setenv("VRAMSCOPE_READ_TIMEOUT_S", "0.5")
        assert sync_main([]) == code
    [folder] = session_folders(spool_dir)
    assert len(folder.batches()) == 5
    collector.mode = "ok"
    assert sync_main([]) == 0
    assert collector.steps == [1, 2, 3, 4, 5]


def test_a_busy_server_gets_the_time_it_asks_for(spool_dir, collector):
    leave(spool_dir, collector.url)
    collector.mode = "busy"
    threading.Timer(0.3, lambda: setattr(collector, "mode", "ok")).start()
    assert sync_main([]) == 0
    assert collector.steps == [1, 2, 3, 4, 5]


def test_a_bad_batch_is_set_aside_and_the_rest_arrives(spool_dir, collector, capsys):
    leave(spool_dir, collector.url, count=2)
    spool = Spool(spool_dir, 64 * 1024**2)
    spool.begin(session="poisoned00", server=collector.url)
    event = wire_messages.Event(time_ns=1, kind="poison")
    batch = wire_messages.Batch(
        wire=1, session="poisoned00", run="r" * 8, rank=0, sequence=1, sent_ns=1, messages=[event]
    )
    spool.append(1, 0, batching.encode(batch))
    spool.close()
    collector.mode = "picky"
    assert sync_main([]) == 1
    assert collector.steps == [1, 2]
    assert "set aside" in capsys.readouterr().out
    assert sync_main([]) == 0


def leave_large(spool_dir: Path, server: str, rows: int = 1000) -> None:
    """One batch of this number of rows and an event, and a small one after it."""
    leave(spool_dir, server, first=2, count=1)
    spool = Spool(spool_dir, 64 * 1024**2)
    spool.begin(session="abcdef0123", server=server)
    steps, event = (
        [sample(*range(10, 10 + rows)), sample(10 + rows, device=1)],
        wire_messages.Event(time_ns=1, kind="notice"),
    )
    messages = [attached(name="abcdef0123"), *steps, event]
    batch = wire_messages.Batch(
        wire=1, session="abcdef0123", run="r" * 8, rank=0, sequence=1, sent_ns=1, messages=messages
    )
    spool.append(1, rows + 1, batching.encode(batch))
    spool.close()


def test_a_batch_that_is_too_large_is_split_until_it_passes(spool_dir, collector, capsys):
    leave_large(spool_dir, collector.url)
    collector.mode, collector.limit_bytes = "small", 4000
    assert sync_main([]) == 0
    assert collector.steps == [*range(10, 1011), 2], "all rows, each once, in order"
    assert [message.kind for message in collector.messages if isinstance(message, wire_messages.Event)] == ["notice"]
    assert list(spool_dir.iterdir()) == []
    assert "set aside" not in capsys.readouterr().out


def test_a_sync_killed_between_halves_sends_each_row_once(spool_dir, collector, monkeypatch):
    leave_large(spool_dir, collector.url)
    collector.mode, collector.limit_bytes = "small", 4000
    with monkeypatch.context() as patch:  # nothing that was stored, and nothing that was cut, is taken off the disk
        patch.setattr("vramscope.transport.spool_dir.SessionFolder.remove_batch", lambda *_: None)
        sync_main([])
    assert sync_main([]) == 0
    assert collector.twins > 5
    assert sorted(collector.steps) == [2, *range(10, 1011)]


def test_a_batch_that_cannot_be_split_is_set_aside(spool_dir, collector, capsys):
    leave(spool_dir, collector.url, count=2)
    collector.mode, collector.limit_bytes = "small", 10
    assert sync_main([]) == 1
    assert "set aside" in capsys.readouterr().out
    assert collector.batches == []


def test_on_a_full_disk_a_batch_is_not_split(spool_dir, collector, monkeypatch, capsys):
    leave_large(spool_dir, collector.url)
    collector.mode, collector.limit_bytes = "small", 4000

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("vramscope.transport.spool_dir.SessionFolder.write_batch", full)
        assert sync_main([]) == 1
    assert "No space left on device" in capsys.readouterr().err
    assert sync_main([]) == 0
    assert sorted(collector.steps) == [2, *range(10, 1011)]


def test_a_file_cut_short_is_counted_and_the_rest_arrives(spool_dir, collector, capsys):
    leave(spool_dir, collector.url)
    [victim] = spool_dir.glob("*/*2-1.batch")
    victim.write_bytes(victim.read_bytes()[:9])
    assert sync_main([]) == 0
    assert collector.steps == [1, 3, 4, 5]
    assert "Ignored, since cut short by a crash: 1 file." in capsys.readouterr().out


def test_a_folder_without_session_json_uses_the_settings(spool_dir, collector, monkeypatch):
    monkeypatch.setenv("VRAMSCOPE_SERVER", collector.url)
    leave(spool_dir, "http://127.0.0.1:9")
    (spool_dir / "abcdef0123" / "session.json").write_bytes(b"")
    (spool_dir / "abcdef0123" / "attached.msgpack").write_bytes(b"\xc1")
    (spool_dir / "stray file").write_text("not ours")
    (spool_dir / "stray folder").mkdir()
    assert sync_main([]) == 0
    assert collector.steps == [1, 2, 3, 4, 5]


def test_a_running_sessions_folder_is_skipped(spool_dir, collector, capsys):
    leave(spool_dir, collector.url)
    spool = Spool(spool_dir, 64 * 1024**2)
    spool.begin(session="living0000", server=collector.url)
    spool.append(1, 1, b"anything")
    assert sync_main([]) == 0
    assert {batch.session for batch in collector.batches} == {"abcdef0123"}
    assert "Being sent by another process: 1 session." in capsys.readouterr().out
    spool.close()


def test_two_syncs_at_once_send_nothing_twice(spool_dir, collector):
    for number in range(12):
        leave(spool_dir, collector.url, f"session{number:04d}", count=8)
    codes: list[int] = []
    threads = [threading.Thread(target=lambda: codes.append(sync_main([]))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert codes == [0, 0, 0]
    assert len(collector.batches) == 96
    assert collector.twins == 0
    assert list(spool_dir.iterdir()) == []


def test_a_sync_killed_after_a_post_sends_a_known_duplicate(spool_dir, collector, monkeypatch):
    leave(spool_dir, collector.url)
    with monkeypatch.context() as patch:
        patch.setattr("vramscope.transport.spool_dir.SessionFolder.remove_batch", lambda *_: None)
        sync_main([])
    assert sync_main([]) == 0
    assert collector.twins == 5
    assert collector.steps == [1, 2, 3, 4, 5]


KILLED = """
import os, sys, time
sys.path.append("tests")
from tests.agent.collector import attached, sample
from vramscope.transport.ring import Ring
from vramscope.transport.sender import Sender
from vramscope.settings import Settings
from vramscope.transport.spool import Spool

settings = Settings.from_environment(flush_ms=20)
sender = Sender(settings, session="killed0000", run="r" * 16, rank=0, first_message=attached, ring=Ring(),
                spool=Spool(settings.spool_dir, settings.spool_bytes))
sender.start()
for step in range(10**6):
    sender.ring.put(sample(step))
    if step % 10 == 9:
        sender.flush()
        print(step, flush=True)
"""


@pytest.mark.parametrize("at_start", ["ok", "drop"])
def test_sync_delivers_a_killed_process_exactly_once(spool_dir, collector, at_start):
    collector.mode = at_start
    words = [sys.executable, "-c", KILLED]
    environment = {**os.environ, "VRAMSCOPE_SERVER": collector.url}
    root = Path(__file__).parents[2]
    process = subprocess.Popen(
        words, env=environment, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    for _ in range(20):
        process.stdout.readline()
    collector.mode = "drop"
    for _ in range(60):
        safe = int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    process.communicate()
    collector.mode = "ok"
    assert sync_main([]) == 0
    assert len(collector.steps) > safe, "what flush promised must be there"
    assert collector.steps == list(range(len(collector.steps)))
    assert list(spool_dir.iterdir()) == []


def test_unsent_sessions_are_reported_once(spool_dir, collector, capsys):
    leave(spool_dir, "http://127.0.0.1:9")
    settings = Settings.from_environment(server=collector.url, flush_ms=20)
    spool = Spool(settings.spool_dir, settings.spool_bytes)
    sender = Sender(
        settings, session="nextrun000", run="r" * 8, rank=0, first_message=attached, ring=Ring(), spool=spool
    )
    sender.start()
    sender.flush()
    sender.close()
    assert "1 unsent session in" in capsys.readouterr().err


def test_a_long_sync_shows_a_bar_on_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    progress = sync.ProgressBar(40)
    progress.show(1)
    assert capsys.readouterr().err == ""
    progress._started_s -= 3
    progress.done = 10
    progress.show(10)
    progress.end()
    assert "[###############               ] 20 of 40 batches" in capsys.readouterr().err


def test_a_disk_without_locks_still_syncs(spool_dir, collector, monkeypatch):
    leave(spool_dir, collector.url)

    def no_locks(*_: Any) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    assert sync_main([]) == 0
    assert collector.steps == [1, 2, 3, 4, 5]


def test_a_thousand_batches_take_seconds_not_minutes(spool_dir, collector):
    leave(spool_dir, collector.url, count=500)
    started = time.monotonic()
    assert sync_main([]) == 0
    assert time.monotonic() - started < 20
    assert len(collector.batches) == 500
