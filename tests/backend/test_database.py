"""A database that cannot be used is refused with one clear sentence and left as it was; a read-only one is served."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import sqlite3
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from running import ServerProcess
from wire_maker import Agent

from vramscope.protocol import messages
from vramscope_server.cli.server import serve
from vramscope_server.store import migration
from vramscope_server.store.database import APPLICATION_ID, Database
from vramscope_server.store.project_scope import ALL_PROJECTS
from vramscope_server.store.run_queries import find_run, list_runs
from vramscope_server.store.snapshots import insert_snapshot, list_snapshots, snapshot_of_file
from vramscope_server.store.storage_errors import DatabaseRefused
from vramscope_server.store.token_rows import read_tokens


def refused(path: Path | str) -> str:
    with pytest.raises(DatabaseRefused) as error:
        Database(f"sqlite:///{path}" if isinstance(path, Path) else path)
    sentence = str(error.value)
    assert "\n" not in sentence
    assert len(sentence) < 300
    return sentence


def test_a_new_file_is_marked_as_ours_and_runs_in_wal_mode(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "new.db"
    Database(f"sqlite:///{path}").close()
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID
        assert connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
        assert connection.execute("PRAGMA auto_vacuum").fetchone()[0] == 2
    Database(f"sqlite:///{path}").close()


def test_a_new_database_can_be_read_by_its_user_alone(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/data/vramscope.db")
    with database.writer() as connection:
        connection.exec_driver_sql("CREATE TABLE more (a)")
        connection.commit()
        modes = {file.name: oct(file.stat().st_mode & 0o777) for file in (tmp_path / "data").iterdir()}
    database.close()
    assert oct((tmp_path / "data").stat().st_mode & 0o777) == "0o700"
    assert modes.keys() >= {"vramscope.db", "vramscope.db-wal", "vramscope.db.lock"}
    assert set(modes.values()) == {"0o600"}


def test_scopes_of_older_tokens_become_roles(tmp_path: Path) -> None:
    """Nobody may do more than before, and whoever could do everything still can."""
    path = tmp_path / "older.db"
    config = Config()
    config.set_main_option("script_location", str(migration.MIGRATIONS))
    engine = sa.create_engine(f"sqlite:///{path}")
    scopes = {"both": ["ingest", "read"], "sender": ["ingest"], "reader": ["read"]}
    with engine.begin() as connection:
        connection.exec_driver_sql(f"PRAGMA application_id={APPLICATION_ID}")
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
        for name, words in scopes.items():
            values = (name, name, name, json.dumps(words), 1)
            connection.exec_driver_sql(
                "INSERT INTO tokens (id, name, sha256, scopes, created_ns) VALUES (?, ?, ?, ?, ?)", values
            )
    engine.dispose()
    database = Database(f"sqlite:///{path}")
    with database.reader() as connection:
        assert {one.name: one.role for one in read_tokens(connection)} == {
            "both": "admin",
            "sender": "write",
            "reader": "read",
        }
    database.close()


def test_older_tokens_and_snapshots_are_bound_to_no_project(empty_database_url: str) -> None:
    """And a file may be stored once for each project."""
    config = Config()
    config.set_main_option("script_location", str(migration.MIGRATIONS))
    engine = sa.create_engine(empty_database_url)
    with engine.begin() as connection:
        if connection.dialect.name == "sqlite":
            connection.exec_driver_sql(f"PRAGMA application_id={APPLICATION_ID}")
        config.attributes["connection"] = connection
        command.upgrade(config, "0002")
        connection.execute(
            sa.text("INSERT INTO tokens (id, name, sha256, role, created_ns) VALUES ('t1', 'old', 'x', 'write', 1)")
        )
        connection.execute(
            sa.text(
                "INSERT INTO snapshots (id, sha256, name, bytes, stored_bytes, state, received_ns, devices, notes) "
                "VALUES ('s1', 'same', 'a.pickle', 1, 1, 'ready', 1, '[]', '[]')"
            )
        )
    engine.dispose()
    database = Database(empty_database_url)
    with database.reader() as connection:
        assert [one.scope for one in read_tokens(connection)] == [ALL_PROJECTS]
        (snapshot,) = list_snapshots(connection)
        assert (snapshot.id, snapshot.project, snapshot.name) == ("s1", None, "a.pickle")
    with database.writer() as connection:
        insert_snapshot(connection, dataclasses.replace(snapshot, id="s2", project="nlp"))
        connection.commit()
        assert snapshot_of_file(connection, "same", "nlp") == dataclasses.replace(snapshot, id="s2", project="nlp")
        assert snapshot_of_file(connection, "same", None) == snapshot
    database.close()


def test_older_runs_have_an_empty_note(empty_database_url: str) -> None:
    config = Config()
    config.set_main_option("script_location", str(migration.MIGRATIONS))
    engine = sa.create_engine(empty_database_url)
    with engine.begin() as connection:
        if connection.dialect.name == "sqlite":
            connection.exec_driver_sql(f"PRAGMA application_id={APPLICATION_ID}")
        config.attributes["connection"] = connection
        command.upgrade(config, "0005")
        old = sa.Table("runs", sa.MetaData(), autoload_with=connection)
        required = {column.name: 0 for column in old.columns if not column.nullable and column.server_default is None}
        texts = {"id": "r1", "project": "p", "name": "old", "state": "finished"}
        lists = {name: [] for name in ("tags", "command", "sparkline")}
        flags = {"pinned": False, "baseline": False}
        values = {**required, **{k: v for k, v in {**texts, **lists, **flags, "config": {}}.items() if k in required}}
        connection.execute(old.insert().values(values))
    engine.dispose()
    database = Database(empty_database_url)
    with database.reader() as connection:
        assert find_run(connection, "r1").note == ""
    database.close()


def test_older_runs_are_found_by_their_jobs(empty_database_url: str) -> None:
    """Two sessions of a run with the same job, one of another run, and one without any."""
    config = Config()
    config.set_main_option("script_location", str(migration.MIGRATIONS))
    engine = sa.create_engine(empty_database_url)
    task = {"jobs": [{"manager": "slurm", "id": "5001", "array": "4242_7"}]}
    pod = {"jobs": [{"manager": "kubernetes", "id": None, "pod": "train-0"}]}
    with engine.begin() as connection:
        if connection.dialect.name == "sqlite":
            connection.exec_driver_sql(f"PRAGMA application_id={APPLICATION_ID}")
        config.attributes["connection"] = connection
        command.upgrade(config, "0006")
        tables = {name: sa.Table(name, sa.MetaData(), autoload_with=connection) for name in ("runs", "sessions")}

        def insert(table: sa.Table, **values: Any) -> None:
            required = {one.name: one for one in table.columns if not one.nullable and one.server_default is None}
            blank = {
                key: [] if isinstance(one.type, sa.JSON) else False if isinstance(one.type, sa.Boolean) else 0
                for key, one in required.items()
            }
            connection.execute(table.insert().values({**blank, **values}))

        for key in (1, 2):
            insert(tables["runs"], key=key, id=f"r{key}", project="p", name="old", state="finished", note="")
        for ident, key, attached in (("a", 1, task), ("b", 1, task), ("c", 2, pod), ("d", 2, None)):
            insert(tables["sessions"], id=ident, run_key=key, state="finished", attached=attached)
    engine.dispose()
    database = Database(empty_database_url)
    with database.reader() as connection:
        found = {
            job: {row["run_id"] for row in list_runs(connection, job=job)[0]}
            for job in ("5001", "4242_7", "4242", "train-0", "7")
        }
    database.close()
    assert found == {"5001": {"r1"}, "4242_7": {"r1"}, "4242": {"r1"}, "train-0": {"r2"}, "7": set()}


def test_another_programs_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "firefox.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE bookmarks (url)")
    before = path.read_bytes()
    assert "another program" in refused(path)
    assert path.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["firefox.db", "firefox.db.lock"]


def test_a_file_that_is_no_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "thesis.txt"
    path.write_text("Once upon a time")
    assert "not an SQLite database" in refused(path)
    assert path.read_text() == "Once upon a time"


@pytest.mark.parametrize("how", ["cut short", "overwritten in the middle"])
def test_a_damaged_database_is_named_as_such(tmp_path: Path, migrated_file: Path, how: str) -> None:
    path = tmp_path / "vramscope.db"
    shutil.copy(migrated_file, path)
    body = bytearray(path.read_bytes())
    if how == "cut short":
        del body[len(body) // 2 :]
    else:
        body[4096 : 4096 * 4] = b"\xff" * (4096 * 3)
    path.write_bytes(body)
    assert "damaged" in refused(path)


@pytest.mark.parametrize(
    ("change", "missing"),
    [
        ("ALTER TABLE scans DROP COLUMN sequence", "the column sequence of the table scans"),
        ("DROP TABLE audit", "the table audit"),
    ],
)
def test_a_table_or_column_that_another_program_removed_is_named(
    tmp_path: Path, migrated_file: Path, change: str, missing: str
) -> None:
    path = tmp_path / "vramscope.db"
    shutil.copy(migrated_file, path)
    with sqlite3.connect(path) as connection:
        connection.execute(change)
    assert missing in refused(path)


def test_a_newer_database_is_named_as_such(tmp_path: Path, migrated_file: Path) -> None:
    path = tmp_path / "vramscope.db"
    shutil.copy(migrated_file, path)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    before = path.read_bytes()
    sentence = refused(path)
    assert "newer vramscope" in sentence and "9999" in sentence
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("sqlite://", "must be a file"),
        ("sqlite:////proc/nothing/here.db", "cannot be created"),
        ("sqlite:////", "cannot be read"),
        ("nonsense://x", "not a database URL"),
        ("postgresql+psycopg://nobody:secret@127.0.0.1:1/x", "cannot be opened"),
    ],
)
def test_a_url_that_leads_nowhere_is_explained(url: str, words: str) -> None:
    sentence = refused(url)
    assert words in sentence
    assert "secret" not in sentence


@pytest.mark.postgres
@pytest.mark.xdist_group("postgres")
@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_a_postgresql_that_cannot_hold_every_name_is_refused(postgres: str, encoding: str) -> None:
    import psycopg

    with psycopg.connect(postgres.replace("+psycopg", "") + "/postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE narrow_{encoding} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0")
    sentence = refused(f"{postgres}/narrow_{encoding.lower()}")
    assert f"stores text as {encoding}" in sentence and "ENCODING 'UTF8'" in sentence


def test_the_command_says_it_on_the_console_and_exits_with_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "thesis.txt"
    path.write_text("Once upon a time")
    assert serve(None, 0, f"sqlite:///{path}", None) == 2
    assert "not an SQLite database" in capsys.readouterr().err
    assert serve("999.1.1.1", 0, None, None) == 2
    assert serve(None, 70_000, None, None) == 2
    assert "cannot be 70000" in capsys.readouterr().err


@pytest.mark.parametrize("before", [signal.SIGKILL, signal.SIGTERM])
def test_a_read_only_disk_is_served_and_says_so(tmp_path: Path, before: signal.Signals) -> None:
    """Even where the server before was killed and the newest rows are still in SQLite's log."""
    data = tmp_path / "data"
    agent = Agent()
    first = ServerProcess(data)
    with httpx.Client(base_url=f"{first.url}/api/v1", trust_env=False) as http:
        body = agent.body(agent.samples(3))
        assert http.post("/batches", content=body, headers={"Content-Type": messages.CONTENT_TYPE}).status_code == 200
    first.end(before)
    for path in (*data.iterdir(), data):
        path.chmod(0o555 if path.is_dir() else 0o444)
    # For root nothing is read-only by its permissions, unless root gives up that power.
    prefix = ("setpriv", "--bounding-set=-dac_override,-dac_read_search") if os.geteuid() == 0 else ()
    server = ServerProcess(data, prefix=prefix)
    try:
        with httpx.Client(base_url=f"{server.url}/api/v1", trust_env=False) as http:
            assert http.get(f"/runs/{agent.run}").json()["state"] == "running"
            assert http.get(f"/runs/{agent.run}/series", params={"names": "step"}).json()["rows"] == 3
            response = http.get("/server").json()
            assert response["database"]["writable"] is False
            assert "read-only" in response["problems"][0]
            assert http.get("/health").status_code == 503
            body = agent.body(agent.samples(2))
            answer = http.post("/batches", content=body, headers={"Content-Type": messages.CONTENT_TYPE})
            assert (answer.status_code, answer.json()["type"]) == (503, "urn:vramscope:problem:storage")
            assert int(answer.headers["retry-after"]) >= 1
            assert http.patch(f"/runs/{agent.run}", json={"pinned": True}).status_code == 503
    finally:
        server.end()
        data.chmod(0o755)


def test_readers_cannot_write_whatever_is_asked_of_them(tmp_path: Path) -> None:
    import sqlalchemy as sa

    database = Database(f"sqlite:///{tmp_path / 'x.db'}")
    with database.reader() as connection, pytest.raises(sa.exc.OperationalError, match="readonly"):
        connection.exec_driver_sql("DELETE FROM runs")
    database.close()


def test_readers_that_are_not_needed_keep_no_new_pages(tmp_path: Path) -> None:
    """Requests that come one after the other use one connection, even after a moment with several."""
    database = Database(f"sqlite:///{tmp_path / 'vramscope.db'}")
    with contextlib.ExitStack() as several:
        open_ones = [several.enter_context(database.reader()) for _ in range(4)]
        assert len({id(one.connection.driver_connection) for one in open_ones}) == 4
    used = set()
    for _ in range(8):
        with database.reader() as connection:
            used.add(id(connection.connection.driver_connection))
    database.close()
    assert len(used) == 1


def test_each_connection_keeps_one_megabyte_of_pages(tmp_path: Path) -> None:
    """What it keeps fills up while a database grows: the growth of the server's memory in a soak of an hour."""
    database = Database(f"sqlite:///{tmp_path / 'a.db'}")
    with database.reader() as reading, database.writer() as writing:
        for connection in (reading, writing):
            assert connection.exec_driver_sql("PRAGMA cache_size").scalar() == -1000
    database.close()
