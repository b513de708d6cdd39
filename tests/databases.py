"""Fixtures of databases: files, and those of a real PostgreSQL that is started here. A folder's conftest imports them."""

from __future__ import annotations

import contextlib
import glob
import itertools
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ports import free_port

from vramscope_server.store.database import Database

PATIENCE_SECONDS = 60


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """A cluster of our own at a loopback port; gives the URL without a database."""
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin")) or [
        str(Path(p).parent) for p in [shutil.which("initdb")] if p
    ]
    if not found:
        pytest.skip("PostgreSQL is not installed here (Debian: apt-get install postgresql)")
    programs = Path(found[-1])
    folder = Path(tempfile.mkdtemp(prefix="vramscope-pg-"))
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "cwd": "/"}
    if os.geteuid() == 0:  # PostgreSQL refuses to run as root
        shutil.chown(folder, "postgres", "postgres")
        options |= {"user": "postgres", "group": "postgres", "extra_groups": []}
    port = free_port()
    made = subprocess.run(
        [programs / "initdb", "-D", folder / "data", "-U", "vramscope", "-A", "trust", "-E", "UTF8", "--no-sync"],
        **options,
    )
    assert made.returncode == 0, made.stdout
    quick = [
        "-c",
        "fsync=off",
        "-c",
        "synchronous_commit=off",
        "-c",
        "full_page_writes=off",
        "-c",
        "shared_buffers=32MB",
    ]
    place = ["-D", folder / "data", "-p", str(port), "-h", "127.0.0.1", "-k", folder]
    cluster = subprocess.Popen([programs / "postgres", *place, *quick], **options)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            ready = subprocess.run([programs / "pg_isready", "-h", "127.0.0.1", "-p", str(port)], **options)
            if ready.returncode == 0:
                break
        assert time.monotonic() < deadline and cluster.poll() is None, "PostgreSQL did not start"
        time.sleep(0.05)
    yield f"postgresql+psycopg://vramscope@127.0.0.1:{port}"
    cluster.send_signal(signal.SIGQUIT)  # at once, without a last checkpoint: nobody reads these files again
    cluster.wait(PATIENCE_SECONDS)
    shutil.rmtree(folder, ignore_errors=True)


_databases = itertools.count(1)


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty SQLite database with its tables made: copied for each test, which is quicker than making them again."""
    path = tmp_path_factory.mktemp("template") / "vramscope.db"
    Database(f"sqlite:///{path}").close()
    return path


@pytest.fixture(scope="session")
def migrated_postgres(postgres: str) -> str:
    """The same for PostgreSQL: the name of a database to copy."""
    _execute(postgres, "CREATE DATABASE template_of_ours")
    Database(f"{postgres}/template_of_ours").close()
    return "template_of_ours"


def _execute(cluster: str, statement: str) -> None:
    import psycopg

    with psycopg.connect(cluster.replace("+psycopg", "") + "/postgres", autocommit=True) as connection:
        connection.execute(statement)


@pytest.fixture(
    params=["sqlite", pytest.param("postgresql", marks=[pytest.mark.postgres, pytest.mark.xdist_group("postgres")])]
)
def database_kind(request: pytest.FixtureRequest) -> str:
    """Which database: the test runs on each."""
    return str(request.param)


@pytest.fixture
def database_url(database_kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database with nothing in its tables: a file, and one in a real PostgreSQL."""
    if database_kind == "sqlite":
        shutil.copy(request.getfixturevalue("migrated_file"), tmp_path / "vramscope.db")
        return f"sqlite:///{tmp_path / 'vramscope.db'}"
    cluster: str = request.getfixturevalue("postgres")
    name = f"test{next(_databases)}"
    _execute(cluster, f"CREATE DATABASE {name} TEMPLATE {request.getfixturevalue('migrated_postgres')}")
    return f"{cluster}/{name}"


@pytest.fixture
def empty_database_url(database_kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database without tables."""
    if database_kind == "sqlite":
        return f"sqlite:///{tmp_path / 'new.db'}"
    cluster: str = request.getfixturevalue("postgres")
    name = f"test{next(_databases)}"
    _execute(cluster, f"CREATE DATABASE {name}")
    return f"{cluster}/{name}"
