"""Server processes, and processes of PostgreSQL, that are killed at random moments under load: nothing is lost or stored twice."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import figures
import psutil
import pytest
import sqlalchemy as sa
from load import PATIENCE_SECONDS, Load
from ports import free_port
from running import ServerProcess

ON_POSTGRESQL = [pytest.mark.postgres, pytest.mark.xdist_group("postgres")]
LONG = [pytest.mark.slow, pytest.mark.timeout(3600)]
LONGEST_WAIT_SECONDS = 0.6
"""A kill comes within this time after batches are acknowledged again."""


class Killed:
    """A server that is killed and started again with the same data at the same port."""

    def __init__(self, data_dir: Path, *arguments: str) -> None:
        self._data_dir = data_dir
        self._words = ("--port", str(free_port()), *arguments)
        self.process = ServerProcess(data_dir, *self._words)
        self.url = self.process.url

    def kill_and_start(self) -> None:
        self.process.end(signal.SIGKILL)
        self.process = ServerProcess(self._data_dir, *self._words)

    def workers(self) -> list[psutil.Process]:
        """Worker processes that are alive."""
        children = psutil.Process(self.process.process.pid).children()
        alive = [one for one in children if one.status() != psutil.STATUS_ZOMBIE]
        return [one for one in alive if "spawn_main" in " ".join(one.cmdline())]

    def busiest_worker(self) -> psutil.Process:
        """The worker with the most connections. Another may have none, and its death would meet no sender."""
        port = urlsplit(self.url).port
        return max(self.workers(), key=lambda one: sum(each.laddr.port == port for each in connections(one)))

    def wait_for_workers(self, count: int) -> None:
        """Wait until this many are alive. Each question costs some milliseconds."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(self.workers()) != count:
            assert time.monotonic() < deadline, "a killed worker is not replaced"
            time.sleep(0.3)

    def end(self) -> None:
        if self.process.process.poll() is None:
            assert self.process.end() == 0


def connections(process: psutil.Process) -> list[Any]:
    """Open connections of a process."""
    return [one for one in process.net_connections("tcp") if one.status == psutil.CONN_ESTABLISHED]


@contextlib.contextmanager
def loaded(servers: list[Killed], **options: bool) -> Iterator[Load]:
    """Load on all of them. At its end all that was acknowledged must be there, also after a further start."""
    load = Load([server.url for server in servers], **options)
    try:
        yield load
        load.wait(8)
    finally:
        load.end()
    for server in servers:
        load.check(server.url)
    assert load.repeated > 0, "no kill met a sender"


def pause(choice: random.Random) -> None:
    time.sleep(choice.uniform(0, LONGEST_WAIT_SECONDS))


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=LONG)])
def test_kills_of_a_server_with_sqlite(tmp_path: Path, choice: random.Random, kills: int) -> None:
    server = Killed(tmp_path)
    with loaded([server]) as load:
        for _ in range(kills):
            load.wait(8)
            pause(choice)
            server.kill_and_start()
    server.end()
    figures.keep("kills, SQLite, one process", kills=kills, batches_kept=load.batches, lost=0, stored_twice=0)


@pytest.mark.parametrize(
    "kills", [pytest.param(1, marks=ON_POSTGRESQL), pytest.param(12, marks=[*LONG, *ON_POSTGRESQL])]
)
@pytest.mark.parametrize("database_kind", ["postgresql"])
def test_kills_of_one_of_two_servers_with_postgresql(
    tmp_path: Path, database_url: str, choice: random.Random, kills: int
) -> None:
    """The ranks of one run send to both in turn. A batch that one had taken may be repeated at the other."""
    servers = [Killed(tmp_path, "--database", database_url) for _ in range(2)]
    with loaded(servers, one_run=True) as load:
        for _ in range(kills):
            load.wait(8)
            pause(choice)
            choice.choice(servers).kill_and_start()
    for server in servers:
        server.end()
    figures.keep("kills, PostgreSQL, two servers", kills=kills, batches_kept=load.batches, lost=0, stored_twice=0)


@pytest.mark.parametrize(
    ("kills", "workers"),
    [pytest.param(1, 2, marks=ON_POSTGRESQL), pytest.param(12, 4, marks=[*LONG, *ON_POSTGRESQL])],
)
@pytest.mark.parametrize("database_kind", ["postgresql"])
def test_kills_of_workers(tmp_path: Path, database_url: str, choice: random.Random, kills: int, workers: int) -> None:
    """A killed worker is replaced."""
    server = Killed(tmp_path, "--database", database_url, "--workers", str(workers))
    with loaded([server], one_run=True) as load:
        for _ in range(kills):
            server.wait_for_workers(workers)
            load.wait(8)
            pause(choice)
            server.busiest_worker().kill()
            load.wait(4)
        server.wait_for_workers(workers)
    server.end()
    figures.keep(
        f"kills, PostgreSQL, {workers} workers", kills=kills, batches_kept=load.batches, lost=0, stored_twice=0
    )


@pytest.mark.parametrize(
    "crashes", [pytest.param(2, marks=ON_POSTGRESQL), pytest.param(20, marks=[*LONG, *ON_POSTGRESQL])]
)
@pytest.mark.parametrize("database_kind", ["postgresql"])
def test_crashes_of_postgresql(tmp_path: Path, database_url: str, choice: random.Random, crashes: int) -> None:
    """Where one of its processes is killed, PostgreSQL ends all of them and recovers from its log.

    The cluster of the tests acknowledges before it writes its log. A session that has the server's default does not.
    """
    name = sa.make_url(database_url).database
    with contextlib.closing(Sessions(database_url)) as sessions:
        sessions.execute(f"ALTER DATABASE {name} SET synchronous_commit = on")
    server = Killed(tmp_path, "--database", database_url)
    with loaded([server], one_run=True) as load:
        for _ in range(crashes):
            load.wait(8)
            pause(choice)
            with contextlib.closing(Sessions(database_url)) as sessions:
                os.kill(choice.choice(sessions.processes()), signal.SIGKILL)
    server.end()
    figures.keep("crashes of PostgreSQL", crashes=crashes, batches_kept=load.batches, lost=0, stored_twice=0)


class Sessions:
    """The sessions of a database."""

    def __init__(self, url: str) -> None:
        self._engine = sa.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)

    def execute(self, statement: str) -> None:
        with self._engine.connect() as connection:
            connection.exec_driver_sql(statement)

    def processes(self) -> list[int]:
        """Processes of PostgreSQL that serve the server's sessions."""
        words = (
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
            "AND backend_type = 'client backend'"
        )
        with self._engine.connect() as connection:
            return [int(pid) for pid in connection.exec_driver_sql(words).scalars()]

    def close(self) -> None:
        self._engine.dispose()
