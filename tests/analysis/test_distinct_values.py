"""Sorted distinct values, and texts of frames: as the plain functions give them, and in a fraction of their time."""

from __future__ import annotations

import time

import numpy as np
import pytest
from snapshot_maker import file_of_stacks

from vramscope_server.analysis.snapshot_format.reader import read
from vramscope_server.analysis.timeline.source_lines import frame_of, frame_texts
from vramscope_server.analysis.trace.counting_sort import distinct
from vramscope_server.analysis.trace.trace import Trace


@pytest.mark.parametrize(
    "values", [[], [7], [3, 1, 3, 2, 1], [-5, 0, -5], list(range(1000, 0, -1))], ids=lambda values: f"{len(values)}"
)
def test_distinct_values_are_those_of_numpy(values: list[int]) -> None:
    array = np.array(values, np.int64)
    assert np.array_equal(distinct(array), np.unique(array))
    assert distinct(array).dtype == np.int64


def test_distinct_addresses_take_a_fraction_of_the_time_of_a_hash_table() -> None:
    addresses = (1 << 46) + 512 * np.random.default_rng(1).permutation(300_000)
    began = time.process_time()
    found = distinct(addresses)
    own = time.process_time() - began
    began = time.process_time()
    expected = np.unique(addresses)
    assert own < max(0.02, 1.5 * (time.process_time() - began)), "never slower"
    assert np.array_equal(found, expected)


def trace_with(files: list[str], functions: list[str]) -> Trace:
    """A trace with a frame for each file and function; a word that is missing is -1."""
    (trace,) = read(file_of_stacks(2)).devices
    words = ["", *files, *functions]
    pairs = [(file, function) for file in range(-1, 1 + len(files)) for function in range(-1, len(words))]
    trace.words[:] = words
    columns = np.array([(file, 7 * at, function) for at, (file, function) in enumerate(pairs)], np.int32).T
    trace.frames.update(file=columns[0], line=columns[1], function=columns[2])
    return trace


def test_texts_of_frames_are_those_of_each_frame() -> None:
    files = [
        "/home/ana/project/train.py",
        "train.py",
        "C:\\work\\net\\model.py",
        "??",
        "libtorch_cuda.so",
        "kernel.cpp",
    ]
    trace = trace_with(files, ["main", "at::native::add(at::Tensor const&)", ""])
    places = np.arange(len(trace.frames["line"]))
    assert frame_texts(trace, places) == [str(frame_of(trace, place)) for place in places]
    assert frame_texts(trace, places[:0]) == []
