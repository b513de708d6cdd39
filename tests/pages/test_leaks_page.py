"""The leaks of a run: who, how much, what to do; what was not seen is said; all of it live."""

from __future__ import annotations

import dataclasses
import re
import time
from typing import Any

import msgspec
import pytest
import sender
from browsing import COMPILED_MS, drawn, part_on_first_screen, query
from legibility import assert_legible
from test_fragmentation_page import Sender
from waiting import eventually
from window_maker import leaking
from wire_maker import leak as a_leak
from wire_maker import scan

from vramscope.protocol import series

LEAKY = f"/runs/{sender.LEAKY.run}/leaks"


def figure(page: Any, key: str) -> str:
    return " ".join(page.locator(f"[data-kpi={key}]").inner_text().split())


def test_the_verdict_says_who_where_and_how_much(page: Any, server: Any) -> None:
    page.goto(server.url + LEAKY)
    verdict = page.locator(".verdict")
    verdict.wait_for()
    assert verdict.get_attribute("data-level") == "leak"
    text = verdict.inner_text()
    assert "history (train.py:87) keeps the graphs of 900 earlier steps" in text
    assert re.search(r"It retains 19\.3 GiB; after the fix the peak falls by 19\.3 GiB", text)
    assert "It grows by 22.0 MiB per step." in text and "out of memory" not in text, "the run has ended"
    assert "3 of 41 holders: 250 ms were over" in page.locator("[data-omissions]").inner_text()
    assert figure(page, "held").startswith("Retained 19.3 GiB by 2 holders")
    assert page.locator("[data-kpi=saved]").count() == 0, "the verdict has the effect on the peak already"
    said = page.locator("main").inner_text().count("19.3 GiB")
    assert said == 7, "verdict and detail: retained and effect; key figure: sum; table: retained and effect"
    assert figure(page, "graphs").startswith("Graphs alive 900")
    assert re.search(r"22\.0 MiB/step ± \d+(\.\d+)? KiB over 900 steps", figure(page, "slope"))
    assert figure(page, "end").endswith("the run has ended")
    fix = page.locator(".leak-detail").get_by_text("history.append(loss.item())").bounding_box()
    assert fix["y"] + fix["height"] < 800, "what to change is on the first screen"
    assert page.locator(".kpis").bounding_box()["y"] > fix["y"], "then the numbers behind it"


def test_the_floor_is_drawn_with_its_fit_and_zooming_judges_the_window(page: Any, server: Any) -> None:
    page.goto(server.url + LEAKY)
    floor = drawn(page, "floor")
    roles = floor.evaluate("(chart) => [...new Set(chart.traces.map((trace) => trace.meta.role))]")
    assert roles == ["floor", "trend-growing", "graphs"]
    low, high = floor.evaluate("(chart) => chart.plot.layout.yaxis.range")
    assert low > 5, "the range is close around the data, not from zero"
    assert high < 32
    slope = figure(page, "slope")
    page.goto(f"{server.url}{LEAKY}?from=100&to=200")
    floor = drawn(page, "floor")
    assert floor.evaluate("(chart) => chart.traces[0].x.at(-1)") == 200
    assert "over 101 steps" in figure(page, "slope") != slope
    page.keyboard.press("Escape")
    eventually(lambda: "from" not in query(page))
    eventually(lambda: "over 900 steps" in figure(page, "slope"))


@pytest.mark.parametrize("run", [sender.BASELINE.run, sender.LEAKY.run])
def test_on_a_phone_the_chart_is_on_the_first_screen_and_before_the_figures(page: Any, server: Any, run: str) -> None:
    page.set_viewport_size({"width": 400, "height": 800})
    page.goto(f"{server.url}/runs/{run}/leaks")
    plot = drawn(page, "floor").locator(".plot-frame")
    eventually(lambda: part_on_first_screen(page, plot) > 0.5, what="most of the plot above the bar")
    figures = page.locator(".around-charts .kpis")
    places = [one.bounding_box()["y"] for one in (page.locator("main .banner").first, plot, figures)]
    assert places == sorted(places)
    page.set_viewport_size({"width": 1440, "height": 900})
    eventually(lambda: figures.bounding_box()["y"] < plot.bounding_box()["y"], what="the figures before the chart")


def test_few_graphs_are_counted_in_whole_numbers(page: Any, server: Any) -> None:
    run = Sender(server.url, "one graph alive")
    run.send(run.agent.samples(20), run.agent.steps(30, graphs_alive=1, after_step_bytes=1 << 30))
    page.goto(f"{server.url}/runs/{run.agent.run}/leaks")
    floor = drawn(page, "floor")
    assert floor.locator(".y2tick text").all_text_contents() == ["0", "1", "2", "3", "4"]


def test_the_table_leads_to_the_detail_and_the_url_keeps_the_choice(page: Any, server: Any) -> None:
    page.goto(server.url + LEAKY)
    rows = page.locator(".leaks tbody tr")
    rows.first.wait_for()
    assert rows.locator("th").all_inner_texts() == ["history", sender.MARKUP, "logits"]
    first = " ".join(rows.first.inner_text().split())
    assert "graphs of earlier steps are kept growing train.py:87 900 899 steps 19.3 GiB 22.0 MiB/step" in first
    detail = page.locator(".leak-detail")
    assert "history.append(loss.item())" in detail.inner_text()
    assert detail.locator(".chain li").count() == 4
    assert "/home/ada/gpt2/train.py:87" in detail.inner_text()
    page.get_by_role("button", name="logits").click()
    eventually(lambda: "del logits" in detail.inner_text())
    assert "Freeing it does not lower the peak." in detail.inner_text()
    assert page.evaluate("document.activeElement.textContent") == "logits", "the focus stays where it was"
    leak = query(page)["leak"]
    page.reload()
    detail.get_by_text("del logits").wait_for()
    assert query(page)["leak"] == leak
    page.keyboard.press("[")
    eventually(lambda: "keep .cpu() of it" in detail.inner_text(), what="the leak before, by key")


def test_what_is_not_known_of_a_leak_is_called_so_and_markup_stays_text(page: Any, server: Any) -> None:
    page.goto(server.url + LEAKY)
    page.get_by_role("button", name="<img").click()
    detail = page.locator(".leak-detail")
    eventually(lambda: "keep .cpu() of it" in detail.inner_text())
    assert "Effect on the peak: unknown" in detail.inner_text()
    facts = detail.locator("dl").inner_text()
    assert re.search(r"grows by\s+unknown", facts) and re.search(r"where\s+unknown", facts)
    assert "a list in a closure" in detail.inner_text(), "without a chain, the holder in words"
    assert page.locator("main img, main b, main script").count() == 0
    assert page.evaluate("window.pwned") is None


def test_the_replay_of_a_recorded_step_stands_beside_what_was_measured(page: Any, server: Any) -> None:
    """At first there is nothing to replay, and that is said; it comes with the recording."""
    run = Sender(server.url, "one result too many")
    run.send(run.agent.samples(20), run.agent.steps(4), scan(a_leak("overlap", "output")))
    page.goto(f"{server.url}/runs/{run.agent.run}/leaks")
    replay = page.locator(".leak-detail .replay")
    replay.locator("summary").click()
    replay.get_by_text("unknown: no recording was made since it was found").wait_for()
    recording = run.record(leaking())
    replay.get_by_text("In the recorded step 1 it retains 16.0 MiB.").wait_for(timeout=COMPILED_MS)
    rows = [" ".join(row.split()) for row in replay.locator("tbody tr").all_inner_texts()]
    assert rows == ["peak allocated 128 MiB 112 MiB", "peak reserved 130 MiB 114 MiB"]
    assert recording in (replay.get_by_role("link").get_attribute("href") or "")
    assert "measured the peak is in backward, when all of it is alive" in " ".join(
        page.locator(".leak-detail").inner_text().split()
    )
    # With the next recording it is replayed again; the known result is shown until then.
    page.evaluate(
        """() => {
            window.withoutFigure = 0;
            const look = () => { window.withoutFigure += document.querySelector(".leak-detail .replay tbody") ? 0 : 1; };
            new MutationObserver(look).observe(document.querySelector("main"), { childList: true, subtree: true });
        }"""
    )
    newer = run.record(leaking())
    page.locator(f'.leak-detail .replay a[href*="{newer}"]').wait_for()
    assert page.evaluate("window.withoutFigure") == 0


def test_without_a_leak_the_page_says_what_could_not_have_been_seen(page: Any, server: Any) -> None:
    page.goto(f"{server.url}/runs/{sender.FIXED.run}/leaks")
    verdict = page.locator(".verdict")
    verdict.wait_for()
    assert verdict.get_attribute("data-level") == "none"
    pattern = r"No growth over 900 steps\. Growth below \d+(\.\d+)? \w+ per step"
    assert re.search(pattern, verdict.inner_text()), verdict.inner_text()
    assert figure(page, "held").startswith("Retained nothing")
    assert "never at this rate" in figure(page, "end")
    assert page.locator(".leaks, .leak-detail, [data-omissions]").count() == 0


def test_where_nobody_has_looked_the_page_says_so(page: Any, server: Any) -> None:
    page.goto(f"{server.url}/runs/{sender.ON_CPU.run}/leaks")
    verdict = page.locator(".verdict")
    verdict.wait_for()
    assert verdict.get_attribute("data-level") == "unknown"
    assert verdict.locator("strong").inner_text() == "Not scanned for leaks."
    assert "The agent has not scanned." in verdict.inner_text(), "this run has ended: no look is to come"
    assert " yet" not in page.locator("main").inner_text(), "neither of the look nor of anything else"
    for key in ("held", "graphs", "slope", "end"):
        assert "unknown" in figure(page, key), "never 0 for unknown"
    page.locator("vs-chart[data-figure=floor]").get_by_text("unknown on the CPU").wait_for()


def test_a_look_is_on_the_open_page_when_it_comes(page: Any, server: Any) -> None:
    training = sender.Training(name="about to leak", run="10000000001ea400")
    rank = sender.Rank(server.url, training, start=time.time() - 30)
    rank.history(60)
    page.goto(f"{server.url}/runs/{training.run}/leaks")
    page.get_by_text("has not scanned yet").wait_for()
    drawn(page, "floor")
    page.locator(".live[data-state=live]").wait_for()
    rank.post(rank.scan(sender.HISTORY))
    page.locator(".leaks tbody tr").wait_for()
    assert "history" in page.locator(".verdict").inner_text()
    assert page.locator(".tab-count").inner_text().startswith("1")
    newest = float(page.locator("vs-chart[data-figure=floor]").get_attribute("data-newest"))
    for block in rank.blocks(*rank.make(5)):
        rank.post(block)
    chart = page.locator("vs-chart[data-figure=floor]")
    eventually(lambda: float(chart.get_attribute("data-newest")) == newest + 5, what="newer floors in the chart")
    rank.post(rank.scan(reason="asked again"))
    page.locator(".leaks").wait_for(state="detached")
    rank.finish()
    rank.client.close()


def test_several_ranks_share_an_entry_and_each_has_its_floor(page: Any, own_server: Any) -> None:
    own = own_server()
    training = dataclasses.replace(sender.LEAKY, name="four", ranks=4, run="40000000001ea400", leaks=None)
    for number in range(4):
        rank = sender.Rank(own.url, training, number, start=time.time() - 600)
        rank.history(60)
        found = [sender.HISTORY] if number != 2 else [sender.OUTPUT]
        rank.post(rank.scan(*found))
        rank.finish()
        rank.client.close()
    page.goto(f"{own.url}/runs/{training.run}/leaks")
    rows = page.locator(".leaks tbody tr")
    rows.first.wait_for()
    assert rows.locator("td.ranks").all_inner_texts() == ["0–1, 3", "2"]  # noqa: RUF001
    page.get_by_label("Rank and device").select_option("3/0")
    eventually(lambda: query(page).get("rank") == "3")
    drawn(page, "floor")
    page.context.watcher.expected.append("404")
    page.goto(f"{own.url}/runs/{training.run}/leaks?rank=9")
    page.get_by_text("The run has no rank 9").wait_for()
    page.get_by_role("link", name="Show the data that exists").click()
    rows.first.wait_for()


def test_the_run_and_the_list_lead_here(page: Any, server: Any) -> None:
    page.goto(f"{server.url}/runs")
    mark = page.locator(f'tr[data-run="{sender.LEAKY.run}"] .chip.leak')
    mark.wait_for()
    assert mark.inner_text() == "leak 19.3 GiB"
    assert page.locator(f'tr[data-run="{sender.FIXED.run}"] .chip.leak').count() == 0
    mark.click()
    page.locator(".leaks tbody tr").first.wait_for()
    assert page.evaluate("location.pathname") == LEAKY
    tabs = page.get_by_label("Views of this run")
    tabs.get_by_role("link", name="Memory", exact=True).click()
    drawn(page, "stack")
    leaks = tabs.get_by_role("link", name="Leaks")
    assert "2 found" in " ".join(leaks.inner_text().split())
    leaks.click()
    tabs.locator("[aria-current]").get_by_text("Leaks").wait_for()
    page.locator(".verdict").wait_for()


def test_the_fixed_run_proves_itself_next_to_the_broken_one(page: Any, server: Any) -> None:
    page.goto(
        f"{server.url}/compare?runs={sender.LEAKY.run},{sender.FIXED.run},{sender.BF16.run}&columns=leaked,graphs"
    )
    table = page.locator(".compare-table")
    table.wait_for()
    heads = table.locator("thead th").all_inner_texts()
    cells = [row.locator("th, td").all_inner_texts() for row in table.locator("tbody tr").all()]
    leaked, graphs = heads.index("Leaked"), heads.index("Graphs")
    assert [row[leaked].split("\n")[-1] for row in cells] == ["19.3 GiB", "none", "unknown"]
    assert [row[graphs] for row in cells] == ["900", "0", "0"]
    page.goto(f"{server.url}/compare?runs={sender.ON_CPU.run}")
    table.wait_for()
    assert "Leaked" not in table.locator("thead th").all_inner_texts(), "where nobody looked there is no column"


def test_an_unknown_run_says_so(page: Any, server: Any) -> None:
    page.context.watcher.expected.append("404")
    page.goto(f"{server.url}/runs/there-is-no-such-run/leaks")
    page.get_by_role("heading", name="Run not found").wait_for()


@pytest.mark.parametrize("run", [sender.LEAKY, sender.FIXED, sender.ON_CPU], ids=["leaks", "fixed", "unlooked"])
def test_it_fits_is_legible_and_nothing_lies_on_another(page: Any, server: Any, run: Any) -> None:
    page.goto(f"{server.url}/runs/{run.run}/leaks")
    page.locator(".verdict").wait_for()
    assert_legible(page)


def test_every_kind_of_leak_has_words(page: Any, own_server: Any) -> None:
    own = own_server()
    rank = sender.Rank(own.url, sender.Training(name="all kinds", run="a11000000001ea40"), start=time.time() - 60)
    rank.history(10)
    kinds = [msgspec.structs.replace(sender.OUTPUT, kind=kind, name=f"of {kind}") for kind in series.LEAK_KINDS]
    rank.post(rank.scan(*kinds))
    rank.finish()
    rank.client.close()
    page.goto(f"{own.url}/runs/a11000000001ea40/leaks")
    page.locator(".leaks tbody tr").first.wait_for()
    words = page.locator(".kind-words").all_inner_texts()
    assert len(set(words)) == len(series.LEAK_KINDS)


def test_what_a_training_on_a_card_keeps_on_the_host_is_not_called_a_leak(page: Any, own_server: Any) -> None:
    own = own_server()
    rank = sender.Rank(own.url, sender.Training(name="hosted", run="a11000000001ea42"), start=time.time() - 60)
    rank.history(10)
    hosted = msgspec.structs.replace(
        sender.OUTPUT, kind="tensor-growth", name="hosted", examples=["9 x float32[4] on cpu"], peak_effect_bytes=0,
        peak_effect="it lies in the host's memory, which grows; no peak of the GPU falls without it",
    )  # fmt: skip
    rank.post(rank.scan(hosted))
    rank.finish()
    rank.client.close()
    page.goto(f"{own.url}/runs/a11000000001ea42/leaks")
    banner = page.locator(".banner.verdict")
    banner.wait_for()
    assert banner.get_attribute("data-level") == "host"
    assert banner.inner_text().startswith("Retained on the host.")
    eventually(
        lambda: "It is host memory. Device memory is not affected" in page.locator(".leak-detail .effect").inner_text()
    )
    assert page.locator(".leak-detail .chip.leak").count() == 0
    assert "nothing" in figure(page, "held")


def test_what_is_emptied_when_an_epoch_is_over_says_when_and_that_it_does_not_grow(page: Any, server: Any) -> None:
    run = Sender(server.url, "cleared each epoch")
    at = "on_train_epoch_end() (train.py:93)"
    emptied = a_leak("growing", "losses", emptied_at=at, emptied_after=1200, growth_bytes_per_step=0.0, age_steps=1200)
    run.send(run.agent.samples(20), run.agent.steps(30, after_step_bytes=1 << 30), scan(emptied))
    page.goto(f"{server.url}/runs/{run.agent.run}/leaks")
    banner = page.locator(".banner.verdict")
    banner.wait_for()
    assert banner.get_attribute("data-level") == "held"
    assert (
        f"keeps the graphs of 412 earlier steps until it is emptied after 1,200 steps, in {at}" in banner.inner_text()
    )
    row = page.locator(".leaks tbody tr").first
    assert " ".join(row.locator(".growth").inner_text().split()) == "none emptied after 1,200 steps"
    facts = " ".join(page.locator(".leak-detail dl").inner_text().split())
    assert (
        f"emptied after 1,200 steps, in {at}" in facts
        and "retained at most 1.00 GiB" in facts
        and "grows by" not in facts
    )


def test_of_a_leak_on_the_host_no_recording_is_awaited(page: Any, own_server: Any) -> None:
    own = own_server()
    rank = sender.Rank(own.url, sender.Training(name="on the host", run="a11000000001ea41"), start=time.time() - 60)
    rank.history(10)
    host = msgspec.structs.replace(
        sender.OUTPUT, name="hosted", examples=["9 x float32[4] on cpu"], peak_effect_bytes=None,
        peak_effect="PyTorch counts no peaks on the CPU, so the effect on the peak is not known",
    )  # fmt: skip
    rank.post(rank.scan(host, sender.HISTORY))
    rank.finish()
    rank.client.close()
    page.goto(f"{own.url}/runs/a11000000001ea41/leaks")
    detail = page.locator(".leak-detail")
    for name, has_replay in (("hosted", False), (sender.HISTORY.name, True)):
        page.locator(".leaks tbody tr", has_text=name).first.click()
        eventually(lambda name=name: detail.locator("h2").inner_text() == name)
        eventually(lambda has_replay=has_replay: ("by replay" in detail.inner_text().lower()) == has_replay)
        assert ("measured" in detail.locator(".chip").all_inner_texts()) == has_replay


def test_a_lost_server_is_told_and_a_look_that_came_meanwhile_is_shown(page: Any, own_server: Any) -> None:
    own = own_server()
    training = sender.Training(name="interrupted", run="10570000001ea400")
    rank = sender.Rank(own.url, training, start=time.time() - 30)
    rank.history(60)
    page.goto(f"{own.url}/runs/{training.run}/leaks")
    page.locator(".live[data-state=live]").wait_for()
    page.context.watcher.expected += ["net::ERR_", "503"]
    own.stop()
    page.get_by_text("Data stale since").wait_for()
    assert page.locator(".charts.stale").count() == 1
    own.start()
    rank.post(rank.scan(sender.HISTORY))
    page.locator(".leaks tbody tr").wait_for()
    eventually(lambda: page.get_by_text("Data stale since").count() == 0)
    rank.finish()
    rank.client.close()


def test_leaks_are_sorted_by_a_press_on_a_head(page: Any, server: Any) -> None:
    page.goto(f"{server.url}/runs/{sender.LEAKY.run}/leaks")
    names = page.locator(".leaks tbody th")
    names.first.wait_for()
    as_sent = names.all_inner_texts()
    retained = page.locator(".leaks thead th", has_text="Retained")
    retained.get_by_role("button").click()
    eventually(lambda: retained.get_attribute("aria-sort") == "descending")
    assert names.all_inner_texts() == ["history", "logits", sender.MARKUP], "19.3 GiB, 1.53 GiB, 12 MiB"
    retained.get_by_role("button").click()
    eventually(lambda: retained.get_attribute("aria-sort") == "ascending")
    assert names.all_inner_texts() == [sender.MARKUP, "logits", "history"]
    assert page.evaluate("document.activeElement.dataset.sort") == "Retained", "the focus stays"
    retained.get_by_role("button").click()
    eventually(lambda: retained.get_attribute("aria-sort") is None)
    assert names.all_inner_texts() == as_sent
