"""Holds what the detector said against a loop's truth, and says in words what does not fit."""

from __future__ import annotations

from corpus import Case

from vramscope.protocol import messages

SMALL_BYTES = 4096
"""Difference in bytes that does not matter."""
SHARE = 0.1
ROUNDING_BYTES = {"cpu": 1, "cuda": 512}
"""Bytes of which the size of each tensor is a multiple."""


def faults(case: Case, scans: list[tuple[int, messages.Scan]], device: str) -> list[str]:
    """What is wrong with the findings; empty: all is right.

    looks  (steps done when it was made, the look), in order
    """
    found = scans[-1][1].leaks if scans else []
    if case.truth.innocent:
        return [f"false alarm: {in_words(leak)}" for leak in found]
    right = [leak for leak in found if leak.kind in case.truth.kinds and _names(case, leak)]
    wrong = [leak for leak in found if leak not in right and f"{leak.kind} {leak.name}" not in case.truth.also]
    problems = [f"not in the truth: {in_words(leak)}" for leak in wrong]
    if not right:
        return [f"missed: no {' or '.join(case.truth.kinds)} that names {' or '.join(case.truth.holders)}", *problems]
    if len(right) > len({leak.kind for leak in right}):
        problems.append(f"said {len(right)} times: " + "; ".join(in_words(leak) for leak in right))
    leak = max(right, key=lambda leak: leak.held_bytes)
    if case.truth.advice not in leak.advice:
        problems.append(f"the fix says nothing of {case.truth.advice!r}: {leak.advice}")
    if (leak.emptied_after or 0) != case.truth.epoch:
        problems.append(f"emptied after {leak.emptied_after} steps, not after {case.truth.epoch or None}")
    if leak.emptied_after and leak.growth_bytes_per_step:
        problems.append("what is emptied again and again does not grow")
    return [*problems, *_place(case, leak), *_bytes(case, leak, scans, ROUNDING_BYTES[device])]


def in_words(leak: messages.Leak) -> str:
    place = f"{(leak.file or '?').rsplit('/', 1)[-1]}:{leak.line}"
    return (
        f"[{leak.kind}] {leak.name!r} ({leak.holder}) {place} count {leak.count} held {leak.held_bytes} "
        f"exclusive {leak.exclusive_bytes} nodes {leak.node_bytes} growth {leak.growth_bytes_per_step} "
        f"emptied at {leak.emptied_at!r} after {leak.emptied_after} "
        f"at step {leak.first_step}..{leak.last_step}"
    )


def _names(case: Case, leak: messages.Leak) -> bool:
    result = " ".join([leak.name, leak.holder])
    return any(holder in result for holder in case.truth.holders)


def _place(case: Case, leak: messages.Leak) -> list[str]:
    place = ((leak.file or "").rsplit("/", 1)[-1], leak.line)
    if place in case.faults:
        return []
    right = ", ".join(f"{file}:{line}" for file, line in sorted(case.faults))
    return [f"the line is {right}, not {place[0]}:{place[1]}"]


def _bytes(case: Case, leak: messages.Leak, scans: list[tuple[int, messages.Scan]], rounding_bytes: int) -> list[str]:
    """Bytes as the look saw them that saw the leak last; an item more or less, for it may lie before or after the append."""
    problems = []
    if case.truth.nodes and not leak.node_bytes:
        problems.append("nodes grow, but node_bytes is 0")
    # Without an optimizer all looks are at step 0; what a later look did not see again is in it as it was.
    steps = [steps for steps, scan in scans if scan.step == leak.last_step and leak in scan.leaks]
    if not steps:
        return [*problems, f"no look at step {leak.last_step} holds this leak"]
    if leak.kind == "cycle":
        return [*problems, *_whole_cycles(case, leak, steps[0])]
    # For a holder that is emptied again and again the finding says how much it held when it was full, or nearly full.
    expected = case.truth.expected_bytes(case.truth.epoch - 1 if leak.emptied_after else steps[0], rounding_bytes)
    if expected is None:
        return problems
    slack = max(SMALL_BYTES, SHARE * expected, case.truth.item_bytes(rounding_bytes))
    if abs(leak.held_bytes - expected) > slack:
        problems.append(f"held {leak.held_bytes} bytes, but {expected} are right after {steps[0]} steps")
    return problems


def _whole_cycles(case: Case, leak: messages.Leak, steps: int) -> list[str]:
    """How many are there depends on when Python last collected: a whole number of them it must be, at most one a time."""
    each = case.truth.item_bytes() or 1
    number = min(max(1, round(leak.held_bytes / each)), max(1, steps // case.truth.every))
    if abs(leak.held_bytes - number * each) > max(SMALL_BYTES, SHARE * leak.held_bytes):
        return [f"held {leak.held_bytes} bytes are no whole number of cycles of {each} after {steps} steps"]
    return []
