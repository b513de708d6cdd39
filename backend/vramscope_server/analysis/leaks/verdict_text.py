"""Sentences from numbers: what a page says first, and a terminal alone. Held is not saved: two numbers, always.

The API sends them (``api/leaks.py``), so that page and command line say the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from vramscope.protocol import messages
from vramscope.protocol.leak_notes import is_cut, slows_down
from vramscope.protocol.series import OVERLAPS
from vramscope_server.analysis.number_format import amount, count, duration
from vramscope_server.analysis.series.trend import MIN_STEPS, Trend

FAR_STEPS: Final = 1_000_000
"""Maximum number of steps of a forecast; no training is longer."""

SEVERAL_A_STEP: Final = 1.5
"""Ratio of graphs to steps from which on a step adds several: a loss and its logits, say."""

EXPLAINED: Final = 0.5
"""Share of the growth that containers which may fill up must have, so that it is not called a leak yet."""

LEAST_SHARE: Final = 0.01
"""Rise of the memory after a step, as a share of it, from which on growth that nobody is named for gets a badge."""
LEAST_RISE_BYTES: Final = 512 << 10
"""Rise in the whole run, from which on it gets one: in a small model, a few more numbers are a considerable share."""

_NO_STEPS: Final = "No optimizer step has ended, so growth is unknown."

KIND_WORDS: Final = {
    "growing": "graphs of earlier steps are kept",
    "growing-eval": "an evaluation keeps its graphs",
    "overlap": "the last step's result lives into the next",
    "overlap-unfreed": "the last step's graph lives into the next",
    "no_grad-missing": "graphs are built without need",
    "cycle": "a reference cycle holds tensors",
    "tensor-growth": "tensors are kept, more and more",
    "idle-optimizer": "state of an optimizer that no longer steps",
}
"""Each of ``series.LEAK_KINDS`` in a few words."""
NEWER_WORDS: Final = "found by a newer agent"
"""Words for a kind that is none of them."""
# The memory of series.OVERLAPS can be freed at two times: when its step ends, as is measured, or after its last use in the next
# one, as a replay assumes. They lower the peak by different amounts.
AT_THE_END: Final = "at the end of its step (del)"
AFTER_LAST_USE: Final = "after its last use within the step"
STEADY: Final = ("overlap", "overlap-unfreed", "no_grad-missing", "idle-optimizer")
"""Of these there is as much in each step."""
GATHERED_WORDS: Final = "tensors are collected, and freed together"
"""The same of tensors that were seen to be emptied."""
ON_HOST_WORDS: Final = "kept on the host"
"""The same of what a training on a card keeps in the host's memory."""


@dataclass(frozen=True, slots=True)
class RunLeakVerdict:
    """One sentence or a few, and how grave it is.

    leak     somebody is named who has more from step to step
    held     somebody is named who keeps as much in each step: a result that lives into the next, a graph that nobody walks; or
             who gathers more and more, and is emptied again and again
    host     what is named lies in the host's memory alone
    growth   nobody is named, but the floor rises
    none     looked, and nothing grows as far as can be seen
    unknown  nobody has looked, or there are too few steps to tell growth
    """

    level: Literal["leak", "held", "host", "growth", "none", "unknown"]
    sentence: str


def leak_verdict(
    leaks: Sequence[Mapping[str, Any]],
    *,
    looked: bool,
    steps: int,
    ended: bool,
    floor: Trend | None,
    steps_left: float | None,
    seconds_left: float | None,
    ran_out_step: int | None = None,
    models_slope: float | None = None,
    growing_peaks: Trend | None = None,
    not_scanned: str = "",
    saw_no_reason: bool = False,
    ran_out: bool = False,
    filling: Sequence[messages.Leak] = (),
) -> RunLeakVerdict:
    """What a run's leaks come to.

    leaks         as ``store.leaks.merge_leaks`` gives them, worst first
    looked        whether the agent has scanned at least once
    steps         that have ended
    ended         the run has
    floor         the fit of the floor; None: too few steps, or not known
    steps_left    until out of memory at this slope; None where not known, where nothing grows, or where it cannot come to that
    ran_out_step  in which it came to that; None: it did not
    models_slope  growth per step of the models themselves, if the floor rises by it (:func:`models_slope`)
    growing_peaks the fit of the highest allocated memory of steps, if the steps themselves grow (:func:`work_grows`)
    not_scanned   what the newest scan left out; "": nothing
    saw_no_reason the agent reported, but memory gave it no reason to scan
    ran_out       there was an out-of-memory error, whose own diagnosis searches for holders
    filling       containers that grow and may fill up, the largest first
    """
    end = _end(steps_left, seconds_left) if ran_out_step is None else f": memory ran out in step {count(ran_out_step)}"
    on_card = [leak for leak in leaks if not leak["on_host"]]
    is_filled = floor is not None and sum(_pace(leak, steps) for leak in filling) >= EXPLAINED * floor.slope
    if on_card:
        sentences = [_who(leaks[0]), _how_much(leaks[0])]
        steady = all(leak["note"] or is_steady(leak) for leak in on_card)
        larger = _grows_by_itself(floor, models_slope, growing_peaks, end) if steady else ""
        sentences.append(larger or _growth(on_card, floor, end))
        if len(leaks) > 1:
            more = len(leaks) - 1
            sentences.append(f"{count(more)} more finding{'s are' if more > 1 else ' is'} listed below.")
        rises = floor is not None and _rises(floor) and not larger and not is_filled
        if steady and not rises and not larger and leaks[0]["kind"] in KIND_WORDS:
            sentences.append("It does not grow." if leaks[0]["kind"] in STEADY else "It does not grow beyond that.")
        if steady and filling:
            sentences.append(_filling(filling, ended=ended))
        return RunLeakVerdict(
            "leak" if not steady else "growth" if rises else "held", " ".join(filter(None, sentences))
        )
    kept = "" if not leaks else f" {_kept_on_host(leaks)}"
    left_out = f" The last scan left out {not_scanned}." if not_scanned else ""
    scans = f"A scan found no holder.{left_out}" if looked else f"The agent has not scanned{'' if ended else ' yet'}."
    if saw_no_reason:
        scans = "The agent saw no reason to scan."
    if filling:
        end = end.replace(": out of memory", ": at this pace, out of memory")
        scans = f"{_filling(filling, ended=ended)}{left_out}"
    if not looked and ran_out:
        scans += " For what was retained at the out-of-memory error, see `vramscope oom` or the page Out of memory."
    if larger := _grows_by_itself(floor, models_slope, growing_peaks, end):
        return RunLeakVerdict("none", f"{larger} {scans}{kept}")
    if floor is not None and floor.growing:
        level: Literal["unknown", "growth"] = "unknown" if is_filled or not _rises(floor) else "growth"
        return RunLeakVerdict(level, f"Memory after each step rises by {_slope(floor)}{end}. {scans}{kept}")
    if floor is not None and floor.rises_in_jumps:
        jumps = "one jump" if floor.jumps == 1 else f"{count(floor.jumps)} jumps"
        return RunLeakVerdict(
            "unknown", f"Memory after each step has risen in {jumps}, and is level between them. {scans}{kept}"
        )
    if floor is not None and floor.slows:
        slower = f"Memory after each step rises more and more slowly: {_slope(floor)} on average"
        return RunLeakVerdict("unknown", f"{slower}. Something may be filling up. {scans}{kept}")
    if filling:
        return RunLeakVerdict("unknown", f"{scans}{kept}")
    if leaks:
        return RunLeakVerdict("host", kept.strip())
    if steps == 0:
        return RunLeakVerdict("none" if looked else "unknown", f"{scans} {_NO_STEPS}")
    still = f"{_still(floor)}{left_out}"
    return (
        RunLeakVerdict("unknown" if floor is None else "none", still)
        if looked
        else RunLeakVerdict("unknown", f"{scans} {still}")
    )


def _grows_by_itself(floor: Trend | None, models_slope: float | None, growing_peaks: Trend | None, end: str) -> str:
    """What explains that memory rises though nothing is retained for long: larger models or larger steps. "" if neither."""
    if floor is None or not floor.growing:
        return ""
    if models_slope is not None:
        own = f"parameters, gradients, buffers and optimizer state take {amount(models_slope)} more per step"
        return f"The models themselves grow: {own}, and memory after each step rises by {_slope(floor)}{end}."
    if growing_peaks is not None:
        of_peaks = f"{amount(growing_peaks.slope)} per step, memory after each step by {_slope(floor)}"
        return f"The steps themselves need more and more: their peak rises by {of_peaks}. A longer batch does that."
    return ""


def _rises(floor: Trend) -> bool:
    """Whether memory rises by a considerable share of what it is. A data set that gets larger now and then takes less."""
    return floor.growing and floor.slope * floor.steps >= max(LEAST_SHARE * floor.level_bytes, LEAST_RISE_BYTES)


def _pace(leak: messages.Leak, steps: int) -> float:
    """Growth per step over the whole run: what slows down was faster."""
    late = leak.growth_bytes_per_step or 0.0
    return max(late, leak.held_bytes / max(1, steps)) if slows_down(leak) else late


_MAY_BE_CUT: Final = "A line that keeps only a slice of it may bound it."


def _filling(filling: Sequence[messages.Leak], *, ended: bool) -> str:
    first = filling[0]
    where = "" if first.file is None else f" ({source_place(first.file, first.line)})"
    more = len(filling) - 1
    others = f", and {count(more)} more container{'s' if more > 1 else ''}" if more else ""
    slows = slows_down(first)
    late = f" (by {amount(first.growth_bytes_per_step or 0.0)} a {first.per} of late)"
    slower = f", more and more slowly{late}" if slows else ""
    if ended:
        grew = f"{first.name}{where} grew to {amount(first.held_bytes)}{slower}{others} by the last scan"
        return f"{grew}. {_MAY_BE_CUT if is_cut(first) else 'Whether it has a bound is unknown.'}"
    grows = f"{first.name}{where} grows{slower}: {amount(first.held_bytes)} so far{others}. It may fill up"
    if is_cut(first):
        return f"{first.name}{where} grows: {amount(first.held_bytes)} so far{others}. {_MAY_BE_CUT}"
    return f"{grows}." if slows else f"{grows}; if it grows on, it is reported as a leak."


def fits_when_full(leaks: Sequence[Mapping[str, Any]], room_bytes: float | None) -> bool:
    """True if all that grows has a bound, and there is room for it: then memory does not run out."""
    rising = [leak for leak in leaks if not leak["on_host"] and (leak["growth_bytes_per_step"] or 0) > 0]
    if room_bytes is None or not rising or any(leak["full_bytes"] is None for leak in rising):
        return False
    return bool(sum(leak["full_bytes"] - leak["held_bytes"] for leak in rising) <= room_bytes)


def _several(number: int, noun: str) -> str:
    """``1 graph``, ``412 graphs``."""
    return f"{count(number)} {noun}{'' if number == 1 else 's'}"


def _who(leak: Mapping[str, Any]) -> str:
    where = "" if leak["file"] is None else f" ({place(leak)})"
    steps = leak["age_steps"]
    graphs, tensors, earlier = (_several(leak["count"], noun) for noun in ("graph", "tensor", "earlier step"))
    # The age is that of the oldest that was examined: near, but not the number of steps.
    has_several_a_step = steps and leak["count"] > SEVERAL_A_STEP * steps
    what = {
        "growing": f"keeps {graphs} of earlier steps" if has_several_a_step else f"keeps the graphs of {earlier}",
        "growing-eval": f"keeps {graphs} of an evaluation",
        "overlap": "lives into the next step, beside what that step builds",
        "overlap-unfreed": "lives into the next step, with activations that no backward freed",
        "no_grad-missing": "builds autograd graphs, but no backward pass uses them: torch.no_grad() is missing",
        "cycle": f"keeps {tensors} in a reference cycle "
        + ("that no collector sees" if "in C++" in leak["holder"] else "until Python's garbage collector runs"),
        "idle-optimizer": "keeps the state of an optimizer that no longer steps; another optimizer trains its weights",
        "tensor-growth": f"keeps {tensors}" + (f", more each {leak['per']}" if leak["emptied_after"] is None else ""),
    }.get(leak["kind"], f"keeps {tensors}, which its agent calls {leak['kind']!r}")
    if emptied := emptied_words(leak):
        what += f" until it is emptied {emptied}"
    return f"{leak['name']}{where} {what}."


def kind_words(leak: Mapping[str, Any]) -> str:
    """What it is, in a few words."""
    if leak["on_host"]:
        return ON_HOST_WORDS
    gathered = leak["kind"] == "tensor-growth" and leak["emptied_after"] is not None
    return GATHERED_WORDS if gathered else KIND_WORDS.get(leak["kind"], NEWER_WORDS)


def emptied_words(leak: Mapping[str, Any]) -> str:
    """``after 100 steps, in reset() (train.py:40)``; "" where nothing is known to empty it."""
    at = leak["emptied_at"] and f"{'in' if '(' in leak['emptied_at'] else 'at'} {leak['emptied_at']}"
    if leak["emptied_after"] is None:
        return f"{at}, which was not seen so far" if at else ""
    return ", ".join(filter(None, [f"after {count(leak['emptied_after'])} {rounds(leak['per'])}", at]))


def rounds(per: str) -> str:
    """Several of what age and growth are counted in."""
    return "batches" if per == "batch" else f"{per}s"


def is_steady(leak: Mapping[str, Any]) -> bool:
    """As much in each step, or emptied again and again. Of a kind that only a newer agent knows its figure tells."""
    unknown = leak["kind"] not in KIND_WORDS and not (leak["growth_bytes_per_step"] or 0) > 0
    return leak["kind"] in STEADY or leak["emptied_after"] is not None or unknown


def _kept_on_host(leaks: Sequence[Mapping[str, Any]]) -> str:
    """What a training on a card keeps in the host's memory, as the advice for a card's often is."""
    first = leaks[0]
    where = "" if first["file"] is None else f" ({place(first)})"
    own = first["growth_bytes_per_step"] or 0
    grows = f" and grows by {amount(own)} of host memory per {first['per']}" if own > 0 else ""
    others = f" {count(len(leaks) - 1)} more {'is' if len(leaks) == 2 else 'are'} kept there." if len(leaks) > 1 else ""
    takes = f"it takes {amount(first['held_bytes'])}{grows}"
    return f"{first['name']}{where} is kept on the host: {takes}. GPU memory is not affected.{others}"


def _growth(leaks: Sequence[Mapping[str, Any]], floor: Trend | None, end: str) -> str:
    """The worst leak's growth; the floor's too, where it rises more than twice as fast as all that was found."""
    of_steps = [leak["growth_bytes_per_step"] or 0 for leak in leaks if leak["per"] == "step"]
    rates = [rate for rate in of_steps if rate > 0]
    own = leaks[0]["growth_bytes_per_step"] or 0
    rises = floor is not None and floor.growing and floor.slope > 2 * sum(rates)
    text = f"It grows by {amount(own)} per {leaks[0]['per']}" if own > 0 else ""
    nodes, held = leaks[0]["node_bytes"], leaks[0]["held_bytes"]
    if text and nodes > held > 0:  # each graph has as many bytes
        text += f" and about {amount(nodes * own / held)} of host memory for its nodes"
    full = leaks[0]["full_bytes"]
    if text and full is not None:
        text += f", up to about {amount(full)} when it is full"
    if end and leaks[0]["emptied_at"] and leaks[0]["emptied_after"] is None:
        end += ", if it is not emptied before"
    if rises and floor is not None:
        return f"{text + '; memory' if text else 'Memory'} after each step rises by {_slope(floor)}{end}."
    return f"{text}{end}." if text else ""


def _how_much(leak: Mapping[str, Any]) -> str:
    held = f"It retains {'at most ' if leak['emptied_after'] is not None else ''}{amount(leak['held_bytes'])}"
    if leak["node_bytes"] > leak["held_bytes"]:
        held += f", and about {amount(leak['node_bytes'])} of host memory in autograd nodes"
    effect = leak["peak_effect_bytes"]
    if effect is None:
        return f"{held}; the effect on the peak is unknown."
    if effect == 0:
        return f"{held}, but freeing it would not lower the peak."
    when = f"if it is freed {AT_THE_END}," if leak["kind"] in OVERLAPS else "after the fix"
    return f"{held}; {when} the peak falls by {amount(effect)}."


def place(leak: Mapping[str, Any]) -> str:
    """``train.py:87``: the file's name without its path."""
    return source_place(str(leak["file"]), leak["line"])


def source_place(file: str, line: int | None) -> str:
    """The same of a file and a line."""
    name = file.replace("\\", "/").rpartition("/")[2]
    return name if line is None else f"{name}:{line}"


def _slope(floor: Trend) -> str:
    return f"{amount(floor.slope)} per step (± {amount(floor.margin)})"


def _still(floor: Trend | None) -> str:
    if floor is None:
        return f"Fewer than {MIN_STEPS} steps with known memory after the step: too few to detect growth."
    if floor.level_since is not None:
        return f"Memory after each step rose until step {count(round(floor.level_since))}, and is level since."
    if floor.low > 0:
        return f"Memory after each step rises by {_slope(floor)} on average, but not throughout."
    seen = f"No growth over {floor.steps} steps"
    return f"{seen}. Growth below {amount(floor.margin)} per step cannot be detected."


def _end(steps_left: float | None, seconds_left: float | None) -> str:
    if steps_left is None:
        return ""
    if steps_left > FAR_STEPS:
        return "; at this pace memory lasts for more than a million steps"
    # An estimate: no hundredths of a second.
    when = (
        ""
        if seconds_left is None
        else f" ({seconds_left:.0f} s)"
        if seconds_left < 99
        else f" ({duration(seconds_left)})"
    )
    return f": out of memory after about {count(round(steps_left))} more steps{when}"
