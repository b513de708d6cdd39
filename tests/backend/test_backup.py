"""A copy of a database under load is whole, and a server starts on it as the docs say."""

from __future__ import annotations

import contextlib
import re
import shutil
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from running import PATIENCE_SECONDS, RunningServer
from snapshot_maker import snapshot_of
from wire_maker import Agent

from vramscope_server.cli import run_command
from vramscope_server.cli.backup import back_up, prune
from vramscope_server.store.database import Database

DOCS = Path(__file__).resolve().parents[2] / "docs"


def with_snapshot(server: RunningServer) -> str:
    import pickle

    answer = server.http.post("/snapshots", content=pickle.dumps(snapshot_of(20)), params={"name": "a.pickle"})
    ident = str(answer.json()["snapshot"])
    deadline = time.monotonic() + PATIENCE_SECONDS
    while server.get(f"/snapshots/{ident}")["state"] != "ready":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return ident


def test_a_copy_under_load_is_restored_as_the_docs_say(
    start_server: Callable[..., RunningServer], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = start_server()
    data = Path(server.services.settings.data_dir)
    ident = with_snapshot(server)
    agent, stop = Agent(), threading.Event()
    stored: list[int] = []

    def write() -> None:
        while not stop.is_set():
            assert server.post(agent.body(agent.samples(50))).status_code == 200
            stored.append(50)

    writing = threading.Thread(target=write)
    writing.start()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(stored) < 20:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    before = sum(stored)
    assert run_command(["backup", str(tmp_path / "backup"), "--data-dir", str(data)]) == 0
    stop.set()
    writing.join()
    copy = Path(capsys.readouterr().out.partition(" (")[0])
    assert copy.parent == tmp_path / "backup" and oct(copy.stat().st_mode & 0o777) == "0o600"

    assert {path.name for path in copy.parent.iterdir()} == {copy.name, "snapshots", ".lock"}, "one file each"

    # the commands of the docs, with our folders
    [block] = re.findall(r"```sh\n(cd ~/.local.*?)```", (DOCS / "deployment.md").read_text(), re.DOTALL)
    fresh = tmp_path / "fresh"
    shutil.copytree(data, fresh)  # (what a crash would leave)
    script = block.replace("~/.local/share/vramscope", str(fresh)).replace("vramscope server\n", "")
    script = script.replace("/backup/snapshots", f"{copy.parent}/snapshots")
    script = re.sub(r" /backup/vramscope-\w+\.db", f" {copy}", script)
    subprocess.run(["sh", "-e", "-c", script], check=True)
    restored = start_server(data_dir=fresh)
    with restored.services.database.reader() as connection:
        rows = connection.exec_driver_sql("SELECT sum(rows) FROM chunks WHERE stream = 'samples'").scalar()
    assert before <= int(rows) <= sum(stored), "what was stored before the copy, and nothing that was not sent"
    assert restored.get(f"/snapshots/{ident}")["state"] == "ready"
    assert restored.http.get(f"/recordings/{ident}-0/moments").status_code == 200


@pytest.mark.postgres
@pytest.mark.xdist_group("postgres")
@pytest.mark.parametrize("database_kind", ["postgresql"], indirect=True)
def test_a_dump_of_postgresql_is_restored_as_the_docs_say(
    start_server: Callable[..., RunningServer], database_url: str, tmp_path: Path
) -> None:
    """Into the database as it is then: with newer runs, and with its tables."""
    before, after = Agent(name="before"), Agent(name="after")
    server = start_server(database=database_url)
    server.send(before, before.samples(5), before.ended())
    plain, _, name = database_url.replace("+psycopg", "").rpartition("/")
    dump = tmp_path / "vramscope.dump"
    subprocess.run(["pg_dump", "--format=custom", f"--file={dump}", f"{plain}/{name}"], check=True)
    server.send(after, after.samples(5), after.ended())
    server.stop()
    [command] = re.findall(r"`(pg_restore [^`]*)`", (DOCS / "deployment.md").read_text())
    words = [{"vramscope": f"{plain}/{name}", "FILE": str(dump)}.get(word, word) for word in command.split()]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    again = start_server(database=database_url)
    assert [run["name"] for run in again.get("/runs")["runs"]] == ["before"]
    new = Agent(name="new")
    again.send(new, new.samples(5), new.ended())
    assert again.get(f"/runs/{new.run}/series", names="step")["rows"] == 5, "numbers go on where they were"
    assert again.get(f"/runs/{before.run}/series", names="step")["rows"] == 5


def test_a_copy_without_snapshots_is_restored_and_files_beside_old_copies_go(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'a.db'}")
    database.close()
    folder = tmp_path / "backup"
    old = folder / "vramscope-20200101T000000Z.db"
    back_up(tmp_path / "a.db", tmp_path / "a.db-snapshots", folder).rename(old)
    for end in ("-wal", "-shm"):
        old.with_name(old.name + end).touch()  # as earlier versions left them
    new = back_up(tmp_path / "a.db", tmp_path / "a.db-snapshots", folder)
    assert prune(folder, 1) == 1
    assert {path.name for path in folder.iterdir()} == {new.name, "snapshots"}
    shutil.copytree(folder / "snapshots", tmp_path / "restored.db-snapshots")
    shutil.copy(new, tmp_path / "restored.db")
    Database(f"sqlite:///{tmp_path / 'restored.db'}").close()


def test_the_newest_copies_stay_and_snapshots_that_one_of_them_lists(tmp_path: Path) -> None:
    Database(f"sqlite:///{tmp_path}/vramscope.db").close()
    folder = tmp_path / "backup"
    for number, idents in enumerate((["a"], ["a", "b"], ["b"])):
        with sqlite3.connect(tmp_path / "vramscope.db") as connection:
            connection.execute("DELETE FROM snapshots")
            for ident in idents:
                values = (ident, ident, "x", 1, 1, "ready", 1, "[]", "[]")
                connection.execute(
                    "INSERT INTO snapshots (id, sha256, name, bytes, stored_bytes, state, received_ns, devices, notes) "
                    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    values,
                )
        connection.close()
        for ident in idents:
            (tmp_path / "snapshots" / ident).mkdir(parents=True, exist_ok=True)
            (tmp_path / "snapshots" / ident / "column").write_text(ident)
        made = back_up(tmp_path / "vramscope.db", tmp_path / "snapshots", folder)
        made.rename(folder / f"vramscope-2026112{number}T000000Z.db")
    assert prune(folder, 2) == 1
    assert {path.name for path in (folder / "snapshots").iterdir()} == {"a", "b"}
    assert prune(folder, 1) == 1
    assert [path.name for path in folder.glob("*.db")] == ["vramscope-20261122T000000Z.db"]
    assert (folder / "snapshots" / "b" / "column").read_text() == "b"
    assert {path.name for path in (folder / "snapshots").iterdir()} == {"b"}


def test_a_copy_ends_while_another_process_writes_without_pause(tmp_path: Path) -> None:
    """SQLite restarts a copy in steps after each write between them."""
    Database(f"sqlite:///{tmp_path}/vramscope.db").close()
    stop = threading.Event()

    def write() -> None:
        with contextlib.closing(sqlite3.connect(tmp_path / "vramscope.db", timeout=30)) as connection:
            connection.execute("CREATE TABLE more (data BLOB)")
            connection.execute("INSERT INTO more VALUES (zeroblob(40000000))")
            connection.commit()
            while not stop.wait(0.002):
                connection.execute("INSERT INTO more VALUES (zeroblob(10))")
                connection.commit()

    writing = threading.Thread(target=write)
    writing.start()
    try:
        time.sleep(1)
        copying = threading.Thread(
            target=back_up, args=(tmp_path / "vramscope.db", tmp_path / "snapshots", tmp_path / "backup"), daemon=True
        )
        copying.start()
        copying.join(PATIENCE_SECONDS)
        assert not copying.is_alive()
    finally:
        stop.set()
        writing.join()
    [made] = (tmp_path / "backup").glob("*.db")
    assert made.stat().st_size > 40_000_000


def test_a_copy_that_cannot_be_read_costs_no_snapshot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "snapshots" / "a").mkdir(parents=True)
    (tmp_path / "vramscope-20200101T000000Z.db").write_bytes(b"not a database, or a damaged one" * 100)
    assert prune(tmp_path, 2) == 0
    assert (tmp_path / "snapshots" / "a").exists()
    assert "cannot be read" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("where", "told"),
    [
        (["--data-dir", "/nonexistent"], "there is no database at /nonexistent/vramscope.db"),
        (["--database", "postgresql://db/vramscope"], "for PostgreSQL: pg_dump vramscope"),
    ],
)
def test_what_cannot_be_copied_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], where: list[str], told: str
) -> None:
    assert run_command(["backup", str(tmp_path), *where]) == 2
    assert told in capsys.readouterr().err


def test_a_copy_beside_a_bucket_says_what_it_lacks(
    tmp_path: Path,
    start_server: Callable[..., RunningServer],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    server = start_server(tmp_path / "data")
    server.stop()
    monkeypatch.setenv("VRAMSCOPE_ARTIFACTS", "s3://lab/vramscope")
    assert run_command(["backup", str(tmp_path / "copies"), "--data-dir", str(tmp_path / "data")]) == 0
    assert "snapshot files lie in s3://lab/vramscope, and are not copied" in capsys.readouterr().out
