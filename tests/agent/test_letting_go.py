"""Which block it was that Python let go between two operations: told by its size, and by what became of its address."""

from __future__ import annotations

from vramscope.profiler.rows import NONE, Allocation
from vramscope.profiler.unrecorded_frees import MemoryEvent, addresses_of

MAIN, DEVICE = 1, 0


def event(time_ns: int, address: int, size_bytes: int) -> Allocation:
    return Allocation(time_ns, NONE, MAIN, DEVICE, address, size_bytes, 0, NONE)


def report_of(time_ns: int, size_bytes: int) -> MemoryEvent:
    return MemoryEvent(time_ns, size_bytes, DEVICE, MAIN)


def let_go(tree: list[Allocation], outside: list[MemoryEvent]) -> list[tuple[int, int]]:
    """(time, address) of each; the flat list has the tree's events too."""
    flat = [report_of(one.time_ns, one.size_bytes) for one in tree] + outside
    return [(one.time_ns, address) for one, address in addresses_of(flat, tree)]


def test_the_only_block_of_its_size_is_the_one() -> None:
    assert let_go([event(1, 100, 512), event(2, 200, 1024)], [report_of(3, -512)]) == [(3, 100)]


def test_of_blocks_of_one_size_it_is_the_one_whose_address_is_given_out_again() -> None:
    tree = [event(1, 100, 512), event(2, 200, 512), event(3, 300, 512), event(5, 200, 512)]
    assert let_go(tree, [report_of(4, -512)]) == [(4, 200)]
    assert let_go(tree, [report_of(6, -512)]) == [(6, 200)], "and else the newest"


def test_a_block_that_an_operation_lets_go_later_is_not_the_one() -> None:
    tree = [event(1, 100, 512), event(2, 200, 512), event(9, 200, -512)]
    assert let_go(tree, [report_of(3, -512)]) == [(3, 100)]
    assert let_go(tree, [report_of(3, -512), report_of(4, -512)]) == [(3, 100), (4, 0)], "the second was there before"


def test_what_the_tree_tells_is_not_told_again() -> None:
    assert let_go([event(1, 100, 512), event(2, 100, -512)], []) == []
    assert let_go([], [report_of(1, -512), report_of(2, 700)]) == [(1, 0)], "what is taken outside is nobody's here"
