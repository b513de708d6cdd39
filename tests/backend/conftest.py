"""Real servers, real SQLite files, a real PostgreSQL."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # tests are imported by path: their neighbour is not a package

from databases import (  # noqa: F401 - fixtures
    database_kind,
    database_url,
    empty_database_url,
    migrated_file,
    migrated_postgres,
    postgres,
)
from running import RunningServer
from s3_server import bucket, s3_store  # noqa: F401 - fixtures


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[Callable[..., RunningServer]]:
    """Servers as many as a test wants; all are stopped at its end."""
    running: list[RunningServer] = []

    def start(data_dir: Path | None = None, **settings: Any) -> RunningServer:
        server = RunningServer(data_dir or tmp_path / f"data{len(running)}", **settings)
        running.append(server)
        return server

    yield start
    for server in running:
        if server.thread.is_alive():
            server.stop()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """One server for all tests of a file: each makes runs of its own."""
    running = RunningServer(tmp_path_factory.mktemp("server"))
    yield running
    running.stop()
