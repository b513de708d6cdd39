"""The one line: ``from vramscope import agent; agent.attach(trainer)``.

This file reads as the table of contents: what a session is made of, in the order in which it starts and ends.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vramscope import console, identity, redaction, wire
from vramscope.graphs.watch import GraphWatch
from vramscope.guard import guarded
from vramscope.lifecycle import Lifecycle
from vramscope.memory.categories import Categories
from vramscope.ring import Ring
from vramscope.sampler import Sampler
from vramscope.sender import Sender
from vramscope.settings import Settings
from vramscope.spool import Spool
from vramscope.steps import accelerate, huggingface, lightning, loop
from vramscope.steps.clock import StepClock
from vramscope.steps.loop import LoopHooks
from vramscope.trace.recorder import Recorder

ACCEPTED = (
    "a transformers Trainer, a lightning Trainer, an accelerate Accelerator, "
    "a torch.nn.Module, a torch optimizer, or nothing"
)
SAID_OF = {
    "growing": "keeps the autograd graphs of earlier steps alive, more from step to step",
    "growing-eval": "keeps graphs that no backward will ever walk, more from batch to batch",
    "overlap": "still holds the last step's result while the next graph is built",
    "overlap-unfreed": "still holds activations of the last step while the next graph is built",
    "no_grad-missing": "holds a graph that no backward will ever walk",
    "cycle": "holds tensors in a reference cycle until the garbage collector comes by",
    "tensor-growth": "keeps more tensors from step to step",
}
"""how the console words each of wire.LEAK_KINDS"""
FRAMEWORKS = (huggingface, lightning, accelerate, loop)
"""asked in this order whether a target is theirs; each has ``connect(target, hooks) -> Connection | None``"""


def attach(
    target: object = None,
    *,
    server: str | None = None,
    project: str | None = None,
    name: str | None = None,
    tags: Sequence[str] | None = None,
    config: Mapping[str, Any] | None = None,
    interval_ms: int | None = None,
    phases: bool | None = None,
    leaks: bool | None = None,
    windows: bool | None = None,
    run_id: str | None = None,
    resume: bool | None = None,
    token: str | None = None,
) -> Session:
    """Watch this process's training from now on, and send what is seen to the server.

    target       what trains: {accepted}. With nothing, or something unknown, the training is
                 found through PyTorch's global hooks.
    server       address of the server (VRAMSCOPE_SERVER, http://127.0.0.1:8265)
    project, name, tags, config   how the run is called and filed; secrets in ``config`` are hidden before they are sent
    interval_ms  milliseconds between two samples (100)
    phases       False: measure whole steps only, at a quarter of the cost
    leaks        False: do not look for graphs and tensors that outlive their step
    windows      False: do not record windows of allocator history
    run_id, resume   go on with an existing run

    Never raises and never waits for the network. Attached twice: without a target the session that runs is given back;
    with one, a session that was begun without (by ``vramscope run``, say) takes it over, any other ends and a new run
    begins.
    """
    given = {
        "server": server,
        "project": project,
        "run_name": name,
        "tags": tags,
        "interval_ms": interval_ms,
        "phases": phases,
        "leaks": leaks,
        "windows": windows,
        "run_id": run_id,
        "resume": resume,
        "token": token,
    }
    session = _live
    if session is not None and session.live:
        if name is None and run_id is None and (target is None or session.waits_for_target):
            session.adopt(target, config)
            return session
        detach()
    return _start(target, given, config)


if attach.__doc__:
    attach.__doc__ = attach.__doc__.replace("{accepted}", ACCEPTED)


def detach() -> None:
    """End the session that runs, as finished; nothing happens where none runs."""
    if _live is not None:
        _live.close()


_live: Session | None = None


def _start(target: object, given: dict[str, Any], config: Mapping[str, Any] | None) -> Session:
    global _live
    session = Session()
    with guarded("attach"):
        try:
            settings = Settings.from_environment(**given)
        except ValueError as wrong:
            console.say(f"not attached. {wrong}. Your training goes on unwatched.")
            return session
        if settings.disabled:
            return session
        if "torch" not in sys.modules:
            import torch  # noqa: F401 - whoever attaches is about to use it; a missing torch is told by the guard
        session._open(target, settings, config)
        _live = session
    return session


class Session:
    """One process's watch over one training. Made by :func:`attach`; inert where attaching was not possible."""

    def __init__(self) -> None:
        self.live = False
        self.waits_for_target = False
        """begun without a target: the first one that comes belongs to it"""
        self.run_id = ""
        self.url = ""
        self._devices: tuple[int, ...] = ()
        self._failed: tuple[str, str] | None = None
        self._recorder: Recorder | None = None

    def _open(self, target: object, settings: Settings, config: Mapping[str, Any] | None) -> None:
        self._settings = settings
        self._where = identity.place()
        self.run_id = identity.run_id(settings.run_id, self._where)
        self.url = f"{settings.server}/runs/{self.run_id}"
        self._name = identity.run_name(settings.run_name)
        self._start_ns = time.time_ns()

        self._clock = StepClock(phases=settings.phases)
        self._hooks = LoopHooks(self._clock)
        self._ring = Ring()
        session_id = identity.fresh_id()
        self._sender = Sender(
            settings,
            session=session_id,
            run=self.run_id,
            rank=self._where.rank,
            first_message=self._hello,
            ring=self._ring,
            spool=Spool(settings.spool_dir, settings.spool_bytes),
            on_request=self._on_request,
        )
        self._sampler = Sampler(
            interval_ms=settings.interval_ms,
            clock=self._clock,
            ring=self._ring,
            on_devices=self._on_devices,
            others_cpu_seconds=lambda: self._sender.cpu_seconds,
        )
        self._lifecycle = Lifecycle(self)

        if settings.leaks:
            self._hooks.graphs = GraphWatch(self._clock, report=self._ring.put, tell=self._tell_leak)
        if settings.windows:
            self._recorder = Recorder(
                self._clock,
                self._ring,
                roots=self._hooks.roots,
                pace_s=settings.flush_ms / 1000,
                on_window=self._sampler.fragments.learn,
            )
        self._hooks.install()
        self.waits_for_target = target is None
        connection = self._connect(target)
        self._framework = connection.framework
        self._config = redaction.configuration({**connection.config, **(config or {})})
        if settings.phases:
            self._clock.anatomy = Categories(self._hooks.optimizers, self._hooks.roots, self._peak_of)
        self._sampler.start()
        if self._recorder is not None:
            self._recorder.begin()
        self._sender.start()
        self._lifecycle.begin()
        self.live = True
        console.say_once(f"attached {self.run_id}", f"watching run '{self._name}': {self.url}")

    @guarded("attach")
    def adopt(self, target: object, config: Mapping[str, Any] | None) -> None:
        """Learn what trains, or more of the user's configuration, in a session that runs already."""
        if target is None and not config:
            return
        if target is not None:
            self.waits_for_target = False
            connection = self._connect(target)
            self._framework = connection.framework
            self._config = {**self._config, **redaction.configuration(connection.config)}
        self._config = {**self._config, **redaction.configuration(config)}
        self._sender.attach_again()

    def _connect(self, target: object) -> loop.Connection:
        connection: loop.Connection | None
        for framework in FRAMEWORKS:
            connection = framework.connect(target, self._hooks)
            if connection is not None:
                connection.on_failure(self._note_failure)
                return connection
        console.say(
            f"attach was given {type(target).__module__}.{type(target).__qualname__}; it knows {ACCEPTED}. "
            "The training is watched all the same, through PyTorch's global hooks."
        )
        connection = loop.connect(None, self._hooks)
        assert connection is not None
        return connection

    # -- for the user --------------------------------------------------------------------------------------------------

    @guarded("the end of a step")
    def step(self) -> None:
        """Say that an optimizer step is done, in a loop that uses no torch optimizer (a CUDA graph's replay, say)."""
        if self.live:
            self._clock.end_step()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Say which phase runs (one of {phases}), where the hooks cannot know: ``with session.phase("eval"):``."""
        with guarded("the phase"):
            if self.live:
                before = self._clock.phase
                self._clock.enter(wire.PHASES.index(name))
        yield
        with guarded("the phase"):
            if self.live:
                self._clock.enter(before)

    if phase.__doc__:
        phase.__doc__ = phase.__doc__.replace("{phases}", ", ".join(wire.PHASES))

    def close(self) -> None:
        """End the session now; what is left to send gets at most a few seconds (VRAMSCOPE_CLOSE_TIMEOUT_S)."""
        self.end()

    # -- its end -------------------------------------------------------------------------------------------------------

    @guarded("the end of the session")
    def end(self, error_type: str | None = None, error_line: str | None = None) -> None:
        """Finished, or failed with an error's type and first line. Called again: nothing happens."""
        if not self.live:
            return
        self.live = False
        if error_type in (None, "SystemExit") and self._failed is not None:  # a framework may say why it left
            error_type, error_line = self._failed
        self._hooks.remove()
        if self._recorder is not None:
            self._recorder.close()
        self._lifecycle.release()
        self._sampler.stop()
        self._ring.put(
            wire.Ended(
                time_ns=time.time_ns(),
                state="finished" if error_type is None else "failed",
                error_type=error_type,
                error_line=None if error_line is None else redaction.without_secrets(error_line),
                dropped_samples=self._sender.dropped_rows + self._clock.lost_steps,
            )
        )
        self._sender.close(self._settings.close_timeout_s)

    def forget_in_child(self) -> None:
        """After a fork the child's copy is silent: the parent goes on to tell the story, and CUDA does not survive forks."""
        self.live = False
        self._ring.after_fork_in_child()
        self._sender.after_fork_in_child()
        if self._recorder is not None:
            self._recorder.after_fork_in_child()
        self._hooks.remove()

    def cell_failed(self, error_type: str, error_line: str, cell: int | None) -> None:
        """In a notebook: an error has ended a cell, and not the training."""
        said = redaction.without_secrets(error_line)
        told: dict[str, wire.Scalar] = {"error_type": error_type, "error_line": said, "cell": cell}
        self._ring.put(wire.Event(time_ns=time.time_ns(), kind="cell_error", step=self._clock.step, data=told))

    def _tell_leak(self, leak: wire.Leak) -> None:
        where = f" ({Path(leak.file).name}:{leak.line})" if leak.file and leak.line else ""
        console.say_once(
            f"leak {self.run_id}",
            f"{leak.holder}{where} {SAID_OF[leak.kind]}. {leak.advice[:1].upper()}{leak.advice[1:]}. {self.url}/leaks",
        )

    def _note_failure(self, error_type: str, error_line: str) -> None:
        self._failed = (error_type, error_line)

    # -- for its parts -------------------------------------------------------------------------------------------------

    def _on_devices(self, devices: tuple[int, ...]) -> None:
        self._devices = devices
        self._sender.attach_again()

    def _on_request(self, requests: list[str]) -> None:
        """What the server would like. On the sender's thread."""
        if wire.RECORD_WINDOW in requests and self._recorder is not None:
            self._recorder.ask()

    def _hello(self) -> wire.Attached:
        """Who trains here. On the sender's thread: it asks git, which takes some 10 ms."""
        script = Path(sys.argv[0]).parent if sys.argv and sys.argv[0] else Path()
        nvml = self._sampler.nvml
        return identity.attached(
            project=self._settings.project,
            name=self._name,
            tags=self._settings.tags,
            config=self._config,
            resumes=self._settings.resume,
            where=self._where,
            framework=self._framework,
            watched=self._devices,
            start_ns=self._start_ns,
            driver=None if nvml is None else nvml.driver,
            commit=identity.git_commit(script if script.is_dir() else Path()),
        )

    def _peak_of(self, device: int) -> int:
        for counter in self._clock.counters:
            if counter.device == device:
                return counter.peak_now()
        return 0
