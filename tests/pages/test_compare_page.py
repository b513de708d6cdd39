"""Runs side by side."""

# ruff: noqa: RUF001  the signs are those of the pages

from __future__ import annotations

import re
from typing import Any

import sender
from conftest import drawn, eventually

RUNS = f"{sender.BASELINE.run},{sender.CHECKPOINTING.run},{sender.BF16.run}"


def test_table_charts_and_differences(page: Any, server: Any) -> None:
    page.goto(f"{server.url}/compare?runs={RUNS}")
    table = page.locator(".compare-table")
    table.wait_for()
    rows = table.locator("tbody tr")
    assert rows.count() == 3
    assert "baseline" in rows.nth(0).inner_text()
    assert re.search(r"−\d\d\.\d %", rows.nth(1).inner_text())
    assert re.search(r"×1\.\d\d", rows.nth(1).inner_text()), "checkpointing takes longer"
    assert re.search(r"×0\.\d\d", rows.nth(2).inner_text())
    overlay = drawn(page, "peaks_over_steps")
    widths = overlay.evaluate("(chart) => chart.plot.data.map((trace) => trace.line.width)")
    assert widths[0] > max(widths[1:])
    drawn(page, "peaks_side_by_side")
    drawn(page, "memory_against_time")
    differences = page.locator(".differences")
    text = differences.inner_text()
    assert "gradient_checkpointing" in text
    assert "model.layers" not in text, "the same in all"


def test_all_settings_are_there_and_can_be_searched(page: Any, server: Any) -> None:
    page.goto(f"{server.url}/compare?runs={RUNS}")
    table = page.locator(".differences")
    table.wait_for()
    assert "model.layers" not in table.inner_text()
    page.get_by_role("button", name="All settings").click()
    eventually(lambda: "model.layers" in table.inner_text())
    for group, part in (
        ("Configuration", "lr"),
        ("Allocator", "expandable_segments:True"),
        ("Environment", "550.54.15"),
    ):
        assert group in table.inner_text() and part in table.inner_text()
    search = page.get_by_label("Find a setting")
    search.press_sequentially("expandable")
    eventually(lambda: table.locator("tbody tr:not(.group)").count() == 1)
    assert search.evaluate("(field) => field === document.activeElement"), "typing goes on"
    assert "find=expandable" in page.url and "diff=all" in page.url
    page.reload()
    eventually(lambda: table.locator("tbody tr:not(.group)").count() == 1)
    assert page.get_by_label("Find a setting").input_value() == "expandable"
    page.get_by_label("Find a setting").fill("no such words")
    page.get_by_text("No setting holds these words.").wait_for()


def test_another_baseline_is_in_the_url_and_turns_the_table(page: Any, server: Any) -> None:
    page.goto(f"{server.url}/compare?runs={RUNS}")
    page.locator(".picked").nth(2).get_by_role("button", name="set baseline").click()
    eventually(lambda: f"base={sender.BF16.run}" in page.url)
    eventually(lambda: "bf16" in page.locator(".compare-table tbody tr").first.inner_text())
    assert re.search(r"\+\d\d\.\d %", page.locator(".compare-table").inner_text())


def test_runs_are_added_and_taken_out(page: Any, server: Any) -> None:
    page.goto(f"{server.url}/compare")
    page.get_by_text("No runs chosen").wait_for()
    search = page.get_by_label("Add a run")
    search.fill("checkpointing")
    eventually(lambda: page.locator("#runs-to-add option").count() == 1)
    search.press("Enter")
    page.locator(".compare-table").wait_for()
    assert sender.CHECKPOINTING.run in page.url
    page.get_by_role("button", name="take bf16-checkpointing out").click()
    page.get_by_text("No runs chosen").wait_for()


def test_copies_as_markdown_and_csv(page: Any, server: Any) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(f"{server.url}/compare?runs={RUNS}")
    page.get_by_role("button", name="Copy Markdown").click()
    page.get_by_role("button", name="Copied").wait_for()
    text = page.evaluate("navigator.clipboard.readText()")
    assert text.startswith("| run | techniques | peak allocated |")
    assert len(text.splitlines()) == 5
    with page.expect_download() as downloading:
        page.locator(".card").get_by_role("button", name="CSV", exact=True).click()
    lines = downloading.value.path().read_text().splitlines()
    assert lines[0].startswith("run_id,name,techniques,peak_allocated_bytes")
    assert len(lines) == 4


def test_warns_of_what_is_not_comparable(page: Any, server: Any) -> None:
    page.goto(f"{server.url}/compare?runs={sender.BASELINE.run},{sender.ON_CPU.run}")
    page.get_by_text("Not quite comparable").wait_for()
    assert "unknown" in page.locator(".compare-table").inner_text()


def test_an_unknown_run_is_named(page: Any, server: Any) -> None:
    page.context.watcher.expected.append("404")
    page.goto(f"{server.url}/compare?runs=there-is-no-such-run")
    banner = page.locator(".banner.bad")
    banner.wait_for()
    assert "there-is-no-such-run" in banner.inner_text()
