"""Tokens that are bound to projects: what is theirs, and that nothing else exists for them."""

from __future__ import annotations

import io
import itertools
import pickle
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import msgspec
import pytest
from running import PATIENCE_SECONDS, RunningServer
from snapshot_maker import snapshot_of
from wire_maker import Agent

sys.path.insert(0, str(Path(__file__).parents[1] / "golden"))

from stored_runs import DEAD, LEAN, PLAIN, PROFILE, RANKS, RECORD, started

import vramscope_server
from vramscope.protocol import messages
from vramscope.transport import batching
from vramscope.transport.spool import Spool
from vramscope.transport.sync import main as sync_main
from vramscope_server.store.project_scope import ProjectScope
from vramscope_server.store.token_rows import Role

HIDDEN, OWN = "gpt2", "resnet"
_names = itertools.count(1)


def bearer(token: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def made(server: RunningServer, role: Role = "admin", *projects: str) -> dict[str, str]:
    """Headers of a new token."""
    scope = ProjectScope.of(projects or None)
    return bearer(server.services.tokens.make(f"token {next(_names)}", role, scope)[1])


class Stored(NamedTuple):
    """A server with tokens, and what the bound token must not find, by the name of the parameter."""

    server: RunningServer
    all: dict[str, str]
    bound: dict[str, str]
    hidden: dict[str, str]

    def ask(self, method: str, path: str, headers: dict[str, str], **options: Any) -> httpx.Response:
        return self.server.http.request(method, path, headers=headers, **options)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stored]:
    folder = tmp_path_factory.mktemp("stored")
    first, snapshot = started(folder)
    leak = first.get(f"/runs/{PLAIN}/leaks")["leaks"][0]["id"]
    marked = Agent("marked000001", project=HIDDEN, name="marked", tags=["hidden tag"])
    marked.attached.devices[0] = msgspec.structs.replace(marked.attached.devices[0], name="hidden card")
    first.send(marked, marked.ended())
    upload = first.http.post("/snapshots/uploads", json={"name": "part.pickle", "size_bytes": 3}).json()["upload"]
    first.stop()
    server = RunningServer(folder, require_tokens=True)
    everything, bound = made(server), made(server, "admin", OWN)
    job = server.http.post("/recordings/windowplain1/whatif", json={}, headers=everything).json()["job"]
    other = server.http.get("/tokens", headers=everything).json()[0]["id"]
    hidden = {
        "run": PLAIN,
        "leak": leak,
        "record": RECORD,
        "recording": "windowplain1",
        "profile": PROFILE,
        "snapshot": snapshot,
        "upload": upload,
        "job": job,
        "token_id": other,
    }
    yield Stored(server, everything, bound, hidden)
    server.stop()


FIXED = {
    "table": "operations",
    "names": "allocated_bytes",
    "offset": 0,
    "allocation": 5,
    "a": 0,
    "b": 20,
}
"""Values of required parameters that name nothing of a run."""
FIGURES = {"/runs/{run}/figures/{name}": "stack", "/profiles/{profile}/figures/{name}": "operations"}
PAIRS = ("/compare/sites", "/compare/timelines")
BODIES: dict[tuple[str, str], dict[str, Any]] = {
    ("PATCH", "/runs/{run}"): {"json": {"tags": ["stolen"], "project": OWN}},
    ("POST", "/recordings/{recording}/whatif"): {"json": {}},
    ("PUT", "/snapshots/uploads/{upload}"): {
        "content": b"abc",
        "headers": {"Content-Type": "application/octet-stream"},
    },
}
COMPARED = {
    "/compare": {},
    "/compare/table": {},
    "/compare/report": {},
    "/compare/predictions": {},
    "/compare/techniques": {},
    "/compare/figures/{name}": {"name": "peaks_over_steps"},
}
TABLES_BY_ID = [
    ("steps", "run"),
    ("leaks", "run"),
    ("operations", "run"),
    ("operations", "profile"),
    ("predictions", "recording"),
]
LISTED: dict[tuple[str, str], list[dict[str, Any]]] = {
    ("GET", "/tables"): [{}],
    ("GET", "/runs"): [{}, {"query": "plain"}, {"project": HIDDEN}, {"tag": "first"}, {"query": PLAIN}, {"limit": 1}],
    ("GET", "/snapshots"): [{}],
    ("GET", "/live/delta"): [{"runs": PLAIN, "after": 0}, {"runs": f"{PLAIN},plain", "after": 1}],
    ("GET", "/tokens"): [{}],
    ("GET", "/server"): [{}],
    ("GET", "/session"): [{}],
    ("GET", "/health"): [{}],
    ("GET", "/demo"): [{}],
    ("GET", "/alerts"): [{}],
    ("GET", "/notifications"): [{}],
}
"""Answers that name no run in their address."""
OTHERWISE_TESTED = {
    ("POST", "/oom/text"),  # reads nothing that is stored
    ("POST", "/batches"),
    ("POST", "/snapshots"),
    ("POST", "/snapshots/uploads"),
    ("POST", "/tokens"),
    ("PATCH", "/alerts"),
    ("POST", "/notifications/test"),
    ("GET", "/audit"),
    ("POST", "/session"),
    ("DELETE", "/session"),
    ("GET", "/session/oidc"),
    ("GET", "/session/oidc/callback"),
    ("POST", "/demo"),
}


def operations(stored: Stored) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Parameters of each operation of the API."""
    paths = stored.ask("GET", "/openapi.json", stored.all).json()["paths"]
    return {
        (method.upper(), path.removeprefix("/api/v1")): operation.get("parameters", [])
        for path, methods in paths.items()
        for method, operation in methods.items()
    }


def unknown(ident: str) -> str:
    """An id of the same form that nothing has."""
    return "".join("0" if one.isdigit() else "f" for one in ident[:-1]) + "7"


def calls_by_id(stored: Stored) -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """(method, path, the hidden id in it, options) of each operation that names something of a run."""
    for (method, route), parameters in operations(stored).items():
        needed = [one["name"] for one in parameters if one["required"]]
        if (method, route) in LISTED or (method, route) in OTHERWISE_TESTED:
            continue
        if route in COMPARED:
            path = route.format(**COMPARED[route])
            for texts in ({"runs": PLAIN}, {"runs": f"{RANKS},{PLAIN}"}, {"runs": RANKS, "base": PLAIN}):
                yield method, path, PLAIN, {"params": texts}
        elif route == "/tables/{name}":
            for table, parameter in TABLES_BY_ID:
                hidden = stored.hidden[parameter]
                yield method, f"/tables/{table}", hidden, {"params": {parameter: hidden}}
        elif route in PAIRS:
            for hidden in (PLAIN, "windowplain1"):
                yield method, route, hidden, {"params": {"a": hidden, "b": hidden}}
        else:
            in_path = {name: stored.hidden[name] for name in needed if name in stored.hidden}
            assert in_path, f"{method} {route}: which of its parameters names a run?"
            rest = {name: FIXED[name] for name in needed if name not in in_path and name != "name"}
            path = route.format(**in_path, **rest, name=FIGURES.get(route))
            options = {"params": rest, **BODIES.get((method, route), {})}
            yield method, path, next(iter(in_path.values())), options


def test_nothing_of_another_project_is_found_by_its_id(stored: Stored) -> None:
    """Its answer is that of an id that does not exist, on every route."""
    before = stored.ask("GET", f"/runs/{PLAIN}", stored.all).json()
    asked = 0
    for method, path, hidden, options in calls_by_id(stored):
        headers = stored.bound | options.pop("headers", {})
        answer = stored.ask(method, path, headers, **options)
        never = unknown(hidden)
        options["params"] = {k: str(v).replace(hidden, never) for k, v in options["params"].items()}
        nothing = stored.ask(method, path.replace(hidden, never), headers, **options)
        assert (answer.status_code, nothing.status_code) == (404, 404), (method, path, answer.text, nothing.text)
        told, told_of_nothing = (
            {name: value for name, value in one.json().items() if name != "suggestions"} for one in (answer, nothing)
        )
        assert str(told).replace(hidden, never) == str(told_of_nothing), (method, path)
        check_marks(stored, answer.text.replace(hidden, ""), path)
        asked += 1
    assert asked > 55
    assert stored.ask("GET", f"/runs/{PLAIN}", stored.all).json() == before
    for path in (f"/snapshots/{stored.hidden['snapshot']}", "/recordings/windowplain1", f"/profiles/{PROFILE}"):
        assert stored.ask("GET", path, stored.all).status_code == 200, "nothing was deleted"


def check_marks(stored: Stored, text: str, where: str) -> None:
    """Fail if a text names something of the other project."""
    marks = (
        HIDDEN,
        PLAIN,
        LEAN,
        DEAD,
        "windowplain",
        "windowlean",
        "windowdead",
        "a.pickle",
        "part.pickle",
        "marked",
        "hidden",
    )
    found = [mark for mark in (*marks, *stored.hidden.values()) if mark in text]
    assert not found, (where, found, text)


def test_no_list_names_anything_of_another_project(stored: Stored) -> None:
    assert set(LISTED) | OTHERWISE_TESTED <= set(operations(stored))
    for (method, route), several in LISTED.items():
        for parameters in several:
            answer = stored.ask(method, route, stored.bound, params=parameters)
            assert answer.status_code == 200, (route, answer.text)
            check_marks(stored, answer.text, route)
            assert (HIDDEN in stored.ask(method, route, stored.all, params=parameters).text) or route != "/runs"
    metrics = stored.ask("GET", f"{stored.server.url}/metrics", stored.bound).text
    counts = {
        state: f'vramscope_runs{{state="{state}"}} {count}.0' for state, count in (("finished", 0), ("failed", 1))
    }
    assert all(line in metrics for line in counts.values()), metrics
    assert stored.ask("GET", "/server", stored.bound).json()["database"]["runs"] == 1


@pytest.mark.parametrize("text", ["plain", "plain0", "dead", "p", "windowplain1"])
def test_a_name_or_a_prefix_finds_no_run_of_another_project(stored: Stored, text: str) -> None:
    answer = stored.ask("GET", f"/runs/{text}", stored.bound)
    assert answer.status_code == 404
    assert set(answer.json()["suggestions"]) <= {RANKS, "two-ranks"}


def test_a_bound_token_sees_its_own_runs_in_full(stored: Stored) -> None:
    compared = 0
    for (method, route), parameters in operations(stored).items():
        needed = [one["name"] for one in parameters if one["required"]]
        if method == "GET" and "run" in needed and "leak" not in needed:
            path = route.format(run=RANKS, name="stack")
            options = {"params": {"names": "allocated_bytes"} if "names" in needed else {}}
            own, everything = (stored.ask(method, path, one, **options) for one in (stored.bound, stored.all))
            assert own.status_code == 200
            is_file = route.endswith("/report")
            assert (own.text == everything.text) if is_file else (own.json() == everything.json()), path
            compared += 1
    assert compared >= 8
    listed = stored.ask("GET", "/runs", stored.bound).json()
    assert ([row["run_id"] for row in listed["runs"]], listed["total"], listed["projects"]) == ([RANKS], 1, [OWN])


def test_a_job_is_found_under_its_own_recording_only(stored: Stored) -> None:
    """The id of a job follows from its question: whoever knows one could read the answer under a recording of its own."""
    path = f"/recordings/windowdead01/whatif/{stored.hidden['job']}"
    assert stored.ask("GET", path, stored.all).json()["field"] == "job"


def test_events_of_another_project_reach_no_page(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(require_tokens=True)
    everything, bound = made(server), made(server, "read", OWN)
    hidden, own = Agent(project=HIDDEN), Agent(project=OWN)

    def ask(headers: dict[str, str], after: int) -> dict[str, Any]:
        runs = {"runs": f"{hidden.run},{own.run}", "after": after}
        answer: dict[str, Any] = server.http.get("/live/delta", params=runs, headers=headers).json()
        return answer

    last = ask(bound, 0)["last"]
    for agent in (hidden, own):
        assert server.post(agent.body(agent.samples(3)), **everything).status_code == 200
    kinds: set[tuple[str, str]] = set()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while {kind for kind, _ in kinds} < {"run", "rows"}:
        assert time.monotonic() < deadline
        time.sleep(0.05)
        kinds = {
            (one["event"], one["data"].get("run_id", one["data"].get("run"))) for one in ask(bound, last)["events"]
        }
    assert kinds == {("run", own.run), ("rows", own.run)}
    seen = {one["data"].get("run_id", one["data"].get("run")) for one in ask(everything, last)["events"]}
    assert seen == {hidden.run, own.run}


def test_the_routes_have_no_connection_but_that_of_the_caller() -> None:
    """``reader(request)`` is the one place where a query gets the projects of its caller."""
    api = Path(vramscope_server.__file__).parent / "api"
    files = {path.name: path.read_text() for path in api.rglob("*.py")}
    assert {name for name, text in files.items() if "database.reader" in text} == {"requested_range.py"}


# ---- sending and changing ----


@pytest.fixture
def guarded(start_server: Callable[..., RunningServer], database_url: str) -> RunningServer:
    return start_server(database=database_url, require_tokens=True)


def test_a_bound_token_sends_runs_of_its_projects(guarded: RunningServer) -> None:
    bound = made(guarded, "write", "vision", "nlp")
    assert guarded.post(Agent(project="nlp").body(), **bound).status_code == 200
    refused = guarded.post(Agent(project="default").body(), **bound)
    problem = refused.json()
    assert (refused.status_code, problem["type"]) == (403, "urn:vramscope:problem:project")
    assert (problem["field"], problem["seen"], problem["expected"]) == ("project", "default", "nlp, vision")
    assert guarded.http.get("/runs", headers=made(guarded)).json()["total"] == 1


def test_a_bound_token_sends_nothing_to_a_run_of_another_project(guarded: RunningServer) -> None:
    everything, bound = made(guarded), made(guarded, "write", OWN)
    hidden = Agent(project="secret")
    assert guarded.post(hidden.body(hidden.samples(3)), **everything).status_code == 200
    intruder = Agent(hidden.run, project=OWN, rank=1)
    for body in (intruder.body(), hidden.body(hidden.samples(3))):
        refused = guarded.post(body, **bound)
        assert (refused.status_code, refused.json()["field"]) == (403, "project")
        assert "secret" not in refused.text
    assert len(guarded.http.get(f"/runs/{hidden.run}", headers=everything).json()["ranks"]) == 1


def test_a_run_is_moved_by_a_token_of_both_projects(guarded: RunningServer) -> None:
    one, both, other = made(guarded, "write", "a"), made(guarded, "write", "a", "b"), made(guarded, "write", "b")
    agent = Agent(project="a")
    assert guarded.post(agent.body(agent.samples(3)), **one).status_code == 200
    path = f"/runs/{agent.run}"
    guarded.http.patch(path, json={"baseline": True}, headers=one)
    refused = guarded.http.patch(path, json={"project": "b"}, headers=one)
    assert (refused.status_code, refused.json()["field"], refused.json()["expected"]) == (403, "project", "a")
    assert guarded.http.patch(path, json={"project": "a"}, headers=other).status_code == 404
    moved = guarded.http.patch(path, json={"project": "b"}, headers=both).json()
    assert (moved["project"], moved["baseline"]) == ("b", False)
    assert guarded.http.get(path, headers=one).status_code == 404
    assert guarded.http.get(path, headers=other).status_code == 200
    assert guarded.post(agent.body(agent.samples(3, at=1.0)), **one).status_code == 200, "a session goes on"
    assert guarded.post(agent.body(agent.ended()), **one).status_code == 200
    again = guarded.post(Agent(agent.run, project="a").body(), **one)
    assert (again.status_code, again.json()["field"]) == (403, "project"), "another does not begin"


def test_a_moved_run_can_be_the_baseline_of_its_new_project(guarded: RunningServer) -> None:
    everything = made(guarded)
    before, moved = Agent(project="b"), Agent(project="a")
    for agent in (before, moved):
        guarded.post(agent.body(), **everything)
    guarded.http.patch(f"/runs/{before.run}", json={"baseline": True}, headers=everything)
    changed = {"project": "b", "baseline": True}
    assert guarded.http.patch(f"/runs/{moved.run}", json=changed, headers=everything).json()["baseline"] is True
    assert guarded.http.get(f"/runs/{before.run}", headers=everything).json()["baseline"] is False


def test_what_all_projects_share_is_not_changed_by_a_bound_token(guarded: RunningServer) -> None:
    bound = made(guarded, "admin", OWN)
    for method, path in (("PATCH", "/alerts"), ("POST", "/notifications/test")):
        refused = guarded.http.request(method, path, json={}, headers=bound)
        problem = refused.json()
        assert (refused.status_code, problem["field"], problem["seen"]) == (403, "projects", OWN)
        assert guarded.http.request(method, path, json={}, headers=made(guarded)).status_code == 200
    assert guarded.http.get("/alerts", headers=bound).status_code == 200
    refused = guarded.http.get("/audit", headers=bound)
    assert (refused.status_code, refused.json()["field"]) == (403, "projects")


# ---- snapshot files ----


def test_a_snapshot_belongs_to_the_project_of_its_sender(guarded: RunningServer) -> None:
    everything, one = made(guarded), made(guarded, "write", "a")
    both, other = made(guarded, "write", "a", "b"), made(guarded, "write", "b")
    data = pickle.dumps(snapshot_of(10))

    def send(headers: dict[str, str], **parameters: str) -> httpx.Response:
        return guarded.http.post("/snapshots", content=io.BytesIO(data), params=parameters, headers=headers)

    of_none, of_a = send(everything).json(), send(one).json()
    assert (of_none["project"], of_a["project"]) == (None, "a")
    of_b = send(both, project="b").json()
    assert of_b["project"] == "b" and not of_b["known"], "that others have the same file is not for this sender"
    assert len({of_none["snapshot"], of_a["snapshot"], of_b["snapshot"]}) == 3
    assert send(one).json()["known"] is True
    assert (send(both).status_code, send(both).json()["field"]) == (422, "project")
    assert (send(one, project="b").status_code, send(one, project="b").json()["expected"]) == (403, "a")

    def seen(headers: dict[str, str]) -> set[str]:
        rows = guarded.http.get("/snapshots", headers=headers).json()["snapshots"]
        return {row["snapshot"] for row in rows}

    assert seen(everything) == {of_none["snapshot"], of_a["snapshot"], of_b["snapshot"]}
    assert (seen(one), seen(other)) == ({of_a["snapshot"]}, {of_b["snapshot"]})


def test_an_upload_in_parts_belongs_to_the_project_of_its_sender(guarded: RunningServer) -> None:
    one, other = made(guarded, "write", "a"), made(guarded, "write", "b")
    data = pickle.dumps(snapshot_of(10))
    new = {"name": "x.pickle", "size_bytes": len(data)}
    refused = guarded.http.post("/snapshots/uploads", json=new | {"project": "b"}, headers=one)
    assert (refused.status_code, refused.json()["field"]) == (403, "project")
    place = f"/snapshots/uploads/{guarded.http.post('/snapshots/uploads', json=new, headers=one).json()['upload']}"
    binary = {"Content-Type": "application/octet-stream"}
    for headers, expected in ((other, 404), (one, 200)):
        assert guarded.http.get(place, headers=headers).status_code == expected
        sent = guarded.http.put(place, params={"offset": 0}, content=data, headers=headers | binary)
        assert sent.status_code == expected
    assert guarded.http.post(f"{place}/complete", headers=other).status_code == 404
    assert guarded.http.post(f"{place}/complete", headers=one).json()["project"] == "a"


# ---- tokens ----


def test_a_bound_admin_makes_and_revokes_tokens_of_its_projects(guarded: RunningServer) -> None:
    bound = made(guarded, "admin", "a", "b")
    new = {"name": "new", "role": "write"}
    of_both = guarded.http.post("/tokens", json=new, headers=bound).json()
    assert of_both["projects"] == ["a", "b"], "never more than the caller has"
    of_one = guarded.http.post("/tokens", json=new | {"projects": ["b"]}, headers=bound).json()
    refused = guarded.http.post("/tokens", json=new | {"projects": ["b", "c"]}, headers=bound)
    assert (refused.status_code, refused.json()["field"], refused.json()["expected"]) == (403, "projects", "a, b")
    of_b = made(guarded, "admin", "b")
    assert {one["id"] for one in guarded.http.get("/tokens", headers=of_b).json()} >= {of_one["id"]}
    assert all(one["projects"] == ["b"] for one in guarded.http.get("/tokens", headers=of_b).json())
    assert guarded.http.delete(f"/tokens/{of_both['id']}", headers=of_b).status_code == 404
    assert guarded.http.delete(f"/tokens/{of_one['id']}", headers=of_b).status_code == 204
    session = guarded.http.get("/session", headers=of_b).json()
    assert (session["role"], session["projects"], session["by"]) == ("admin", ["b"], "token")


def test_a_binding_is_still_there_after_a_restart(
    guarded: RunningServer, start_server: Callable[..., RunningServer], database_url: str
) -> None:
    bound = made(guarded, "read", "a")
    guarded.stop()
    again = start_server(guarded.services.settings.data_dir, database=database_url, require_tokens=True)
    assert again.http.get("/session", headers=bound).json()["projects"] == ["a"]


def test_the_ack_of_a_bound_sender_asks_for_nothing_of_others(guarded: RunningServer) -> None:
    bound = made(guarded, "write", OWN)
    agent = Agent(project=OWN)
    ack = messages.decode_ack(guarded.post(agent.body(), **bound).content)
    assert (ack.accepted, ack.requests) == (1, [])


def test_a_session_of_another_project_keeps_no_other_from_being_sent(start_server, tmp_path, monkeypatch, capsys):
    """The oldest session belongs to a project that the token may not send to. The others arrive, and that one stays."""
    server = start_server(require_tokens=True)
    token = server.services.tokens.make("a team", "write", ProjectScope.of([OWN]))[1]
    waiting = [Agent(f"waiting0000{number}", project=project) for number, project in enumerate((HIDDEN, OWN, OWN))]
    folder = tmp_path / "spool"
    for agent in waiting:
        spool = Spool(folder, 64 * 1024**2)
        spool.begin(session=agent.session, server=server.url)
        spool.append(1, 1, batching.encode(agent.batch(agent.attached)))
        spool.append(2, 1, batching.encode(agent.batch(agent.ended())))
        spool.close()
    monkeypatch.setenv("VRAMSCOPE_SPOOL_DIR", str(folder))
    monkeypatch.setenv("VRAMSCOPE_TOKEN", token)
    assert sync_main([]) == 1
    out, err = capsys.readouterr()
    assert "Sent 4 batches" in out and "2 batches of 1 session." in out
    assert err.count("the token may send runs of resnet (VRAMSCOPE_PROJECT)") == 1
    runs = httpx.get(f"{server.url}/api/v1/runs", headers=bearer(token)).json()["runs"]
    assert sorted(run["run_id"] for run in runs) == sorted(agent.run for agent in waiting[1:])
    monkeypatch.setenv("VRAMSCOPE_TOKEN", server.services.first_token)
    assert sync_main([]) == 0
