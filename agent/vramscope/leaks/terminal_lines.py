"""What the terminal is told of leaks: the first that costs anything, the first that grows, and what is taken back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from vramscope.leaks.holders.wording import NAMELESS
from vramscope.leaks.registry import TO_COME
from vramscope.oom_diagnosis.prose import amount
from vramscope.process import terminal
from vramscope.protocol import messages

SAID_OF: Final = {
    "growing": "keeps the autograd graphs of earlier steps alive, more from step to step",
    "growing-eval": "keeps graphs that no backward will ever walk, more from batch to batch",
    "overlap": "still holds the last step's result while the next graph is built",
    "overlap-unfreed": "still holds activations of the last step while the next graph is built",
    "no_grad-missing": "holds a graph that no backward will ever walk",
    "cycle": "holds tensors in a reference cycle until the garbage collector comes by",
    "tensor-growth": "keeps more tensors from {per} to {per}",
}
"""how the console words each of series.LEAK_KINDS"""
GROWS: Final = ("growing", "growing-eval", "tensor-growth", "cycle")
"""of these kinds there is more from step to step"""
STEPS_TO_GROW: Final = 12
"""that a container which holds a step's result has, to show whether it takes the next one's too"""


class LeakLines:
    """For one session, whose page is at ``url``."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._first: messages.Leak | None = None
        self._growing: messages.Leak | None = None
        """the first that was told to grow"""
        self._taken_back = False

    def looked(self, leaks: Sequence[messages.Leak]) -> None:
        """A look has found these, with those before it."""
        self._say([leak for leak in leaks if leak.peak_effect != TO_COME and not _may_be_filling(leak)])
        self._take_back(leaks)

    def ended(self, leaks: Sequence[messages.Leak]) -> None:
        """The training is over: what was waited for will not come."""
        self._say(leaks)

    def _say(self, leaks: Sequence[messages.Leak]) -> None:
        """Held is not saved: of what lowers no peak nothing is said. What grows is told whatever was told before."""
        growing = any(leak.kind in GROWS for leak in leaks)
        costly = [
            leak
            for leak in leaks
            if leak.peak_effect_bytes != 0 and (leak.exclusive_bytes or leak.kind in GROWS or not growing)
        ]
        if costly and self._first is None:
            self._first = costly[0]
            _say(self._first, self._url)
        grows = next((leak for leak in costly if leak.kind in GROWS), None)
        if grows is not None and self._growing is None:
            self._growing = grows
            if grows is not self._first:
                _say(grows, self._url)

    def _take_back(self, leaks: Sequence[messages.Leak]) -> None:
        """What was told to grow and is no finding any more was filling up. (Of one that nobody could name, the name may have been
        found.)"""
        told = self._growing
        if told is None or self._taken_back or told.name == NAMELESS:
            return
        if not any(leak.kind in GROWS and _is_of(told, leak) for leak in leaks):
            self._taken_back = True
            said = "has been emptied" if told.emptied_at else "has stopped growing"
            _line(f"{told.name} {said}: what was said of it is taken back. {self._url}/leaks")


def _is_of(told: messages.Leak, leak: messages.Leak) -> bool:
    """Whether one may be what the other has turned out to be: `state.adversarial[0]` one of what `state.adversarial` takes, or
    `log.epochs[*].losses` the only one so far in `log.epochs`; `model.outputs` is `self.outputs` where its method runs."""
    variable = leak.name.partition("[")[0]
    return leak.file == told.file and (
        (leak.line is not None and leak.line == told.line)
        or variable == told.name.partition("[")[0]
        or told.name.startswith((f"{variable}.", f"{variable}["))
    )


def _say(leak: messages.Leak, url: str) -> None:
    where = f" ({Path(leak.file).name}:{leak.line})" if leak.file and leak.line else ""
    said = SAID_OF[leak.kind].format(per=leak.per) + _until_emptied(leak)
    if leak.kind == "cycle" and "in C++" in leak.holder:
        said = "holds tensors in a reference cycle that no collector sees"
    # A name stays as it is written: `replay` is no Replay.
    begin = 0 if leak.name and leak.advice.startswith(leak.name.partition(" ")[0]) else 1
    advice = leak.advice[:begin].upper() + leak.advice[begin:]
    _line(f"{leak.holder}{where} {said}. {advice}. {url}/leaks")


def _until_emptied(leak: messages.Leak) -> str:
    """`` until reset() (train.py:40) empties it after 100 steps; it holds 3.1 MiB then``; "" where nothing is known to empty it."""
    by = f"{leak.emptied_at} empties it" if leak.emptied_at else "it is emptied"
    if leak.emptied_after is not None:
        rounds = f"{leak.emptied_after:,} {leak.per}{'e' * (leak.per == 'batch')}s"
        return f" until {by} after {rounds}; it holds {amount(leak.held_bytes)} then"
    return f" until {by}, which was not seen so far" if leak.emptied_at else ""


def _line(text: str) -> None:
    if terminal.speaks_for_host():
        terminal.say(text)


def _may_be_filling(leak: messages.Leak) -> bool:
    """A container with the last step's result, which may turn out to take each step's: ``del`` would be the wrong advice. Or a
    variable whose result somebody else has too: to let go of it alone frees nothing."""
    container = " -> " in leak.holder and leak.holder.endswith("]")
    return (
        (container or not leak.exclusive_bytes)
        and leak.kind.startswith("overlap")
        and leak.last_step - leak.first_step < STEPS_TO_GROW
    )
