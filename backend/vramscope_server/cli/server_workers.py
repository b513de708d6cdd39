"""Several server processes at one address, for ``vramscope server --workers``: uvicorn starts and replaces them.

All listen at the same socket, which this process opened, and use one PostgreSQL database.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Mapping
from typing import Final

from fastapi import FastAPI
from uvicorn import Config
from uvicorn.supervisors import Multiprocess, multiprocess

from vramscope_server.app import create_app
from vramscope_server.artifact_store.opening import open_artifacts
from vramscope_server.artifact_store.store import ArtifactsRefused
from vramscope_server.child_process import end_with
from vramscope_server.memory_allocator import return_freed_memory
from vramscope_server.notifications import TargetRefused
from vramscope_server.services import Services
from vramscope_server.settings import Settings
from vramscope_server.store.database import Database
from vramscope_server.store.storage_errors import DatabaseRefused
from vramscope_server.store.token_rows import insert_first_token
from vramscope_server.tokens import SERVER

_ADDRESS: Final = "_VRAMSCOPE_ADDRESS"
_PARENT: Final = "_VRAMSCOPE_PARENT"
STARTED_SECONDS: Final = 60
"""Time for a process to start, and to answer that it is alive."""


class Worker(multiprocess.Process):
    """A server process whose death ends a health check at once.

    uvicorn's own keeps the worker's end of the pipe open. If a worker died after it was asked and before it answered, that check
    waited until its time was over, and nobody replaced the worker meanwhile.
    """

    def start(self) -> None:
        """Start the process, which has its end of the pipe by then."""
        super().start()
        self.child_conn.close()


def prepare(settings: Settings) -> tuple[str, str | None]:
    """Make the tables, and the first token where there is none. Returns where the data is, and the token.

    Raises DatabaseRefused, also for an SQLite database, and ArtifactsRefused.
    """
    database = Database(settings.database_url, synchronous=settings.synchronous)
    try:
        if database.kind != "postgresql":
            raise DatabaseRefused(
                f"--workers {settings.workers} needs PostgreSQL (--database postgresql://...); "
                "an SQLite file has one server process."
            )
        open_artifacts(settings, database)
        token = None
        if settings.tokens_required:
            with database.writer() as connection:
                token = insert_first_token(connection, SERVER)
                connection.commit()
        return database.shown, token
    finally:
        database.close()


def run_workers(
    settings: Settings, given: Mapping[str, object], listening: socket.socket, address: str, config: Config
) -> None:
    """Run the processes until SIGINT or SIGTERM. ``given``: settings that do not come from the environment."""
    for name, value in given.items():
        os.environ[f"VRAMSCOPE_{name.upper()}"] = str(value)
    os.environ |= {_ADDRESS: address, _PARENT: str(os.getpid())}
    multiprocess.Process = Worker  # type: ignore[misc]  # the name by which uvicorn makes its workers
    Multiprocess(config, sockets=[listening]).run()


def worker_app() -> FastAPI:
    """Application of one of the processes. It ends with the process that started it."""
    end_with(int(os.environ[_PARENT]))
    settings = Settings()
    logging.basicConfig(level=settings.log_level.upper(), format="%(levelname)s %(name)s: %(message)s")
    return_freed_memory()
    try:
        services = Services(settings)
    except (DatabaseRefused, ArtifactsRefused, TargetRefused) as error:
        print(f"vramscope server: {error}", file=sys.stderr, flush=True)
        raise SystemExit(1) from None  # another process is started in its place, and may find the database
    services.address = os.environ[_ADDRESS]
    return create_app(settings, services)
