"""Runs the training again with changes, alone and together, and finds the smallest one that fits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from vramscope.protocol.dry_run import NO_EIGHT_BIT, ChangeName, ChangeOutcome
from vramscope_server.analysis.number_format import amount, steps
from vramscope_server.cli.dryrun.cards import Card
from vramscope_server.cli.dryrun.changes import SHARDED, Change, already_used, offered, on_one_card, without_useless
from vramscope_server.cli.dryrun.largest import Largest, find_largest
from vramscope_server.cli.dryrun.several_cards import TOO_CLOSE, compared
from vramscope_server.cli.dryrun.training import Plan, Trial, tell, train
from vramscope_server.cli.dryrun.verdict import (
    CONTEXT_HIGH_BYTES,
    CONTEXT_LOW_BYTES,
    LARGE_BYTES,
    Answer,
    Verdict,
    peak_reserved,
    verdict,
)

State = Literal["ran", "already used", "not applicable", "failed"]
NO_ROOM: Final = "it ran out of memory on a card of 1 TiB, too"


@dataclass(frozen=True)
class Attempt:
    """The training with some changes."""

    changes: Sequence[Change]
    state: State
    """``failed``: the changed program failed where the plain one did not."""
    reason: str
    """What was changed, or why there are no figures."""
    lines: Sequence[str] = ()
    """Code or configuration to write."""
    verdict: Verdict | None = None
    """None without a run."""

    @property
    def fits(self) -> bool:
        return self.state == "ran" and self.verdict is not None and self.verdict.answer == "fits"

    @property
    def names(self) -> frozenset[ChangeName]:
        """Names of the changes."""
        return frozenset(change.name for change in self.changes)


@dataclass(frozen=True)
class Attempts:
    """The answer of ``--try``."""

    plain: Verdict
    alone: Sequence[Attempt]
    together: Sequence[Attempt]
    smallest: Attempt | None
    """The attempt that fits and costs least; None if the plain training fits, or no attempt does."""
    largest: Sequence[Largest] = ()
    """The largest batch and sequence length that fit without a change, if the command has arguments for them."""


def judged(plan: Plan, card: Card) -> Verdict:
    """Run the training on a large card, whose peaks can be compared. If they leave it open, run it on the card itself."""
    large = train(plan, card, LARGE_BYTES, CONTEXT_HIGH_BYTES)
    if large.end == "out of memory":
        return verdict("does not fit", large, [large], card, NO_ROOM)
    answer: Answer = compared(card, large)
    trials: list[Trial] = [large]
    if answer == "too close to say" and large.end == "ended":
        trials.append(train(plan, card, card.total_bytes, CONTEXT_HIGH_BYTES))
        if trials[-1].end != "out of memory":
            answer = "fits"
        else:
            trials.append(train(plan, card, card.total_bytes, CONTEXT_LOW_BYTES))
            answer = "does not fit" if trials[-1].end == "out of memory" else "too close to say"
    return verdict(answer, large, trials, card, TOO_CLOSE if answer == "too close to say" else "")


def attempt(plan: Plan, card: Card, changes: Sequence[Change]) -> Attempt:
    """Run the training with the changes."""
    found = judged(replace(plan, changes=[change.name for change in changes]), card)
    outcomes = outcomes_of(found.trial)
    idle = [outcome.text for outcome in outcomes if not outcome.applied]
    if not outcomes or found.trial.end in ("failed", "waits", "late"):
        return Attempt(changes, "failed", found.reasons[0] if found.reasons else "no report", verdict=found)
    if idle:
        return Attempt(changes, "not applicable", "; ".join(idle))
    text = "; ".join(outcome.text for outcome in outcomes)
    lines = list(dict.fromkeys(line for outcome in outcomes for line in outcome.lines))
    return Attempt(changes, "ran", text, lines, found)


def not_applicable(change: Change, plain: Trial, before: Sequence[Attempt]) -> str | None:
    """Return why a change need not run: earlier runs show that it does nothing. None if they do not."""
    if change.name == "eight_bit_optimizer" and not any(report.has_eight_bit for report in plain.reports):
        return NO_EIGHT_BIT
    if change.name in SHARDED:  # the number of ranks does not matter
        fewer = (one for one in before if one.changes[0].name in SHARDED and one.state == "not applicable")
        return next((one.reason for one in fewer), None)
    return None


def outcomes_of(trial: Trial) -> Sequence[ChangeOutcome]:
    """Return what became of the changes: as the rank says in which least took effect."""
    reports = [report.changes for report in trial.reports if report.changes]
    return min(reports, key=lambda outcomes: sum(outcome.applied for outcome in outcomes), default=[])


def attempt_all(plan: Plan, card: Card) -> Attempts:
    """Run the plain training, each change alone, if none of them fits several together, and with other sizes."""
    tell(f"running {steps(plan.steps)} on an emulated {card.name}, on which every computed value is 0")
    plain = judged(plan, card)
    run = plain.trial.run
    if plain.answer == "not trustworthy" or run is None:
        return Attempts(plain, [], [], None)
    _tell_result("without a change", plain)
    changes = offered(card.capability)
    alone = []
    for number, change in enumerate(changes, 1):
        if (used := already_used(change, run)) is not None:
            alone.append(Attempt([change], "already used", used))
            continue
        if (reason := not_applicable(change, plain.trial, alone)) is not None:
            alone.append(Attempt([change], "not applicable", reason))
            continue
        tell(f"change {number} of {len(changes)}: {change.title}")
        alone.append(_attempt_aloud(plan, card, [change]))
    together: list[Attempt] = []

    def attempt_together(chosen: Sequence[Change]) -> Attempt:
        names = frozenset(change.name for change in chosen)
        known = next((one for one in [*alone, *together] if one.names == names), None)
        if known is None:
            tell(f"together: {', '.join(change.title for change in chosen)}")
            known = _attempt_aloud(plan, card, chosen)
            together.append(known)
        return known

    smallest = _smallest(plain, alone, attempt_together)
    return Attempts(plain, alone, together, smallest, find_largest(plan, card, plain, judged))


def _smallest(
    plain: Verdict, alone: Sequence[Attempt], attempt_together: Callable[[Sequence[Change]], Attempt]
) -> Attempt | None:
    """Return the attempt that fits and costs least: on one card if any does, alone before together.

    If the plain training fits, all changes that need one card run together once, for their figures.
    """
    usable = [one.changes[0] for one in alone if one.state == "ran"]
    few = on_one_card(usable)

    def fit_together(changes: Sequence[Change]) -> bool:
        everything = without_useless(changes)
        return len(everything) > 1 and attempt_together(everything).fits

    few_fit = fit_together(few)
    if plain.answer == "fits":
        return None
    fitting = [one for one in alone if one.fits]
    if (first := next((one for one in fitting if one.changes[0] in few), None)) is not None:
        return first
    if few_fit:
        return least(few, attempt_together)
    if fitting:
        return fitting[0]
    return least(usable, attempt_together) if fit_together(usable) else None


def least(changes: Sequence[Change], run: Callable[[Sequence[Change]], Attempt]) -> Attempt:
    """Return the changes that fit and cost least, if all of them together fit.

    The costliest change that is needed is found first: with all cheaper ones it fits, and without it no set of those does,
    as far as memory only falls with each change. Then each of the cheaper ones is left out if it is not needed.
    """
    sets = [without_useless(changes[:number]) for number in range(2, len(changes) + 1)]
    chosen = next(one for one in sets if len(one) > 1 and run(one).fits)
    for change in reversed(chosen[:-1]):
        fewer = [one for one in chosen if one is not change]
        if len(fewer) > 1 and run(fewer).fits:
            chosen = fewer
    return run(chosen)


def _attempt_aloud(plan: Plan, card: Card, changes: Sequence[Change]) -> Attempt:
    done = attempt(plan, card, changes)
    if done.state != "ran" or done.verdict is None:
        tell(f"  {done.state}: {done.reason}")
    else:
        _tell_result(done.reason, done.verdict)
    return done


def _tell_result(what: str, found: Verdict) -> None:
    tell(f"  {what}: {found.answer}, peak reserved {amount(peak_reserved(found.trial))}")
