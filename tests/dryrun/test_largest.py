"""The largest batch and sequence that fit: which arguments are found, and how few runs the search needs."""

from __future__ import annotations

import sys

import pytest

from vramscope_server.cli.dryrun.attempt_report import largest_line, largest_row
from vramscope_server.cli.dryrun.attempts import judged
from vramscope_server.cli.dryrun.cards import MIB, card_named
from vramscope_server.cli.dryrun.largest import (
    MOST_RUNS,
    Largest,
    Measured,
    SizeArgument,
    find_largest,
    search,
    size_arguments,
)
from vramscope_server.cli.dryrun.libraries import libraries_for, torch_of
from vramscope_server.cli.dryrun.training import Plan
from vramscope_server.cli.dryrun.verdict import CONTEXT_HIGH_BYTES


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("python train.py --batch-size 8 --seq-len 512", [("--batch-size", 8), ("--seq-len", 512)]),
        ("python train.py --batch_size=8 --block_size=64", [("--batch_size", 8), ("--block_size", 64)]),
        ("python train.py batch_size=8", [("batch_size", 8)]),
        ("python -m trainer --per_device_train_batch_size 4", [("--per_device_train_batch_size", 4)]),
        ("python train.py --eval-batch-size 8 --epochs 3 --lr 0.1", []),
        ("python train.py --batch-size auto", []),
        ("torchrun --nproc-per-node 2 train.py --bs 2 --bs 4", [("--bs", 4)]),
        ("python train.py --max-length 128", [("--max-length", 128)]),
    ],
)
def test_arguments_for_sizes_are_found(command, found):
    assert [(one.option, one.value) for one in size_arguments(command.split())] == found


@pytest.mark.parametrize("command", ["python train.py --batch-size 8 x", "python train.py --batch-size=8 x"])
def test_a_value_is_replaced_where_it_is(command):
    argument = size_arguments(command.split())[0]
    assert " ".join(argument.replaced(command.split(), 16)) == command.replace("8", "16")


def searched(value: int, need, room_mib: int, grain: int = 1) -> tuple[Largest, list[int]]:
    """Search for a training that needs ``need(value)`` MiB."""
    ran: list[int] = []

    def run(value: int) -> Measured | None:
        ran.append(value)
        mib = need(value)
        return None if mib is None else Measured(mib <= room_mib, int(mib * MIB))

    argument = SizeArgument("batch size", "--batch-size", value, 3)
    present = Measured(need(value) <= room_mib, int(need(value) * MIB))
    return search(argument, present, run, room_mib * MIB, grain), ran


@pytest.mark.parametrize(
    ("value", "need", "largest"),
    [
        (8, lambda n: 1000 + 300 * n, 70),
        (200, lambda n: 1000 + 300 * n, 70),
        (8, lambda n: 1000 + 300 * n + 20 * (n % 3), 69),
        (4, lambda n: 500 + 10 * n + n * n, 141),
        (64, lambda n: 21_990 + 5 * n, 2),
        (8, lambda n: 1000 + 300 * (n - n % 3), 71),
        (70, lambda n: 1000 + 300 * n, 70),
    ],
)
def test_the_border_is_found_in_few_runs(value, need, largest):
    found, ran = searched(value, need, 22_000)
    assert (found.largest, found.too_large, found.reason) == (largest, largest + 1, "")
    assert len(ran) <= MOST_RUNS and len(set(ran)) == len(ran)


def test_large_values_are_found_to_a_hundredth():
    found, ran = searched(4096, lambda n: 100 + n // 30 * 11, 22_000)
    assert found.largest is not None and found.too_large is not None and len(ran) <= MOST_RUNS
    assert found.largest <= 59_729 < found.too_large <= 1.01 * found.largest + 1


def test_a_length_is_found_to_a_grain():
    found, _ = searched(1024, lambda n: 4000 + n * n / 1000, 22_000, grain=64)
    assert found.largest is not None and found.too_large is not None
    assert found.largest <= 4242 < found.too_large and found.too_large - found.largest <= 64


def test_what_cannot_be_found_has_a_reason():
    assert searched(8, lambda n: 500, 22_000)[0].reason == "peak reserved does not depend on --batch-size"
    found, _ = searched(8, lambda n: 900 if n == 8 else None, 22_000)
    assert (found.largest, found.too_large, found.reason) == (8, None, "--batch-size 16 gave no result")
    found, _ = searched(8, lambda n: 30_000 + n, 22_000)
    assert (found.largest, found.too_large) == (None, 1)


def test_a_value_that_is_too_close_is_not_said_not_to_fit():
    argument = SizeArgument("batch size", "--batch-size", 8, 3)
    room = 9 * MIB

    def run(value: int) -> Measured:
        return Measured(value < 9, value * MIB, is_close=value == 9)

    found = search(argument, run(8), run, room, 1)
    assert (found.largest, found.too_large, found.is_close) == (8, 9, True)
    assert largest_line(largest_row(found)).endswith("peak reserved 8.00 MiB; 9 is too close to say")
    found = search(argument, run(8), lambda value: Measured(value < 9, value * MIB), room, 1)
    assert largest_line(largest_row(found)).endswith("peak reserved 8.00 MiB; 9 does not fit")


PROGRAM = """
import argparse, torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int)
rows = parser.parse_args().batch_size
model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(100):
    nn.functional.mse_loss(model(torch.empty(rows, 1024).cuda()), torch.empty(rows, 1024).cuda()).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.gpu
def test_the_largest_batch_of_a_program(url, tmp_path):
    """Each value is a dry run. 5 numbers of 1,024 and 2 of 4,096 for each row fill the card."""
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    card = card_named("a100-1g.5gb")
    command = [sys.executable, str(script), "--batch-size", "4096"]
    plan = Plan(command, libraries_for(torch_of(sys.executable)), url, 2, 300)
    (found,) = find_largest(plan, card, judged(plan, card), judged)
    room_bytes = card.total_bytes - CONTEXT_HIGH_BYTES
    assert found.largest is not None and found.peak_reserved_bytes is not None
    assert 0.97 * room_bytes < found.peak_reserved_bytes < 1.01 * room_bytes, "cached memory may be returned"
    assert found.reason == "" and found.too_large is not None and found.too_large <= 1.01 * found.largest + 1
