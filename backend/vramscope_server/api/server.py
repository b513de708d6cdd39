"""Facts and health of the server."""

from __future__ import annotations

import importlib.metadata
import socket

import sqlalchemy as sa
from fastapi import APIRouter, Request, Response

from vramscope import __version__
from vramscope.protocol import messages
from vramscope_server.analysis.numba_compile import compiling
from vramscope_server.analysis.trace.export import can_write_parquet
from vramscope_server.answers.server import DatabaseFacts, Health, RetentionFacts, ServerFacts
from vramscope_server.api.requested_range import reader
from vramscope_server.api.responses import answer
from vramscope_server.api.schemas import answers_with
from vramscope_server.services import Services
from vramscope_server.store.clock_doubt import stored_words
from vramscope_server.store.run_queries import counts_by_state
from vramscope_server.store.storage_errors import storage_trouble

router = APIRouter(tags=["server"])


@router.get("/server", summary="Facts of the server", responses=answers_with(ServerFacts))
def get_server(request: Request) -> Response:
    """Versions, database and problems."""
    services: Services = request.app.state.services
    with reader(request) as connection:
        used = services.database.used_bytes(connection)
        count = sum(counts_by_state(connection).values())
        clock = services.retention.clock.words or stored_words(connection)
    return answer(
        ServerFacts(
            version=__version__,
            wire=messages.WIRE_VERSION,
            plotly_py=importlib.metadata.version("plotly"),
            plotly_js=request.app.state.pages.plotly_js_version,
            database=DatabaseFacts(
                kind=services.database.kind,
                bytes=used,
                runs=count,
                writable=services.writer.trouble is None and services.writer.alive,
            ),
            retention=RetentionFacts(
                days=services.settings.retention_days,
                bytes=services.settings.retention_bytes,
                clock=clock,
            ),
            address=services.address,
            host_name=socket.gethostname(),
            compiling=compiling(),
            parquet=can_write_parquet(),
            problems=services.problems(),
        )
    )


@router.get("/health", summary="Health check", responses=answers_with(Health))
def get_health(request: Request) -> Response:
    """200 if the server works; 503 with its problems if not."""
    services: Services = request.app.state.services
    problems = services.problems()
    try:
        with reader(request) as connection:
            connection.execute(sa.text("SELECT 1"))
    except sa.exc.SQLAlchemyError as error:
        problems.append(f"The database cannot be read: {storage_trouble(error) or type(error).__name__}.")
    if problems:
        return answer(Health(status="degraded", problems=problems), 503)
    return answer(Health(status="ok"))
