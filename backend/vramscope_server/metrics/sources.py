"""Where metrics come from, and all metrics of a server at one time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from sqlalchemy.engine import Connection

from vramscope_server.latest_samples import LatestSamples, StoredSamples
from vramscope_server.metrics.run_metrics import run_metrics
from vramscope_server.store.compaction import Compactor
from vramscope_server.store.database import Database
from vramscope_server.store.run_queries import counts_by_state
from vramscope_server.store.writer import Writer

STATES: Final = ("running", "finished", "failed", "lost")


@dataclass(frozen=True, slots=True)
class MetricSources:
    """Parts of one server that have metrics.

    is_shared   whether other server processes may store samples, too
    most_ranks  maximum number of ranks with metrics of their own
    """

    database: Database
    writer: Writer
    compactor: Compactor
    latest_samples: LatestSamples
    is_shared: bool
    most_ranks: int

    def of_process(self) -> list[Metric]:
        """Metrics of this server process. Read each time: two servers in one process share none."""
        counters = self.writer.counters
        return [
            CounterMetricFamily(
                "vramscope_batches", "Batches that were stored, or were stored already.", value=counters.batches
            ),
            CounterMetricFamily("vramscope_values", "Numbers in the blocks of these batches.", value=counters.values),
            CounterMetricFamily("vramscope_failed_commits", "Commits that failed.", value=counters.failed_commits),
            SummaryMetricFamily(
                "vramscope_commit_seconds", "Commits, and their duration.", counters.commits, counters.commit_seconds
            ),
            GaugeMetricFamily(
                "vramscope_queue_length", "Batches and changes that wait for the writer.", value=self.writer.waiting
            ),
            GaugeMetricFamily(
                "vramscope_merges_waiting",
                "Streams whose small chunks wait to be merged.",
                value=self.compactor.waiting,
            ),
            GaugeMetricFamily("vramscope_writable", "1 if data can be stored.", value=self.writer.trouble is None),
        ]

    def of_database(self, connection: Connection) -> list[Metric]:
        """Metrics of the database and its visible running runs, which all server processes share."""
        states = counts_by_state(connection)
        runs = GaugeMetricFamily("vramscope_runs", "Runs by state, of the caller's projects.", labels=["state"])
        for state in (*STATES, *sorted(states.keys() - {*STATES})):
            runs.add_metric([state], states.get(state, 0))
        used = self.database.used_bytes(connection)
        latest = StoredSamples(connection) if self.is_shared else self.latest_samples
        return [
            GaugeMetricFamily("vramscope_database_bytes", "Bytes of the database in use.", value=used),
            runs,
            *run_metrics(connection, latest, self.most_ranks),
        ]
