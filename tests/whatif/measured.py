"""What the real allocator does with a training under given settings: each run in a process of its own, forked off one
that has loaded PyTorch and not touched the GPU, as settings are read once a process."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Question = tuple[str, str, dict[str, Any]]
"""training, settings, and what ``trainings.run`` takes; ``total`` is the card's memory (``7G``), ``async_us`` how long the
GPU takes to be done with what a stream was given"""


def measure(question: Question) -> dict[str, Any]:
    """Peaks and counters. In a fresh child process only."""
    name, conf, wishes = question
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = conf
    if total := wishes.pop("total", None):
        os.environ["EMULATED_GPU_TOTAL_MEM"] = str(total)
    if late := wishes.pop("async_us", None):
        os.environ["EMULATED_GPU_ASYNC_US"] = str(late)
    import trainings

    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 2)  # PyTorch reports each failed cudaMalloc, and we make it fail
    return trainings.run(name, **wishes)


def measure_all(questions: Sequence[Question], workers: int = 2) -> list[dict[str, Any]]:
    """The answers, in the order of the questions."""
    # What the server process loads beforehand it finds by this variable alone.
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["trainings", "torch._dynamo"])  # the first step of an optimizer loads the second
    # Not an executor of concurrent.futures: with max_tasks_per_child these can wait for ever (CPython issue 115634).
    with context.Pool(workers, maxtasksperchild=1) as pool:
        return pool.map(measure, questions, chunksize=1)
