"""Predictions against the real allocator, made to run under the settings that were predicted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from measured import measure_all

from vramscope_server.analysis.advice.facts import StepFacts
from vramscope_server.analysis.advice.rules import fragmentation
from vramscope_server.analysis.number_format import amount
from vramscope_server.analysis.oom.recording_evidence import evidence_of
from vramscope_server.analysis.simulator.settings import AllocatorSettings, BadSetting
from vramscope_server.analysis.snapshot_format.reader import read
from vramscope_server.analysis.trace.trace import Trace
from vramscope_server.analysis.whatif.confidence import OWN_LIMIT
from vramscope_server.analysis.whatif.recommendation import Risk, recommend, risk_of, without_evidence
from vramscope_server.analysis.whatif.sweep import DEFAULT_SWEEP, predict, smallest_device, sweep

DOCUMENT = Path(__file__).parent / "RESULTS.md"
GIB = 1 << 30
CARD = 80 * GIB
COUNTED = ("peak_reserved_bytes", "peak_allocated_bytes", "retries", "device_allocs", "out_of_memory")


@pytest.fixture(scope="module")
def traces(recorded: dict[str, Any]) -> dict[str, Trace]:
    return {kind: read(one.path).devices[0] for kind, one in recorded.items()}


@pytest.fixture(scope="module")
def truth(recorded: dict[str, Any], traces: dict[str, Trace]) -> dict[tuple[str, str], dict[str, Any]]:
    """What the real allocator does with ``lengths`` and with other trainings under settings that were not recorded."""
    outside = recorded["lengths"].counted["outside_bytes"]
    card = smallest_device(traces["lengths"], "max_split_size_mb:64")
    assert card is not None
    asked: dict[tuple[str, str], Any] = {
        ("lengths", "max_split_size_mb:64"): {"steps": 6},
        ("lengths", "expandable_segments:True"): {"steps": 6},
        ("lengths", "expandable_segments:True,roundup_power2_divisions:8"): {"steps": 6},
        ("lengths", "garbage_collection_threshold:0.6,per_process_memory_fraction:0.06"): {"steps": 6, "total": CARD},
        ("evaluation", ""): {"steps": 4},
        ("late", "expandable_segments:True"): {"steps": 7, "from_step": 3},
        ("late", "max_split_size_mb:64"): {"steps": 7, "from_step": 3},
        ("late texts", "roundup_power2_divisions:4"): {"steps": 4, "from_step": 2},
        ("on the card", "max_split_size_mb:64"): {"steps": 6, "total": card + outside},
        ("on a smaller one", "max_split_size_mb:64"): {"steps": 6, "total": card + outside - card // 50},
    }
    names = {"late": "lengths", "late texts": "generation", "on the card": "lengths", "on a smaller one": "lengths"}
    answers = measure_all([(names.get(kind, kind), conf, wish) for (kind, conf), wish in asked.items()])
    return dict(zip(asked, answers, strict=True))


def test_what_is_predicted_is_what_the_allocator_then_does(
    traces: dict[str, Trace], truth: dict[tuple[str, str], dict[str, Any]]
) -> None:
    """To the byte, counters too, where the history begins with the first allocation; from and to expandable segments."""
    compared = 0
    for (kind, conf), measured in truth.items():
        if kind not in ("lengths", "evaluation"):
            continue
        prediction = predict(traces[kind], conf, device_bytes=CARD)
        assert {name: getattr(prediction, name) for name in COUNTED} == {name: measured[name] for name in COUNTED}, (
            kind,
            conf,
        )
        assert prediction.band is None
        compared += 1
    assert compared == 5


def test_the_run_survives_on_the_smallest_card_and_dies_on_a_smaller_one(
    truth: dict[tuple[str, str], dict[str, Any]],
) -> None:
    assert not truth["on the card", "max_split_size_mb:64"]["out_of_memory"]
    assert truth["on a smaller one", "max_split_size_mb:64"]["out_of_memory"]


def test_a_history_that_begins_late_gets_a_band_around_the_truth(
    traces: dict[str, Trace], recorded: dict[str, Any], truth: dict[tuple[str, str], dict[str, Any]]
) -> None:
    """And under its own settings what was recorded, exactly."""
    for kind, conf in (
        ("late", "expandable_segments:True"),
        ("late", "max_split_size_mb:64"),
        ("late texts", "roundup_power2_divisions:4"),  # a text before was longer, and took a segment more for it
    ):
        prediction = predict(traces[kind], conf)
        assert prediction.band is not None
        low, high = prediction.band
        assert low <= truth[kind, conf]["peak_reserved_bytes"] <= high
        assert low <= prediction.peak_reserved_bytes <= high
        assert "mid-run" in " ".join(prediction.notes)
    whole = recorded["late"].counted["peak_reserved_bytes"]
    _, highest = predict(traces["late"], "expandable_segments:True").band or (0, 0)
    assert 0 < highest <= whole, "what was left behind counts once"
    own = predict(traces["late"], "")
    assert own.band is None
    assert own.peak_reserved_bytes == recorded["late"].counted["peak_reserved_bytes"]


def test_the_advice_on_settings_is_the_recommendation_of_the_sweep(traces: dict[str, Trace]) -> None:
    """Also of a history that begins late. Without a sweep there is no advice."""
    for name, card in (("lengths", None), ("late", None), ("lengths", 400 * GIB)):
        trace = traces[name] if card is None else replace(traces[name], device_total_bytes=card)
        made = sweep(trace)
        advice = fragmentation.advise(StepFacts(trace, sweep=made))
        assert (advice is None) == (made.recommendation.conf is None) == (card is not None)
        if advice is not None and made.recommended is not None:
            assert made.recommendation.words in advice.sentence
            assert advice.saves_bytes == made.recommended.saved_bytes
            assert f"={made.recommendation.conf}." in advice.sentence
        assert fragmentation.advise(StepFacts(trace)) is None


def test_a_sweep_is_of_no_use_for_a_run_that_reserved_more_elsewhere(traces: dict[str, Trace]) -> None:
    """A window of a small step knows nothing of larger ones. The variable stays that of the run's backend."""
    trace = traces["lengths"]
    alone = sweep(trace)
    assert alone.in_view_of(None) is alone and alone.in_view_of(alone.rows[0].reserved_bytes) is alone
    more = sweep(trace, run_peak_bytes=2 * alone.rows[0].reserved_bytes)
    assert more.recommended is None and "does not contain the run's peak" in more.recommendation.words
    assert more.recommendation.variable == alone.recommendation.variable
    assert f"Outside this window the run reserved up to {amount(2 * alone.rows[0].reserved_bytes)}" in more.notes[-1]
    assert fragmentation.advise(StepFacts(trace, sweep=more)) is None


def test_a_sweep_begins_with_the_recorded_settings_and_can_be_stopped(traces: dict[str, Trace]) -> None:
    seen: list[tuple[int, int]] = []
    result = sweep(traces["lengths"], progress=lambda done, total: seen.append((done, total)))
    total = 1 + len(set(DEFAULT_SWEEP) | {""})
    assert seen == [(done, total) for done in range(total + 1)], (
        "the replay that must give what was recorded comes first"
    )
    assert [row.recorded for row in result.rows] == [True] + [False] * (total - 2)
    assert result.residual.exact
    base = result.rows[0].smallest_device_bytes
    assert base is not None
    for row in result.rows:
        assert row.smallest_device_bytes is not None
        assert row.saved_bytes == base - row.smallest_device_bytes
        assert row.smallest_device_bytes >= row.prediction.peak_allocated_bytes
    assert result.recommendation.conf == "expandable_segments:True"

    class Enough(Exception):
        pass

    def stop(done: int, total: int) -> None:
        if done == 1:
            raise Enough

    with pytest.raises(Enough):
        sweep(traces["lengths"], progress=stop)


def test_a_run_that_died_is_replayed_with_the_request_that_failed(
    traces: dict[str, Trace], recorded: dict[str, Any]
) -> None:
    """On its own card it dies again, at the same event; on a large one it passes, and needs more than was there."""
    trace = traces["died"]
    again = predict(trace, "")
    assert again.out_of_memory
    assert again.out_of_memory_at_event is not None
    assert trace.events.action[again.out_of_memory_at_event] == trace.events.action.max()
    assert again.retries == recorded["died"].counted["retries"]
    large = predict(trace, "", device_bytes=CARD)
    assert not large.out_of_memory
    assert large.peak_reserved_bytes > again.peak_reserved_bytes
    assert "What would have followed is unknown" in " ".join(sweep(trace, []).notes)
    # What a setting saves is of all that was needed, not of what there was without the request.
    confs = ["", "expandable_segments:True", "max_split_size_mb:20"]
    for one in evidence_of(trace, confs).replayed:
        other = predict(trace, one.conf)
        peak = other.uncapped_peak_reserved_bytes if other.out_of_memory else other.peak_reserved_bytes
        assert one.saves_bytes == max(0, large.peak_reserved_bytes - peak), one.conf
        assert one.survives != other.out_of_memory


def test_expandable_segments_with_max_split_size_grow_and_are_never_recommended(traces: dict[str, Trace]) -> None:
    result = sweep(traces["lengths"], ["max_split_size_mb:64,expandable_segments:True"])
    row = result.rows[1]
    assert row.risk.level == 3
    assert "123548" in row.risk.source
    assert "was skipped" in " ".join(row.prediction.notes)
    assert result.recommendation.conf is None


def test_settings_that_need_a_limit_say_so(traces: dict[str, Trace]) -> None:
    prediction = predict(traces["lengths"], "garbage_collection_threshold:0.5")
    assert "does nothing without a limit" in " ".join(prediction.notes)
    assert prediction.peak_reserved_bytes == predict(traces["lengths"], "").peak_reserved_bytes
    assert prediction.certainty == "estimate"
    assert OWN_LIMIT in prediction.reasons


def test_settings_that_pytorch_refuses_are_refused_with_its_reason(traces: dict[str, Trace]) -> None:
    with pytest.raises(BadSetting, match="max_split_size_mb"):
        sweep(traces["ring"], ["", "max_split_size_mb:5"])


def test_what_is_said_of_a_risk_names_its_source() -> None:
    for conf in DEFAULT_SWEEP[1:]:
        risk = risk_of(AllocatorSettings.parse(conf))
        assert risk.level > 0 and risk.words and risk.source.startswith("https://"), conf
        assert ".md" not in risk.words, "a file of the repository is no link on a page"


def test_what_is_said_of_large_segments_is_in_the_table_that_it_names() -> None:
    """1.6 % at most: of the peaks in tests/whatif/RESULTS.md, which predictions_table.py makes."""
    table = DOCUMENT.read_text().partition("<!-- table -->")[2].partition("<!-- /table -->")[0]
    rows = [line.split("|") for line in table.splitlines() if line.startswith("| `")]
    peaks: dict[str, list[int]] = {}
    for row in rows:
        peaks.setdefault(row[1].strip(" `"), [int(cell.split()[0]) for cell in row[2:-1]])
    moved = [new / old - 1 for new, old in zip(peaks["large_segment_size_mb:64"], peaks["default"], strict=True)]
    assert 0.0155 < max(map(abs, moved)) <= 0.0165
    assert "moved the peak by 1.6 % at most" in risk_of(AllocatorSettings.parse("large_segment_size_mb:64")).words


# ---- the choice ----


@dataclass(frozen=True)
class Tried:
    conf: str
    smallest_device_bytes: int | None
    risk: Risk
    uncertainty_bytes: int = 0
    reserved_bytes: int = GIB
    is_bounded: bool = True
    out_of_memory: bool = False


def tried(conf: str, gib: float | None, level: int = 0, uncertainty: int = 0) -> Tried:
    return Tried(conf, None if gib is None else int(gib * GIB), Risk(level, "", ""), uncertainty)


def test_the_smallest_card_wins_with_the_least_risk() -> None:
    own = tried("", 10)
    assert recommend(own, [tried("a", 8, 2), tried("b", 8.05, 1), tried("c", 9, 0)]).conf == "b"
    assert recommend(own, [tried("a", 6, 2), tried("b", 8.05, 1)]).conf == "a"


def test_what_is_reserved_where_there_is_room_is_told_where_the_card_gains_nothing() -> None:
    own = Tried("", 10 * GIB, Risk(0, "", ""), reserved_bytes=50 * GIB)
    some = Tried("a", 10 * GIB, Risk(1, "", ""), reserved_bytes=11 * GIB)
    slow = Tried("b", 10 * GIB, Risk(2, "", ""), reserved_bytes=10 * GIB)
    recommended = recommend(own, [slow, some])
    assert recommended.conf is None and "a reserves 11.0 GiB instead of 50.0 GiB" in recommended.words
    little = recommend(own, [Tried("a", 10 * GIB, Risk(1, "", ""), reserved_bytes=46 * GIB)])
    assert "On a device with room" not in little.words


def test_it_is_left_as_it_is_when_nothing_helps_for_certain() -> None:
    own = tried("", 10)
    assert recommend(own, [tried("a", 9.95), tried("b", 11), tried("c", None)]).conf is None
    assert recommend(own, [tried("a", 5, 3)]).conf is None
    assert recommend(own, [replace(tried("a", 5), is_bounded=False)]).conf is None
    assert recommend(own, [tried("a", 9, uncertainty=GIB)]).conf is None
    assert recommend(tried("", None), [tried("a", 5)]).conf is None
    assert recommend(own, []).words.startswith("Keep the settings")


def test_a_saving_counts_from_two_percent_of_the_device() -> None:
    own, other = tried("", 10), tried("a", 9.5)
    assert recommend(own, [other]).conf == "a", "5 % of what the run needs, where the device is unknown"
    assert recommend(own, [other], 24 * GIB).conf == "a", "2.1 % of 24 GiB"
    kept = recommend(own, [other], 80 * GIB)
    assert kept.conf is None and "no other setting saves 2 % of the device" in kept.words


def test_a_setting_that_may_slow_the_run_down_must_save_a_tenth_of_the_device() -> None:
    own = tried("", 10)
    little = recommend(own, [tried("a", 9.5, 2)])
    assert little.conf is None
    assert (
        little.words
        == "Keep the settings: the recorded run needs a device of 10.0 GiB. a needs 512 MiB less, but may slow the run down."
    )
    assert recommend(own, [tried("a", 8.9, 2)]).conf == "a"
    assert recommend(own, [tried("a", 9.2, 2), tried("b", 9.5, 1)]).conf == "b", "the other is not worth its risk"
    assert recommend(own, [tried("a", 9.5, 2)], 80 * GIB).words.startswith(
        "Keep the settings: the recorded run needs a device of 10.0 GiB, and"
    )


def test_a_setting_that_avoids_a_failure_is_recommended_whatever_it_saves() -> None:
    own = replace(tried("", 10.1), out_of_memory=True)
    saving, risky = tried("a", 9.99, 1), tried("b", 9, 2)
    assert recommend(own, [risky, saving], 10 * GIB).conf == "a", "the least risk of those that survive"
    assert recommend(own, [replace(saving, out_of_memory=True)], 10 * GIB).conf is None


def test_a_recording_that_cannot_support_it_has_no_recommendation() -> None:
    few, elsewhere = without_evidence(1, GIB, None), without_evidence(1000, GIB, 2 * GIB)
    assert few is not None and few.conf is None and "only 1 event" in few.words
    assert elsewhere is not None and elsewhere.conf is None and "does not contain the run's peak" in elsewhere.words
    assert without_evidence(1000, GIB, GIB) is None and without_evidence(1000, GIB, None) is None
