"""Terminal lines about leaks: the first one that costs memory, the first one that grows, and corrections."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from vramscope.leaks.holders.wording import NAMELESS
from vramscope.leaks.peak_effects import TO_COME
from vramscope.leaks.registry import DROPPED
from vramscope.process import terminal
from vramscope.protocol import messages
from vramscope.protocol.leak_notes import GROWING, is_note
from vramscope.protocol.number_format import amount

SENTENCES: Final = {
    "growing": "keeps the autograd graphs of earlier steps, more with each step",
    "growing-eval": "keeps autograd graphs that no backward pass uses, more with each batch",
    "overlap": "keeps the result of the last step while the next graph is built",
    "overlap-unfreed": "keeps activations of the last step while the next graph is built",
    "no_grad-missing": "keeps an autograd graph that no backward pass uses",
    "cycle": "keeps tensors in a reference cycle until the garbage collector runs",
    "tensor-growth": "keeps more tensors with each {per}",
    "idle-optimizer": "keeps the state of an optimizer that no longer steps",
}
"""Predicate of each of series.LEAK_KINDS."""
"""Kinds that grow from step to step."""
STEPS_TO_GROW: Final = 12
"""Steps in which a container with one step's result shows whether it takes the next one's too."""


class LeakLines:
    """Lines of one session, whose page is at ``url``."""

    def __init__(self, url: str, run_peak_bytes: Callable[[], int | None] = lambda: None) -> None:
        self._url = url
        self._run_peak_bytes = run_peak_bytes
        self._first: messages.Leak | None = None
        self._growing: messages.Leak | None = None
        """The first growing leak that was reported."""
        self._withdrawn = False

    def looked(self, leaks: Sequence[messages.Leak]) -> None:
        """All findings of the session after a scan."""
        self._report([leak for leak in leaks if leak.peak_effect != TO_COME and not _may_be_filling(leak)])
        self._withdraw(leaks)

    def ended(self, leaks: Sequence[messages.Leak]) -> None:
        """All findings at the end of the training."""
        self._report(leaks)

    def _report(self, leaks: Sequence[messages.Leak]) -> None:
        """Report what raises a peak, and in any case the first leak that grows."""
        peak_bytes = self._run_peak_bytes() if leaks else None
        leaks = [leak for leak in leaks if not is_note(leak, peak_bytes)]
        growing = any(leak.kind in GROWING for leak in leaks)
        costly = [
            leak
            for leak in leaks
            if leak.peak_effect_bytes != 0 and (leak.exclusive_bytes or leak.kind in GROWING or not growing)
        ]
        if costly and self._first is None:
            self._first = costly[0]
            _print(self._first, self._url)
        grows = next((leak for leak in costly if leak.kind in GROWING), None)
        if grows is not None and self._growing is None:
            self._growing = grows
            if grows is not self._first:
                _print(grows, self._url)

    def _withdraw(self, leaks: Sequence[messages.Leak]) -> None:
        """Withdraw a report of growth that is no finding any more: it was filling up. (Unknown holders may have a name by now.)"""
        reported = self._growing
        if reported is None or self._withdrawn or reported.name == NAMELESS:
            return
        if not any(leak.kind in GROWING and _is_of(reported, leak) for leak in leaks):
            self._withdrawn = True
            end = "has been emptied" if reported.emptied_at else "has stopped growing"
            _line(f"{reported.name} {end}: ignore the earlier report. {self._url}/leaks")


def _is_of(reported: messages.Leak, leak: messages.Leak) -> bool:
    """True where one may have turned out to be the other: `state.adversarial[0]` a part of `state.adversarial`, or
    `log.epochs[*].losses` of `log.epochs`; `model.outputs` is `self.outputs` where its method runs."""
    variable = leak.name.partition("[")[0]
    return leak.file == reported.file and (
        (leak.line is not None and leak.line == reported.line)
        or variable == reported.name.partition("[")[0]
        or reported.name.startswith((f"{variable}.", f"{variable}["))
    )


def _print(leak: messages.Leak, url: str) -> None:
    where = f" ({Path(leak.file).name}:{leak.line})" if leak.file and leak.line else ""
    sentence = SENTENCES[leak.kind].format(per=leak.per) + _until_emptied(leak)
    if leak.kind == "cycle" and "in C++" in leak.holder:
        sentence = "keeps tensors in a reference cycle that no garbage collector sees"
    # A name stays as it is written: `replay` is no Replay.
    begin = 0 if leak.name and leak.advice.startswith(leak.name.partition(" ")[0]) else 1
    advice = leak.advice[:begin].upper() + leak.advice[begin:]
    said = f"{leak.holder}{where} {sentence}"
    if leak.holder.startswith(DROPPED):
        said = f"each batch builds the autograd graph of {leak.name}'s output{where}, and no backward pass uses it"
    _line(f"{said}. {advice}. {url}/leaks")


def _until_emptied(leak: messages.Leak) -> str:
    """`` until reset() (train.py:40) empties it after 100 steps, with 3.1 MiB by then``; empty if nothing is known to empty it."""
    by = f"{leak.emptied_at} empties it" if leak.emptied_at else "it is emptied"
    if leak.emptied_after is not None:
        iterations = f"{leak.emptied_after:,} {leak.per}{'e' * (leak.per == 'batch')}s"
        return f" until {by} after {iterations}, with {amount(leak.held_bytes)} by then"
    return f" until {by}, which has not happened so far" if leak.emptied_at else ""


def _line(text: str) -> None:
    if terminal.speaks_for_host():
        terminal.say(text)


def _may_be_filling(leak: messages.Leak) -> bool:
    """True for a container with the last step's result that may turn out to take each step's: ``del`` would be wrong advice.
    Also for a variable whose result another holder has too: deleting it alone frees nothing."""
    container = " -> " in leak.holder and leak.holder.endswith("]")
    return (
        (container or not leak.exclusive_bytes)
        and leak.kind.startswith("overlap")
        and leak.last_step - leak.first_step < STEPS_TO_GROW
    )
