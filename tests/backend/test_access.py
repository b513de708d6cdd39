"""Who may do what, on loopback and beyond it."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa
from running import RunningServer
from starlette.datastructures import URL
from starlette.requests import HTTPConnection
from waiting import eventually
from wire_maker import Agent

from vramscope.protocol import messages
from vramscope_server import tokens as server_tokens
from vramscope_server.cli import run_command
from vramscope_server.settings import Settings, is_loopback
from vramscope_server.store.database import Database
from vramscope_server.store.tables import tokens
from vramscope_server.tokens import MAX_FAILURES


@pytest.fixture
def guarded(start_server: Callable[..., RunningServer]) -> RunningServer:
    """A server that demands tokens."""
    return start_server(require_tokens=True)


def bearer(token: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.mark.parametrize(
    ("host", "demanded"),
    [("127.0.0.1", False), ("localhost", False), ("::1", False), ("0.0.0.0", True), ("10.0.0.5", True), ("gpu7", True)],
)
def test_tokens_are_demanded_beyond_loopback(host: str, demanded: bool) -> None:
    assert Settings(host=host).tokens_required is demanded
    assert is_loopback(host) is not demanded
    assert Settings(host=host, require_tokens=not demanded).tokens_required is not demanded


def test_a_loopback_server_is_open_to_its_own_machine(server: RunningServer) -> None:
    assert server.get("/session") == {
        "required": False,
        "authenticated": True,
        "role": "admin",
        "projects": None,
        "name": None,
        "by": None,
        "oidc": False,
    }
    assert server.get("/tokens") == []


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "evil.example:8265", "", "[::2]:80"])
def test_a_name_that_is_not_ours_is_refused_against_dns_rebinding(server: RunningServer, host: str) -> None:
    for path in ("/api/v1/runs", "/", "/api/v1/live/delta"):
        answer = server.http.get(f"{server.url}{path}", headers={"Host": host})
        assert (answer.status_code, answer.json()["field"]) == (421, "Host")


@pytest.mark.parametrize("host", ["localhost", "localhost:9000", "127.0.0.1:1", "[::1]:8265", "LOCALHOST"])
def test_our_own_names_are_answered_whatever_the_port(server: RunningServer, host: str) -> None:
    """ssh -L forwards one port to another."""
    assert server.http.get("/runs", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:1"])
def test_a_foreign_page_cannot_change_anything(server: RunningServer, origin: str) -> None:
    agent = Agent()
    assert server.post(agent.body(), Origin=origin).status_code == 403
    assert server.http.delete("/runs/x", headers={"Origin": origin}).status_code == 403
    assert server.http.post("/tokens", json={}, headers={"Origin": origin}).status_code == 403
    assert server.http.get("/runs", headers={"Origin": origin}).headers.get("access-control-allow-origin") is None
    assert server.http.patch("/runs/x", json={}, headers={"Origin": server.url}).status_code == 404, "our own page may"


def test_more_names_can_be_allowed(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(allowed_hosts="gpu7.lan, gpu7")
    assert server.http.get("/runs", headers={"Host": "gpu7.lan:8265"}).status_code == 200
    assert server.http.get("/runs", headers={"Host": "gpu8.lan"}).status_code == 421


def test_the_first_token_is_made_once_and_stored_hashed(
    guarded: RunningServer, start_server: Callable[..., RunningServer]
) -> None:
    first = guarded.services.first_token
    assert first is not None and first.startswith("vrs_")
    with guarded.services.database.reader() as connection:
        (row,) = connection.execute(sa.select(tokens)).mappings().all()
    assert first not in str(dict(row))
    guarded.stop()
    again = start_server(guarded.services.settings.data_dir, require_tokens=True)
    assert again.services.first_token is None
    assert again.http.get("/runs", headers=bearer(first)).status_code == 200


def test_without_a_token_only_health_and_sign_in_answer(guarded: RunningServer) -> None:
    agent = Agent()
    assert guarded.post(agent.body()).status_code == 401
    for path in (
        "/runs",
        "/runs/x",
        "/live/delta",
        "/tokens",
        "/server",
        "/compare?runs=x",
        "/openapi.json",
        "/docs",
    ):
        answer = guarded.http.get(path)
        assert answer.status_code == 401, path
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.json()["type"] == "urn:vramscope:problem:unauthorized"
    assert guarded.http.get(f"{guarded.url}/metrics").status_code == 401
    assert guarded.http.post("/tokens", json={"name": "x", "role": "read"}).status_code == 401
    assert guarded.get("/health") == {"status": "ok"}
    assert guarded.get("/session") == {
        "required": True,
        "authenticated": False,
        "role": None,
        "projects": None,
        "name": None,
        "by": None,
        "oidc": False,
    }
    assert guarded.http.get(f"{guarded.url}/").status_code == 200, "the page itself asks for the token"


def made_tokens(guarded: RunningServer) -> dict[str, dict[str, str]]:
    """Headers of a token of each role."""
    first = bearer(guarded.services.first_token)
    return {
        role: bearer(guarded.http.post("/tokens", json={"name": role, "role": role}, headers=first).json()["token"])
        for role in ("read", "write", "admin")
    }


CALLS = [
    ("GET", "/runs", "read"),
    ("GET", "/runs/{run}", "read"),
    ("GET", "/live/delta", "read"),
    ("GET", "/tables", "read"),
    ("GET", "/tables/runs", "read"),
    ("POST", "/recordings/none/whatif", "read"),
    ("POST", "/oom/text", "read"),
    ("PATCH", "/runs/{run}", "write"),
    ("PATCH", "/runs/whatif", "write"),
    ("PATCH", "/alerts", "write"),
    ("POST", "/notifications/test", "write"),
    ("POST", "/runs/{run}/recordings", "write"),
    ("POST", "/runs/{run}/profiles", "write"),
    ("POST", "/snapshots", "write"),
    ("POST", "/batches", "write"),
    ("POST", "/snapshots/uploads", "write"),
    ("PUT", "/snapshots/uploads/none", "write"),
    ("POST", "/snapshots/uploads/none/complete", "write"),
    ("DELETE", "/runs/{run}", "admin"),
    ("DELETE", "/recordings/none", "admin"),
    ("DELETE", "/profiles/none", "admin"),
    ("DELETE", "/snapshots/none", "admin"),
    ("DELETE", "/tokens/none", "admin"),
    ("GET", "/tokens", "admin"),
    ("GET", "/audit", "admin"),
    ("POST", "/tokens", "admin"),
    ("GET", "/demo", "read"),
    ("POST", "/demo", "admin"),
]


@pytest.mark.parametrize(("method", "path", "needed"), CALLS)
def test_a_role_may_do_what_lesser_roles_may_and_no_more(
    guarded: RunningServer, method: str, path: str, needed: str
) -> None:
    roles = ["read", "write", "admin"]
    for role, headers in made_tokens(guarded).items():
        answer = guarded.http.request(method, path.format(run="none"), headers=headers)
        if roles.index(role) >= roles.index(needed):
            assert answer.status_code not in (401, 403), (role, answer.text)
        else:
            assert (answer.status_code, answer.json()["expected"]) == (403, needed)


def test_each_call_that_changes_something_has_its_role_in_this_test(guarded: RunningServer) -> None:
    operations = {
        (method.upper(), path.removeprefix("/api/v1"))
        for path, methods in guarded.http.get("/openapi.json", headers=made_tokens(guarded)["read"])
        .json()["paths"]
        .items()
        for method in methods
        if method != "get" and path != "/api/v1/session"
    }
    tested = {
        (method, re.sub(r"none|(?<=runs/)whatif|\{run\}", "{}", path)) for method, path, _ in CALLS if method != "GET"
    }
    assert {(method, re.sub(r"\{\w+\}", "{}", path)) for method, path in operations} == tested


def test_only_the_token_that_began_a_session_ends_it_or_an_admins(guarded: RunningServer) -> None:
    headers = made_tokens(guarded)
    other = bearer(
        guarded.http.post("/tokens", json={"name": "other", "role": "write"}, headers=headers["admin"]).json()["token"]
    )

    def state(agent: Agent) -> str:
        return str(guarded.http.get(f"/runs/{agent.run}", headers=headers["read"]).json()["state"])

    for ender in ("write", "admin"):
        agent = Agent()
        assert guarded.post(agent.body(agent.samples(3)), **headers["write"]).status_code == 200
        ended = agent.body(messages.Ended(time_ns=time.time_ns(), state="finished"))
        refused = guarded.post(ended, **other)
        assert (refused.status_code, refused.json()["type"]) == (403, "urn:vramscope:problem:forbidden")
        assert state(agent) == "running"
        assert guarded.post(ended, **headers[ender]).status_code == 200
        assert state(agent) == "finished"


@pytest.mark.parametrize("host", ["x/api/v1/health?", "x/api/v1/health#", "x/api/v1/session?"])
def test_the_header_host_opens_no_path(guarded: RunningServer, monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    """Older versions of Starlette make the address of it, as it is."""
    address = property(lambda self: URL(f"http://{self.headers['host']}{self.scope['path']}"))
    monkeypatch.setattr(HTTPConnection, "url", address)
    for method, path in (
        ("GET", "/runs"),
        ("GET", "/tokens"),
        ("GET", "/audit"),
        ("POST", "/tokens"),
        ("PATCH", "/alerts"),
    ):
        request = f"{method} /api/v1{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
        with socket.create_connection(("127.0.0.1", guarded.port), timeout=30) as connection:
            connection.sendall(request.encode())
            assert connection.recv(100).startswith(b"HTTP/1.1 401 "), (method, path)


def test_a_token_is_made_and_revoked_beside_the_running_server(
    guarded: RunningServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The way back after the first token is lost."""
    monkeypatch.setattr(server_tokens, "REREAD_SECONDS", 0.1)
    where = ["--data-dir", str(guarded.services.settings.data_dir)]
    assert run_command(["token", "create", "me", "--role", "admin", *where]) == 0
    made = capsys.readouterr()
    headers = bearer(made.out.strip())
    assert "shown only once" in made.err and f"Stored in sqlite:///{guarded.services.settings.data_dir}/" in made.err
    time.sleep(0.2)
    assert guarded.http.get("/tokens", headers=headers).status_code == 200
    assert run_command(["token", "list", *where]) == 0
    listed = capsys.readouterr().out
    assert "me" in listed and "admin" in listed and made.out.strip() not in listed
    assert run_command(["token", "list", "--json", *where]) == 0
    assert [one["name"] for one in json.loads(capsys.readouterr().out)] == ["first", "me"]
    assert run_command(["token", "revoke", "me", *where]) == 0
    time.sleep(0.2)
    guarded.http.get("/tokens", headers=headers)  # (the last one that is answered by what was known)
    eventually(lambda: guarded.http.get("/tokens", headers=headers).status_code == 401)


def test_a_token_is_bound_to_projects_beside_the_running_server(
    guarded: RunningServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(server_tokens, "REREAD_SECONDS", 0.1)
    where = ["--data-dir", str(guarded.services.settings.data_dir)]
    assert run_command(["token", "create", "team", "--project", "vision", "--project", "nlp", *where]) == 0
    made = capsys.readouterr()
    assert "has the role write in nlp, vision" in made.err
    time.sleep(0.2)
    session = guarded.http.get("/session", headers=bearer(made.out.strip())).json()
    assert (session["role"], session["projects"]) == ("write", ["nlp", "vision"])
    assert run_command(["token", "list", *where]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert next(line for line in listed if "team" in line).count("nlp, vision") == 1
    assert " all " in next(line for line in listed if "first" in line)
    assert run_command(["token", "create", "team", "--project", "", *where]) == 2
    assert "1 to 200 characters" in capsys.readouterr().err


def test_a_token_command_without_a_database_or_a_token_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--data-dir", str(tmp_path)]
    assert run_command(["token", "list", *where]) == 2
    assert "there is no database at" in capsys.readouterr().err
    Database(f"sqlite:///{tmp_path}/vramscope.db").close()
    assert run_command(["token", "list", *where]) == 0
    assert capsys.readouterr().out == "No tokens.\n"
    for words, told in (
        (["create"], "1 to 200 printable"),
        (["create", " "], "printable"),
        (["create", "\udcff"], "printable"),
        (["revoke", "x"], "there is no token 'x'"),
    ):
        assert run_command(["token", *words, *where]) == 2
        assert told in capsys.readouterr().err
    for _ in range(2):
        run_command(["token", "create", "twice", *where])
    assert run_command(["token", "revoke", "twice", *where]) == 2
    assert "2 tokens are named 'twice'" in capsys.readouterr().err


def test_tokens_are_listed_and_revoked(guarded: RunningServer) -> None:
    first = bearer(guarded.services.first_token)
    made = {
        role: guarded.http.post("/tokens", json={"name": role, "role": role}, headers=first).json()
        for role in ("write", "read")
    }
    listed = guarded.http.get("/tokens", headers=first).json()
    assert [token["name"] for token in listed] == ["first", "write", "read"]
    assert all("token" not in token and "sha256" not in token for token in listed)
    assert guarded.http.delete(f"/tokens/{made['read']['id']}", headers=first).status_code == 204
    assert guarded.http.get("/runs", headers=bearer(made["read"]["token"])).status_code == 401, "revoked at once"
    assert guarded.http.delete("/tokens/nonsense", headers=first).status_code == 404
    for wrong in (
        {"name": "", "role": "read"},
        {"name": "x", "role": ""},
        {"name": "x", "role": "root"},
        {"name": "x"},
    ):
        assert guarded.http.post("/tokens", json=wrong, headers=first).status_code == 422


def test_the_page_signs_in_with_a_cookie_that_scripts_cannot_read(guarded: RunningServer) -> None:
    with httpx.Client(base_url=f"{guarded.url}/api/v1", trust_env=False) as browser:
        assert browser.post("/session", json={"token": "vrs_wrong"}).status_code == 401
        signed_in = browser.post("/session", json={"token": guarded.services.first_token})
        assert signed_in.json() == {
            "required": True,
            "authenticated": True,
            "role": "admin",
            "projects": None,
            "name": "first",
            "by": "token",
            "oidc": False,
        }
        cookie = signed_in.headers["set-cookie"]
        assert "HttpOnly" in cookie and "SameSite=strict" in cookie
        assert "Secure" not in cookie, "this way is not encrypted"
        assert browser.get("/runs").status_code == 200
        assert browser.get("/session").json()["authenticated"] is True
        stolen = browser.post("/tokens", json={"name": "x", "role": "read"}, headers={"Origin": "https://evil.example"})
        assert stolen.status_code == 403
        browser.delete("/session")
        assert browser.get("/runs").status_code == 401
        secure = browser.post(
            "/session", json={"token": guarded.services.first_token}, headers={"X-Forwarded-Proto": "https"}
        )
        assert "Secure" in secure.headers["set-cookie"]


def test_guessing_tokens_is_slowed_down(guarded: RunningServer) -> None:
    answers = [guarded.http.get("/runs", headers=bearer(f"guess{i}")).status_code for i in range(MAX_FAILURES + 2)]
    assert answers[0] == 401
    assert answers[-1] == 429
    slowed = guarded.http.get("/runs", headers=bearer("guess"))
    assert slowed.headers["retry-after"] == "60"


def test_who_guesses_keeps_nobody_out_who_comes_from_the_same_address(guarded: RunningServer) -> None:
    """As all do behind a proxy: one training with an old token, and no page would be shown."""
    for i in range(MAX_FAILURES + 2):
        guarded.http.get("/runs", headers=bearer(f"old{i}"))
    assert guarded.http.get("/runs", headers=bearer("old")).status_code == 429
    right = guarded.services.first_token
    assert right is not None
    assert guarded.http.get("/runs", headers=bearer(right)).status_code == 200
    assert guarded.http.post("/session", json={"token": right}).status_code == 200


def test_every_answer_carries_the_security_headers(server: RunningServer) -> None:
    for path in ("/", "/api/v1/runs", "/api/v1/nonsense", "/metrics", "/assets/nonsense.js", "/api/v1/docs"):
        headers = server.http.get(f"{server.url}{path}").headers
        assert headers["x-content-type-options"] == "nosniff", path
        assert headers["referrer-policy"] == "same-origin"
        policy = headers["content-security-policy"]
        assert "default-src 'self'" in policy and "frame-ancestors 'none'" in policy
        assert "'unsafe-inline'" not in policy.split("script-src")[1].split(";")[0]
        assert "unsafe-eval" not in policy
        assert "server" not in headers
