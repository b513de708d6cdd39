"""The fragmentation of a run: recordings, moments, the map, what other settings would have given, and what did come."""

from __future__ import annotations

import random
import re
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from browsing import COMPILED_MS, drawn, part_on_first_screen, query
from legibility import assert_legible
from waiting import eventually

sys.path.append(str(Path(__file__).parents[1] / "backend"))

from window_maker import MIB, Allocator, training
from window_maker import recorded as window_of
from wire_maker import Agent, new_id, steps

from vramscope.protocol import messages as wire_messages
from vramscope.protocol import series
from vramscope.protocol.window import EVENTS, Window, pack

SECOND = 1_000_000_000


class Sender:
    """A process that sends to a server of the pages' tests."""

    def __init__(self, url: str, name: str, **fields: Any) -> None:
        self.url = url
        self.agent = Agent(new_id("pagesrun"), name=name, start_ns=time.time_ns() - 60 * SECOND, **fields)

    def send(self, *messages: wire_messages.Message) -> wire_messages.Ack:
        answer = httpx.post(
            f"{self.url}/api/v1/batches",
            content=self.agent.body(*messages),
            headers={"Content-Type": wire_messages.CONTENT_TYPE},
            trust_env=False,
        )
        assert answer.status_code == 200, answer.text
        return wire_messages.decode_ack(answer.content)

    def record(self, window: Window, *, only: int | None = None) -> str:
        """Send a window in pieces, or its first ``only`` of them; its id."""
        data, ident = pack(window), new_id("pageswindow")
        size = -(-len(data) // 4)
        parts = [data[at : at + size] for at in range(0, len(data), size)]
        events = len(window.events["action"]) // 8
        about: dict[str, wire_messages.Scalar] = {
            "device": 0, "first_step": window.first_step, "last_step": window.last_step, "reason": window.reason,
            "events": events, "lost_events": 0, "leaks": len(window.holdings), "bytes": len(data), "torch": window.torch,
            "settings": window.settings,
        }  # fmt: skip
        common: dict[str, Any] = {"artifact": ident, "kind": "window", "pieces": len(parts), "about": about}
        for number, part in enumerate(parts[:only]):
            self.send(wire_messages.Piece(number=number, data=part, **common))
        return ident

    @property
    def page(self) -> str:
        return f"{self.url}/runs/{self.agent.run}/fragmentation"


@pytest.fixture(scope="module")
def recorded(server: Any) -> Sender:
    """A run that has ended, with two recordings."""
    run = Sender(server.url, "varying lengths")
    run.send(run.agent.samples(20), run.agent.steps(4))
    run.record(training(3, 12))
    run.record(training(3, 16, seed=3, small=160, first_step=40, last_step=43, reason="the peak rose"))
    run.send(run.agent.ended())
    return run


def settings_shown(page: Any) -> Any:
    """The table of the settings that were tried, which is folded where none is worth a change."""
    rest = page.locator(".whatif-rest")
    rest.wait_for(timeout=COMPILED_MS)
    if rest.get_attribute("open") is None:
        rest.locator("summary").click()
    table = rest.locator(".whatif-table")
    table.wait_for()
    return table


def words(page: Any, selector: str) -> str:
    return " ".join(page.locator(selector).inner_text().split())


def test_the_peak_is_told_and_drawn_and_the_moment_can_be_chosen(page: Any, recorded: Sender) -> None:
    page.goto(recorded.page)
    strip = drawn(page, "strip")
    roles = strip.evaluate("(chart) => chart.traces.map((trace) => trace.meta.role)")
    assert roles == ["requested", "rounding", "usable", "unusable", "total"]
    assert re.fullmatch(r"Peak reserved [\d.]+ [GM]iB of 80\.0 GiB", words(page, "[data-kpi=reserved]"))
    assert re.fullmatch(r"Unusable [\d.]+ [KMG]?i?B [\d.]+ % of reserved", words(page, "[data-kpi=unusable]"))
    assert words(page, "[data-kpi=settings]") == "Allocator settings default settings PyTorch 2.13.0+cu130"
    drawn(page, "map")
    at_peak = words(page, ".segment-map .map-words")
    assert "event" not in query(page)
    event = words(page, ".moment-words").partition(" · ")[0]
    assert re.fullmatch(r"event [\d,]+", event)
    assert f": {event} · step" in words(page, ".strip .map-words"), "one event has one number"
    page.get_by_role("button", name="start", exact=True).click()
    eventually(lambda: query(page).get("event") == "-1")
    eventually(lambda: words(page, ".segment-map .map-words") != at_peak)
    assert words(page, ".moment-words") == "the start"
    page.get_by_label("Event").press("ArrowRight")
    eventually(lambda: words(page, ".moment-words").startswith("event 0"))
    page.locator("h1").click()
    page.keyboard.press("]")
    eventually(lambda: "step 2" in words(page, ".moment-words"))
    strip.locator(".plot").click(position={"x": 300, "y": 120})
    eventually(lambda: "step" in words(page, ".moment-words") and "step 2" not in words(page, ".moment-words"))


def test_on_a_phone_the_chart_begins_on_the_first_screen(page: Any, recorded: Sender) -> None:
    page.set_viewport_size({"width": 400, "height": 800})
    page.goto(recorded.page)
    plot = drawn(page, "strip").locator(".plot-frame")
    eventually(lambda: part_on_first_screen(page, plot) > 0.25, what="the plot above the bar")
    assert plot.bounding_box()["y"] < page.locator(".around-charts .kpis").first.bounding_box()["y"]


def test_a_stretch_of_the_strip_is_seen_finer_and_the_link_keeps_it(page: Any, recorded: Sender) -> None:
    page.goto(recorded.page)
    strip = drawn(page, "strip")
    whole = words(page, ".strip .map-words")
    assert "peak reserved of the recording" in whole
    box = strip.locator(".plot").bounding_box()
    page.mouse.move(box["x"] + 200, box["y"] + 120)
    page.mouse.down()
    page.mouse.move(box["x"] + 260, box["y"] + 125, steps=4)
    page.mouse.up()
    eventually(lambda: "peak reserved in view" in words(page, ".strip .map-words"))
    first, end = int(query(page)["from"]), int(query(page)["to"])
    assert strip.evaluate("(chart) => [chart.traces[0].x[0], chart.traces[0].x.at(-1)]") == [first, end - 1]
    assert len(strip.evaluate("(chart) => chart.traces[0].x")) == end - first, "each moment of it is drawn"
    # Plotly's own range, where the hand let go, stands until then.
    eventually(lambda: strip.evaluate("(chart) => chart.plot.layout.xaxis.range") == [first, end])
    assert "event" not in query(page), "to drag is not to click"
    page.get_by_role("slider", name="Window in view").focus()
    page.keyboard.press("ArrowRight")
    eventually(lambda: int(query(page)["from"]) > first)
    page.get_by_role("button", name="end", exact=True).click()
    eventually(lambda: int(query(page)["to"]) > int(query(page)["event"]) >= int(query(page)["from"]))
    page.locator("h1").click()
    page.keyboard.press("Escape")
    eventually(lambda: words(page, ".strip .map-words") == whole)


def test_the_map_is_cells_from_afar_and_blocks_from_near_and_names_who_asked(page: Any, recorded: Sender) -> None:
    page.goto(recorded.page)
    chart = drawn(page, "map")
    assert chart.evaluate("(chart) => chart.traces[0].meta.kind") == "heat"
    assert "cells" in words(page, ".segment-map .map-words")
    plot = chart.locator(".plot")
    plot.hover(position={"x": 200, "y": 60})
    eventually(lambda: "train.py:87" in words(page, ".map-place"))
    assert "used" in words(page, ".map-place")
    plot.click(position={"x": 200, "y": 60})
    eventually(lambda: "low" in query(page))
    eventually(lambda: "every block drawn" in words(page, ".segment-map .map-words"))
    eventually(lambda: chart.evaluate("(chart) => chart.traces.some((trace) => trace.meta.kind === 'block')"))
    whole = int(query(page)["high"]) - int(query(page)["low"])
    assert whole > MIB
    page.mouse.move(5, 5)
    page.keyboard.press("Escape")
    eventually(lambda: "cells" in words(page, ".segment-map .map-words"))


def test_the_sweep_runs_at_once_ranks_and_says_what_to_do(page: Any, recorded: Sender) -> None:
    page.goto(recorded.page)
    table = settings_shown(page)
    rows = table.locator("tbody tr")
    assert "default settings as recorded" in " ".join(rows.first.inner_text().split())
    assert rows.count() >= 12
    assert page.locator("[data-residual]").get_attribute("data-residual") == "exact"
    # The run of these pages reserves more than its recording.
    assert page.locator(".advice").get_attribute("data-advice") in (None, "")
    assert "does not contain the run's peak" in page.locator(".advice").inner_text()
    assert re.search(r"(exact|band|estimate): \w", page.locator(".certainties").inner_text())
    assert "expandable_segments is experimental" in page.locator(".risks").inner_text()
    cards = table.locator("td.smallest").all_inner_texts()
    assert cards[1:] == sorted(cards[1:], key=lambda text: float(text.split()[0])), "ranked by the smallest card"
    assert "On 80.0 GiB" in table.locator("thead").inner_text()
    # the weights were there before the window: each row but the recorded one says what that leaves open
    sure = table.locator("[data-certainty]")
    assert sure.first.inner_text() == "exact"
    for row in rows.all()[1:]:
        word = "estimate" if "max_split_size_mb" in row.locator("code").inner_text() else "band"
        assert row.locator("[data-certainty]").inner_text() == word
        means = "the value can lie outside" if word == "estimate" else "lies in this range"
        assert means in (row.locator("span[title*='never full']").get_attribute("title") or "")
        assert (row.locator(".give-or-take").all_inner_texts() == ["no bound"]) == (word == "estimate")
        if word == "estimate":
            assert not row.locator(".best").count(), "what has no bound is not the least"
    assert "The recording starts mid-run" in sure.nth(1).get_attribute("title")
    assert "The recording starts mid-run" in page.locator(".whatif-notes").inner_text()
    # too small a card: the recorded settings run out, and the moment is a click away
    page.goto(f"{recorded.page}?card=1")
    out = table.locator("tbody tr").first.locator("button")
    out.wait_for(timeout=COMPILED_MS)
    assert "out of memory" in table.locator("tbody tr").first.inner_text()
    assert "On 1.00 GiB" in table.locator("thead").inner_text()
    event = re.search(r"event (\d+)", out.inner_text().replace(",", ""))
    assert event is not None
    out.click()
    eventually(lambda: query(page).get("event") == event[1])


def test_the_smallest_card_tells_what_other_beginnings_would_make_of_it(page: Any, server: Any) -> None:
    choose, allocator = random.Random(2), Allocator()
    held = [allocator.alloc(choose.randrange(1, 60) * MIB // 2) for _ in range(60)]
    for block in held[::3]:
        allocator.free(block)
    start, allocator.events = allocator.layout(), {name: [] for name in EVENTS}
    for _ in range(60):
        allocator.alloc(choose.randrange(1, 60) * MIB // 2)
    run = Sender(server.url, "uneven")
    run.send(run.agent.steps(4))
    run.record(window_of(start, allocator, last_step=1))
    page.goto(run.page)
    row = settings_shown(page).locator("[data-conf='max_split_size_mb:64']")
    assert re.fullmatch(r"1\.90 GiB\s+no bound", row.locator(".smallest").inner_text())
    bounded = page.locator(".whatif-table [data-conf='roundup_power2_divisions:8']")
    assert re.fullmatch(r"[\d.]+ GiB\s+± [\d.]+ MiB", bounded.locator(".smallest").inner_text())
    assert row.locator(".risk sup").count() == 2 and row.locator(".risk .below").count() == 0
    below = page.locator(".risks").inner_text()
    assert below.count("max_split_size_mb has made runs slower") == 1, "what is true of several settings stands once"


SEEN_PROGRESS = """
new MutationObserver(() => {
  const bar = document.querySelector('.whatif progress');
  if (bar) (window.seen ??= []).push([bar.value, bar.max, bar.parentElement.innerText]);
}).observe(document, { subtree: true, childList: true, attributes: true });
"""


def test_a_bar_tells_how_far_the_sweep_is(page: Any, server: Any) -> None:
    run = Sender(server.url, "a long one")
    run.send(run.agent.steps(4))
    run.record(training(120, 24))
    page.add_init_script(SEEN_PROGRESS)
    page.goto(run.page)
    settings_shown(page)
    seen = page.evaluate("window.seen")
    values = [value for value, _, _ in seen]
    assert values == sorted(values) and len(set(values)) > 1, "it moves, and never back"
    total = (
        page.locator(".whatif-table tbody tr").count() + 1
    )  # the replay that must give what was recorded comes first
    assert {most for value, most, _ in seen if value > 0} == {total}
    assert any(f"of {total} done" in words for _, _, words in seen)
    assert page.locator(".whatif progress").count() == 0, "it goes when it is done"


def test_the_moments_are_played_and_stopped(page: Any, recorded: Sender) -> None:
    page.goto(recorded.page)
    drawn(page, "map")
    page.get_by_role("button", name="start", exact=True).click()
    eventually(lambda: query(page).get("event") == "-1")
    page.get_by_role("button", name="Play", exact=True).click()
    stop = page.get_by_role("button", name="Stop", exact=True)
    stop.wait_for()
    slider = page.get_by_label("Event")
    eventually(lambda: int(slider.input_value()) > 5)
    stop.click()
    page.get_by_role("button", name="Play", exact=True).wait_for()
    stood = page.evaluate("new Promise((done) => setTimeout(() => done(location.search), 400))")
    assert page.evaluate("new Promise((done) => setTimeout(() => done(location.search), 600))") == stood
    last = int(slider.get_attribute("max"))
    slider.fill(str(last - 3))
    eventually(lambda: query(page).get("event") == str(last - 3))
    page.get_by_role("button", name="Play", exact=True).click()
    eventually(lambda: query(page).get("event") == str(last), what="the end")
    page.get_by_role("button", name="Play", exact=True).wait_for()


def test_cards_of_8_to_192_gib_can_be_chosen(page: Any, server: Any) -> None:
    run = Sender(server.url, "needs nine")
    run.send(run.agent.steps(4))
    run.record(training(2, 12, width=3072))
    page.goto(run.page)
    table = settings_shown(page)
    choice = page.get_by_label("Card", exact=True)
    sizes = choice.locator("option").all_inner_texts()
    assert sizes[0] == "80.0 GiB (as recorded)" and (sizes[1], sizes[-1]) == ("8 GiB", "192 GiB")
    first = table.locator("tbody tr").first
    assert "fits" in first.inner_text()
    choice.select_option("8")
    eventually(lambda: "On 8.00 GiB" in table.locator("thead").inner_text())
    assert "out of memory" in first.inner_text()
    assert query(page)["card"] == "8"
    choice.select_option("192")
    eventually(lambda: "On 192 GiB" in table.locator("thead").inner_text())
    assert "fits" in first.inner_text()
    choice.select_option("")
    eventually(lambda: "On 80.0 GiB" in table.locator("thead").inner_text())
    assert "card" not in query(page)


def test_where_memory_ran_out_the_page_tells_what_was_free_and_of_what_use(page: Any, server: Any) -> None:
    allocator = Allocator()
    start = allocator.layout()
    held = [allocator.alloc(3 * MIB) for _ in range(12)]
    for block in held[::2]:
        allocator.free(block)
    allocator.note("oom", 7 * MIB, 30 * MIB, 0)  # its address is what the device has free
    run = Sender(server.url, "ran out")
    run.send(run.agent.steps(4))
    run.record(window_of(start, allocator, last_step=1))
    page.goto(run.page)
    drawn(page, "strip")
    ended = page.get_by_role("region", name="Out of memory")
    ended.wait_for()
    assert "Failed request 30.0 MiB" in words(page, "[data-kpi=oom-asked]")
    assert re.fullmatch(r"Reserved 40\.0 MiB .*", words(page, "[data-kpi=oom-reserved]"))
    assert "Requested 18.0 MiB plus 0 B rounding" in words(page, "[data-kpi=oom-requested]")
    usable, unusable = (
        float(re.search(r"([\d.]+) MiB", words(page, f"[data-kpi=oom-{part}]"))[1])  # type: ignore[index]
        for part in ("usable", "unusable")
    )
    assert usable + unusable == pytest.approx(22, abs=0.11) and unusable > 0


def test_own_settings_are_tried_and_bad_ones_refused_in_pytorchs_words(page: Any, recorded: Sender) -> None:
    page.context.watcher.expected.append("422")
    page.goto(recorded.page)
    settings_shown(page)
    field = page.get_by_label("Your settings")
    field.fill("max_split_size_mb:1")
    field.press("Enter")
    refusal = page.locator(".own-settings [aria-live]")
    eventually(lambda: "PyTorch refuses 'max_split_size_mb:1'" in refusal.inner_text())
    field_box, box = field.bounding_box(), refusal.bounding_box()
    assert 0 <= box["y"] - field_box["y"] - field_box["height"] < 20, "it is next to the field"
    assert field.input_value() == "max_split_size_mb:1", "there to be mended"
    field.press_sequentially("2")
    assert refusal.inner_text() == "", "it is of what stood there before"
    field.fill('PYTORCH_CUDA_ALLOC_CONF="max_split_size_mb:333"')
    field.press("Enter")
    row = page.locator("[data-conf='max_split_size_mb:333']")
    row.wait_for(timeout=COMPILED_MS)
    assert "yours" in row.inner_text()
    assert field.input_value() == ""
    assert refusal.inner_text() == ""
    field.fill("foo:1")
    field.press("Enter")
    eventually(lambda: "foo: Unrecognized key" in refusal.inner_text())
    row.wait_for()
    assert field.input_value() == "foo:1", "also where others are asked again"
    assert query(page)["try"] == "max_split_size_mb:333"
    page.goto(f"{page.url.partition('?')[0]}?try=foo:1;max_split_size_mb:333")
    row.wait_for(timeout=COMPILED_MS)
    eventually(lambda: query(page)["try"] == "max_split_size_mb:333", what="what is refused leaves the address")
    assert "foo: Unrecognized key" in refusal.inner_text()
    page.get_by_role("button", name="remove max_split_size_mb:333").click()
    row.wait_for(state="detached")
    assert "try" not in query(page)


def test_several_recordings_can_be_chosen_and_deleted(page: Any, server: Any) -> None:
    run = Sender(server.url, "three of them")
    run.send(run.agent.steps(4))
    first = run.record(training(2, 6))
    second = run.record(training(2, 7, first_step=9, last_step=11, reason="asked for"))
    run.record(training(2, 8), only=1)
    page.goto(run.page)
    choice = page.get_by_label("Recording", exact=True)
    choice.wait_for()
    assert choice.locator("option").all_inner_texts() == [
        "steps 9 \u2013 11 · asked for",
        "steps 1 \u2013 2 · the first steps",
    ]
    assert words(page, "[data-coming]").endswith("25 % received")
    assert "Fragmentation 2" in words(page, ".tabs")
    before = words(page, "[data-kpi=reserved]")
    draws = {name: int(drawn(page, name).get_attribute("data-draws")) for name in ("strip", "map", "sizes")}
    choice.select_option(first)
    eventually(lambda: query(page).get("recording") == first)
    eventually(lambda: words(page, "[data-kpi=reserved]") not in ("", before))
    eventually(lambda: all(int(drawn(page, name).get_attribute("data-draws")) > draws[name] for name in draws))
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Delete", exact=True).click()
    eventually(lambda: choice.locator("option").count() == 1)
    assert choice.input_value() == second
    eventually(lambda: words(page, "[data-kpi=reserved]") == before)
    page.get_by_role("button", name="Delete", exact=True).click()
    eventually(lambda: choice.count() == 0)
    assert "Receiving a recording" in words(page, ".empty")
    assert not page.locator(".whatif").is_visible()


def test_what_is_deleted_is_not_asked_about_any_more(page: Any, server: Any) -> None:
    """Questions that are under way when it is deleted would be told as missing; the newest is what is shown by itself."""
    run = Sender(server.url, "two of them")
    run.send(run.agent.steps(4))
    older = run.record(training(2, 6))
    newest = run.record(training(2, 7, first_step=9, last_step=11, reason="asked for"))
    late: list[Any] = []
    page.route(re.compile(f"/recordings/{newest}/(whatif|sizes)"), lambda route: late.append(route))
    page.goto(run.page)
    choice = page.get_by_label("Recording", exact=True)
    drawn(page, "strip")
    eventually(lambda: len(late) >= 2)
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Delete", exact=True).click()
    eventually(lambda: choice.input_value() == older)
    for route in late:
        route.continue_()
    drawn(page, "sizes")
    eventually(lambda: page.locator(".whatif-table").count() == 1)


def test_a_recording_that_could_not_be_deleted_is_shown_again(page: Any, server: Any) -> None:
    page.context.watcher.expected.append("500")
    run = Sender(server.url, "kept")
    run.send(run.agent.steps(4))
    kept = run.record(training(2, 6))
    refused = {
        "status": 500,
        "content_type": "application/problem+json",
        "body": '{"title": "Not now", "detail": "The database is locked"}',
    }
    page.route(lambda url: url.endswith(kept), lambda route: route.fulfill(**refused))
    page.goto(run.page)
    drawn(page, "strip")
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Delete", exact=True).click()
    eventually(lambda: "The database is locked" in words(page, "[role=alert]"))
    drawn(page, "strip")
    assert page.get_by_label("Recording", exact=True).input_value() == kept


def test_a_replay_that_failed_is_not_said_to_be_under_way(page: Any, server: Any) -> None:
    run = Sender(server.url, "not replayed")
    run.send(run.agent.steps(4))
    run.record(training(2, 6))
    failed = {"job": "1", "state": "failed", "problem": "The simulator stopped.", "done": 0, "total": 0, "result": None}
    page.route(re.compile("/recordings/[^/]+/whatif"), lambda route: route.fulfill(json=failed))
    page.goto(run.page)
    eventually(lambda: "The replay failed." in words(page, ".whatif [role=alert]"))
    assert page.locator(".advice").count() == 0


def test_a_live_run_is_asked_and_what_it_records_appears(page: Any, server: Any) -> None:
    run = Sender(server.url, "live")
    run.send(run.agent.samples(5))
    page.goto(run.page)
    empty = page.locator(".empty")
    empty.wait_for()
    assert "records the next steps of this run" in empty.inner_text()
    drawn(page, "fragmentation")
    page.get_by_role("button", name="Record a window").click()
    page.get_by_text("recording the next steps").wait_for()
    assert run.send(run.agent.samples(5, at=1.0)).requests == [wire_messages.RECORD_WINDOW]
    run.record(training(2, 6, reason="asked for"))
    drawn(page, "strip")
    eventually(lambda: not empty.is_visible())
    run.send(run.agent.ended())
    eventually(lambda: page.get_by_role("button", name="Record a window").count() == 0)


def test_where_nothing_can_be_recorded_the_page_says_why(page: Any, server: Any) -> None:
    gone = Sender(server.url, "ended without")
    gone.send(gone.agent.samples(5), gone.agent.ended())
    page.goto(gone.page)
    page.locator(".empty").wait_for()
    assert "VRAMSCOPE_WINDOWS=0" in words(page, ".empty")
    assert "vramscope whatif snapshot.pickle" in words(page, ".empty")
    samples = drawn(page, "fragmentation")
    assert samples.bounding_box()["y"] < page.locator(".empty").bounding_box()["y"], "what is known comes first"
    cpu = Sender(server.url, "no card", devices=0)
    cpu.agent.attached = msgspec.structs.replace(
        cpu.agent.attached, devices=[wire_messages.Device(index=series.CPU, name="CPU (x86_64)")]
    )
    cpu.send(cpu.agent.samples(5))
    page.goto(cpu.page)
    page.get_by_text("This run used no CUDA device").wait_for()
    assert page.get_by_role("button", name="Record a window").count() == 0


def test_a_recording_that_cannot_be_read_is_called_so(page: Any, server: Any) -> None:
    page.context.watcher.expected.append("422")
    run = Sender(server.url, "damaged")
    run.send(
        wire_messages.Piece(artifact=new_id("damaged"), kind="window", number=0, pieces=1, about={}, data=b"no window")
    )
    page.goto(run.page)
    alert = page.locator("[role=alert]")
    alert.wait_for()
    assert "The bytes are not a recording" in alert.inner_text()
    assert not page.locator(".whatif").is_visible()


def test_what_was_predicted_stands_beside_what_was_measured(page: Any, server: Any) -> None:
    base = Sender(server.url, "as it was", allocator_settings="")
    other = Sender(server.url, "expandable", allocator_settings="expandable_segments:True")
    base.record(training(3, 12))
    other.send()
    peak = httpx.get(
        f"{server.url}/api/v1/compare/predictions?runs={base.agent.run},{other.agent.run}", trust_env=False
    ).json()
    assert [row["measured_peak_reserved_bytes"] for row in peak["rows"]] == [None, None]
    assert peak["steps"] == {"first": 1, "last": 3}
    start = base.agent.start_ns
    base.send(steps(3, start_ns=start, peak_reserved_bytes=1496 * MIB), base.agent.ended())
    # of later steps more was reserved: not in the recording, and not compared
    other.send(steps(4, start_ns=start, peak_reserved_bytes=[1400 * MIB, 1422 * MIB, 1422 * MIB, 4000 * MIB]))
    other.send(other.agent.ended())
    page.goto(f"{server.url}/compare?runs={base.agent.run},{other.agent.run}&base={base.agent.run}")
    card = page.locator(".predictions")
    own, changed = (card.locator(f"[data-run='{run.agent.run}']") for run in (base, other))
    eventually(lambda: "0.0 %" in own.inner_text(), seconds=COMPILED_MS / 1000)
    assert "1.46 GiB" in own.inner_text()
    result = changed.inner_text()
    assert re.search(r"expandable_segments:True\s+1\.39 GiB", result) and re.search(r"1\.39 GiB\s+0\.0 %", result)
    assert re.search(r"[\d.]+ [GM]iB \u2013 [\d.]+ [GM]iB\s+band", result), "where it may lie, and how sure that is"
    assert "exact" in own.inner_text()
    assert "The recording starts mid-run" in card.inner_text()
    assert "steps 1 to 3" in card.inner_text()
    assert "with equal addresses" in card.inner_text()


def test_it_fits_is_legible_and_nothing_lies_on_another(page: Any, recorded: Sender) -> None:
    page.goto(recorded.page)
    settings_shown(page)
    drawn(page, "map")
    drawn(page, "sizes")
    assert_legible(page)
