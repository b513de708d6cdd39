"""Workspaces of cuDNN: the range that a dry run states, and the answer that follows from it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from vramscope.protocol.dry_run import ProcessReport
from vramscope_server.cli.dryrun import report
from vramscope_server.cli.dryrun.cards import MIB, card_named
from vramscope_server.cli.dryrun.libraries import libraries_for, torch_of
from vramscope_server.cli.dryrun.training import Plan, Trial, TrialEnd
from vramscope_server.cli.dryrun.verdict import (
    CONTEXT_HIGH_BYTES,
    LARGE_BYTES,
    runs_convolutions,
    verdict,
    with_workspaces,
)

CARD = card_named("l4")
ROOT = Path(__file__).parents[2]
PASSES = ("first_forward", "first_backward", "second_forward", "second_backward")
ONE_CONVOLUTION = """
import torch
x = torch.zeros({x}, device="cuda", dtype=torch.{dtype})
w = torch.zeros({w}, device="cuda", dtype=torch.{dtype})
before = torch.cuda.memory_allocated()
y = torch.nn.functional.conv2d(x, w, padding=1)
print(torch.cuda.max_memory_allocated() - before - y.nbytes)
"""


def trial(reserved_mib: int, end: TrialEnd = "ended", **known: Any) -> Trial:
    made = ProcessReport(rank=0, world_size=1, steps=3, cudnn_plans=8, reads=[], **known)
    row: Any = {
        "peak_allocated_bytes": (reserved_mib - 1) * MIB,
        "peak_reserved_bytes": reserved_mib * MIB,
        "ranks": [],
    }
    row |= {"peak_step": 2, "peak_phase": "backward", "peak_categories": None}
    return Trial(LARGE_BYTES, CONTEXT_HIGH_BYTES, 3, "a" * 16, 0, end, [made], row)


def answered(small: Trial, large: Trial) -> Any:
    found = with_workspaces(verdict("fits", small, [small], CARD), large, CARD)
    return report.answer(found, CARD, Plan([], [], "http://x", 3, 60), "2.13.0")


def test_a_training_that_fits_with_the_largest_workspaces_fits():
    answer = answered(trial(5000), trial(7000))
    assert runs_convolutions(trial(5000))
    assert (answer["answer"], answer["exit_code"]) == ("fits", 0)
    assert answer["left_bytes"] == CARD.total_bytes - CONTEXT_HIGH_BYTES - 7000 * MIB
    assert (answer["peak_reserved_bytes"], answer["peak_reserved_high_bytes"]) == (5000 * MIB, 7000 * MIB)
    rows = dict(report._rows(answer, server_stopped=False))
    assert rows["cuDNN"].startswith("with its largest workspaces 6.83 GiB allocated, 6.84 GiB reserved")
    assert "at least" in report.headline(answer)


def test_larger_workspaces_that_need_less_leave_no_more():
    """Their blocks are reused differently."""
    answer = answered(trial(7000), trial(5000))
    assert answer["left_bytes"] == CARD.total_bytes - CONTEXT_HIGH_BYTES - 7000 * MIB
    assert answer["peak_reserved_high_bytes"] == 7000 * MIB


def test_a_training_that_fits_without_workspaces_only_is_too_close_to_say():
    answer = answered(trial(5000), trial(30_000))
    assert (answer["answer"], answer["exit_code"], answer["left_bytes"]) == ("too close to say", 1, None)
    assert "with the largest workspaces of cuDNN its peak reserved is 29.3 GiB" in report.headline(answer)


def test_a_second_run_that_fails_says_nothing():
    answer = answered(trial(5000), trial(30_000, end="failed"))
    assert (answer["answer"], answer["peak_allocated_high_bytes"]) == ("fits", None)
    assert "lower bounds" in dict(report._rows(answer, server_stopped=False))["cuDNN"]


def test_with_trials_of_algorithms_no_upper_bound_is_known():
    answer = answered(trial(5000, tries_algorithms=True), trial(7000))
    assert any("no upper bound is known" in text for _, text in report._rows(answer, server_stopped=False))


def emulated(code: str, *words: str, seconds: int = 170) -> str:
    """Run Python on an emulated H100 whose convolutions get the largest workspaces."""
    libraries = libraries_for(torch_of(sys.executable))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("EMULATED_GPU_")}
    environment |= {"EMULATED_GPU_LEDGER": "private", "EMULATED_GPU_CUDNN_WORKSPACE": "most"}
    environment |= {"LD_PRELOAD": " ".join(map(str, libraries))}
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        env=environment,
        cwd=ROOT / "benchmarks",
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("x", "w", "dtype", "expected"),
    [
        # copies of 64 + 64 channels and the weights, and 2 * 132 * 65,536 registers in whole results of 8 MiB
        ((8, 64, 64, 64), (64, 64, 3, 3), "float32", (2 * 8 * 64 * 64**2 + 64 * 64 * 9) * 4 + 9 * 8 * MIB),
        # three channels are padded to eight; a result of 50 MiB twice
        (
            (4, 3, 224, 224),
            (64, 3, 1, 1),
            "bfloat16",
            (4 * 8 * 224**2 + 64 * 8 + 4 * 64 * 226**2) * 2 + 2 * 4 * 64 * 226**2 * 4,
        ),
        # Winograd: 36 values for 16 results, for both images and for the weights
        (
            (32, 256, 128, 128),
            (256, 256, 3, 3),
            "float32",
            (2 * 32 * 256 * 128**2 + 256 * 256 * 9) * 4 + 36 * 4 * (2 * 32 * 256 * 32**2 + 256 * 256),
        ),
    ],
    ids=["partial results", "padded channels", "Winograd"],
)
def test_the_largest_workspace_follows_from_the_shape(x, w, dtype, expected):
    found = int(emulated(ONE_CONVOLUTION.format(x=x, w=w, dtype=dtype)).split()[-1])
    assert 0 <= found - expected < MIB, "a block is not split for less"


@pytest.mark.gpu
@pytest.mark.slow
def test_workspaces_of_an_h100_are_in_the_range():
    """As docs/dryrun.md says. The others are FFT, which is not in the range, and three input channels."""
    code = "import json; from library_workspaces import convolutions; print(json.dumps(convolutions()))"
    most = json.loads(emulated(code).splitlines()[-1])
    real = json.loads((ROOT / "benchmarks/results/model_peaks_h100_2026-11-27.json").read_text())["convolutions"]
    pairs = [(own[name], other[name]) for own, other in zip(most, real, strict=True) for name in PASSES]
    assert all(own["kernel"] == other["kernel"] for own, other in zip(most, real, strict=True))
    outside = [measured / largest for largest, measured in pairs if measured > largest]
    assert (len(pairs), len(outside)) == (768, 6)
    assert sorted(outside)[3] < 1.02
