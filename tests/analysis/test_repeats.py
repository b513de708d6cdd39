"""Repeats of one configuration: grouping, means and ranges."""

from __future__ import annotations

import csv
import io
import math
from typing import Any

import pytest
from compared_runs import ACCUMULATION, CHECKPOINTING, MIB, PLAIN, a_run, report_of

from vramscope_server.analysis.comparison.aggregate import groups_by, with_groups, with_repeats
from vramscope_server.analysis.comparison.export import CSV_FIELDS, as_csv, as_text
from vramscope_server.analysis.comparison.group_titles import titles
from vramscope_server.analysis.comparison.mean_and_range import mean_and_range, mean_and_range_of_ratio, t_975
from vramscope_server.analysis.comparison.repeats import is_seed, repeats
from vramscope_server.analysis.comparison.rows import compared

DIRTY = "3f1c9ab27d50+"


def seeded(seed: int | None, name: str = "run", **changes: Any) -> dict[str, Any]:
    config = {"batch_size": 64, "gradient_accumulation_steps": 1, "output_dir": f"out/{name}"}
    return a_run(f"{name}-{seed}", config=config | ({} if seed is None else {"seed": seed}), **changes)


# ---- which are ----


def test_equal_runs_and_other_seeds_are_repeats() -> None:
    assert repeats([seeded(1), seeded(2), seeded(2)]) == [[0, 1, 2]]
    assert repeats([a_run("a"), a_run("b")]) == [[0, 1]]
    assert repeats([seeded(1), a_run("other", device="Tesla T4"), seeded(2)]) == [[0, 2], [1]]


@pytest.mark.parametrize(
    "changes",
    [
        {"config": {"batch_size": 32, "seed": 2}},
        {"project": "llama"},
        {"techniques": report_of(**CHECKPOINTING)},
        {"device": "Tesla T4"},
        {"capacity_bytes": 40 * 1024 * MIB},
        {"world_size": 2},
        {"rank": {"torch": "2.12.0"}},
        {"allocator_settings": "expandable_segments:True"},
        {"git_commit": "0000000"},
        {"command": ["train.py", "--lr", "1e-4"]},
        {"command": ["other.py", "--lr", "3e-4"]},
        {"command": ["train.py", "--lr", "3e-4", "--fast"]},
        {"steps": 500},
        {"state": "running"},
        {"state": "failed"},
        {"leaks": [{"kind": "growing", "name": "history"}]},
    ],
)
def test_run_with_another_difference_is_no_repeat(changes: dict[str, Any]) -> None:
    assert repeats([a_run("a"), a_run("b", **changes)]) == [[0], [1]]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (["--seed", "1"], ["--seed", "-2"]),
        (["--seed=1", "--bf16"], ["--seed=2", "--bf16"]),
        (["trainer.seed=1"], ["trainer.seed=2"]),
        (["--output-dir", "a", "--bf16"], ["--output-dir", "b", "--bf16"]),
        (["+data.random_state=1", "x.yaml"], ["+data.random_state=2", "x.yaml"]),
    ],
)
def test_command_line_seeds_and_arguments_are_read(one: list[str], other: list[str]) -> None:
    assert repeats([a_run("a", command=["train.py", *one]), a_run("b", command=["train.py", *other])]) == [[0, 1]]


def test_random_state_is_a_seed_and_speed_is_not() -> None:
    assert all(map(is_seed, ("seed", "config.data_seed", "--SEED", "args.random_state", "seed_everything")))
    assert not any(map(is_seed, ("speed_up", "seeding.batch", "states", "learning_rate")))


def test_changed_code_is_no_repeat_unless_seeds_differ() -> None:
    """A leak was fixed between two runs of one configuration. Their mean has no meaning."""
    assert repeats([seeded(1, git_commit=DIRTY), seeded(2, git_commit=DIRTY)]) == [[0, 1]]
    assert repeats([seeded(42, git_commit=None), seeded(42, git_commit=None)]) == [[0], [1]]
    again = [seeded(seed, git_commit=DIRTY) for seed in (1, 2, 1, 2)]
    assert repeats(again) == [[0], [1], [2], [3]], "the same seeds once more: which code was theirs is not known"
    assert repeats([seeded(None, git_commit=DIRTY), seeded(1, git_commit=DIRTY)]) == [[0], [1]]


def test_runs_without_configuration_are_no_repeats() -> None:
    for command in ([], ["train.py"], ["/env/ipykernel_launcher.py", "-f", "kernel-1.json"]):
        assert repeats([a_run(name, config={}, command=command) for name in "ab"]) == [[0], [1]]


# ---- what is reported ----


def test_intervals_of_means_are_students() -> None:
    two, three = mean_and_range([10, 14]), mean_and_range([10, 14, 12])
    assert (two.mean, two.low, two.high, two.kind) == (12, 10, 14, "range")
    assert (three.mean, three.kind) == (12, "t95")
    assert three.high - 12 == pytest.approx(4.3027 * 2 / math.sqrt(3))
    assert t_975(1e9) == pytest.approx(1.96, abs=1e-3)
    exact = {11: 2.2010, 13: 2.1604, 17: 2.1098, 25: 2.0595, 49: 2.0096}
    for df, quantile in exact.items():
        assert quantile - 1e-4 <= t_975(df) <= quantile * 1.001, "between rows of the table it errs to the wide side"


def test_ratio_includes_the_spread_of_both_sides() -> None:
    assert mean_and_range_of_ratio([4, 6], [2, 2.5]).low == pytest.approx(4 / 2.5)
    one_sided, both = mean_and_range_of_ratio([4, 5, 6], [2, 2, 2]), mean_and_range_of_ratio([4, 5, 6], [1.6, 2, 2.4])
    assert one_sided.kind == both.kind == "t95" and one_sided.mean == both.mean == 2.5
    # the base is known exactly: the interval is that of the mean, divided by it
    assert one_sided.high - 2.5 == pytest.approx((mean_and_range([4, 5, 6]).high - 5) / 2)
    # equal relative errors: the error grows by the square root of two, and the degrees of freedom double
    assert both.high - 2.5 == pytest.approx(2.5 * t_975(4) * math.sqrt(2) * 0.2 / math.sqrt(3))
    assert mean_and_range_of_ratio([3, 3, 3], [2, 2, 2]).low == 1.5


def seeds_of_two() -> list[dict[str, Any]]:
    base = [
        seeded(seed, "base", allocated=1000 + seed, step_seconds_median=0.5 + seed / 100, techniques=report_of(**PLAIN))
        for seed in (1, 2, 3)
    ]
    chips = report_of(**PLAIN, **CHECKPOINTING)
    cheap = [
        seeded(seed, "cheap", allocated=500, step_seconds_median=0.6 + seed / 100, techniques=chips) for seed in (1, 2)
    ]
    return [base[0], cheap[0], base[1], cheap[1], base[2]]


def test_an_unknown_mean_is_no_lower_bound() -> None:
    """One run has its own device memory, the other that of the whole device: there is no mean."""
    runs = [seeded(1), seeded(2, rank={"peak_process_device_bytes": None, "peak_device_used_bytes": 900 * MIB})]
    rows, (together,) = with_repeats(runs, compared(runs))
    assert [row["lower_bounds"] for row in rows] == [["peak_device_bytes"]] * 2
    assert (together["peak_device_bytes"], together["lower_bounds"]) == (None, [])


def test_repeats_have_one_row_of_means_and_rows_per_run() -> None:
    runs = seeds_of_two()
    rows, together = with_repeats(runs, compared(runs))
    assert [row["run"] for row in rows] == [run["run_id"] for run in runs]
    assert [row["n"] for row in rows] == [3, 2, 3, 2, 3]
    assert rows[4]["repeats_of"] == runs[0]["run_id"] and rows[4]["peak_allocated_bytes"] == 1003 * MIB
    base, cheap = together
    assert (base["label"], base["n"], cheap["label"], cheap["n"]) == ("baseline", 3, "checkpointing", 2)
    assert [run["name"] for run in cheap["runs"]] == ["cheap-1", "cheap-2"]
    assert base["peak_allocated_bytes"] == 1002 * MIB
    told_ = base["spreads"]["peak_allocated_bytes"]
    assert told_["kind"] == "t95" and told_["high"] - told_["mean"] == pytest.approx(4.3027 / math.sqrt(3) * MIB)
    assert cheap["saved_fraction"] == pytest.approx(1 - 500 / 1002)
    saved = cheap["spreads"]["saved_fraction"]
    assert (saved["kind"], saved["low"], saved["high"]) == (
        "range",
        pytest.approx(1 - 500 / 1001),
        pytest.approx(1 - 500 / 1003),
    )
    assert cheap["step_time_ratio"] == pytest.approx(0.615 / 0.52)
    assert base["saved_fraction"] == 0 and "saved_fraction" not in base["spreads"]


def test_single_run_is_compared_with_the_mean_of_repeats() -> None:
    runs = [*seeds_of_two(), seeded(1, "alone", allocated=501, techniques=report_of(optimizer="SGD"))]
    alone = with_repeats(runs, compared(runs))[1][2]
    assert alone["n"] == 1 and alone["peak_allocated_bytes"] == 501 * MIB
    assert alone["saved_fraction"] == pytest.approx(0.5) and set(alone["spreads"]) >= {"saved_fraction"}
    assert "peak_allocated_bytes" not in alone["spreads"]


def test_without_repeats_nothing_changes() -> None:
    runs = [a_run("a"), a_run("b", allocated=500, techniques=report_of(**CHECKPOINTING), device="Tesla T4")]
    plain = compared(runs)
    before = {form: as_text(plain, form) for form in ("markdown", "latex", "csv")}
    rows, together = with_repeats(runs, plain)
    for row, one in zip(compared(runs), together, strict=True):
        assert {name: one[name] for name in row} == row
    assert {form: as_text(together, form) for form in ("markdown", "latex")} == {
        f: before[f] for f in ("markdown", "latex")
    }
    assert as_csv(rows, together) == before["csv"]


def test_diverged_repeats_are_counted() -> None:
    runs = seeds_of_two()
    odd = {"value": "nan", "step": 120, "ended": True}
    runs[4]["loss"] = {"final": None, "first": 9.0, "final_of": 1, "source": "backward", "not_finite": odd}
    base = with_repeats(runs, compared(runs))[1][0]
    assert base["loss_words"] == "NaN from step 120 (1 of 3)"
    assert any("does not learn" in reason["text"] for reason in base["reasons"])


def test_leave_one_out_is_between_means() -> None:
    everything = PLAIN | CHECKPOINTING | ACCUMULATION | {"mixed_precision": "bf16", "optimizer_8bit": "8-bit"}
    without = {kind: chip for kind, chip in everything.items() if kind != "optimizer_8bit"}
    runs = [seeded(1, "base", techniques=report_of(**PLAIN))]
    runs += [seeded(seed, "all", allocated=300 + seed, techniques=report_of(**everything)) for seed in (1, 3)]
    runs += [seeded(seed, "but", allocated=400, techniques=report_of(**without)) for seed in (1, 2)]
    _, together = with_repeats(runs, compared(runs))
    assert together[2]["label"] == "all but 8-bit"
    assert together[2]["leave_one_out"]["allocated_bytes"] == 98 * MIB


# ---- their titles ----


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["base seed 1", "base seed 2"], "base (2 runs)"),
        (["base-1-lr3", "base-2-lr3", "base-3-lr3"], "base-lr3 (3 runs)"),
        (["gpt2", "gpt2"], "gpt2 (2 runs)"),
        (["run", "run-2"], "run (2 runs)"),
        (["happy-dog", "blue-sky"], "happy-dog, … (2 runs)"),
        (["seed 1", "seed 2"], "seed 1, … (2 runs)"),
        (["only-1"], "only-1"),
    ],
)
def test_title_of_repeats_has_the_words_that_their_names_share(names: list[str], expected: str) -> None:
    assert titles([names]) == [expected]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["train 2026-10-26 10:30:12", "train 2026-11-26 10:30:12"], "train (2 runs)"),
        (["train 2026-11-26 10:30:12", "train 2026-11-26 11:45:12"], "train (2 runs)"),
        (["lr=0.1", "lr=0.2"], "lr (2 runs)"),
        (["linseed oil a", "linseed oil b"], "linseed oil (2 runs)"),
        (["", ""], "unnamed, … (2 runs)"),
    ],
)
def test_a_title_has_no_parts_of_dates_and_numbers_that_differ(names: list[str], expected: str) -> None:
    assert titles([names]) == [expected]


def test_groups_whose_names_share_the_same_words_have_other_titles() -> None:
    assert titles([["run 1", "run 2"], ["run 3", "run 4"]]) == ["run 1, … (2 runs)", "run 3, … (2 runs)"]
    assert titles([["run 1", "run 2"], ["run"]]) == ["run (2 runs)", "run"], "the number tells them apart"


# ---- as text ----


def test_tables_show_n_mean_and_interval_with_a_legend() -> None:
    runs = seeds_of_two()
    text = as_text(with_repeats(runs, compared(runs))[1], "markdown")
    head, _, base, cheap = [line for line in text.splitlines() if line.startswith("|")]
    assert "| n |" in head
    assert "| base (3 runs) | 3 | 1,002 ± 2 |" in base
    assert "| cheap (2 runs) | 2 | 500 ± 0 | -50.1 % (-50.0 % to -50.1 %) |" in cheap
    assert "615 ms (610 ms to 620 ms) | ×1.18 (×1.15 to ×1.22)" in cheap  # noqa: RUF001 - times
    assert "95 % interval of the mean by Student's t" in text
    latex = as_text(with_repeats(runs, compared(runs))[1], "latex")
    assert r"1,002 $\pm$ 2" in latex


def test_csv_has_a_line_per_run_with_its_repeats_values() -> None:
    runs = seeds_of_two()
    read = list(csv.DictReader(io.StringIO(as_csv(*with_repeats(runs, compared(runs))), newline="")))
    assert [line["run"] for line in read] == [run["run_id"] for run in runs]
    assert list(read[0])[: len(CSV_FIELDS)] == list(CSV_FIELDS)
    for line in (read[0], read[2], read[4]):
        assert (line["repeats_of"], line["n"]) == ("id-base-1", "3")
        assert float(line["peak_allocated_bytes_mean"]) == 1002 * MIB and line["peak_allocated_bytes_kind"] == "t95"
    assert read[4]["peak_allocated_bytes"] == str(1003 * MIB), "its own"
    assert read[1]["step_time_ratio_kind"] == "range" and float(read[1]["step_time_ratio_low"]) > 1


def test_groups_by_a_setting_have_means_and_ranges_and_only_shared_facts() -> None:
    runs = [
        a_run("a", allocated=1000, steps=100),
        a_run("b", allocated=400, techniques=report_of(**CHECKPOINTING), steps=100),
        a_run("c", allocated=500, steps=200),
        a_run("d", allocated=600, steps=100, state="failed"),
    ]
    rows, together = with_groups(compared(runs), groups_by(["x", "y", "y", "y"]))
    first, second = together
    assert [row["n"] for row in rows] == [1, 3, 3, 3] and rows[3]["repeats_of"] == runs[1]["run_id"]
    assert (first["group"], second["group"], first["n"], second["n"]) == ("x", "y", 1, 3)
    spread = second["spreads"]["peak_allocated_bytes"]
    assert (spread["kind"], spread["low"], spread["high"]) == ("range", 400 * MIB, 600 * MIB), "no interval"
    assert second["peak_allocated_bytes"] == 500 * MIB and second["saved_fraction"] == pytest.approx(0.5)
    assert (second["state"], second["steps"], second["label"]) == ("mixed", None, None)
    assert (first["state"], first["steps"]) == ("finished", 100)
    assert "y (3 runs)" in as_text(together, "markdown")


def test_a_group_states_nothing_that_only_its_first_run_has() -> None:
    emulated = {"devices": [{"index": 0, "emulated": True}]}
    first = a_run("a", capacity_bytes=40 * 1024 * MIB, unusable_bytes=1, recordings=1)
    other = a_run("b", capacity_bytes=80 * 1024 * MIB, unusable_bytes=2, recordings=2, rank=emulated)
    (group,) = with_groups(compared([first, other]), groups_by(["x", "x"]))[1]
    assert [group[name] for name in ("capacity_bytes", "unusable_bytes", "recordings")] == [None] * 3
    assert group["emulated"], "a time of one of them is not meaningful"
