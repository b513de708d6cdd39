"""Verdicts on the corpus of labelled loops (tests/leaks): every finding of the last scan, on the CPU and on the GPU."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "leaks"))

import msgspec
from answers import Answers
from corpus import cases
from files import MASK, Result, differences

DEVICES = ("cpu", "cuda")
SENTENCES = ("holder", "chain", "peak_effect", "advice")
OF_THE_SCAN = (
    *("first_step", "last_step", "age_steps", "count", "held_bytes", "exclusive_bytes", "node_bytes"),
    *("peak_effect_bytes", "growth_bytes_per_step", "examples", "holder"),
)
"""Fields that depend on the step of the scan."""
VOLATILE = {
    # its graphs are found in the cycle, or beside it
    "cycles.graph_in_a_cycle": OF_THE_SCAN,
    # its exceptions have tensors of two sizes
    "cycles.kept_exception": ("held_bytes_each",),
    # scans depend on time, and the number of steps between them varies
    "tensors.features_of_each_evaluation": OF_THE_SCAN,
    "epochs.losses_begun_anew_each_epoch": OF_THE_SCAN,
    "epochs.losses_deleted_each_epoch": OF_THE_SCAN,
    "epochs.features_of_each_epoch": ("last_step", "age_steps"),
    "epochs.steps_without_a_loader": ("last_step", "age_steps"),
    "optimizers.optimizer_of_a_trial": ("first_step", "last_step", "age_steps"),
    # a thread fetches batches, and may be one ahead
    "growing_odd.beside_a_prefetcher": OF_THE_SCAN,
    # two variables refer to the same module, and the scan may see either first
    "epochs.lightning_losses_of_100": ("name", "holder", "chain", "advice"),
}
"""Loops whose findings vary from run to run in some fields; they are masked."""
TRIES = 3
"""Runs of a loop before a difference counts: a scan may come a step later on a machine that is busy."""


def area_of(device: str) -> str:
    return f"leaks_{device}"


def findings(device: str, loop: str, answers: Answers) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Facts and sentences of each finding of the last scan."""
    scans = answers.scans(device, loop)
    facts, sentences = [], []
    for leak in scans[-1][1].leaks if scans else []:
        fields = msgspec.to_builtins(leak)
        fields.pop("why")  # depends on the steps of earlier scans
        if leak.full_bytes is None:
            fields.pop("full_bytes")
        fields["file"] = Path(fields["file"]).name if fields["file"] else None
        # a key of a dictionary may be an address, or the number of a hook in this process
        fields["chain"] = [re.sub(r"\[\d+\]", f"[{MASK}]", link) for link in fields["chain"]]
        if leak.kind == "cycle":  # how many cycles wait depends on the last run of Python's collector
            fields.update((name, MASK) for name in OF_THE_SCAN)
            fields["held_bytes_each"] = leak.held_bytes / leak.count
        fields.update((name, MASK) for name in VOLATILE.get(loop, ()))
        sentences.append({name: fields.pop(name) for name in SENTENCES})
        facts.append(fields)
    return facts, sentences


def of_loop(device: str, loop: str, answers: Answers) -> Result:
    facts, sentences = findings(device, loop, answers)
    return Result({loop: facts}, {loop: sentences} if sentences else {})


def compared(device: str, loop: str, answers: Answers) -> Result:
    """Result of a loop. One that differs from the golden result is run again, as a scan may come at another step."""
    for _ in range(TRIES - 1):
        result = of_loop(device, loop, answers)
        if not differences(area_of(device), result, entries=[loop]):
            return result
        answers.forget(device, loop)
    return of_loop(device, loop, answers)


def _of_device(device: str, answers: Answers, of_one: Callable[[str, str, Answers], Result]) -> Result:
    whole = Result()
    for loop in loops():
        one = of_one(device, loop, answers)
        whole.facts |= one.facts
        whole.sentences |= one.sentences
    return whole


def loops() -> list[str]:
    """All loops, those of frameworks last: their imports change what is loaded beside the others."""
    return [name for name, _ in sorted(cases().items(), key=lambda item: item[1].truth.frameworks)]


def compute() -> dict[str, Result]:
    """A minute on two cores."""
    return _of_devices(of_loop)


def check() -> dict[str, Result]:
    return _of_devices(compared)


def _of_devices(of_one: Callable[[str, str, Answers], Result]) -> dict[str, Result]:
    loops()
    answers = Answers()
    with ThreadPoolExecutor(len(DEVICES)) as pool:
        results = list(pool.map(lambda device: _of_device(device, answers, of_one), DEVICES))
    answers.close()
    return dict(zip(map(area_of, DEVICES), results, strict=True))
