"""Figures in the run of another tracker, with the real packages and without a network."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import eventually

from vramscope.guard import guard
from vramscope.memory.peak_counters import Interval
from vramscope.protocol import messages
from vramscope.steps.phase import FORWARD
from vramscope.steps.records import PhaseInterval, StepRecord
from vramscope.trackers.figures import StepFigures
from vramscope.trackers.mirror import TrackerMirror

GIB = 1 << 30
URL = "http://127.0.0.1:8265/runs/abcdefgh"
NAMES = ("wandb", "mlflow", "tensorboard")


def step(number: int, allocated_bytes: int, reserved_bytes: int) -> StepRecord:
    cut = Interval(allocated_bytes, reserved_bytes, 0, 0, 0)
    cut = cut._replace(peak_allocated_bytes=allocated_bytes, peak_reserved_bytes=reserved_bytes)
    return StepRecord(number, 0, [PhaseInterval(FORWARD, 0, 1, [cut])], 1, True, 0, (0,), None)


class Watched:
    """A mirror, and the events that it has put."""

    def __init__(self, *names: str) -> None:
        self.events: list[messages.Event] = []
        self.mirror = TrackerMirror(
            names or NAMES, URL, self.events.append, list, lambda text: text.replace("secret", "***")
        )
        self.mirror.put([step(1, GIB, 2 * GIB), step(2, 3 * GIB, 4 * GIB), step(3, GIB, 4 * GIB)])

    def ends(self, verdict: str = "") -> None:
        self.mirror.start()
        self.mirror.stop(verdict)
        self.mirror.wait(30)  # a tracker's first write takes seconds, and a session does not wait for it


@pytest.fixture
def wandb_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name, value in {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_DIR": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    wandb = pytest.importorskip("wandb")
    run = wandb.init(project="p", dir=str(tmp_path))
    yield run
    run.finish()
    wandb.teardown()  # (it remembers the environment of its first run)


def test_wandb_gets_the_figures_and_keeps_its_steps(wandb_run: Any, tmp_path: Path) -> None:
    watched = Watched()
    wandb_run.log({"loss": 1.0})
    watched.ends("cause: too large a batch")
    wandb_run.log({"loss": 0.5})
    assert wandb_run.step == 2, "the program's own steps"
    assert wandb_run.summary["vramscope/url"] == URL
    assert wandb_run.summary["vramscope/out_of_memory"] == "cause: too large a batch"
    assert [event.data["text"] for event in watched.events] == ["W&B"], "offline it has no address"
    wandb_run.finish()
    name = b"vramscope/peak_allocated_gib"
    eventually(lambda: any(name in file.read_bytes() for file in tmp_path.glob("wandb/offline-run-*/run-*.wandb")))


def test_a_finished_run_of_wandb_is_left_alone(wandb_run: Any) -> None:
    watched = Watched()
    wandb_run.finish()
    watched.ends()
    assert not watched.events


@pytest.fixture
def mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    found = pytest.importorskip("mlflow")
    found.set_tracking_uri(f"file:{tmp_path}/mlruns")
    yield found
    found.end_run()


def test_mlflow_gets_the_figures_of_the_innermost_run(mlflow: Any) -> None:
    with mlflow.start_run(), mlflow.start_run(nested=True) as run:
        watched = Watched("mlflow")
        watched.ends()
        client = mlflow.tracking.MlflowClient()
        [metric] = client.get_metric_history(run.info.run_id, "vramscope/peak_allocated_gib")
        assert (metric.value, metric.step) == (3.0, 3)
        assert client.get_run(run.info.run_id).data.metrics["vramscope/fragmentation"] == 0.25
        assert client.get_run(run.info.run_id).data.tags["vramscope/url"] == URL
        assert run.info.run_id in str(watched.events[0].data["text"])


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder))
    read.Reload()
    return {tag: [(one.step, one.value) for one in read.Scalars(tag)] for tag in read.Tags()["scalars"]}


def watched_writers() -> Watched:
    """A mirror that has found TensorBoard's class."""
    from torch.utils.tensorboard import SummaryWriter

    original = SummaryWriter.add_scalar
    watched = Watched("tensorboard")
    watched.mirror.start()
    eventually(lambda: SummaryWriter.add_scalar is not original)
    return watched


def test_tensorboard_gets_the_figures_at_the_programs_step(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    original = SummaryWriter.add_scalar
    watched = watched_writers()
    writer = SummaryWriter(str(tmp_path))
    writer.add_scalar("loss", 1.0, 400)
    eventually(lambda: bool(watched.events))
    watched.mirror.stop()
    writer.close()
    assert SummaryWriter.add_scalar is original
    found = scalars(tmp_path)
    assert found["vramscope/peak_allocated_gib"] == [(400, 3.0)]
    assert found["loss"] == [(400, 1.0)]
    assert watched.events[0].data["text"] == f"TensorBoard: {tmp_path}"


def test_a_step_that_is_a_tensor_is_not_kept(tmp_path: Path) -> None:
    import torch
    from torch.utils.tensorboard import SummaryWriter

    watched = watched_writers()
    writer, step = SummaryWriter(str(tmp_path)), torch.tensor(7)
    writer.add_scalar("loss", 1.0, step)
    kept = weakref.ref(step)
    del step
    assert kept() is None
    watched.mirror.stop()
    writer.close()
    assert scalars(tmp_path)["vramscope/peak_allocated_gib"] == [(3, 3.0)], "at the optimizer's step"


def test_an_address_has_no_password(mlflow: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from vramscope.trackers.mlflow_run import MlflowRun

    with mlflow.start_run():
        tracker = MlflowRun()
        assert tracker.find()
        for uri in ("https://ann:secret@host:5000/x", "postgresql://ann:secret@db/mlflow"):
            monkeypatch.setattr(mlflow, "get_tracking_uri", lambda uri=uri: uri)
            assert "secret" not in tracker.address() and tracker.address().endswith(tracker._run.info.run_id)


def test_the_figures_are_those_of_one_device() -> None:
    watched = StepFigures(list)
    cuts = [Interval(10 * GIB, 10 * GIB, 0, 0, 0), Interval(9 * GIB, 20 * GIB, 0, 0, 0)]
    watched.put([StepRecord(1, 0, [PhaseInterval(FORWARD, 0, 1, cuts)], 1, True, 0, (0, 1), None)])
    found = watched.take()
    assert found is not None and found.values["vramscope/peak_reserved_gib"] == 10
    assert found.values["vramscope/fragmentation"] == 0
    assert watched.take() is None


def test_a_closed_writer_is_not_opened_again(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    watched = watched_writers()
    writer = SummaryWriter(str(tmp_path / "closed"))
    writer.close()
    files = sorted(tmp_path.rglob("events*"))
    watched.mirror.stop()
    assert sorted(tmp_path.rglob("events*")) == files and not watched.events


def test_without_an_active_run_nothing_is_imported_and_nothing_said() -> None:
    before = {name for name in NAMES if name in sys.modules}
    watched = Watched("tensorboard", "mlflow")
    watched.ends()
    assert not watched.events
    assert {name for name in NAMES if name in sys.modules} == before


def test_a_tracker_that_fails_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Run:
        def __init__(self) -> None:
            self.summary: dict[str, str] = {}

        def log(self, *args: object, **kwargs: object) -> None:
            raise OSError("no network")

    class Module:
        run = Run()

    monkeypatch.setattr(guard, "raise_faults", False)
    monkeypatch.setitem(sys.modules, "wandb", Module())  # type: ignore[arg-type]
    watched = Watched("wandb")
    faults = guard.faults
    watched.ends()
    assert watched.events and guard.faults == faults + 1, "it was linked, and then failed"
    guard.reset()
