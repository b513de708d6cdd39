"""``vramscope dryrun``: runs a training for some steps on an emulated GPU, and says whether it fits on a card."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from vramscope.protocol import assumed_value
from vramscope_server.analysis.number_format import amount, steps
from vramscope_server.cli.client import Failure, address, change, print_json
from vramscope_server.cli.dryrun import attempt_html, attempt_report, report, several_cards
from vramscope_server.cli.dryrun.attempts import attempt_all
from vramscope_server.cli.dryrun.cards import Card, cards_named
from vramscope_server.cli.dryrun.libraries import interpreter_of, libraries_for, runs_on, torch_of
from vramscope_server.cli.dryrun.training import TAG, Plan, Trial, tell, train
from vramscope_server.cli.dryrun.verdict import (
    CONTEXT_HIGH_BYTES,
    CONTEXT_LOW_BYTES,
    LARGE_BYTES,
    Verdict,
    is_certainly_too_large,
    runs_convolutions,
    verdict,
    with_fewest,
    with_workspaces,
)
from vramscope_server.cli.exit_codes import BAD_ARGUMENTS
from vramscope_server.cli.local_server import server_at

LAUNCHERS: Final = ("torchrun", "accelerate", "deepspeed")
"""Commands that start several ranks."""
LAUNCHER_MODULES: Final = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
"""Modules that do so: ``python -m torch.distributed.run``."""


def show(
    server: str,
    as_json: bool,
    command: Sequence[str],
    card: str,
    steps: int,
    timeout_seconds: float,
    tries: bool = False,
    ranks: int = 1,
    as_rank: int = 0,
    assume: Sequence[str] = (),
    html: str | None = None,
) -> int:
    """Run the command, print the answer and return the exit code. Raises client.Failure with code 2 or 4."""
    if not command:
        raise Failure("no command; example: vramscope dryrun --card l4 -- python train.py", BAD_ARGUMENTS)
    if html is not None and not tries:
        raise Failure("--html needs --try", BAD_ARGUMENTS)
    if as_rank >= ranks:
        raise Failure(f"--as-rank {as_rank} needs --ranks {as_rank + 1} or more", BAD_ARGUMENTS)
    if ranks > 1 and (launcher := _launcher(command)):
        raise Failure(f"with --ranks the command is the script itself, not {launcher}", BAD_ARGUMENTS)
    try:
        assumed = [assumed_value.parse(text) for text in assume]
    except ValueError as fault:
        raise Failure(f"--assume {fault}", BAD_ARGUMENTS) from fault
    chosen = cards_named(card)
    torch = torch_of(interpreter_of(command))
    supported = [one for one in chosen if runs_on(torch, one.capability)]
    if not supported:
        raise Failure(
            f"PyTorch {torch.version} does not run on {chosen[0].name}: it has no kernels for compute capability "
            f"{chosen[0].capability / 10}",
            BAD_ARGUMENTS,
        )
    if tries and len(supported) > 1:
        raise Failure("--try needs one card", BAD_ARGUMENTS)
    libraries = libraries_for(torch)
    url = address(server)
    with _ends_cleanly(), server_at(url, "A dry run") as used:
        plan = Plan(command, libraries, url, steps, timeout_seconds, assume=assumed, ranks=ranks, as_rank=as_rank)
        if tries:
            counting = replace(plan, counts_work=True)
            attempts = attempt_report.answer(attempt_all(counting, supported[0]), supported[0])
            if html is not None:
                attempt_html.write(Path(html), attempts)
                tell(f"wrote {html}")
            print_json(attempts) if as_json else attempt_report.print_answer(attempts)
            return attempts["exit_code"]
        if len(supported) > 1:
            several = several_cards.judge_all(plan, supported)
            rows = several_cards.rows(several)
            print_json(rows) if as_json else several_cards.print_rows(rows)
            return several_cards.exit_code(several)
        found = with_fewest_elements(plan, supported[0], judge(plan, supported[0]))
        if found.trial.run is not None:
            with contextlib.suppress(Failure):  # a token that may only add runs
                change(url, f"/runs/{found.trial.run_id}", {"tags": [TAG, found.answer]})
        answer = report.answer(found, supported[0], plan, torch.version)
    if as_json:
        print_json(answer)
    else:
        report.print_answer(answer, used.has_stopped)
    return found.exit_code


@contextlib.contextmanager
def _ends_cleanly() -> Iterator[None]:
    """Within the block, a signal that terminates the command ends the training and the server, too."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _launcher(command: Sequence[str]) -> str | None:
    """Return what starts several ranks in a command; None if nothing does."""
    name = Path(command[0]).name
    module = command[command.index("-m") + 1 :][:1] if "-m" in command else []
    return name if name in LAUNCHERS else next((one for one in module if one in LAUNCHER_MODULES), None)


def with_large_workspaces(plan: Plan, card: Card, found: Verdict) -> Verdict:
    """Run a training that fits once more with the largest workspaces of cuDNN, if it has convolutions."""
    if found.answer != "fits" or not runs_convolutions(found.trial):
        return found
    tell("convolutions ran; running again with the largest workspaces of cuDNN")
    large = replace(plan, has_large_workspaces=True, label="largest workspaces")
    return with_workspaces(found, train(large, card, LARGE_BYTES, CONTEXT_HIGH_BYTES), card)


def with_fewest_elements(plan: Plan, card: Card, found: Verdict) -> Verdict:
    """Run a training once more if it may fit when its masks select less than every element."""
    if found.bound_by is None:
        return found
    tell("it does not fit if masks select every element; running again with one element each")
    fewest = replace(plan, selects_fewest=True, label="fewest elements")
    return with_fewest(found, train(fewest, card, LARGE_BYTES, CONTEXT_HIGH_BYTES), card)


def judge(plan: Plan, card: Card) -> Verdict:
    """Run the training on the card, and where it does not fit on a large one, which shows what it needs."""
    tell(f"running {steps(plan.steps)} on an emulated {card.name}, on which every computed value is 0")
    trial = train(plan, card, card.total_bytes, CONTEXT_HIGH_BYTES)
    if trial.end != "out of memory":
        return with_large_workspaces(plan, card, verdict("fits", trial, [trial], card))
    tell("out of memory; running again on a larger card, to see what is needed")
    large = train(plan, card, LARGE_BYTES, CONTEXT_HIGH_BYTES)
    trials: list[Trial] = [trial, large]
    if large.end == "ended" and not is_certainly_too_large(card, large):
        tell("running again on the card with a smaller CUDA context")
        trials.append(train(plan, card, card.total_bytes, CONTEXT_LOW_BYTES))
        if trials[-1].end != "out of memory":
            low, high = amount(CONTEXT_LOW_BYTES), amount(CONTEXT_HIGH_BYTES)
            why = f"it fits if the CUDA context takes {low}, and does not if it takes {high}"
            return verdict("too close to say", trials[-1], trials, card, why)
    if large.end == "out of memory":
        why = "it ran out of memory on a card of 1 TiB, too, so that its need is not known"
        return verdict("does not fit", trial, trials, card, why)
    ended = f", and {steps(trial.steps)} ended" if trial.steps else ""
    caught = "" if trial.status else f"it ran out of memory; the script caught the error and went on{ended}"
    return verdict("does not fit", large, trials, card, caught)
