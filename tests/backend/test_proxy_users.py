"""Users whom an authenticating proxy names: only its own word counts, whatever others send."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from pydantic import ValidationError
from running import RunningServer
from wire_maker import Agent

from vramscope.protocol.messages import CONTENT_TYPE
from vramscope_server.settings import Settings

HEADER = "X-Forwarded-Email"
ANA = {HEADER: "ana@example.org"}


@pytest.fixture
def start(start_server: Callable[..., RunningServer]) -> Callable[..., RunningServer]:
    """A server behind a proxy at 127.0.0.1, or with other settings."""

    def started(**settings: Any) -> RunningServer:
        return start_server(**{"proxy_user_header": HEADER, "trusted_proxies": "127.0.0.1"} | settings)

    return started


def status(server: RunningServer, headers: dict[str, str], path: str = "/runs", method: str = "GET") -> int:
    return server.http.request(method, path, headers=headers).status_code


def test_a_user_whom_the_proxy_names_has_the_role_of_the_settings(start: Callable[..., RunningServer]) -> None:
    server = start(proxy_admins="boss@example.org, root")
    assert status(server, {}) == 401, "without the header a token is needed"
    assert status(server, ANA) == 200
    for path, method in (("/runs/x", "PATCH"), ("/tokens", "GET"), ("/audit", "GET"), ("/runs/x", "DELETE")):
        refused = server.http.request(method, path, headers=ANA)
        assert refused.status_code == 403
        assert refused.json()["detail"].startswith("The user 'ana@example.org' has the role read;")
    assert server.http.get("/session", headers=ANA).json() == {
        "required": True,
        "authenticated": True,
        "role": "read",
        "projects": None,
        "name": "ana@example.org",
        "by": "proxy",
        "oidc": False,
    }
    boss = {HEADER: "boss@example.org"}
    assert status(server, boss, "/tokens") == 200
    assert status(server, {HEADER: "BOSS@example.org"}, "/tokens") == 403, "names are compared as they are"
    assert status(start(proxy_role="write"), ANA, "/runs/unknown", "PATCH") == 422


def test_the_header_of_an_untrusted_address_is_ignored(start: Callable[..., RunningServer]) -> None:
    """Also with an X-Forwarded-For that names the proxy, which is believed from this machine."""
    server = start(trusted_proxies="10.1.2.3, 192.168.0.0/16", proxy_admins="ana@example.org")
    for forwarded in ({}, {"X-Forwarded-For": "10.1.2.3"}, {"X-Forwarded-For": "192.168.7.7, 127.0.0.1"}):
        assert status(server, ANA | forwarded) == 401
        assert status(server, ANA | forwarded, "/tokens") == 401
        session = server.http.get("/session", headers=ANA | forwarded).json()
        assert (session["authenticated"], session["role"], session["name"]) == (False, None, None)
    assert server.post(Agent().body(), **ANA).status_code == 401
    assert httpx.get(f"{server.url}/metrics", headers=ANA, trust_env=False).status_code == 401


def test_another_address_of_this_machine_is_no_proxy(start: Callable[..., RunningServer]) -> None:
    server = start()
    with httpx.Client(transport=httpx.HTTPTransport(local_address="127.0.0.2"), trust_env=False) as other:
        assert other.get(f"{server.url}/api/v1/runs", headers=ANA).status_code == 401
    with httpx.Client(transport=httpx.HTTPTransport(local_address="127.0.0.1"), trust_env=False) as proxy:
        assert proxy.get(f"{server.url}/api/v1/runs", headers=ANA).status_code == 200


def test_without_the_setting_the_header_means_nothing(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(require_tokens=True, trusted_proxies="127.0.0.1", proxy_admins="ana@example.org")
    assert status(server, ANA) == 401


@pytest.mark.parametrize("name", ["", "a" * 201, "ana\tboss", "{http.reverse_proxy.header.X-Auth-Request-Email}"])
def test_what_is_not_one_name_signs_nobody_in(start: Callable[..., RunningServer], name: str) -> None:
    server = start(proxy_admins="ana")
    assert status(server, {HEADER: name}) == (403 if name else 401)
    two = [(HEADER, "boss"), (HEADER, "ana")]
    assert server.http.get("/runs", headers=two).status_code == 403, "which of them the proxy sent is unknown"


def test_a_name_beyond_ascii_is_read_as_utf_8(start: Callable[..., RunningServer]) -> None:
    server = start(proxy_admins="zoë")
    session = server.http.get("/session", headers={HEADER.encode(): "zoë".encode()}).json()
    assert (session["name"], session["role"]) == ("zoë", "admin")


def test_a_training_behind_the_proxy_sends_its_token(start: Callable[..., RunningServer]) -> None:
    """A token in Authorization counts more than the header; a wrong one is refused."""
    server = start(proxy_admins="ana@example.org")
    plain = server.services.tokens.make("cluster", "write")[1]
    bearer = {"Authorization": f"Bearer {plain}"}
    assert server.post(Agent().body(), **bearer).status_code == 200
    assert server.http.get("/session", headers=ANA | bearer).json()["by"] == "token"
    assert status(server, ANA | bearer, "/tokens") == 403, "the rights of the token, not of the user"
    assert status(server, ANA | {"Authorization": "Bearer vrs_wrong"}) == 401
    assert status(server, ANA | {"Cookie": "vramscope_token=vrs_old"}) == 200, "an old cookie does not lock out"


def test_a_page_of_another_site_cannot_use_the_sign_in_of_the_proxy(start: Callable[..., RunningServer]) -> None:
    """The proxy's cookie is sent along by the browser, whichever page asks."""
    server = start(proxy_admins="ana@example.org")
    evil = ANA | {"Origin": "https://evil.example"}
    assert server.http.post("/tokens", json={"name": "x", "role": "admin"}, headers=evil).status_code == 403
    own = ANA | {"Origin": server.url}
    assert server.http.post("/tokens", json={"name": "x", "role": "admin"}, headers=own).status_code == 201


def test_the_audit_log_names_the_user_and_the_address_behind_the_proxy(start: Callable[..., RunningServer]) -> None:
    server = start(proxy_admins="ana@example.org")
    headers = ANA | {"X-Forwarded-For": "203.0.113.9"}
    server.http.post("/tokens", json={"name": "x", "role": "read"}, headers=headers)
    entry = server.http.get("/audit", headers=headers).json()["entries"][0]
    assert (entry["actor"], entry["token"], entry["address"]) == ("ana@example.org", None, "203.0.113.9")


def test_a_session_of_a_user_is_ended_by_an_admin_or_a_user(start: Callable[..., RunningServer]) -> None:
    """Users begin sessions without a token: no token has more right to end them than another."""
    server = start(proxy_role="write")
    agent = Agent()
    headers = ANA | {"Content-Type": CONTENT_TYPE}
    assert server.http.post("/batches", content=agent.body(), headers=headers).status_code == 200
    ended = server.http.post("/batches", content=agent.body(agent.ended()), headers=headers)
    assert ended.status_code == 200
    assert server.http.get(f"/runs/{agent.run}", headers=ANA).json()["state"] == "finished"


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"proxy_user_header": HEADER}, "trusted_proxies"),
        ({"proxy_user_header": HEADER, "trusted_proxies": " , "}, "trusted_proxies"),
        ({"proxy_user_header": HEADER, "trusted_proxies": "proxy.lan"}, "trusted_proxies"),
        ({"proxy_user_header": HEADER, "trusted_proxies": "10.0.0.1/8"}, "trusted_proxies"),
        ({"proxy_user_header": "X Forwarded", "trusted_proxies": "10.0.0.1"}, "proxy_user_header"),
        (
            {"proxy_user_header": HEADER, "trusted_proxies": "10.0.0.1", "require_tokens": False},
            "proxy_user_header",
        ),
        ({"proxy_role": "admin"}, "proxy_role"),
    ],
)
def test_unsafe_settings_are_refused_by_name(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Settings(**settings)
    assert [fault["loc"] for fault in refused.value.errors()] == [(field,)]


def test_a_proxy_that_names_users_requires_tokens_of_all_others() -> None:
    behind = Settings(proxy_user_header=HEADER, trusted_proxies="127.0.0.1, fd00::/8")
    assert behind.tokens_required
    assert behind.trusted_proxies == ["127.0.0.1/32", "fd00::/8"]
    assert not Settings().tokens_required


def test_groups_that_the_proxy_names_decide_about_role_and_projects(start: Callable[..., RunningServer]) -> None:
    server = start(
        groups="admins=admin, /nlp=write:nlp+old, staff=read", proxy_groups_header="X-Groups", proxy_admins="boss"
    )
    for groups, expected in {
        "staff,/nlp": ("write", ["nlp", "old"]),
        "staff": ("read", None),
        "staff, admins": ("admin", None),
    }.items():
        session = server.http.get("/session", headers=ANA | {"X-Groups": groups}).json()
        assert (session["role"], session["projects"], session["by"]) == (*expected, "proxy")
    for headers in (ANA, ANA | {"X-Groups": "others"}):
        refused = server.http.get("/runs", headers=headers)
        assert refused.status_code == 403 and "has no group" in refused.json()["detail"]
    assert status(server, {HEADER: "boss"}, "/tokens") == 200, "named admins need no group"
    bound = ANA | {"X-Groups": "/nlp", "Content-Type": CONTENT_TYPE}
    for project, code in (("nlp", 200), ("vision", 403)):
        agent = Agent(project=project)
        assert server.http.post("/batches", content=agent.body(agent.samples(2)), headers=bound).status_code == code
    assert status(server, {"X-Groups": "admins"}) == 401, "groups alone name nobody"
    other = start(groups="admins=admin", proxy_groups_header="X-Groups", trusted_proxies="10.1.2.3")
    assert status(other, ANA | {"X-Groups": "admins"}) == 401
