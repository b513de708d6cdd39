"""An evaluation that builds graphs: found by the leak detector, told here among the techniques' traps too."""

from __future__ import annotations

from typing import Final

from vramscope.protocol import messages

KINDS: Final = ("no_grad-missing", "growing-eval")


def of_leak(leak: messages.Leak) -> messages.Finding | None:
    """None for a leak of another kind."""
    if leak.kind not in KINDS:
        return None
    kept = "are kept" if leak.kind == "growing-eval" else "are built and dropped"
    return messages.Finding(
        kind="evaluation-with-graphs",
        text=f"Graphs that no backward walks {kept}: an evaluation without no_grad. The page of leaks tells what they hold.",
        advice=leak.advice,
        file=leak.file,
        line=leak.line,
        first_step=leak.first_step,
    )
