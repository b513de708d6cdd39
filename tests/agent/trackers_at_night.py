"""Figures and a file in trackers that only the nightly tests install, offline. ``test_trackers.py`` runs one at a time."""

from __future__ import annotations

import json
import sqlite3
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from vramscope.memory.peak_counters import Interval
from vramscope.protocol import messages
from vramscope.steps.phase import FORWARD
from vramscope.steps.records import PhaseInterval, StepRecord
from vramscope.trackers.mirror import TrackerMirror

GIB = 1 << 30
URL = "http://127.0.0.1:8265/runs/abcdefgh"
PEAK = "vramscope/peak_allocated_gib"


class Watched:
    """A mirror of three steps, and the events that it has put."""

    def __init__(self, name: str) -> None:
        self.events: list[messages.Event] = []
        self.mirror = TrackerMirror([name], URL, self.events.append, list, str)
        peaks = [(GIB, 2 * GIB), (3 * GIB, 4 * GIB), (GIB, 4 * GIB)]
        for number, (allocated, reserved) in enumerate(peaks, 1):
            cut = Interval(allocated, reserved, 0, 0, 0)._replace(
                peak_allocated_bytes=allocated, peak_reserved_bytes=reserved
            )
            self.mirror.put([StepRecord(number, 0, [PhaseInterval(FORWARD, 0, 1, [cut])], 1, True, 0, (0,), None)])

    def begins(self, is_patched: Callable[[], bool] = lambda: True) -> None:
        """Start, and wait until the tool's class is watched."""
        self.mirror.start()
        end = threading.Event()
        for _ in range(200):
            if is_patched():
                return
            end.wait(0.05)
        raise AssertionError("not within 10 s")

    def ends(self, file: Path) -> None:
        self.mirror.stop("cause: too large a batch")
        self.mirror.wait(60)
        assert self.mirror.takes_files, "an active run was found"
        self.mirror.add_file(file)


@pytest.fixture
def report(tmp_path: Path) -> Path:
    file = tmp_path / "vramscope-report.html"
    file.write_text("<h1>post-mortem</h1>")
    return file


def test_trackio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, report: Path) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
    import trackio
    from trackio.run import Run

    original = Run.log
    watched = Watched("trackio")
    trackio.init(project="p", name="r", auto_log_gpu=False)
    watched.begins(lambda: Run.log is not original)
    trackio.log({"loss": 2.0})
    trackio.log({"loss": 1.0}, step=40)
    watched.ends(report)
    trackio.log({"loss": 0.5})
    trackio.finish()
    assert Run.log is original
    (database,) = tmp_path.glob("*.db")
    with sqlite3.connect(database) as connection:
        rows = [(step, json.loads(values)) for step, values in connection.execute("SELECT step, metrics FROM metrics")]
    assert [(step, row["loss"]) for step, row in rows if "loss" in row] == [(0, 2.0), (40, 1.0), (41, 0.5)], (
        "its own steps"
    )
    assert [(step, row[PEAK]) for step, row in rows if PEAK in row] == [(40, 3.0)]
    assert {"vramscope/url", "vramscope/out_of_memory"} <= {name for _, row in rows for name in row}
    assert watched.events[0].data["text"] == "Trackio: p, run r"
    assert any(
        file.read_bytes() == report.read_bytes() for file in tmp_path.rglob("*") if file.is_file() and file != report
    )


def test_comet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, report: Path) -> None:
    monkeypatch.setenv("COMET_INTERNAL_SENTRY_DSN", "")  # no report of errors to its maker
    import comet_ml

    experiment = comet_ml.OfflineExperiment(
        project_name="p",
        offline_directory=str(tmp_path),
        display_summary_level=0,
        log_code=False,
        log_env_details=False,
    )
    watched = Watched("comet")
    experiment.log_metric("loss", 1.0, step=40)
    watched.begins()
    watched.ends(report)
    assert experiment.curr_step == 40, "its own step"
    assert experiment.get_metric(PEAK) == 3.0
    assert experiment.get_other("vramscope/url") == URL
    experiment.end()
    (archive,) = tmp_path.glob("*.zip")
    with zipfile.ZipFile(archive) as found:
        texts = [found.read(name) for name in found.namelist()]
    assert any(text == report.read_bytes() for text in texts)
    assert any(PEAK.encode() in line and b'"step":40' in line for text in texts for line in text.splitlines())


def test_clearml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, report: Path) -> None:
    monkeypatch.setenv("CLEARML_CACHE_DIR", str(tmp_path))
    import clearml

    clearml.Task.set_offline(True)
    clearml.Task.force_store_standalone_script(True)  # else it reads all files of the repository
    task = clearml.Task.init("p", "r", auto_connect_frameworks=False, auto_resource_monitoring=False)
    watched = Watched("clearml")
    watched.begins()
    watched.ends(report)
    folder = task.get_offline_mode_folder()
    task.flush(wait_for_uploads=True)
    task.close()
    texts = [file.read_bytes() for file in Path(folder).rglob("*") if file.is_file()]
    assert any(b"peak_allocated_gib" in text and b"3.0" in text for text in texts)
    assert any(URL.encode() in text for text in texts)
    assert any(text == report.read_bytes() for text in texts)


def test_aim(tmp_path: Path, report: Path) -> None:
    from aim import Run
    from aim.sdk.run import BasicRun

    original = BasicRun.track
    watched = Watched("aim")
    watched.begins(lambda: BasicRun.track is not original)
    run = Run(repo=str(tmp_path / "repo"), system_tracking_interval=None, capture_terminal_logs=False)
    run.set_artifacts_uri(f"file://{tmp_path}/files")
    run.track(1.0, name="loss", step=40)
    watched.ends(report)
    assert BasicRun.track is original
    (metric,) = [metric for metric in run.metrics() if metric.name == PEAK]
    assert [(step, values[0]) for step, values in metric.data.items()] == [(40, 3.0)]
    assert run["vramscope/url"] == URL
    assert any(file.read_bytes() == report.read_bytes() for file in (tmp_path / "files").rglob("*.html"))
    run.close()


def test_neptune(report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    import neptune
    from neptune.metadata_containers.run import Run

    original = Run.__getitem__
    run = neptune.init_run(project="a/p", mode="offline", capture_hardware_metrics=False, source_files=[])
    watched = Watched("neptune")
    watched.begins(lambda: Run.__getitem__ is not original)
    run["loss"].append(1.0, step=40)
    watched.ends(report)
    run.stop()
    texts = [file.read_bytes() for file in (tmp_path / ".neptune").rglob("*") if file.is_file()]
    assert any(b"peak_allocated_gib" in text for text in texts) and any(URL.encode() in text for text in texts)


def test_swanlab(tmp_path: Path, report: Path) -> None:
    import swanlab

    run = swanlab.init(project="p", mode="offline", log_dir=str(tmp_path))
    watched = Watched("swanlab")
    watched.begins()
    swanlab.log({"loss": 1.0}, step=40)
    watched.ends(report)
    assert run._ctx._global_step == 40, "its own step"
    swanlab.finish()
    texts = [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()]
    assert any(PEAK.encode() in text for text in texts)
