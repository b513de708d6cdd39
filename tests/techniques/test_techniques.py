"""Techniques reported for trainings with the real libraries: all that are used, and no others."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

import warm
from expected import BATCHES, EXPECTED, OPTIMIZERS

from vramscope.protocol import series

pytestmark = [pytest.mark.gpu, pytest.mark.frameworks, pytest.mark.timeout(900), pytest.mark.xdist_group("techniques")]


class Answers(dict[str, Any]):
    """Reports of all cases. Access to a failed case fails with its error."""

    def __getitem__(self, case: str) -> Any:
        answer = super().__getitem__(case)
        if "failed" in answer:
            pytest.fail(f"{case}: {answer['failed']}", pytrace=False)
        return answer


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """Reports of all cases, run one after the other in one process, so that leftovers of a case show up."""
    folder = tmp_path_factory.mktemp("techniques")
    code = (
        f"import json, sys, warnings; warnings.filterwarnings('ignore'); sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "import watching; open('answers.json', 'w').write(json.dumps(watching.run_all()))"
    )
    done = warm.run(code, env={**os.environ, "HF_HUB_OFFLINE": "1", "WANDB_DISABLED": "true"}, cwd=folder, timeout=840)
    assert done.returncode == 0, done.stderr[-4000:]
    return Answers(json.loads((folder / "answers.json").read_text()))


def of_kind(message: dict[str, Any], kind: str) -> dict[str, Any] | None:
    return next((technique for technique in message["techniques"] if technique["kind"] == kind), None)


@pytest.mark.parametrize("case", EXPECTED)
def test_exactly_the_expected_techniques_are_reported(reported, case: str) -> None:
    techniques, findings = EXPECTED[case]
    last = reported[case]["last"]
    seen = {
        technique["kind"]: (technique["chip"], technique["declared"], technique["observed"])
        for technique in last["techniques"]
        if technique["kind"] not in ("optimizer", "batch")
    }
    assert seen == techniques
    assert {technique["kind"] for technique in last["techniques"]} <= set(series.TECHNIQUES), "the wire takes any word"
    assert {finding["kind"] for finding in last["findings"]} == findings


def test_every_case_is_expected(reported) -> None:
    assert reported.keys() == EXPECTED.keys()


def test_nothing_stays_hooked(reported) -> None:
    assert {case for case, answer in reported.items() if answer["left"]} == set()


def test_unchanged_runs_report_at_most_three_times(reported) -> None:
    """Reports come at attach, after the second step, and for findings that need a second observation."""
    assert max(answer["messages"] for answer in reported.values()) <= 3


@pytest.mark.parametrize("case", OPTIMIZERS)
def test_optimizers(reported, case: str) -> None:
    optimizer = of_kind(reported[case]["last"], "optimizer")
    assert (optimizer["chip"], optimizer["declared"], optimizer["observed"]) == OPTIMIZERS[case]


@pytest.mark.parametrize("case", BATCHES)
def test_batches(reported, case: str) -> None:
    """The effective batch is unknown if two models take turns, or several forward passes share a backward."""
    batch = of_kind(reported[case]["last"], "batch")
    assert (batch["chip"], batch["declared"], batch["detail"].get("effective_batch_size")) == BATCHES[case]


def test_input_rows_are_reported_if_larger_than_the_batch(reported) -> None:
    rows = {case: of_kind(reported[case]["last"], "batch")["detail"].get("input_rows") for case in BATCHES}
    assert {case: row for case, row in rows.items() if row is not None} == {
        "two_views_of_a_batch": 16,
        "lightning_gan": 16,
    }


def test_one_sequence_is_singular(reported) -> None:
    assert of_kind(reported["one_packed_sequence"]["last"], "batch")["observed"] == "1 sequence of 51"


def test_no_batch_is_reported_for_per_sample_gradients(reported) -> None:
    assert of_kind(reported["gradients_of_each_sample"]["last"], "batch") is None


def test_declared_techniques_are_reported_before_the_first_step(reported) -> None:
    """A run that fails in its first step has its declared techniques."""
    first = reported["hf_all"]["first"]
    assert first["step"] == 0
    assert {technique["kind"]: technique["observed"] for technique in first["techniques"]} == dict.fromkeys(
        ("gradient_checkpointing", "gradient_accumulation", "mixed_precision", "optimizer", "batch", "attention")
    )
    assert reported["plain"]["first"]["techniques"] == []


def test_8bit_optimizer_without_effect_has_a_reason(reported) -> None:
    (small,), (other, *_) = (
        reported[case]["last"]["findings"] for case in ("hf_with_an_adapter", "hf_optimizer_of_ones_own")
    )
    assert ["such tensors keep 32 bits" in finding["text"] for finding in (small, other)] == [True, False]


@pytest.mark.parametrize(
    "case", ["closure_late", "closure_late_reentrant", "closure_by_number", "checkpoint_unset", "cache_emptied"]
)
def test_pitfall_has_a_source_line(reported, case: str) -> None:
    """The line of the user's code to change."""
    (finding,) = reported[case]["last"]["findings"]
    line = Path(finding["file"]).read_text().splitlines()[finding["line"] - 1]
    assert Path(finding["file"]).name == "cases.py"
    assert ("checkpoint(" if "cache" not in case else "empty_cache()") in line


def test_earlier_training_is_counted_to_the_byte(reported) -> None:
    """Three layers of 2048 x 2048 in float32: parameters and two moments."""
    (finding,) = reported["earlier_run_alive"]["last"]["findings"]
    assert f"{3 * 3 * (2048 * 2048 + 2048) * 4 / 2**20:,.0f} MiB" in finding["text"]


def test_results_of_an_earlier_training_name_their_variable(reported) -> None:
    """1024 rows of 65,536 numbers of the first training's outputs, in float32."""
    (finding,) = reported["earlier_run_outputs_alive"]["last"]["findings"]
    assert "1 result tensor (local 'outputs' of train_again()), 256 MiB" in finding["text"]


def test_eval_mode_finding_names_the_checkpointing_method(reported) -> None:
    (finding,) = reported["checkpoint_gated_in_eval_mode"]["last"]["findings"]
    assert "Gated.forward" in finding["text"]
    line = Path(finding["file"]).read_text().splitlines()[finding["line"] - 1]
    assert line.strip().startswith("def forward(self, x")


def test_framework_setting_replaces_the_source_line(reported) -> None:
    (finding,) = reported["hf_all"]["last"]["findings"]
    assert finding["file"] is None
    assert "remove torch_empty_cache_steps=1" in finding["advice"]
