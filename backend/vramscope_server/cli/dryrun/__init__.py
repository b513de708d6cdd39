"""``vramscope dryrun``: runs a training for some steps on an emulated GPU, and says whether it fits on a card."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from vramscope_server.cli.client import Failure, address, print_json
from vramscope_server.cli.dryrun import report
from vramscope_server.cli.dryrun.cards import Card, card_named
from vramscope_server.cli.dryrun.libraries import interpreter_of, libraries_for, torch_of
from vramscope_server.cli.dryrun.training import Plan, Trial, train
from vramscope_server.cli.dryrun.verdict import (
    CONTEXT_HIGH_BYTES,
    CONTEXT_LOW_BYTES,
    LARGE_BYTES,
    Verdict,
    is_certainly_too_large,
    verdict,
)
from vramscope_server.cli.exit_codes import BAD_ARGUMENTS
from vramscope_server.cli.local_server import server_at

OLDEST_CAPABILITY = 75
"""Lowest compute capability that builds of PyTorch for CUDA 13 support."""


def show(server: str, as_json: bool, command: Sequence[str], card: str, steps: int, timeout_seconds: float) -> int:
    """Run the command, print the verdict and return the exit code. Raises client.Failure with code 2 or 4."""
    if not command:
        raise Failure("no command; example: vramscope dryrun --card l4 -- python train.py", BAD_ARGUMENTS)
    chosen = card_named(card)
    torch = torch_of(interpreter_of(command))
    if chosen.capability < OLDEST_CAPABILITY:
        raise Failure(
            f"PyTorch {torch.version} does not run on {chosen.name}: its compute capability is "
            f"{chosen.capability / 10}, and CUDA 13 needs {OLDEST_CAPABILITY / 10}",
            BAD_ARGUMENTS,
        )
    libraries = libraries_for(torch)
    url = address(server)
    with server_at(url, "A dry run") as is_ours:
        plan = Plan(command, libraries, url, steps, timeout_seconds)
        found = judge(plan, chosen)
        answer = report.answer(found, chosen, plan, torch.version)
    if as_json:
        print_json(answer)
    else:
        report.print_answer(answer, is_ours)
    return found.exit_code


def judge(plan: Plan, card: Card) -> Verdict:
    """Run the training on the card, and where it does not fit on a large one, which shows what it needs."""
    _tell(f"running {plan.steps} steps on an emulated {card.name}, on which every computed value is 0")
    trial = train(plan, card, card.total_bytes, CONTEXT_HIGH_BYTES)
    if trial.end != "out of memory":
        return verdict("fits", trial, [trial], card)
    _tell("out of memory; running again on a larger card, to see what is needed")
    large = train(plan, card, LARGE_BYTES, CONTEXT_HIGH_BYTES)
    trials: list[Trial] = [trial, large]
    if large.end == "ended" and not is_certainly_too_large(card, large):
        _tell("running again on the card with a smaller CUDA context")
        trials.append(train(plan, card, card.total_bytes, CONTEXT_LOW_BYTES))
        if trials[-1].end != "out of memory":
            return verdict("too close to say", trials[-1], trials, card)
    return verdict("does not fit", large, trials, card)


def _tell(sentence: str) -> None:
    print(f"vramscope: {sentence}", file=sys.stderr, flush=True)
