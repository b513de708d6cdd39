"""Names of recomputed blocks as ranges."""

from __future__ import annotations

import pytest

from vramscope.techniques.detectors.checkpointing import name_ranges


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["blocks.3"], "blocks.3"),
        (["blocks.0", "blocks.1", "blocks.2"], "blocks.0 to blocks.2"),
        (["h.9.mlp", "h.10.mlp"], "h.9.mlp to h.10.mlp"),
        (["blocks.0", "blocks.2", "blocks.4"], "blocks.0, .2, .4"),
        ([f"blocks.{n}" for n in range(0, 12, 2)], "blocks.0, .2, .4 .. .10"),
        (["0", "2"], "0, 2"),
        (["h.0.mlp", "h.2.mlp"], "h.0.mlp, h.2.mlp"),
        (["down.0", "down.1", "middle", "up.0", "up.1"], "down.0 to .1, middle, up.0 to .1"),
        (["encoder", "encoder.0"], "encoder, encoder.0"),
    ],
)
def test_name_ranges(names: list[str], expected: str) -> None:
    assert name_ranges(names) == expected
