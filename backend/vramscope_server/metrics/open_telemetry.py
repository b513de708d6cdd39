"""Sends the metrics of ``/metrics`` to an OpenTelemetry receiver (OTLP over HTTP), at a fixed rate.

Uses the exporter and the data model of the OpenTelemetry SDK. Its instruments would keep the labels of each run for ever, so
that the points are made each time: a run that ended has none.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from prometheus_client.core import Metric
from sqlalchemy.exc import SQLAlchemyError

from vramscope import __version__
from vramscope_server.metrics.sources import MetricSources

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics import export as otlp

log = logging.getLogger("vramscope_server.open_telemetry")

PATH: Final = "/v1/metrics"
DEFAULT_INTERVAL_MS: Final = 60_000
LEAST_INTERVAL_MS: Final = 100
MOST_INTERVAL_MS: Final = 24 * 3600 * 1000
UNITS: Final = {"_bytes": "By", "_seconds": "s", "_percent": "%"}
"""UCUM units, by the end of a name."""


class OpenTelemetryExport:
    """Sends in a thread of its own. Start with :meth:`start`, end with :meth:`close`.

    The headers, the timeout, the interval and the resource come from OpenTelemetry's own environment variables.
    """

    def __init__(self, endpoint: str, sources: MetricSources) -> None:
        """Import the SDK, which takes 0.3 s."""
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.environment_variables import OTEL_METRIC_EXPORT_INTERVAL, OTEL_SERVICE_NAME
        from opentelemetry.sdk.resources import Resource

        self._sources = sources
        url = endpoint if endpoint.endswith(PATH) else endpoint + PATH
        self._exporter = OTLPMetricExporter(url)
        self._resource = Resource.create(
            {
                "service.name": os.environ.get(OTEL_SERVICE_NAME) or "vramscope",
                "service.version": __version__,
                "service.instance.id": f"{socket.gethostname()}:{os.getpid()}",
            }
        )
        self._every_seconds = _interval_ms(os.environ.get(OTEL_METRIC_EXPORT_INTERVAL)) / 1000
        self._started_ns = time.time_ns()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="vramscope-open-telemetry", daemon=True)
        self.failing = False

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop the thread. An export that waits for its receiver is given up."""
        self._stop.set()
        self._exporter.shutdown()
        if self._thread.is_alive():
            self._thread.join(5)

    def _run(self) -> None:
        from opentelemetry.sdk.metrics.export import MetricExportResult

        while not self._stop.wait(self._every_seconds):
            try:
                data = self._data()
            except SQLAlchemyError as error:
                log.warning("metrics were not read: %s", str(error).splitlines()[0])
                continue
            failed = self._exporter.export(data) is not MetricExportResult.SUCCESS
            if failed and not self.failing and not self._stop.is_set():
                log.warning("metrics were not sent; the next are tried every %g s", self._every_seconds)
            self.failing = failed

    def _data(self) -> otlp.MetricsData:
        """Metrics of this process, and of one process only those of the database."""
        from opentelemetry.sdk.metrics import export as otlp
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        now_ns = time.time_ns()
        found = otlp_metrics(self._sources.of_process(), now_ns, self._started_ns)
        if self._sources.writer.leads:
            with self._sources.database.reader() as connection:
                found += otlp_metrics(self._sources.of_database(connection), now_ns, 0)
        scope = InstrumentationScope("vramscope", __version__)
        return otlp.MetricsData([otlp.ResourceMetrics(self._resource, [otlp.ScopeMetrics(scope, found, "")], "")])


def otlp_metrics(families: Iterable[Metric], now_ns: int, start_ns: int) -> list[otlp.Metric]:
    """Convert families of Prometheus. ``start_ns``: since when counters count; 0 if that is not known."""
    from opentelemetry.sdk.metrics import export as otlp

    made = []
    for family in families:
        by_name: dict[str, list[otlp.NumberDataPoint]] = {}
        for sample in family.samples:
            point = otlp.NumberDataPoint(dict(sample.labels), start_ns, now_ns, float(sample.value))
            by_name.setdefault(sample.name.removesuffix("_total"), []).append(point)
        for name, points in by_name.items():
            data: otlp.Gauge | otlp.Sum
            if family.type == "gauge":
                data = otlp.Gauge(points)
            else:
                data = otlp.Sum(points, otlp.AggregationTemporality.CUMULATIVE, is_monotonic=True)
            made.append(otlp.Metric(name, family.documentation, _unit(name), data))
    return made


def _unit(name: str) -> str:
    return next((unit for end, unit in UNITS.items() if name.removesuffix("_sum").endswith(end)), "")


def _interval_ms(given: str | None) -> float:
    try:
        interval_ms = float(given or DEFAULT_INTERVAL_MS)
    except ValueError:
        return DEFAULT_INTERVAL_MS
    if not 0 < interval_ms <= MOST_INTERVAL_MS:  # (false of nan too)
        return DEFAULT_INTERVAL_MS
    return max(LEAST_INTERVAL_MS, interval_ms)
