"""``vramscope check RUN``: a CI gate on a run's end, leaks and memory limits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Final, Literal

from rich.text import Text

from vramscope_server.analysis.number_format import UNKNOWN, amount, count, percent
from vramscope_server.analysis.peak_bound import peak_bound
from vramscope_server.answers.leaks import LeakReport
from vramscope_server.answers.run_detail import RunAnswer, RunInFull
from vramscope_server.cli.client import Failure, ask, path_of, print_json
from vramscope_server.cli.exit_codes import BAD_ARGUMENTS, CHECK_FAILED
from vramscope_server.cli.format import has_no_device, plain
from vramscope_server.cli.sizes import size_in_bytes
from vramscope_server.cli.tables import Column, console, print_table

CHECKS: Final = ("finished", "oom", "leaks")
"""Checks of every run, unless skipped with --skip."""
LEAKING: Final = ("leak", "growth")
"""Levels of the leak verdict that fail. Without a scan, the verdict is unknown."""
_MARKS: Final = {
    True: Text("ok", style="green"),
    False: Text("failed", style="bold red"),
    None: Text("unknown", style="yellow"),
}
_PEAKS: Final[tuple[Literal["peak_allocated", "peak_reserved"], ...]] = ("peak_allocated", "peak_reserved")
_COLUMNS: Final = (Column(""), Column("CHECK"), Column("FOUND"), Column("AT MOST", number=True))


@dataclass(frozen=True)
class Limits:
    """Limits of a run. None: not checked."""

    peak_allocated: str | None = None
    """Limit of each rank and device: bytes, or a number with a unit, such as 20GiB."""
    peak_reserved: str | None = None
    baseline: str | None = None
    """Run whose peak allocated may be exceeded by at most ``tolerance_percent``."""
    tolerance_percent: float = 1.0


@dataclass(frozen=True)
class Check:
    """Result of one check."""

    check: str
    passed: bool | None
    """None: unknown. An unknown value fails only with --strict."""
    words: str
    """The observed value, as text."""
    seen_bytes: int | None = None
    limit_bytes: int | None = None


def show(server: str, as_json: bool, run: str, limits: Limits, skip: list[str], strict: bool = False) -> None:
    """Print the checks, or JSON. Raises client.Failure with code 1 if one failed."""
    if unknown := [name for name in skip if name not in CHECKS]:
        raise Failure(f"--skip: {plain(unknown[0])!r} is not one of {', '.join(CHECKS)}", BAD_ARGUMENTS)
    least = {name: _bytes(name, getattr(limits, name)) for name in _PEAKS}
    detail: RunAnswer = ask(server, f"/runs/{path_of(server, run)}")
    checks = [one for one in _of_every_run(server, detail) if one.check not in skip]
    checks += [_peak(detail, name, limit) for name, limit in least.items() if limit is not None]
    if limits.baseline is not None:
        base: RunAnswer = ask(server, f"/runs/{path_of(server, limits.baseline)}")
        checks.append(_against(detail, base, limits.tolerance_percent))
    failed = [one.check for one in checks if one.passed is False or (strict and one.passed is None)]
    if as_json:
        print_json({"run_id": detail["run_id"], "passed": not failed, "checks": [asdict(one) for one in checks]})
    else:
        print_table(console(), _COLUMNS, [_cells(one) for one in checks])
    if failed:
        raise Failure(f"{plain(detail['name'])}: {' and '.join(failed)} failed.", CHECK_FAILED)


def _of_every_run(server: str, run: RunInFull) -> Iterator[Check]:
    state, error = run["state"], run["error_type"]
    yield Check("finished", state == "finished", plain(f"{state}: {error}" if error else state))
    yield _oom(run)
    report: LeakReport = ask(server, f"/runs/{run['run_id']}/leaks")
    level, sentence = report["verdict"]["level"], report["verdict"]["sentence"]
    yield Check("leaks", None if level == "unknown" else level not in LEAKING, plain(sentence))


def _oom(run: RunInFull) -> Check:
    times = run["out_of_memory_count"]
    if times is None:
        if has_no_device(run):
            return Check("oom", True, "no CUDA device was used")
        return Check("oom", None, UNKNOWN)
    words = "once" if times == 1 else f"{count(times)} times"
    return Check("oom", times == 0, f"out of memory {words}" if times else "none")


def _peak(run: RunInFull, name: Literal["peak_allocated", "peak_reserved"], limit_bytes: int) -> Check:
    """Compare a peak with its limit. A lower bound below it is unknown, one above it fails."""
    bound = peak_bound(run, name)
    label, seen = name.replace("_", " "), bound.bytes
    if seen is None:
        return Check(label, None, UNKNOWN, None, limit_bytes)
    passed = False if seen > limit_bytes else None if bound.is_lower else True
    return Check(label, passed, bound.words, seen, limit_bytes)


def _against(run: RunInFull, base: RunInFull, tolerance_percent: float) -> Check:
    """Compare peaks. A baseline that is a lower bound permits at least so much: to exceed that proves nothing."""
    name, most = f"against {plain(base['name'])}", peak_bound(base, "peak_allocated")
    if most.bytes is None:
        return Check(name, None, "unknown peak of the baseline")
    one = _peak(run, "peak_allocated", int(most.bytes * (1 + tolerance_percent / 100)))
    passed = None if most.is_lower and not one.passed else one.passed
    share = (
        f", {percent(one.seen_bytes / most.bytes)} of {most.words}" if one.seen_bytes is not None and most.bytes else ""
    )
    words = f"{one.words}{share} (tolerance {tolerance_percent:g} %)"
    return replace(one, check=name, passed=passed, words=words)


def _bytes(name: str, words: str | None) -> int | None:
    if words is None:
        return None
    try:
        return size_in_bytes(words)
    except ValueError:
        option = name.replace("_", "-")
        raise Failure(
            f"--{option}: {plain(words)!r} is not a size, such as 20GiB or 21474836480", BAD_ARGUMENTS
        ) from None


def _cells(one: Check) -> list[str | Text]:
    mark = _MARKS[one.passed].copy()
    return [mark, one.check, one.words, "" if one.limit_bytes is None else amount(one.limit_bytes)]
