"""The audit log: each change has its entry, with who made it and from where; none that was not stored."""

from __future__ import annotations

import getpass
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from profile_maker import a_profile
from running import RunningServer
from snapshot_maker import snapshot_of
from test_recordings import cut
from window_maker import training
from wire_maker import Agent

from vramscope.protocol.profile import pack as pack_profile
from vramscope.protocol.window import pack as pack_window
from vramscope_server.cli import run_command
from vramscope_server.store.audit_log import Action, Actor, Done, delete_old, insert_entry, list_entries
from vramscope_server.store.token_rows import Role


def bearer(token: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.fixture
def guarded(start_server: Callable[..., RunningServer], database_url: str) -> RunningServer:
    return start_server(database=database_url, require_tokens=True)


def token(server: RunningServer, name: str, role: Role = "admin") -> dict[str, str]:
    return bearer(server.services.tokens.make(name, role)[1])


def entries(server: RunningServer, **parameters: Any) -> list[dict[str, Any]]:
    """Entries of the log, the newest first."""
    first = bearer(server.services.first_token)
    answer = server.http.get("/audit", params=parameters, headers=first)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["entries"]
    return found


def words(entry: dict[str, Any]) -> tuple[Any, ...]:
    changes = [(one["field"], one["before"], one["after"]) for one in entry["changes"]]
    return entry["actor"], entry["address"], entry["action"], entry["name"], entry["project"], changes


def test_tokens_that_are_made_and_revoked_are_logged(guarded: RunningServer) -> None:
    ana = token(guarded, "ana")
    new = {"name": "nlp team", "role": "write", "projects": ["nlp"]}
    made = guarded.http.post("/tokens", json=new, headers=ana).json()
    guarded.http.delete(f"/tokens/{made['id']}", headers=ana)
    guarded.http.delete("/tokens/unknown", headers=ana)
    revoked, created, of_ana, first = entries(guarded)
    assert words(revoked) == ("ana", "127.0.0.1", "token_revoked", "nlp team", None, [])
    given = [("role", None, "write"), ("projects", None, "nlp")]
    assert words(created) == ("ana", "127.0.0.1", "token_created", "nlp team", None, given)
    assert (revoked["subject"], created["subject"]) == (made["id"], made["id"])
    assert created["token"] == of_ana["subject"], "the id of ana's token"
    everything = [("role", None, "admin"), ("projects", None, "all projects")]
    assert words(first) == ("vramscope server", None, "token_created", "first", None, everything)
    assert abs(first["time_seconds"] - time.time()) < 60
    assert made["token"] not in str(entries(guarded))


def test_changes_of_runs_are_logged(guarded: RunningServer) -> None:
    ana = token(guarded, "ana", "write")
    boss = token(guarded, "boss")
    agent = Agent(project="nlp", name="bert", tags=["old"])
    path = f"/runs/{agent.run}"
    guarded.post(agent.body(agent.samples(3)), **ana)
    guarded.http.patch(path, json={"tags": ["a", "b"], "pinned": True, "name": "bert"}, headers=ana)
    guarded.http.patch(path, json={"tags": ["a", "b"]}, headers=ana)
    guarded.http.patch(path, json={"project": "vision"}, headers=ana)
    guarded.http.delete(path, headers=boss)  # live: refused
    guarded.post(agent.body(agent.ended()), **ana)
    guarded.http.delete(path, headers=boss)
    deleted, moved, changed = entries(guarded)[:3]
    assert words(changed) == (
        "ana", "127.0.0.1", "run_changed", "bert", "nlp", [("tags", "old", "a, b"), ("pinned", "False", "True")]
    )  # fmt: skip
    assert words(moved) == ("ana", "127.0.0.1", "run_moved", "bert", "nlp", [("project", "nlp", "vision")])
    assert words(deleted) == ("boss", "127.0.0.1", "run_deleted", "bert", "vision", [])
    assert {one["subject"] for one in (deleted, moved, changed)} == {agent.run}
    assert [words(one)[2] for one in entries(guarded)[3:]] == ["token_created"] * 3, "no entry without a change"


def test_deleted_recordings_profiles_and_snapshots_are_logged(guarded: RunningServer) -> None:
    boss = token(guarded, "boss")
    agent = Agent(project="nlp", name="bert")
    window = cut(pack_window(training()), 1, artifact="window000001")
    profile = cut(pack_profile(a_profile()), 1, artifact="profile00001", kind="profile")
    assert guarded.post(agent.body(*window, *profile), **boss).status_code == 200
    data = pickle.dumps(snapshot_of(10))
    snapshot = guarded.http.post("/snapshots", content=data, params={"name": "a.pickle"}, headers=boss).json()[
        "snapshot"
    ]
    for path in ("recordings/window000001", "profiles/profile00001", f"snapshots/{snapshot}", "snapshots/unknown"):
        guarded.http.delete(f"/{path}", headers=boss)
    of_snapshot, of_profile, of_window = entries(guarded)[:3]
    assert words(of_window)[2:] == ("recording_deleted", "bert", "nlp", [])
    assert words(of_profile)[2:] == ("profile_deleted", "bert", "nlp", [])
    assert words(of_snapshot)[2:] == ("snapshot_deleted", "a.pickle", None, [])
    assert of_window["subject"] == "window000001"


def test_changed_alert_rules_and_test_messages_are_logged(guarded: RunningServer) -> None:
    ana = token(guarded, "ana", "write")
    for _ in range(2):  # the second changes nothing
        guarded.http.patch("/alerts", json={"leaks": {"least_bytes": 5}, "headroom": {"on": True}}, headers=ana)
    guarded.http.post("/notifications/test", headers=ana)
    tested, changed, created = entries(guarded)[:3]
    assert words(changed)[2:] == (
        "alerts_changed", None, None, [("leaks.least_bytes", "0", "5"), ("headroom.on", "False", "True")]
    )  # fmt: skip
    assert words(tested)[2:3] == ("message_tested",)
    assert created["action"] == "token_created"


def test_a_session_that_another_token_ended_is_logged(guarded: RunningServer) -> None:
    ana, boss = token(guarded, "ana", "write"), token(guarded, "boss")
    ended_by_itself, ended_by_boss = Agent(name="own end"), Agent(name="bert", project="nlp")
    for agent in (ended_by_itself, ended_by_boss):
        guarded.post(agent.body(), **ana)
    guarded.post(ended_by_itself.body(ended_by_itself.ended()), **ana)
    body = ended_by_boss.body(ended_by_boss.ended())
    for _ in range(2):  # (a batch that arrives twice)
        assert guarded.post(body, **boss).status_code == 200
    found = [one for one in entries(guarded) if one["action"] == "session_ended"]
    assert [words(one) for one in found] == [("boss", "127.0.0.1", "session_ended", "bert", "nlp", [])]


def test_the_command_on_the_servers_machine_is_logged(
    start_server: Callable[..., RunningServer], capsys: pytest.CaptureFixture[str]
) -> None:
    server = start_server(require_tokens=True)
    where = ["--data-dir", str(server.services.settings.data_dir)]
    assert run_command(["token", "create", "me", "--role", "read", *where]) == 0
    assert run_command(["token", "revoke", "me", *where]) == 0
    revoked, created = entries(server)[:2]
    who = f"vramscope token ({getpass.getuser()})"
    assert words(revoked) == (who, None, "token_revoked", "me", None, [])
    assert words(created)[:4] == (who, None, "token_created", "me")


def test_runs_that_retention_deleted_are_logged(start_server: Callable[..., RunningServer], database_url: str) -> None:
    server = start_server(database=database_url, retention_days=1e-9)
    agent = Agent(name="old", project="nlp")
    server.send(agent, agent.ended())
    assert server.services.retention.apply() == [agent.run]
    (entry,) = server.get("/audit")["entries"]
    assert words(entry) == ("retention", None, "run_deleted", "old", "nlp", [])


def test_without_tokens_an_entry_names_nobody(start_server: Callable[..., RunningServer]) -> None:
    server = start_server()
    server.http.patch("/alerts", json={"leaks": {"on": False}})
    (entry,) = server.get("/audit")["entries"]
    assert words(entry)[:2] == (None, "127.0.0.1")


def test_the_log_is_read_in_pages_and_by_action(guarded: RunningServer) -> None:
    for number in range(5):
        token(guarded, f"token {number}")
    guarded.http.patch("/alerts", json={"leaks": {"on": False}}, headers=token(guarded, "last"))
    first = bearer(guarded.services.first_token)
    names: list[str | None] = []
    before: int | None = None
    while True:
        parameters = {"limit": 3} | ({} if before is None else {"before": before})
        page = guarded.http.get("/audit", params=parameters, headers=first).json()
        names += [one["name"] for one in page["entries"]]
        before = page["next"]
        if before is None:
            break
    assert names == [None, "last", "token 4", "token 3", "token 2", "token 1", "token 0", "first"]
    assert [one["action"] for one in entries(guarded, action="alerts_changed")] == ["alerts_changed"]
    assert guarded.http.get("/audit", params={"action": "nonsense"}, headers=first).status_code == 422


def test_the_log_is_bounded(start_server: Callable[..., RunningServer], database_url: str) -> None:
    server = start_server(database=database_url, audit_entries=100)

    def fill(connection: Any) -> None:
        for number in range(130):
            insert_entry(connection, Actor("x"), Done(Action.run_changed, name=str(number)))

    server.services.writer.do(lambda connection, _: fill(connection)).result(60)
    server.services.retention.apply()
    listed = server.get("/audit", limit=1000)
    assert listed["max_entries"] == 100
    assert [one["name"] for one in listed["entries"]] == [str(number) for number in range(129, 29, -1)]
    with server.services.database.reader() as connection:
        assert len(list_entries(connection, limit=1000)) == 100
    assert server.services.writer.do(lambda connection, _: delete_old(connection, 100)).result(60) == 0


def test_changes_of_runs_do_not_push_out_what_admins_did(start_server: Callable[..., RunningServer]) -> None:
    """Whoever may change a run may make any number of entries."""
    server = start_server(audit_entries=100)

    def fill(connection: Any) -> None:
        insert_entry(connection, Actor("x"), Done(Action.token_created, name="the first"))
        for number in range(300):
            insert_entry(connection, Actor("x"), Done(Action.run_changed, name=str(number)))

    server.services.writer.do(lambda connection, _: fill(connection)).result(60)
    server.services.retention.apply()
    names = [one["name"] for one in server.get("/audit", limit=1000)["entries"]]
    assert names == [*(str(number) for number in range(299, 199, -1)), "the first"]


def test_a_long_value_is_cut_off(start_server: Callable[..., RunningServer]) -> None:
    server = start_server()
    agent = Agent(tags=[])
    server.send(agent)
    tags = [f"{number:03d}" + "x" * 197 for number in range(64)]
    server.http.patch(f"/runs/{agent.run}", json={"tags": tags})
    (entry,) = server.get("/audit")["entries"]
    after = entry["changes"][0]["after"]
    assert len(after) == 500 and after.endswith("…")


def test_a_change_that_cannot_be_stored_has_no_entry(
    start_server: Callable[..., RunningServer], tmp_path: Path
) -> None:
    """The entry is in the same transaction: a live run is not deleted, and the log does not say so."""
    server = start_server()
    agent = Agent()
    server.send(agent)
    assert server.http.delete(f"/runs/{agent.run}").status_code == 409
    assert server.get("/audit")["entries"] == []
