"""Reserved = requested + rounding + usable + unusable: the definition by hand, and the sum against the real allocator."""

import gzip
import json
import pickle
import random
import subprocess
import sys

import numpy as np
import pytest

from vramscope.memory.unusable import Demand
from vramscope_server.analysis.fragmentation import breakdown
from vramscope_server.analysis.fragmentation import usable as pieces
from vramscope_server.analysis.fragmentation.request_sizes import request_sizes_of
from vramscope_server.analysis.simulator.settings import UNLIMITED
from vramscope_server.analysis.snapshot_format import reader

MIB = 1 << 20


def walked(rows, *, asked, max_split=UNLIMITED, slack=20 * MIB, closed=False, earlier=None):
    """Parts after each move.

    rows      (kind, address, size, requested, heap, item)
    asked     sizes of the requests of heap 0
    earlier   (last position with other rules, their max_split, slack, closed)
    """
    kind, *columns, item = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    demand = request_sizes_of(np.zeros(len(asked), np.int64), np.array(asked, np.int64), 2)
    blocks = [at in (pieces.TAKE, pieces.GIVE) for at in kind]
    first: dict[int, int] = {}
    span = [first.setdefault(int(item[at]), at) if blocks[at] else at for at in range(len(rows))]
    moves = pieces.Moves(kind.astype(np.uint8), np.array(span), np.arange(len(rows)))
    rules = pieces.ReuseRules(demand, max_split, slack, closed)
    before = earlier and (earlier[0], pieces.ReuseRules(demand, *earlier[1:]))
    return pieces.walk(pieces.Spans(*columns), moves, rules, len(rows), earlier=before)


def parts(walked, at=-1):
    return [int(column[at]) for column in walked[:4]]


def test_unusable_share_is_the_share_of_unfitting_requests() -> None:
    """20 MiB with 12 allocated in the middle: 4 MiB free before and after. 3 of 15 requested MiB fit into 4."""
    rows = [
        (pieces.ADD_SEGMENT, 0, 20 * MIB, 0, 0, 0),
        (pieces.TAKE, 0, 4 * MIB, 4 * MIB, 0, 0),
        (pieces.TAKE, 4 * MIB, 12 * MIB, 12 * MIB - 100, 0, 1),
        (pieces.GIVE, 0, 4 * MIB, 4 * MIB, 0, 0),
    ]
    assert parts(walked(rows, asked=[3 * MIB, 12 * MIB])) == [
        12 * MIB - 100,
        100,
        round(8 * MIB * 3 / 15),
        8 * MIB - round(8 * MIB * 3 / 15),
    ]


def test_free_neighbors_merge_within_a_segment_only() -> None:
    rows = [
        (pieces.ADD_SEGMENT, 0, 20 * MIB, 0, 0, 0),
        (pieces.ADD_SEGMENT, 20 * MIB, 20 * MIB, 0, 0, 0),
        (pieces.TAKE, 0, 10 * MIB, 10 * MIB, 0, 0),
        (pieces.TAKE, 10 * MIB, 10 * MIB, 10 * MIB, 0, 1),
        (pieces.GIVE, 10 * MIB, 10 * MIB, 10 * MIB, 0, 1),
        (pieces.GIVE, 0, 10 * MIB, 10 * MIB, 0, 0),
    ]
    seen = walked(rows, asked=[20 * MIB, 40 * MIB])
    third = round(20 * MIB / 3)
    assert [parts(seen, at)[2] for at in (1, 3, 4, 5)] == [2 * third, third, third, 2 * third]
    assert parts(walked(rows, asked=[40 * MIB])) == [0, 0, 0, 40 * MIB], "no piece has 40 MiB"


def test_free_memory_of_an_unused_heap_is_unusable() -> None:
    rows = [(pieces.ADD_SEGMENT, 0, 20 * MIB, 0, 0, 0), (pieces.ADD_SEGMENT, 64 * MIB, 30 * MIB, 0, 1, 0)]
    assert parts(walked(rows, asked=[MIB])) == [0, 0, 20 * MIB, 30 * MIB]


def test_oversize_blocks_serve_oversize_requests_only() -> None:
    """With max_split_size 100 MiB, 300 MiB serve requests above 280 MiB, as in the allocator."""
    rows = [(pieces.ADD_SEGMENT, 0, 300 * MIB, 0, 0, 0)]
    for asked, usable in ((50, 0), (290, 300), (279, 0), (281, 300)):
        assert parts(walked(rows, asked=[asked * MIB], max_split=100 * MIB))[2] == usable * MIB


def test_end_of_an_expandable_segment_is_usable_holes_are_not() -> None:
    rows = [
        (pieces.MAP, 0, 40 * MIB, 0, 0, 0),
        (pieces.TAKE, 20 * MIB, 10 * MIB, 10 * MIB, 0, 0),
        (pieces.UNMAP, 0, 10 * MIB, 0, 0, 0),
        (pieces.MAP, 0, 10 * MIB, 0, 0, 0),
    ]
    seen = walked(rows, asked=[100 * MIB])
    assert parts(seen, 1) == [10 * MIB, 0, 10 * MIB, 20 * MIB], (
        "what lies behind the block grows, what lies before does not"
    )
    assert parts(seen, 2) == [10 * MIB, 0, 10 * MIB, 10 * MIB]
    assert parts(seen, 3) == parts(seen, 1)


def test_changed_rules_apply_to_all_free_blocks() -> None:
    """300 MiB free and requests of 50 MiB. From the second position on blocks of 100 MiB and more are not split."""
    rows = [(pieces.ADD_SEGMENT, at * 400 * MIB, 300 * MIB, 0, 0, 0) for at in range(4)]
    whole = [at * 300 * MIB for at in range(1, 5)]
    for until, usable in ((-1, [0, 0, 0, 0]), (1, [*whole[:2], 0, 0]), (2, [*whole[:3], 0]), (4, whole)):
        seen = walked(rows, asked=[50 * MIB], max_split=100 * MIB, earlier=(until, UNLIMITED, 20 * MIB, False))
        assert seen.usable.tolist() == usable, until
        assert (seen.usable + seen.unusable).tolist() == whole
    seen = walked(rows, asked=[50 * MIB], earlier=(1, 100 * MIB, 20 * MIB, False))
    assert seen.usable.tolist() == [0, 0, *whole[2:]], "and back again"


def test_disabled_expandable_segments_serve_nothing() -> None:
    rows = [
        (pieces.MAP, 0, 40 * MIB, 0, 0, 0),
        (pieces.TAKE, 20 * MIB, 10 * MIB, 10 * MIB, 0, 0),
        (pieces.ADD_SEGMENT, 100 * MIB, 20 * MIB, 0, 0, 0),
    ]
    assert parts(walked(rows, asked=[MIB])) == [10 * MIB, 0, 50 * MIB, 0]
    assert parts(walked(rows, asked=[MIB], closed=True)) == [10 * MIB, 0, 20 * MIB, 30 * MIB]
    seen = walked(rows, asked=[MIB], closed=True, earlier=(1, UNLIMITED, 20 * MIB, False))
    assert [parts(seen, at)[2:] for at in range(3)] == [[40 * MIB, 0], [30 * MIB, 0], [20 * MIB, 30 * MIB]]


def test_contradicting_moves_are_counted() -> None:
    rows = [(pieces.TAKE, 0, MIB, MIB, 0, 0), (pieces.GIVE, 0, MIB, MIB, 0, 0)]
    seen = walked(rows, asked=[MIB])
    assert seen.misfits == 2


def test_thousands_of_blocks_match_a_plain_list() -> None:
    """6,000 random frees and allocations in a segment of which any part may be free."""
    choose, count = random.Random(3), 6_000
    size = [512 * choose.randrange(1, 9) for _ in range(count)]
    address = [int(at) for at in np.cumsum([0, *size[:-1]])]
    rows = [(pieces.ADD_SEGMENT, 0, sum(size), 0, 0, -1)]
    held: set[int] = set()
    for turn in range(3 * count):
        item = turn if turn < count else choose.randrange(count)
        rows.append((pieces.GIVE if item in held else pieces.TAKE, address[item], size[item], size[item], 0, item))
        held ^= {item}
    asked = [512, 1024, 4096, 16384]
    seen = walked(rows, asked=asked)
    assert seen.misfits == 0
    taken: set[int] = set()
    for at, row in enumerate(rows):
        if at:
            taken ^= {row[5]}
        if at % 500 and at != len(rows) - 1:
            continue
        free, collected = [], None
        for item in range(count + 1):
            if item < count and item not in taken:
                collected = address[item] if collected is None else collected
            elif collected is not None:
                free.append((address[item] if item < count else sum(size)) - collected)
                collected = None
        unusable = sum(round(one * (1 - sum(ask for ask in asked if ask <= one) / sum(asked))) for one in free)
        assert parts(seen, at) == [sum(size) - sum(free), 0, sum(free) - unusable, unusable]


PROGRAM = """
import gzip, json, os, pickle, random, sys
import torch

random.seed(7)
torch.cuda.memory._record_memory_history(context=None, max_entries=10**6)
side = torch.cuda.Stream()
live, readings = [], []
for turn in range(3000):
    if live and random.random() < 0.49:
        live.pop(random.randrange(len(live)))
    else:
        with torch.cuda.stream(side if random.random() < 0.2 else torch.cuda.default_stream()):
            block = torch.empty(int(2 ** random.uniform(4, 25.5)), dtype=torch.uint8, device="cuda")
        if random.random() < 0.1:
            block.record_stream(side)
        live.append(block)
    if turn == 2000:
        live = live[::7]
        torch.cuda.empty_cache()
    if turn % 10 == 5:
        stats = torch.cuda.memory_stats()
        names = ("allocation.all.allocated", "allocation.all.freed", "requested_bytes.all.current",
                 "active_bytes.all.current", "reserved_bytes.all.current")
        readings.append([stats[name] for name in names])
snapshot = torch.cuda.memory._snapshot()
with gzip.open(sys.argv[1], "wb", compresslevel=1) as file:
    pickle.dump(snapshot, file)
print(json.dumps(readings))
"""


@pytest.mark.gpu
@pytest.mark.parametrize(
    "conf",
    ["", "expandable_segments:True", "max_split_size_mb:24,roundup_power2_divisions:4"],
    ids=lambda conf: conf or "default",
)
def test_parts_add_up_and_match_the_agents_live_values(conf, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", conf)
    file = tmp_path / "snapshot.gz"
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(file)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    trace = reader.read(file).devices[0]
    seen = breakdown.parts_of(trace)
    assert seen.misfits == 0
    reserved = sum(seen[:4])
    allocs, frees = (np.append(0, np.cumsum(trace.events.action == code)) for code in (0, 1))
    for allocated, freed, *read in json.loads(done.stdout):
        # Between two readings' counts lie the completion of a free and segments that come and go: a few moments at most.
        moments = np.flatnonzero((allocs == allocated) & (frees == freed))
        seen_then = [
            [seen.requested[at], seen.requested[at] + seen.rounding[at], reserved[at]] for at in moments.tolist()
        ]
        assert read in seen_then

    drawn = breakdown.breakdown_of(trace, 200)
    assert 200 <= len(drawn.event) <= 204
    assert (np.diff(drawn.event) > 0).all() and drawn.event[0] == -1 and drawn.event[-1] == len(trace.events) - 1
    assert sum(column[drawn.peak] for column in (drawn.requested, drawn.rounding, drawn.usable, drawn.unusable)) == max(
        reserved
    )

    # The agent's own reading of the same moment, in plain Python, of the segments as PyTorch gives them.
    with gzip.open(file) as opened:
        segments = pickle.load(opened)["segments"]
    settings, _ = trace.parsed_settings
    lives = trace.lives
    asked = trace.rounding.rounded(lives.requested_bytes, lives.alloc_event).tolist()
    demand = Demand(
        (
            ((trace.pools[pool], size > MIB, stream), size, 1)
            for pool, stream, size, event in zip(lives.pool, lives.stream, asked, lives.alloc_event, strict=True)
            if event >= 0
        ),
        max_split_bytes=None if settings.max_split_bytes == UNLIMITED else settings.max_split_bytes,
        slack_bytes=settings.max_non_split_rounding_bytes,
    )
    assert demand.unusable_bytes(segments) == pytest.approx(int(seen.unusable[-1]), abs=len(segments))
    assert 0 < seen.unusable[-1] < seen.unusable[-1] + seen.usable[-1]
