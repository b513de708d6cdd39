"""Which stacks end in a function: the innermost Python frame counts, whatever C++ frames are inside of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from vramscope_server.analysis.ownership.recompute import ENGINE
from vramscope_server.analysis.ownership.stack_frames import stacks_ending_in
from vramscope_server.analysis.trace.stacks import Stacks

WORDS = ["graph.py", "_engine_run_backward", "model.py", "forward", "engine.cpp", "torch::autograd::Engine::execute"]
ENGINE_FRAME, FORWARD, NATIVE = range(3)
FRAMES = {"file": np.array([0, 2, 4]), "function": np.array([1, 3, 5])}


def test_a_backward_pass_inside_of_a_recomputation_ends_in_autograd() -> None:
    stacks = Stacks.of(
        [
            [ENGINE_FRAME, FORWARD],
            [NATIVE, ENGINE_FRAME, FORWARD],
            [FORWARD, ENGINE_FRAME],
            [NATIVE],
            [],
            [ENGINE_FRAME],
        ]
    )
    trace: Any = SimpleNamespace(words=WORDS, frames=FRAMES, stacks=stacks)
    assert stacks_ending_in(trace, ENGINE).tolist() == [True, True, False, False, False, True]
    assert stacks_ending_in(SimpleNamespace(words=[], frames={}, stacks=Stacks.of([])), ENGINE).tolist() == []  # type: ignore[arg-type]
