"""The exception that ends a process of a dry run, also of one that never imported PyTorch."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

import msgspec

from vramscope.guard import guarded
from vramscope.process.identity import job_rank
from vramscope.protocol.dry_run import FOLDER_VARIABLE, ProcessReport

MOST_CHARACTERS: Final = 200
"""Length to which the message of an exception is shortened."""
LAUNCHER_ERRORS: Final = frozenset(("ChildFailedError", "ProcessExitedException", "CalledProcessError"))
"""Exception of torchrun if one of its processes failed, which reports its own."""


def ending_error() -> str | None:
    """Return the exception that ends this process, if one does. Python stores what it has printed."""
    ended_by = getattr(sys, "last_value", None)
    if ended_by is None or type(ended_by).__name__ in LAUNCHER_ERRORS:
        return None
    lines = str(ended_by).strip().splitlines() or [""]
    if type(ended_by).__name__ == "ProcessRaisedException":  # of mp.spawn: it quotes the child's traceback
        return lines[-1][:MOST_CHARACTERS]
    return ": ".join(filter(None, [type(ended_by).__name__, lines[0][:MOST_CHARACTERS]]))


def write_report(folder: Path, report: ProcessReport) -> None:
    """Write the report of this process into the folder of the dry run. A process that is killed meanwhile leaves none in part."""
    path = folder / f"rank-{report.rank}-{os.getpid()}.json"
    written = path.with_suffix(".new")
    written.write_bytes(msgspec.json.encode(report))
    written.replace(path)


@guarded("the error of a process without PyTorch")
def report_alone() -> None:
    """Report the exception of a process whose part of the dry run never began: an import failed before that of PyTorch."""
    if (error := ending_error()) is not None:
        job = job_rank()
        report = ProcessReport(
            rank=job.rank,
            world_size=job.world_size,
            steps=0,
            has_torch=False,
            error=error,
            cudnn_plans=0,
            reads=[],
        )
        write_report(Path(os.environ[FOLDER_VARIABLE]), report)
