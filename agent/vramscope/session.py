"""The session: the object that :func:`vramscope.agent.attach` returns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType

from vramscope.guard import guarded
from vramscope.process.exit_code import failure_of
from vramscope.protocol import messages, series
from vramscope.session_parts import SessionParts
from vramscope.steps.phase import BACKWARD, FORWARD, OPTIMIZER

IN_A_STEP = (FORWARD, BACKWARD, OPTIMIZER)


class Session(SessionParts):
    """Observation of one training by one process. Made by :func:`attach`; does nothing if attaching failed.

    No method raises, and none waits for the network, except :meth:`close`, for a few seconds at most.
    """

    @property
    def leaks(self) -> Sequence[messages.Leak]:
        """Findings of the newest scan, notes included."""
        return self._leaks

    def count_start(self, nanoseconds: int) -> None:
        """Count the time of import and attach to what the agent may take in the first steps."""
        if self.live:
            self._clock.count_start(nanoseconds)

    @property
    def ended_steps(self) -> int:
        """Optimizer steps that have ended."""
        return self._clock.step if self._clock is not None else 0

    @guarded("the end of a step")
    def step(self) -> None:
        """Mark the end of an optimizer step, in a loop without a torch optimizer (a replayed CUDA graph, say)."""
        if self.live:
            self._hooks.interrupt_plain_steps()
            self._clock.end_step()

    @guarded("the logged numbers")
    def log(self, **numbers: float) -> None:
        """Record numbers by name: ``session.log(loss=loss.item(), accuracy=0.9)``.

        They belong to the running optimizer step once its forward pass has begun, else to the last step. ``loss`` is shown as
        the loss. Pass Python numbers: a GPU tensor would have to be waited for.
        """
        if self.live:
            in_step = self._clock.phase in IN_A_STEP or self._clock.micro_steps > 0
            running = self._hooks.loss.forward_began if self._hooks.loss is not None else in_step
            self._reported.add(max(1, self._clock.step + running), numbers)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Set the phase of a block, where the hooks cannot know it: ``with session.phase("eval"):``.

        The earlier phase returns when the block ends, also by an exception.

        name   One of ``other``, ``data``, ``forward``, ``backward``, ``optimizer``, ``eval``. Any other name is reported once
               and ignored.
        """
        if self.live:
            self._hooks.interrupt_plain_steps()
        before = self._clock.phase if self.live else None
        with guarded("the phase"):
            if self.live:
                self._clock.enter(series.PHASES.index(name))
        try:
            yield
        finally:
            with guarded("the phase"):
                if self.live and before is not None:
                    self._clock.enter(before)

    @guarded("the profile")
    def profile(self, *, trace: bool = False) -> None:
        """Profile the next two steps, as the page's button does.

        trace   Keep PyTorch's whole trace too, for Perfetto.
        """
        if self.live and self._profiler is not None:
            self._profiler.ask(trace=trace)

    @guarded("the checkpoint")
    def checkpoint(self, *, loaded: bool = False) -> None:
        """Record that a checkpoint is saved after the last step. The first 100 are events of the run.

        loaded   It was loaded instead.
        """
        if self.live:
            report = self._reported.loaded_checkpoint if loaded else self._reported.checkpoint
            report(self._clock.step)

    def close(self) -> None:
        """End the session. Waits at most VRAMSCOPE_CLOSE_TIMEOUT_S seconds for data that are not sent yet."""
        self.end()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: object, fault: BaseException | None, frames: TracebackType | None) -> None:
        """End the session with a ``with`` block: as failed if an exception leaves it, else as finished."""
        with guarded("the end of the session"):
            failure = None if fault is None else failure_of(fault)
            if fault is not None and failure is not None:
                self.failing(fault)
            self.end(*(failure or (None, None)))
