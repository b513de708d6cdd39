"""Downloads of whole tables from the pages."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import httpx
import pyarrow.parquet as pq
import pytest
import sender
from browsing import COMPILED_MS, drawn
from test_fragmentation_page import Sender
from waiting import eventually
from window_maker import training
from wire_maker import steps


def saved(page: Any, item: Any) -> tuple[str, bytes]:
    """Name and content of the file that a click on an item downloads."""
    with page.expect_download() as downloading:
        item.click()
    return downloading.value.suggested_filename, downloading.value.path().read_bytes()


def asked(server: Any, path: str, **parameters: Any) -> Any:
    return httpx.get(f"{server.url}/api/v1{path}", params=parameters, trust_env=False).json()


def rows_of(data: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(data.decode(), newline="")))


def test_the_leaks_of_a_run(page: Any, server: Any) -> None:
    page.goto(f"{server.url}/runs/{sender.LEAKY.run}/leaks")
    menu = page.locator(".leaks .menu")
    menu.locator("summary").click()
    name, data = saved(page, menu.get_by_text("CSV"))
    assert name == f"vramscope-{sender.LEAKY.run}-leaks.csv"
    assert [row["name"] for row in rows_of(data)][:1] == ["history"]
    _, data = saved(page, menu.get_by_text("Parquet"))
    held = asked(server, f"/runs/{sender.LEAKY.run}/leaks")["leaks"][0]["held_bytes"]
    assert pq.read_table(io.BytesIO(data))["held_bytes"].to_pylist()[0] == held


def test_the_steps_of_a_chart(page: Any, server: Any) -> None:
    page.goto(f"{server.url}/runs/{sender.TOO_LARGE.run}")
    chart = drawn(page, "stack")
    chart.locator("summary").click()
    name, data = saved(page, chart.get_by_text("All steps (JSON)"))
    rows = json.loads(data)
    assert name.endswith("-steps.json")
    assert [row["step"] for row in rows] == [
        row["step"] for row in asked(server, f"/runs/{sender.TOO_LARGE.run}/steps", limit=100_000)
    ]
    phases = drawn(page, "phases")
    phases.locator("summary").click()
    assert rows_of(saved(page, phases.get_by_text("All steps (CSV)"))[1])[0]["phase"]


def test_the_compared_runs_and_their_settings(page: Any, server: Any) -> None:
    runs = [sender.BASELINE.run, sender.TOO_LARGE.run]
    page.goto(f"{server.url}/compare?runs={','.join(runs)}")
    page.locator(".compare-exports summary").click()
    tables = page.locator(".compare-tables")
    assert [row["run"] for row in rows_of(saved(page, tables.get_by_text("All values (CSV)"))[1])] == runs
    _, data = saved(page, tables.get_by_text("Settings (Parquet)"))
    assert set(pq.read_table(io.BytesIO(data))["run"].to_pylist()) == set(runs)


def test_the_runs_of_the_list_as_filtered(page: Any, server: Any) -> None:
    page.goto(f"{server.url}/runs")
    page.locator(".runs-view summary").first.click()
    item = page.locator(".runs-downloads").get_by_text("(CSV)")
    everything = rows_of(saved(page, item)[1])
    page.goto(f"{server.url}/runs?state=failed")
    page.locator(".runs-view summary").first.click()
    failed = rows_of(saved(page, item)[1])
    assert {row["state"] for row in failed} == {"failed"} and len(failed) < len(everything)


@pytest.mark.timeout(300)
def test_the_whatif_that_is_shown(page: Any, server: Any) -> None:
    sent = Sender(server.url, "for a download")
    sent.send(steps(start_ns=sent.agent.start_ns))
    sent.record(training())
    sent.send(sent.agent.ended())
    page.goto(f"{sent.page}?card=24")
    menu = page.locator(".whatif > header .menu")
    menu.wait_for(timeout=COMPILED_MS)
    menu.locator("summary").click()
    rows = json.loads(saved(page, menu.get_by_text("JSON"))[1])
    assert len(rows) > 1 and sum(row["recorded"] for row in rows) == 1


def test_without_pyarrow_there_is_no_parquet(page: Any, server: Any) -> None:
    def without(route: Any) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, json={**answer.json(), "parquet": False})

    page.route("**/api/v1/server", without)
    page.goto(f"{server.url}/runs/{sender.LEAKY.run}/leaks")
    menu = page.locator(".leaks .menu")
    menu.locator("summary").click()
    eventually(lambda: "needs pyarrow" in menu.inner_text())
    assert menu.locator("a[href]").count() == 2
