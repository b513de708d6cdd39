"""Reports as HTML files: of a run, and of a comparison. The same as ``vramscope report`` writes."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import unquote

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute

from vramscope_server.api import (
    anatomy,
    compare,
    figures,
    leaks,
    peak,
    profiles,
    recording_prediction,
    recordings,
    runs,
    whatif,
)
from vramscope_server.api.compare import Base, Runs, compared_runs
from vramscope_server.api.oom import routes as oom_routes
from vramscope_server.api.requested_range import reader, require_run
from vramscope_server.reports.comparison_report import comparison_report
from vramscope_server.reports.run_report import run_report

router = APIRouter(tags=["runs"])
_HTML: dict[int | str, dict[str, Any]] = {200: {"content": {"text/html": {}}, "description": "the file"}}
_ROUTES = [
    route
    for part in (
        runs,
        leaks,
        oom_routes,
        recordings,
        anatomy,
        figures,
        compare,
        peak,
        profiles,
        recording_prediction,
        whatif,
    )
    for route in part.router.routes
    if isinstance(route, APIRoute) and "GET" in (route.methods or ())
]
"""Routes whose answers the reports and tables need."""


class OwnAnswers:
    """Answers of this server's GET routes, without a connection, with the rights of the caller."""

    def __init__(self, request: Request) -> None:
        self._request = request

    def __call__(self, path: str, **parameters: Any) -> Any:
        """The answer, decoded. Raises LookupError if no route has this path, and what the route raises."""
        for route in _ROUTES:
            if (match := route.path_regex.match(path)) is not None:
                places = {name: unquote(text) for name, text in match.groupdict().items()}
                return json.loads(route.endpoint(self._request, **places, **parameters).body)
        raise LookupError(path)


@router.get("/runs/{run}/report", summary="Report of a run", response_class=Response, responses=_HTML)
def get_run_report(request: Request, run: str) -> Response:
    """What is wrong, remedies, leaks, advice, the peak and the charts in one HTML file of about 2 MB, which needs no server."""
    with reader(request) as connection:
        record = require_run(connection, run)
    source = OwnAnswers(request)
    return _file(run_report(source, source(f"/runs/{record.id}")), f"vramscope-{record.id}.html")


@router.get("/compare/report", summary="Report of a comparison", response_class=Response, responses=_HTML)
def get_compare_report(request: Request, runs: Runs, base: Base = None) -> Response:
    """The table, the settings that differ, and the charts in one HTML file of about 2 MB, which needs no server."""
    with reader(request) as connection:
        found = [record.id for record in compared_runs(connection, runs, base)]
    return _file(comparison_report(OwnAnswers(request), ",".join(found)), "vramscope-compare.html")


def _file(text: str, name: str) -> Response:
    # Scripts of the file draw its charts. As a page of this server they would have the rights of its visitors.
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store"}
    return Response(text, headers=headers, media_type="text/html; charset=utf-8")
