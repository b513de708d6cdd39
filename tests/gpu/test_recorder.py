"""Windows of allocator history on the real allocator: complete, attributed, and of no trace in the training."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
import time
import weakref
from array import array
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any

import msgspec
import pytest

from vramscope.guard import guard
from vramscope.process import terminal
from vramscope.process.module_calls import module_calls
from vramscope.protocol import messages, series, window
from vramscope.recording.plan import FIRST, WindowPlan
from vramscope.transport.ring import Ring

pytestmark = pytest.mark.gpu

ALLOC, FREE_REQUESTED, FREE_COMPLETED, SEGMENT_ALLOC, SEGMENT_FREE, SEGMENT_MAP, SEGMENT_UNMAP, _, OOM = range(9)


class Training:
    """A small loop with hooks, a clock and a recorder, and what the recorder brought."""

    def __init__(self, **options: Any) -> None:
        import torch
        from torch import nn

        from vramscope.memory.peak_counters import share_peak_counters
        from vramscope.recording.recorder import WindowRecorder
        from vramscope.steps.clock import StepClock
        from vramscope.steps.hooks import LoopHooks

        self.model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 64)).cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.clock = StepClock()
        self.hooks = LoopHooks(self.clock)
        self.hooks.install([self.model])
        self.clock.watch(share_peak_counters().watch(0))
        self.ring = Ring()
        self.recorder = WindowRecorder(self.clock, self.ring, roots=self.hooks.roots, pace_s=0.0, **options)

    def step(self, rows: int = 64, within: Callable[[], None] = lambda: None) -> None:
        import torch

        loss = self.model(torch.empty(rows, 256, device="cuda")).square().mean()
        within()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def end(self) -> list[window.Window]:
        while self.recorder._uploads._count:  # a session's end waits 2 s at most, whatever the machine does
            time.sleep(0.01)
        self.recorder.close()
        self.hooks.remove()
        self.messages = self.ring.take(1 << 30)
        parts: dict[str, list[bytes]] = {}
        for message in self.messages:
            if isinstance(message, messages.Piece):
                parts.setdefault(message.artifact, []).append(message.data)
        return [window.unpack(b"".join(data)) for data in parts.values()]

    @property
    def notices(self) -> list[messages.Event]:
        return [m for m in self.messages if isinstance(m, messages.Event) and m.kind == "notice"]


@pytest.fixture
def training() -> Iterator[Callable[..., Training]]:
    import torch

    made: list[Training] = []

    def make(**options: Any) -> Training:
        made.append(Training(**options))
        return made[-1]

    # Segments of earlier tests', among them such as grow, are not to be given back within a window (a capture collects first).
    gc.collect()
    torch.cuda.empty_cache()
    torch.empty(1, device="cuda")
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is not None:
        dynamo.counters.clear()  # another test of this process may have compiled: modules are left alone then
    yield make
    for one in made:
        one.end()
    torch.cuda.memory._record_memory_history(enabled=None)
    torch._C._cuda_setMemoryMetadata("")
    assert not hasattr(torch._C._cuda_record_memory_history, "__wrapped__"), "the switch is PyTorch's again"


def asked(plan: WindowPlan | None = None) -> WindowPlan:
    """A plan for which the first steps are over."""
    plan = plan or WindowPlan()
    plan.mark_started(FIRST)
    plan.ask()
    return plan


def is_pytorchs(function: Any) -> bool:
    """Return whether a function is PyTorch's own, not a patch."""
    return not hasattr(function, "__wrapped__")


def numbers(columns: dict[str, bytes]) -> dict[str, list[int]]:
    return {name: list(array("q", column)) for name, column in columns.items()}


def rows(columns: dict[str, bytes]) -> list[dict[str, int]]:
    known = numbers(columns)
    return [dict(zip(known, row, strict=True)) for row in zip(*known.values(), strict=True)]


def held(layout: window.Layout) -> tuple[dict[int, int], dict[int, int], set[int]]:
    """(segments, allocated blocks with what was asked for, blocks that wait for a stream), by address."""
    blocks = rows(layout.blocks)
    return (
        {row["address"]: row["size_bytes"] for row in rows(layout.segments)},
        {row["address"]: row["requested_bytes"] for row in blocks if row["state"] == 1},
        {row["address"] for row in blocks if row["state"] == 2},
    )


def replayed(recorded: window.Window) -> tuple[dict[int, int], dict[int, int], set[int]]:
    """Compute the blocks after the events from the blocks before them; for cudaMalloc's segments only."""
    assert recorded.start is not None
    segments, allocated, pending = held(recorded.start)
    for row in rows(recorded.events):
        action, address = row["action"], row["address"]
        if action == ALLOC:
            assert address not in allocated
            allocated[address] = row["size_bytes"]
        elif action == FREE_REQUESTED:
            assert allocated.pop(address) == row["size_bytes"]
            pending.add(address)
        elif action == FREE_COMPLETED:
            pending.remove(address)
        elif action == SEGMENT_ALLOC:
            segments[address] = row["size_bytes"]
        elif action == SEGMENT_FREE:
            assert segments.pop(address) == row["size_bytes"]
    return segments, allocated, pending


def test_a_windows_start_and_events_give_its_end(training) -> None:
    """Segments and blocks, over other streams, released caches, errors in a step and an out-of-memory that is caught."""
    import torch

    run = training()
    other = torch.cuda.Stream()
    kept: list[Any] = []

    def disorder() -> None:
        for rows_ in (3, 700, 5_000):
            kept.append(torch.empty(rows_, 1024, device="cuda"))
        with torch.cuda.stream(other):
            torch.empty(100, device="cuda")
        lent = torch.empty(3_000_000, device="cuda")
        lent.record_stream(other)
        del lent
        del kept[::2]
        torch.cuda.empty_cache()
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(1 << 40, device="cuda")

    def fails() -> None:
        raise RuntimeError("in the midst of a step")

    run.recorder.begin()
    run.step()
    run.step(100, disorder)
    with pytest.raises(RuntimeError):
        run.step(100, fails)
    run.step(32)
    (recorded,) = run.end()
    assert (recorded.reason, recorded.first_step, recorded.last_step, recorded.lost_events) == (
        "the first steps",
        1,
        3,
        0,
    )
    assert recorded.notes == []
    assert replayed(recorded) == held(recorded.end)
    actions = numbers(recorded.events)["action"]
    assert {ALLOC, FREE_REQUESTED, FREE_COMPLETED, SEGMENT_ALLOC, SEGMENT_FREE, OOM} <= set(actions)
    counters = recorded.end.counters
    assert counters["reserved_bytes.all.current"] == sum(numbers(recorded.end.segments)["size_bytes"])
    assert counters["reserved_bytes.all.peak"] >= counters["reserved_bytes.all.current"]


def test_events_know_their_step_phase_stack_and_module(training) -> None:
    import torch

    run = training()
    torch._C._cuda_setMemoryMetadata("the user's own")
    run.recorder.begin()
    for _ in range(3):
        run.step()
    assert torch._C._cuda_getMemoryMetadata() == "the user's own", "it is put back"
    (recorded,) = run.end()
    events = rows(recorded.events)
    seen = [key for key, _ in groupby((row["step"], series.PHASES[row["phase"]]) for row in events)]
    work = ["forward", "backward", "optimizer"]
    # The first one begins in whatever came before; the tensor that each step begins with is made before its forward.
    assert [pair for pair in seen if pair[1] in work] == [(step, phase) for step in (1, 2, 3) for phase in work]
    outputs = [
        row for row in events if row["size_bytes"] == 64 * 512 * 4 and row["action"] == ALLOC and row["step"] == 3
    ]
    named = [recorded.modules[row["module"]] for row in outputs if row["module"] != series.UNKNOWN]
    assert named == ["0", "1"], "the first layer's output and the ReLU's"
    frames = numbers(recorded.frames)
    files = [
        recorded.words[frames["file"][frame]]
        for row in outputs
        if row["stack"] != series.UNKNOWN
        for frame in recorded.stacks[row["stack"]]
    ]
    assert __file__ in files, "the stack leads to the line of the training"
    known = {row["step"] for row in events if row["action"] == ALLOC and row["stack"] != series.UNKNOWN}
    assert known >= {1, 2, 3}, "a death in the first step needs its lines most"


def test_inference_is_not_listened_to_for_ever(training, monkeypatch: pytest.MonkeyPatch) -> None:
    """It builds no graph, so its calls never show a training."""
    import torch

    from vramscope.recording import first_forward

    monkeypatch.setattr(first_forward, "MOST_CALLS", 8)
    run, seen = training(), []
    first_forward.FirstForward(run.clock, lambda: seen.append("forward")).listen()
    inputs = torch.empty(4, 256, device="cuda")
    with torch.no_grad():
        run.model(inputs)
        assert module_calls.listens_to_all
        run.model(inputs)  # four calls each: the model's and those of its three parts
    assert not module_calls.listens_to_all and seen == []


def test_allocations_of_the_root_module_have_its_name(training) -> None:
    """The loss in a model's own forward was "no module": of GPT-2's peak a third."""
    import torch
    from torch import nn

    class Scored(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(512, 512, device="cuda")

        def forward(self, inputs: Any) -> Any:
            return (self.inner(inputs) - torch.ones(192, 512, device="cuda")).square().mean()

    model = Scored()
    run = training(plan=asked())
    optimizer = torch.optim.SGD(model.parameters())
    run.hooks.models.add(model)
    run.recorder.begin()
    inputs = torch.zeros(192, 512, device="cuda")
    for _ in range(3):
        model(inputs).backward()
        optimizer.step()
    (recorded,) = run.end()
    forward = [
        row for row in rows(recorded.events) if row["action"] == ALLOC and series.PHASES[row["phase"]] == "forward"
    ]
    large = [row["module"] for row in forward if row["size_bytes"] == 192 * 512 * 4]
    # inner's output; the ones, the difference and its square: in each of the two steps that were asked for
    assert [recorded.modules[module] if module >= 0 else "" for module in large] == 2 * ["inner", *3 * ["Scored"]]
    behind = [row["module"] for row in rows(recorded.events) if row["phase"] == series.PHASES.index("optimizer")]
    assert set(behind) <= {series.UNKNOWN}, "and nothing of what comes after it"


def test_module_tags_survive_errors_threads_and_patches(training) -> None:
    """A patch around a module's call passes it on in any case, and is removed."""
    import torch
    from torch import nn

    class Inner(nn.Module):
        def forward(self, asked: str) -> None:
            seen.append(torch._C._cuda_getMemoryMetadata())
            if asked == "fail":
                raise KeyError(asked)
            if asked == "another thread":
                other = threading.Thread(target=self, args=("",))
                other.start()
                other.join()

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Inner()

        def forward(self, asked: str) -> None:
            with contextlib.suppress(KeyError):
                self.inner(asked)
            seen.append(torch._C._cuda_getMemoryMetadata())

    seen: list[str] = []
    outer = Outer()
    run = training(plan=asked())
    run.recorder.begin()
    before = torch._C._cuda_getMemoryMetadata()
    for what in ("", "fail", "another thread"):
        outer(what)
    inside, after = f"{before}.1", f"{before}.0"
    assert seen == [inside, after] * 2 + [inside, "", after], "another thread's metadata is left alone"
    assert torch._C._cuda_getMemoryMetadata() == before

    ours = nn.Module.__call__

    def theirs(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return ours(module, *args, **kwargs)

    nn.Module.__call__ = theirs
    try:
        for _ in range(2):
            run.step()
        outer("")
        assert nn.Module.__call__ is theirs and seen[-2:] == ["", ""]
    finally:
        nn.Module.__call__ = ours
    assert {"0", "1", "2"} < set(run.end()[0].modules)


def test_torch_func_wrappers_are_opened(training) -> None:
    import torch

    run = training(plan=asked())
    weights = dict(run.model.named_parameters())
    run.recorder.begin()

    def loss_of(weights: dict[str, Any], x: Any) -> Any:
        return torch.func.functional_call(run.model, weights, (x,)).square().mean()

    x = torch.empty(64, 256, device="cuda")
    torch.func.grad(loss_of)(weights, x)  # (a window begins with its forward)
    assert run.clock.batch.forwards == 0, "its backward is not heard: nothing waits for one"
    run.step()
    (recorded,) = run.end()
    known = set(numbers(recorded.owners)["address"])
    assert {x.data_ptr(), *(one.data_ptr() for one in weights.values())} <= known


def test_gradients_of_new_parameters_have_owners(
    training,
) -> None:
    import torch

    def grown(*shape: int) -> Any:
        return torch.nn.Parameter(torch.zeros(*shape, device="cuda"))

    run = training()
    run.optimizer = torch.optim.SGD(run.model.parameters())
    plain, rows_, idle = grown(300, 300), grown(400, 400), grown(500, 500)
    placed: dict[str, int] = {}

    def grows() -> None:
        for place, one in enumerate((plain, rows_, idle)):
            run.optimizer.add_param_group({"params": [one]})
            placed[f"parameter 0 of group {place + 1} of SGD"] = one.data_ptr()
        another = torch.optim.SGD([plain])  # steps with what another has, too
        plain.grad = torch.ones_like(plain)
        rows_.grad = torch.sparse_coo_tensor([[7]], torch.ones(1, 400), (400, 400), device="cuda")
        placed["gradient of parameter 0 of group 1 of SGD"] = plain.grad.data_ptr()
        placed["gradient of parameter 0 of group 2 of SGD"] = rows_.grad._values().data_ptr()
        another.register_step_post_hook(lambda *_: setattr(plain, "grad", None))
        another.step()  # (a step's end of its own, where that gradient is gone)

    run.recorder.begin()
    run.step()
    run.step(within=grows)
    run.step()
    (recorded,) = run.end()
    seen = {(recorded.owner_names[row["name"]], row["address"]) for row in rows(recorded.owners)}
    assert set(placed.items()) <= seen
    assert "gradient of parameter 0 of group 3 of SGD" not in recorded.owner_names, "it has none"


def test_workspaces_are_known_by_address_and_tensors_of_their_size_are_none(training) -> None:
    """A tensor from before the recording and one of each step are as large as a workspace, and stay."""
    import numpy as np
    import torch
    from torch.torch_version import TorchVersion

    from vramscope.memory.cublas_workspaces import CublasWorkspaces
    from vramscope_server.analysis.ownership.allocation_owners import name_of, ownership_of
    from vramscope_server.analysis.ownership.categories import CATEGORIES, categories_of
    from vramscope_server.analysis.trace.from_window import from_window

    run = training()
    run.step()
    workspaces, kept = CublasWorkspaces(), []
    truth = {one.address for one in workspaces.read() or ()}
    if TorchVersion(torch.__version__) >= "2.15":  # it keeps none unless TORCH_CUBLAS_WORKSPACE_CACHE is set
        assert not truth
        return
    assert truth
    (size,) = {
        block["size"]
        for segment in torch.cuda.memory_snapshot()
        for block in segment["blocks"]
        if block.get("address") in truth
    }
    kept.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
    run.recorder.begin()
    for _ in range(3):
        run.step(within=lambda: kept.append(torch.empty(size, dtype=torch.uint8, device="cuda")))
    (recorded,) = run.end()
    assert {one.address for one in workspaces.read() or ()} == truth, "no new stream or thread"
    trace = from_window(recorded)
    found = np.array(CATEGORIES)[categories_of(trace)] == "workspaces"
    assert set(trace.lives.address[found]) == truth and np.count_nonzero(found) == len(truth)
    assert {name_of(trace, ownership_of(trace), row) for row in np.flatnonzero(found)} == {"cuBLAS workspace"}
    assert np.count_nonzero(trace.lives.requested_bytes == size) >= len(truth) + 3


def test_compiling_within_a_window_works(training) -> None:
    """Its graph has no break, because nothing of the agent is in it."""
    import torch

    run = training(plan=asked())
    run.recorder.begin()
    model, made = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()), []

    def backend(graph: Any, inputs: Any) -> Any:
        made.append([node.op for node in graph.graph.nodes])
        return graph.forward

    compiled, batch = torch.compile(model, backend=backend, fullgraph=True), torch.ones(2, 4)
    expected = model(batch)
    assert torch.equal(compiled(batch), expected)
    for _ in range(2):
        run.step()
    assert not module_calls.listens_to_all
    assert torch.equal(compiled(batch), expected)
    assert "call_function" in made[0], made
    torch._dynamo.reset()


def test_the_users_history_is_never_changed(training, capsys) -> None:
    import torch

    terminal.forget_printed()
    torch.cuda.memory._record_memory_history(stacks="python", max_entries=5_000)
    run = training()
    run.recorder.begin()
    for _ in range(4):
        run.step()
        run.recorder.ask()
    assert torch._C._cuda_isHistoryEnabled()
    trace = torch.cuda.memory._snapshot()["device_traces"][0]
    assert not any(entry.get("user_metadata") for entry in trace)
    assert sum(entry["action"] == "snapshot" for entry in trace) == 0, "nobody but the user took a snapshot"
    assert run.end() == []
    assert len(run.notices) == 1
    assert capsys.readouterr().err.count("this process records its own memory history") == 1


@pytest.mark.parametrize("entries", [10, 100_000])
def test_a_history_that_the_user_switches_on_is_the_users(training, entries) -> None:
    import torch

    run = training()
    run.recorder.begin()
    run.step()
    torch.cuda.memory._record_memory_history(stacks="python", max_entries=entries)
    mark = torch.empty(12_345, device="cuda", dtype=torch.uint8)
    first = torch.cuda.memory._snapshot()["device_traces"][0]
    assert [(entry["action"], entry["size"]) for entry in first] == [("alloc", 12_345)], (
        "no event of our window is in it"
    )
    run.step()
    run.step()
    assert torch._C._cuda_isHistoryEnabled()
    assert run.end() == []
    assert torch._C._cuda_isHistoryEnabled(), "the end of the session leaves it on"
    del mark


def test_the_user_switching_off_ends_the_window(training) -> None:
    import torch

    run = training()
    run.recorder.begin()
    run.step()
    torch.cuda.memory._record_memory_history(enabled=None)
    for _ in range(3):
        run.step()
    assert run.end() == []
    assert not torch._C._cuda_isHistoryEnabled()


def test_a_window_at_its_limit_is_closed_early_with_a_note(training) -> None:
    run = training(most_events=150)
    run.recorder.begin()
    for _ in range(4):
        run.step()
    (recorded,) = run.end()
    assert recorded.last_step < 3
    assert recorded.lost_events == 0 and replayed(recorded) == held(recorded.end)
    assert "limit of 150 events" in recorded.notes[0]


def test_an_overflowing_window_has_no_start_and_counts_losses(training) -> None:
    import torch

    run = training(most_events=1000)
    run.recorder.begin()
    run.step(64, lambda: [torch.empty(1, device="cuda") for _ in range(1000)] and None)
    (recorded,) = run.end()
    assert recorded.start is None
    assert recorded.lost_events is not None and recorded.lost_events >= 2000
    assert len(numbers(recorded.events)["action"]) <= 1000
    assert any("limit reached" in note for note in recorded.notes)


def setter() -> Callable[[str], None]:
    """What changes the allocator's settings, as programs call it."""
    import torch

    name = "_accelerator_setAllocatorSettings"
    return lambda text: getattr(torch._C, name, torch.cuda.memory._set_allocator_settings)(text)


def test_changed_settings_are_recorded_with_their_time(training) -> None:
    """To the byte, each address: segments of the first part are the default ones, of the second expandable."""
    import torch

    from vramscope_server.analysis.trace.from_window import from_window
    from vramscope_server.analysis.whatif.sweep import check, sweep

    torch.cuda.empty_cache()  # what other tests left would serve these requests: no segment would be made
    run = training()
    run.recorder.begin()
    run.step()
    kept: list[Any] = []

    def changes() -> None:
        kept.extend(torch.empty(size << 20, dtype=torch.uint8, device="cuda") for size in (3, 30, 7))
        setter()("expandable_segments:True")
        kept.extend(torch.empty(size << 20, dtype=torch.uint8, device="cuda") for size in (5, 50, 9))

    try:
        run.step(within=changes)
        run.step(4000)
    finally:
        setter()("expandable_segments:False")
    (recorded,) = run.end()
    kept.clear()
    torch.cuda.empty_cache()  # other tests know segments of cudaMalloc's only
    assert recorded.notes == [
        "the allocator's settings changed within this window, from 'the default ones' to 'expandable_segments:True'"
    ]
    assert recorded.settings_before is not None and recorded.settings_before.settings == ""
    assert recorded.settings_before.settings_in_force["expandable_segments"] is False
    made = [row for row in rows(recorded.events) if row["action"] in (SEGMENT_ALLOC, SEGMENT_MAP)]
    assert {row["action"] for row in made} == {SEGMENT_ALLOC, SEGMENT_MAP}
    at = recorded.settings_before.until_event
    first_map = next(place for place, row in enumerate(rows(recorded.events)) if row["action"] == SEGMENT_MAP)
    assert at <= first_map
    trace = from_window(recorded)
    residual = check(trace)
    assert residual.exact, residual.words
    swept = sweep(trace, ["expandable_segments:True"])
    own, throughout = swept.rows
    assert own.recorded and own.prediction.certainty == "exact"
    assert not throughout.recorded and throughout.prediction.certainty != "exact"
    assert any("changed within this window" in note for note in swept.notes)
    assert is_pytorchs(getattr(torch._C, "_accelerator_setAllocatorSettings", len))
    without = from_window(msgspec.structs.replace(recorded, settings_before=None))
    assert not check(without).exact, "under the last settings alone it comes out otherwise"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("expandable_segments:False", "expandable_segments:True"),
        ("expandable_segments:True", "expandable_segments:False"),
        ("", "max_split_size_mb:24"),
        ("max_split_size_mb:24", ""),
        ("", "roundup_power2_divisions:4"),
        ("roundup_power2_divisions:4", "large_segment_size_mb:48"),
    ],
)
def test_block_sizes_follow_the_settings_of_their_time(training, before: str, after: str) -> None:
    """By the allocator's own counters, after each of the allocations on both sides of the change."""
    import torch

    from vramscope_server.analysis.ownership.amounts import allocated_after
    from vramscope_server.analysis.trace.from_window import from_window
    from vramscope_server.analysis.whatif.baseline_replay import check

    torch.cuda.empty_cache()
    setter()(before)
    run = training()
    run.recorder.begin()
    run.step()
    seen: list[int] = []

    def takes(*kib: int) -> None:
        """Some of them are handed out whole by default, some by max_split_size_mb alone; all are gone when the window ends."""
        held = []
        for size in kib:
            held.append(torch.empty(size << 10, dtype=torch.uint8, device="cuda"))
            seen.append(torch.cuda.memory_allocated())

    def changes() -> None:
        takes(3_000, 31_300, 40_100, 700, 19_800)
        setter()(after)
        takes(2_900, 31_200, 38_500, 700, 19_700, 51_300)

    try:
        run.step(within=changes)
        run.step()
    finally:
        setter()("expandable_segments:False,large_segment_size_mb:20")
    (recorded,) = run.end()
    torch.cuda.empty_cache()
    assert recorded.settings_before is not None
    trace = from_window(recorded)
    result = allocated_after(trace).tolist()
    places = iter(result)
    assert all(any(one == amount for one in places) for amount in seen), "in this order"
    assert max(result) == recorded.end.counters["allocated_bytes.all.peak"]
    residual = check(trace)
    assert residual.exact, residual.words


@pytest.mark.parametrize(
    ("made", "before", "after"),
    [
        ("", "max_split_size_mb:32", ""),
        ("", "", "max_split_size_mb:32"),
        ("True", "True", "False"),
        ("True", "False", "True"),
    ],
)
def test_unusable_follows_the_settings_of_its_time(training, made: str, before: str, after: str) -> None:
    """300 MiB that are free throughout, and on both sides of the change the allocator's own answer to whether they serve."""
    import torch

    from vramscope.memory.unusable import Demand
    from vramscope_server.analysis.fragmentation.breakdown import parts_of
    from vramscope_server.analysis.trace.from_window import from_window

    def sets(text: str) -> None:
        setter()(f"expandable_segments:{text}" if made else text)

    def asks(mib: int) -> bool:
        reserved = torch.cuda.memory_reserved()
        torch.empty(mib << 20, dtype=torch.uint8, device="cuda")
        return torch.cuda.memory_reserved() == reserved

    training().step()  # (what a process allocates once would lie in what is free here)
    torch.cuda.empty_cache()
    sets(made)
    asks(300)
    sets(before)
    run = training()
    run.recorder.begin()
    run.step()
    served: list[bool] = []

    def changes() -> None:
        # Each asks for more than other tests leave free, and for over 20 MiB less than what is free here.
        served.append(asks(250))
        sets(after)
        served.append(asks(270))

    try:
        run.step(within=changes)
        run.step()
    finally:
        setter()("expandable_segments:False")
    (recorded,) = run.end()
    live = Demand.of(recorded).unusable_bytes(torch.cuda.memory_snapshot(include_traces=False))
    torch.cuda.empty_cache()
    assert (live >= 300 << 20) == (not served[1]), "and live, by the settings at the window's end"
    assert recorded.settings_before is not None
    until = recorded.settings_before.until_event
    parts = parts_of(from_window(recorded))
    unusable = [int(parts.unusable[at]) >= 300 << 20 for at in (0, until, until + 1, len(parts.unusable) - 1)]
    assert unusable == [not served[0]] * 2 + [not served[1]] * 2
    assert served == [{"max_split_size_mb:32": False, "False": False}.get(text, True) for text in (before, after)]


@pytest.mark.parametrize(("before", "after"), [("False", "True"), ("True", "False")])
def test_a_leaks_fix_is_replayed_with_the_settings_of_each_time(training, before: str, after: str) -> None:
    """12 MiB have a segment of their own by default, and a part of a page of 20 MiB where segments can grow."""
    import numpy as np
    import torch

    from vramscope_server.analysis.leaks.release_points import GONE
    from vramscope_server.analysis.leaks.reserved_effect import reserved_falls
    from vramscope_server.analysis.trace.from_window import from_window
    from vramscope_server.analysis.trace.trace import reserved_after

    def recorded(*, leaking: bool) -> window.Window:
        torch.cuda.empty_cache()
        setter()(f"expandable_segments:{before}")
        run = training()
        run.recorder.begin()
        run.step()
        kept: list[Any] = []

        def changes() -> None:
            kept.extend(torch.empty(mib << 20, dtype=torch.uint8, device="cuda") for mib in (25,) + (12,) * leaking)
            setter()(f"expandable_segments:{after}")
            kept.extend(torch.empty(mib << 20, dtype=torch.uint8, device="cuda") for mib in (25, 3))

        try:
            run.step(within=changes)
            run.step()
        finally:
            setter()("expandable_segments:False")
        (one,) = run.end()
        kept.clear()
        torch.cuda.empty_cache()
        return one

    training().step()  # (what a process allocates once is no part of it)
    broken, mended = recorded(leaking=True), recorded(leaking=False)
    trace = from_window(broken)
    (leaked,) = np.flatnonzero(trace.lives.requested_bytes == 12 << 20)
    result = reserved_falls(trace, np.array([leaked]), np.array([GONE]), len(trace.events))
    reserved = [reserved_after(from_window(one)) for one in (broken, mended)]
    rises = [int(course.max() - course[0]) for course in reserved]
    came = rises[0] - rises[1]
    assert min(result) <= came <= max(result)
    assert result[-1] == came, "where what was there before lies as it lay: none of it is let go here"


@pytest.mark.parametrize("elsewhere", [False, True])
def test_repeated_setting_changes_have_an_unknown_time(training, elsewhere: bool) -> None:
    run = training()
    run.recorder.begin()
    run.step()

    def changes() -> None:  # (garbage collection does nothing without a limit)
        if elsewhere:
            thread = threading.Thread(target=lambda: setter()("garbage_collection_threshold:0.8"))
            thread.start()
            thread.join()
        else:
            setter()("garbage_collection_threshold:0.7")
            setter()("garbage_collection_threshold:0.8")

    try:
        run.step(within=changes)
        run.step()
    finally:
        setter()("")
    (recorded,) = run.end()
    assert recorded.settings_before is None
    assert "to 'garbage_collection_threshold:0.8'" in recorded.notes[0]
    assert "the time of the change is not known" in recorded.notes[1]


def test_empty_cache_without_effect_is_recorded(training) -> None:
    """Under other settings the call may have an effect. On another thread it is counted, and its time is not known."""
    import torch

    from vramscope_server.analysis.simulator.program import EMPTY_CACHE
    from vramscope_server.analysis.trace.from_window import from_window
    from vramscope_server.analysis.whatif.program import derivation_of
    from vramscope_server.analysis.whatif.sweep import check, predict

    torch.cuda.empty_cache()
    run = training()
    run.recorder.begin()

    def twice() -> None:
        torch.cuda.empty_cache()
        torch.cuda.empty_cache()

    run.step(within=twice)
    kept = [torch.empty(30 << 20, dtype=torch.uint8, device="cuda")]

    def gives_back() -> None:
        kept.clear()
        torch.cuda.empty_cache()
        kept.append(torch.empty(30 << 20, dtype=torch.uint8, device="cuda"))

    run.step(within=gives_back)
    (recorded,) = run.end()
    first, again, second = recorded.emptied
    actions = [row["action"] for row in rows(recorded.events)]
    assert 0 < first == again < second
    assert actions[second] == SEGMENT_FREE != actions[first]
    derivation = derivation_of(from_window(recorded))
    assert derivation.program.event[derivation.program.op == EMPTY_CACHE].tolist() == [first - 1, first - 1, second]
    assert derivation.unseen_empty_caches == 0
    assert check(from_window(recorded)).exact
    assert predict(from_window(recorded), "max_split_size_mb:64").certainty != "exact"

    for elsewhere in (False, True):
        run = training()
        run.recorder.begin()

        def on_another_thread() -> None:
            thread = threading.Thread(target=torch.cuda.empty_cache)
            thread.start()
            thread.join()

        run.step(within=on_another_thread if elsewhere else torch.cuda.empty_cache)
        run.step()
        (recorded,) = run.end()
        predicted = predict(from_window(recorded), "expandable_segments:True")
        is_unknown = any("unknown whether empty_cache() was called" in note for note in predicted.notes)
        assert len(recorded.emptied) == (not elsewhere)
        # A workspace that a product has freed is returned: then the history shows the call.
        had_effect = SEGMENT_FREE in [row["action"] for row in rows(recorded.events)]
        assert (
            is_unknown
            or had_effect
            or any("empty_cache() was called once" in one for one in predicted.reasons) is elsewhere
        )


def test_a_resumed_runs_first_window_continues_the_numbers(training) -> None:
    """It begins at attach; only later it is known how many steps there were before."""
    run = training()
    run.recorder.begin()
    run.clock.begin_again(1000)
    for _ in range(4):
        run.step()
    (recorded,) = run.end()
    assert (recorded.first_step, recorded.last_step, recorded.notes) == (1001, 1003, [])
    events = rows(recorded.events)
    assert {row["step"] for row in events} == {1001, 1002, 1003}
    assert any(row["stack"] != series.UNKNOWN for row in events if row["step"] == 1003)


def test_the_step_that_runs_out_of_memory_is_the_last_one(training) -> None:
    """Also while its batch is loaded, when nothing of it is over."""
    run = training()
    run.recorder.begin()
    run.step()
    run.recorder.out_of_memory([])
    (recorded,) = run.end()
    assert (recorded.first_step, recorded.last_step) == (1, 2)


def test_the_session_may_end_in_the_middle_of_a_window(training) -> None:
    import torch

    run = training()
    run.recorder.begin()
    run.step()
    run.model(torch.empty(8, 256, device="cuda"))
    (recorded,) = run.end()
    assert not torch._C._cuda_isHistoryEnabled()
    assert (recorded.first_step, recorded.last_step, recorded.notes) == (1, 2, ["ended by the end of the session"])
    assert recorded.lost_events == 0 and replayed(recorded) == held(recorded.end)


def test_frees_after_the_last_step_are_no_window(training) -> None:
    import torch

    plan = WindowPlan()
    plan.mark_started(FIRST)
    run = training(plan=plan)
    run.recorder.begin()
    run.step()
    plan.ask()
    run.step()
    assert torch._C._cuda_isHistoryEnabled(), "a window waits for the next step"
    run.model = run.optimizer = None
    gc.collect()
    assert run.end() == []


def test_a_window_is_recorded_on_request(training) -> None:
    run = training(plan=asked())
    run.recorder.ask()  # twice before it begins: one window
    run.recorder.begin()
    for _ in range(5):
        run.step()
    (recorded,) = run.end()
    assert (recorded.reason, recorded.last_step - recorded.first_step) == ("asked for", 1)
    assert replayed(recorded) == held(recorded.end)


def test_a_requested_window_has_stacks_of_frees(training) -> None:
    """Stacks of Python; frees on autograd's thread have none. Other windows record stacks of allocations only."""
    import torch

    from vramscope_server.analysis.timeline.allocation import life
    from vramscope_server.analysis.timeline.source_lines import sites_of
    from vramscope_server.analysis.trace.from_window import from_window

    sizes = 3_000_000

    def lets_go() -> None:
        del kept[:]

    def takes() -> None:
        kept.append(torch.empty(sizes, dtype=torch.uint8, device="cuda"))
        lets_go()

    for plan, each in ((asked(), True), (WindowPlan(), False)):
        kept: list[Any] = []
        run = training(plan=plan)
        run.recorder.begin()
        for _ in range(3):
            run.step(within=takes)
        (recorded,) = run.end()
        trace = from_window(recorded)
        sites = sites_of(trace)
        assert sites.frees_told is each
        ours = [row for row, size in enumerate(trace.lives.requested_bytes) if size == sizes]
        one = life(trace, sites, ours[-1], "")
        assert one["frees_told"] is each
        assert [frame["function"] for frame in one["stack"][:1]] == ["takes"]
        assert [frame["function"] for frame in one["freed_by"][:1]] == (["lets_go"] if each else [])
        if each:
            freed = numbers(recorded.events)
            by_python = [
                stack != series.UNKNOWN
                for action, stack in zip(freed["action"], freed["stack"], strict=True)
                if action == FREE_REQUESTED
            ]
            assert any(by_python) and not all(by_python)


def test_nothing_is_recorded_while_a_graph_is_captured(training) -> None:
    import torch

    run = training()
    image = torch.empty(8, 256, device="cuda")
    with torch.cuda.graph(torch.cuda.CUDAGraph()), torch.no_grad():
        run.recorder.begin()
        run.model(image)
        assert not torch._C._cuda_isHistoryEnabled()
    run.step()
    assert torch._C._cuda_isHistoryEnabled(), "it begins when the capture is over"
    with torch.cuda.graph(torch.cuda.CUDAGraph()), torch.no_grad():
        run.model(image)
        assert not torch._C._cuda_isHistoryEnabled(), "a window that a capture falls into is given up"
    assert run.end() == []


def test_a_graph_captured_within_a_phase_is_noted(training) -> None:
    """Nothing of the agent is called during the capture. Its allocations are in the window, in their own pool, with a
    note."""
    import torch

    run = training(plan=asked())
    run.recorder.begin()
    graph = torch.cuda.CUDAGraph()

    def capture() -> None:
        with torch.cuda.graph(graph):
            torch.empty(3_000_000, device="cuda").zero_()

    run.step(within=capture)
    run.step(within=graph.replay)
    (recorded,) = run.end()
    private = [row for row in rows(recorded.events) if row["action"] == ALLOC and row["pool"] > 0]
    assert [row["size_bytes"] for row in private] == [12_000_000]
    assert recorded.pools[private[0]["pool"]] != (0, 0)
    (note,) = recorded.notes
    assert note.startswith("1 allocations are in private pools (") and "replayed" in note
    assert replayed(recorded) == held(recorded.end)


def test_a_fault_leaves_nothing_switched_on(training, monkeypatch) -> None:
    import torch

    monkeypatch.setattr(guard, "raise_faults", False)
    run = training(plan=asked())
    run.recorder.begin()
    monkeypatch.setattr(run.recorder._reader, "events_since", lambda facts: 1 // 0)
    run.step()
    assert not torch._C._cuda_isHistoryEnabled()
    assert not module_calls.listens_to_all
    assert torch._C._cuda_getMemoryMetadata() == ""
    run.step()
    assert run.end() == []
    guard.reset()


def test_a_window_ended_on_another_thread_is_restored(training) -> None:
    """Memory runs out on autograd's thread, in the backward: the metadata is the training thread's own."""
    import torch

    torch._C._cuda_setMemoryMetadata("the user's own")
    run = training(plan=asked())
    run.recorder.begin()
    autograds = threading.Thread(target=run.recorder.out_of_memory, args=([],))

    def runs_out() -> None:
        autograds.start()
        autograds.join()

    run.step(within=runs_out)
    assert torch._C._cuda_getMemoryMetadata() == "the user's own"
    (recorded,) = run.end()
    assert recorded.notes == ["ended by an out-of-memory error"]


def test_a_child_forked_within_a_window_has_no_hooks(training) -> None:
    run = training(plan=asked())
    run.recorder.begin()
    run.step()
    assert module_calls.listens_to_all
    pid = os.fork()
    if not pid:
        left = 1
        try:
            run.recorder.after_fork_in_child()
            left = int(module_calls.listens_to_all)
        finally:
            os._exit(left)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    run.step()
    assert len(run.end()) == 1


def test_nothing_is_retained_and_the_collector_is_restored(training) -> None:
    run = training(plan=asked())
    run.recorder.begin()
    for _ in range(3):
        run.step()
    assert gc.isenabled()
    run.end()
    model, optimizer = weakref.ref(run.model), weakref.ref(run.optimizer)
    recorder = run.recorder
    run.model = run.optimizer = None
    run.hooks.optimizers.clear()
    gc.collect()
    assert model() is None and optimizer() is None
    assert recorder is not None


def test_training_gives_the_same_numbers_with_and_without_windows(training) -> None:
    import torch

    def weights(recorded: bool) -> list[bytes]:
        torch.manual_seed(1)
        run = training(plan=asked())
        if recorded:
            run.recorder.begin()
        for _ in range(3):
            run.step()
        assert len(run.end()) == recorded
        return [parameter.detach().cpu().numpy().tobytes() for parameter in run.model.parameters()]

    assert weights(True) == weights(False)


def test_a_peak_that_rises_is_recorded_again(training) -> None:
    now = [0.0]
    packed = threading.Event()  # the plan learns a window's cost and peak on the thread that packs it
    plan = WindowPlan(now=lambda: now[0])
    run = training(plan=plan)
    ended = plan.ended
    run.recorder._packing._on_cost = lambda *cost: (ended(*cost), packed.set())
    run.recorder.begin()
    for _ in range(3):
        run.step()
    assert packed.wait(60)
    now[0] = 1e6  # whatever it costs, it is affordable
    for _ in range(3):
        run.step()
    run.step(100_000)
    run.step(100_000)
    run.step(100_000)
    reasons = [recorded.reason for recorded in run.end()]
    assert reasons == ["the first steps", "the peak rose"]


def test_a_windows_peak_is_the_allocators_own(training) -> None:
    import torch

    run = training(most_events=150)
    run.recorder.begin()
    stood: list[int] = []

    def rises() -> None:
        large = torch.empty(200_000_000, dtype=torch.uint8, device="cuda")
        stood.append(torch.cuda.memory_allocated())  # read here: what earlier tests left may go at any moment before
        del large
        for _ in range(60):
            torch.empty(1, device="cuda")

    run.step(64, rises)
    (recorded,) = run.end()
    assert "in the middle of a step" in recorded.notes[0]
    peak = recorded.end.counters["allocated_bytes.all.peak"]
    assert [peak] == stood
    assert recorded.end.counters["reserved_bytes.all.peak"] >= peak
