"""What the detector promises of a fix, against what the fix brings: each leaking loop, broken and mended, on the GPU.

    python tests/leaks/promises.py [part of a loop's name ...]      # prints the tables of RESULTS.md

A finding promises three things. **Held**: bytes that go. **Peak**: by how much the step's highest goes down (often less
than held). **Growth**: bytes a step that come no more. What came is the allocator's own account of the two runs.
"""

from __future__ import annotations

import collections
import dataclasses
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from child import Child, scans_of
from corpus import Case, cases
from evidence import pairs_of
from promise import SHARE, SMALL_BYTES, Promise
from replays import Replayed, replayed

from vramscope.protocol import messages


@dataclasses.dataclass
class Row:
    """One loop of the table."""

    case: Case
    leak: messages.Leak | None
    held: Promise | None = None
    peak: Promise | None = None
    growth: Promise | None = None
    replay: Replayed | None = None
    """Replay of the step that was recorded when the leak was found."""

    @property
    def numbers(self) -> list[Promise]:
        return [promise for promise in (self.held, self.peak, self.growth) if promise is not None]

    def __str__(self) -> str:
        cells = [self.case.name, self.leak.kind if self.leak else self.case.truth.kinds[0]]
        if self.leak is None:
            return f"| {' | '.join([*cells, 'not found', '', '', ''])} |"
        cells += [f"`{self.leak.name}`", *(str(promise or "") for promise in (self.held, self.peak, self.growth))]
        return f"| {' | '.join(cells)} |"


def row(child: Child, scales: Child, case: Case) -> Row:
    """Watch the broken loop; weigh it and its mended twin as Python runs them."""
    answer = child.ask("watch", case.name, "cuda", windows=True)
    broken = scales.ask("weigh", case.name, "cuda", collect=None)
    # (A scan at the loop's end has no reading to compare with.)
    scans = [(steps, scan) for steps, scan in scans_of(answer) if not steps or steps < broken[-1]["steps"]]
    # What may fill up is reported when the loop ends, which is too late to compare: its figures of before are.
    found = [*scans[-1][1].leaks, *scans[-1][1].filling] if scans else []
    right = [leak for leak in found if leak.kind in case.truth.kinds and _names(case, leak)]
    if not right:
        return Row(case, None)
    leak = max(right, key=lambda leak: leak.held_bytes)
    steps, step = next((steps, scan.step) for steps, scan in scans if leak in (*scan.leaks, *scan.filling))
    mended = scales.ask("weigh", case.name, "cuda", mended=True, collect=None)
    promised = promises(case, leak, steps, pairs_of(broken, mended), of_optimizers=round(steps / step) if step else 1)
    promised.replay = replayed(leak, answer, mended, case.truth.item_bytes(512))
    return promised


def promises(case: Case, leak: messages.Leak, steps: int, pairs: Any, of_optimizers: int = 1) -> Row:
    """The three numbers at the step of the look that saw the leak; the growth from then to the end.

    An item more or less is no miss: the look may lie before or after the line that adds one. ``of_optimizers``: steps that the
    meter counts, one for each optimizer, in a step of the training.
    """
    grows = leak.kind in ("growing", "growing-eval", "tensor-growth")
    item = case.truth.item_bytes(512)
    then = min(range(len(pairs)), key=lambda i: abs(pairs[i][0]["steps"] - steps))
    more = [broken["allocated_bytes"] - kept["allocated_bytes"] for broken, kept in pairs]
    peaks = [broken["peak_bytes"] - kept["peak_bytes"] for broken, kept in pairs]
    around = slice(max(0, then - 1), then + 2)  # with several optimizers a step has several readings

    def promise(promised: float | None, came: list[int], scale: float = 1.0) -> Promise:
        slack = max(SMALL_BYTES, SHARE * abs(promised or 0), item) * scale
        nearest = min(came, key=lambda value: abs(value - (promised or 0))) if promised is not None else max(came)
        return Promise(promised, nearest, slack)

    result = Row(case, leak)
    highest = [max(pair[side]["peak_bytes"] for pair in pairs) for side in (0, 1)]
    if leak.kind == "cycle":
        # How much lies in cycles depends on when Python last collected: of each run the highest counts, and there is no slope.
        result.peak = promise(leak.peak_effect_bytes, [highest[0] - highest[1]])
        return result
    if leak.emptied_after is not None:
        # A holder that is emptied after an epoch is reported as it is when it holds the most; a reading comes an item earlier.
        if leak.per == "step":
            result.held = promise(leak.held_bytes, [max(more)])
        result.peak = promise(leak.peak_effect_bytes, [highest[0] - highest[1]])
        return result
    if leak.kind != "no_grad-missing":
        result.held = promise(leak.held_bytes, more[around])
    result.peak = promise(leak.peak_effect_bytes, peaks[around])
    if grows:
        late = slice(len(pairs) // 3, None)
        at = [broken["steps"] / of_optimizers for broken, _ in pairs[late]]
        came = statistics.linear_regression(at, more[late]).slope
        slack = max(1024, SHARE * abs(came), item / (at[-1] - at[0]))
        result.growth = Promise(leak.growth_bytes_per_step, came, slack)
    return result


def _names(case: Case, leak: messages.Leak) -> bool:
    return any(holder in f"{leak.name} {leak.holder}" for holder in case.truth.holders)


def table(rows: list[Row]) -> str:
    head = "| loop | kind | holder | held | peak | growth a step |"
    return "\n".join([head, "|---|---|---|---|---|---|", *map(str, rows)])


def main(parts: list[str]) -> None:
    child, scales = Child(), Child()
    rows = []
    for name, case in sorted(cases().items(), key=lambda item: (item[1].truth.frameworks, item[0])):
        if not case.truth.innocent and (not parts or any(part in name for part in parts)):
            rows.append(row(child, scales, case))
            print(rows[-1], file=sys.stderr, flush=True)
    child.close()
    scales.close()
    print(table(rows))
    print()
    print(summary(rows))
    print()
    print(replay_table(rows))


def replay_table(rows: list[Row]) -> str:
    """Of the steps that were recorded when the leaks were found; and why where there is none."""
    seen = [(row, row.replay) for row in rows if row.replay is not None]
    lines = ["| loop | kind | peak falls by | peak reserved |", "|---|---|---|---|"]
    for row, replay in seen:
        if row.leak is not None and replay.effect is not None:
            lines.append(f"| {row.case.name} | {row.leak.kind} | {replay} |")
    verdicts = [replay.allocated.verdict for _, replay in seen if replay.effect is not None]
    reserved = [replay.is_reserved_kept for _, replay in seen if replay.effect is not None]
    reasons = collections.Counter(replay.reason for _, replay in seen if replay.effect is None)
    lines += [
        "",
        f"{len(verdicts)} steps: {verdicts.count('kept')} falls came as promised, {verdicts.count('less')} were less, "
        f"{verdicts.count('more')} more; reserved: {sum(reserved)} within the band and a small segment. Not replayed: "
        + "; ".join(f"{count} because {reason}" for reason, count in reasons.most_common())
        + ".",
    ]
    return "\n".join(lines)


def summary(rows: list[Row]) -> str:
    verdicts = [promise.verdict for row in rows for promise in row.numbers]
    counts = {verdict: verdicts.count(verdict) for verdict in ("kept", "less", "more", "unknown")}
    return (
        f"{len(rows)} loops, {sum(row.leak is None for row in rows)} of them not found. "
        f"Of {len(verdicts)} numbers {counts['kept']} came as promised, {counts['less']} were less, {counts['more']} more, "
        f"and {counts['unknown']} were not promised."
    )


if __name__ == "__main__":
    main(sys.argv[1:])
