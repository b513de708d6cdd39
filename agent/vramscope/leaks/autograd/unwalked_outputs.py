"""Whether a backward pass walks each graph that a root module's output has, before the first scan.

Memory after a step does not show a graph that is built and freed without a backward pass; a scan does. Where a loop calls models
several times before a backward pass, as the loop of a GAN does, the nodes below the loss are compared with the outputs' nodes.
"""

from __future__ import annotations

from typing import Any, Final

MOST_NODES: Final = 2_000
"""Nodes of one backward pass that are visited, at 1 µs each. With more the outputs count as unwalked."""
NO_NUMBER: Final = 2**64 - 1
"""Sequence number of a parameter's node."""
MOST_OUTPUTS: Final = 64
"""Outputs of two iterations that are compared. With more they count as unwalked."""


class UnwalkedOutputs:
    """Outputs of this iteration and the one before. It keeps no node: a node is known by its sequence number.

    A GAN's generator may make its output before the step that ends an iteration, and train with it afterwards.
    """

    def __init__(self) -> None:
        self.compares = True
        """False in iterations in which the outputs are not compared."""
        self.were_seen = False
        """True once an iteration ended without a backward pass through an output of the iteration before."""
        self._outputs: set[int] = set()
        self._earlier: set[int] = set()

    def add(self, node: Any) -> None:
        """Note the newest node of an output."""
        if self.compares:
            self._outputs.add(node._sequence_nr())

    def walked(self, roots: Any) -> None:
        """A backward pass begins from these tensors. A single output is taken for the one that it walks."""
        waiting = len(self._outputs) + len(self._earlier)
        if waiting > MOST_OUTPUTS:
            self.were_seen = True
        if waiting > 1 and not self.were_seen:
            walked, _ = numbers_below(roots, MOST_NODES)
            self._outputs -= walked
            self._earlier -= walked
        elif waiting:
            self._outputs.clear()
            self._earlier.clear()

    def end_iteration(self, *, compares: bool) -> None:
        """``compares``: in the next iteration."""
        self.were_seen |= bool(self._earlier)
        self._earlier, self._outputs = self._outputs if compares else set(), set()
        self.compares = compares


def numbers_below(roots: Any, most_nodes: int, oldest: int = 0) -> tuple[set[int], bool]:
    """Sequence numbers, from ``oldest`` on, of the nodes that a backward pass from these tensors walks, and whether these are all.

    What is older, or a parameter, leads to no other node from ``oldest`` on. At most ``most_nodes`` are visited.
    """
    import torch

    tensors = roots if isinstance(roots, (list, tuple)) else (roots,)
    with torch._C.DisableTorchFunction():  # no code of the user's tensor classes
        nodes = [node for tensor in tensors if (node := getattr(tensor, "grad_fn", None)) is not None]
    seen = set(nodes)
    numbers = {node._sequence_nr() for node in nodes}
    while nodes:
        for child, _ in nodes.pop().next_functions:
            if child is None or child in seen:
                continue
            if len(seen) >= most_nodes:
                return numbers, False
            seen.add(child)
            number = child._sequence_nr()
            if oldest <= number < NO_NUMBER:
                numbers.add(number)
                nodes.append(child)
    return numbers, True
