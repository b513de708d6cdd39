"""The view of the list of runs: one-line rows, columns, groups, tags, actions on a selection, and keys."""

from __future__ import annotations

import dataclasses
from typing import Any

import httpx
import pytest
import sender
from axe_playwright_python.sync_playwright import Axe
from browsing import query
from legibility import assert_legible
from test_runs_page import listed, row
from waiting import eventually


@pytest.fixture
def three(own_server: Any) -> Any:
    """A server with three runs of two projects, the newest first: run-2, run-1, run-0."""
    own = own_server()
    for number in range(3):
        training = dataclasses.replace(
            sender.BASELINE,
            name=f"run-{number}",
            run=f"0000000{number}",
            project="odd" if number == 1 else "even",
            tags=("first",) if number == 0 else (),
            activations=(8, 16, 32)[number] * 2**30,
        )
        sender.past(own.url, training, hours=3 - number, steps=5)
    return own


def stored_tags(own: Any, run: str) -> Any:
    return httpx.get(f"{own.url}/api/v1/runs/{run}", trust_env=False).json()["tags"]


def heads(page: Any) -> list[str]:
    return [text.rstrip(" ↑↓") for text in page.locator("thead th:not(.row-tools)").all_inner_texts() if text.strip()]


def test_rows_are_one_line_high(page: Any, server: Any) -> None:
    page.goto(f"{server.url}/runs")
    row(page, sender.TOO_LARGE.run).wait_for()
    heights = page.locator("tbody tr").evaluate_all("(rows) => rows.map((row) => row.getBoundingClientRect().height)")
    assert max(heights) <= 36
    error = row(page, sender.TOO_LARGE.run).locator(".error")
    assert "Tried to allocate 2.50 GiB" in error.get_attribute("title")


def test_sparklines_share_a_scale_unless_each_has_its_own(page: Any, three: Any) -> None:
    """A run with a quarter of the memory has a line at a lower height."""
    top = "(line) => line.getBBox().y"
    page.goto(f"{three.url}/runs")
    small, large = (row(page, run).locator(".spark .line") for run in ("00000000", "00000002"))
    small.wait_for()
    assert small.evaluate(top) > large.evaluate(top) + 5
    page.keyboard.press("v")
    page.get_by_label("Scale of the peaks").select_option("own")
    eventually(lambda: abs(small.evaluate(top) - large.evaluate(top)) < 2)
    assert query(page) == {"scale": "own"}


def test_columns_are_chosen_remembered_and_in_the_url(page: Any, three: Any) -> None:
    page.goto(f"{three.url}/runs")
    row(page, "00000000").wait_for()
    assert "Project" in heads(page) and "Device" not in heads(page)
    page.get_by_text("View", exact=True).click()
    page.get_by_label("column Project").uncheck()
    page.get_by_label("column Device").check()
    eventually(lambda: "Device" in heads(page) and "Project" not in heads(page))
    assert "H100" in row(page, "00000000").locator(".gpu").inner_text()
    shared = query(page)["columns"]
    assert "device" in shared.split(",")
    page.goto(f"{three.url}/runs")
    eventually(lambda: "Device" in heads(page), what="the columns of the last visit")
    assert query(page)["columns"] == shared
    page.goto(f"{three.url}/runs?columns=state,run,steps")
    row(page, "00000000").wait_for()
    assert heads(page) == ["State", "Run", "Steps"], "a link's columns win"
    page.get_by_text("View", exact=True).click()
    page.get_by_role("button", name="Standard columns").click()
    eventually(lambda: "Project" in heads(page))
    assert query(page) == {}
    page.goto(f"{three.url}/runs?columns=state,nothing")
    page.get_by_text("columns=state,nothing is not known").wait_for()


def test_views_are_saved_under_a_name_opened_and_forgotten(page: Any, three: Any) -> None:
    page.goto(f"{three.url}/runs?project=even&sort=peak_allocated&group=state")
    page.locator("tr.group").wait_for()
    page.keyboard.press("v")
    page.keyboard.type("<b>mine</b>")
    page.keyboard.press("Enter")
    saved = page.get_by_role("link", name="<b>mine</b>")
    saved.wait_for()
    page.goto(f"{three.url}/runs")
    row(page, "00000001").wait_for()
    page.keyboard.press("v")
    saved.click()
    eventually(lambda: listed(page)[1:] == ["00000000", "00000002"], what="the group's head and its runs in order")
    assert query(page) == {"project": "even", "sort": "peak_allocated", "group": "state"}
    found = Axe().run(page, options={"resultTypes": ["violations"]})  # an open menu lies over the list on purpose
    assert not found.violations_count, found.generate_report()
    page.get_by_label("forget the view <b>mine</b>").click()
    saved.wait_for(state="detached")
    page.reload()
    row(page, "00000000").wait_for()
    page.keyboard.press("v")
    assert saved.count() == 0


def test_escape_closes_a_menu_before_it_clears_the_selection(page: Any, three: Any) -> None:
    page.goto(f"{three.url}/runs")
    page.get_by_label("select run-0").check()
    actions = page.locator(".compare-bar .menu")
    actions.locator("summary").click()
    page.keyboard.press("Escape")
    eventually(lambda: actions.get_attribute("open") is None)
    assert page.get_by_text("1 run selected").is_visible()
    page.keyboard.press("Escape")
    page.get_by_text("1 run selected").wait_for(state="hidden")


def test_more_columns_than_fit_scroll_inside_the_list(page: Any, three: Any) -> None:
    page.goto(f"{three.url}/runs?columns=state,run,project,tags,techniques,device,peak_allocated,unusable,steps,peaks")
    row(page, "00000000").wait_for()
    page.set_viewport_size({"width": 900, "height": 700})
    frame = page.locator(".runs-frame")
    eventually(lambda: frame.evaluate("(frame) => frame.scrollWidth > frame.clientWidth"))
    assert page.evaluate("document.documentElement.scrollWidth") <= 900


def test_groups_have_a_count_and_the_mean_and_range_of_their_peaks(page: Any, three: Any) -> None:
    page.goto(f"{three.url}/runs?sort=peak_allocated")
    row(page, "00000000").wait_for()
    peaks = [run["peak_allocated_bytes"] / 2**30 for run in runs_of(three) if run["project"] == "even"]
    page.keyboard.press("v")
    page.get_by_label("Group by").select_option("project")
    summary = page.locator("tr.group")
    eventually(lambda: summary.count() == 2)
    text = summary.first.inner_text()
    assert "even" in text and "2 runs" in text
    assert f"mean {sum(peaks) / 2:.1f} GiB, {min(peaks):.1f} GiB to {max(peaks):.1f} GiB" in text
    order = page.locator("tbody tr").evaluate_all("(rows) => rows.map((row) => row.dataset.run ?? 'head')")
    assert order == ["head", "00000000", "00000002", "head", "00000001"]
    page.get_by_role("button", name="even", exact=True).click()
    eventually(lambda: row(page, "00000000").count() == 0)
    assert page.get_by_role("button", name="even", exact=True).get_attribute("aria-expanded") == "false"
    summary.first.get_by_role("checkbox").check()
    page.get_by_text("2 runs selected").wait_for()
    page.set_viewport_size({"width": 300, "height": 800})
    whole = "(heads) => heads.every((head) => head.scrollWidth <= head.clientWidth)"
    assert page.locator(".group-cell .peaks").evaluate_all(whole), "nothing of them is cut off on a phone"
    page.set_viewport_size({"width": 1440, "height": 900})
    for group, names in (("tag", {"first", "no tag"}), ("state", {"finished"})):
        page.goto(f"{three.url}/runs?group={group}")
        summary.first.wait_for()
        assert set(page.locator(".group-button").all_inner_texts()) == names
    assert_legible(page)


def runs_of(own: Any) -> Any:
    return httpx.get(f"{own.url}/api/v1/runs", trust_env=False).json()["runs"]


def test_tags_are_edited_in_place(page: Any, three: Any) -> None:
    page.goto(f"{three.url}/runs")
    row(page, "00000001").locator(".tags-button").click()
    field = row(page, "00000001").locator(".tag-field")
    field.fill("good, <b>bold</b>, good")
    field.press("Enter")
    eventually(lambda: stored_tags(three, "00000001") == ["good", "<b>bold</b>"])
    eventually(lambda: row(page, "00000001").locator(".chip.tag").all_inner_texts() == ["good", "<b>bold</b>"])
    page.keyboard.press("t")
    field.fill("something else")
    field.press("Escape")
    field.wait_for(state="detached")
    assert stored_tags(three, "00000001") == ["good", "<b>bold</b>"]


def test_a_note_is_written_in_the_list_and_on_the_page_of_the_run(page: Any, three: Any) -> None:
    def stored() -> str:
        note: str = httpx.get(f"{three.url}/api/v1/runs/00000001", trust_env=False).json()["note"]
        return note

    page.goto(f"{three.url}/runs")
    row(page, "00000001").locator(".name a").first.focus()
    page.keyboard.press("n")
    field = page.get_by_role("textbox", name="note on run-1")
    field.fill("larger batch\n<b>fits</b>")
    field.press("Control+Enter")
    eventually(lambda: stored() == "larger batch\n<b>fits</b>")
    eventually(lambda: "larger batch <b>fits</b>" in row(page, "00000001").inner_text().replace("\n", " "))
    page.goto(f"{three.url}/runs?columns=state,run,note")
    row(page, "00000001").locator(".note-button").click()
    field.fill("discarded")
    field.press("Escape")
    field.wait_for(state="detached")
    page.goto(f"{three.url}/runs/00000001")
    assert page.locator(".run-note p").inner_text() == "larger batch\n<b>fits</b>"
    page.get_by_role("button", name="Edit note").click()
    field.fill("")
    page.get_by_role("button", name="Save").click()
    page.get_by_role("button", name="Add note").wait_for()
    assert stored() == ""
    page.goto(f"{three.url}/runs/00000001/leaks")
    page.get_by_role("button", name="Add note").wait_for()
    page.keyboard.press("n")
    field.fill("from another tab")
    page.get_by_role("button", name="Save").click()
    eventually(lambda: page.locator(".run-note p").inner_text() == "from another tab")


def test_a_note_that_cannot_be_stored_stays_in_its_field(page: Any, three: Any) -> None:
    page.goto(f"{three.url}/runs/00000001")
    page.get_by_role("button", name="Add note").click()
    page.get_by_role("textbox", name="note on run-1").fill("kept")
    page.context.watcher.expected.append("503")
    refusal = {"title": "Not stored", "detail": "Nothing was changed: the disk is full."}
    page.route("**/api/v1/runs/00000001", lambda route: route.fulfill(status=503, json=refusal))
    page.get_by_role("button", name="Save").click()
    page.get_by_text("Nothing was changed: the disk is full.").wait_for()
    assert page.get_by_role("textbox", name="note on run-1").input_value() == "kept"


def test_a_selection_is_tagged_and_deleted_after_a_confirmation(page: Any, three: Any) -> None:
    page.goto(f"{three.url}/runs")
    page.get_by_label("select run-0").check()
    page.get_by_label("select run-1").check()
    page.keyboard.press("a")
    page.keyboard.type("sweep-9")
    page.keyboard.press("Enter")
    eventually(lambda: stored_tags(three, "00000000") == ["first", "sweep-9"])
    eventually(lambda: stored_tags(three, "00000001") == ["sweep-9"])
    assert stored_tags(three, "00000002") == []
    page.get_by_label("Tag", exact=True).wait_for()
    page.goto(f"{three.url}/runs")
    page.get_by_label("select all listed runs").check()
    page.get_by_label("select run-2").uncheck()
    page.get_by_text("Actions", exact=True).click()
    page.get_by_role("button", name="Delete", exact=True).click()
    assert len(runs_of(three)) == 3, "not without a confirmation"
    page.get_by_role("button", name="Delete 2 runs permanently?").click()
    eventually(lambda: listed(page) == ["00000002"])
    assert [run["run_id"] for run in runs_of(three)] == ["00000002"]


def test_a_tag_for_a_selected_run_that_a_filter_hides_keeps_its_other_tags(page: Any, three: Any) -> None:
    page.goto(f"{three.url}/runs")
    page.get_by_label("select run-0").check()
    page.get_by_label("Project", exact=True).select_option("odd")
    eventually(lambda: listed(page) == ["00000001"])
    page.keyboard.press("a")
    page.get_by_label("Tag for the selected runs").fill("late")
    page.get_by_role("button", name="Add tag").click()
    eventually(lambda: stored_tags(three, "00000000") == ["first", "late"])


def test_a_live_run_is_not_deleted_and_stays_selected(page: Any, own_server: Any, live_run: Any) -> None:
    own = own_server()
    live_run(own, name="alive")
    page.goto(f"{own.url}/runs")
    page.context.watcher.expected.append("409")
    page.get_by_label("select alive").check()
    page.get_by_text("Actions", exact=True).click()
    page.get_by_role("button", name="Delete", exact=True).click()
    page.get_by_role("button", name="Delete 1 run permanently?").click()
    page.get_by_text("alive is live.").wait_for()
    assert page.get_by_text("1 run selected").is_visible()


def test_keys_move_select_and_open(page: Any, three: Any) -> None:
    page.goto(f"{three.url}/runs")
    row(page, "00000002").wait_for()
    page.keyboard.press("j")
    page.keyboard.press("x")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("j")  # the last run stays the current one
    page.keyboard.press("x")
    page.keyboard.press("k")
    checked = page.locator("tbody tr:has(.tick input:checked)")
    assert checked.evaluate_all("(rows) => rows.map((row) => row.dataset.run)") == ["00000002", "00000000"]
    page.keyboard.press("p")
    eventually(lambda: listed(page)[0] == "00000001", what="run-1, pinned")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.locator("h1", has_text="run-").wait_for()


def test_narrow_lists_are_sorted_and_acted_on_with_a_thumb(page: Any, three: Any) -> None:
    page.set_viewport_size({"width": 400, "height": 800})
    page.goto(f"{three.url}/runs")
    row(page, "00000000").wait_for()
    page.get_by_text("View", exact=True).click()
    page.get_by_label("Sort by").select_option("peak_allocated")
    eventually(lambda: listed(page) == ["00000000", "00000001", "00000002"])
    page.keyboard.press("Escape")
    page.get_by_label("select run-1").check()
    page.get_by_text("Actions", exact=True).click()
    menu = page.locator(".compare-bar .menu-list")
    box = menu.bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= 400 and box["y"] >= 0
    menu.get_by_role("button", name="Pin", exact=True).click()
    eventually(lambda: next(run for run in runs_of(three) if run["run_id"] == "00000001")["pinned"])
    assert page.evaluate("document.documentElement.scrollWidth") <= 400


def test_narrow_lists_show_their_filters_on_request(page: Any, three: Any) -> None:
    page.set_viewport_size({"width": 400, "height": 800})
    page.goto(f"{three.url}/runs?state=finished")
    row(page, "00000000").wait_for()
    assert page.locator(".filters").bounding_box()["height"] < 60
    state = page.get_by_label("State", exact=True)
    assert not state.is_visible()
    button = page.get_by_role("button", name="Filters (1)")
    assert button.get_attribute("aria-expanded") == "false"
    button.focus()
    page.keyboard.press("Enter")
    state.select_option("failed")
    page.get_by_text("No run matches").wait_for()
    assert_legible(page)
    page.set_viewport_size({"width": 400, "height": 800})
    state.select_option("")
    row(page, "00000000").wait_for()
    page.get_by_role("button", name="Filters", exact=True).click()
    eventually(lambda: not state.is_visible())
    page.set_viewport_size({"width": 1440, "height": 900})
    eventually(lambda: state.is_visible())
    assert not page.locator(".filters-toggle").is_visible()
