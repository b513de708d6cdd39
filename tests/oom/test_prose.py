"""Sentences of a diagnosis: short, the cause first, and sums that add up."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import pytest

from vramscope.oom_diagnosis.diagnosis import diagnose
from vramscope.oom_diagnosis.facts import Facts
from vramscope.oom_diagnosis.prose import summed

MIB = 1 << 20
STEP = Facts(
    asked_bytes=200 * MIB, total_bytes=2000 * MIB, free_bytes=100 * MIB, reserved_bytes=1400 * MIB, used_bytes=1390 * MIB,
    parameters_bytes=100 * MIB, gradients_bytes=100 * MIB, optimizer_bytes=200 * MIB, buffers_bytes=3 * MIB,
    trainable_bytes=100 * MIB, expected_state_bytes=200 * MIB, before_forward_bytes=100 * MIB, phase="forward", step=3,
    source_line="train.py:12", module="layers.3",
)  # fmt: skip
ALL = [
    STEP,
    replace(STEP, leaked_bytes=700 * MIB, leak_name="history", leak_line="train.py:9", phase="backward"),
    replace(STEP, growth_bytes=700 * MIB, phase="backward"),
    replace(STEP, used_bytes=900 * MIB, phase="backward"),
    replace(STEP, others_bytes=700 * MIB, phase="backward"),
    replace(STEP, limit_bytes=1450 * MIB, free_bytes=400 * MIB, phase="backward"),
    replace(STEP, outside_bytes=900 * MIB, outside_before_bytes=100 * MIB, phase="backward"),
    replace(STEP, parameters_bytes=1600 * MIB, optimizer_bytes=0),
    replace(STEP, phase="optimizer"),
    replace(STEP, parameters_bytes=None),
    replace(STEP, asked_bytes=None),
    Facts(kind="host", asked_bytes=5 * MIB, rss_bytes=MIB, host_total_bytes=9 * MIB, host_kills=2),
    Facts(kind="cublas", free_bytes=MIB, total_bytes=9 * MIB, reserved_bytes=5 * MIB, source_line="train.py:3"),
]


@pytest.mark.parametrize("facts", ALL, ids=lambda facts: diagnose(facts).kind.value or "unknown")
def test_the_first_sentence_is_the_cause_and_short(facts: Facts) -> None:
    sentences = re.split(r"(?<=\.) (?=[A-Z])", diagnose(facts).sentence)
    assert len(sentences[0].split()) <= 20, sentences[0]
    assert not sentences[0].startswith("Requested")
    assert all(sentence.endswith(".") for sentence in sentences)


def test_printed_parts_add_up_to_the_printed_sum() -> None:
    """And the sum is above the limit where the exact one is."""
    chosen = random.Random(7)
    for _ in range(2000):
        parts = [chosen.randrange(1 << chosen.randrange(10, 38)) for _ in range(chosen.randrange(1, 7))]
        limit = max(1, sum(parts) + chosen.randrange(-(1 << 20), 1 << 20))
        words, total, most = summed(parts, limit)
        numbers = [float(word.split()[0].replace(",", "")) for word in (*words, total, most)]
        assert len({word.split()[1] for word in (*words, total, most)}) == 1, "one unit"
        assert sum(numbers[:-2]) == pytest.approx(numbers[-2], abs=1e-6)
        assert (numbers[-2] > numbers[-1]) == (sum(parts) > limit)


def test_parts_that_would_read_as_zero_are_left_out() -> None:
    tiny = replace(
        STEP,
        asked_bytes=4096 * MIB,
        total_bytes=16384 * MIB,
        free_bytes=3400 * MIB,
        reserved_bytes=12400 * MIB,
        used_bytes=12390 * MIB,
        parameters_bytes=70_000,
        gradients_bytes=18_000,
        optimizer_bytes=139_000,
        buffers_bytes=0,
        trainable_bytes=70_000,
        expected_state_bytes=139_000,
        phase="backward",
    )
    sentence = diagnose(tiny).sentence
    assert "0.00 GiB" not in sentence
    assert "activations, batch and temporaries" in sentence.lower()


def test_parts_of_a_step_include_buffers_and_the_request() -> None:
    sentence = diagnose(STEP).sentence
    listed = re.search(r"Weights .*? in total", sentence)
    assert listed is not None
    numbers = [float(number) for number in re.findall(r"(\d+(?:\.\d+)?) MiB", listed[0].replace(",", ""))]
    assert sum(numbers[:-1]) == pytest.approx(numbers[-1])
    assert "buffers" in listed[0] and "this request" in listed[0]


def test_a_request_that_is_nearly_everything_is_named() -> None:
    """A broadcast by accident: the batch has 5 MiB, and the result of one line has 13 GiB."""
    small = {"parameters_bytes": MIB, "gradients_bytes": 0, "optimizer_bytes": 0, "used_bytes": 6 * MIB}
    alone = replace(STEP, asked_bytes=13_000 * MIB, total_bytes=8192 * MIB, reserved_bytes=20 * MIB, **small)
    alone = replace(alone, trainable_bytes=MIB, expected_state_bytes=0, buffers_bytes=0)
    assert "check the shapes on its line" in diagnose(alone).sentence
    assert "check the shapes" not in diagnose(STEP).sentence


def test_graphs_of_many_forwards_are_no_fragmentation() -> None:
    """One backward an epoch: at the sixtieth forward 10 % of the memory was idle, and forty forwards were to come."""
    idle = replace(STEP, asked_bytes=20 * MIB, used_bytes=1200 * MIB, reserved_bytes=1450 * MIB, free_bytes=10 * MIB)
    one = diagnose(replace(idle, total_bytes=1700 * MIB, forwards=1, before_forward_bytes=450 * MIB))
    many = diagnose(replace(idle, total_bytes=1700 * MIB, forwards=60, before_forward_bytes=450 * MIB))
    assert one.kind.value == "fragmentation", one.sentence
    assert many.kind.value == "activations", many.sentence
    assert "60 forwards of this step have had no backward" in many.sentence


def test_no_real_part_reads_as_zero() -> None:
    """A request of 0.39 GiB beside 110 GiB, and one of 2 MiB."""
    gib = 1 << 30
    assert summed((110 * gib, int(0.39 * gib)), 139 * gib) == (["110.0 GiB", "0.4 GiB"], "110.4 GiB", "139.0 GiB")
    assert summed((110 * gib, int(0.01 * gib)), 139 * gib) == (["110.00 GiB", "0.01 GiB"], "110.01 GiB", "139.00 GiB")
    assert summed((110 * gib, 2 * MIB), 139 * gib) == (["112,640 MiB", "2 MiB"], "112,642 MiB", "142,336 MiB")


def test_a_tiny_part_that_exceeds_the_limit_is_shown() -> None:
    """The request of 64 KiB is what did not fit."""
    tight = replace(STEP, asked_bytes=1 << 16, reserved_bytes=1900 * MIB, used_bytes=1900 * MIB, free_bytes=0)
    tight = replace(tight, total_bytes=1900 * MIB)
    sentence = diagnose(tight).sentence
    assert "this request 0.1 MiB: 1,900.1 MiB in total" in sentence and "0.00" not in sentence, sentence
