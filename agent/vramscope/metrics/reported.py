"""Sends the loss of each step, the numbers that the user and the Trainer report by name, and the Trainer's checkpoints."""

from __future__ import annotations

import math
import re
import struct
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from vramscope.metrics.loss import LossWatch
from vramscope.process import terminal
from vramscope.protocol import messages, series
from vramscope.sampling.step_blocks import packed

MOST_WAITING: Final = 20_000
"""Maximum number of rows that wait to be sent."""
MOST_CHECKPOINTS: Final = 100
"""Maximum number of events about checkpoints."""
MOST_NAMES: Final = messages.MAX_SCALARS
MOST_RECENT: Final = 600
"""Maximum number of losses in an out-of-memory record."""
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]{0,63}")
_TAKEN: Final = ("time_ns", "step")


class Row(NamedTuple):
    """Numbers reported at one time. ``values``: name -> number."""

    time_ns: int
    step: int
    values: Mapping[str, float]


class ReportedNumbers:
    """Collects reported numbers and losses. ``add`` is called on the training thread, ``flush`` on the sampler's.

    loss     source of the losses; None if they are not read
    put      sends a message
    wall_ns  perf_counter_ns -> nanoseconds since 1970
    """

    def __init__(
        self, loss: LossWatch | None, put: Callable[[messages.BatchItem], None], wall_ns: Callable[[int], int]
    ) -> None:
        self._loss = loss
        self._put = put
        self._wall_ns = wall_ns
        self._rows: deque[Row] = deque(maxlen=MOST_WAITING)
        self._names: set[str] = set()
        self._checkpoints = self._loaded = 0
        self._checkpoint_step: int | None = None
        self._loaded_step: int | None = None
        self._recent: dict[str, deque[Row]] = {name: deque(maxlen=MOST_RECENT) for name in series.LOSSES}

    def add(self, step: int, numbers: Mapping[str, Any], *, asked: bool = True) -> None:
        """Add numbers by name. Values that are not Python numbers are left out.

        asked   True if the user called ``session.log``: a value that is left out is then reported once. False for the logs
                of a framework
        """
        named = ((name, self._number(name, given, asked=asked)) for name, given in numbers.items())
        values = {name: value for name, value in named if value is not None}
        if values:
            self._rows.append(Row(self._wall_ns(time.perf_counter_ns()), step, values))

    def checkpoint(self, step: int) -> None:
        """Send that a framework makes a checkpoint after this step. The first ones only, and one a step, whatever its files."""
        if step == self._checkpoint_step:
            return
        self._checkpoint_step = step
        self._checkpoints += 1
        if self._checkpoints <= MOST_CHECKPOINTS:
            time_ns = self._wall_ns(time.perf_counter_ns())
            self._put(messages.Event(time_ns=time_ns, kind="checkpoint", step=step))

    def loaded_checkpoint(self, step: int) -> None:
        """Send that a checkpoint is loaded after this step. The first ones only, and one a step."""
        if step == self._loaded_step:
            return
        self._loaded_step = step
        self._loaded += 1
        if self._loaded <= MOST_CHECKPOINTS:
            time_ns = self._wall_ns(time.perf_counter_ns())
            self._put(messages.Event(time_ns=time_ns, kind="checkpoint_loaded", step=step))

    def flush(self) -> None:
        """Send all collected numbers and losses."""
        if self._loss is not None:
            found = self._loss.take()
            if found:
                self._send([Row(self._wall_ns(at_ns), step, {"backward_loss": loss}) for step, at_ns, loss in found])
        rows = [self._rows.popleft() for _ in range(len(self._rows))]
        if rows:
            self._send(rows)

    def losses(self, since_ns: int) -> dict[str, bytes]:
        """Return columns of the reported loss since a time, sent or not; empty if none was reported. On any thread."""
        waiting = list(self._rows)
        for name, kept in self._recent.items():
            known = [row for row in (*list(kept), *waiting) if name in row.values and row.time_ns >= since_ns]
            if known:
                return {
                    "time_ns": packed([row.time_ns for row in known]),
                    "step": packed([row.step for row in known]),
                    name: _doubles([row.values[name] for row in known]),
                }
        return {}

    def _send(self, rows: list[Row]) -> None:
        for name, kept in self._recent.items():
            kept.extend(row for row in rows if name in row.values)
        names = dict.fromkeys(name for row in rows for name in row.values)
        self._put(
            messages.Scalars(
                rows=len(rows),
                time_ns=packed([row.time_ns for row in rows]),
                step=packed([row.step for row in rows]),
                columns={name: _doubles([row.values.get(name) for row in rows]) for name in names},
            )
        )

    def _number(self, name: str, given: Any, *, asked: bool) -> float | None:
        if name not in self._names and not self._is_name(name, asked=asked):
            return None
        try:
            # float() of a tensor on a GPU would wait for the GPU, so only tensors on the CPU are converted.
            if isinstance(given, str | bytes) or getattr(getattr(given, "device", None), "type", "cpu") != "cpu":
                raise TypeError
            return float(given)
        except (TypeError, ValueError, OverflowError, RuntimeError):
            if not asked:
                return None
            terminal.say_once(
                f"not a number {name}",
                f"session.log({name}=..) was given {_what(given)}; it takes Python numbers, and never waits for a GPU. "
                "Pass .item() where your loop calls it anyway. vramscope reads the loss by itself.",
            )
            return None

    def _is_name(self, name: str, *, asked: bool) -> bool:
        is_full = len(self._names) >= MOST_NAMES
        wrong = (
            "this name is taken" if name in _TAKEN
            else "a name is 1 to 64 of A-Z a-z 0-9 _ . / -, and begins with a letter" if not _NAME.fullmatch(name)
            else f"the maximum is {MOST_NAMES} names" if is_full
            else None
        )  # fmt: skip
        if wrong is None:
            self._names.add(name)
        elif asked:
            once = "too many names" if is_full else f"name {name[:64]}"
            terminal.say_once(once, f"session.log left {name[:64]!r} out: {wrong}.")
        return wrong is None


def _what(given: Any) -> str:
    device = getattr(given, "device", None)
    return f"a {type(given).__name__}" + ("" if device is None else f" on {device}")


def _doubles(values: list[float | None]) -> bytes:
    """Encode values as little-endian doubles. None becomes ABSENT."""
    # All NaNs get the same bits, because the bits of another NaN mean ABSENT.
    plain = (math.nan if value != value else value for value in values)
    return b"".join(series.ABSENT if value is None else struct.pack("<d", value) for value in plain)
