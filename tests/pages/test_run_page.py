"""One run: all its charts, its numbers, and a view that lives in the URL."""

from __future__ import annotations

import itertools
import math
import re
import threading
import time
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest
import sender
from browsing import drawn, query
from legibility import assert_legible
from waiting import eventually

from vramscope.protocol import messages as wire_messages

FIGURES = ["stack", "phases", "utilization", "host"]


def points(chart: Any) -> int:
    return int(chart.evaluate("(chart) => Math.max(...chart.traces.map((trace) => trace.x.length))"))


def zoom(page: Any, chart: Any) -> None:
    """Drag over the middle of a chart, as a reader does."""
    box = chart.locator(".plot").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.35, box["y"] + box["height"] * 0.4)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + box["height"] * 0.5, steps=6)
    page.mouse.up()


def test_draws_every_chart_and_says_in_words_what_it_shows(page: Any, server: Any) -> None:
    page.goto(f"{server.url}/runs/{sender.BASELINE.run}")
    for name in FIGURES:
        chart = drawn(page, name)
        assert chart.get_attribute("role") == "figure"
        assert "nothing recorded" not in chart.get_attribute("aria-label")
        assert chart.locator(".main-svg").count() > 0
    words = page.locator("[data-figure=stack]").get_attribute("aria-label")
    assert re.search(r"peak \d+\.\d GiB · step \d+, reserved \d+\.\d GiB; parameters \d+\.\d+ GiB, buffers", words), (
        words
    )


def test_the_key_figures_are_those_of_the_run(page: Any, server: Any) -> None:
    page.goto(f"{server.url}/runs/{sender.BASELINE.run}")
    strip = page.get_by_label("Key figures")
    eventually(lambda: "…" not in strip.inner_text())
    text = strip.inner_text()
    assert re.search(r"Peak allocated\s+\d\d\.\d GiB\s+step \d+ · backward\s", text), text
    assert "activations" not in text, "the verdict says it"
    assert re.search(r"Headroom\s+\d\d\.\d GiB", text), text
    assert "0.1 %" in text, "the cost of watching"
    assert "of step time, measured" in text
    verdict = page.locator("[data-verdict]").inner_text()
    assert re.search(r"It fits, with \d\d\.\d GiB of headroom", verdict), verdict
    assert re.search(
        r"The peak is \d\d\.\d GiB, in the backward pass of step \d+; \d\d % of it is activations", verdict
    ), verdict


def test_a_dry_run_shows_its_own_answer_and_no_headroom_in_words(page: Any, server: Any) -> None:
    """The card may be larger than the one in question, and a result that rests on missing values is no "It fits"."""
    rank = sender.Rank(server.url, sender.Training(name="dry run of train.py", run="d0000000000000f0"))
    samples, steps = rank.make(3)
    rank.post(rank.attached(), *rank.blocks(samples, steps), rank.ended())
    address = f"{server.url}/api/v1/runs/{rank.training.run}"
    eventually(lambda: httpx.patch(address, json={"tags": ["dry run", "not trustworthy"]}).is_success)
    page.goto(f"{server.url}/runs/{rank.training.run}")
    verdict = page.locator("[data-verdict]")
    eventually(lambda: verdict.inner_text().startswith("Dry run: not trustworthy."))
    assert "The peak is" in verdict.inner_text()
    assert "fits" not in verdict.inner_text()


def test_peaks_that_are_lower_bounds_are_marked_everywhere(page: Any, server: Any) -> None:
    """Somebody reset the counters behind PyTorch's functions: in the key figures, the facts and the chart of the steps."""
    rank = sender.Rank(server.url, sender.Training(name="reset by others", run="pages000000000f0"))
    samples, steps = rank.make(40)
    steps["foreign_reset"][[9, 10, 11]], steps["foreign_reset"][20] = 2, 1
    rank.post(rank.attached(), *rank.blocks(samples, steps), rank.ended())
    page.goto(f"{server.url}/runs/{rank.training.run}")
    peak = page.locator("[data-kpi=peak]")
    eventually(lambda: re.match(r"≥ \d\d\.\d GiB", peak.locator(".value").inner_text()))
    assert "lower bound: counters were reset in 3 steps" in peak.locator(".note").inner_text()
    assert "reset by other code in 4 steps: in 3 of them outside" in page.locator("main").inner_text()
    assert "The peak is at least" in page.locator("[data-verdict]").inner_text()
    chart = drawn(page, "stack")
    marks = """(chart) => chart.traces.filter((trace) => trace.meta.kind === "marker")
      .map((trace) => [trace.meta.role, Array.from(trace.x)])"""
    page.keyboard.press("x")
    eventually(lambda: dict(chart.evaluate(marks)) == {"lower-bound": [10, 11, 12], "reset": [21]})
    assert "counters reset: lower bound" in chart.locator(".legend").inner_text()
    page.goto(f"{server.url}/runs/{sender.BASELINE.run}")
    eventually(lambda: re.match(r"\d\d\.\d GiB", peak.locator(".value").inner_text()))
    page.get_by_role("heading", name="Environment").wait_for()
    assert "reset" not in " ".join(page.locator("[data-kpi=peak], .facts").all_inner_texts())


def test_sampled_peaks_are_shown_as_lower_bounds(page: Any, server: Any) -> None:
    """A device without peak counters: the highest sample is all that is known."""
    rank = sender.Rank(server.url, sender.Training(name="xpu", run="pages000000000f7"))
    samples, steps = rank.make(40)
    for name in [name for name in steps if "peak" in name]:
        steps[name][:] = -1
    samples["device_used_bytes"][:] = -1
    rank.post(rank.attached(), *rank.blocks(samples, steps), rank.ended())
    page.goto(f"{server.url}/runs/{rank.training.run}")
    peak, headroom = page.locator("[data-kpi=peak]"), page.locator("[data-kpi=headroom]")
    eventually(lambda: re.match(r"≥ \d\d\.\d GiB", peak.locator(".value").inner_text()))
    assert "lower bound: sampled" in peak.locator(".note").inner_text()
    assert re.match(r"≤ [\d.]+ GiB", headroom.locator(".value").inner_text())
    assert headroom.locator(".note").inner_text() == "peak reserved is a sample"


def test_what_is_wrong_is_counted_and_leads_to_where_it_is_told(page: Any, server: Any) -> None:
    alerts = page.locator("[data-kpi=alerts]")
    page.goto(f"{server.url}/runs/{sender.TOO_LARGE.run}")
    eventually(lambda: alerts.locator(".value").inner_text() == "3")
    assert "1 out-of-memory error" in alerts.locator(".note").inner_text(), "it died of one of which no record"
    assert "unknown: leaks" in alerts.locator(".note").inner_text()
    alerts.get_by_role("link", name="2 findings").click()
    assert page.evaluate("location.pathname").endswith(sender.TOO_LARGE.run), "they are on this page"
    page.goto(f"{server.url}/runs/{sender.LEAKY.run}")
    alerts.get_by_role("link", name=re.compile("leak")).click()
    eventually(lambda: page.evaluate("location.pathname").endswith("/leaks"))
    page.goto(f"{server.url}/runs/{sender.FIXED.run}")
    eventually(lambda: re.match("none", alerts.locator(".value").inner_text()))


def test_what_the_address_asks_for_in_vain_is_said_and_can_be_taken_away(page: Any, server: Any) -> None:
    page.goto(f"{server.url}/runs/{sender.BASELINE.run}?x=steps&from=abc&zoom=2&smooth=1")
    note = page.locator(".address-note")
    note.get_by_role("button", name="Remove").wait_for()
    text = note.inner_text()
    for words in (
        "x=steps is none of time, step, clock",
        "from=abc is not a number",
        "zoom is not a parameter of this page",
    ):
        assert words in text
    note.get_by_role("button", name="Remove").click()
    eventually(lambda: query(page) == {"smooth": "1"})
    eventually(lambda: note.inner_text() == "")
    page.locator("nav.tabs").get_by_text("Leaks").click()
    eventually(lambda: page.evaluate("location.pathname").endswith("/leaks"))
    page.goto(f"{server.url}/runs?sort=-no_such_column&state=broken")
    page.locator("tbody tr").first.wait_for()
    assert "sort=-no_such_column is not known" in note.inner_text()
    assert "state=broken is none of running, finished, failed, lost" in note.inner_text()


def test_a_failed_run_says_why(page: Any, server: Any) -> None:
    page.goto(f"{server.url}/runs/{sender.TOO_LARGE.run}")
    banner = page.locator(".banner.bad")
    banner.wait_for()
    assert "torch.OutOfMemoryError" in banner.inner_text()
    assert "Tried to allocate 2.50 GiB" in banner.inner_text()


def test_a_failed_run_says_what_changed_before(page: Any, own_server: Any) -> None:
    """The last finished step is compared with those before it. Nothing is said to have changed where it did not."""
    server = own_server()
    for name, slower, killed in (("slow at the end", 5, False), ("as always", 1, True)):
        rank = sender.Rank(
            server.url, sender.Training(name=name, run=f"fa11ed0000000{slower:03d}"), start=time.time() - 60
        )
        rank.post(rank.attached())
        samples, steps = rank.make(30)
        steps["duration_ns"][-1] *= slower
        samples["process_rss_bytes"][-1] *= 3 if killed else 1
        rank.post(*rank.blocks(samples, steps))
        losses = [2.5 - 0.01 * step for step in range(29)] + [math.nan if slower > 1 else 2.2]
        of_losses = wire_messages.Scalars(
            rows=30,
            time_ns=np.asarray(steps["time_ns"], "<i8").tobytes(),
            step=np.arange(1, 31).astype("<i8").tobytes(),
            columns={"loss": np.array(losses, "<f8").tobytes()},
        )
        rank.post(scalars=[of_losses])
        rank.finish("failed", ("RuntimeError", "expected scalar type Half"))
        rank.client.close()
        page.goto(f"{server.url}/runs/{rank.training.run}")
        card = page.locator(".before-failure")
        card.wait_for()
        said = card.locator("p").inner_text()
        marked = [row.get_attribute("data-changed") for row in card.locator(".stands-out").all()]
        if slower > 1:
            assert marked == ["step time", "loss"]
            assert re.search(
                r"In step 30, step time was higher than before: [\d.]+ s instead of \d+ ms to \d+ ms", said
            )
            assert said.endswith("; loss was NaN.")
            assert_legible(page)
        else:
            assert marked == ["memory of the process (RSS)"]
            assert said.startswith("At the end, memory of the process (RSS) was higher than before: 15"), said
        assert re.search(r"step 30 ended .* before the end of the run", card.locator("header").inner_text())
        assert "29 steps before" in card.inner_text()
    page.goto(f"{server.url}/runs/{past_run(server, 'finished')}")
    drawn(page, "stack")
    assert not card.is_visible(), "only for runs that failed or were lost"


def test_a_group_of_steps_before_a_failure_is_named_and_counted_as_such(page: Any, own_server: Any) -> None:
    server = own_server()
    rank = sender.Rank(server.url, sender.Training(name="short steps", run="fa11ed0000000010"), start=time.time() - 60)
    rank.post(rank.attached())
    samples, steps = rank.make(12)
    steps["step"] = 10 * steps["step"]
    steps["first_step"] = steps["step"] - 9
    steps["peak_allocated_bytes"][-1] *= 3
    rank.post(*rank.blocks(samples, steps))
    rank.finish("failed", ("RuntimeError", "expected scalar type Half"))
    rank.client.close()
    page.goto(f"{server.url}/runs/{rank.training.run}")
    card = page.locator(".before-failure")
    card.wait_for()
    assert card.locator("p").inner_text().startswith("In steps 111 to 120, peak allocated was higher than before")
    heads = card.locator("th[scope=col]").all_inner_texts()
    assert [head.lower() for head in heads[:2]] == ["100 steps before", "steps 111 to 120"]


@pytest.mark.parametrize(("gpu", "shown"), [("NVIDIA A100", True), ("emulated A100", False)])
def test_times_and_losses_of_an_emulated_gpu_are_left_out_before_a_failure(
    page: Any, own_server: Any, gpu: str, shown: bool
) -> None:
    server = own_server()
    training = sender.Training(name="emulated", run=f"fa11ed000000002{shown:d}", gpu=gpu)
    rank = sender.Rank(server.url, training, start=time.time() - 60)
    rank.post(rank.attached())
    samples, steps = rank.make(12)
    rank.post(*rank.blocks(samples, steps))
    of_losses = wire_messages.Scalars(
        rows=12,
        time_ns=np.asarray(steps["time_ns"], "<i8").tobytes(),
        step=np.arange(1, 13).astype("<i8").tobytes(),
        columns={"loss": np.linspace(2, 1, 12).astype("<f8").tobytes()},
    )
    rank.post(scalars=[of_losses])
    rank.finish("failed", ("RuntimeError", "expected scalar type Half"))
    rank.client.close()
    page.goto(f"{server.url}/runs/{training.run}")
    page.locator(".before-failure [data-changed]").first.wait_for()
    rows = [row.get_attribute("data-changed") for row in page.locator(".before-failure [data-changed]").all()]
    assert "peak allocated" in rows
    assert [name in rows for name in ("step time", "loss")] == [shown, shown]


def past_run(server: Any, state: str) -> str:
    return sender.past(server.url, sender.Training(name="ended"), hours=1, steps=30, state=state).run


def test_a_run_without_cuda_shows_what_is_known_and_no_empty_charts(page: Any, server: Any) -> None:
    page.goto(f"{server.url}/runs/{sender.ON_CPU.run}")
    drawn(page, "host")
    assert "Trained on the CPU" in page.locator("[data-verdict]").inner_text()
    resident = page.locator("[data-kpi=resident] .value")
    eventually(lambda: re.fullmatch(r"[\d.]+ [KMG]iB", resident.inner_text()))
    for name in ("stack", "utilization"):
        assert not page.locator(f"vs-chart[data-figure={name}]").is_visible()
    assert not page.locator("[data-kpi=peak]").is_visible()


def test_bars_split_the_card_down_to_the_categories(page: Any, server: Any) -> None:
    page.goto(f"{server.url}/runs/{sender.BASELINE.run}")
    page.locator(".peak-stack .level").first.wait_for()
    for level in ("card", "reserved", "allocated"):
        bar = page.locator(f".level[data-level={level}]")
        exact = [int(re.sub(r"\D", "", text)) for text in titles(bar.locator("li"))]
        total = float(bar.locator(".level-name .tabular").inner_text().removesuffix(" GiB"))
        assert sum(exact) / 2**30 == pytest.approx(total, abs=0.051), level
    parts = page.locator(".level[data-level=allocated] li").all_inner_texts()
    assert any(part.startswith("activations, temporaries") for part in parts)


def titles(elements: Any) -> list[str]:
    return [element.get_attribute("title") for element in elements.all()]


def test_a_leaking_run_names_the_change_most_worth_trying(page: Any, server: Any) -> None:
    page.goto(f"{server.url}/runs/{sender.LEAKY.run}")
    change = page.locator(".next-change")
    eventually(lambda: "Most worth trying: fix the leak of" in change.inner_text())
    change.get_by_role("link", name="See the leak").click()
    page.wait_for_url("**/leaks")


def test_a_change_that_is_pending_is_asked_for_again(page: Any, server: Any) -> None:
    asked: list[str] = []

    def answered(route: Any) -> None:
        asked.append(route.request.url)
        change = route.fetch().json()
        if len(asked) == 1:
            change |= {"what": None, "reason": "The recording is still being replayed.", "pending": True}
        route.fulfill(json=change)

    page.route("**/next-change", answered)
    page.goto(f"{server.url}/runs/{sender.LEAKY.run}")
    change = page.locator(".next-change")
    eventually(lambda: "still being replayed" in change.inner_text())
    eventually(lambda: "Most worth trying: fix the leak of" in change.inner_text())
    assert len(asked) == 2


def test_on_a_narrow_screen_the_buttons_of_the_head_are_in_a_menu(page: Any, server: Any) -> None:
    page.set_viewport_size({"width": 400, "height": 800})
    page.goto(f"{server.url}/runs/{sender.BASELINE.run}")
    link = page.get_by_role("link", name="Compare…")
    page.locator(".peak-stack").wait_for()
    assert not link.is_visible()
    page.get_by_role("button", name="Actions").click()
    link.wait_for()


@pytest.mark.parametrize(("run", "figure"), [(sender.BASELINE.run, "stack"), (sender.ON_CPU.run, "host")])
def test_on_a_phone_the_first_chart_is_on_the_first_screen(page: Any, server: Any, run: str, figure: str) -> None:
    page.set_viewport_size({"width": 400, "height": 800})
    page.goto(f"{server.url}/runs/{run}")
    plot = page.locator(f"vs-chart[data-figure={figure}][data-draws] .plot-frame")
    plot.wait_for()
    page.locator("[data-verdict]").wait_for()
    bars = page.locator(".rail").bounding_box()["y"]
    eventually(lambda: plot.bounding_box()["y"] + plot.bounding_box()["height"] <= bars, what="the plot above the bar")
    assert page.locator("[data-verdict]").bounding_box()["y"] < plot.bounding_box()["y"]
    assert plot.bounding_box()["y"] < page.locator(".kpis").bounding_box()["y"]


IN_ORDER = """() => {
  const parts = ["[data-verdict]", "vs-chart[data-draws] .plot-frame", ".mini-map", ".view-bar", ".kpis", ".panels"];
  const found = parts.map((part) => document.querySelector(`main ${part}`));
  const place = (element) => element.getBoundingClientRect().top;
  const inOrder = (least) => found.toSorted(least).map((element) => parts[found.indexOf(element)].split(" ")[0]);
  return {
    read: inOrder((a, b) => (a.compareDocumentPosition(b) & Node.DOCUMENT_POSITION_FOLLOWING ? -1 : 1)),
    seen: inOrder((a, b) => place(a) - place(b)),
  };
}"""


FIRST = {400: ["[data-verdict]", "vs-chart[data-draws]"], 1440: ["[data-verdict]", ".kpis"]}
"""First two parts at a width."""


def resize(page: Any, width: int) -> None:
    """Wait until both orders are those of the width. They are equal before the page handles its new width, too."""
    page.set_viewport_size({"width": width, "height": 900})
    first = FIRST[width]
    eventually(
        lambda: (order := page.evaluate(IN_ORDER))["read"] == order["seen"] and order["read"][:2] == first,
        what=f"the order at {width} pixels",
    )


@pytest.mark.parametrize("run", [sender.BASELINE.run, sender.ON_CPU.run])
def test_tab_key_and_screen_reader_follow_what_is_seen(page: Any, server: Any, run: str) -> None:
    """On a phone the first chart comes before the key figures, for the eye and in the document."""
    page.goto(f"{server.url}/runs/{run}")
    page.locator("vs-chart[data-draws]").first.wait_for()
    page.locator("[data-verdict]").wait_for()
    for width in (1440, 400, 1440):
        resize(page, width)


def test_the_focus_stays_when_the_order_changes(page: Any, server: Any) -> None:
    """A moved element loses the focus; a window that becomes wider, or a tablet that is turned, moves them."""
    page.goto(f"{server.url}/runs/{sender.BASELINE.run}")
    page.locator("vs-chart[data-draws]").first.wait_for()
    page.locator("[data-verdict]").wait_for()
    button = page.locator(".view-bar button").first
    button.focus()
    for width in (400, 1440):
        resize(page, width)
        assert button.evaluate("(button) => button === document.activeElement"), width


def test_who_ran_what_where(page: Any, server: Any) -> None:
    page.goto(f"{server.url}/runs/{sender.BF16.run}")
    page.get_by_role("heading", name="Environment").wait_for()
    text = page.locator("main").inner_text()
    for part in (
        "node-00, pid 4100",
        "2.6.0+cu124",
        "550.54.15",
        "expandable_segments:True",
        "3f1c9ab27d50",
        "python train.py",
        "model.layers",
    ):
        assert part in text


def test_how_it_is_trained_declared_and_seen(page: Any, server: Any) -> None:
    """Chips under the name; in the table what is declared beside what was seen; what cannot be seen is unknown, not absent."""
    page.goto(f"{server.url}/runs/{sender.CHECKPOINTING.run}")
    chips = page.locator(".techniques-line .chip")
    chips.first.wait_for()
    assert chips.all_inner_texts() == ["checkpointing", "bf16", "AdamW fused", "batch 32 x 512", "attention sdpa"]
    assert "transformer.h.0 to transformer.h.11" in chips.first.get_attribute("title")
    row = page.locator("[data-technique=gradient_checkpointing]")
    assert row.locator("td").all_inner_texts() == [
        "activation_checkpointing=True",
        "recomputed in backward: 12 GPT2Block (transformer.h.0 to transformer.h.11); variant: non-reentrant",
    ]
    assert page.locator("[data-technique=attention] td").last.inner_text() == "unknown"
    assert page.locator(".findings").count() == 0


def test_findings_stand_above_the_numbers_with_their_line(page: Any, server: Any) -> None:
    page.goto(f"{server.url}/runs/{sender.TOO_LARGE.run}")
    findings = page.locator(".findings li")
    findings.first.wait_for()
    assert findings.count() == 2
    assert page.locator(".techniques-line .chip.missing").text_content() == "checkpointing not seen"
    assert "call model.train() before the loop" in findings.first.inner_text()
    line = page.locator("[data-finding=checkpoint-closure] code")
    assert (line.inner_text(), line.get_attribute("title")) == (
        "model_with_checkpoints.py:87",
        "/home/ada/gpt2/model_with_checkpoints.py:87",
    )
    page.goto(f"{server.url}/runs/{sender.HOSTILE.run}")
    page.locator(".findings li").wait_for()
    assert sender.MARKUP in page.locator(".findings p").first.inner_text()
    page.goto(f"{server.url}/runs/{sender.ON_CPU.run}")
    page.get_by_text("Not reported. VRAMSCOPE_TECHNIQUES=0 turns").wait_for()


def test_the_last_label_of_an_hour_is_shown_in_whole(page: Any, server: Any) -> None:
    rank = sender.Rank(server.url, sender.Training(name="one hour", step_seconds=66.6), start=time.time() - 3700)
    rank.history(60, interval=10)
    rank.finish()
    page.goto(f"{server.url}/runs/{rank.training.run}")
    assert "1:00:00" in drawn(page, "stack").locator(".xtick text").all_text_contents()
    assert_legible(page)


def test_zooming_fetches_the_window_and_the_url_brings_it_back(page: Any, server: Any) -> None:
    page.goto(f"{server.url}/runs/{sender.BASELINE.run}")
    memory = drawn(page, "host")
    whole = memory.evaluate("(chart) => chart.figure.data.length")
    with page.expect_request(lambda request: "figures/host" in request.url and "from=" in request.url):
        zoom(page, memory)
    eventually(lambda: "from" in query(page) and "to" in query(page))
    start, end = float(query(page)["from"]), float(query(page)["to"])
    assert 0 < start < end
    # closer in, the same number of points shows single samples: the envelope's extra traces are gone
    eventually(lambda: memory.evaluate("(chart) => chart.traces[0].x[0]") >= start - 1)
    assert whole > 0
    page.reload()
    memory = drawn(page, "host")
    shown = memory.evaluate("(chart) => chart.plot.layout.xaxis.range")
    assert shown == pytest.approx([start, end], abs=0.01)
    page.keyboard.press("Escape")
    eventually(lambda: "from" not in query(page))
    eventually(lambda: memory.evaluate("(chart) => chart.traces[0].x[0]") < start)


def test_steps_instead_of_time(page: Any, server: Any) -> None:
    page.goto(f"{server.url}/runs/{sender.BASELINE.run}")
    drawn(page, "stack")
    page.keyboard.press("x")
    eventually(lambda: query(page).get("x") == "step")
    stack = page.locator("vs-chart[data-figure=stack]")
    eventually(lambda: stack.evaluate("(chart) => chart.plot.layout.xaxis.title.text") == "step")
    assert stack.evaluate("(chart) => chart.traces[0].x.at(-1)") == pytest.approx(900, abs=2)
    page.goto(f"{server.url}/runs/{sender.BASELINE.run}?x=step&from=100&to=140")
    stack = drawn(page, "stack")
    assert points(stack) == 42, "41 steps, and the begin of the first"
    page.keyboard.press("]")
    eventually(lambda: query(page).get("from") == "101")


def test_the_mini_map_shows_the_window_and_its_brush_moves_it(page: Any, server: Any) -> None:
    page.goto(f"{server.url}/runs/{sender.BASELINE.run}?x=step&from=300&to=500")
    brush, end = page.get_by_role("slider", name="Window in view"), page.get_by_role("slider", name="End of the window")
    brush.wait_for()
    assert brush.get_attribute("aria-valuetext") == "300 to 500"
    assert end.get_attribute("aria-valuemax") == "900"
    for name in ("stack", "utilization"):
        drawn(page, name)
    # what stands above has its height: the numbers, and the mark of the baseline
    eventually(lambda: "GiB" in page.locator("[data-kpi=allocated] .value").inner_text())
    page.locator(".chip.baseline").first.wait_for()
    page.locator(".mini-field").scroll_into_view_if_needed()

    def drag(slider: Any, by: float) -> None:
        """By a share of the whole. Again where what stands above it grew by a line in this very moment."""
        before = query(page)
        for _ in range(5):
            box, whole = slider.bounding_box(), page.locator(".mini-field").bounding_box()
            middle, height = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
            page.mouse.move(middle, height)
            page.mouse.down()
            page.mouse.move(middle + by * whole["width"], height, steps=5)
            page.mouse.up()
            page.wait_for_timeout(1000)
            if query(page) != before:
                return

    drag(brush, 1 / 9)
    eventually(lambda: float(query(page)["from"]) == pytest.approx(400, abs=2))
    assert float(query(page)["to"]) == pytest.approx(600, abs=2), "moved, and as wide as before"
    drag(end, 1 / 9)
    eventually(lambda: float(query(page)["to"]) == pytest.approx(700, abs=2))
    assert float(query(page)["from"]) == pytest.approx(400, abs=2)
    brush.focus()
    page.keyboard.press("End")
    eventually(lambda: float(query(page)["to"]) == 900)
    page.keyboard.press("ArrowLeft")
    eventually(lambda: float(query(page)["to"]) == pytest.approx(870, abs=2))
    stack = page.locator("vs-chart[data-figure=stack]")
    eventually(lambda: stack.evaluate("(chart) => chart.plot.layout.xaxis.range[1]") == pytest.approx(870, abs=2))
    page.locator(".mini-field").dblclick(position={"x": 5, "y": 10})
    eventually(lambda: "from" not in query(page))


def test_a_clock_instead_of_seconds_keeps_the_window(page: Any, server: Any) -> None:
    page.goto(f"{server.url}/runs/{sender.BASELINE.run}?from=60&to=180")
    memory = drawn(page, "host")
    page.get_by_role("button", name="Clock").click()
    eventually(lambda: query(page) == {"from": "60", "to": "180", "x": "clock"})
    eventually(lambda: memory.evaluate("(chart) => chart.plot.layout.xaxis.title.text") == "time of day")
    ticks = memory.evaluate("(chart) => chart.plot.layout.xaxis.ticktext")
    assert ticks and all(re.search(r"\d\d:\d\d", text) for text in ticks)
    began = memory.evaluate("(chart) => chart.figure.layout.meta.x0_seconds")
    memory.scroll_into_view_if_needed()
    box = memory.locator(".plot").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.move(box["x"] + box["width"] / 2 + 5, box["y"] + box["height"] / 2)
    title = memory.locator(".hoverlayer .legendtitletext")
    eventually(lambda: re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", title.text_content()))
    shown = page.evaluate("(text) => new Date(text.replace(' ', 'T')).getTime() / 1000", title.text_content())
    assert began + 60 <= shown <= began + 180


def test_smooth_lines_keep_the_measured_ones(page: Any, server: Any) -> None:
    page.goto(f"{server.url}/runs/{sender.BASELINE.run}")
    host = drawn(page, "host")
    lines = """(chart, role) => chart.plot.data.filter((trace) => trace.meta.role === role && trace.meta.kind === "line")
      .map((trace) => ({ opacity: trace.opacity ?? 1, top: Math.max(...trace.y), as_measured: String(trace.y) }))"""
    [measured] = host.evaluate(lines, "process-rss")
    page.keyboard.press("s")
    eventually(lambda: query(page).get("smooth") == "1")
    eventually(lambda: len(host.evaluate(lines, "process-rss")) == 2)
    faint, smooth = host.evaluate(lines, "process-rss")
    assert faint["as_measured"] == measured["as_measured"] and faint["opacity"] < 0.5
    assert smooth["top"] < measured["top"]
    page.reload()
    host = drawn(page, "host")
    assert len(host.evaluate(lines, "process-rss")) == 2
    page.get_by_role("button", name="Smooth lines").click()
    eventually(lambda: len(host.evaluate(lines, "process-rss")) == 1)


def test_a_chart_as_a_table_and_as_csv(page: Any, server: Any) -> None:
    page.goto(f"{server.url}/runs/{sender.TOO_LARGE.run}")
    chart = drawn(page, "stack")
    chart.get_by_role("button", name="Table").click()
    head = chart.locator(".chart-table th").all_inner_texts()
    assert head[0] == "seconds since start"
    assert "parameters, GiB" in head
    assert chart.locator(".chart-table tbody tr").count() == 41
    chart.locator("summary").click()
    with page.expect_download() as downloading:
        chart.get_by_role("button", name="CSV numbers").click()
    lines = downloading.value.path().read_text().splitlines()
    assert len(lines) == 42
    chart.locator("summary").click()
    with page.expect_download() as downloading:
        chart.get_by_role("button", name="PNG picture").click()
    assert downloading.value.path().read_bytes().startswith(b"\x89PNG")


def test_a_legend_switches_a_series_off(page: Any, server: Any) -> None:
    page.goto(f"{server.url}/runs/{sender.BASELINE.run}")
    host = drawn(page, "host")
    name = "this process (RSS)"
    host.get_by_role("button", name=name).click()
    eventually(lambda: host.get_by_role("button", name=name).get_attribute("aria-pressed") == "false")
    shown = "(chart) => chart.plot.data.filter((trace) => trace.meta.role === 'process-rss').every((trace) => !trace.visible)"
    eventually(lambda: host.evaluate(shown))
    assert query(page) == {"hide": "process-rss"}
    page.reload()
    eventually(lambda: drawn(page, "host").evaluate(shown), what="a link that shows the same")
    assert page.locator(".address-note").inner_text() == ""
    host.get_by_role("button", name=name).click()
    eventually(lambda: query(page) == {} and not host.evaluate(shown))


def test_ranks_have_a_table_and_each_can_be_shown(page: Any, server: Any) -> None:
    page.goto(f"{server.url}/runs/{sender.EIGHT.run}")
    panel = page.locator("section.ranks")
    panel.wait_for()
    assert "7 of 8 reporting" in panel.inner_text()
    assert "No data yet: rank 7" in panel.inner_text()
    worst = panel.locator("tr.worst")
    assert worst.count() == 1
    with_peak = worst.get_by_role("button").first.inner_text().removeprefix("rank ")
    assert with_peak != "0" and page.get_by_label("Rank and device").input_value() == f"{with_peak}/0", (
        "that of the peak"
    )
    eventually(lambda: page.locator(".peak-stack header").inner_text().splitlines()[-1].startswith(f"rank {with_peak}"))
    panel.get_by_role("button", name="rank 3").click()
    eventually(lambda: query(page).get("rank") == "3")
    assert page.get_by_label("Rank and device").input_value() == "3/0"
    eventually(lambda: panel.locator("tr.selected").inner_text().startswith("rank 3"))
    panel.locator("thead").get_by_role("button", name="Peak allocated").click()
    first, last = panel.locator("tbody tr").first, panel.locator("tbody tr").last
    eventually(lambda: "worst" in (first.get_attribute("class") or ""), what="the highest peak first")
    panel.locator("thead").get_by_role("button", name="Peak allocated").click()
    eventually(lambda: "worst" in (last.get_attribute("class") or ""), what="the highest peak last")


def test_the_heat_map_of_ranks_has_a_colour_for_each_and_chooses_one(page: Any, server: Any) -> None:
    held: list[Any] = []
    peaks = re.compile(r"/series\?.*names=peak_allocated_bytes&")
    page.route(peaks, lambda route: held.append(route))
    page.goto(f"{server.url}/runs/{sender.EIGHT.run}")
    heat = page.locator(".rank-map")
    canvas = heat.locator("canvas")
    eventually(
        lambda: canvas.get_attribute("aria-label") == "Allocated memory at the peak of each step, by rank." and held,
        what="a name before the first peaks",
    )
    page.unroute(peaks)
    page.reload()
    eventually(
        lambda: re.search(
            r"Highest: rank \d with \d\d\.\d GiB. Lowest: rank \d with", canvas.get_attribute("aria-label") or ""
        )
    )
    colours = """(canvas) => { const { data } = canvas.getContext("2d").getImageData(120, 0, 1, canvas.height);
      return Array.from({ length: canvas.height }, (_, rank) => Array.from(data.slice(4 * rank, 4 * rank + 4)).join()); }"""
    eventually(lambda: canvas.evaluate(colours)[:7].count("0,0,0,0") == 0)
    rows = canvas.evaluate(colours)
    assert len(rows) == 8 and rows[7] == "0,0,0,0", "rank 7 has sent nothing"
    assert len(set(rows)) > 3, "ranks differ"
    box = heat.locator(".rank-field").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] * 3.5 / 8)
    eventually(lambda: re.match(r"rank 3 · step 1\d\d · \d\d\.\d GiB", heat.locator("header .tabular").inner_text()))
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] * 3.5 / 8)
    eventually(lambda: query(page).get("rank") == "3")
    page.goto(f"{server.url}/runs/{sender.BASELINE.run}")
    drawn(page, "stack")
    assert not heat.is_visible(), "a single rank"


def test_live_rows_move_the_charts_without_reload(page: Any, server: Any, live_run: Any) -> None:
    training = live_run(server, name="moving")
    eventually(lambda: page.goto(f"{server.url}/runs/{training.run}").status == 200)
    memory = drawn(page, "host")
    before = float(memory.get_attribute("data-newest"))
    eventually(lambda: float(memory.get_attribute("data-newest")) > before + 1.5, what="newer points in the chart")
    times = memory.evaluate("(chart) => chart.traces.find((trace) => trace.meta.role === 'process-rss').x")
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert max(gaps) < 0.15, "no sample is lost between the window that was fetched and the first live row"
    assert min(gaps) > 0.05, "and none is drawn twice"
    value = page.locator("[data-kpi=allocated] .value")
    first = value.inner_text()
    eventually(lambda: value.inner_text() != first, what="the allocated of now")
    page.keyboard.press("Space")
    page.locator(".live[data-state=paused]").wait_for()
    shown = []

    def stands_still() -> bool:
        shown.append(memory.get_attribute("data-newest"))
        page.wait_for_timeout(1200)
        return bool(memory.get_attribute("data-newest") == shown[-1])

    eventually(stands_still, what="a chart that does not move")
    paused = shown[-1]
    assert query(page) == {"paused": "1"}
    page.reload()
    page.locator(".live[data-state=paused]").wait_for()
    page.get_by_role("button", name="Resume").wait_for()
    drawn(page, "host")
    page.keyboard.press("Space")
    eventually(lambda: query(page) == {})
    eventually(lambda: float(memory.get_attribute("data-newest")) > float(paused) + 1)


def test_the_mini_map_grows_with_a_young_run(page: Any, server: Any, live_run: Any) -> None:
    """It does not wait for the refresh every ten seconds, which is switched off here."""
    page.add_init_script(
        "const every = setInterval; window.setInterval = (act, ms) => ms === 10000 ? 0 : every(act, ms)"
    )
    training = live_run(server, name="young")
    eventually(lambda: page.goto(f"{server.url}/runs/{training.run}").status == 200)
    scale = page.locator(".mini-scale")
    scale.locator("span").first.wait_for()
    before = scale.inner_text()
    eventually(lambda: scale.inner_text() != before, what="a longer mini-map")


def test_a_run_that_ends_says_so_without_reload(page: Any, server: Any) -> None:
    training = sender.Training(name="ends", run="e0d5000000000001")
    rank = sender.Rank(server.url, training, start=time.time() - 5)
    rank.history(1)
    page.goto(f"{server.url}/runs/{training.run}")
    page.locator(".state.running").wait_for()
    page.locator("[data-verdict]").get_by_text("So far: it fits").wait_for()
    areas = "(chart) => chart.plot.data.filter((trace) => trace.meta.kind === 'area').map((trace) => trace.x.at(-1) - trace.x[0])"
    assert min(drawn(page, "stack").evaluate(areas)) > 0, "one step alone is seen"
    place = {"error_type": "ValueError", "file": "/home/me/train.py", "line": 12, "function": "step"}
    rank.post(wire_messages.Event(time_ns=time.time_ns(), kind="exception", step=20, data=place))
    rank.finish("failed", ("ValueError", "loss is NaN"))
    page.locator(".banner.bad").get_by_text("loss is NaN").wait_for()
    page.locator(".banner.bad").get_by_text("train.py:12 in step(), after 20 steps").wait_for()
    page.locator(".state.failed").first.wait_for()


def test_a_page_that_was_there_before_the_first_step_draws_it_when_it_comes(page: Any, server: Any) -> None:
    rank = sender.Rank(server.url, sender.Training(name="begins", run="be6105000000001a"), start=time.time() - 5)
    rank.post(rank.attached())
    page.goto(f"{server.url}/runs/{rank.training.run}")
    page.locator("[data-verdict]").get_by_text("Waiting for the first step.").wait_for()
    assert page.locator("vs-chart").filter(visible=True).count() == 0
    page.locator(".live[data-state=live]").wait_for()
    stop = threading.Event()
    threading.Thread(target=rank.live, args=(stop,), daemon=True).start()
    try:
        drawn(page, "stack")
        drawn(page, "host")
    finally:
        stop.set()


def test_the_baseline_is_set_by_key(page: Any, own_server: Any) -> None:
    own = own_server()
    sender.past(own.url, sender.BF16, hours=1, steps=20)
    page.goto(f"{own.url}/runs/{sender.BF16.run}")
    page.get_by_role("button", name="Make baseline").wait_for()
    page.keyboard.press("b")
    page.locator(".chip.baseline").wait_for()
    page.reload()
    page.locator(".chip.baseline").wait_for()


def test_an_unknown_run_says_so_and_links_to_what_exists(page: Any, server: Any) -> None:
    page.context.watcher.expected.append("404")
    page.goto(f"{server.url}/runs/there-is-no-such-run")
    page.get_by_role("heading", name="Run not found").wait_for()
    page.locator(".not-found li a").first.click()
    page.locator("vs-chart").first.wait_for()


def test_an_unknown_rank_or_page_says_so(page: Any, server: Any) -> None:
    page.context.watcher.expected.append("404")
    page.goto(f"{server.url}/runs/{sender.BASELINE.run}?rank=77&from=abc&to=-1")
    page.get_by_text("This run has no rank 77.").wait_for()
    drawn(page, "stack")
    for address in ("/no/such/page", "/runs/%E0%A4%A"):
        page.goto(server.url + address)
        page.get_by_role("heading", name="Page not found").wait_for()


def test_a_step_beyond_the_run_says_so(page: Any, server: Any) -> None:
    page.goto(f"{server.url}/runs/{sender.BASELINE.run}?x=step&from=5000&to=6000")
    page.locator("vs-chart[data-figure=stack]").get_by_text("no data in this window").wait_for()


def test_the_common_cursor_follows_in_the_other_charts(page: Any, server: Any) -> None:
    page.goto(f"{server.url}/runs/{sender.BASELINE.run}")
    memory = drawn(page, "host")
    drawn(page, "utilization")
    memory.scroll_into_view_if_needed()
    box = memory.locator(".plot").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.move(box["x"] + box["width"] / 2 + 5, box["y"] + box["height"] / 2)
    page.locator("vs-chart[data-figure=utilization] .cursor").wait_for(state="visible")


def test_a_run_is_deleted_on_its_page_by_pressing_twice(page: Any, own_server: Any) -> None:
    own = own_server()
    for number, name in enumerate(("stays", "goes")):
        sender.past(own.url, sender.Training(name=name, run=f"0000000{number}"), hours=2 - number, steps=5)
    page.goto(f"{own.url}/runs")
    page.goto(f"{own.url}/runs/00000001/leaks")
    page.get_by_role("button", name="Delete run").click()
    page.get_by_role("button", name="Delete this run permanently?").click()
    page.locator("tr[data-run='00000000']").wait_for()
    assert page.evaluate("location.pathname") == "/runs"
    assert page.locator("tbody tr").count() == 1
    assert httpx.get(f"{own.url}/api/v1/runs/00000001", trust_env=False).status_code == 404
    page.goto(f"{own.url}/runs/00000000")
    page.get_by_role("button", name="Delete run").click()
    page.get_by_role("button", name="Delete this run permanently?").wait_for()
    page.get_by_role("button", name="Delete run").wait_for()  # pressed once, and thought better of it
    assert httpx.get(f"{own.url}/api/v1/runs/00000000", trust_env=False).status_code == 200


def test_a_live_run_is_not_deleted_and_the_page_says_why(page: Any, own_server: Any, live_run: Any) -> None:
    page.context.watcher.expected.append("409")
    own = own_server()
    training = live_run(own, name="still going")
    page.goto(f"{own.url}/runs/{training.run}")
    page.get_by_role("button", name="Delete run").click()
    time.sleep(1)  # new steps draw the head again meanwhile: the question stays
    page.get_by_role("button", name="Delete this run permanently?").click()
    refusal = page.locator(".refusal [role=alert]")
    refusal.wait_for()
    assert "still going is live. Stop it first, or wait until it counts as lost." in refusal.inner_text()
    assert page.get_by_role("button", name="Delete run").is_enabled()


def test_where_tokens_are_demanded_an_admin_may_delete(page: Any, own_server: Any) -> None:
    own = own_server()
    sender.past(own.url, sender.Training(name="goes", run="00000000"), hours=1, steps=5)
    made = httpx.post(f"{own.url}/api/v1/tokens", json={"name": "me", "role": "admin"}, trust_env=False).json()
    own.stop()
    own.settings["require_tokens"] = True
    own.start()
    page.context.watcher.expected.append("401")
    page.goto(f"{own.url}/runs/00000000")
    page.get_by_label("Token").fill(made["token"])
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("button", name="Delete run").click()
    page.get_by_role("button", name="Delete this run permanently?").click()
    page.get_by_text("waiting for the first run").wait_for()


def test_a_chart_out_of_sight_follows_a_window_that_narrows(page: Any, server: Any) -> None:
    """Who narrows the window, or prints the page, finds no picture that sticks out of its place."""
    page.goto(f"{server.url}/runs/{sender.BASELINE.run}")
    names = ["stack", "utilization", "host"]
    for name in names:
        drawn(page, name)
    page.evaluate("scrollTo(0, 0)")
    fits = (
        "(all) => all.filter((one) => one.drawn)"
        ".map((one) => [one.dataset.figure, one.visible, one.plot.layout.width - one.plot.clientWidth])"
    )
    charts = page.locator("vs-chart")
    eventually(lambda: any(not seen for _, seen, _ in charts.evaluate_all(fits)), what="a chart out of sight")
    page.set_viewport_size({"width": 800, "height": 900})
    eventually(
        lambda: (
            all(over == 0 for _, _, over in charts.evaluate_all(fits))
            and charts.first.evaluate("(one) => one.plot.clientWidth < 800")
        )
    )
    assert any(not seen for _, seen, _ in charts.evaluate_all(fits))


def test_key_figures_change_with_the_first_new_sample(page: Any, server: Any) -> None:
    """And then at most four times a second."""
    page.goto(f"{server.url}/runs/{sender.BASELINE.run}")
    page.locator("[data-kpi=allocated]").wait_for()
    shown = page.evaluate(
        """async (name) => {
          const { Kpis } = await import("vramscope/parts/kpis.js");
          const run = await (await fetch(`/api/v1/runs/${name}`)).json();
          const figures = new Kpis(run);
          const value = figures.element.querySelector("[data-kpi=allocated] .value");
          let draws = 0;
          new MutationObserver(() => (draws += 1)).observe(value, { childList: true, characterData: true, subtree: true });
          const sample = (size) => figures.feed({ stream: "samples", columns: { allocated_bytes: [size] } });
          const soon = () => new Promise((resolve) => setTimeout(resolve, 20));
          sample(2 ** 30);
          await soon();
          const first = value.textContent;
          const began = performance.now();
          for (let size = 2; size < 8; size += 1) {
            sample(size * 2 ** 30);
            await soon();
          }
          const seconds = (performance.now() - began) / 1000;
          await new Promise((resolve) => setTimeout(resolve, 300));
          return { first, last: value.textContent, draws, most: 2 + Math.ceil(4 * (seconds + 0.3)) };
        }""",
        sender.BASELINE.run,
    )
    assert shown["first"] == "1.00 GiB"
    assert shown["last"] == "7.00 GiB"
    assert shown["draws"] <= shown["most"]


def test_a_large_cost_of_the_agent_is_shown_with_its_total(page: Any, own_server: Any) -> None:
    """Much of a large share is the start of a short run, which only the total shows."""
    running = own_server()
    training = sender.Training(name="short steps", run="c057000000000001")
    rank = sender.Rank(running.url, training, start=time.time() - 600)
    rank.history(60)
    for fraction, note in ((1.507, "of step time, measured: 6.50 s in total"), (0.012, "of step time, measured")):
        rank.post(msgspec.structs.replace(rank.overhead(), fraction=fraction, hook_seconds=6.5, resolvable=True))
        page.goto(f"{running.url}/runs/{training.run}")
        cell = page.locator("[data-kpi=cost]")
        cell.locator(".value", has_text=f"{100 * fraction:.1f} %").wait_for()
        assert cell.locator(".note").inner_text() == note
    assert page.get_by_text("agent overhead").count() == 1, "once on a page"
