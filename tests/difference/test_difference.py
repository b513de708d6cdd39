"""Source lines that allocate more in B than in A, for two trainings with a known difference."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import warm
from running import RunningServer
from window_maker import training
from wire_maker import GIB, Agent, new_id

from vramscope.protocol import messages
from vramscope.protocol.window import pack
from vramscope_server.__main__ import main
from vramscope_server.analysis.diff.by_line import difference
from vramscope_server.analysis.diff.holdings import EARLIER, AllocatingLine, LineBytes, peak_allocations_of
from vramscope_server.analysis.diff.line_matching import matched, same_files
from vramscope_server.analysis.diff.steps import step_line
from vramscope_server.analysis.timeline.curve import allocation_curve
from vramscope_server.analysis.trace.from_window import from_window

MIB = 1 << 20

TRAINING = """
import torch
from torch import nn
{more_lines}
from vramscope import agent

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(1024, 1024) for _ in range(4))

    def forward(self, x):
        for block in self.blocks:
            x = torch.relu(block(x))
        {kept}
        return x.square().mean()

net = Net().cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
session = agent.attach(net, name={name!r}, leaks=False)
for step in range(4):
    inputs = torch.zeros(4096, 1024, device="cuda")
    loss = net(inputs)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
session.close()
print(session.run_id)
"""
ADDED = {
    "a": {"more_lines": "", "kept": "pass"},
    "b": {
        "more_lines": "import math\nimport random\nimport string",
        "kept": "self.kept = torch.empty(64 << 20, dtype=torch.uint8, device=x.device)",
    },
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    running = RunningServer(tmp_path_factory.mktemp("server"))
    yield running
    running.stop()


@pytest.fixture(scope="module")
def two_runs(server: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Two trainings under the agent: B has two more lines, is in another folder, and keeps 64 MiB in its forward pass."""
    ids = {}
    for name, added in ADDED.items():
        folder = tmp_path_factory.mktemp(name) / "project"
        folder.mkdir()
        script = folder / "net.py"
        script.write_text(TRAINING.format(name=name, **added))
        code = f"import sys; sys.path.insert(0, {str(folder)!r}); import net"
        env = {**os.environ, "VRAMSCOPE_SERVER": server.url, "VRAMSCOPE_SPOOL_DIR": str(folder / "spool")}
        program = warm.Program(code, env=env, cwd=folder)
        out, err = program.communicate(timeout=120)
        assert program.returncode == 0, err[-3000:]
        ids[name] = out.split()[-1]
    for ident in ids.values():
        deadline = time.monotonic() + 20
        while not any(one["whole"] for one in server.get(f"/runs/{ident}/recordings")["recordings"]):
            assert time.monotonic() < deadline, "no recording came"
            time.sleep(0.1)
    return ids


def the_sum_closes(answer: dict[str, Any]) -> None:
    rows = sum(row["difference_bytes"] for row in answer["rows"]) + answer["left_out"]["difference_bytes"]
    assert answer["a"]["allocated_bytes"] + rows == answer["b"]["allocated_bytes"]
    assert answer["difference_bytes"] == rows == sum(one["difference_bytes"] for one in answer["categories"])


@pytest.mark.gpu
def test_line_with_more_memory_is_named_to_the_byte(server: RunningServer, two_runs: dict[str, str]) -> None:
    answer = server.get("/compare/sites", a=two_runs["a"], b=two_runs["b"])
    the_sum_closes(answer)
    assert answer["a"]["name"] == "a" and answer["a"]["stacks"] and answer["a"]["run_peak_allocated_bytes"]
    first, *others = answer["rows"]
    source = TRAINING.format(name="b", **ADDED["b"]).splitlines()
    line = next(number for number, text in enumerate(source, 1) if "self.kept" in text)
    assert first["file"].endswith("project/net.py") and (first["a_line"], first["b_line"]) == (None, line)
    assert first["function"] == "forward"
    # what is kept from the step before is alive while the next one makes it again
    assert (
        first["b_bytes"] == first["difference_bytes"] == answer["difference_bytes"]
        and first["b_bytes"] % (64 * MIB) == 0
    )
    assert first["difference_bytes"] > 0
    assert all(row["difference_bytes"] == 0 for row in others), "the same code, moved by two lines into another folder"
    moved = [row for row in others if row["a_line"] is not None]
    assert moved and all(row["b_line"] == row["a_line"] + 2 for row in moved)
    shown = server.get("/compare/timelines", a=two_runs["a"], b=two_runs["b"])
    assert [trace["name"] for trace in shown["figure"]["data"]] == ["a (baseline)", "b"]
    assert shown["window"]["b"]["step"] == answer["b"]["step"]
    back = server.get("/compare/sites", a=two_runs["b"], b=two_runs["a"])
    assert back["difference_bytes"] == -answer["difference_bytes"]
    recording = answer["b"]["recording"]
    same = server.get("/compare/sites", a=recording, b=two_runs["b"])
    assert same["difference_bytes"] == 0 and same["a"]["run"] == two_runs["b"]


@pytest.mark.gpu
def test_command_prints_the_same(
    server: RunningServer, two_runs: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diff", two_runs["a"], two_runs["b"], "--server", server.url]) == 0
    out = capsys.readouterr().out
    assert "more than A." in out and "net.py:" in out and "forward" in out
    assert main(["diff", two_runs["a"], two_runs["b"], "--json", "--server", server.url]) == 0
    the_sum_closes(json.loads(capsys.readouterr().out))


SNAPSHOTS = """
import torch
from torch import nn
torch.cuda.memory._record_memory_history(stacks="python")
net = nn.Linear(1024, 1024).cuda()
net(torch.zeros(64, 1024, device="cuda")).mean().backward()
torch.cuda.memory._dump_snapshot({a!r})
kept = [torch.empty(1 << 22, device="cuda") for _ in range(3)]  # more than a workspace of cuBLAS
torch.cuda.memory._dump_snapshot({b!r})
"""


@pytest.mark.gpu
def test_snapshot_files_are_compared_without_a_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = (str(tmp_path / f"{name}.pickle") for name in "ab")
    script = tmp_path / "script.py"
    script.write_text(SNAPSHOTS.format(a=a, b=b))
    program = warm.Program(f"import runpy; runpy.run_path({str(script)!r})", env=dict(os.environ), cwd=tmp_path)
    _, err = program.communicate(timeout=120)
    assert program.returncode == 0, err[-3000:]
    assert main(["diff", a, b, "--json", "--server", "http://127.0.0.1:1"]) == 0
    output = json.loads(capsys.readouterr().out)
    the_sum_closes(output)
    row = next(row for row in output["rows"] if row["b_line"] == 8)
    assert row["file"].endswith("script.py") and row["a_line"] is None
    assert (row["difference_bytes"], row["b_allocations"]) == (48 * MIB, 3)


def test_unreadable_input_is_named(server: RunningServer, capsys: pytest.CaptureFixture[str]) -> None:
    answer = server.http.get("/compare/sites", params={"a": "nobody", "b": "nobody"})
    assert answer.status_code == 404 and answer.json()["field"] == "a" and "nobody" in answer.json()["detail"]
    assert server.http.get("/compare/sites", params={"a": "nobody"}).status_code == 422
    assert main(["diff", "nobody", "nobody", "--server", server.url]) == 3
    assert main(["diff", "no-such.pickle", "no-such.pickle", "--server", server.url]) == 3
    assert "no-such.pickle" in capsys.readouterr().err


@pytest.mark.parametrize("peak_step", [1, 3, 20])
def test_run_uses_the_recording_with_its_peak_step(server: RunningServer, peak_step: int) -> None:
    """Steps count from 1 in recordings too: the last step of a window is in it."""
    agent = Agent()
    server.send(agent, agent.steps(30, peak_allocated_bytes=[GIB * (1 + (i + 1 == peak_step)) for i in range(30)]))
    data = pack(training(steps=1, layers=3))
    windows = {(1, 3): new_id("w"), (20, 20): new_id("w"), (29, 29): new_id("w")}
    for (first, last), ident in windows.items():
        about: dict[str, messages.Scalar] = {"device": 0, "first_step": first, "last_step": last}
        server.send(agent, messages.Piece(artifact=ident, kind="window", number=0, pieces=1, about=about, data=data))
    answer = server.get("/compare/sites", a=agent.run, b=agent.run)
    assert answer["a"]["recording"] == windows[(20, 20) if peak_step == 20 else (1, 3)]


def test_of_two_devices_the_recording_of_the_one_with_the_peak_is_used(server: RunningServer) -> None:
    agent = Agent()
    server.send(agent, agent.steps(5))
    data = pack(training(steps=1, layers=3))
    windows = {(first, device): new_id("w") for first in (2, 20) for device in (0, 1, 2)}
    peaks = {0: GIB, 1: 3 * GIB, 2: 2 * GIB}
    for (first, device), ident in windows.items():
        about: dict[str, messages.Scalar] = {"device": device, "first_step": first, "last_step": first + 2}
        about["peak_allocated_bytes"] = peaks[device]
        server.send(agent, messages.Piece(artifact=ident, kind="window", number=0, pieces=1, about=about, data=data))
    listed = [one["recording"] for one in server.get(f"/runs/{agent.run}/recordings")["recordings"]]
    assert listed == [windows[first, device] for first in (20, 2) for device in (1, 2, 0)]
    assert server.get("/compare/sites", a=agent.run, b=agent.run)["a"]["recording"] == windows[20, 1]


def test_two_windows_of_one_training_differ_by_allocations() -> None:
    small, large = (peak_allocations_of(from_window(training(steps=2, layers=layers))) for layers in (4, 9))
    for a, b in ((small, large), (large, small), (small, small)):
        changes = difference(a, b)
        the_sum_closes(changes)
        assert sum(held.bytes for held in a.lines.values()) == a.allocated_bytes
    assert not any(row["difference_bytes"] for row in difference(small, small)["rows"])


@pytest.mark.parametrize(
    ("kinds", "words"),
    [
        ({"workspaces": 64, "optimizer": 55, "parameters": 28}, "several"),
        ({"temporaries": 190, "workspaces": 32}, "mostly temporaries"),
        ({"activations": 99, "input": 1}, "activations"),
        ({}, None),
    ],
)
def test_mixed_categories_are_not_named_after_the_largest(kinds: dict[str, int], words: str | None) -> None:
    """147 bytes from before the recording, of which 64 are workspaces, are not named workspaces."""
    held = LineBytes(bytes=sum(kinds.values()), allocations=len(kinds), categories=kinds)
    one = replace(peak_allocations_of(from_window(training(steps=2))), lines={AllocatingLine("", EARLIER, 0, ""): held})
    (row,) = difference(one, one)["rows"]
    assert row["category_words"] == words


def test_a_line_has_the_category_of_the_side_with_more_bytes() -> None:
    """A line whose activations are gone in one of two runs is not named after what is left there."""
    line = AllocatingLine("train.py", "forward", 12, "model")
    base = peak_allocations_of(from_window(training(steps=2)))
    more, less = (
        replace(base, lines={line: LineBytes(bytes=size, allocations=1, categories={kind: size})})
        for size, kind in ((1000, "activations"), (32, "workspaces"))
    )
    for a, b in ((more, less), (less, more)):
        (row,) = difference(a, b)["rows"]
        assert row["category"] == "activations"


def test_step_curve_includes_its_peak_and_ends() -> None:
    trace = from_window(training(steps=3, layers=6))
    curve = allocation_curve(trace)
    peak = curve.peak(-1, curve.end)
    line = step_line(trace, curve, peak, points=20)
    assert line.step == int(trace.events.step[peak])
    assert line.allocated_bytes.max() == curve.allocated.max()
    assert (line.share[0], line.share[-1]) == (0, 100) and np.all(np.diff(line.share) > 0)


# ---- which line is which ----


def held(allocations: int = 1, **categories: int) -> LineBytes:
    return LineBytes(sum(categories.values()), allocations, categories or {"activations": 0})


def test_files_of_other_folders_match_by_path_end() -> None:
    a = {"/home/a/one/train.py", "/home/a/one/model/net.py", "/same.py", ""}
    b = {"/home/b/two/train.py", "/home/b/two/model/net.py", "/home/b/two/other/net.py", "/same.py", ""}
    assert same_files(a, b) == {
        "/home/a/one/train.py": "/home/b/two/train.py",
        "/home/a/one/model/net.py": "/home/b/two/model/net.py",
        "/same.py": "/same.py",
        "": "",
    }
    assert same_files({"C:\\x\\net.py"}, {"/y/net.py"}) == {"C:\\x\\net.py": "/y/net.py"}


def test_inserted_line_moves_only_later_lines() -> None:
    a = {AllocatingLine("f.py", "forward", line, ""): held(count) for line, count in ((10, 6), (12, 3), (14, 9))}
    b = {
        AllocatingLine("f.py", "forward", line, ""): held(count) for line, count in ((10, 6), (11, 1), (13, 3), (15, 9))
    }
    pairs = {(own and own.line, other and other.line) for own, other in matched(a, b)}
    assert pairs == {(10, 10), (None, 11), (12, 13), (14, 15)}


def test_each_line_is_in_one_pair() -> None:
    a = {AllocatingLine("f.py", "forward", line, "m"): held(line % 3) for line in range(1, 30)}
    b = {AllocatingLine("g/f.py", "forward", line, "m"): held(line % 4) for line in range(5, 50)}
    b |= {AllocatingLine("", EARLIER, 0, ""): held(2)}
    pairs = matched(a, b)
    assert sorted(own for own, _ in pairs if own) == sorted(a)
    assert sorted(other for _, other in pairs if other) == sorted(b)
