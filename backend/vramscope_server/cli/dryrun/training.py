"""Runs a training on the emulated GPU, and collects what its processes report."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import msgspec

from vramscope.launch import child_environment
from vramscope.protocol.assumed_value import ASSUME_VARIABLE, AssumedValue
from vramscope.protocol.dry_run import (
    CHANGES_VARIABLE,
    FEWEST_VARIABLE,
    FOLDER_VARIABLE,
    RANKS_VARIABLE,
    STEPS_VARIABLE,
    WORK_VARIABLE,
    ChangeName,
    ProcessReport,
)
from vramscope.settings import Settings
from vramscope_server.answers.run_detail import RunAnswer
from vramscope_server.cli.client import Failure, ask
from vramscope_server.cli.dryrun.cards import Card
from vramscope_server.cli.exit_codes import BAD_ARGUMENTS

TAG: Final = "dry run"
"""Tag of the runs. Pages know a dry run by it."""
OWN_SETTINGS: Final = {
    "VRAMSCOPE_DETAIL": "every",
    "VRAMSCOPE_LOSS": "0",
    "VRAMSCOPE_PROFILE": "0",
    "VRAMSCOPE_QUIET": "1",
    "VRAMSCOPE_CLOSE_TIMEOUT_S": "20",
}
PROCESSES: Final = ("--nproc-per-node", "--nproc_per_node", "--num_processes", "--num-processes", "--num_gpus")
"""Options of torchrun, accelerate and deepspeed for the number of processes on a machine."""
MACHINE_DEVICES: Final = 8
"""GPUs of each machine of a training with several ranks, if it has that many."""
ALLOCATOR_VARIABLES: Final = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""Environment variables with PyTorch's allocator settings; the first that is set counts."""
EXPANDABLE: Final = "expandable_segments:True"

TrialEnd = Literal["ended", "out of memory", "failed", "waits", "late"]


@dataclass(frozen=True)
class Plan:
    """What is run, and how long."""

    command: Sequence[str]
    libraries: Sequence[Path]
    server: str
    steps: int
    most_seconds: float
    changes: Sequence[ChangeName] = ()
    """Changes that are switched on from outside of the program."""
    label: str = ""
    """What differs from the user's command."""
    assume: Sequence[AssumedValue] = ()
    """Values that lines of the program read from the device."""
    ranks: int = 1
    """Ranks of the training, of which one is run."""
    as_rank: int = 0
    """The rank that is run, if there are several."""
    has_large_workspaces: bool = False
    """True: each convolution gets the largest workspace that one of its shape may need; else none."""

    selects_fewest: bool = False
    """True: masks select one element; else every element."""
    counts_work: bool = False
    """True: the floating-point operations of the last step are counted."""

    @property
    def is_variant(self) -> bool:
        """Whether this is not what the user asked for: its output is shown only if it fails."""
        return bool(self.changes or self.label)

    @property
    def devices(self) -> int:
        """Number of emulated devices: one for each process that the command starts, or each rank of a machine, else one."""
        if self.ranks > 1:
            return min(self.ranks, MACHINE_DEVICES)
        for position, word in enumerate(self.command):
            option, equals, value = word.partition("=")
            if option in PROCESSES:
                number = value if equals else "".join(self.command[position + 1 : position + 2])
                return int(number) if number.isdecimal() and int(number) > 0 else 1
        return 1


@dataclass(frozen=True)
class Trial:
    """One run of the training on a card of some size."""

    total_bytes: int
    context_bytes: int
    """What the emulated CUDA context took of it."""
    asked: int
    """Steps after which each process was to end."""
    run_id: str
    status: int
    """Exit status of the command."""
    end: TrialEnd
    reports: Sequence[ProcessReport]
    """One for each rank."""
    run: RunAnswer | None
    """The run as the server knows it; None if no process trained."""
    processes: int = 1
    """Processes that trained with one and the same rank."""

    @property
    def steps(self) -> int:
        """Steps that ended on every rank."""
        if not self.reports:  # the processes were killed
            return 0 if self.run is None else self.run["steps"] or 0
        return min(report.steps for report in self.reports)


def train(plan: Plan, card: Card, total_bytes: int, context_bytes: int) -> Trial:
    """Run the command once. Its output goes to stderr; of a variant only the end, and only if it fails."""
    run_id = secrets.token_hex(8)
    with tempfile.TemporaryDirectory(prefix="vramscope-dryrun-") as folder, tempfile.TemporaryFile() as kept:
        output = kept if plan.is_variant else sys.stderr
        environment = _environment(plan, card, Path(folder), run_id)
        environment["EMULATED_GPU_TOTAL_MEM"] = str(total_bytes)
        environment["EMULATED_GPU_CONTEXT_MEM"] = str(context_bytes)
        # In its own session, so that all of its processes can be ended together.
        try:
            training = subprocess.Popen(
                plan.command,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT if plan.is_variant else None,
                start_new_session=True,
            )
        except OSError as fault:
            name = plan.command[0]
            hint = f"; did you mean: python {name}" if name.endswith(".py") else ""
            raise Failure(f"{name} cannot be started: {fault.strerror}{hint}", BAD_ARGUMENTS) from fault
        late = False
        try:
            training.wait(plan.most_seconds)
        except subprocess.TimeoutExpired:
            late = True
        finally:
            _end_all(training)
        written = _reports(Path(folder))
        if plan.is_variant and training.returncode:
            kept.seek(max(0, kept.seek(0, os.SEEK_END) - MOST_OUTPUT_BYTES))
            print(kept.read().decode(errors="replace"), file=sys.stderr, flush=True)
    try:
        run: RunAnswer | None = ask(plan.server, f"/runs/{run_id}")
    except Failure:
        run = None
    reports = _best_of_each_rank(written)
    end: TrialEnd = "ended" if training.returncode == 0 else "failed"
    if late:
        reports = _known_at_end(reports, run)
        end = "ended" if _have_done_all(plan, reports) else "late"
    if end != "late" and any(report.waits_at for report in reports):
        end = "waits"
    elif end != "late" and run is not None and run["out_of_memory_count"]:
        end = "out of memory"
    return Trial(
        total_bytes,
        context_bytes,
        plan.steps,
        run_id,
        training.returncode,
        end,
        reports,
        run,
        _most_of_one_rank(written),
    )


MOST_OUTPUT_BYTES: Final = 2000
"""Bytes of a changed program's output that are shown if it fails."""


def tell(sentence: str) -> None:
    """Print what is being done, on stderr."""
    print(f"vramscope: {sentence}", file=sys.stderr, flush=True)


def _environment(plan: Plan, card: Card, folder: Path, run_id: str) -> dict[str, str]:
    script = next((Path(word).name for word in plan.command if word.endswith(".py")), plan.command[-1])
    settings, _ = Settings.for_training(
        server=plan.server,
        run_id=run_id,
        run_name=os.environ.get("VRAMSCOPE_RUN_NAME")
        or ", ".join(
            [
                f"dry run of {script} on {card.name}",
                *(name.replace("_", " ") for name in plan.changes),
                *filter(None, [plan.label]),
            ]
        ),
        tags=[TAG],
    )
    environment = child_environment(os.environ, settings, plan.command) | OWN_SETTINGS
    environment.pop("CUDA_VISIBLE_DEVICES", None)  # these are other devices
    environment |= {
        "LD_PRELOAD": " ".join([*map(str, plan.libraries), *os.environ.get("LD_PRELOAD", "").split()]),
        "TRITON_LIBCUDA_PATH": str(plan.libraries[0].parent),
        FOLDER_VARIABLE: str(folder),
        STEPS_VARIABLE: str(plan.steps),
        "EMULATED_GPU_DEVICES": str(plan.devices),
        "EMULATED_GPU_LEDGER": str(folder / "ledger"),
        "EMULATED_GPU_NAME": card.name,
        "EMULATED_GPU_CAPABILITY": str(card.capability),
        "EMULATED_GPU_MULTIPROCESSORS": str(card.multiprocessors),
        CHANGES_VARIABLE: ",".join(plan.changes),
    }
    if plan.assume:
        environment[ASSUME_VARIABLE] = " ".join(f"{one}={str(one.value).lower()}" for one in plan.assume)
    if plan.ranks > 1:
        environment |= {RANKS_VARIABLE: str(plan.ranks), "RANK": str(plan.as_rank), "WORLD_SIZE": str(plan.ranks)}
        local = {"LOCAL_RANK": str(plan.as_rank % MACHINE_DEVICES), "LOCAL_WORLD_SIZE": str(plan.devices)}
        environment |= local | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    if plan.has_large_workspaces:
        environment["EMULATED_GPU_CUDNN_WORKSPACE"] = "most"
    if plan.counts_work:
        environment[WORK_VARIABLE] = "1"
        environment.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler prints to the terminal otherwise
    if plan.selects_fewest:
        environment[FEWEST_VARIABLE] = "1"
    if "expandable_segments" in plan.changes:
        environment["PYTORCH_CUDA_ALLOC_CONF"] = _with_expandable_segments(environment)
    return environment


def _with_expandable_segments(environment: Mapping[str, str]) -> str:
    """Return the allocator settings with the expandable segments, which replace a setting of the same name."""
    given = next((environment[name] for name in ALLOCATOR_VARIABLES if environment.get(name)), "")
    return ",".join([*(one for one in given.split(",") if one and "expandable_segments" not in one), EXPANDABLE])


def _end_all(training: subprocess.Popen[bytes]) -> None:
    """End what the command left behind: it is only of use to the command."""
    try:
        os.killpg(training.pid, signal.SIGTERM)
        training.wait(5)
    except subprocess.TimeoutExpired:
        os.killpg(training.pid, signal.SIGKILL)
        training.wait()
    except ProcessLookupError:
        training.wait()


def _reports(folder: Path) -> list[ProcessReport]:
    return [msgspec.json.decode(path.read_bytes(), type=ProcessReport) for path in sorted(folder.glob("rank-*.json"))]


def _most_of_one_rank(reports: Sequence[ProcessReport]) -> int:
    """Count the processes that trained with one and the same rank."""
    return max(Counter(report.rank for report in reports if report.steps).values(), default=1)


def _best_of_each_rank(reports: Sequence[ProcessReport]) -> list[ProcessReport]:
    """Return the report of each rank; of several processes with one rank, that of the process that trained.

    A process without PyTorch, such as one that starts the training, reports its own error only.
    """
    best: dict[int, ProcessReport] = {}
    for report in reports:
        other = best.get(report.rank)
        if other is None or _rating(report) > _rating(other):
            best[report.rank] = report
    return [best[rank] for rank in sorted(best)]


def _rating(report: ProcessReport) -> tuple[bool, int, bool]:
    return report.has_torch, report.steps, report.waits_at is not None


def _known_at_end(reports: Sequence[ProcessReport], run: RunAnswer | None) -> list[ProcessReport]:
    """Return the reports without the steps whose peaks a process did not send before it was ended."""
    sent = 0 if run is None else run["steps"] or 0
    return [msgspec.structs.replace(report, steps=min(report.steps, sent)) for report in reports]


def _have_done_all(plan: Plan, reports: Sequence[ProcessReport]) -> bool:
    """Whether each rank made the requested steps, and went on for an optimizer that steps rarely, or did not end."""
    ranks = max((1 if report.is_alone else report.world_size for report in reports), default=1)
    return len(reports) >= ranks and all(
        report.steps >= plan.steps and (report.changes or not plan.changes) for report in reports
    )
