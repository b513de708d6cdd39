"""The ring never grows beyond its bound, never loses count, and never makes anybody wait."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import weakref

from collector import sample
from hypothesis import given
from hypothesis import strategies as st

from vramscope.protocol import messages as wire_messages
from vramscope.transport.ring import Ring, WakeSignal, size_bytes

EVENT = wire_messages.Event(time_ns=1, kind="notice")


def steps_of(messages: list[wire_messages.Message]) -> list[int]:
    return [int.from_bytes(m.columns["step"][:8], "little") for m in messages if isinstance(m, wire_messages.Block)]


def test_messages_are_taken_in_order():
    ring = Ring()
    for step in range(5):
        ring.put(sample(step))
    assert len(ring) == 5
    assert steps_of(ring.take(1_000_000)) == [0, 1, 2, 3, 4]
    assert ring.take(1_000_000) == []
    assert (len(ring), ring.kept_bytes) == (0, 0)


def test_a_full_ring_drops_the_oldest_and_counts_its_rows():
    ring = Ring(max_bytes=3 * size_bytes(sample(0, 1)))
    for step in range(0, 10, 2):
        ring.put(sample(step, step + 1))
    assert steps_of(ring.take(1_000_000)) == [4, 6, 8]
    assert (ring.dropped_messages, ring.dropped_rows) == (2, 4)


def test_a_message_larger_than_the_ring_is_dropped_by_itself():
    ring = Ring(max_bytes=100)
    ring.put(sample(*range(1000)))
    assert (len(ring), ring.kept_bytes, ring.dropped_rows) == (0, 0, 1000)


def test_take_returns_at_least_one_message():
    ring = Ring()
    ring.put(sample(*range(1000)))
    ring.put(sample(1))
    assert len(ring.take(1)) == 1


actions = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(1, 40)),
        st.tuples(st.just("event"), st.just(0)),
        st.tuples(st.just("take"), st.integers(0, 5000)),
    ),
    max_size=60,
)


@given(max_bytes=st.integers(500, 8000), max_messages=st.integers(1, 12), actions=actions)
def test_size_is_bounded_and_every_message_is_counted(max_bytes, max_messages, actions):
    ring = Ring(max_bytes=max_bytes, max_messages=max_messages)
    put_messages, put_rows, taken = 0, 0, []
    for action, number in actions:
        if action == "take":
            taken += ring.take(number)
        else:
            message = sample(*range(put_rows, put_rows + number)) if action == "put" else EVENT
            ring.put(message)
            put_messages += 1
            put_rows += number
        assert ring.kept_bytes <= max_bytes
        assert len(ring) <= max_messages
        assert ring.taken_messages + ring.dropped_messages + len(ring) == ring.put_messages == put_messages
        assert ring.taken_messages == len(taken)
    taken += ring.take(10**9)
    assert ring.kept_bytes == 0
    assert steps_of(taken) == sorted(steps_of(taken))
    assert sum(m.rows for m in taken if isinstance(m, wire_messages.Block)) + ring.dropped_rows == put_rows


def test_many_producers_and_one_consumer_count_every_loss():
    ring = Ring(max_bytes=20_000)
    taken: list[wire_messages.Message] = []
    done = threading.Event()

    def produce() -> None:
        for step in range(3000):
            ring.put(sample(step))

    def consume() -> None:
        while not done.is_set():
            taken.extend(ring.take(5000))

    producers = [threading.Thread(target=produce) for _ in range(4)]
    consumer = threading.Thread(target=consume)
    for thread in [*producers, consumer]:
        thread.start()
    for thread in producers:
        thread.join()
    done.set()
    consumer.join()
    taken += ring.take(10**9)
    assert ring.put_messages == 12_000
    assert len(taken) + ring.dropped_messages == 12_000
    assert ring.kept_bytes == 0


def test_putting_never_waits_while_another_thread_holds_the_lock():
    ring = Ring()
    ring._lock.acquire()  # as a thread that was interrupted in the middle of take
    start = time.monotonic()
    ring.put(sample(1))
    assert time.monotonic() - start < 0.5
    ring._lock.release()
    assert len(ring.take(1000)) == 1


def test_a_garbage_collection_inside_put_may_put_again():
    ring = Ring()

    class Leaf:
        pass

    puts = 0

    def on_collected(_: object) -> None:
        nonlocal puts
        puts += 1
        ring.put(EVENT)

    references = []
    before = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for step in range(2000):
            leaf = Leaf()
            leaf.itself = leaf  # type: ignore[attr-defined]
            references.append(weakref.ref(leaf, on_collected))
            del leaf
            ring.put(sample(step))
            if step % 50 == 0:
                ring.take(100_000)
    finally:
        gc.set_threshold(*before)
    assert puts > 100
    ring.take(10**9)
    assert ring.taken_messages + ring.dropped_messages + len(ring) == ring.put_messages


def test_a_signal_handler_may_put_and_take_at_any_time():
    ring = Ring()
    handled = 0

    def handler(*_: object) -> None:
        nonlocal handled
        handled += 1
        ring.put(EVENT)

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    try:
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            ring.put(sample(1))
            ring.take(1000)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert handled > 10
    ring.take(10**9)
    assert ring.taken_messages + ring.dropped_messages + len(ring) == ring.put_messages


def test_setting_the_wake_signal_twice_wakes_one_waiter_once():
    signal = WakeSignal()
    assert not signal.wait(0.0)
    signal.set()
    signal.set()
    assert signal.wait(0.0)
    assert not signal.wait(0.01)
    threading.Timer(0.05, signal.set).start()
    assert signal.wait(5.0)


def test_a_ring_that_is_half_full_wakes_the_sender():
    ring = Ring(max_bytes=4 * size_bytes(sample(0)))
    ring.put(sample(0))
    assert not ring.wake.wait(0.0)
    ring.put(sample(1))
    assert ring.wake.wait(0.0)


def test_in_a_forked_child_the_ring_is_empty_and_stays_so():
    ring = Ring()
    ring.put(sample(1))
    child = os.fork()
    if child == 0:
        ring.put(sample(2))  # nobody told it of the fork: the pid tells
        silent = ring.put_messages == 1
        ring.after_fork_in_child()
        ring.put(sample(3))
        os._exit(0 if silent and len(ring) == 0 and ring.take(1000) == [] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(ring) == 1
