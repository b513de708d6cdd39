"""Profiles of single steps on the real allocator: totals close, each byte has its operation, module and line; nothing stays on."""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

import warm

from vramscope.guard import guard
from vramscope.process import terminal
from vramscope.process.module_calls import module_calls
from vramscope.profiler.plan import ASKED, LINES, WARM, ProfilePlan, ProfileRequest
from vramscope.protocol import messages, series
from vramscope.protocol import profile as profile_tables
from vramscope.protocol.profile import NO_LINE, NOT_ATTRIBUTED, OUTSIDE, PYTHON, SPECIAL, Profile
from vramscope.transport.ring import Ring

pytestmark = pytest.mark.gpu

EXAMPLES = Path(__file__).parents[2] / "examples"
PLAIN = ProfileRequest("asked for", 1, stacks=False, shapes=False, trace=False)
"""The request after warm-up, served at once."""


class One(ProfilePlan):
    """These profiles, at once, one after the other."""

    def __init__(self, *wishes: ProfileRequest) -> None:
        super().__init__(by_itself=False)
        self._wishes = list(wishes)

    def is_due(self, step: int) -> bool:
        return True

    def next_request(self, step: int, step_s: float) -> ProfileRequest | None:
        return self._wishes[0] if self._wishes else None

    def mark_started(self, wish: ProfileRequest) -> None:
        self._wishes.pop(0)


class Training:
    """A small loop with hooks, a clock and a recorder of profiles, and what it brought."""

    def __init__(self, *wishes: ProfileRequest, model: Any = None, **options: Any) -> None:
        import torch
        from torch import nn

        from vramscope.memory.peak_counters import share_peak_counters
        from vramscope.profiler.recorder import ProfileRecorder
        from vramscope.steps.clock import StepClock
        from vramscope.steps.hooks import LoopHooks

        self.model = model or nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 64)).cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.clock = StepClock()
        self.hooks = LoopHooks(self.clock)
        self.hooks.install([self.model])
        self.clock.watch(share_peak_counters().watch(0))
        self.ring = Ring()
        plan = One(*wishes) if wishes else ProfilePlan()
        options = {"plan": plan, **options}
        self.recorder = ProfileRecorder(self.clock, self.ring, roots=self.hooks.roots, pace_s=0.0, **options)
        self.recorder.begin()

    def step(self, rows: int = 64, within: Callable[[], Any] = lambda: None) -> None:
        import torch

        loss = self.model(torch.empty(rows, 256, device="cuda")).square().mean()
        self.kept = within()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def end(self) -> list[Profile]:
        while self.recorder._uploads._count:  # a session's end waits 2 s at most, whatever the machine does
            time.sleep(0.01)
        self.recorder.close()
        self.hooks.remove()
        self.messages = self.ring.take(1 << 30)
        parts: dict[tuple[str, str], list[bytes]] = {}
        for message in self.messages:
            if isinstance(message, messages.Piece):
                parts.setdefault((message.kind, message.artifact), []).append(message.data)
        self.traces = [b"".join(data) for (kind, _), data in parts.items() if kind == "trace"]
        return [profile_tables.unpack(b"".join(data)) for (kind, _), data in parts.items() if kind == "profile"]


@pytest.fixture
def training() -> Iterator[Callable[..., Training]]:
    import torch

    made: list[Training] = []

    def make(*wishes: ProfileRequest, **options: Any) -> Training:
        made.append(Training(*wishes, **options))
        return made[-1]

    torch.empty(1, device="cuda")
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is not None:
        dynamo.counters.clear()  # another test of this process may have compiled: modules are left alone then
    yield make
    for one in made:
        one.end()
    from torch.autograd import profiler

    assert not torch._C._autograd._profiler_enabled()
    assert not hasattr(profiler._prepare_profiler, "__wrapped__"), "the beginning is PyTorch's again"
    assert not module_calls.listens_to_all


def rows(profile: Profile, table: str) -> list[dict[str, Any]]:
    """The rows of a table, names as text."""
    columns: dict[str, list[Any]] = {name: list(array("q", data)) for name, data in getattr(profile, table).items()}
    for name in ("name", "kind", "file", "shapes"):
        if name in columns:
            columns[name] = [profile.words[at] for at in columns[name]]
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def total(profile: Profile, table: str, quantity: str) -> int:
    return sum(row[quantity] for row in rows(profile, table))


def counted(name: str) -> int:
    import torch

    return int(torch.cuda.memory_stats()[name])


def closes_at_every_moment(profile: Profile, table: str) -> tuple[Any, Any]:
    """Return (not attributed, allocated) after each change, from the rows' names and sums."""
    import numpy as np

    from vramscope_server.analysis.profile.history import BEFORE, history_of
    from vramscope_server.analysis.timeline.overview import held_by

    made = history_of(profile, table)
    assert made is not None
    curve, names = made.curve, made.grouping.names
    held = held_by(curve, made.grouping.group, len(names), np.arange(-1, curve.end))
    result = np.frombuffer(profile.history["total_bytes"], "<i8")
    assert (result >= 0).sum() > 0.5 * len(result)
    assert (held.sum(0)[1:][result >= 0] == result[result >= 0]).all(), "the allocator's own count"
    assert held[:, 0].sum() == profile.start_bytes
    assert held[:, -1].sum() == profile.start_bytes + profile.allocated_bytes - profile.freed_bytes
    assert (held >= 0).all()
    assert profile.peak_bytes == held.sum(0).max()
    peak = held[:, curve.peak(-1, curve.end) + 1]
    at_peak: dict[str, int] = {}
    for row in rows(profile, table):
        name = f"{row['file'].rsplit('/', 1)[-1]}:{row['line']}" if row.get("file") else row["name"]
        while table == "modules" and name not in names and "." in name:
            name = name.rpartition(".")[0]  # cut, where there are many
        at_peak[name] = at_peak.get(name, 0) + row["self_peak_bytes"]
    at_peak |= {BEFORE: profile.before_bytes, NOT_ATTRIBUTED: profile.unattributed_peak_bytes}
    assert dict(zip(names, peak.tolist(), strict=True)) == at_peak
    return held[names.index(NOT_ATTRIBUTED)], held.sum(0)


@pytest.mark.parametrize("wish", [PLAIN, ASKED], ids=["plain", "with stacks"])
def test_each_byte_is_in_one_row_and_sums_match_the_allocator(training, wish: ProfileRequest) -> None:
    """Includes frees by Python, memory of another stream, an error in an operation, and an unknown thread."""
    import threading

    import torch

    run = training(wish)
    run.step()
    other = torch.cuda.Stream()

    def disorder() -> Any:
        kept = [torch.zeros(rows_, 1024, device="cuda") for rows_ in (3, 700, 5_000)]
        with torch.cuda.stream(other):
            torch.zeros(100, device="cuda")
        lent = torch.zeros(3_000_000, device="cuda")
        lent.record_stream(other)
        del lent, kept[::2]
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(1 << 40, device="cuda")
        thread = threading.Thread(target=lambda: torch.empty(2_000_000, device="cuda"))
        thread.start()
        thread.join()
        return kept

    before = counted("allocated_bytes.all.allocated")
    for _ in range(wish.steps):
        run.step(100, disorder)
    (profile,) = run.end()
    assert (profile.first_step, profile.last_step, profile.steps) == (2, 1 + wish.steps, wish.steps)
    assert profile.allocated_bytes == counted("allocated_bytes.all.allocated") - before
    assert profile.freed_bytes and profile.start_bytes
    tables = ["operations", "modules", *(["lines"] if wish.stacks else [])]
    for table in tables:
        assert total(profile, table, "self_allocated_bytes") == profile.allocated_bytes
        assert total(profile, table, "self_freed_bytes") == profile.freed_bytes
        assert profile.peak_bytes == (
            total(profile, table, "self_peak_bytes") + profile.before_bytes + profile.unattributed_peak_bytes
        )
        closes_at_every_moment(profile, table)
    lost = {row["name"]: row["self_allocated_bytes"] for row in rows(profile, "operations")}.get(NOT_ATTRIBUTED, 0)
    assert lost == wish.steps * 8_000_000, "the thread's alone"


@pytest.mark.parametrize("wish", [PLAIN, ASKED], ids=["plain", "with stacks"])
def test_of_the_example_model_less_than_2_percent_are_not_attributed(training, wish: ProfileRequest) -> None:
    """Of the bytes that its steps allocate, and of those that are alive at their peak: by operation, by module and by line."""
    import torch

    spec = importlib.util.spec_from_file_location("example_gpt2", EXAMPLES / "gpt2.py")
    example = importlib.util.module_from_spec(spec)
    sys.modules["example_gpt2"] = example  # its dataclass looks for its module
    spec.loader.exec_module(example)
    shape = example.Shape(layers=3, width=192, heads=3, words=4096, positions=256)
    run = training(wish, model=example.GPT2(shape).cuda())

    def step() -> None:  # as in the example's main()
        text = torch.randint(shape.words, (4, shape.positions + 1)).cuda()
        with torch.autocast("cuda", torch.bfloat16):
            loss = run.model(text[:, :-1], text[:, 1:])
        loss.backward()
        run.optimizer.step()
        run.optimizer.zero_grad()

    step()
    before = counted("allocated_bytes.all.allocated")
    for _ in range(wish.steps):
        step()
    (profile,) = run.end()
    assert profile.steps == wish.steps
    assert profile.allocated_bytes == counted("allocated_bytes.all.allocated") - before > 100 << 20
    assert profile.unattributed_peak_bytes < 0.02 * profile.peak_bytes
    for table in ("operations", "modules", *(["lines"] if wish.stacks else [])):
        for lost in (row for row in rows(profile, table) if row["name"] == NOT_ATTRIBUTED):
            assert lost["self_allocated_bytes"] < 0.02 * profile.allocated_bytes
            assert lost["self_freed_bytes"] < 0.02 * profile.freed_bytes
        assert total(profile, table, "self_allocated_bytes") == profile.allocated_bytes
        assert total(profile, table, "self_freed_bytes") == profile.freed_bytes
        assert profile.peak_bytes == (
            total(profile, table, "self_peak_bytes") + profile.before_bytes + profile.unattributed_peak_bytes
        )
        unknown, allocated = closes_at_every_moment(profile, table)
        assert (unknown < 0.02 * allocated).all(), "at every moment"
    outside = sum(row["self_allocated_bytes"] for row in rows(profile, "operations") if row["name"] == PYTHON)
    assert outside < 0.02 * profile.allocated_bytes, "nor is it merely called Python's"


def test_an_operation_has_what_the_allocators_counters_say_around_it(training) -> None:
    """Each operation once by itself, under a name that is found again."""
    import torch

    x = torch.ones(300, 700, device="cuda")
    done = {
        "aten::mm": lambda: x @ x.T,
        "aten::add": lambda: x + 1,
        "aten::sort": lambda: x.sort(),
        "aten::cat": lambda: torch.cat([x, x, x]),
        "aten::softmax": lambda: torch.softmax(x, 0),
        "aten::to": lambda: x.to(torch.float64),
        "aten::cumsum": lambda: x.cumsum(0),
        "aten::layer_norm": lambda: torch.nn.functional.layer_norm(x, (700,)),
    }
    taken: dict[str, int] = {}
    calls = iter([*done.items()])

    def each() -> Any:
        kept = []
        for name, call in calls:
            before = counted("allocated_bytes.all.allocated")
            kept.append(call())
            taken[name] = counted("allocated_bytes.all.allocated") - before
        return kept

    layer = torch.nn.Linear(256, 64, bias=False).cuda()
    run = training(PLAIN, model=layer)
    run.step()
    rows_ = torch.empty(64, 256, device="cuda")
    before = counted("allocated_bytes.all.allocated")
    with torch.no_grad():
        torch.nn.functional.linear(rows_, layer.weight)
    of_layer = counted("allocated_bytes.all.allocated") - before
    run.step(within=each)
    (profile,) = run.end()
    found: dict[str, int] = {}
    for row in rows(profile, "operations"):
        if series.PHASES[row["phase"]] == "forward":
            found[row["name"]] = found.get(row["name"], 0) + row["allocated_bytes"]
    # (the layer's own multiplication is one more of these; since 2.15 each takes and lets go what cuBLAS works in)
    assert found["aten::mm"] - of_layer == taken.pop("aten::mm")
    assert {name: found[name] for name in taken} == taken


def test_memory_freed_by_python_is_not_alive_at_the_peak(training) -> None:
    """PyTorch's tree of a profile without stacks leaves that out."""
    import torch

    def drops() -> Any:
        for size in (1 << 24, 3 << 24, 1 << 24):
            dropped = torch.empty(size, dtype=torch.uint8, device="cuda")
            del dropped
        return torch.empty(1 << 27, dtype=torch.uint8, device="cuda")

    run = training(PLAIN)
    run.step()
    run.step(within=drops)
    (profile,) = run.end()
    empty = [row["self_peak_bytes"] for row in rows(profile, "operations") if row["name"] == "aten::empty"]
    assert 1 << 27 <= sum(empty) < (1 << 27) + (1 << 20), "of four that it made the last one alone is alive"
    python = [row for row in rows(profile, "operations") if row["name"] == PYTHON]
    assert sum(row["self_freed_bytes"] for row in python) >= 5 << 24


def test_modules_have_what_their_forward_and_backward_allocate(training) -> None:
    """The forward against hooks of our own; the backward's gradients are the module's too, in a profile of either kind."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(256, 1024), nn.Linear(1024, 256)

        def forward(self, x: Any) -> Any:
            return x + self.down(torch.relu(self.up(x)))

    model = nn.Sequential(Block(), Block()).cuda()
    taken: dict[str, int] = {}
    names = {module: name for name, module in model.named_modules() if name}

    def begin(module: Any, args: Any) -> None:
        taken[names[module]] = -counted("allocated_bytes.all.allocated")

    def end(module: Any, args: Any, output: Any) -> None:
        taken[names[module]] += counted("allocated_bytes.all.allocated")

    for wish in (PLAIN, ASKED._replace(steps=1)):
        run = training(wish, model=model)
        run.step()
        handles = [
            handle
            for module in names
            for handle in (module.register_forward_pre_hook(begin), module.register_forward_hook(end))
        ]
        run.step()
        for handle in handles:
            handle.remove()
        (profile,) = run.end()
        found = {row["name"]: row for row in rows(profile, "modules")}
        assert set(taken) <= set(found)
        weights = {
            name: sum(-(-p.numel() * 4 // 512) * 512 for p in model.get_submodule(name).parameters()) for name in taken
        }
        for name, forward in taken.items():
            row = found[name]
            assert row["allocated_bytes"] >= forward + weights[name], f"{name}: its outputs and its gradients"
            assert row["calls"] == 1 and row["cpu_ns"] >= row["self_cpu_ns"] > 0
        assert found["0"]["kind"] == "Block" and found["0.up"]["kind"] == "Linear"
        for name in ("0", "1"):
            inner = sum(found[f"{name}.{part}"]["allocated_bytes"] for part in ("up", "down"))
            assert found[name]["allocated_bytes"] == inner + found[name]["self_allocated_bytes"]
        assert found[OUTSIDE]["self_allocated_bytes"] > 0, "the optimizer's"


def test_lines_are_those_of_the_training_and_take_their_backward_with_them(training) -> None:
    import torch

    run = training(ASKED)
    run.step()

    def mine() -> Any:
        return torch.zeros(1000, 1000, device="cuda")

    run.step(within=mine)
    run.step(within=mine)
    (profile,) = run.end()
    found = rows(profile, "lines")
    here = [row for row in found if row["file"].endswith("test_profiles.py")]
    (line,) = [row for row in here if row["name"] == "mine"]
    assert line["line"] == line["last_line"] == mine.__code__.co_firstlineno + 1
    assert line["self_allocated_bytes"] == 2 * 4_000_256 and line["calls"] == 2
    # What autograd's thread does for an operation belongs to the line of that operation.
    code = Training.step.__code__
    forward = [row for row in here if row["line"] == code.co_firstlineno + 3 and row["name"] == "step"]
    outputs = 64 * 512 * 4 * 2 + 64 * 64 * 4
    assert sum(row["self_allocated_bytes"] for row in forward) >= 2 * (outputs + 256 * 512 * 4 + 512 * 64 * 4)
    named = sum(row["self_allocated_bytes"] for row in found if row["name"] not in SPECIAL)
    assert named / profile.allocated_bytes > 0.98


def test_recomputed_blocks_keep_their_module(training) -> None:
    """Its second forward runs within the backward, on autograd's thread, and is left early."""
    import torch
    from torch import nn
    from torch.utils.checkpoint import checkpoint

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256))
            self.head = nn.Linear(256, 8)

        def forward(self, x: Any) -> Any:
            return self.head(checkpoint(self.block, x, use_reentrant=False))

    for wish in (PLAIN, ASKED._replace(steps=1)):
        run = training(wish, model=Model().cuda())
        run.step()
        run.step()
        (profile,) = run.end()
        found = {row["name"]: row for row in rows(profile, "modules")}
        assert found["block"]["calls"] == 2 and found["head"]["calls"] == 1
        assert found["block.0"]["self_allocated_bytes"] >= 2 * 64 * 512 * 4 + 256 * 512 * 4
    assert torch.isfinite(torch.zeros(1)).all()


def test_the_users_profiler_is_never_changed(training, capsys: pytest.CaptureFixture[str]) -> None:
    """A profiler that runs already is not changed. One that starts within the agent's finds it closed."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    terminal.forget_printed()
    run = training(PLAIN)
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as users:
        run.step()
        run.step()
    assert any(event.key == "aten::relu" for event in users.key_averages())
    assert run.end() == []
    assert "another profiler is active in this process" in capsys.readouterr().err

    run = training(ASKED)
    run.step()
    assert run.recorder.is_open
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as users:
        assert not run.recorder.is_open
        torch.relu(torch.zeros(10, device="cuda"))
    assert any(event.key == "aten::relu" for event in users.key_averages())
    for _ in range(3):
        run.step()
    assert run.end() == [], "it is given up, and not started again"


@pytest.mark.parametrize("where", ["start", "stop", "marks"])
def test_a_fault_leaves_no_profiler_on(training, monkeypatch, where: str) -> None:
    """Not after a start that fails half way, a stop that fails early, or hooks that are removed."""
    import torch
    from torch.profiler import profile

    from vramscope.profiler.module_marks import ModuleMarks

    faults = []

    def fail(*_: Any) -> None:
        faults.append(where)
        raise RuntimeError("a fault of ours")

    whole = profile.start

    def start_and_fail(self: Any) -> None:
        whole(self)
        fail()

    monkeypatch.setattr(guard, "raise_faults", False)
    run = training(PLAIN, PLAIN)
    with monkeypatch.context() as patch:
        if where == "start":
            patch.setattr(profile, "start", start_and_fail)
        elif where == "stop":
            patch.setattr(profile, "stop", fail)
        else:
            patch.setattr(ModuleMarks, "end", lambda self: (self.forget(), fail()))
        for _ in range(3):
            run.step()
        assert faults and not torch._C._autograd._profiler_enabled()
    run.step()
    assert run.end() == [], "after a fault nothing is recorded any more"
    guard.reset()


def test_the_profiler_is_closed_on_its_own_thread(training) -> None:
    import threading

    import torch

    run = training(ASKED)
    run.step()
    ending = threading.Thread(target=run.recorder.close)
    ending.start()
    ending.join()
    assert torch._C._autograd._profiler_enabled(), "only this thread can"
    run.step()
    assert not torch._C._autograd._profiler_enabled()
    assert run.end() == []


def test_an_evaluation_postpones_the_profile(training, monkeypatch) -> None:
    import torch

    from vramscope.profiler import recorder

    run = training(plan=ProfilePlan(by_itself=False))
    run.recorder.ask()
    run.step()
    assert run.recorder.is_open
    monkeypatch.setattr(recorder, "OVERDUE_S", 0.0)
    monkeypatch.setattr(recorder, "OVERDUE_STEPS", 0)
    with torch.no_grad():
        for _ in range(3):
            run.model(torch.empty(8, 256, device="cuda"))
    assert not run.recorder.is_open and not torch._C._autograd._profiler_enabled()
    monkeypatch.undo()
    for _ in range(4):
        run.step()
    (profile,) = run.end()
    assert profile.reason == "asked for" and profile.steps == 2


FORKS = """
import os, sys, torch
from torch import nn
from vramscope import agent
from vramscope.process.module_calls import module_calls

torch.empty(1, device="cuda")
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU()).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
session = agent.attach(model, windows=False)

def step():
    model(torch.empty(8, 64, device="cuda")).mean().backward()
    optimizer.step()

def left():
    return [int(torch._C._autograd._profiler_enabled()), int(module_calls.listens_to_all)]

step()
session._profiler.ask()
step()
assert session._profiler.is_open
pid = os.fork()
if not pid:
    print("child", *left(), flush=True)
    os._exit(0)
os.waitpid(pid, 0)
for _ in range(4):
    seen = session._profiler.is_open
    step()
    if seen:
        break
print("again", seen)
"""


def test_a_worker_forked_within_a_profile_is_not_profiled(tmp_path: Path) -> None:
    done = warm.run(
        FORKS,
        env={
            **os.environ,
            "VRAMSCOPE_SERVER": "http://127.0.0.1:9",
            "VRAMSCOPE_SPOOL_DIR": str(tmp_path),
            "VRAMSCOPE_CLOSE_TIMEOUT_S": "0.2",
        },
    )
    assert done.stdout.splitlines() == ["child 0 0", "again True"], done.stderr


def test_windows_of_history_and_profiles_take_turns(training) -> None:
    """Both are wished for at the same step: one is recorded after the other."""
    from vramscope.recording.plan import FIRST, WindowPlan
    from vramscope.recording.recorder import WindowRecorder

    run = training(ASKED, other_is_open=lambda: windows.is_open)
    plan = WindowPlan()
    plan.mark_started(FIRST)
    windows = WindowRecorder(
        run.clock, run.ring, roots=run.hooks.roots, plan=plan, pace_s=0.0, other_is_open=lambda: run.recorder.is_open
    )
    windows.begin()
    plan.ask()
    seen = set()
    for _ in range(8):
        run.step()
        assert not (windows.is_open and run.recorder.is_open)
        seen |= {kind for kind, open_ in (("window", windows.is_open), ("profile", run.recorder.is_open)) if open_}
    windows.close()
    assert seen == {"window", "profile"}
    assert len(run.end()) == 1


def test_the_trace_is_sent_only_on_request(training) -> None:
    import gzip
    import json

    run = training(PLAIN, ASKED._replace(steps=1, trace=True))
    for _ in range(4):
        run.step()
    plain, asked = run.end()
    (trace,) = run.traces
    answer = json.loads(gzip.decompress(trace))
    assert {"aten::linear", "aten::relu"} <= {event.get("name") for event in answer["traceEvents"]}
    assert asked.stacks and not plain.stacks and not rows(plain, "lines")
    shapes = {row["name"]: row["shapes"] for row in rows(asked, "operations")}
    assert shapes["aten::addmm"] == "512, 64x256, 256x512"
    assert not any(row["shapes"] for row in rows(plain, "operations"))


def test_times_are_reported_and_unknown_ones_are_unknown(training) -> None:
    """The parts of a thread's time add up to the window; a device of which no kernel was seen has no time."""
    run = training(PLAIN)
    for _ in range(3):
        run.step()
    (profile,) = run.end()
    assert 0 < total(profile, "operations", "self_cpu_ns") <= profile.span_ns * 1.05
    assert total(profile, "operations", "self_cpu_ns") == total(profile, "modules", "self_cpu_ns")
    assert profile.cost.opening > 0 and profile.cost.closing > 0 and profile.cost.packing > 0
    assert profile.cost.step_within is not None
    python = [row for row in rows(profile, "operations") if row["name"] == PYTHON]
    assert python and sum(row["self_cpu_ns"] for row in python) > 0
    device = {row["self_device_ns"] for row in rows(profile, "operations")}
    if profile.device_time:
        assert profile.device_busy_ns and max(device) > 0
    else:
        assert profile.device_busy_ns is None and device == {series.UNKNOWN}
    assert not rows(profile, "lines") and NO_LINE not in profile.words


def test_profiles_wait_for_their_share_of_the_runs_time() -> None:
    """The cost of the first profile decides when the next one may run."""
    now = [0.0]
    plan = ProfilePlan(now=lambda: now[0])
    assert plan.next_request(19, 0.1) is None
    now[0] = 89.0
    assert plan.next_request(1000, 0.1) is None, "eight steps and 0.1 s would be more than a hundredth of it"
    now[0] = 91.0
    assert plan.next_request(19, 0.1) is None, "warm-up"
    assert plan.next_request(1000, 0.1) is WARM
    plan.mark_started(WARM)
    plan.ended(WARM, 0.2)
    assert plan.next_request(1000, 0.1) is None
    now[0] = 1401.0
    assert plan.next_request(2000, 0.1) is LINES, "0.2 s and six times that"
    plan.mark_started(LINES)
    plan.ended(LINES, 5.0)
    now[0] = 1e9
    assert plan.next_request(3000, 0.1) is None
    plan.ask(trace=True)
    plan.ask(trace=False)
    asked = plan.next_request(3000, 0.1)
    assert asked is not None and asked.trace and asked.reason == "asked for"
    plan.mark_started(asked)
    assert plan.next_request(3001, 0.1) is None
    alone = ProfilePlan(by_itself=False, now=lambda: now[0])
    now[0] = 2e9
    assert alone.next_request(3000, 0.1) is None


def test_the_tables_are_summed_in_slices_and_are_the_same(training, monkeypatch) -> None:
    """Between two pauses a small part of the work is done, by the calls that it makes; and as if there were none."""
    from torch import nn

    from vramscope.profiler import packing

    tables_of, seen = packing.tables_of, []

    def both(raw: Any, events: Any, spent_s: Any, pause: Any) -> Profile:
        calls, slices = 0, []

        def count(*_: Any) -> None:
            nonlocal calls
            calls += 1

        def cut() -> None:
            nonlocal calls
            slices.append(calls)
            calls = 0

        sys.setprofile(count)
        try:
            cut_up = tables_of(raw, events, lambda: 0.0, cut)
        finally:
            sys.setprofile(None)
        cut()
        whole = tables_of(raw, events, lambda: 0.0, lambda: None)
        seen.append((profile_tables.pack(cut_up) == profile_tables.pack(whole), slices, len(events.names)))
        return whole

    monkeypatch.setattr(packing, "tables_of", both)
    run = training(PLAIN, model=nn.Sequential(*[nn.Linear(256, 256) for _ in range(60)]).cuda())
    for _ in range(3):
        run.step()
    (_,) = run.end()
    ((same, slices, rows),) = seen
    assert same and rows > 2000
    assert max(slices) < sum(slices) / 10, slices
