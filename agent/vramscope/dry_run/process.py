"""One process of a dry run: it writes a report, and ends after the requested number of steps."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Final, NoReturn

from vramscope.dry_run import (
    collectives,
    generated_text,
    graph_capture,
    host_masks,
    largest_nonzero,
    number_types,
    object_collectives,
    one_rank,
    optimizers,
    result_sizes,
    routing,
    sequence_lengths,
    sparse_entries,
)
from vramscope.dry_run.changes import catalogue
from vramscope.dry_run.changes.change import Change
from vramscope.dry_run.changes.eight_bit_optimizer import installed_library
from vramscope.dry_run.ending_error import ending_error, write_report
from vramscope.dry_run.read_log import ReadLog
from vramscope.dry_run.work import WorkMeter
from vramscope.guard import guarded
from vramscope.process.identity import job_rank
from vramscope.protocol import assumed_value
from vramscope.protocol.assumed_value import AssumedValue
from vramscope.protocol.dry_run import (
    FEWEST_VARIABLE,
    FOLDER_VARIABLE,
    STEPS_VARIABLE,
    WORK_VARIABLE,
    ProcessReport,
)
from vramscope.steps.events import Order, StepListener
from vramscope.steps.records import StepRecord

END_SECONDS: Final = 60
"""Time for the program's own cleanup after the last step. Then its process is ended."""
MOST_TIMES_STEPS: Final = 8
"""Multiple of the requested steps up to which the program goes on if one of its optimizers steps rarely."""
STUCK_STATUS: Final = 3
"""Exit status of a process that waited for a value that an emulated device does not have."""


class DryRunProcess(StepListener):
    """Counts the steps of this process, watches its reads of the device, and writes its report."""

    order: ClassVar[Order] = Order.DRY_RUN

    def __init__(self, folder: Path, steps: int, assumed: Sequence[AssumedValue] = ()) -> None:
        self._folder = folder
        self._last = steps
        self._steps = 0
        self._is_ended = False
        self._was_in_side_stream = False
        """Whether the newest step ended in a side stream."""
        self._later_optimizers: Sequence[str] = ()
        """Those that the program would make after the newest step."""
        self._assumed = assumed
        self._log = ReadLog(assumed, selects_fewest=bool(os.environ.get(FEWEST_VARIABLE)))
        self._changes: list[Change] = []
        self._counts_work = bool(os.environ.get(WORK_VARIABLE))
        self._work = WorkMeter()

    def begin(self) -> None:
        """Watch from now on, and write the report when the process ends."""
        if self._log.watch(self._end_stuck):
            largest_nonzero.install(self._log.selected)
            host_masks.install()
            number_types.install()
            sparse_entries.install()
            result_sizes.install()
            sequence_lengths.install(self._log.lengths)
            generated_text.install(self._log.text_ends)
            optimizers.install()
            routing.install()
            graph_capture.install(self._replayed)
            object_collectives.install()
        self._changes = catalogue.install()
        guarded("the process groups of the dry run")(one_rank.install)()
        atexit.register(self._end)

    def step_ended(self, step: StepRecord) -> None:
        """End the program after its last step, as ``sys.exit()`` in its own code would."""
        self._steps += 1
        self._log.step_ended()
        self._count_work()
        guarded("the finished collectives")(collectives.wait_until_finished)()
        self._was_in_side_stream = graph_capture.is_in_side_stream()
        if self._steps < self._last:
            return
        self._later_optimizers = optimizers.later()
        waits = (
            not self._is_ended
            and self._steps < MOST_TIMES_STEPS * self._last
            and (self._was_in_side_stream or self._later_optimizers or optimizers.one_steps_rarely(self._last))
        )
        if waits:
            self.write(is_last=False)  # if the time ends before the optimizer steps, this is the answer
            return
        self._end_program()

    def _replayed(self) -> None:
        """End the program with the first replay of a captured step. A graph that is a part of a step does not end it."""
        if self._was_in_side_stream and self._steps >= self._last:
            self._end_program()

    def _end_program(self) -> NoReturn:
        if not self._is_ended:
            self._is_ended = True
            self._log.stop()  # what the program reads while it ends has no effect on the steps
            self.write()
            timer = threading.Timer(END_SECONDS, os._exit, [0])
            timer.daemon = True
            timer.start()
        raise SystemExit(0)

    def _count_work(self) -> None:
        """Count the operations of the last requested step, without the first: libraries are set up in it."""
        if self._counts_work and self._steps == self._last - 1:
            self._work.begin()
        elif self._steps == self._last:
            self._work.end()

    @guarded("the report of the dry run")
    def write(self, is_last: bool = True) -> None:
        """Write the report, unless this process did nothing on the device. The last one replaces those before."""
        reads = self._log.reads()
        error = ending_error()
        if not self._steps and not reads and not self._log.refused and error is None:
            return
        job = job_rank()
        report = ProcessReport(
            rank=job.rank,
            world_size=job.world_size,
            steps=self._steps,
            waits_at=self._log.waits_at,
            refused=self._log.refused,
            error=error,
            unstepped=[*optimizers.unstepped(), *self._later_optimizers],
            sparse_products=self._log.sparse_products,
            short_histories=optimizers.short_histories(),
            cudnn_plans=self._log.cudnn_plans,
            tries_algorithms=_tries_algorithms(),
            recurrent_calls=self._log.recurrent_calls,
            plain_recurrent_calls=self._log.plain_recurrent_calls,
            unread=self._log.unread,
            is_alone=one_rank.is_one_of_many(),
            reads=reads,
            has_eight_bit=installed_library() is not None,
            flops=None if self._log.recurrent_calls else self._work.flops,  # cuDNN's recurrent networks are not counted
            changes=[change.outcome() for change in self._changes] if is_last else [],
        )
        write_report(self._folder, report)

    def _end(self) -> None:
        self._log.stop()
        if not self._is_ended:  # by itself: nothing comes later
            self._later_optimizers = ()
        self.write()

    def _end_stuck(self) -> None:
        self.write()
        os._exit(STUCK_STATUS)


def _tries_algorithms() -> bool:
    from torch.backends import cudnn

    return bool(cudnn.benchmark)


_process: DryRunProcess | None = None


def current() -> DryRunProcess | None:
    """Return this process's part of the dry run, which begins with the first call. None: this is no dry run."""
    global _process
    if _process is None and (folder := os.environ.get(FOLDER_VARIABLE)):
        assumed = [assumed_value.parse(word) for word in os.environ.get(assumed_value.ASSUME_VARIABLE, "").split()]
        _process = DryRunProcess(Path(folder), int(os.environ[STEPS_VARIABLE]), assumed)
        _process.begin()
    return _process
