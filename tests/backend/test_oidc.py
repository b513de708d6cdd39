"""Sign-in at an OpenID provider: a real one on loopback. Only what it vouches for counts."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx
import oidc_provider_mock
import pytest
from joserfc import jwt
from joserfc.jwk import OctKey
from pydantic import ValidationError
from running import RunningServer
from wire_maker import Agent

from vramscope.protocol.messages import CONTENT_TYPE
from vramscope_server.oidc import FLOW_COOKIE, USER_COOKIE
from vramscope_server.settings import Settings

CLIENT = {"oidc_client_id": "vramscope", "oidc_client_secret": "a secret of the client"}
USERS = [
    oidc_provider_mock.User(sub="1", claims={"email": "ana@example.org", "groups": ["staff", "gpu-admins"]}),
    oidc_provider_mock.User(
        sub="2", claims={"email": "bo@example.org", "groups": ["nlp"], "realm": {"roles": ["lead"]}}
    ),
    oidc_provider_mock.User(sub="3", claims={"email": "eve@example.org"}),
]
GROUPS = "gpu-admins=admin, nlp=write:nlp+nlp-archive, lead=read:vision"
Start = Callable[..., RunningServer]


@pytest.fixture(scope="module")
def issuer() -> Iterator[str]:
    with oidc_provider_mock.run_server_in_thread(user_claims=USERS) as provider:
        yield f"http://localhost:{provider.server_port}"


@pytest.fixture
def start(start_server: Start, issuer: str) -> Start:
    def started(**settings: Any) -> RunningServer:
        return start_server(**{"oidc_issuer": issuer, "groups": GROUPS, **CLIENT} | settings)

    return started


@contextlib.contextmanager
def browser(server: RunningServer) -> Iterator[httpx.Client]:
    """A client that keeps cookies, as a browser does."""
    with httpx.Client(base_url=server.url, trust_env=False, timeout=60) as client:
        yield client


def answer_of_provider(client: httpx.Client, sub: str) -> str:
    """Address to which the provider sends the user back."""
    begun = client.get("/api/v1/session/oidc")
    assert begun.status_code == 303, begun.text
    agreed = httpx.post(begun.headers["location"], data={"sub": sub}, trust_env=False)
    assert agreed.status_code in (302, 303), agreed.text
    return str(agreed.headers["location"])


def signed_in(client: httpx.Client, sub: str) -> httpx.Response:
    return client.get(answer_of_provider(client, sub))


def test_a_user_signs_in_with_the_role_and_the_projects_of_a_group(start: Start) -> None:
    server = start()
    assert server.http.get("/runs").status_code == 401
    assert server.get("/session") | {"oidc": True, "authenticated": False} == server.get("/session")
    with browser(server) as client:
        done = signed_in(client, "2")
        assert (done.status_code, done.headers["location"]) == (303, "/")
        cookie = next(one for one in done.headers.get_list("set-cookie") if one.startswith(USER_COOKIE))
        assert "HttpOnly" in cookie and "SameSite=strict" in cookie
        assert client.get("/api/v1/session").json() == {
            "required": True, "authenticated": True, "role": "write", "projects": ["nlp", "nlp-archive"],
            "name": "bo@example.org", "by": "oidc", "oidc": True,
        }  # fmt: skip
        for project, status in (("nlp", 200), ("vision", 403)):
            agent = Agent(project=project)
            body = agent.body(agent.samples(2))
            sent = client.post("/api/v1/batches", content=body, headers={"Content-Type": CONTENT_TYPE})
            assert sent.status_code == status, sent.text
        assert client.get("/api/v1/runs").json()["total"] == 1
        assert client.get("/api/v1/tokens").status_code == 403
        assert client.request("DELETE", "/api/v1/session").status_code == 204
        assert client.get("/api/v1/runs").status_code == 401


def test_an_admin_makes_tokens_and_the_audit_log_has_the_name(start: Start) -> None:
    server = start()
    with browser(server) as client:
        assert signed_in(client, "1").status_code == 303
        assert client.post("/api/v1/tokens", json={"name": "ci", "role": "read"}).status_code in (200, 201)
        entries = client.get("/api/v1/audit").json()["entries"]
        assert entries[0]["actor"] == "ana@example.org"
        elsewhere = client.post("/api/v1/tokens", json={"name": "x"}, headers={"Origin": "https://evil.example"})
        assert elsewhere.status_code == 403


def test_a_user_without_a_group_that_counts_has_no_access(start: Start) -> None:
    server = start()
    with browser(server) as client:
        refused = signed_in(client, "3")
        assert refused.status_code == 403 and "eve@example.org has no group" in refused.json()["detail"]
        assert USER_COOKIE not in client.cookies
    with browser(start(groups="*=read")) as client:
        assert signed_in(client, "3").status_code == 303
        assert client.get("/api/v1/session").json()["role"] == "read"


def test_a_claim_may_lie_inside_another_and_the_first_group_of_the_setting_counts(start: Start) -> None:
    server = start(oidc_groups_claim="realm.roles", oidc_name_claim="preferred_username")
    with browser(server) as client:
        assert signed_in(client, "2").status_code == 303
        session = client.get("/api/v1/session").json()
        assert (session["role"], session["projects"], session["name"]) == ("read", ["vision"], "2")


def test_a_group_that_loses_its_access_loses_it_at_once(start: Start) -> None:
    server, later = start(), start(groups="gpu-admins=admin")
    with browser(server) as client:
        signed_in(client, "2")
        cookie = {USER_COOKIE: client.cookies[USER_COOKIE]}
    assert httpx.get(f"{server.url}/api/v1/runs", cookies=cookie, trust_env=False).status_code == 200, "any process"
    assert httpx.get(f"{later.url}/api/v1/runs", cookies=cookie, trust_env=False).status_code == 401


def test_an_answer_counts_once_and_only_where_the_sign_in_began(start: Start) -> None:
    server = start()
    with browser(server) as client, browser(server) as other:
        answer = answer_of_provider(client, "1")
        assert other.get(answer).status_code == 403, "no cookie of the sign-in"
        answer_of_provider(other, "2")
        assert other.get(answer).status_code == 403, "the state of another sign-in"
        parts = urlsplit(answer)
        spoiled = {name: values[0] for name, values in parse_qs(parts.query).items()}
        for change in ({"state": "x"}, {"code": "x"}, {"code": "", "error": "access_denied"}):
            assert client.get(f"{parts.path}?{urlencode(spoiled | change)}").status_code == 403, change
        assert client.get(answer).status_code == 303
        assert client.get(answer).status_code == 403


def test_a_code_of_one_sign_in_does_not_serve_another(start: Start) -> None:
    """The ID token names the nonce of its own sign-in, and the provider checks the code verifier."""
    server = start()
    with browser(server) as client, browser(server) as thief:
        code = parse_qs(urlsplit(answer_of_provider(client, "1")).query)["code"][0]
        own = urlsplit(answer_of_provider(thief, "3"))
        state = parse_qs(own.query)["state"][0]
        stolen = thief.get(f"{own.path}?{urlencode({'code': code, 'state': state})}")
        assert stolen.status_code == 403, stolen.text


@pytest.mark.parametrize("kind", ["another key", "expired", "a flow", "no signature", "garbage"])
def test_a_cookie_that_this_server_did_not_make_signs_nobody_in(start: Start, kind: str) -> None:
    server = start()
    key = OctKey.import_key(server.services.oidc._key)
    claims = {"kind": "user", "name": "ana", "group": "gpu-admins", "aud": "vramscope", "exp": int(time.time()) + 600}
    head = {"alg": "HS256"}
    valid = jwt.encode(head, claims, key)
    cookie = {
        "another key": jwt.encode(head, claims, OctKey.import_key("another key of 32 characters 123")),
        "expired": jwt.encode(head, {**claims, "exp": int(time.time()) - 1}, key),
        "a flow": jwt.encode(head, {**claims, "kind": "flow"}, key),
        "no signature": re.sub(r"[^.]*$", "", valid),
        "garbage": "x.y.z",
    }[kind]

    def asked(value: str) -> int:
        return httpx.get(f"{server.url}/api/v1/runs", cookies={USER_COOKIE: value}, trust_env=False).status_code

    assert asked(valid) == 200
    assert asked(cookie) == 401


def test_trainings_send_tokens_beside(start: Start) -> None:
    server = start()
    token = server.services.tokens.make("training", "write")[1]
    agent = Agent()
    assert server.post(agent.body(agent.samples(2)), Authorization=f"Bearer {token}").status_code == 200
    assert server.services.settings.tokens_required


def test_a_provider_that_does_not_answer_is_a_problem_and_no_fault(start: Start) -> None:
    server = start(oidc_issuer="http://127.0.0.1:9")
    refused = server.http.get("/session/oidc")
    assert refused.status_code == 403 and "does not answer" in refused.json()["detail"]


def test_without_a_provider_there_is_no_such_sign_in(start_server: Start) -> None:
    server = start_server()
    assert server.http.get("/session/oidc").status_code == 404
    assert server.http.get("/session/oidc/callback", cookies={FLOW_COOKIE: "x"}).status_code == 404


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"oidc_issuer": "http://id.example.org", "groups": "*=read"}, "https://"),
        ({"oidc_issuer": "https://id.example.org"}, "VRAMSCOPE_GROUPS"),
        ({"oidc_issuer": "https://id.example.org", "groups": "*=read"}, "VRAMSCOPE_OIDC_CLIENT_ID"),
        ({"oidc_issuer": "https://id.example.org", "groups": "*=read", "require_tokens": False}, "REQUIRE_TOKENS=0"),
        ({"groups": "staff=owner"}, "GROUP=ROLE"),
        ({"groups": "staff"}, "GROUP=ROLE"),
        ({"groups": "staff=read:"}, "GROUP=ROLE"),
    ],
)
def test_unsafe_settings_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        Settings(**settings)
