"""Parts of one server, opened and closed in one place."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from vramscope_server.answers.runs import RunRow
from vramscope_server.artifact_store.opening import open_artifacts
from vramscope_server.artifact_store.store import ArtifactsRefused
from vramscope_server.demo_run import DemoRun
from vramscope_server.forecast_watch import ForecastWatch
from vramscope_server.intake import Intake
from vramscope_server.latest_samples import LatestSamples
from vramscope_server.live_events import LiveEvents
from vramscope_server.metrics.sources import MetricSources
from vramscope_server.notifications import Notifier, targets_of
from vramscope_server.oidc import OidcSignIn
from vramscope_server.proxy_users import ProxyUsers
from vramscope_server.recording_cache import RecordingCache
from vramscope_server.send_interval import SendInterval
from vramscope_server.settings import Settings
from vramscope_server.shared_events import SharedEvents
from vramscope_server.snapshots import Snapshots
from vramscope_server.store.compaction import Compactor
from vramscope_server.store.database import Database
from vramscope_server.store.ingest_state import BatchNews
from vramscope_server.store.retention import Retention
from vramscope_server.store.writer import Writer
from vramscope_server.tokens import Tokens
from vramscope_server.whatif_jobs import WhatifJobs

if TYPE_CHECKING:
    from vramscope_server.metrics.open_telemetry import OpenTelemetryExport

log = logging.getLogger("vramscope_server")

_PREPARERS: Final = 2


class Services:
    """Opened by the constructor; :meth:`close` may be called twice.

    first_token  the token that was created because there was none, to be shown once; else None
    is_shared    whether other server processes may use the same database
    """

    def __init__(self, settings: Settings) -> None:
        """Open the database. Raises DatabaseRefused, ArtifactsRefused, TargetRefused."""
        self.settings = settings
        targets = targets_of(settings.notify)
        self.database = Database(settings.database_url, synchronous=settings.synchronous)
        try:
            self.artifacts = open_artifacts(settings, self.database)
        except ArtifactsRefused:
            self.database.close()
            raise
        self.is_shared = self.database.kind == "postgresql"
        self.shared_events = SharedEvents(self.database) if self.is_shared else None
        self.live_events = self.shared_events or LiveEvents()
        self.latest_samples = LatestSamples()
        self.compactor = Compactor(self.database)
        self.address: str | None = None
        self.notifier = Notifier(targets, self.database, lambda: settings.public_url or self.address, self._leads)
        self.forecast_watch = ForecastWatch(self.database, self.notifier, self._leads)
        self.writer = Writer(
            self.database,
            lost_after_seconds=settings.lost_after_seconds,
            listener=self._publish,
            compact=self.compactor.merge,
        )
        self.retention = Retention(
            self.database,
            self.writer,
            days=settings.retention_days,
            max_bytes=settings.retention_bytes,
            audit_entries=settings.audit_entries,
            hourly=lambda: self.snapshots.sweep(),
        )
        self.preparers = ThreadPoolExecutor(_PREPARERS, "vramscope-prepare")
        self.metrics = MetricSources(
            self.database, self.writer, self.compactor, self.latest_samples, self.is_shared, settings.metrics_ranks
        )
        self.open_telemetry: OpenTelemetryExport | None = None
        self.snapshots = Snapshots(
            self.artifacts,
            self.database,
            self.writer,
            max_bytes=settings.snapshots_bytes,
            memory_bytes=settings.snapshot_memory_bytes,
        )
        self.recordings = RecordingCache(self.database, self.snapshots.columns)
        self.snapshots.forget = self.recordings.close
        self.whatif_jobs = WhatifJobs()
        self.demo = DemoRun()
        self.intake = Intake(settings.queue_bytes)
        self.send_interval = SendInterval(settings.workers, settings.lost_after_seconds)
        self.started_seconds = time.time()
        with contextlib.ExitStack() as unless_started:
            unless_started.callback(self.close)
            self.writer.start()
            if self.shared_events is not None:
                self.shared_events.open()
            self.notifier.start()
            self.forecast_watch.start()
            self.compactor.start(self.writer)
            self.retention.start()
            self.snapshots.start()
            self.proxy_users = ProxyUsers(settings)
            self.oidc = OidcSignIn(settings)
            self.tokens = Tokens(self.database, self.writer, self.preparers)
            self.first_token = self.tokens.make_first() if settings.tokens_required else None
            if settings.otlp_endpoint is not None:
                from vramscope_server.metrics.open_telemetry import OpenTelemetryExport

                self.open_telemetry = OpenTelemetryExport(settings.otlp_endpoint, self.metrics)
                self.open_telemetry.start()
            unless_started.pop_all()

    def _leads(self) -> bool:
        return self.writer.leads

    def _publish(self, stored: Sequence[BatchNews], runs: Sequence[RunRow]) -> None:
        self.live_events.publish(stored, runs)
        self.latest_samples.publish(stored, runs)
        self.notifier.publish(stored, runs)

    def close(self) -> None:
        """Store what waits, stop the threads, close the database."""
        self.demo.close()
        if self.open_telemetry is not None:
            self.open_telemetry.close()
        self.whatif_jobs.close()
        if self.shared_events is not None:
            self.shared_events.close()
        self.snapshots.close()
        self.retention.close()
        self.compactor.close()
        self.writer.close()
        self.forecast_watch.close()
        self.notifier.close()
        self.preparers.shutdown(wait=False)
        self.database.close()

    def problems(self) -> list[str]:
        """Problems of the server, in sentences."""
        found: list[str] = []
        if self.writer.trouble is not None:
            found.append(f"Nothing can be stored: {self.writer.trouble}.")
        if (trouble := self.artifacts.trouble) is not None:
            found.append(f"Snapshot files: {trouble}.")
        if not self.writer.alive:
            found.append("The writer has stopped; restart the server.")
        if (refusals := self.intake.problem()) is not None:
            found.append(refusals)
        return found
