"""Graph nodes of backward passes, by the order of their allocations and frees."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "backend"))

from window_maker import MIB, Allocator, Block, recorded

from vramscope.protocol.series import PHASES
from vramscope_server.analysis.advice.facts import StepFacts
from vramscope_server.analysis.advice.graph_nodes import Node, frees_of, node_that_frees
from vramscope_server.analysis.ownership.categories import CUBLAS_BYTES
from vramscope_server.analysis.trace.from_window import from_window


def in_backward(temporaries: int = 0) -> tuple[Allocator, Block]:
    """A forward pass with temporaries that kept 18 MiB, and the begin of its backward pass."""
    allocator = Allocator()
    allocator.phase = PHASES.index("forward")
    saved = allocator.alloc(18 * MIB)
    for _ in range(temporaries):
        allocator.free(allocator.alloc(3 * MIB))
    allocator.phase = PHASES.index("backward")
    return allocator, saved


def node_of(allocator: Allocator, saved: Block) -> tuple[Node, list[int]]:
    """The node that frees what was saved, and the events of all allocations."""
    event = len(allocator.events["action"])
    allocator.free(saved)
    facts = StepFacts(from_window(recorded(Allocator().layout(), allocator)))
    return node_that_frees(frees_of(facts), event), [*facts.trace.lives.alloc_event.tolist(), event]


def test_sum_of_a_bias_is_after_the_results_of_its_node() -> None:
    """The sum has a buffer of its own. The products before it have cuBLAS workspaces."""
    allocator, saved = in_backward()
    for _ in range(2):
        allocator.alloc(18 * MIB)
        allocator.free(allocator.alloc(CUBLAS_BYTES[1]))
    allocator.alloc(512)
    allocator.free(allocator.alloc(2 * MIB))
    node, (_, _, first_workspace, _, _, _, buffer, _) = node_of(allocator, saved)
    assert node == Node(first_workspace, buffer)


def test_scratch_memory_before_the_last_result_does_not_end_a_node() -> None:
    """A convolution needs its input for the gradient of its weight, with scratch memory that is no workspace of cuBLAS."""
    allocator, saved = in_backward()
    allocator.alloc(18 * MIB)
    allocator.free(allocator.alloc(39 * MIB))
    allocator.alloc(4 * MIB)
    node, (_, _, scratch, weight, event) = node_of(allocator, saved)
    assert node == Node(scratch, event) and weight < node.end


def test_first_node_of_a_backward_pass_does_not_reach_into_forward() -> None:
    allocator, saved = in_backward(temporaries=3)
    begin = len(allocator.events["action"])
    allocator.alloc(18 * MIB)
    node, (*_, event) = node_of(allocator, saved)
    assert node == Node(begin, event)


def test_node_begins_after_the_frees_of_the_node_before_it() -> None:
    allocator, saved = in_backward()
    allocator.phase = PHASES.index("forward")
    later = allocator.alloc(5 * MIB)
    allocator.phase = PHASES.index("backward")
    gradient = allocator.alloc(18 * MIB)
    allocator.free(later)
    allocator.alloc(9 * MIB)
    freed = len(allocator.events["action"])
    allocator.free(gradient)
    node, (*_, event) = node_of(allocator, saved)
    assert node == Node(freed + 1, event)
