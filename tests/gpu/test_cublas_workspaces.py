"""Workspaces of cuBLAS against the allocator's own counters. Each program is a process of its own."""

from __future__ import annotations

import ctypes
import json
import os
import random
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

import warm

from vramscope.memory import cublas_workspaces
from vramscope.memory.cublas_workspaces import CublasWorkspaces, active_bytes
from vramscope.protocol.series import UNKNOWN

pytestmark = pytest.mark.gpu


def answer_of(program: str, **environment: str) -> Any:
    """Last line that a program prints, from JSON."""
    begin = """
        import json, threading, torch
        from vramscope.memory.cublas_workspaces import CublasWorkspaces
        workspaces, allocated = CublasWorkspaces(), torch.cuda.memory_allocated
        now = lambda: workspaces.bytes_on(0)
    """
    code = textwrap.dedent(begin) + textwrap.dedent(program)
    # (without it, PyTorch 2.15 frees each workspace after its product)
    done = warm.run(code, env={**os.environ, "TORCH_CUBLAS_WORKSPACE_CACHE": "1", **environment})
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("config", ["", ":16:8", ":4096:8:16:8"])
def test_each_thread_and_stream_adds_what_the_allocator_counts(config: str) -> None:
    growth = answer_of(
        """
        matrix, growth = torch.ones(8, 8, device="cuda", requires_grad=True), []
        matrix.grad = torch.zeros_like(matrix)

        def product():
            with torch.no_grad():
                torch.mm(matrix, matrix)

        def grows(call):
            before, known = allocated(), now()
            call()
            growth.append((allocated() - before, now() - known))

        grows(product)
        grows(product)
        for _ in range(3):
            with torch.cuda.stream(torch.cuda.Stream()):
                grows(product)
        loss = torch.mm(matrix, matrix).sum()
        grows(loss.backward)  # on autograd's thread
        print(json.dumps(growth))
        """,
        **({"CUBLAS_WORKSPACE_CONFIG": config} if config else {}),
    )
    allocated, known = zip(*growth, strict=True)
    assert known == allocated
    assert known[1] == 0 and min(known[0], *known[2:]) > 0


@pytest.mark.parametrize("config", ["", ":17:8"])
def test_requested_bytes_are_those_that_the_allocator_counts(config: str) -> None:
    """With sizes from PyTorch's tables, and with those of the allocator's blocks."""
    truth, known, by_blocks, while_recording = answer_of(
        """
        from vramscope.memory import cublas_workspaces
        requested = lambda: torch.cuda.memory_stats()["requested_bytes.all.current"]
        matrix = torch.ones(8, 8, device="cuda", requires_grad=True)
        matrix.grad = torch.zeros_like(matrix)
        before = requested()
        torch.mm(matrix, matrix).sum().backward()
        truth, known = requested() - before, workspaces.requested_bytes()
        cublas_workspaces.SIZES = ()
        without = CublasWorkspaces()
        by_blocks = without.requested_bytes()
        torch.cuda.memory._record_memory_history()
        while_recording = without.requested_bytes()
        torch.cuda.memory._record_memory_history(enabled=None)
        print(json.dumps([truth, known, by_blocks, while_recording]))
        """,
        **({"CUBLAS_WORKSPACE_CONFIG": config} if config else {}),
    )
    assert known == by_blocks == truth > 0
    assert while_recording is None


def test_without_a_product_there_is_none() -> None:
    assert (
        answer_of(
            """
        kept = torch.ones(1024, device="cuda").cumsum(0)
        print(now())
        """
        )
        == 0
    )


def test_tensors_of_the_same_size_are_none() -> None:
    """Parameters, buffers, fused state and saved activations, each as large as a workspace; then in the block of one."""
    size, held, freed, reused = answer_of(
        """
        with torch.no_grad():
            torch.mm(*2 * [torch.ones(8, 8, device="cuda")])
        size = now()

        def keep():
            layer = torch.nn.Embedding(size // 4 // 64, 64, device="cuda")
            layer.register_buffer("table", torch.ones(size // 4, device="cuda"))
            optimizer = torch.optim.Adam(layer.parameters(), fused=True)
            layer.weight.grad = torch.zeros_like(layer.weight)
            optimizer.step()
            # The results of exp are retained by the graph, in C++ only.
            return layer, optimizer, layer(torch.arange(size // 4 // 64, device="cuda")).exp().exp().sum()

        kept, held = keep(), now()
        block = [one.address for one in workspaces.read()]
        torch._C._cuda_clearCublasWorkspaces()
        weight = keep()[0].weight
        print(json.dumps([size, held, now(), weight.data_ptr() in block]))
        """
    )
    assert (held, freed) == (size, 0) and size > 0
    assert reused


def test_a_cleared_workspace_is_none_before_the_next_product() -> None:
    changed, cleared, again, size = answer_of(
        """
        matrix = torch.ones(8, 8, device="cuda")
        matrix @ matrix
        size = now()
        assert not workspaces.has_changed()
        torch._C._cuda_clearCublasWorkspaces()
        changed, cleared = workspaces.has_changed(), now()
        matrix @ matrix
        print(json.dumps([changed, cleared, now(), size]))
        """
    )
    assert changed and cleared == 0 and again == size > 0


def test_the_users_history_gets_no_event() -> None:
    """A snapshot would be one. Versions without sizes in the tables need it, and report nothing meanwhile."""
    events, known, without_sizes, after, truth = answer_of(
        """
        from vramscope.memory import cublas_workspaces
        torch.cuda.memory._record_memory_history()
        matrix = torch.ones(8, 8, device="cuda")
        before = allocated()
        torch.mm(matrix, matrix)
        truth = allocated() - before
        known = now()
        cublas_workspaces.SIZES = ()
        without = CublasWorkspaces()
        meanwhile = without.bytes_on(0)
        events = [event["action"] for event in torch.cuda.memory._snapshot()["device_traces"][0]]
        torch.cuda.memory._record_memory_history(enabled=None)
        print(json.dumps([events, known, meanwhile, without.bytes_on(0), truth]))
        """
    )
    assert "alloc" in events and "snapshot" not in events[:-1]
    assert known == after == truth > 0
    assert without_sizes == UNKNOWN


def test_a_pytorch_without_the_tables_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cublas_workspaces, "FUNCTIONS", ("_ZN2at4cuda7missingEv",))
    found = CublasWorkspaces()
    assert found.bytes_on(0) == UNKNOWN and not found.has_changed()


def test_another_layout_of_the_tables_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random bytes and random addresses in place of a map: nothing is stated, and nothing crashes."""
    for seed in range(200):
        sizes = random.Random(seed)
        memory = ctypes.create_string_buffer(4096)
        inside = [ctypes.addressof(memory) + 8 * sizes.randrange(500) for _ in range(512)]
        words = [sizes.choice([place, sizes.getrandbits(64), sizes.randrange(4)]) for place in inside]
        ctypes.memmove(memory, (ctypes.c_uint64 * 512)(*words), 4096)
        table = (ctypes.addressof(memory),)
        monkeypatch.setattr(cublas_workspaces, "tables", lambda table=table: table)
        assert CublasWorkspaces().bytes_on(0) == UNKNOWN


def test_an_address_without_an_active_block_leaves_all_unknown() -> None:
    segments: list[Any] = [
        {"device": 0, "address": 4096, "total_size": 2048,
         "blocks": [{"size": 512, "state": "inactive"}, {"size": 1536, "state": "active_allocated"}]},
        {"device": 1, "address": 1 << 20, "total_size": 512, "blocks": [{"size": 512, "state": "active_allocated"}]},
    ]  # fmt: skip
    assert active_bytes(segments, frozenset({4096 + 512, 1 << 20})) == {0: 1536, 1: 512}
    for wrong in (4096, 4096 + 1024, 1 << 30):
        assert active_bytes(segments, frozenset({4096 + 512, wrong})) is None


def test_a_training_knows_its_workspaces_from_the_first_step_on() -> None:
    """All that the model, the loss and the batch do not need: workspaces at the peak and at the end, and little in other."""
    steps = answer_of(
        """
        from vramscope.integrations.extensions import extend
        from vramscope.memory.category_split import Categories
        from vramscope.memory.peak_counters import share_peak_counters
        from vramscope.steps.clock import StepClock
        from vramscope.steps.hooks import LoopHooks

        model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(4)]).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        clock = StepClock()
        hooks = LoopHooks(clock)
        extend(hooks)
        hooks.install([model])
        counter = share_peak_counters().watch(0)
        clock.watch(counter)
        clock.breakdown = Categories(hooks.optimizers, hooks.roots, lambda device: counter.peak_now())
        truth, batch = [], torch.ones(64, 256, device="cuda")
        for _ in range(30):
            model(batch).sum().backward()
            optimizer.step()
            truth.append(now())
            optimizer.zero_grad()
        rows = []
        for step, workspaces_bytes in zip(clock.finished.take(), truth):
            end, peak = step.breakdown[0]
            highest = max(one.cuts[0].peak_allocated_bytes for one in step.intervals)
            rows.append([workspaces_bytes, end._asdict(), peak._asdict(), step.intervals[-1].cuts[0].allocated_bytes, highest])
        print(json.dumps(rows))
        """
    )
    for number, (workspaces, end, peak, end_bytes, peak_bytes) in enumerate(steps):
        assert end["workspaces"] == workspaces > 0
        assert sum(end.values()) == end_bytes and sum(peak.values()) == peak_bytes
        # The autograd thread's workspace may be younger than the first step's peak.
        assert 0 < peak["workspaces"] <= workspaces and (number == 0 or peak["workspaces"] == workspaces)
        assert max(end["other"], peak["other"]) <= 1 << 20
        assert number == 0 or peak["activations"] <= 4 << 20
