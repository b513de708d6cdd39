"""What a page loads, and when: its own modules first, those of the other pages once it has been drawn."""

from __future__ import annotations

from typing import Any

import pytest
import sender
from waiting import eventually

LOADED = """[...new Set(performance.getEntriesByType("resource").map(({ name }) => new URL(name).pathname))]
  .filter((path) => /^\\/assets\\/(?!app-|plotly-).*\\.js$/.test(path)).sort()"""
PRELOADED = (
    """[...document.querySelectorAll("link[rel=modulepreload]")].map((link) => link.getAttribute("href")).sort()"""
)


@pytest.mark.parametrize(
    ("path", "sign"),
    [
        ("/runs", "tbody tr"),
        (f"/runs/{sender.BASELINE.run}", "vs-chart[data-draws]"),
        (f"/runs/{sender.LEAKY.run}/leaks", "tbody tr"),
        ("/settings", "main h1"),
        ("/no-such-page", "main h1, main h2"),
    ],
)
def test_a_page_loads_what_the_server_lists_for_it_and_no_more(page: Any, server: Any, path: str, sign: str) -> None:
    page.add_init_script("globalThis.requestIdleCallback = () => {}")  # the other pages' modules
    page.goto(server.url + path)
    page.locator(sign).first.wait_for()
    assert page.evaluate(LOADED) == page.evaluate(PRELOADED)


def test_other_pages_are_preloaded_once_the_page_is_drawn(page: Any, server: Any) -> None:
    page.goto(f"{server.url}/settings")
    every = page.evaluate(
        "Object.keys(JSON.parse(document.querySelector('script[type=importmap]').textContent).imports)"
    )
    eventually(
        lambda: len(page.evaluate(LOADED)) == len(every) - 1, 60, "the modules of all pages"
    )  # app.js has started
