"""Metrics reach a real OTLP receiver: those of Prometheus, bounded, and gone when a run ends."""

from __future__ import annotations

import gzip
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from prometheus_client.parser import text_string_to_metric_families
from pydantic import ValidationError
from running import RunningServer
from waiting import eventually
from wire_maker import GIB, Agent

from vramscope_server.metrics.open_telemetry import _interval_ms
from vramscope_server.settings import Settings

Start = Callable[..., RunningServer]
Values = dict[tuple[str, frozenset[tuple[str, str]]], float]
"""Values by name and labels."""


class OtlpReceiver(ThreadingHTTPServer):
    """Decodes what is posted. It refuses while ``status`` is not 200."""

    daemon_threads = True

    def __init__(self, port: int = 0) -> None:
        self.requests: list[tuple[str, dict[str, str], ExportMetricsServiceRequest]] = []
        self.status = 200
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                if receiver.status == 200:
                    decoded = ExportMetricsServiceRequest.FromString(body)
                    receiver.requests.append((self.path, dict(self.headers), decoded))
                self.send_response(receiver.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        super().__init__(("127.0.0.1", port), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def metrics(self) -> dict[str, Any]:
        """Metrics of a request that begins after now, by name."""
        count = len(self.requests) + 1
        eventually(lambda: len(self.requests) > count)
        (resource,) = self.requests[-1][2].resource_metrics
        (scope,) = resource.scope_metrics
        return {metric.name: metric for metric in scope.metrics}

    def values(self) -> Values:
        return {
            (name, frozenset((one.key, one.value.string_value) for one in point.attributes)): point.as_double
            if point.HasField("as_double")
            else point.as_int
            for name, metric in self.metrics().items()
            for point in (metric.gauge if metric.HasField("gauge") else metric.sum).data_points
        }

    def runs(self) -> set[str]:
        """Runs that have metrics."""
        return {dict(labels).get("run", "") for _, labels in self.values()} - {""}


@contextmanager
def listening() -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[OtlpReceiver]:
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "100")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=secret")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
    with listening() as server:
        yield server


def scraped(server: RunningServer) -> Values:
    text = server.http.get(f"{server.url}/metrics").text
    return {
        (one.name.removesuffix("_total"), frozenset(one.labels.items())): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


def test_receiver_gets_the_metrics_of_prometheus(start_server: Start, receiver: OtlpReceiver) -> None:
    server = start_server(otlp_endpoint=receiver.url)
    agent = Agent(name='a "name"', devices=2)
    server.send(
        agent, agent.samples(4, allocated_bytes=[1, 2, 4, 3], device_used_bytes=9 * GIB), agent.steps(3, at=1.0)
    )
    server.send(agent, agent.samples(4, device=1, gpu_utilization_percent=70))
    eventually(lambda: not server.services.compactor.waiting and server.services.writer.leads)
    moving = {"vramscope_database_bytes", "vramscope_commit_seconds_count", "vramscope_commit_seconds_sum"}
    sent = {key: value for key, value in receiver.values().items() if key[0] not in moving}
    assert sent == {key: value for key, value in scraped(server).items() if key[0] not in moving}
    labels = {"run": agent.run, "name": 'a "name"', "project": agent.attached.project, "rank": "0", "device": "0"}
    assert sent["vramscope_run_allocated_bytes", frozenset(labels.items())] == 3
    assert sent["vramscope_run_device_used_bytes", frozenset(labels.items())] == 9 * GIB


def test_kinds_units_and_resource(start_server: Start, receiver: OtlpReceiver) -> None:
    server = start_server(otlp_endpoint=receiver.url)
    agent = Agent()
    server.send(agent, agent.samples(2), agent.steps(3))
    eventually(lambda: server.services.writer.leads)
    metrics = receiver.metrics()
    allocated, steps, batches = (
        metrics[f"vramscope_{name}"] for name in ("run_allocated_bytes", "run_steps", "batches")
    )
    assert allocated.HasField("gauge") and allocated.unit == "By"
    assert metrics["vramscope_commit_seconds_sum"].unit == "s"
    assert steps.sum.is_monotonic and steps.sum.aggregation_temporality == 2, "cumulative"
    assert steps.sum.data_points[0].start_time_unix_nano == 0, "it began with the run, by another clock"
    assert 0 < batches.sum.data_points[0].start_time_unix_nano < batches.sum.data_points[0].time_unix_nano
    path, headers, request = receiver.requests[-1]
    assert (path, headers["x-key"]) == ("/v1/metrics", "secret")
    resource = {one.key: one.value.string_value for one in request.resource_metrics[0].resource.attributes}
    assert (resource["service.name"], resource["deployment.environment"]) == ("vramscope", "test")


def test_ranks_are_bounded_and_end_with_their_run(start_server: Start, receiver: OtlpReceiver) -> None:
    server = start_server(otlp_endpoint=receiver.url, metrics_ranks=2)
    agents = [Agent(start_ns=time.time_ns() + number) for number in range(3)]
    for agent in agents:
        server.send(agent, agent.samples(2))
    eventually(lambda: server.services.writer.leads)
    assert receiver.runs() == {agents[1].run, agents[2].run}
    server.send(agents[2], agents[2].ended())
    assert receiver.runs() == {agents[0].run, agents[1].run}


def test_receiver_that_fails_disturbs_nothing(start_server: Start, receiver: OtlpReceiver) -> None:
    server = start_server(otlp_endpoint=receiver.url)
    receiver.status = 400
    exporter = server.services.open_telemetry
    assert exporter is not None
    eventually(lambda: exporter.failing)
    agent = Agent()
    server.send(agent, agent.samples(2))
    receiver.status = 200
    eventually(lambda: not exporter.failing)
    eventually(lambda: server.services.writer.leads)
    assert receiver.runs() == {agent.run}
    receiver.status = 503  # the exporter tries again by itself, for seconds
    time.sleep(0.3)
    assert server.stop() < 20, "an export that waits is given up"


def test_endpoint_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValidationError, match="begins with http"):
        Settings(otlp_endpoint="collector:4317")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.metric_exporter", None)
    with pytest.raises(ValidationError, match=r"vramscope\[server,otel\]"):
        Settings(otlp_endpoint="http://collector:4318")


@pytest.mark.parametrize(
    ("given", "interval_ms"),
    [(None, 60_000), ("500", 500), ("1", 100), ("often", 60_000), ("inf", 60_000), ("nan", 60_000), ("-1", 60_000)],
)
def test_an_interval_that_is_none_is_the_default(given: str | None, interval_ms: float) -> None:
    assert _interval_ms(given) == interval_ms
