"""MLflow: the active run of ``mlflow.start_run()``, of any thread; of nested runs the innermost.

Active runs belong to a thread in MLflow 2.14 and later. Numbers are written by the run's id, as other threads must.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit


class MlflowRun:
    """See :class:`vramscope.trackers.tracker.Tracker`."""

    name = "mlflow"
    title = "MLflow"
    modules: tuple[str, ...] = ("mlflow",)
    takes_files: bool = True

    def __init__(self) -> None:
        self._run: Any = None

    def find(self) -> bool:
        fluent = sys.modules.get("mlflow.tracking.fluent")
        stack = getattr(fluent, "_active_run_stack", None)
        every_thread = getattr(stack, "get_all_thread_values", None)
        stacks = [stack] if every_thread is None else list(every_thread().values())
        runs = [run for runs in stacks for run in runs or ()]
        self._run = runs[-1] if runs else None
        return self._run is not None

    def log(self, values: Mapping[str, float], step: int) -> None:
        metric, now_ms = sys.modules["mlflow"].entities.Metric, time.time_ns() // 1_000_000
        metrics = [metric(name, value, now_ms, step) for name, value in values.items()]
        self._client().log_batch(self._run.info.run_id, metrics=metrics)

    def note(self, name: str, text: str) -> None:
        self._client().set_tag(self._run.info.run_id, name, text)

    def add_file(self, path: Path) -> bool:
        self._client().log_artifact(self._run.info.run_id, str(path))
        return True

    def address(self) -> str:
        uri, info = urlsplit(str(sys.modules["mlflow"].get_tracking_uri())), self._run.info
        if uri.scheme not in ("http", "https"):  # a database's address may have a password anywhere
            return f"run {info.run_id}"
        host = uri.netloc.rpartition("@")[2]
        return f"{uri.scheme}://{host}{uri.path.rstrip('/')}/#/experiments/{info.experiment_id}/runs/{info.run_id}"

    def release(self) -> None:
        self._run = None

    def remove(self) -> None:
        pass

    @staticmethod
    def _client() -> Any:
        return sys.modules["mlflow"].tracking.MlflowClient()
