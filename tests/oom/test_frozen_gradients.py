"""Gradients that weights still have after they were frozen."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from vramscope.oom.frozen_gradients import frozen_gradient_bytes
from vramscope.oom_diagnosis.diagnosis import diagnose
from vramscope.oom_diagnosis.facts import Facts
from vramscope.protocol import series

MIB = 1 << 20
BACKWARD = Facts(
    phase="backward", step=5, asked_bytes=48 * MIB, free_bytes=22 * MIB, reserved_bytes=1506 * MIB, used_bytes=1424 * MIB,
    total_bytes=2048 * MIB, parameters_bytes=64 * MIB, gradients_bytes=0, optimizer_bytes=128 * MIB, trainable_bytes=64 * MIB,
    other_models_bytes=896 * MIB, expected_state_bytes=128 * MIB, peak_before_bytes=1376 * MIB, end_before_bytes=1100 * MIB,
    peak_now_bytes=1424 * MIB, before_forward_bytes=1136 * MIB, input_shape=(6144, 2048), input_shape_before=(6144, 2048),
)  # fmt: skip


def test_only_gradients_that_no_optimizer_applies_are_counted() -> None:
    encoder, head = nn.Linear(32, 32, bias=False), nn.Linear(32, 32, bias=False)
    for one in (encoder, head):
        one.weight.grad = torch.zeros(32, 32)
    first = torch.optim.SGD(encoder.parameters(), 0.1)
    parameters = [encoder.weight, head.weight]
    assert frozen_gradient_bytes(parameters, [first], series.CPU, {id(first)}) == 0, "no weights are frozen"
    encoder.requires_grad_(False)
    assert frozen_gradient_bytes(parameters, [first], series.CPU, {id(first)}) == 4096
    assert frozen_gradient_bytes(parameters, [], series.CPU, set()) == 4096
    assert frozen_gradient_bytes(parameters, [first], series.CPU, set()) == 0, (
        "a critic, frozen for one half of the step"
    )
    shared = torch.zeros(2, 32, 32)
    encoder.weight.grad, head.weight.grad = shared[0], shared[1]
    assert frozen_gradient_bytes(parameters, [], series.CPU, set()) == 0, "freeing a part of one buffer frees nothing"
    encoder.zero_grad()
    assert frozen_gradient_bytes(parameters, [], series.CPU, set()) == 0


def test_they_are_the_cause_if_the_step_fits_without_them() -> None:
    died = diagnose(replace(BACKWARD, frozen_gradients_bytes=448 * MIB))
    assert (died.kind, died.first_aid) == (
        "weights",
        "Set the gradients of weights to None when you freeze them: model.zero_grad().",
    )
    assert "Gradients of frozen weights take 448 MiB. No optimizer uses them." in died.sentence
    assert diagnose(BACKWARD).kind != "weights"
    few = diagnose(replace(BACKWARD, frozen_gradients_bytes=8 * MIB))
    assert "frozen" not in few.sentence, "less than what was missing"
    larger = diagnose(replace(BACKWARD, asked_bytes=800 * MIB, frozen_gradients_bytes=448 * MIB))
    assert "frozen" not in larger.sentence, "the request does not fit without them"
