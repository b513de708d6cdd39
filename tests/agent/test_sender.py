"""What the sender does with a server that is there, that is away, and that misbehaves: a real one, over real sockets."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from collector import Collector, attached, sample
from ports import free_port
from waiting import eventually

from vramscope.guard import guard
from vramscope.process import terminal
from vramscope.protocol import messages
from vramscope.settings import Settings
from vramscope.transport import backoff
from vramscope.transport.deadline import Deadline
from vramscope.transport.http import ServerConnection
from vramscope.transport.ring import Ring
from vramscope.transport.sender import MAX_OWN_PAUSE_S, MAX_SEND_EVERY_S, MOST_SHARE, QUICK_S, Sender
from vramscope.transport.spool import MIB, Spool
from vramscope.transport.spool_dir import session_folders

SESSION, RUN = "abcdef0123456789", "9876543210fedcba"
Start = Callable[..., Sender]


@pytest.fixture(autouse=True)
def loud_and_fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(guard, "raise_faults", True)
    monkeypatch.setattr(backoff, "LONGEST_PAUSE_S", 0.6)  # a test does not wait half a minute for the next try
    terminal.forget_printed()
    yield


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Sender] = []

    def start(server: str | Collector, first_message: Any = attached, **given: Any) -> Sender:
        url = server.url if isinstance(server, Collector) else server
        options = {"server": url, "spool_dir": tmp_path / "spool", "flush_ms": 20, "read_timeout_s": 0.5, **given}
        calls = {name: options.pop(name) for name in ("on_request", "look_up_slow_facts") if name in options}
        settings = Settings.from_environment({}, **options)
        sender = Sender(
            settings,
            session=SESSION,
            run=RUN,
            rank=0,
            first_message=first_message,
            ring=Ring(),
            spool=Spool(settings.spool_dir, settings.spool_bytes),
            **calls,
        )
        sender.start()
        started.append(sender)
        return sender

    yield start
    for sender in started:
        sender.close(0.2)


def waiting(tmp_path: Path) -> int:
    return sum(len(folder.batches()) for folder in session_folders(tmp_path / "spool"))


def test_after_the_first_seconds_turns_keep_to_their_share_of_a_core(start, collector):
    sender = start(collector)
    eventually(lambda: sender.sent_batches)
    sender.close(5.0)  # its thread measures turns of its own
    for mean_s in (0.0, 0.001, 0.5):
        sender._turn_cpu_s = mean_s
        assert sender._pause_s(QUICK_S / 2) == pytest.approx(0.02), "somebody waits for the page"
        assert sender._pause_s(QUICK_S) == pytest.approx(min(MAX_OWN_PAUSE_S, max(0.02, mean_s / MOST_SHARE)))


# --- a server that is there ---------------------------------------------------------------------------------------


def test_the_first_batch_begins_with_attached(start, collector):
    start(collector)
    eventually(lambda: collector.batches)
    first = collector.batches[0]
    assert (first.session, first.run, first.rank, first.sequence) == (SESSION, RUN, 0, 1)
    assert first.messages == [attached()]
    assert abs(first.sent_ns - time.time_ns()) < 5e9


def test_rows_arrive_in_order_in_few_batches_with_rising_numbers(start, collector):
    sender = start(collector, flush_ms=100)
    for step in range(300):
        sender.ring.put(sample(step))
        time.sleep(0.001)
    assert sender.flush()
    assert collector.steps == list(range(300))
    assert [batch.sequence for batch in collector.batches] == list(range(1, len(collector.batches) + 1))
    assert len(collector.batches) < 100
    assert (sender.sent_rows, sender.sent_batches) == (300, len(collector.batches))
    assert sender.cpu_seconds > 0


def test_nothing_is_on_disk_while_the_server_accepts(start, collector, tmp_path):
    sender = start(collector)
    sender.ring.put(sample(1))
    assert sender.flush()
    assert sender.close()
    assert list(tmp_path.iterdir()) == []


def test_headers_have_token_and_content_type(start, collector):
    start(collector, token="secret-token")
    eventually(lambda: collector.headers)
    assert collector.headers[0]["authorization"] == "Bearer secret-token"
    assert collector.headers[0]["content-type"] == "application/msgpack"


def test_one_connection_serves_all_batches(start, collector):
    sender = start(collector)
    for step in range(10):
        sender.ring.put(sample(step))
        sender.flush()
    assert len(collector.batches) >= 10
    assert len(collector.clients) == 1


def test_a_silent_training_sends_heartbeats(start, collector, monkeypatch):
    monkeypatch.setattr("vramscope.transport.sender.HEARTBEAT_S", 0.1)
    start(collector)
    eventually(lambda: len(collector.batches) >= 4)
    assert collector.batches[2].messages == []


def test_a_change_of_attached_is_sent_again(start, collector):
    names = iter(["before", "after", "never"])
    sender = start(collector, first_message=lambda: attached(name=next(names)))
    sender.flush()
    sender.attach_again()
    sender.flush()
    assert [m.name for m in collector.messages if isinstance(m, messages.Attached)] == ["before", "after"]


def test_a_change_while_attached_is_made_is_sent_too(start, collector):
    """The introduction asks git, which takes a while, and meanwhile the sampler may find the devices."""
    seen: list[str] = []
    started = threading.Event()

    def first_message() -> messages.Attached:
        started.wait(10)
        seen.append(f"{len(seen) + 1}")
        if len(seen) == 1:
            sender.attach_again()
        return attached(name=seen[-1])

    sender = start(collector, first_message=first_message)
    started.set()
    sender.flush()
    sender.flush()
    assert [m.name for m in collector.messages if isinstance(m, messages.Attached)][-1] == "2"


def test_requests_of_the_server_are_passed_on(start, collector):
    collector.requests = ["trace_window"]
    seen: list[str] = []
    start(collector, on_request=seen.extend)
    eventually(lambda: seen)
    assert seen[0] == "trace_window"


def test_a_requested_pause_loses_nothing(start, collector):
    collector.retry_after_ms = 400
    sender = start(collector)
    eventually(lambda: collector.posts == 1)
    started = time.monotonic()
    for step in range(50):
        sender.ring.put(sample(step))
        time.sleep(0.002)
    eventually(lambda: collector.posts == 2)
    assert time.monotonic() - started > 0.3
    eventually(lambda: collector.steps == list(range(50)))


def test_the_server_sets_how_often_an_agent_sends(start, collector):
    collector.send_every_ms = 700
    sender = start(collector)
    eventually(lambda: collector.posts == 1)
    began_s = time.monotonic()
    while time.monotonic() - began_s < 2.0:
        sender.ring.put(sample(collector.posts))
        time.sleep(0.01)
    assert collector.posts <= 4
    posts = collector.posts
    assert sender.flush(), "at once"
    assert collector.posts == posts + 1
    collector.send_every_ms = 0  # the server has room again
    sender.ring.put(sample(1))
    sender.flush()
    posts = collector.posts
    began_s = time.monotonic()
    while collector.posts < posts + 3:
        sender.ring.put(sample(2))
        time.sleep(0.01)
        assert time.monotonic() - began_s < 10


def test_during_an_outage_the_rhythm_of_the_server_does_not_delay_the_disk(start, collector, monkeypatch):
    monkeypatch.setattr("vramscope.transport.sender.KEEP_INTERVAL_S", 0.2)
    collector.send_every_ms = 10_000
    sender = start(collector)
    eventually(lambda: sender.sent_batches == 1)
    collector.stop()
    sender.ring.put(sample(1))
    sender.flush()  # finds out that the server is away
    before = sender.spool.batches_on_disk
    began_s = time.monotonic()
    sender.ring.put(sample(2))
    eventually(lambda: sender.spool.batches_on_disk > before)
    assert time.monotonic() - began_s < 3


@pytest.mark.parametrize(("asked_ms", "expected_s"), [(10**12, MAX_SEND_EVERY_S), (-5, 0.02), (1, 0.02)])
def test_the_rhythm_that_a_server_asks_for_is_bounded(start, collector, asked_ms, expected_s):
    collector.send_every_ms = asked_ms
    sender = start(collector, flush_ms=20)
    eventually(lambda: sender.sent_batches == 1)
    eventually(lambda: sender._send_every_s == expected_s)


def test_closing_sends_the_rest_and_ended_last(start, collector):
    sender = start(collector, flush_ms=5000)
    for step in range(100):
        sender.ring.put(sample(step))
    sender.ring.put(messages.Ended(time_ns=1, state="finished"))
    assert sender.close()
    assert collector.steps == list(range(100))
    assert isinstance(collector.messages[-1], messages.Ended)


def test_a_proxy_of_the_environment_is_not_asked_for_this_machine(start, collector, monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    start(collector)
    eventually(lambda: collector.batches)


@pytest.mark.parametrize("proxy", ["socks5h://127.0.0.1:1080", "gopher://x"])
def test_an_unusable_proxy_does_not_stop_the_agent(start, collector, monkeypatch, capsys, proxy):
    """httpx rejects some proxies at the start. The proxy is not used for this machine; for another server all batches are
    spooled."""
    for name in ("ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, proxy)
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    start(collector)
    eventually(lambda: collector.batches)
    away = start("http://192.0.2.1:8265")
    away.ring.put(sample(1))
    assert away.flush()
    eventually(lambda: away._outage._failures >= 1)
    assert "cannot connect to http://192.0.2.1:8265 (" in capsys.readouterr().err


def test_unreadable_certificates_do_not_stop_the_agent(start, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none"))
    sender = start("https://127.0.0.1:9")
    sender.ring.put(sample(1))
    assert sender.flush()
    eventually(lambda: sender._outage._failures >= 1)
    assert "cannot connect to https://127.0.0.1:9 (" in capsys.readouterr().err


# --- a server that is away ----------------------------------------------------------------------------------------


def test_without_a_server_one_line_and_samples_on_disk(start, tmp_path, capsys):
    port = free_port()
    sender = start(f"http://127.0.0.1:{port}")
    for step in range(3):
        sender.ring.put(sample(step))
        assert sender.flush()
    eventually(lambda: sender._outage._failures >= 3)
    assert waiting(tmp_path) >= 3
    captured = capsys.readouterr().err
    assert captured.count("\n") == 1
    assert f"no server at http://127.0.0.1:{port}; keeping samples in {tmp_path / 'spool'} (up to 256 MiB)" in captured


def test_after_an_outage_batches_arrive_in_order(start, tmp_path, capsys):
    port = free_port()
    sender = start(f"http://127.0.0.1:{port}")
    for step in range(5):
        sender.ring.put(sample(step))
        sender.flush()
    with Collector(port) as collector:
        eventually(lambda: collector.steps == list(range(5)))
        sender.ring.put(sample(5))
        eventually(lambda: collector.steps == list(range(6)))
        assert collector.twins == 0
        assert sorted(batch.sequence for batch in collector.batches) == list(range(1, len(collector.batches) + 1))
        assert "server is back; sent " in capsys.readouterr().err
        assert sender.close()
    assert list((tmp_path / "spool").iterdir()) == []


def test_a_server_that_restarts_in_the_middle_loses_nothing(start):
    port = free_port()
    step = 0
    seen: list[int] = []
    sender = None
    for _ in range(3):
        with Collector(port) as collector:
            sender = sender or start(collector)
            for _ in range(20):
                sender.ring.put(sample(step))
                step += 1
                time.sleep(0.01)
            eventually(lambda collector=collector, last=step - 1: last in collector.steps)
            seen += collector.steps
    assert sorted(set(seen)) == list(range(step))


def test_a_new_server_gets_attached_first(start):
    port = free_port()
    with Collector(port) as first:
        sender = start(first)
        eventually(lambda: first.batches)
    sender.ring.put(sample(1))
    sender.flush()
    with Collector(port) as second:
        eventually(lambda: second.batches)
        assert second.batches[0].messages[0] == attached()


def test_a_server_that_lost_the_session_gets_attached(start, collector):
    sender = start(collector)
    eventually(lambda: collector.batches)
    collector.mode = "forgetful"
    sender.ring.put(sample(1))
    eventually(lambda: collector.steps == [1])
    assert isinstance(collector.batches[-1].messages[0], messages.Attached)


def test_pauses_between_tries_grow_and_differ(monkeypatch):
    monkeypatch.setattr(backoff, "LONGEST_PAUSE_S", 30.0)
    pauses = []
    for _ in range(20):
        one = backoff.Outage()
        for failure in range(12):
            one.record_failure(backoff.ServerAnswer("away", "gone"), 0.0, "here", silent=True)
            pauses.append((failure, one.next_try_s))
    assert all(0.25 <= pause <= 30 for _, pause in pauses)
    assert max(pause for failure, pause in pauses if failure == 0) <= 0.5
    assert min(pause for failure, pause in pauses if failure == 11) >= 15
    assert len({pause for failure, pause in pauses if failure == 11}) > 10


# --- a server that misbehaves -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("refuse", "the token is not known: Make one with `vramscope server`. (set the token with VRAMSCOPE_TOKEN)"),
        ("wrong_version", "the agent speaks wire 1, this server speaks wire 9: Update the agent."),
        ("other_project", "the token may send runs of nlp (VRAMSCOPE_PROJECT)"),
        ("not_ours", "is not a vramscope server"),
        ("hang", "did not answer within 0.5 s"),
        ("trickle", "did not end its answer within 1 s"),
        ("endless_head", "did not end its answer within 1 s"),
        ("proxy", "answered: 410 Gone (is it a vramscope server?)"),
        ("drop", "the connection to"),
    ],
)
def test_a_refusal_is_one_clear_line_and_everything_is_kept(start, collector, tmp_path, capsys, mode, words):
    collector.mode, collector.proxy_status = mode, 410
    sender = start(collector)
    sender.ring.put(sample(1))
    eventually(lambda: sender._outage._failures >= 2)
    sender.ring.put(sample(2))
    assert sender.flush()
    captured = capsys.readouterr().err
    assert captured.count("\n") == 1
    assert words in captured
    assert "keeping samples" in captured
    collector.mode = "ok"
    eventually(lambda: collector.steps == [1, 2])
    eventually(lambda: waiting(tmp_path) == 0)


def test_a_wrong_address_is_reported(start, collector, capsys):
    sender = start(collector.url + "/elsewhere")
    eventually(lambda: sender._outage.on)
    assert "no such page (is it a vramscope server?)" in capsys.readouterr().err


def test_a_busy_server_gets_its_time_silently(start, collector, capsys):
    collector.mode = "busy"
    sender = start(collector)
    sender.ring.put(sample(1))
    eventually(lambda: collector.posts == 1)
    collector.mode = "ok"
    started = time.monotonic()
    eventually(lambda: collector.steps == [1])
    assert time.monotonic() - started > 0.7
    assert capsys.readouterr().err == ""


def test_a_batch_that_is_too_large_is_split(start, collector):
    collector.mode = "small"
    sender = start(collector, flush_ms=100)
    for step in range(1000):
        sender.ring.put(sample(step))
    assert sender.flush(10)
    eventually(lambda: len(collector.steps) == 1000)
    assert sorted(collector.steps) == list(range(1000))
    assert len(collector.batches) > 8


@pytest.mark.parametrize("status", [300, 302, 308, *range(400, 419), *range(421, 432), 451, *range(500, 512)])
def test_only_a_vramscope_server_rejects_a_batch_for_good(collector, status):
    """Whatever a proxy answers may be different tomorrow."""
    collector.mode, collector.proxy_status = "proxy", status
    connection = ServerConnection(collector.url, None, connect_timeout_s=5, read_timeout_s=5)
    answer = connection.post(b"a batch").to_single_row()
    connection.close()
    assert answer.outcome in ("busy", "refused")
    assert ("credentials" if status == 407 else str(status)) in answer.text


def test_a_batch_that_a_proxy_finds_too_large_is_split_and_its_rows_are_kept(start, collector, tmp_path):
    collector.mode, collector.proxy_status = "proxy", 413
    sender = start(collector)
    for step in range(5):
        sender.ring.put(sample(step))
    sender.flush()
    eventually(lambda: sender._outage.on)
    assert not list(tmp_path.glob("spool/*/refused/*"))
    collector.mode = "ok"
    eventually(lambda: sorted(collector.steps) == list(range(5)))
    eventually(lambda: waiting(tmp_path) == 0)


def test_a_connection_that_is_made_after_the_deadline_is_ended_too():
    deadline, began = Deadline(), time.monotonic()
    ours, peer = socket.socketpair()
    with ours, peer, deadline.within(0.2):
        time.sleep(1.0)  # (as long as a name takes, say)
        deadline.socket = ours
        assert ours.recv(1) == b""
    deadline.close()
    assert deadline.has_passed and time.monotonic() - began < 5


def test_the_thread_of_the_deadline_ends_with_its_connection(start, collector):
    def running() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name == "vramscope-deadline"}

    others = running()  # (threads of the tests before may be about to end)
    sender = start(collector)
    sender.flush()
    assert len(running() - others) == 1
    sender.close()
    eventually(lambda: not running() - others)


def test_a_bad_batch_is_set_aside_and_the_rest_is_sent(start, collector, tmp_path, capsys):
    collector.mode = "picky"
    sender = start(collector)
    sender.flush()
    sender.ring.put(messages.Event(time_ns=1, kind="poison"))
    sender.ring.put(sample(1))
    sender.flush()
    sender.ring.put(sample(2))
    sender.flush()
    assert collector.steps == [2]
    assert "an event that cannot be: messages[0].kind: saw 'poison'" in capsys.readouterr().err
    sender.close()
    refused = list((tmp_path / "spool" / SESSION / "refused").iterdir())
    assert len(refused) == 2
    assert waiting(tmp_path) == 0


def test_a_bad_batch_that_waited_does_not_block_the_others(start, tmp_path):
    port = free_port()
    sender = start(f"http://127.0.0.1:{port}")
    sender.flush()
    sender.ring.put(messages.Event(time_ns=1, kind="poison"))
    sender.flush()
    sender.ring.put(sample(2))
    sender.flush()
    with Collector(port) as collector:
        collector.mode = "picky"
        eventually(lambda: collector.steps == [2])
        eventually(lambda: waiting(tmp_path) == 0)


def test_too_many_refused_batches_are_reported_as_lost(start, collector, tmp_path, capsys):
    collector.mode = "picky"
    sender = start(collector)
    for number in range(20):
        sender.ring.put(messages.Event(time_ns=1 + number, kind="poison"))
        sender.flush()
    assert f"{tmp_path / 'spool'} takes no more refused batches: they are lost" in capsys.readouterr().err


# --- deadlines ----------------------------------------------------------------------------------------------------


def test_a_hung_server_delays_the_end_by_the_deadline_at_most(start, collector, tmp_path):
    sender = start(collector, read_timeout_s=60)
    eventually(lambda: collector.batches)
    collector.mode = "hang"
    for step in range(10):
        sender.ring.put(sample(step))
    eventually(lambda: collector.posts == 2)
    sender.ring.put(messages.Ended(time_ns=1, state="finished"))
    started = time.monotonic()
    assert not sender.close(0.5)
    assert time.monotonic() - started < 1.5
    # What it had in hand and what came after lie on disk; a later sync finds both.
    assert waiting(tmp_path) == 2


def test_a_hung_server_never_makes_the_training_wait(start, collector):
    collector.mode = "hang"
    sender = start(collector, read_timeout_s=60)
    eventually(lambda: collector.posts)
    waits_s = []
    for step in range(2000):
        before = time.perf_counter()
        sender.ring.put(sample(step))
        waits_s.append(time.perf_counter() - before)
    assert sorted(waits_s)[1980] < 0.005  # a put takes 2 µs; the slowest ones are those of a busy machine
    sender.close(0.1)


def test_an_abandoned_thread_changes_nothing_afterwards(start, collector, tmp_path):
    sender = start(collector, read_timeout_s=60)
    eventually(lambda: collector.batches)
    collector.mode = "hang"
    sender.ring.put(sample(1))
    eventually(lambda: collector.posts == 2)
    thread = sender._thread
    sender.close(0.1)
    before = waiting(tmp_path)
    collector._let_go.set()
    thread.join(5)
    assert not thread.is_alive()
    assert waiting(tmp_path) == before == 1


def test_closing_without_a_server_is_quick_and_spools_all(start, tmp_path, capsys):
    sender = start(f"http://127.0.0.1:{free_port()}")
    sender.ring.put(sample(1))
    started = time.monotonic()
    assert not sender.close()
    assert time.monotonic() - started < 1.5
    assert waiting(tmp_path) >= 1
    assert "`vramscope sync` sends it" in capsys.readouterr().err


def test_closing_on_a_full_disk_reports_the_loss(start, small_disk, capsys):
    disk = small_disk(8)
    disk.fill()
    sender = start(f"http://127.0.0.1:{free_port()}", spool_dir=disk.path / "spool")
    for step in range(7):
        sender.ring.put(sample(step))
    assert not sender.close()
    captured = capsys.readouterr().err
    assert f"the last 7 rows are lost: no server, and {disk.path / 'spool'} cannot take more" in captured
    assert "sends it" not in captured


def test_closing_with_a_slow_server_spools_the_rest(start, collector, tmp_path, monkeypatch):
    monkeypatch.setattr("vramscope.transport.batch_packer.BATCH_BYTES", 2000)
    sender = start(collector, read_timeout_s=5, flush_ms=5000)
    eventually(lambda: sender._thread is not None)
    for step in range(40):
        sender.ring.put(sample(step))
    collector.mode = "slow"
    started = time.monotonic()
    assert not sender.close(1.2)
    assert time.monotonic() - started < 2.0
    sent, kept = len(collector.steps), sum(k.rows for f in session_folders(tmp_path / "spool") for k in f.batches())
    assert sent + kept >= 40
    assert sent > 0
    assert kept > 0


def test_a_flush_ends_at_its_deadline(start, collector):
    sender = start(collector, read_timeout_s=60)
    eventually(lambda: collector.batches)
    collector.mode = "hang"
    sender.ring.put(sample(1))
    started = time.monotonic()
    assert not sender.flush(0.2)
    assert time.monotonic() - started < 1.0
    sender.close(0.1)
    assert not sender.flush(0.2)


def test_closed_twice_is_closed(start, collector):
    sender = start(collector)
    sender.close()
    started = time.monotonic()
    sender.close()
    assert time.monotonic() - started < 0.2


def test_a_sender_that_never_started_spools_its_messages(tmp_path):
    settings = Settings.from_environment({}, spool_dir=tmp_path / "spool")
    ring = Ring()
    spool = Spool(settings.spool_dir, settings.spool_bytes)
    sender = Sender(settings, session=SESSION, run=RUN, rank=0, first_message=attached, ring=ring, spool=spool)
    ring.put(sample(1))
    sender.close()
    assert waiting(tmp_path) == 1


# --- faults of ours -----------------------------------------------------------------------------------------------


def test_a_fault_inside_does_not_end_the_thread(start, collector, monkeypatch):
    monkeypatch.setattr(guard, "raise_faults", False)
    answers = iter([ZeroDivisionError(), ZeroDivisionError(), attached()])

    def first_message() -> messages.Attached:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    sender = start(collector, first_message=first_message)
    sender.ring.put(sample(1))
    eventually(lambda: collector.steps == [1])
    assert guard.faults_by_part()["sending"] == 2
    guard.reset()


def test_the_thread_is_a_daemon_with_a_name(start, collector):
    others = set(threading.enumerate())
    start(collector)
    [thread] = [t for t in threading.enumerate() if t.name == "vramscope-sender" and t not in others]
    assert thread.daemon


def test_a_full_spool_is_counted_as_dropped_rows(start, tmp_path):
    sender = start(f"http://127.0.0.1:{free_port()}", spool_bytes=MIB)
    for step in range(0, 200_000, 20_000):
        sender.ring.put(sample(*range(step, step + 20_000)))
        assert sender.flush()
    assert sender.dropped_rows >= 100_000
    assert not sender.close(0.2)


def test_urgent_batches_do_not_wait_for_slow_facts(start, collector, tmp_path):
    """Memory may run out in the first milliseconds: the training's thread must not be the one that asks git."""
    asked_by: list[str] = []
    go_on = threading.Event()

    def look_up_slow_facts() -> None:
        asked_by.append(threading.current_thread().name)
        go_on.wait(30)

    sender = start(collector, look_up_slow_facts=look_up_slow_facts)
    try:
        assert sender.keep_now([messages.Event(time_ns=1, kind="out_of_memory", data={})])
        assert waiting(tmp_path) == 1
    finally:
        go_on.set()
    assert sender.flush(30)
    assert set(asked_by) <= {"vramscope-sender"}
    kinds = [type(message).__name__ for batch in collector.batches for message in batch.messages]
    assert kinds.count("Event") == 1 and kinds[0] == "Attached"
