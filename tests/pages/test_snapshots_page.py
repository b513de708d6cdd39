"""Snapshots: a file is dropped, converted before one's eyes, and explored; what is no snapshot says so."""

from __future__ import annotations

import gzip
import json
import pickle
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from browsing import drawn, query
from legibility import assert_legible
from test_fragmentation_page import COMPILED_MS, settings_shown
from waiting import CONVERSION_SECONDS, eventually

sys.path.append(str(Path(__file__).parents[1] / "backend"))

from snapshot_maker import IN_FORCE, MARKUP, SETTINGS, Held, HeldAtStart, file_of_stacks, snapshot_of, two_sizes

pytestmark = pytest.mark.timeout(900)  # the first conversion on a machine compiles what reads: 20 s of a core


def state_of(page: Any, name: str) -> str:
    row = page.locator("tr[data-snapshot]", has_text=name)
    return str(row.get_attribute("data-state")) if row.count() else ""


def test_how_far_it_is_stands_on_the_page_and_it_can_be_deleted_meanwhile(
    page: Any, own_server: Callable[..., Any], tmp_path: Path
) -> None:
    """The process that converts is held before it reads, and amid it; a click takes away what is converted."""
    server = own_server()
    file = tmp_path / "large.pickle"
    file.write_bytes(file_of_stacks(300_000))
    page.goto(f"{server.url}/snapshots")
    snapshots = server.server.config.app.state.services.snapshots
    first = HeldAtStart(snapshots)
    page.set_input_files("input[type=file]", file)
    eventually(first.is_held)
    page.wait_for_url("**/snapshots/*")  # a file alone opens by itself
    ident = page.url.rpartition("/")[2]
    page.get_by_role("heading", name="It is being read").wait_for()
    page.goto(f"{server.url}/snapshots")
    row = page.locator("tr[data-snapshot]")
    page.get_by_text("preparing").wait_for()
    assert row.locator("progress").get_attribute("value") is None, "nobody knows how long that takes"
    first.go_on()
    held = Held(snapshots, ident)
    page.get_by_text(re.compile(r"reading, [1-9]\d?\s*%")).wait_for()
    done, total = (float(row.locator("progress").get_attribute(name)) for name in ("value", "max"))
    assert 0 < done < total == file.stat().st_size
    assert_legible(page)
    page.goto(f"{server.url}/snapshots/{ident}")
    page.get_by_role("heading", name="It is being read").wait_for()
    page.get_by_text(re.compile(r"reading, [1-9]\d?\s*%")).wait_for()
    page.on("dialog", lambda dialog: dialog.accept())
    address = f"**/api/v1/snapshots/{ident}"
    refusal = {"title": "Busy", "detail": "Retry in a second.", "status": 503}
    page.context.watcher.expected.append("503")
    page.route(
        address, lambda it: it.fulfill(status=503, json=refusal) if it.request.method == "DELETE" else it.continue_()
    )
    page.get_by_role("button", name="Delete").click()
    page.get_by_text("Retry in a second.").wait_for()
    with page.expect_response(address):  # it asks again how far the server is, and the problem stays
        pass
    assert page.get_by_text("Retry in a second.").is_visible()
    page.unroute(address)
    page.get_by_role("button", name="Delete").click()
    page.wait_for_url("**/snapshots")
    page.get_by_text("No snapshots yet").wait_for()
    eventually(lambda: held.process.returncode == -signal.SIGKILL)
    eventually(lambda: not any(path.is_file() for path in snapshots.folder.rglob("*")))


def test_a_coarse_picture_comes_before_the_conversion_ends(
    page: Any, own_server: Callable[..., Any], tmp_path: Path
) -> None:
    """The process is held when it has read the file; afterwards the page of the snapshot replaces the picture."""
    server = own_server()
    file = tmp_path / "large.pickle"
    file.write_bytes(file_of_stacks(300_000))
    page.goto(f"{server.url}/snapshots")
    page.set_input_files("input[type=file]", file)
    page.wait_for_url("**/snapshots/*")
    held = Held(server.server.config.app.state.services.snapshots, page.url.rpartition("/")[2], has_read=True)
    try:
        picture = page.locator("[data-coarse-curve='0']")
        picture.wait_for()
        label = str(picture.get_by_role("img").get_attribute("aria-label"))
        assert label == "Reserved: at most 146 MiB. Requested: at most 146 MiB. 300,000 events."
        assert "Reserved: at most 146 MiB" in picture.inner_text()
        assert_legible(page)
    finally:
        held.go_on()
    drawn(page, "timeline")
    assert picture.count() == 0


def test_plotly_is_there_before_a_file_is_chosen(page: Any, own_server: Callable[..., Any]) -> None:
    """It takes a second of the page's time, which the first picture of a snapshot would wait for."""
    page.goto(f"{own_server().url}/snapshots")
    page.wait_for_function("() => window.Plotly !== undefined")


def test_what_if_settings_in_force_and_exports_of_an_uploaded_file(
    page: Any, own_server: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweep begins by itself, the reader's own settings are tried; Parquet is offered where it can be written."""
    server = own_server()
    file = tmp_path / "two sizes.pickle"
    file.write_bytes(pickle.dumps({**two_sizes(), "allocator_settings": {**SETTINGS, "PYTORCH_CUDA_ALLOC_CONF": ""}}))
    page.goto(f"{server.url}/snapshots")
    page.set_input_files("input[type=file]", file)
    page.locator(".settings-in-force summary").click()
    result = page.locator(".settings-in-force").inner_text()
    assert "5 settings reported by PyTorch" in result
    for name, value in IN_FORCE.items():  # numbers and truths as JavaScript writes them
        shown = json.dumps(value).strip('"').removesuffix(".0")
        assert re.search(rf"{name}\s+{re.escape(shown)}(\s|$)", result), name
    page.get_by_text("Export the window").click()
    assert page.get_by_role("link", name="Parquet").get_attribute("href").endswith("format=parquet")
    page.get_by_text("Export the window").click()
    page.locator(".advice-card [data-unknown]").wait_for(timeout=COMPILED_MS)
    verdict = page.locator("[data-verdict]")
    assert verdict.inner_text().split("\n") == [
        "The peak is 30.0 MiB, at event 5 · 5.00 µs after the first event.",
        "Allocated by train.py:5 train (100 %).",
    ]
    assert verdict.bounding_box()["y"] < page.locator(".timeline").bounding_box()["y"], "the answer first"
    flame, advice = (
        page.locator(".anatomy-view .charts").last.bounding_box(),
        page.locator(".advice-card").bounding_box(),
    )
    assert flame["y"] < advice["y"], "what is known before what is not"
    timeline = drawn(page, "timeline")
    timeline.get_by_role("button", name="Table").click()
    rows = timeline.locator(".chart-table tbody tr")
    assert rows.last.locator("td").all_inner_texts()[0] == "5", "its last event lasts until the end, which is no event"
    page.get_by_role("link", name="Segments and what-if").click()
    table = settings_shown(page)
    table.wait_for(timeout=COMPILED_MS)
    assert "50.0 MiB" in table.locator("tr.recorded .peak").inner_text()
    assert page.locator("[data-residual=exact]").count() == 1
    assert "fits" not in table.inner_text(), "the file does not say what its device has"
    shown = page.locator("main").inner_text()
    assert shown.count("does not contain PyTorch's version") == 1, "above the views, and nowhere else"
    assert shown.count("replayed with the rules of 2.15") == 1
    assert page.locator("[data-notes]").count() == 0, "a file without a version is not incomplete"
    page.get_by_label("Your settings").fill("expandable_segments:True,max_split_size_mb:64")
    page.get_by_role("button", name="Try").click()
    mine = table.locator("tr[data-conf='expandable_segments:True,max_split_size_mb:64']")
    mine.wait_for(timeout=COMPILED_MS)
    assert "40.0 MiB" in mine.locator(".peak").inner_text()
    drawn(page, "strip")  # out of sight a chart keeps its width
    assert_legible(page)

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    page.reload()
    page.get_by_text("Export the window").click()
    page.locator(".menu-words", has_text="needs pyarrow on the server").wait_for()
    assert page.get_by_role("link", name="Parquet").count() == 0
    assert page.get_by_role("link", name="CSV").count() == 1


def test_a_file_is_dropped_and_explored(page: Any, own_server: Callable[..., Any], tmp_path: Path) -> None:
    """From the empty page to an event of the file; text in it stays text."""
    server = own_server()
    good, bad = tmp_path / f"{MARKUP.replace('/', '')}.gz", tmp_path / "profile.json"
    good.write_bytes(gzip.compress(pickle.dumps(snapshot_of(60, devices=2))))
    bad.write_text(json.dumps({"traceEvents": []}))
    page.goto(f"{server.url}/snapshots")
    page.get_by_text("No snapshots yet").wait_for()
    page.set_input_files("input[type=file]", [good, bad])
    eventually(
        lambda: state_of(page, "evil") == "ready" and state_of(page, "profile.json") == "failed", CONVERSION_SECONDS
    )
    assert "a Chrome trace" in page.locator("tr", has_text="profile.json").inner_text()
    assert page.locator("main b").count() == 0
    assert_legible(page)
    page.set_input_files("input[type=file]", good)
    page.wait_for_url("**/snapshots/*")  # it is there already, and opens at once
    page.locator(".timeline .plot").first.wait_for(timeout=COMPILED_MS)
    drawn(page, "timeline")
    assert "180 events" in page.locator(".snapshot-facts").inner_text()
    verdict = page.locator("[data-verdict]").inner_text()
    page.goto(page.url + "?by=module&from=10&to=20")
    eventually(
        lambda: page.locator("[data-verdict]").inner_text() == verdict, what="the same answer for a part of the events"
    )
    page.get_by_label("Device").select_option("1")
    eventually(lambda: query(page).get("device") == "1")

    held: list[Any] = []
    page.route("**/strip*", lambda route: held.append(route))
    page.route("**/api/v1/server", lambda route: route.fulfill(json={"compiling": True}))
    page.get_by_role("link", name="Segments and what-if").click()
    page.get_by_text("The server compiles its recording reader").wait_for()
    page.unroute("**/strip*")
    for route in held:
        route.continue_()
    drawn(page, "strip")
    eventually(lambda: page.locator(".compiling").count() == 0, CONVERSION_SECONDS)
    assert "120 MiB" in page.locator("[data-kpi=reserved]").inner_text()

    page.get_by_role("link", name="Events").click()
    rows = page.locator(".events-table tbody tr")
    eventually(lambda: rows.count() == 180)
    page.get_by_label("Action").select_option("alloc")
    eventually(lambda: rows.count() == 60)
    page.locator("input[name=least]").fill("3 parsecs")
    page.get_by_text("a number with a unit").wait_for()
    page.locator("input[name=least]").fill("2 MiB")
    eventually(lambda: "no matching event" in page.locator(".events").inner_text())
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


def test_the_page_of_the_command_shows_its_charts_without_a_server(
    page: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from vramscope_server.__main__ import main

    file, written = tmp_path / "file.pickle", tmp_path / "page.html"
    file.write_bytes(pickle.dumps(snapshot_of(60, devices=2)))
    assert main(["snapshot", str(file), "--html", str(written)]) == 0
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.context.watcher.expected.append("request to elsewhere: file://")
    page.goto(written.as_uri())
    page.locator(".js-plotly-plot").nth(3).wait_for()
    assert page.locator(".js-plotly-plot .main-svg").count() >= 4
    assert [url for url in requests if not url.startswith(("file:", "data:", "blob:"))] == []
