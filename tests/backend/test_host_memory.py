"""A run shows its host memory in parts that add up, or not at all."""

from __future__ import annotations

import numpy as np
import pytest

from vramscope.protocol.series import UNKNOWN
from vramscope_server.reports.run_facts import _host_memory
from vramscope_server.store.host_memory import HighestHostMemory, higher

GIB = 1 << 30


def rows(*parts: tuple[int, int, int, int]) -> dict[str, np.ndarray]:
    """Columns of samples: this process, its children, shared memory and memory in use, in GiB."""
    names = ("process_anonymous_bytes", "child_processes_bytes", "shared_memory_bytes", "host_used_bytes")
    table = np.array(parts, np.int64)
    table = np.where(table == UNKNOWN, UNKNOWN, table * GIB)
    columns = {name: table[:, at] for at, name in enumerate(names)}
    return columns | {"child_processes": np.arange(len(parts)), "largest_child_bytes": table[:, 1]}


def test_the_parts_are_of_one_sample_and_add_up() -> None:
    """The largest sum counts, not the largest part."""
    found = higher(None, rows((9, 0, 0, 20), (5, 4, 1, 30), (1, 7, 1, 40)))
    assert found is not None
    answer = found.answer
    assert (answer["process_anonymous_bytes"], answer["child_processes_bytes"]) == (5 * GIB, 4 * GIB)
    parts = ("process_anonymous_bytes", "child_processes_bytes", "shared_memory_bytes", "other_bytes")
    assert sum(answer[name] or 0 for name in parts) == answer["host_used_bytes"] == 30 * GIB
    assert answer["child_processes"] == 1


def test_a_lower_sum_of_later_rows_changes_nothing() -> None:
    found = higher(None, rows((5, 4, 1, 30)))
    assert higher(found, rows((5, 4, 0, 90))) is found
    later = higher(found, rows((5, 4, 2, 90)))
    assert later is not None
    assert later.shared_bytes == 2 * GIB


@pytest.mark.parametrize("unknown", range(3))
def test_a_row_with_an_unknown_part_is_no_sum(unknown: int) -> None:
    parts = [5, 4, 1, 30]
    parts[unknown] = UNKNOWN
    assert higher(None, rows((parts[0], parts[1], parts[2], parts[3]))) is None
    assert higher(None, {"process_anonymous_bytes": np.array([GIB])}) is None, "an older agent"


def test_unknown_memory_in_use_leaves_the_rest_unknown() -> None:
    found = higher(None, rows((5, 4, 1, UNKNOWN)))
    assert found is not None
    assert (found.answer["host_used_bytes"], found.answer["other_bytes"]) == (None, None)


def test_the_words_name_the_rank_with_most() -> None:
    small = HighestHostMemory(GIB, 0, 0, children=0).answer
    large = HighestHostMemory(GIB, 3 * GIB, GIB // 2, children=4, largest_child_bytes=GIB, used_bytes=8 * GIB).answer
    ranks = [{"rank": 0, "host_memory": small}, {"rank": 1, "host_memory": large}, {"rank": 2, "host_memory": None}]
    assert _host_memory({"ranks": ranks}) == (  # type: ignore[arg-type, typeddict-item]
        "highest sum, on rank 1: this process 1.00 GiB (without files and libraries), 4 child processes 3.00 GiB (largest "
        "1.00 GiB), shared memory 512 MiB, rest of the host 3.50 GiB"
    )
    assert _host_memory({"ranks": [ranks[0]]}) == (  # type: ignore[arg-type, typeddict-item]
        "highest sum: this process 1.00 GiB (without files and libraries), shared memory 0 B, rest of the host unknown"
    )
    assert _host_memory({"ranks": [ranks[2]]}) == ""  # type: ignore[arg-type, typeddict-item]
