"""``GET /metrics`` for Prometheus."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from vramscope_server.api.requested_range import reader
from vramscope_server.api.run_metrics import run_metrics
from vramscope_server.latest_samples import StoredSamples
from vramscope_server.services import Services
from vramscope_server.store.run_queries import counts_by_state

router = APIRouter()

STATES = ("running", "finished", "failed", "lost")


class _ServerMetrics(Collector):
    """Reads the counters on each request: two servers in one process share none."""

    def __init__(self, request: Request) -> None:
        self._request = request

    def collect(self) -> list[Metric]:
        """Metrics of one server."""
        services: Services = self._request.app.state.services
        counters = services.writer.counters
        with reader(self._request) as connection:
            used = services.database.used_bytes(connection)
            states = counts_by_state(connection)
            latest = StoredSamples(connection) if services.is_shared else services.latest_samples
            of_runs = run_metrics(connection, latest, services.settings.metrics_ranks)
        runs = GaugeMetricFamily("vramscope_runs", "Runs by state, of the caller's projects.", labels=["state"])
        for state in (*STATES, *sorted(states.keys() - {*STATES})):
            runs.add_metric([state], states.get(state, 0))
        commits = SummaryMetricFamily(
            "vramscope_commit_seconds",
            "Commits, and their duration.",
            counters.commits,
            counters.commit_seconds,
        )
        return [
            CounterMetricFamily(
                "vramscope_batches", "Batches that were stored, or were stored already.", value=counters.batches
            ),
            CounterMetricFamily("vramscope_values", "Numbers in the blocks of these batches.", value=counters.values),
            CounterMetricFamily("vramscope_failed_commits", "Commits that failed.", value=counters.failed_commits),
            commits,
            GaugeMetricFamily(
                "vramscope_queue_length", "Batches and changes that wait for the writer.", value=services.writer.waiting
            ),
            GaugeMetricFamily(
                "vramscope_merges_waiting",
                "Streams whose small chunks wait to be merged.",
                value=services.compactor.waiting,
            ),
            GaugeMetricFamily("vramscope_database_bytes", "Bytes of the database in use.", value=used),
            GaugeMetricFamily("vramscope_writable", "1 if data can be stored.", value=services.writer.trouble is None),
            runs,
            *of_runs,
        ]


@router.get("/metrics", include_in_schema=False)
def get_metrics(request: Request) -> Response:
    """Prometheus text."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_ServerMetrics(request))
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)
