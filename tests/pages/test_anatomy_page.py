"""The anatomy of a run: the timeline and what lies under the pointer, one allocation, two moments, who holds it."""

from __future__ import annotations

import re
import sys
from array import array
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx
import msgspec
import pytest
from browsing import COMPILED_MS, drawn, part_on_first_screen, query
from legibility import SIDEWAYS, assert_legible
from test_fragmentation_page import Sender, words
from waiting import eventually

sys.path.append(str(Path(__file__).parents[1] / "backend"))

from profile_maker import a_profile
from test_settings_advice import fragmented
from window_maker import Allocator, training
from window_maker import recorded as empty_window
from wire_maker import new_id

from vramscope.protocol import messages
from vramscope.protocol.profile import pack
from vramscope.protocol.window import ACTIONS, Window
from vramscope_server.analysis.advice.all_rules import RULES


def page_of(run: Sender) -> str:
    return f"{run.url}/runs/{run.agent.run}/anatomy"


@pytest.fixture(scope="module")
def recorded(server: Any) -> Sender:
    """A run that has ended, with two recordings; the newer has 3 steps of 12 layers, and its peak in a forward."""
    run = Sender(server.url, "anatomy")
    run.send(run.agent.samples(20), run.agent.steps(4))
    run.record(training(2, 4))
    run.record(training(3, 12, first_step=40, last_step=43, reason="the peak rose"))
    run.send(run.agent.ended())
    return run


def whole(text: str) -> int:
    """A number with commas between its thousands."""
    return int(re.sub(r"\D", "", text))


def ready(page: Any) -> Any:
    """The timeline, once nothing above it moves it any more."""
    page.locator("[data-verdict]").get_by_text("The peak is").wait_for(timeout=COMPILED_MS)
    return drawn(page, "timeline")


def drag(page: Any, chart: Any, left: float, right: float) -> None:
    """Over the plot, from one share of its width to another."""
    box = chart.locator(".plot").bounding_box()
    at = [box["x"] + 60 + share * (box["width"] - 80) for share in (left, (left + right) / 2, right)]
    page.mouse.move(at[0], box["y"] + 200)
    page.mouse.down()
    for x in at[1:]:
        page.mouse.move(x, box["y"] + 210, steps=4)
    page.mouse.up()


def point(chart: Any, moment: float, height: float) -> dict[str, float]:
    """Where in the plot a moment and a share of the highest stack are."""
    return dict(
        chart.evaluate(
            "(chart, [moment, height]) => { const { xaxis, yaxis } = chart.plot._fullLayout;"
            " return { x: xaxis._offset + xaxis.d2p(moment), y: yaxis._offset + yaxis.d2p(height * yaxis.range[1]) }; }",
            [moment, height],
        )
    )


def test_the_stack_is_drawn_under_its_ruler_and_coloured_as_one_likes(page: Any, recorded: Sender) -> None:
    page.goto(page_of(recorded))
    chart = drawn(page, "timeline")
    kinds = chart.evaluate("(chart) => chart.traces.map((trace) => [trace.meta.role, trace.meta.kind])")
    areas = [role for role, kind in kinds if kind == "area"]
    assert areas[0] == "unknown" and len(areas) >= 3, "what was there before lies at the bottom"
    assert {"phase-forward", "phase-backward", "phase-optimizer"} <= {role for role, kind in kinds if kind == "span"}
    top = chart.evaluate(
        "(chart) => { const areas = chart.traces.filter((trace) => trace.meta.kind === 'area');"
        " return Math.max(...areas[0].y.map((_, i) => areas.reduce((sum, { y }) => sum + y[i], 0)))"
        " * areas[0].meta.divisor; }"
    )
    result = chart.evaluate("(chart) => chart.getAttribute('aria-label')")
    assert re.match(r"Allocated memory from event -1 to \d+: at most [\d.]+ [GM]iB, at event", result)
    peak = result.split("at most ")[1].split(",")[0]
    assert words(page, "[data-verdict]").startswith(f"The peak is {peak} ")
    assert words(page, ".timeline .map-words") == "", "which is said once"
    assert top > 0
    assert words(page, ".timeline .legend").count("iB") >= 4, "each series with what it holds at the peak"
    page.get_by_role("group", name="Colour by").get_by_text("Your line").click()
    eventually(lambda: query(page).get("by") == "site")
    eventually(lambda: "me/train.py:87 train" in words(page, ".timeline .legend"))
    page.get_by_role("group", name="Colour by").get_by_text("Category").click()
    eventually(lambda: "by" not in query(page))


def test_one_goes_closer_points_and_looks_at_an_allocation(page: Any, recorded: Sender) -> None:
    page.goto(page_of(recorded))
    chart = ready(page)
    drag(page, chart, 0.1, 0.2)
    eventually(lambda: "from" in query(page))
    eventually(lambda: "allocations in view are drawn" in words(page, ".timeline .map-words"))

    def above() -> Any:
        """Pixels from the highest polygon to the peak on the axis. The words arrive before the chart is drawn."""
        return chart.evaluate(
            "(chart) => { const { yaxis } = chart.plot._fullLayout; const { top } = chart.plot.getBoundingClientRect();"
            " const peak = chart.plot.layout.annotations.find((note) => note.name === 'peak')?.y ?? NaN;"
            " const tops = [...chart.querySelectorAll('.polygons path')].map((path) => path.getBoundingClientRect().top);"
            " return Math.abs(top + yaxis._offset + yaxis.d2p(peak) - Math.min(...tops)); }"
        )

    eventually(lambda: above() < 3, what="polygons as high as the axis says, to some pixels")
    first, end = int(query(page)["from"]), int(query(page)["to"])
    moment = (first + end) // 2
    place = point(chart, moment + 0.5, 0.9)
    chart.locator(".plot").hover(position=point(chart, moment + 0.5, 0.02))
    eventually(lambda: "event" in words(page, ".timeline-place"))
    eventually(lambda: "unknown" in words(page, ".timeline-place"))
    for height in range(90, 50, -1):
        place = point(chart, moment + 0.5, height / 100)
        # (without its answer the words are still those of the place before)
        with page.expect_response(lambda answer: "/at?" in answer.url) as caught:
            chart.locator(".plot").hover(position=place)
        if "model.py" in caught.value.text():
            break
    place["y"] += 3  # within it: at its border a pixel's part decides
    eventually(lambda: "model.py:31" in words(page, ".timeline-place"))
    chart.locator(".plot").click(position=place)
    eventually(lambda: "allocation" in query(page))
    card = page.locator(".allocation")
    card.get_by_text("Allocated by").wait_for()
    assert abs(int(query(page)["event"]) - moment) <= 1
    assert "model.py:31" in card.inner_text()
    assert "no stacks of frees were recorded" in card.inner_text()
    outline = chart.evaluate("(chart) => chart.traces.find((trace) => trace.meta.kind === 'outline').x")
    eventually(lambda: len(outline) > 4 or chart.evaluate("(c) => c.traces.find((t) => t.meta.kind === 'outline').x"))
    born = card.get_by_role("button", name=re.compile("^event")).first
    event = whole(born.inner_text().split("·")[0])
    born.click()
    eventually(lambda: query(page).get("event") == str(event))
    # the link is the view
    address = page.evaluate("location.href")
    page.goto("about:blank")
    page.goto(address)
    drawn(page, "timeline")
    card.get_by_text("Allocated by").wait_for()
    assert "model.py:31" in card.inner_text()
    # a half to the right, by key; all again by another
    page.locator("h1").click()
    page.keyboard.press("]")
    eventually(lambda: int(query(page)["from"]) > first)
    page.keyboard.press("Escape")
    eventually(lambda: "from" not in query(page))
    page.keyboard.press("Escape")
    eventually(lambda: not card.is_visible())


def test_two_moments_are_compared_line_by_line(page: Any, recorded: Sender) -> None:
    page.goto(f"{page_of(recorded)}?event=-1")
    chart = ready(page)
    page.locator("[data-set=a]").click()
    eventually(lambda: query(page).get("a") == "-1")
    assert "A is set" in words(page, ".between")
    chart.locator(".plot").click(position=point(chart, 120.5, 0.2))
    eventually(lambda: 110 < int(query(page)["event"]) < 130)  # a pixel is more than one event
    page.locator("[data-set=b]").click()
    change = page.locator("[data-change]")
    change.wait_for()
    assert int(change.get_attribute("data-change")) > 0
    table = page.locator(".between-tables table").first
    assert "me/train.py:87 train" in table.inner_text()
    marks = page.locator(".timeline .cursor[data-name]:not([hidden])")
    assert marks.evaluate_all("(lines) => lines.map((line) => line.dataset.name)") == ["A", "B"]
    table.get_by_role("button").first.click()
    eventually(lambda: "allocation" in query(page))
    page.get_by_role("button", name="Remove A and B").click()
    eventually(lambda: not {"a", "b"} & query(page).keys())
    assert not page.locator(".between").is_visible()


def test_who_holds_the_peak_is_a_flamegraph_that_one_walks_into(page: Any, recorded: Sender) -> None:
    page.goto(page_of(recorded))
    chart = drawn(page, "flame")

    def boxes() -> list[str]:
        return list(chart.evaluate("(chart) => chart.traces.flatMap((trace) => trace.text)"))

    assert {"train train.py:87", "forward model.py:31", "forward linear.py:125"} <= set(boxes())
    assert not any("_call_impl" in text for text in boxes())
    page.get_by_label("libraries' frames").check()
    eventually(lambda: any("_call_impl" in text for text in boxes()))
    eventually(lambda: query(page).get("libraries") == "1")
    page.get_by_label("libraries' frames").uncheck()
    eventually(lambda: not any("_call_impl" in text for text in boxes()))
    place = chart.evaluate(
        "(chart) => { const { xaxis, yaxis } = chart.plot._fullLayout; const own = chart.traces[0];"
        " const at = own.text.indexOf('forward model.py:31');"
        " return { x: xaxis._offset + xaxis.d2p(own.base[at] ?? 0) + 20, y: yaxis._offset + yaxis.d2p(own.y[at]) }; }"
    )
    chart.locator(".plot").click(position=place)
    eventually(lambda: "focus" in query(page))
    eventually(lambda: "train train.py:87 \u203a forward model.py:31" in words(page, ".flame-bar"))
    assert "train train.py:87" not in boxes()
    page.locator(".flame-bar").get_by_role("button", name=re.compile("^all")).click()
    eventually(lambda: "train train.py:87" in boxes())
    page.get_by_role("button", name="By module").click()
    eventually(lambda: any(text.startswith("no module") for text in boxes()))


ANSWERS = """() => Object.fromEntries(performance.getEntriesByType("resource").flatMap(({ name, startTime, responseEnd }) => {
  const part = name.match(/\\/recordings\\/[^/]+\\/(\\w+)/)?.[1];
  return part && responseEnd ? [[part, { begin: startTime, end: responseEnd }]] : [];
}).toReversed())"""
"""Begin and end of the first answer of each kind, on the page's clock: events reach the test late and in another order."""


def test_the_timeline_is_answered_before_longer_computations_begin(page: Any, recorded: Sender) -> None:
    """They would take the server's time from the first chart: of a million events it came 3 s later."""
    page.add_init_script("performance.setResourceTimingBufferSize(2000)")  # the default is 250
    page.goto(page_of(recorded))
    ready(page)
    parts = {"timeline", "anatomy", "prediction"}
    eventually(lambda: parts <= page.evaluate(ANSWERS).keys(), what="the timeline and both computations")
    answers = page.evaluate(ANSWERS)
    assert answers["timeline"]["end"] <= answers["anatomy"]["begin"]
    assert answers["timeline"]["end"] <= answers["prediction"]["begin"]


def test_on_a_phone_the_timeline_begins_on_the_first_screen_and_its_controls_follow(
    page: Any, recorded: Sender
) -> None:
    page.set_viewport_size({"width": 400, "height": 800})
    page.goto(page_of(recorded))
    plot = ready(page).locator(".plot-frame")
    page.evaluate("scrollTo(0, 0)")
    eventually(lambda: part_on_first_screen(page, plot) > 0.4, what="the plot above the bar")
    controls = page.locator(".timeline-bar")
    search = page.get_by_role("searchbox", name="Find events by line or module")
    below = [one.bounding_box()["y"] for one in (page.locator("[data-verdict]"), plot, controls, search)]
    assert below == sorted(below)
    for one in (search, page.locator(".recording-bar select")):  # nothing is cut off, and all of it can be reached
        one.scroll_into_view_if_needed()
        box = one.bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= 400
    search.focus()
    page.set_viewport_size({"width": 1440, "height": 900})
    eventually(lambda: search.bounding_box()["y"] < plot.bounding_box()["y"], what="the search above the chart")
    assert controls.bounding_box()["y"] < plot.bounding_box()["y"]
    assert search.evaluate("(field) => field === document.activeElement"), "what moves keeps the focus"


def test_the_first_screen_says_what_the_peak_is_and_what_to_try(page: Any, recorded: Sender) -> None:
    page.goto(page_of(recorded))
    ready(page)
    verdict = page.locator("[data-verdict]")
    verdict.get_by_text("The peak is").wait_for()
    text = verdict.inner_text()
    (largest, share) = re.search(r"([\d.]+) % is (\w+)", text).group(2, 1)  # type: ignore[union-attr]
    legend = page.locator(".timeline .legend").inner_text()
    assert re.search(rf"[\d.]+ [MG]iB {largest}", legend) and float(share) > 25, "bytes are in the legend"
    card = page.locator(".advice-card").inner_text()
    assert "%) · " not in card, "what the peak is made of is said once"
    assert verdict.bounding_box()["y"] < page.locator(".timeline").bounding_box()["y"]
    saves = page.locator(".advice-card .saves").first.inner_text()
    verdict.get_by_role("button", name=f"Most worth trying: an 8-bit optimizer ({saves})", exact=True).click()
    eventually(lambda: page.locator(".advice-card").bounding_box()["y"] < 450, what="the advice in sight")


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ({"rule": "batch"}, "a larger batch"),
        ({"rule": "new", "sentence": "Module a.b is kept twice. Delete one."}, "Module a.b is kept twice"),
        ({"rule": "fragmentation", "evidence": {"conf": "max_split_size_mb:64"}}, "max_split_size_mb:64"),
        ({"rule": "fragmentation", "evidence": {"conf": ""}}, "the default allocator settings"),
    ],
)
def test_a_change_without_a_known_gain_is_named_alone(
    page: Any, recorded: Sender, rule: dict[str, Any], change: str
) -> None:
    """Of a rule that the page does not know, the sentence's first clause."""

    def answer(route: Any) -> None:
        answered = route.fetch().json()
        answered["advice"] = [{**answered["advice"][0], "saves_bytes": None, "seconds": None, "evidence": {}, **rule}]
        route.fulfill(json=answered)

    page.route("**/recordings/*/anatomy*", answer)
    page.goto(page_of(recorded))
    ready(page)
    assert page.locator("[data-verdict] button").inner_text() == f"Most worth trying: {change}"
    assert page.locator(".advice-card .saves").inner_text() == "unknown"


def test_advice_on_allocator_settings_follows_and_is_that_of_the_fragmentation_page(page: Any, server: Any) -> None:
    """The first answer does not wait for the replays, and claims nothing of what they may find."""
    run = Sender(server.url, "fragmented")
    run.send(run.agent.steps(4, peak_reserved_bytes=600 << 20, peak_allocated_bytes=500 << 20))
    run.record(fragmented(device_total_bytes=None, device_free_bytes=None))
    run.send(run.agent.ended())
    first, held = "**/recordings/*/anatomy*wait_seconds=0.3", []
    page.route("**/recordings/*/anatomy*", lambda route: held.append(route))
    page.route(first, lambda route: route.fulfill(json={**route.fetch().json(), "advice": [], "pending": True}))
    card = page.locator(".advice-card")
    with page.expect_request("**/recordings/*/anatomy*wait_seconds=10", timeout=COMPILED_MS):
        page.goto(page_of(run))
        card.get_by_text("replaying other allocator settings…").wait_for(timeout=COMPILED_MS)
    assert card.locator("[data-no-advice]").count() == 0
    held[0].continue_()
    said = card.locator("[data-rule=fragmentation]")
    said.wait_for(timeout=COMPILED_MS)
    assert card.get_by_text("replaying other allocator settings…").count() == 0
    assert said.locator(".saves").inner_text() == "100 MiB less device memory needed"
    assert said.get_by_role("link", name="source").get_attribute("href").startswith("https://")
    words = said.locator(".said").inner_text()
    page.goto(f"{run.url}/runs/{run.agent.run}/fragmentation")
    recommended = page.locator(".whatif-advice")
    recommended.get_by_text("The recorded run").wait_for(timeout=COMPILED_MS)
    sentence = recommended.locator("span").first.inner_text()
    assert sentence in words and "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True." in words


def test_the_page_has_a_name_for_the_change_of_each_rule() -> None:
    script = (Path(__file__).parents[2] / "frontend" / "parts" / "advice.js").read_text()
    table = script.split("const CHANGES = {", 1)[1].split("}", 1)[0]
    assert re.findall(r"^  (\w+):", table, re.MULTILINE) == sorted(rule.__module__.rpartition(".")[2] for rule in RULES)


def test_the_next_recording_is_computed_in_sight_after_a_failed_request(page: Any, recorded: Sender) -> None:
    page.context.watcher.expected.append("503")
    refusal = {"title": "Busy", "detail": "Retry in a second.", "status": 503}
    page.route("**/recordings/*/anatomy*", lambda route: route.fulfill(status=503, json=refusal))
    page.goto(page_of(recorded))
    page.get_by_text("Retry in a second.").first.wait_for()
    verdict = page.locator("[data-verdict]")
    verdict.wait_for(state="hidden")
    held: list[Any] = []
    page.unroute("**/recordings/*/anatomy*")
    page.route("**/recordings/*/anatomy*", lambda route: held.append(route))
    with page.expect_request("**/recordings/*/anatomy*"):
        page.get_by_label("Recording", exact=True).select_option(index=1)
    verdict.get_by_text("computing what the peak is made of…").wait_for(timeout=10_000)
    reserved = verdict.bounding_box()["height"]
    held[0].continue_()
    verdict.get_by_text("The peak is").wait_for()
    assert verdict.bounding_box()["height"] == pytest.approx(reserved, abs=1), "the timeline below stays where it is"


def test_advice_stands_under_the_picture_each_with_its_number(page: Any, recorded: Sender, server: Any) -> None:
    """Bytes by which the peak falls; of a run that was profiled, what a step loses, too."""
    page.goto(page_of(recorded))
    ready(page)
    advice = page.locator(".advice-card [data-rule=optimizer_state]")
    saves, sentence = advice.locator(".saves").inner_text(), advice.locator(".said").inner_text()
    number = re.fullmatch(r"up to (\d+) MiB less at the peak", saves)
    match = re.search(r"the peak falls by ([\d.]+) MiB", sentence)
    assert number and match and int(number[1]) == pytest.approx(float(match[1]), abs=0.51)
    assert "With an 8-bit optimizer it is" in sentence
    run = Sender(server.url, "slow data")
    run.send(run.agent.samples(5), run.agent.steps(4))
    slow = pack(a_profile(phases={"data": 40_000_000, "forward": 60_000_000}))
    about: dict[str, messages.Scalar] = {"first_step": 20, "last_step": 21, "reason": "asked for"}
    run.send(messages.Piece(artifact=new_id("pagesslow"), kind="profile", number=0, pieces=1, about=about, data=slow))
    run.record(training(2, 4))
    run.send(run.agent.ended())
    page.goto(page_of(run))
    ready(page)
    waits = page.locator("[data-rule=waits_for_data]")
    assert waits.locator(".saves").inner_text() == "20.0 ms less per step"
    assert "waiting for data" in waits.inner_text()
    assert page.locator(".advice-card .saves", has_text="unknown").count() == 0
    assert_legible(page)


def test_keys_move_the_timeline_and_a_search_finds_events(page: Any, recorded: Sender) -> None:
    page.goto(page_of(recorded))
    ready(page)
    page.keyboard.press("w")
    eventually(lambda: "from" in query(page))
    drawn_from, drawn_to = (int(query(page)[name]) for name in ("from", "to"))
    whole_width = drawn_to - drawn_from
    chart = ready(page)
    eventually(lambda: chart.evaluate("(chart) => chart.request === null || !chart.request"))
    page.keyboard.press("d")
    eventually(lambda: int(query(page)["from"]) > drawn_from)
    assert int(query(page)["to"]) - int(query(page)["from"]) == whole_width, "the theme stays as it is"
    eventually(lambda: chart.evaluate("(chart) => !chart.request"))
    page.keyboard.press("a")
    eventually(lambda: int(query(page)["from"]) == drawn_from)
    eventually(lambda: chart.evaluate("(chart) => !chart.request"))
    page.keyboard.press("s")
    eventually(lambda: "from" not in query(page))
    page.keyboard.press("/")
    page.keyboard.type("model.py:31")
    page.keyboard.press("Enter")
    eventually(lambda: query(page).get("q") == "model.py:31" and query(page).get("tab") == "events")
    page.locator(".events-table tbody tr").first.wait_for()
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.closest('.events-search') !== null"), "the table has its own search"


def test_a_recording_without_stacks_offers_to_record_now(page: Any, server: Any) -> None:
    run = Sender(server.url, "no stacks")
    run.send(run.agent.samples(5))
    window = training(2, 4)
    window.events["stack"] = array("q", [-1] * (len(window.events["action"]) // 8)).tobytes()
    run.record(window)
    page.goto(page_of(run))
    ready(page)
    drawn(page, "flame")
    page.get_by_role("button", name="Record now, with stacks").click()
    page.get_by_text("recording the next steps").wait_for()
    run.send(run.agent.ended())


def test_other_ways_to_train_stand_below_the_advice(page: Any, recorded: Sender) -> None:
    """The recorded way first, each other with its peak; what cannot be told is said with the reason."""
    page.goto(page_of(recorded))
    card = page.locator(".other-ways")
    rows = card.locator("tbody tr")
    rows.first.wait_for(timeout=COMPILED_MS)
    assert [row.locator("th").inner_text() for row in rows.all()] == ["as recorded", "8-bit state"]
    peaks = [float(row.locator("td").first.inner_text().split()[0]) for row in rows.all()]
    assert rows.first.locator("td").first.inner_text().strip() == "1.37 GiB" and peaks[1] == pytest.approx(900, abs=5)
    assert re.fullmatch(r"504 MiB\s+36 %", rows.nth(1).locator("td").nth(1).inner_text())
    assert "predicted from step 3" in card.locator("header").inner_text()
    notes = card.locator(".other-ways-notes").inner_text()
    assert "cannot be predicted without recorded modules" in notes
    assert rows.nth(1).locator("td.time").inner_text() == "about as long"
    assert card.locator(".plans-plot").count() == 0, "two plans need no plot"
    assert rows.nth(1).locator("td.cost").inner_text() == "rounded optimizer state"
    assert_legible(page)
    page.set_viewport_size({"width": 400, "height": 800})
    eventually(
        lambda: not any("Trained with" in table for table in page.evaluate(SIDEWAYS)), what="no sideways scrolling"
    )
    assert rows.nth(1).locator("th").inner_text().split("\n")[1] == "step time: about as long; rounded optimizer state"
    ticks = "(chart) => chart.plot.layout.xaxis.nticks"
    eventually(lambda: drawn(page, "timeline").evaluate(ticks) == 5, what="fewer labels, so that none overlap")
    page.set_viewport_size({"width": 1440, "height": 900})
    empty = Sender(recorded.url, "nothing happened")
    empty.record(empty_window(None, Allocator()))
    page.goto(page_of(empty))
    card.get_by_text("This recording has no events.").wait_for(timeout=COMPILED_MS)
    assert "No predictable technique" not in card.inner_text(), "nothing was computed"


def test_its_events_are_searched_and_its_window_is_had_as_a_file(page: Any, recorded: Sender) -> None:
    """As those of a snapshot file: by stack, size and time, a page at a time, and back to the allocation in the picture."""
    page.goto(f"{page_of(recorded)}?from=20&to=470")
    chart = ready(page)
    page.get_by_role("link", name="Events", exact=True).click()
    eventually(lambda: query(page).get("tab") == "events" and query(page).get("from") == "20")
    rows, seen = page.locator(".events-table tbody tr"), page.locator(".events [role=status]")

    def matching() -> int:
        return whole(re.search(r" of ([\d\s]+)", seen.inner_text()).group(1))

    eventually(lambda: rows.count() == 200)
    assert matching() == int(query(page)["to"]) - 20, "of the window alone"
    page.get_by_role("button", name="Next", exact=True).click()
    eventually(lambda: whole(rows.first.get_by_role("button").inner_text()) == 220)
    assert_legible(page)
    page.get_by_role("button", name="All events").click()
    eventually(lambda: "from" not in query(page) and "page" not in query(page))
    eventually(lambda: "that match" not in seen.inner_text())
    of_all = matching()
    page.locator("input[name=q]").fill("model.py:31")
    page.locator("input[name=most]").fill("1 GiB")
    eventually(lambda: (query(page).get("q"), query(page).get("most")) == ("model.py:31", "1 GiB"))
    eventually(lambda: matching() < of_all and "model.py:31" in rows.first.inner_text())
    of_stack = matching()
    page.locator("input[name=least]").fill("20 MiB")
    eventually(lambda: matching() < of_stack)
    half = float(rows.last.locator("td").nth(1).inner_text().split()[0]) / 2
    page.locator("input[name=since]").fill(f"{half:.9f}")
    page.get_by_label("Action").select_option("alloc")
    eventually(lambda: float(rows.first.locator("td").nth(1).inner_text().split()[0]) >= half)
    event = whole(rows.first.get_by_role("button").inner_text())
    size = rows.first.locator("td").nth(3).inner_text()
    rows.first.get_by_role("button").click()
    eventually(lambda: query(page).get("event") == str(event) and "tab" not in query(page))
    card = page.locator(".allocation")
    card.get_by_text("Allocated by").wait_for()
    assert size in card.inner_text() and "model.py:31" in card.inner_text()

    # the visible window, in each form
    drag(page, ready(page), 0.1, 0.2)
    eventually(lambda: "from" in query(page))
    window = (query(page)["from"], query(page)["to"])
    eventually(lambda: chart.get_attribute("data-detail") == "allocations")
    page.get_by_text("Export the window").click()
    menu = page.locator(".recording-views .menu-list")
    assert f"events {window[0]} to {window[1]}" in menu.inner_text().replace(",", "")
    asked = [dict(parse_qsl(urlsplit(link.get_attribute("href")).query)) for link in menu.locator("a").all()]
    assert [one["format"] for one in asked] == ["csv", "parquet", "perfetto", "html"]
    assert {(one["from"], one["to"]) for one in asked} == {window}
    with page.expect_download() as coming:
        menu.get_by_role("link", name="CSV").click()
    lines = Path(coming.value.path()).read_text().splitlines()
    assert len(lines) == 1 + int(window[1]) - int(window[0])
    assert lines[1].split(",")[0] == window[0]


def with_stacks_where_memory_is_let_go(recorded: Window, *, own: bool) -> Window:
    """Those of what lets go (`train`, line 87), or, as PyTorch tells it where they are not recorded, the allocation's once more."""
    columns = {name: array("q", data) for name, data in recorded.events.items()}
    made: dict[int, int] = {}
    for at, (action, address) in enumerate(zip(columns["action"], columns["address"], strict=True)):
        if ACTIONS[action] == "alloc":
            made[address] = columns["stack"][at]
        elif ACTIONS[action].startswith("free_"):
            columns["stack"][at] = 2 if own else made.get(address, -1)
    return msgspec.structs.replace(recorded, events=recorded.events | {"stack": columns["stack"].tobytes()})


def test_who_let_go_is_told_where_it_was_recorded_and_else_no_one_is_named(page: Any, server: Any) -> None:
    run = Sender(server.url, "who let go")
    run.send(run.agent.samples(5))
    for own in (True, False):
        run.record(with_stacks_where_memory_is_let_go(training(2, 4), own=own))
    run.send(run.agent.ended())
    recordings = [one["recording"] for one in httpx.get(
        f"{server.url}/api/v1/runs/{run.agent.run}/recordings", trust_env=False).json()["recordings"]]  # fmt: skip
    fields = {}
    for recording in recordings:
        page.goto(f"{page_of(run)}?recording={recording}&tab=events&q=model.py:31&action=alloc")
        made = page.locator(".events-table tbody tr")
        made.first.wait_for(timeout=COMPILED_MS)
        made.first.get_by_role("button").click()
        card = page.locator(".allocation")
        card.get_by_text("Freed by").wait_for()
        ended = card.inner_text().split("Freed by")[1]
        page.goto(f"{page_of(run)}?recording={recording}&tab=events&action=free_requested")
        page.locator(".events-table tbody tr").first.wait_for(timeout=COMPILED_MS)
        fields["train" in ended] = ended, page.locator(".events-table").inner_text()
    ended, table = fields[True]
    assert "me/train.py:87" in ended and "train.py:87 train" in table and "allocated by" not in table
    ended, table = fields[False]
    assert "no stacks of frees were recorded" in ended
    assert "allocated by model.py:31 forward" in table


def test_recordings_are_chosen_and_a_live_run_is_asked(page: Any, recorded: Sender, server: Any) -> None:
    page.goto(f"{page_of(recorded)}?from=20&to=60")
    drawn(page, "timeline")
    choice = page.get_by_label("Recording", exact=True)
    assert "at the peak in view" in words(page, ".timeline .map-words")
    choice.select_option(index=1)
    eventually(lambda: "recording" in query(page) and "from" not in query(page))
    eventually(lambda: words(page, ".timeline .map-words") == "")
    run = Sender(server.url, "anatomy live")
    run.send(run.agent.samples(5))
    page.goto(page_of(run))
    page.locator(".empty").wait_for()
    assert "records the next steps of this run" in words(page, ".empty")
    page.get_by_role("button", name="Record a window").click()
    page.get_by_text("recording the next steps").wait_for()
    run.record(training(2, 6, reason="asked for"))
    drawn(page, "timeline")
    run.send(run.agent.ended())


def test_a_recording_that_cannot_be_read_is_called_so(page: Any, server: Any) -> None:
    page.context.watcher.expected.append("422")
    run = Sender(server.url, "damaged anatomy")
    run.send(messages.Piece(artifact=new_id("broken"), kind="window", number=0, pieces=1, about={}, data=b"no window"))
    page.goto(page_of(run))
    alert = page.locator("[role=alert]")
    alert.wait_for()
    assert "The bytes are not a recording" in alert.inner_text()
    assert not page.locator(".anatomy-view").is_visible()


def test_it_fits_is_legible_and_nothing_lies_on_another(page: Any, recorded: Sender) -> None:
    page.goto(f"{page_of(recorded)}?a=10&b=200&allocation=30&by=site")
    drawn(page, "timeline")
    page.locator("[data-change]").wait_for()
    page.locator(".allocation .facts").wait_for()
    drawn(page, "flame")
    assert_legible(page)
