"""``vramscope whatif TARGET``: replay of a run or snapshot file under other allocator settings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.text import Text

from vramscope_server.analysis.number_format import amount, count
from vramscope_server.answers.run_detail import RunAnswer
from vramscope_server.answers.whatif import SweepRow
from vramscope_server.cli.client import Failure, ask, path_of, print_json
from vramscope_server.cli.exit_codes import BAD_ARGUMENTS
from vramscope_server.cli.format import ABSENT, plain
from vramscope_server.cli.progress import Bar
from vramscope_server.cli.tables import Column, console, print_table
from vramscope_server.cli.trace_source import is_file, of_file, of_run

if TYPE_CHECKING:
    from vramscope_server.analysis.trace.trace import Trace
    from vramscope_server.analysis.whatif.scenario import Prediction
    from vramscope_server.analysis.whatif.sweep import Row, Sweep

_COLUMNS: Final = (
    Column("SETTINGS"),
    Column("PEAK RESERVED", number=True),
    Column("SMALLEST DEVICE", number=True),
    Column("UNCERTAINTY", needed=1, number=True),
    Column("DEVICE SAVED", number=True),
    Column("OUT OF MEMORY", needed=2, number=True),
    Column("RETRIES", needed=3, number=True),
    Column("CUDAMALLOC", needed=4, number=True),
    Column("PEAK ALLOCATED", needed=5, number=True),
    Column("CONFIDENCE", needed=1),
    Column("RANGE", needed=1, number=True),
)
DEVICES: Final = (
    "SMALLEST DEVICE: the smallest on which the recorded steps survive; with less memory PyTorch reuses more. DEVICE SAVED "
    "compares it with that of the recorded settings."
)
NOTICED_FRACTION: Final = 1 / 256
"""Uncertainties below this fraction of the device are not shown. The search stops at half of it."""


def show(server: str, as_json: bool, target: str, confs: Sequence[str], device_bytes: int | None) -> None:
    """Print a ranked table of settings per device, or a JSON array of rows. Raises client.Failure."""
    if as_json:
        print_json(rows_of(server, target, confs, device_bytes))
        return
    sweeps = _swept(server, target, confs, device_bytes)
    out = console()
    for trace, result in sweeps:
        _print(out, trace, result, several=len(sweeps) > 1)


def rows_of(server: str, target: str, confs: Sequence[str], device_bytes: int | None) -> list[SettingRow]:
    """Return the settings of all devices as rows of JSON. Raises client.Failure."""
    swept = _swept(server, target, confs, device_bytes)
    return [_json_row(trace, result, row) for trace, result in swept for row in result.rows]


def _swept(server: str, target: str, confs: Sequence[str], device_bytes: int | None) -> list[tuple[Trace, Sweep]]:
    peak: int | None = None
    if is_file(target):
        traces = of_file(Path(target))
    else:
        traces = [of_run(server, target)]
        detail: RunAnswer = ask(server, f"/runs/{path_of(server, target)}")
        peak = detail["peak_reserved_bytes"]
    from vramscope_server.analysis.simulator.settings import BadSetting
    from vramscope_server.analysis.whatif.sweep import DEFAULT_SWEEP, sweep

    sweeps: list[tuple[Trace, Sweep]] = []
    for trace in traces:
        if not len(trace.events):
            raise Failure(f"{plain(target)}: {' '.join(trace.notes)}", BAD_ARGUMENTS)
        with Bar("replaying settings", of_bytes=False) as tell:
            try:
                made = sweep(
                    trace, confs or DEFAULT_SWEEP, device_bytes=device_bytes, run_peak_bytes=peak, progress=tell
                )
                sweeps.append((trace, made))
            except BadSetting as refusal:
                raise Failure(f"--conf: PyTorch would refuse it: {plain(str(refusal))}", BAD_ARGUMENTS) from None
            except ValueError as fault:
                raise Failure(f"{plain(target)}: {plain(str(fault))}", BAD_ARGUMENTS) from None
            except (ArithmeticError, LookupError) as fault:  # events that contradict each other
                words = f"inconsistent events ({type(fault).__name__})"
                raise Failure(f"{plain(target)}: {words}", BAD_ARGUMENTS) from None
    return sweeps


# ---- output ----


class SettingRow(SweepRow):
    """A row of a sweep, with the replay that it comes from."""

    replay_residual_bytes: int
    recommended: bool
    device: int
    device_bytes: int | None


def _json_row(trace: Trace, result: Sweep, row: Row) -> SettingRow:
    prediction, risk = row.prediction, row.risk
    return {
        "conf": prediction.conf,
        "peak_reserved_bytes": prediction.peak_reserved_bytes,
        "uncapped_peak_reserved_bytes": prediction.uncapped_peak_reserved_bytes,
        "peak_allocated_bytes": prediction.peak_allocated_bytes,
        "retries": prediction.retries,
        "device_allocs": prediction.device_allocs,
        "out_of_memory": prediction.out_of_memory,
        "out_of_memory_at_event": prediction.out_of_memory_at_event,
        "certainty": prediction.certainty,
        "reasons": prediction.reasons,
        "band": prediction.band,
        "notes": [*prediction.notes, *result.notes],
        "replay_residual_bytes": result.residual.peak_reserved_bytes,
        "smallest_card_bytes": row.smallest_device_bytes,
        "uncertainty_bytes": row.uncertainty_bytes,
        "is_bounded": row.is_bounded,
        "saved_bytes": row.saved_bytes,
        "recorded": row.recorded,
        "recommended": row.conf == result.recommendation.conf,
        "risk": {"level": risk.level, "words": risk.words, "source": risk.source},
        "device": trace.device,
        "device_bytes": result.device_bytes,
    }


def _print(out: Console, trace: Trace, result: Sweep, *, several: bool) -> None:
    device = "a device of unknown size" if result.device_bytes is None else f"a device of {amount(result.device_bytes)}"
    name = f"device {trace.device}: " if several else ""
    out.print(Text(f"{name}{count(len(trace.events))} events, on {device}", style="bold"))
    ranked = [result.rows[0], *sorted(result.rows[1:], key=_rank)]
    print_table(out, _COLUMNS, [_cells(row, result) for row in ranked])
    out.print(Text(DEVICES, style="dim"))
    out.print()
    out.print(
        Text(result.recommendation.words, style="bold green" if result.recommendation.conf is not None else "bold")
    )
    if result.recommendation.conf is not None:
        out.print(
            Text(f'export {result.recommendation.variable}="{plain(result.recommendation.conf)}"', style="cyan"),
            soft_wrap=True,
        )
    out.print(Text(result.residual.words, style="dim" if result.residual.exact else "yellow"))
    risks = {row.risk.words: row.risk.source for row in result.rows if row.risk.words}
    for words, source in risks.items():
        out.print(Text(f"risk: {words}{f' ({source})' if source else ''}", style="dim"))
    names_by_note: dict[str, list[str]] = {note: [] for note in result.notes}
    for row in result.rows:
        for note in row.prediction.notes:
            names_by_note.setdefault(note, []).append(_name(row))
    for note, names in names_by_note.items():
        of = f"{names[0]}: " if len(names) == 1 else f"{len(names)} settings: " if names else ""
        out.print(Text(f"note: {of}{plain(note)}", style="dim"))


def _rank(row: Row) -> tuple[float, int]:
    """Rank as on the page: smallest device first, then lowest risk. Unknown comes last."""
    needed = row.smallest_device_bytes
    return (float("inf") if needed is None else needed, row.risk.level)


def _name(row: Row) -> str:
    return plain(row.conf) or "default settings"


def _may_be(prediction: Prediction) -> str:
    """Format the range of the peak on a device that is never full. A limit or a full device lowers the peak below it."""
    low, high = prediction.band or (0, 0)
    if amount(low) != amount(high):
        room = "" if prediction.peak_reserved_bytes == prediction.uncapped_peak_reserved_bytes else " if never full"
        return f"{amount(low)} to {amount(high)}{room}"
    away = (
        max(high - prediction.uncapped_peak_reserved_bytes, prediction.uncapped_peak_reserved_bytes - low)
        if high > low
        else 0
    )
    return f"± {amount(away)}" if away else ""


def _give_or_take(card_bytes: int, away_bytes: int, *, is_bounded: bool) -> str:
    if not is_bounded:
        return "no bound"
    return f"± {amount(away_bytes)}" if away_bytes > card_bytes * NOTICED_FRACTION else ""


def _cells(row: Row, result: Sweep) -> list[str | Text]:
    prediction = row.prediction
    best = not row.recorded and row.conf == result.recommendation.conf
    saved = "" if row.recorded else amount(row.saved_bytes, ABSENT)
    needed, away = row.smallest_device_bytes, row.uncertainty_bytes
    name = f"{_name(row)} (recorded)" if row.recorded else _name(row)
    return [
        Text(name, style="bold green" if best else "bold" if row.recorded else ""),
        amount(prediction.peak_reserved_bytes),
        amount(needed, "none"),
        "" if needed is None else _give_or_take(needed, away, is_bounded=row.is_bounded),
        saved,
        Text("yes", style="bold red") if prediction.out_of_memory else "no",
        count(prediction.retries),
        count(prediction.device_allocs),
        amount(prediction.peak_allocated_bytes),
        prediction.certainty,
        _may_be(prediction),
    ]
