"""Makes the tables of RESULTS.md: what the replay predicts against what the real allocator then does.

    python tests/whatif/predictions_table.py           # half a minute on two cores; rewrites the part of the page between the marks
    python tests/whatif/predictions_table.py --check   # rewrites nothing; exit 1 where anything comes otherwise than predicted

Each training runs once with history, and again under each setting; a second time with a history that begins in its middle, a
third time with the agent, which is attached when the model is there;
and on the smallest card that the replay names for a setting, and on one that is a little smaller.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("EMULATED_GPU_LEDGER", "private")  # else whatever runs beside it has a part of the small cards

from measured import Question, measure_all

from vramscope.protocol.window import unpack
from vramscope_server.analysis.snapshot_format.reader import read
from vramscope_server.analysis.trace.from_window import from_window
from vramscope_server.analysis.trace.trace import Trace
from vramscope_server.analysis.whatif.sweep import check, predict, smallest_device

PAGE = Path(__file__).resolve().parent / "RESULTS.md"
MIB = 1 << 20
CARD = 80 << 30
NAMES = ("gpt", "cnn", "lengths", "evaluation", "accumulation", "prefetch")
CONFS = (
    "",
    "expandable_segments:True",
    "max_split_size_mb:32",
    "max_split_size_mb:64",
    "max_split_size_mb:256",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]",
    "expandable_segments:True,roundup_power2_divisions:8",
    "max_split_size_mb:128,roundup_power2_divisions:8",
    "max_split_size_mb:128,max_non_split_rounding_mb:64",
    "large_segment_size_mb:64",
    "expandable_segments:True,large_segment_size_mb:64",
    "garbage_collection_threshold:0.6,per_process_memory_fraction:0.07",
    "max_split_size_mb:64,expandable_segments:True",
)
IN_WINDOW = tuple(name for name in NAMES if name != "evaluation")  # (its first one comes behind the window)
LATE = ("expandable_segments:True", "max_split_size_mb:64", "max_split_size_mb:256", "roundup_power2_divisions:8")
COUNTED = ("peak_reserved_bytes", "peak_allocated_bytes", "retries", "device_allocs", "out_of_memory")
SMALL = ("", "expandable_segments:True", "max_split_size_mb:64")
STEPS, FROM_STEP, WINDOW_STEPS = 6, 3, 3


def recorded(folder: Path, names: Sequence[str], **wishes: Any) -> dict[str, tuple[Trace, dict[str, Any]]]:
    """Each training's trace, and what the allocator counted."""
    paths = {name: str(folder / f"{name}-{wishes.get('from_step', 0)}.pickle.gz") for name in names}
    answers = measure_all([(name, "", {"steps": STEPS, "snapshot": path, **wishes}) for name, path in paths.items()])
    return {name: (read(paths[name]).devices[0], one) for name, one in zip(names, answers, strict=True)}


def first_windows(folder: Path, names: Sequence[str]) -> dict[str, Trace]:
    """As the agent records them of the first steps."""
    paths = {name: folder / f"{name}.window" for name in names}
    measure_all([(name, "", {"steps": WINDOW_STEPS, "window": str(path)}) for name, path in paths.items()])
    return {name: from_window(unpack(path.read_bytes())) for name, path in paths.items()}


def main() -> None:
    words = argparse.ArgumentParser()
    words.add_argument("--check", action="store_true", help="rewrite nothing; exit 1 where anything comes otherwise")
    only_check = words.parse_args().check
    differences: list[str] = []
    with tempfile.TemporaryDirectory() as there:
        folder = Path(there)
        whole = recorded(folder, NAMES, total=CARD)
        late = recorded(folder, NAMES, steps=9, from_step=FROM_STEP)
        first = first_windows(folder, IN_WINDOW)
        outside = whole["gpt"][1]["outside_bytes"]
        questions: list[Question] = [(name, conf, {"steps": STEPS, "total": CARD}) for conf in CONFS for name in NAMES]
        questions += [(name, conf, {"steps": 9, "from_step": FROM_STEP}) for conf in LATE for name in NAMES]
        questions += [(name, conf, {"steps": WINDOW_STEPS}) for conf in LATE for name in IN_WINDOW]
        cards = {(name, conf): smallest_device(whole[name][0], conf) or 0 for conf in SMALL for name in NAMES}
        for (name, conf), size in cards.items():
            questions.append((name, conf, {"steps": STEPS, "total": size + outside}))
            questions.append((name, conf, {"steps": STEPS, "total": size + outside - max(size // 50, 4 * MIB)}))
        answers = iter(measure_all(questions))
        lines = [
            *_whole(whole, answers, differences),
            "",
            f"A history that begins after step {FROM_STEP} of 9: peak reserved as measured from there on, MiB;",
            *_banded({name: trace for name, (trace, _) in late.items()}, answers, differences),
            "",
            f"A window of the first {WINDOW_STEPS} steps, as the agent records it that is attached when the model is there:",
            "the same, of the trainings whose window holds their highest moment;",
            *_banded(first, answers, differences),
            "",
            *_small(cards, answers, differences),
        ]
    print("\n".join(lines))
    if only_check:
        sys.exit("\n".join(["", *differences]) if differences else 0)
    text = PAGE.read_text()
    marked = re.sub(
        r"(<!-- table -->\n).*(<!-- /table -->)", lambda m: m[1] + "\n".join(lines) + "\n" + m[2], text, flags=re.DOTALL
    )
    PAGE.write_text(marked)


def _whole(whole: dict[str, tuple[Trace, dict[str, Any]]], answers: Any, differences: list[str]) -> list[str]:
    lines = [f"| settings | {' | '.join(NAMES)} |", f"|---|{'---|' * len(NAMES)}"]
    same = 0
    for conf in CONFS:
        cells = []
        for name in NAMES:
            seen, measured = predict(whole[name][0], conf, device_bytes=CARD), next(answers)
            error = seen.peak_reserved_bytes - measured["peak_reserved_bytes"]
            off = [
                f"{key} {getattr(seen, key)} {measured[key]}" for key in COUNTED if getattr(seen, key) != measured[key]
            ]
            if off:
                differences.append(f"{name} under {conf or 'default'}, predicted and measured: {', '.join(off)}")
            same += not off
            cells.append(f"{measured['peak_reserved_bytes'] / MIB:.0f}{f' ({error:+,} B)' if error else ''}")
        lines.append(f"| `{conf or 'default'}` | {' | '.join(cells)} |")
    residuals = {name: check(trace) for name, (trace, _) in whole.items()}
    differences += [f"{name}: {residual.words}" for name, residual in residuals.items() if not residual.exact]
    exact = sum(residual.exact for residual in residuals.values())
    return [
        "Peak reserved as measured, MiB; in brackets predicted minus measured, where that is not 0. Of "
        f"{len(CONFS) * len(NAMES)} runs {same} have the same",
        "peak reserved, peak allocated, retries, cudaMalloc count and out-of-memory; under its own settings the replay of",
        f"{exact} of {len(whole)} histories is identical at each address.",
        "",
        *lines,
    ]


def _banded(traces: dict[str, Trace], answers: Any, differences: list[str]) -> list[str]:
    """How far predictions and the ends of their bands are off."""
    cells: dict[str, list[str]] = {name: [] for name in traces}
    inside = same = 0
    for conf in LATE:
        for name in traces:
            seen, measured = predict(traces[name], conf), next(answers)["peak_reserved_bytes"]
            low, high = seen.band or (seen.peak_reserved_bytes, seen.peak_reserved_bytes)
            inside += low <= measured <= high
            same += seen.peak_reserved_bytes == measured
            if not low <= measured <= high:
                differences.append(
                    f"{name} from step {traces[name].first_step} on under {conf}: {measured} lies outside of {low} to {high}"
                )
            errors = [f"{(size / measured - 1) * 100:+.1f}" for size in (seen.peak_reserved_bytes, low, high)]
            cells[name].append(f"{measured / MIB:.0f}, {errors[0]} ({errors[1]}..{errors[2]})")
    return [
        "error of the prediction in percent, and of the ends of its band. "
        f"{inside} of {len(LATE) * len(traces)} lie inside, {same} are right to the byte.",
        "",
        f"| | {' | '.join(f'`{conf}`' for conf in LATE)} |",
        f"|---|{'---|' * len(LATE)}",
        *(f"| {name} | {' | '.join(row)} |" for name, row in cells.items()),
    ]


def _small(cards: dict[tuple[str, str], int], answers: Any, differences: list[str]) -> list[str]:
    lines = [f"| settings | {' | '.join(NAMES)} |", f"|---|{'---|' * len(NAMES)}"]
    right = 0
    for conf in SMALL:
        cells = []
        for name in NAMES:
            size, survived, died = cards[name, conf], not next(answers)["out_of_memory"], next(answers)["out_of_memory"]
            right += survived + died
            wrong = ("" if survived else " (dies)") + ("" if died else " (survives on less)")
            if wrong:
                differences.append(f"{name} under {conf or 'default'} on a card of {size}:{wrong}")
            cells.append(f"{size / MIB:.0f}{wrong}")
        lines.append(f"| `{conf or 'default'}` | {' | '.join(cells)} |")
    return [
        "The smallest card that the replay names, MiB beside the context, and what the real allocator does on it and on",
        f"one that is 2 % smaller: {right} of {2 * len(cards)} as predicted.",
        "",
        *lines,
    ]


if __name__ == "__main__":
    main()
