"""Snapshots: a file is dropped, converted before one's eyes, and explored; what is no snapshot says so."""

from __future__ import annotations

import gzip
import json
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from browsing import drawn, query
from browsing import eventually as waited
from legibility import assert_legible
from test_fragmentation_page import COMPILED_MS

sys.path.append(str(Path(__file__).parents[1] / "backend"))

from snapshot_maker import MARKUP, snapshot_of

pytestmark = pytest.mark.timeout(900)  # the first conversion on a machine compiles what reads: 20 s of a core


def eventually(check: Callable[[], Any]) -> Any:
    return waited(check, seconds=600)


def state_of(page: Any, name: str) -> str:
    row = page.locator("tr[data-snapshot]", has_text=name)
    return str(row.get_attribute("data-state")) if row.count() else ""


def test_a_file_is_dropped_and_explored(page: Any, own_server: Callable[..., Any], tmp_path: Path) -> None:
    """From the empty page to an event of the file; text in it stays text."""
    server = own_server()
    good, bad = tmp_path / f"{MARKUP.replace('/', '')}.gz", tmp_path / "profile.json"
    good.write_bytes(gzip.compress(pickle.dumps(snapshot_of(60, devices=2))))
    bad.write_text(json.dumps({"traceEvents": []}))
    page.goto(f"{server.url}/snapshots")
    page.get_by_text("No snapshots yet").wait_for()
    page.set_input_files("input[type=file]", [good, bad])
    eventually(lambda: state_of(page, "evil") == "ready" and state_of(page, "profile.json") == "failed")
    assert "a Chrome trace" in page.locator("tr", has_text="profile.json").inner_text()
    assert page.locator("main b").count() == 0
    assert_legible(page)
    page.set_input_files("input[type=file]", good)
    page.get_by_text("is here already").wait_for()

    page.locator("tr[data-state=ready] a").click()
    page.locator("[data-composition], .timeline .plot").first.wait_for(timeout=COMPILED_MS)
    drawn(page, "timeline")
    assert "180 events" in page.locator(".snapshot-facts").inner_text().replace("\u202f", "")
    page.get_by_label("Device").select_option("1")
    eventually(lambda: query(page).get("device") == "1")

    held: list[Any] = []
    page.route("**/strip*", lambda route: held.append(route))
    page.route("**/api/v1/server", lambda route: route.fulfill(json={"compiling": True}))
    page.get_by_role("link", name="Segments and what-if").click()
    page.get_by_text("compiles what reads recordings").wait_for()
    page.unroute("**/strip*")
    for route in held:
        route.continue_()
    drawn(page, "strip")
    eventually(lambda: page.locator(".compiling").count() == 0)
    assert "120 MiB" in page.locator("[data-kpi=reserved]").inner_text()

    page.get_by_role("link", name="Events").click()
    rows = page.locator(".events-table tbody tr")
    eventually(lambda: rows.count() == 180)
    page.get_by_label("Action").select_option("alloc")
    eventually(lambda: rows.count() == 60)
    page.locator("input[name=least]").fill("3 parsecs")
    page.get_by_text("A size is a number with a unit").wait_for()
    page.locator("input[name=least]").fill("2 MiB")
    eventually(lambda: "no event is like that" in page.locator(".events").inner_text())
    page.locator("input[name=least]").fill("")
    eventually(lambda: rows.count() == 60)
    # (a name in angle brackets is no file of one's own: the line that stands for the stack is the other's)
    assert MARKUP.rpartition("/")[2] in rows.first.locator(".stack").text_content()
    assert_legible(page)
    rows.first.get_by_role("button").click()
    eventually(lambda: query(page).get("allocation") == "0" and "tab" not in query(page))

    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Delete").click()
    page.wait_for_url("**/snapshots")
    eventually(lambda: page.locator("tr[data-snapshot]").count() == 1)
