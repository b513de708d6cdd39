"""Decides from the trials of a dry run whether the training fits on the card."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from vramscope.protocol.dry_run import Read
from vramscope_server.analysis.number_format import amount, count
from vramscope_server.cli.dryrun.cards import MIB, Card
from vramscope_server.cli.dryrun.training import Trial
from vramscope_server.cli.exit_codes import CHECK_FAILED, NOT_TRUSTWORTHY

Answer = Literal["fits", "does not fit", "too close to say", "not trustworthy"]
EXIT_CODES: Final[dict[Answer, int]] = {
    "fits": 0,
    "does not fit": CHECK_FAILED,
    "too close to say": CHECK_FAILED,
    "not trustworthy": NOT_TRUSTWORTHY,
}
CONTEXT_LOW_BYTES: Final = 256 * MIB
"""CUDA context by the smallest public report with PyTorch 2 (docs/dryrun.md)."""
CONTEXT_HIGH_BYTES: Final = 942 * MIB
"""By the largest one."""
ASSUMED: Final[Mapping[str, str]] = {
    "branch": "is taken as {}",
    "used_number": "reads {}",
    "used_copy": "copies {}",
    "largest": "selects {}",
    "balanced": "sends {} (balanced)",
}
"""Kinds of reads that could change the answer, with the end of the sentence."""
GENERATES: Final = "generate"
"""Operation that reads whether a text has ended."""
RECURRENT: Final = "the spaces of cuDNN for LSTM and GRU follow a formula (an H100 needed 0.8 % more)"
"""Assumption about LSTM and GRU (docs/dryrun.md)."""
PLAIN_RECURRENT: Final = (
    "the spaces of cuDNN for nn.RNN follow the formula of an LSTM with one gate, and were not measured"
)
SPARSE: Final = "cuSPARSE needs no workspaces for products with sparse tensors; their sizes are not documented"
NO_STEP: Final = "no optimizer step ended: the script must call step() of a PyTorch optimizer before it ends"
LARGE_BYTES: Final = 1024 * 1024 * MIB
"""Memory of the card on which the need is measured if the training does not fit."""


@dataclass(frozen=True)
class Verdict:
    """The answer of a dry run."""

    answer: Answer
    reasons: Sequence[str]
    """Why the answer is what it is; empty if the figures say it."""
    assumptions: Sequence[str]
    """What was assumed about values, and could change the answer."""
    trial: Trial
    """The trial whose figures are shown: on the card, or on a large one if the training does not fit."""
    left_bytes: int | None
    """Memory of the card beyond peak reserved and the context's upper bound; None if it did not fit."""
    large: Trial | None = None
    """The trial with the largest workspaces of cuDNN; None if no convolution ran, or the answer does not depend on it."""
    bound_by: str | None = None
    """Where a selection of every element is the only reason not to trust the figures: a line, or "each mask"."""
    fewest: Trial | None = None
    """The trial in which masks select one element; None if it did not run to its end."""

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.answer]


def faults(trial: Trial) -> list[str]:
    """Return why nothing can be concluded from a trial."""
    found = [report.refused for report in trial.reports if report.refused and trial.end == "failed"]
    if trial.end == "late" and trial.steps >= trial.asked:
        found.append("not every process had ended when the time was over (--timeout)")
    elif trial.end == "late":
        found.append(
            f"{count(trial.steps)} of {count(trial.asked)} steps had ended when the time was over (--timeout)"
            + _many_elements(trial)
        )
    elif trial.end == "waits":
        place = next(report.waits_at for report in trial.reports if report.waits_at)
        found.append(f"{place} waits in a loop for a value that is not computed" + _many_elements(trial, place))
    elif trial.end == "failed":
        found.append(_failure(trial))
    elif trial.end == "ended" and not trial.steps:
        found.append(NO_STEP + _cause_in_values(trial))
    elif trial.end == "ended" and trial.run is None:
        found.append("the server did not keep the run, so that its peaks are not known; it may have ended before")
    elif trial.end == "ended" and not peak_allocated(trial):
        found.append("the script used no memory of the GPU: check which device it chooses")
    if trial.processes > 1:
        found.append(
            f"{trial.processes} processes trained without ranks, and the figures are those of one of them: "
            "give the command of one training"
        )
    for read in reads_of(trial):
        if read.kind in ("shape", "length"):
            line = _line_of(read)
            hint = f": set it with --assume {line}=VALUE" if line is not None else ""
            depends = f": the size of the result of {read.operation} depends on data"
            found.append(
                place_of(read) + (depends if read.kind == "shape" else " reads a length, which is 0 here") + hint
            )
    return found


def _many_elements(trial: Trial, place: str = "") -> str:
    """Return a possible cause of a long loop: it may run over every element of a selection before it.

    place   line that waits, if it is known
    """
    file, _, number = place.partition(":")
    lines = [_line_of(read) for read in selections_of(trial) if read.assumed.startswith("every")]
    places = [one.rpartition(":") for one in lines if one is not None]
    before = [one for one in places if one[0] == file and number.isdecimal() and int(one[2]) <= int(number)]
    if not places:
        return ""
    name, _, row = max(before, key=lambda one: int(one[2])) if before else places[-1]
    line = f"{name}:{row}"
    return f"; if it loops over the elements selected at {line}: --assume {line}=NUMBER"


def _failure(trial: Trial) -> str:
    """Return why a command failed, as far as its processes said it, and what to do."""
    if trial.status < 0:
        name = _signal_name(-trial.status)
        return f"the command was killed by {name}" + ("; host memory may be too small" if name == "SIGKILL" else "")
    error = next((report.error for report in trial.reports if report.error), None)
    measured = "" if trial.run is not None else "; nothing was measured"
    if error is None:
        return f"the command failed with status {trial.status}; what it printed says why{measured}"
    text = f"the script failed with {error}{measured}"
    return text + _cause_in_values(trial)


def _cause_in_values(trial: Trial) -> str:
    if any(read.kind in ("used_number", "length", "used_copy", "branch") for read in reads_of(trial)):
        return "; a value that does not exist may be the cause (--assume sets values)"
    return ""


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal has no name
        return f"signal {number}"


def assumptions(trial: Trial) -> list[str]:
    """Return what was assumed and could change the answer: truth values, numbers in use, sizes, and what did not happen."""
    unstepped = sorted({name for report in trial.reports for name in report.unstepped})
    return [
        *dict.fromkeys(text for report in trial.reports for text in report.short_histories),
        *(f"{name} takes its first step later, and its state is not in the peaks" for name in unstepped),
        *(_assumption(read) for read in reads_of(trial) if read.kind in ASSUMED),
        *(
            f"{count(report.world_size - 1)} other ranks are not run, and NCCL's buffers are not counted"
            for report in trial.reports
            if report.is_alone
        ),
        *(f"nothing was read at {place} (--assume)" for place in unread(trial)),
        *([RECURRENT] if any(one.recurrent_calls > one.plain_recurrent_calls for one in trial.reports) else []),
        *([SPARSE] if any(one.sparse_products for one in trial.reports) else []),
        *([PLAIN_RECURRENT] if any(one.plain_recurrent_calls for one in trial.reports) else []),
    ]


def _assumption(read: Read) -> str:
    words = "generates {}" if read.operation == GENERATES else ASSUMED[read.kind]
    text = f"{_subject_of(read)} {words.format(read.assumed)}"
    if read.kind != "largest" or not read.assumed.startswith("every"):
        return text
    line = _line_of(read) if read.experts is not None else None
    hint = (
        ""
        if line is None
        else f"; if it selects the rows of one of {count(read.experts or 0)} experts: --assume {line}=balanced"
    )
    return f"{text} (an upper bound{hint})"


def unread(trial: Trial) -> list[str]:
    """Return the lines of ``--assume`` where no rank read anything."""
    lines = [set(report.unread) for report in trial.reports]
    return sorted(set.intersection(*lines)) if lines else []


def selections_of(trial: Trial) -> list[Read]:
    """Return the reads whose result may be smaller on a real card than it was here."""
    return [read for read in reads_of(trial) if read.kind == "largest"]


def is_upper_bound(trial: Trial) -> bool:
    """Whether the peaks can be smaller on a real card, and not larger: nothing else was assumed or left out."""
    selections = selections_of(trial)
    return bool(selections) and len(assumptions(trial)) == len(selections) and not runs_convolutions(trial)


def reads_of(trial: Trial) -> list[Read]:
    """Return the reads of all ranks, without repetition. One line may decide several conditions."""
    found: dict[tuple[str, ...], Read] = {}
    for report in trial.reports:
        for read in report.reads:
            found.setdefault((place_of(read), read.kind, read.expression, read.assumed), read)
    return list(found.values())


def place_of(read: Read) -> str:
    """Format the line of a read: ``train.py:12``, or ``train.py:12 (transformers/trainer.py:3801)``."""
    own = None if read.file is None else f"{read.file.rpartition('/')[2]}:{read.line}"
    parts = [part for part in (own, read.via) if part is not None]
    return f"{parts[0]} ({parts[1]})" if len(parts) == 2 else parts[0] if parts else "the backward pass"


def _line_of(read: Read) -> str | None:
    """Format the line that reads, as ``--assume`` takes it. The user's line may cause other reads, too."""
    own = None if read.file is None else f"{read.file.rpartition('/')[2]}:{read.line}"
    line = read.via or own
    return line if line is not None and " " not in line else None


def _subject_of(read: Read) -> str:
    """Format a read as the subject of a sentence: its line, with the condition that it decides."""
    return f"`{read.expression}` at {place_of(read)}" if read.expression else place_of(read)


def left_on(card: Card, trial: Trial) -> int | None:
    """Return what a card has beyond the trial's peak reserved and the upper bound of the context."""
    peak = peak_reserved(trial)
    return None if peak is None else card.total_bytes - CONTEXT_HIGH_BYTES - peak


def peak_reserved(trial: Trial) -> int | None:
    return None if trial.run is None else trial.run["peak_reserved_bytes"]


def peak_allocated(trial: Trial) -> int | None:
    return None if trial.run is None else trial.run["peak_allocated_bytes"]


def is_certainly_too_large(card: Card, large: Trial) -> bool:
    """Whether the tensors alone exceed the card, whatever the context takes."""
    peak = peak_allocated(large)
    return peak is not None and peak + CONTEXT_LOW_BYTES > card.total_bytes


def runs_convolutions(trial: Trial) -> bool:
    """Whether cuDNN was used, whose workspaces are not in the figures."""
    return any(report.cudnn_plans for report in trial.reports)


def with_workspaces(found: Verdict, large: Trial, card: Card) -> Verdict:
    """Take into account what the training needs with the largest workspaces of cuDNN. A trial that failed says nothing."""
    left_bytes = left_on(card, large)
    if large.end != "ended" or left_bytes is None:
        return found
    if left_bytes >= 0:
        least = left_bytes if found.left_bytes is None else min(left_bytes, found.left_bytes)
        return replace(found, left_bytes=least, large=large)
    why = f"with the largest workspaces of cuDNN its peak reserved is {amount(peak_reserved(large))}"
    return replace(found, answer="too close to say", reasons=[*found.reasons, why], left_bytes=None, large=large)


def with_fewest(found: Verdict, fewest: Trial, card: Card) -> Verdict:
    """Take into account what the training needs if masks select one element. A trial that failed says nothing."""
    least, most = peak_allocated(fewest), peak_allocated(found.trial)
    if fewest.end != "ended" or faults(fewest) or least is None or most is None or least > most:
        return found
    if is_certainly_too_large(card, fewest):
        why = f"its tensors need {amount(least)} if one element is selected at {found.bound_by}"
        return replace(found, answer="does not fit", reasons=[why], assumptions=assumptions(fewest), fewest=fewest)
    why = f"its tensors need {amount(most)} if every element is selected at {found.bound_by}, and {amount(least)} if one is"
    selections = selections_of(found.trial)
    if len(selections) > 1 or selections[0].operation != "nonzero" or " " in place_of(selections[0]):
        return replace(found, reasons=[why], fewest=fewest)
    hint = f"if {found.bound_by} distributes rows to experts, --assume {found.bound_by}=balanced gives one figure"
    return replace(found, reasons=[why, hint], fewest=fewest)


def verdict(answer: Answer, shown: Trial, trials: Iterable[Trial], card: Card, why: str = "") -> Verdict:
    """Combine an answer with the doubts about the trials that it rests on. ``why`` explains it."""
    doubts = list(dict.fromkeys(fault for trial in trials for fault in faults(trial)))
    bound_by = None
    if answer != "fits" and (selections := selections_of(shown)):
        place = "each mask" if len(selections) > 1 else place_of(selections[0])
        bound_by = None if doubts else place
        doubts.append(f"it does not fit if every element is selected at {place}, and may fit if fewer are")
    reasons = list(doubts)
    if why and not doubts:
        reasons.append(why)
    return Verdict(
        answer="not trustworthy" if doubts else answer,
        reasons=reasons,
        assumptions=assumptions(shown),
        trial=shown,
        left_bytes=left_on(card, shown) if answer == "fits" else None,
        bound_by=bound_by,
    )
