"""Sign-in at an OpenID provider in a real browser: the cookies come back with the redirects as browsers send them."""

from __future__ import annotations

from typing import Any

import oidc_provider_mock
from legibility import assert_legible
from waiting import eventually


def test_a_person_signs_in_at_the_provider_and_out_again(page: Any, own_server: Any) -> None:
    ana = oidc_provider_mock.User(sub="ana", claims={"email": "ana@example.org", "groups": ["staff"]})
    with oidc_provider_mock.run_server_in_thread(user_claims=[ana]) as provider:
        # The provider is another site: a cookie with SameSite=Strict does not come along from there.
        issuer = f"http://localhost:{provider.server_port}"
        page.context.watcher.expected += [f"request to elsewhere: {issuer}", "401", "favicon", "cdn.jsdelivr.net"]
        server = own_server(
            oidc_issuer=issuer,
            oidc_client_id="vramscope",
            oidc_client_secret="a secret of it",
            groups="staff=write:nlp",
        )
        page.goto(f"{server.url}/runs")
        page.get_by_role("link", name="Sign in at your provider").click()
        page.wait_for_url(f"{issuer}/**")
        page.get_by_role("button", name="ana").first.click()
        page.wait_for_url(f"{server.url}/**")
        session = eventually(
            lambda: (
                (s := page.evaluate("fetch('/api/v1/session').then((answer) => answer.json())"))["authenticated"] and s
            )
        )
        assert (session["name"], session["role"], session["projects"], session["by"]) == (
            "ana@example.org", "write", ["nlp"], "oidc",
        )  # fmt: skip
        eventually(lambda: page.locator("input[name=token]").count() == 0, what="the pages instead of the sign-in")
        assert page.evaluate("document.cookie") == "", "scripts cannot read it"
        page.goto(f"{server.url}/settings")
        signed_in = "You are signed in as ana@example.org by the OpenID provider and have the role write"
        page.get_by_text(signed_in).wait_for()
        page.get_by_role("button", name="Sign out").click()
        page.locator("input[name=token]").wait_for()


def test_a_refusal_of_the_sign_in_is_a_page_with_its_reason(page: Any, own_server: Any) -> None:
    eve = oidc_provider_mock.User(sub="eve", claims={"email": "eve@example.org", "groups": ["guests"]})
    with oidc_provider_mock.run_server_in_thread(user_claims=[eve]) as provider:
        issuer = f"http://localhost:{provider.server_port}"
        page.context.watcher.expected += [f"request to elsewhere: {issuer}", "401", "favicon", "cdn.jsdelivr.net"]
        server = own_server(
            oidc_issuer=issuer,
            oidc_client_id="vramscope",
            oidc_client_secret="a secret of it",
            groups="staff=write:nlp",
        )
        page.goto(f"{server.url}/runs")
        page.get_by_role("link", name="Sign in at your provider").wait_for()
        assert page.get_by_role("navigation", name="Pages").is_hidden(), "no page opens without a sign-in"
        page.get_by_role("link", name="Sign in at your provider").click()
        page.wait_for_url(f"{issuer}/**")
        page.get_by_role("button", name="eve").first.click()
        page.wait_for_url(f"{server.url}/sign-in")
        reason = "eve@example.org has no group that VRAMSCOPE_GROUPS gives access to."
        page.get_by_role("alert").filter(has_text=reason).wait_for()
        page.get_by_role("link", name="Try again at your provider").wait_for()
        assert_legible(page)
        page.reload()
        page.get_by_role("link", name="Sign in at your provider").wait_for()
        assert page.get_by_role("alert").count() == 0, "a refusal is shown once"


def test_without_a_provider_the_page_asks_for_a_token_alone(page: Any, own_server: Any) -> None:
    page.context.watcher.expected.append("401")
    server = own_server(require_tokens=True)
    page.goto(f"{server.url}/runs")
    page.locator("input[name=token]").wait_for()
    page.wait_for_timeout(300)
    assert page.get_by_role("link", name="provider").count() == 0
    assert page.locator(".sign-in-elsewhere").is_hidden()


def test_back_from_the_sign_in_page_shows_the_page_before(page: Any, server: Any) -> None:
    """A server without tokens."""
    page.goto(f"{server.url}/settings")
    page.get_by_role("heading", name="Settings").first.wait_for()
    page.evaluate("import('vramscope/store.js').then((module) => module.go('/sign-in'))")
    page.locator("[data-signed-out]").wait_for()
    page.get_by_text("This server requires no token").wait_for()
    page.go_back()
    page.get_by_role("heading", name="Settings").first.wait_for()
    assert page.locator("[data-signed-out]").count() == 0
