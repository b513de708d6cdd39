"""A fault of the agent never reaches the training, and is reported once."""

from __future__ import annotations

import ast
import gc
import io
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

import pytest

from vramscope.guard import FAULTS_UNTIL_OFF, Guard, first_line, guard, guarded
from vramscope.process import terminal

AGENT = Path(__file__).parents[2] / "agent" / "vramscope"


@pytest.fixture(autouse=True)
def as_at_the_users():
    """Here faults are contained, as they are at the user's; everywhere else in our tests they are loud."""
    before = guard.raise_faults
    guard.raise_faults = False
    guard.reset()
    terminal.forget_printed()
    yield
    guard.raise_faults = before
    guard.reset()
    terminal.forget_printed()


def fail(kind: type[BaseException] = ZeroDivisionError) -> int:
    raise kind("our mistake")


def test_a_guarded_function_returns_its_default_on_errors():
    assert guarded("a hook")(fail)() is None
    assert guarded("a count", -1)(fail)() == -1
    assert guard.faults == 2
    assert guard.faults_by_part() == {"a hook": 1, "a count": 1}


def test_a_guarded_function_is_otherwise_what_it_was():
    @guarded("adding")
    def add(a: int, *, b: int = 2) -> int:
        """Adds."""
        return a + b

    assert add(1) == 3
    assert add(1, b=5) == 6
    assert (add.__name__, add.__doc__) == ("add", "Adds.")


def test_a_guarded_block_swallows_the_exception_and_what_follows_runs():
    with guarded("a block"):
        fail()
    assert guard.faults_by_part() == {"a block": 1}


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_keyboard_interrupt_and_exit_pass(kind):
    with pytest.raises(kind):
        guarded("a hook")(fail)(kind)
    with pytest.raises(kind), guarded("a block"):
        fail(kind)
    assert guard.faults == 0


class Handlers:
    def method(self, *_: object) -> None:
        raise TimeoutError("the user's limit")

    __call__ = method


def of_a_function(*_: object) -> None:
    Handlers().method()


@pytest.mark.parametrize(
    "handler", [of_a_function, Handlers().method, Handlers()], ids=["function", "method", "object"]
)
def test_errors_of_the_users_signal_handlers_pass(handler):
    """A time limit, or the end of a job, whose signal arrives while a hook of the agent runs."""
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(TimeoutError):
            guarded("a hook")(signal.raise_signal)(signal.SIGUSR1)
        with pytest.raises(TimeoutError), guarded("a block"):
            signal.raise_signal(signal.SIGUSR1)
        assert guard.faults == 0
        assert guarded("a hook", 7)(fail)() == 7, "and a fault of ours is contained as ever"
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_guarded_signal_handler_does_not_let_faults_pass():
    """``signal.signal(SIGUSR1, session.profile)``: its wrapper's code is that of everything that is guarded."""
    before = signal.signal(signal.SIGUSR1, guarded("a handler")(fail))
    try:
        guarded("a hook")(fail)()
        signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert guard.faults == 2


def test_a_kind_of_fault_is_reported_once_and_then_counted(caplog):
    hook = guarded("the step hook")(fail)
    with caplog.at_level(logging.DEBUG, logger="vramscope"):
        for _ in range(3):
            hook()
        hook(ValueError)
    seen = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(seen) == 2
    assert "the step hook failed inside (ZeroDivisionError: our mistake)" in seen[0]
    assert "Your training continues" in seen[0]
    traces = [record.getMessage() for record in caplog.records if record.levelno == logging.DEBUG]
    assert "in fail" in traces[0]


def test_a_part_that_fails_repeatedly_is_switched_off(caplog):
    calls = []

    @guarded("a hook", "default")
    def hook():
        calls.append(1)
        fail()

    results = [hook() for _ in range(FAULTS_UNTIL_OFF + 5)]
    assert len(calls) == FAULTS_UNTIL_OFF
    assert set(results) == {"default"}
    assert "switched off" in caplog.text


def test_the_guard_works_when_the_users_logging_fails():
    class Broken(logging.Handler):
        def emit(self, record):
            raise OSError("the log's disk is full")

    handler = Broken()
    logging.getLogger("vramscope").addHandler(handler)
    try:
        assert guarded("a hook", 7)(fail)() == 7
    finally:
        logging.getLogger("vramscope").removeHandler(handler)


def test_an_exception_whose_text_cannot_be_made_is_contained_too():
    class Unspeakable(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    assert guarded("a hook", 7)(lambda: (_ for _ in ()).throw(Unspeakable()))() == 7


def test_tests_see_every_fault():
    guard.raise_faults = True
    with pytest.raises(ZeroDivisionError):
        guarded("a hook")(fail)()
    with pytest.raises(ZeroDivisionError), guarded("a block"):
        fail()


def test_a_fault_retains_nothing_of_the_training():
    class Tensor:
        pass

    held: list[weakref.ref[Tensor]] = []

    @guarded("a hook")
    def hook() -> None:
        tensor = Tensor()
        held.append(weakref.ref(tensor))
        fail()

    gc.disable()  # reference counts alone must do
    try:
        hook()
        assert held[0]() is None
    finally:
        gc.enable()


def test_the_first_line_of_an_exception_is_short():
    assert first_line(ValueError("one\ntwo")) == "one"
    assert first_line(ValueError()) == "no message"
    assert len(first_line(ValueError("x" * 1000))) == 200
    reported = "Tried to allocate " * 20
    cut = first_line(ValueError(reported))
    assert cut.endswith("…") and reported.startswith(f"{cut[:-1]} ") and 180 < len(cut) <= 200, "no word is cut in two"
    assert len(first_line(OSError("cannot open: " + "x" * 300))) == 200, "but for a very long one"


def test_the_decorator_costs_next_to_nothing():
    def nothing() -> None:
        pass

    watched = guarded("nothing")(nothing)

    def seconds(function) -> float:
        best = 1.0
        for _ in range(20):
            start = time.perf_counter()
            for _ in range(5000):
                function()
            best = min(best, time.perf_counter() - start)
        return best / 5000

    added_us = min((seconds(watched) - seconds(nothing)) * 1e6 for _ in range(3))
    assert added_us < 0.3  # 0.08 on a quiet machine


def test_no_other_file_catches_every_exception():
    for path in AGENT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ExceptHandler) or path.name == "guard.py":
                continue
            caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
            names = {name.id for name in caught if isinstance(name, ast.Name)}
            assert node.type is not None and not names & {"Exception", "BaseException"}, f"{path}:{node.lineno}"


def test_a_second_guard_counts_for_itself():
    other = Guard()
    assert other.part("x") is other.part("x")
    assert guard.part("x") is not other.part("x")


# --- what is said on the terminal ---------------------------------------------------------------------------------


def test_a_line_is_printed_once_on_stderr(capsys):
    terminal.say("hello\nthere")
    terminal.say_once("news", "one")
    terminal.say_once("news", "two")
    assert capsys.readouterr().err == "vramscope: hello there\nvramscope: one\n"


def test_foreign_names_send_no_control_characters_to_the_terminal(capsys):
    terminal.say("Pid 7 (\x1b]0;title\x07a\u202eb, user \udcff) uses 5 %…")
    assert capsys.readouterr().err == "vramscope: Pid 7 (\\x1b]0;title\\x07a\\u202eb, user \\udcff) uses 5 %…\n"


def test_only_the_first_rank_of_a_host_prints(capsys, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "3")
    terminal.say_once("a", "for all")
    terminal.say_once("b", "for me", every_rank=True)
    assert capsys.readouterr().err == "vramscope: for me\n"


def test_quiet_is_quiet(capsys, monkeypatch):
    monkeypatch.setenv("VRAMSCOPE_QUIET", "1")
    terminal.say("hello")
    assert capsys.readouterr().err == ""


class Broken(io.StringIO):
    def write(self, _text: str) -> int:
        raise OSError("no space left on device")


@pytest.mark.parametrize("stream", [None, Broken(), object()])
def test_a_missing_terminal_is_harmless(stream, monkeypatch):
    monkeypatch.setattr(sys, "stderr", stream)
    terminal.say("hello")


def test_a_closed_stderr_is_harmless():
    code = "import sys; sys.stderr.close(); from vramscope.process import terminal; terminal.say('x'); print('went on')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "went on\n"


def test_many_threads_print_a_line_once(capsys):
    start = threading.Barrier(8)

    def speak() -> None:
        start.wait()
        terminal.say_once("same", "news")

    threads = [threading.Thread(target=speak) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert capsys.readouterr().err.count("news") == 1


def test_a_forked_child_counts_its_own_faults():
    guarded("a hook")(fail)()
    child = os.fork()
    if child == 0:
        os._exit(guard.faults)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert guard.faults == 1
