"""A process that records its own memory history has it in the record of an error, unchanged."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "backend")]

import staged  # noqa: E402
from deaths import Death  # noqa: E402
from running import RunningServer  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.xdist_group("deaths")]

OWN = Death(
    "its own history",
    "activations",
    """
    torch.cuda.memory._record_memory_history(stacks=os.environ["STACKS"], max_entries=5000)
    model = stack(2, 256)
    optimizer = optimizer_of(model)
    for _ in range(4):
        step(model, optimizer, 64, 256)
    kept = [megabytes(100) for _ in range(5)]  # keeps
    OTHERS = ("snapshot", "oom", "segment_free")  # the retry returns what is cached
    def events():  # (without times: each snapshot converts them again, and some then differ by a microsecond)
        entries = torch.cuda.memory._snapshot()["device_traces"][0]
        return [{name: value for name, value in entry.items() if name != "time_us"} for entry in entries]
    before = events()
    try:
        megabytes(1 << 14)  # asks
    except torch.OutOfMemoryError:
        pass
    after = [event for event in events() if event["action"] not in OTHERS]
    before = [event for event in before if event["action"] not in OTHERS]
    print(json.dumps({"same": after[:len(before)] == before, "more": len(after) - len(before), "events": len(before)}))
    step(model, optimizer, 64, 256)
    """,
    survived=True,
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    running = RunningServer(tmp_path_factory.mktemp("server"))
    yield running
    running.stop()


def test_the_users_history_is_recorded_and_unchanged(server: RunningServer, tmp_path: Path, emulated_gpu: None) -> None:
    run, code, output = staged.run(OWN, server.url, tmp_path, STACKS="python")
    assert code == 0, output[-2000:]
    spoke = json.loads(next(line for line in output.splitlines() if line.startswith('{"same"')))
    assert spoke["same"]
    assert spoke["more"] == 0
    (error,) = server.get(f"/runs/{run}/oom")["errors"]
    answer = server.get(f"/oom/{error['record']}", wait_seconds=20)
    line = staged.asked_at(replace(OWN, line="# keeps"), str(tmp_path / f"{run}.py"))
    kept = [row for row in answer["by_site"] if row["line"] == line or row["function"] == "megabytes"]
    assert [(row["bytes"], row["count"]) for row in kept] == [(500 << 20, 5)]
    assert sum(row["bytes"] for row in answer["by_site"]) == answer["message"]["allocated_bytes"]
    (recording,) = server.get(f"/runs/{run}/recordings")["recordings"]
    assert recording["recording"] == answer["window"]
    assert recording["about"]["events"] >= spoke["events"]
    moments = server.get(f"/recordings/{answer['window']}/moments")
    assert "own memory history" in moments["reason"]
    assert moments["lost_events"] is None
    assert moments["steps"] == [], "in which step each event was is not known"


def test_a_history_with_native_frames_is_not_used(server: RunningServer, tmp_path: Path, emulated_gpu: None) -> None:
    run, code, output = staged.run(OWN, server.url, tmp_path, STACKS="all")
    assert code == 0, output[-2000:]
    (error,) = server.get(f"/runs/{run}/oom")["errors"]
    answer = server.get(f"/oom/{error['record']}", wait_seconds=0)
    assert answer["window"] is None
    assert [note for note in answer["notes"] if "C++ frames" in note]
