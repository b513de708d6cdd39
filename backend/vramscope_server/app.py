"""Builds the application: ``create_app(settings)`` returns one server; a process may have several."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

import anyio.to_thread
from fastapi import APIRouter, FastAPI
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from vramscope import __version__
from vramscope_server import pages
from vramscope_server.api import (
    alerts,
    anatomy,
    audit,
    compare,
    compared_predictions,
    compared_sites,
    demo,
    docs,
    events,
    figures,
    fragmentation,
    ingest,
    leaks,
    live,
    metrics,
    next_change,
    notifications,
    oidc_session,
    peak,
    problems,
    profiles,
    recording_prediction,
    recordings,
    reports,
    runs,
    schemas,
    series,
    server,
    session,
    snapshots,
    steps,
    tables,
    timeline,
    tokens,
    uploads,
    whatif,
)
from vramscope_server.api.oom import routes, text
from vramscope_server.proxy_users import PeerAddress
from vramscope_server.request_checks import Access
from vramscope_server.services import Services
from vramscope_server.settings import Settings

log = logging.getLogger("vramscope_server")

_THREADS = 8
"""Requests that read the database at the same time: more would only use more memory on few cores."""


def create_app(settings: Settings | None = None, services: Services | None = None) -> FastAPI:
    """Application of a server.

    settings   by default from the environment
    services      the server's parts, opened by the caller and closed with the application; by default they are opened here,
    and a
               database that cannot be used raises DatabaseRefused
    """
    settings = settings or (services.settings if services is not None else Settings())
    opened = services if services is not None else Services(settings)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        anyio.to_thread.current_default_thread_limiter().total_tokens = _THREADS
        # The first figure would otherwise wait half a second for plotly's import and its first validators.
        warming = asyncio.get_running_loop().run_in_executor(None, _warm_up)
        try:
            yield
        finally:
            with contextlib.suppress(Exception):
                await warming
            await asyncio.get_running_loop().run_in_executor(None, opened.close)

    app = FastAPI(
        title="vramscope",
        version=__version__,
        summary="Where the GPU memory of PyTorch trainings goes.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/v1/openapi.json",
    )
    app.state.services = opened
    app.state.pages = pages.Pages()
    api = APIRouter(prefix="/api/v1")
    for part in (
        ingest,
        runs,
        series,
        steps,
        leaks,
        routes,
        text,
        recordings,
        profiles,
        fragmentation,
        timeline,
        whatif,
        events,
        snapshots,
        uploads,
        figures,
        anatomy,
        recording_prediction,
        next_change,
        peak,
        compare,
        compared_sites,
        compared_predictions,
        live,
        tokens,
        alerts,
        notifications,
        audit,
        oidc_session,
        session,
        server,
        demo,
        docs,
        reports,
        tables,
    ):
        api.include_router(part.router)
    app.include_router(api)
    app.include_router(metrics.router)
    pages.install(app, app.state.pages)
    problems.install(app)
    schemas.install(app)
    app.add_middleware(ingest.BatchIntake, services=opened)
    app.add_middleware(Access, services=opened)
    # Proxies on this machine, and those of the settings, may name the address of their client.
    app.add_middleware(ProxyHeadersMiddleware, trusted_hosts=["127.0.0.1", *opened.settings.trusted_proxies])
    app.add_middleware(PeerAddress)  # the outermost
    return app


def _warm_up() -> None:
    try:
        import plotly.graph_objects as go

        from vramscope_server.figures.registry import RUN_FIGURES

        go.Figure(go.Scatter(x=[0.0], y=[0.0])).update_layout(title={"text": ""}).to_dict()
        log.debug("figures are ready: %s", ", ".join(RUN_FIGURES))
    except ImportError:
        log.exception("the figures could not be loaded")
