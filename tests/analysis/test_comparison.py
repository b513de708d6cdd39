"""Comparison with a baseline: labels of combinations, comparability, savings, and tables as text."""

from __future__ import annotations

import csv
import io
import re
from typing import Any

import pytest
from compared_runs import ACCUMULATION, BF16, CHECKPOINTING, EIGHT_BIT, FP16, MIB, PLAIN, a_run, report_of

from vramscope_server.analysis.comparison.batch_size import batch_of
from vramscope_server.analysis.comparison.export import CSV_FIELDS, FORMATS, as_text
from vramscope_server.analysis.comparison.labels import chips_of, names
from vramscope_server.analysis.comparison.rows import compared
from vramscope_server.reports.comparison_table import COLUMNS as TERMINAL
from vramscope_server.reports.comparison_table import cells


def labels(*techniques: dict[str, str] | None) -> list[str | None]:
    return [name.label for name in names([None if own is None else chips_of(report_of(**own)) for own in techniques])]


# ---- names ----


def test_labels_of_the_articles_table() -> None:
    everything = PLAIN | CHECKPOINTING | ACCUMULATION | FP16 | EIGHT_BIT
    without_8bit = PLAIN | CHECKPOINTING | ACCUMULATION | FP16
    assert labels(
        PLAIN, PLAIN | CHECKPOINTING, PLAIN | ACCUMULATION, PLAIN | FP16, PLAIN | EIGHT_BIT, everything, without_8bit
    ) == ["baseline", "checkpointing", "accumulation 4", "fp16", "8-bit", "all", "all but 8-bit"]


def test_small_combinations_are_named_one_by_one() -> None:
    both = PLAIN | CHECKPOINTING | BF16
    assert labels(PLAIN, PLAIN | CHECKPOINTING, PLAIN | BF16, both)[-1] == "checkpointing + bf16"


def test_another_value_of_a_technique_is_not_the_same_combination() -> None:
    """ "all" with fp16: the same with bf16 is neither "all" nor "all but"."""
    fp16, bf16 = (PLAIN | CHECKPOINTING | ACCUMULATION | dtype for dtype in (FP16, BF16))
    found = labels(PLAIN, fp16, bf16)
    assert found[1:] == ["checkpointing + accumulation 4 + fp16", "checkpointing + accumulation 4 + bf16"]


def test_all_requires_every_technique() -> None:
    everything = PLAIN | CHECKPOINTING | ACCUMULATION | FP16
    assert labels(PLAIN, everything) == ["baseline", "checkpointing + accumulation 4 + fp16"]
    assert labels(PLAIN, everything, PLAIN | FP16)[1] == "all"
    assert labels(everything, PLAIN) == ["baseline", "no checkpointing + no accumulation 4 + no fp16"]
    assert (
        labels(PLAIN | CHECKPOINTING, PLAIN | FP16 | ACCUMULATION | EIGHT_BIT, PLAIN | CHECKPOINTING | FP16)[1] != "all"
    )


def test_missing_technique_of_the_baseline_is_named() -> None:
    assert labels(PLAIN | BF16, PLAIN) == ["baseline", "no bf16"]
    assert labels(PLAIN, PLAIN) == ["baseline", "same techniques as the baseline"]
    assert labels(PLAIN, {**PLAIN, "batch": "batch 8"}) == ["baseline", "batch 8"]
    assert labels(PLAIN, None) == ["baseline", None], "an old agent sends none"
    assert labels(None, PLAIN) == ["baseline", None]


def test_declared_but_unobserved_is_no_technique() -> None:
    techniques = report_of(gradient_checkpointing="checkpointing", mixed_precision="bf16")
    techniques[0]["observed"] = ""
    assert chips_of(techniques) == {"mixed_precision": "bf16"}


# ---- figures ----


def test_savings_of_all_three_peaks() -> None:
    base, half = compared([a_run(allocated=1000), a_run(allocated=500, step_seconds_median=0.6, trained_seconds=600.0)])
    assert half["saved_fraction"] == 0.5
    assert half["reserved_saved_fraction"] == pytest.approx(1 - 600 / 1100)
    assert half["device_saved_fraction"] == pytest.approx(1 - 1400 / 1900)
    assert (half["step_time_ratio"], half["wall_time_ratio"]) == (pytest.approx(1.2), pytest.approx(1.2))
    assert (base["effective_batch"], base["samples_per_second"]) == (64, 128.0)
    assert base["saved_fraction"] == 0.0 and base["peak_device_of"] == "process"


def test_one_technique_within_the_combination() -> None:
    """In the article, 8-bit state saves nothing alone, and 310 MiB within the combination."""
    everything = PLAIN | CHECKPOINTING | ACCUMULATION | FP16 | EIGHT_BIT
    without = PLAIN | CHECKPOINTING | ACCUMULATION | FP16
    rows = compared(
        [
            a_run("base", allocated=12589, techniques=report_of(**PLAIN)),
            a_run("all", allocated=2873, techniques=report_of(**everything)),
            a_run("all but", allocated=3183, techniques=report_of(**without)),
        ]
    )
    assert rows[2]["leave_one_out"] == {
        "technique": "8-bit",
        "run": "id-all",
        **{f"{kind}_bytes": 310 * MIB for kind in ("allocated", "reserved", "device")},
    }
    assert "8-bit lowers the peak within the combination by 310 MiB" in as_text(rows, "markdown")


def test_unknown_values_stay_unknown() -> None:
    bare = a_run("bare", allocated=None, steps=0, step_seconds_median=None, trained_seconds=None, config={}, ranks=[])
    for rows in (compared([a_run(), bare]), compared([bare, a_run()]), compared([bare])):
        row = next(row for row in rows if row["name"] == "bare")
        for field in (
            "peak_allocated_bytes",
            "peak_device_bytes",
            "saved_fraction",
            "wall_time_ratio",
            "effective_batch",
        ):
            assert row[field] is None, field
        for form in FORMATS:
            assert as_text(rows, form)


def test_effective_batch_needs_all_three_factors() -> None:
    seen = report_of(batch="batch 16", gradient_accumulation="accumulation 4")
    seen[0]["detail"], seen[1]["detail"] = {"batch_size": 16}, {"micro_steps": 4}
    assert batch_of(a_run(techniques=seen, config={}, world_size=2)).effective == 128
    assert batch_of(a_run(techniques=seen[:1], config={})).effective == 16, "looked for, and not there"
    shared = report_of(batch="batch 16")
    shared[0]["detail"] = {"batch_size": 16, "effective_batch_size": 32}
    assert batch_of(a_run(techniques=shared, config={}, world_size=8)).effective == 32, "four ranks share a batch"
    assert batch_of(a_run(config={"batch_size": 8})).effective is None, "accumulation is not known"
    assert (
        batch_of(a_run(config={"args.per_device_train_batch_size": 8, "args.gradient_accumulation_steps": 2})).effective
        == 16
    )
    assert batch_of(a_run(config={"batch_size": "8", "gradient_accumulation_steps": True})).effective is None


# ---- what is comparable ----


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({"device": "Tesla T4"}, "card", "another device: Tesla T4"),
        ({"capacity_bytes": 40 * 1024 * MIB}, "card", "40.0 GiB"),
        ({"world_size": 8}, "ranks", "8 ranks"),
        ({"rank": {"torch": "2.12.0"}}, "torch", "PyTorch 2.12.0, the baseline has 2.13.0"),
        ({"config": {"batch_size": 32, "gradient_accumulation_steps": 1}}, "batch", "effective batch 32"),
        ({"config": {"bs": 1, "batch": 2}}, "batch", "batch is 2, in the baseline not set"),
        ({"steps": 500}, "steps", "500 steps, the baseline has 1,000"),
        ({"steps": 1}, "steps", "only 1 step:"),
        ({"steps": None}, "steps", "no steps"),
        ({"state": "running"}, "running", "still running"),
        ({"state": "lost"}, "lost", "lost: its end is unknown"),
        ({"state": "failed", "error_type": "torch.OutOfMemoryError"}, "failed", "error (torch.OutOfMemoryError)"),
        ({"rank": {"peak_other_processes_bytes": 3 * 1024 * MIB}}, "tenants", "3.00 GiB of the device"),
        ({"lower_bound_steps": 3}, "foreign_reset", "a lower bound: other code reset the peak counters in 3 steps"),
    ],
)
def test_incomparable_run_has_a_reason(changes: dict[str, Any], kind: str, words: str) -> None:
    base, other = compared([a_run("base"), a_run("other", **changes)])
    assert base["reasons"] == []
    assert any(words in reason["text"] for reason in other["reasons"] if reason["kind"] == kind), other["reasons"]
    if kind in ("steps", "running", "lost", "failed"):
        assert other["wall_time_ratio"] is None


def test_accumulation_alone_stays_comparable() -> None:
    divided = a_run("divided", config={"batch_size": 16, "gradient_accumulation_steps": 4})
    assert compared([a_run(), divided])[1]["reasons"] == []


# ---- as text ----

NASTY = r"a|b & 50% of_x {y} \z ~ ^ $1$ #3 *bold* `code` [link](u) <img src=x>" + "\nnext"


def split_markdown(line: str) -> list[str]:
    return re.split(r"(?<!\\)\|", line)[1:-1]


def test_markup_in_a_name_stays_one_markdown_cell() -> None:
    lines = as_text(compared([a_run("base"), a_run(NASTY)]), "markdown").splitlines()
    head, rule, *body = [split_markdown(line) for line in lines if line.startswith("|")]
    assert len(body) == 2 and {len(head), len(rule)} == {len(line) for line in body}
    cell = " ".join(body[1])
    assert "<" not in cell.replace("\\<", "")
    assert re.sub(r"\\([^\w\s]|_)", r"\1", cell).replace("&amp;", "&").strip().startswith(" ".join(NASTY.split()))


def test_markup_in_a_name_stays_one_latex_cell() -> None:
    text = as_text(compared([a_run("base"), a_run(NASTY), a_run("[4pt] *")]), "latex")
    lines = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert len(lines) == 4
    assert len({len(re.findall(r"(?<!\\)&", line)) for line in lines}) == 1
    nasty = lines[2]
    for begins in ("%", "_", "#", "{", "}", "$"):
        own = re.sub(r"\\text\w+\{\}|\$\\(?:times|geq)\$|\{\}", "", nasty)  # what is ours
        assert all(own[m.start() - 1] == "\\" for m in re.finditer(re.escape(begins), own)), begins
    assert re.search(r"(?m)^\{\}\[4pt\]", text), r"after \\ it would be an argument"


def test_formulas_stay_text_in_csv_with_all_fields() -> None:
    rows = compared([a_run("=cmd()|x", techniques=report_of(**PLAIN)), a_run(NASTY)])
    read = list(csv.DictReader(io.StringIO(as_text(rows, "csv"), newline="")))
    assert [row["name"] for row in read] == ["'=cmd()|x", NASTY]
    assert list(read[0]) == list(CSV_FIELDS)
    assert read[0]["peak_allocated_bytes"] == str(1000 * MIB) and read[1]["techniques"] == ""


@pytest.mark.parametrize("form", ["markdown", "latex"])
def test_emulated_gpus_have_a_note_on_timing(form: str) -> None:
    emulated = a_run("emulated", rank={"devices": [{"index": 0, "emulated": True}]})
    assert "timing is not meaningful" in as_text(compared([a_run(), emulated]), form)
    assert "timing is not meaningful" not in as_text(compared([a_run(), a_run("other")]), form)


def test_the_peak_on_the_device_is_a_lower_bound_whose_samples_are_compared() -> None:
    """The driver has no peak counter: its highest sample may be below the peak."""
    base, other = a_run("base"), a_run("other", rank={"peak_process_device_bytes": 700 * MIB})
    rows = compared([base, other])
    assert [row["lower_bounds"] for row in rows] == [["peak_device_bytes"]] * 2
    assert rows[1]["saved_bounds"] == {} and rows[1]["device_saved_fraction"] is not None
    text = as_text(rows, "markdown")
    assert re.search(r"\| ≥ 700 \|", text) and "the driver is read in samples" in text
    cell = cells(rows[1], is_baseline=False, repeated=False)[[column.title for column in TERMINAL].index("DEVICE")]  # type: ignore[arg-type]
    assert cell == "≥ 700 MiB"
    unknown = compared([a_run(ranks=[])])
    assert unknown[0]["lower_bounds"] == [] and "≥" not in as_text(unknown, "markdown")


def test_only_columns_with_values_are_shown() -> None:
    full = as_text(compared([a_run(techniques=report_of(**PLAIN))]), "markdown").splitlines()[0]
    assert "device MiB" in full and "effective batch" in full
    bare = as_text(
        compared([a_run(ranks=[], config={}, trained_seconds=None, leak_count=None)]), "markdown"
    ).splitlines()[0]
    for absent in ("device MiB", "effective batch", "wall time", "leaked"):
        assert absent not in bare
