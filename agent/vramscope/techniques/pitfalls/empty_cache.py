"""torch.cuda.empty_cache() in every step: what is given back is asked of the driver again, in each step."""

from __future__ import annotations

from vramscope.protocol import messages
from vramscope.techniques.detectors.offload import offloaded_modules
from vramscope.techniques.observation import Facts, said


def find(facts: Facts) -> messages.Finding | None:
    heard = facts.heard
    if heard is None or not facts.is_sure or facts.emptied < facts.observed:
        return None  # (two steps in a row are among the observed ones, where it was seen in the first)
    times = "once" if heard.emptied == 1 else f"{heard.emptied} times"
    name, steps = facts.setting("torch_empty_cache_steps")
    offloaded = offloaded_modules(facts)
    if name:
        advice = f"leave out {said(name, steps)}"
    elif offloaded:
        advice = f"Accelerate does it for each of the {offloaded} modules that it offloads: keep on the device what fits there"
    else:
        advice = "call it once after an evaluation or not at all"
    return facts.finding(
        "empty-cache",
        f"torch.cuda.empty_cache() is called {times} a step: it waits for the device and takes {milliseconds(heard.emptied_ns)} of "
        f"the step's {milliseconds(heard.lasted_ns)} itself, and what it gives back has to be asked for again. The peak of "
        "allocated memory stays the same.",
        f"{advice}; against fragmentation, expandable_segments:True",
        None if name or offloaded else heard.emptied_at,
    )


def milliseconds(nanoseconds: int) -> str:
    """``0.11 ms``, ``610 ms``."""
    value = nanoseconds / 1e6
    return f"{value:,.0f} ms" if value >= 10 else f"{value:.2g} ms"
