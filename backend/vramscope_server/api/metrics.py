"""``GET /metrics`` for Prometheus."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from vramscope_server.api.requested_range import reader
from vramscope_server.services import Services

router = APIRouter()


class _ServerMetrics(Collector):
    """Reads the metrics on each request."""

    def __init__(self, request: Request) -> None:
        self._request = request

    def collect(self) -> list[Metric]:
        """Metrics of one server."""
        services: Services = self._request.app.state.services
        with reader(self._request) as connection:
            return [*services.metrics.of_process(), *services.metrics.of_database(connection)]


@router.get("/metrics", include_in_schema=False)
def get_metrics(request: Request) -> Response:
    """Prometheus text."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_ServerMetrics(request))
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)
