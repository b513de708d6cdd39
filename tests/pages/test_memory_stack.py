"""The stack of the memory page: its levels, its peak, its legend, and the bars that say the same."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
import sender
from browsing import drawn, query
from waiting import eventually

DRAWN = "(chart) => chart.plot.data.filter((trace) => trace.meta.level).map((trace) => trace.meta.role)"


def legend(chart: Any) -> dict[str, list[str]]:
    """Numbers of each row: last, at the peak, highest."""
    rows = chart.locator(".legend tbody tr")
    eventually(lambda: rows.count() > 0 and rows.first.locator("td").first.inner_text())
    return {row.get_attribute("data-part"): row.locator("td").all_inner_texts() for row in rows.all()}


def exact(chart: Any) -> dict[str, str]:
    """Exact bytes of each row at the peak."""
    rows = chart.locator(".legend tbody tr")
    return {row.get_attribute("data-part"): row.locator("td").nth(1).get_attribute("title") for row in rows.all()}


def test_levels_fold_by_keyboard_and_the_choice_stays(page: Any, server: Any) -> None:
    page.goto(f"{server.url}/runs/{sender.BASELINE.run}")
    chart = drawn(page, "stack")
    assert {"parameters", "activations", "workspaces", "context"} <= set(chart.evaluate(DRAWN))
    assert not {"reserved", "requested"} & set(chart.evaluate(DRAWN))
    fold = chart.locator("[data-fold=allocated]")
    fold.focus()
    page.keyboard.press("Enter")
    eventually(lambda: "requested" in chart.evaluate(DRAWN))
    assert not {"parameters", "activations"} & set(chart.evaluate(DRAWN))
    assert fold.get_attribute("aria-expanded") == "false"
    assert page.evaluate("document.activeElement.dataset.fold") == "allocated", "the focus stays"
    page.reload()
    chart = drawn(page, "stack")
    assert "requested" in chart.evaluate(DRAWN)
    chart.locator("[data-fold=reserved]").click()
    eventually(lambda: set(chart.evaluate(DRAWN)) == {"reserved", "context", "others"})
    assert list(legend(chart)) == ["card", "others", "context", "reserved"]
    chart.locator("[data-fold=card]").click()
    eventually(lambda: chart.evaluate(DRAWN) == ["card"])
    assert query(page) == {}


def test_the_peak_is_pinned_and_the_bars_say_the_same(page: Any, server: Any) -> None:
    page.goto(f"{server.url}/runs/{sender.BASELINE.run}")
    chart = drawn(page, "stack")
    pin = chart.locator(".peak-mark")
    eventually(lambda: re.fullmatch(r"peak \d\d\.\d GiB · step \d+", pin.inner_text()))
    step = pin.inner_text().rpartition(" ")[2]
    assert f"step {step} · backward" in page.locator(".peak-stack header").inner_text()
    at_peak = exact(chart)
    for level in ("card", "reserved", "allocated"):
        for part in page.locator(f".level[data-level={level}] li").all():
            name = re.match(r"[A-Za-z, ]+?(?=\s+\d)", part.inner_text().strip())
            assert name
            row = chart.locator(".legend tbody tr", has=page.get_by_text(name[0], exact=True))
            if name[0] not in ("not in use",):
                assert row.locator("td").nth(1).get_attribute("title") == part.get_attribute("title"), name[0]
    assert at_peak["allocated"] == f"{pin.get_attribute('title').split(' ')[0]} bytes"
    place = chart.evaluate("(chart) => [chart.figure.layout.meta.peak.x, Math.max(...chart.traces[0].x)]")
    left = pin.bounding_box()["x"] - chart.locator(".plot").bounding_box()["x"]
    assert left == pytest.approx(
        chart.evaluate("(chart, x) => chart.plot._fullLayout._size.l + chart.plot._fullLayout.xaxis.d2p(x)", place[0]),
        abs=2,
    )


def test_legend_numbers_do_not_depend_on_the_width(page: Any, server: Any) -> None:
    page.goto(f"{server.url}/runs/{sender.BASELINE.run}")
    wide = legend(drawn(page, "stack"))
    points = page.locator("vs-chart[data-figure=stack]").evaluate("(chart) => chart.traces[0].x.length")
    page.set_viewport_size({"width": 400, "height": 800})
    page.reload()
    chart = drawn(page, "stack")
    assert chart.evaluate("(chart) => chart.traces[0].x.length") < points
    assert legend(chart) == wide
    assert chart.locator(".legend td.highest").first.is_visible()


def test_the_bars_follow_the_chosen_rank(page: Any, server: Any) -> None:
    page.goto(f"{server.url}/runs/{sender.EIGHT.run}")
    header = page.locator(".peak-stack header")
    highest = re.search(r"rank \d", page.locator("[data-kpi=peak]").inner_text())
    assert highest, "of several ranks, the peak names its own"
    eventually(lambda: f"{highest[0]} · step" in header.inner_text(), what="the bars of that rank")
    assert f", on {highest[0]} in " in page.locator("[data-verdict]").inner_text()
    total = page.locator(".level[data-level=allocated] li").first
    first = page.locator(".level[data-level=allocated]").inner_text()
    other = next(rank for rank in ("3", "2") if highest[0] != f"rank {rank}")
    page.get_by_label("Rank and device").select_option(f"{other}/0")
    eventually(lambda: f"rank {other} · step" in header.inner_text())
    assert page.locator(".level[data-level=allocated]").inner_text() != first
    chart = drawn(page, "stack")
    eventually(
        lambda: (
            exact(chart)["activations"]
            == page.locator(".level[data-level=allocated] li", has_text="activations").get_attribute("title")
        )
    )
    workspaces = page.locator(".level[data-level=allocated] li", has_text="workspaces")
    assert workspaces.get_attribute("title") == exact(chart)["workspaces"] == "67,108,864 bytes"
    assert total.is_visible()


def test_what_the_driver_does_not_report_is_unknown(page: Any, own_server: Any) -> None:
    own = own_server()
    training = sender.Training(name="no driver", nvml=False)
    sender.past(own.url, training, hours=1, steps=30)
    page.goto(f"{own.url}/runs/{training.run}")
    chart = drawn(page, "stack")
    assert legend(chart)["card"] == ["unknown"] * 3
    assert "memory outside PyTorch: unknown" in chart.locator(".chart-notes").inner_text()
    parts = page.locator(".level[data-level=card] li").all_inner_texts()
    assert any(re.match(r"outside PyTorch\s+unknown", part) for part in parts), parts
    assert chart.locator("[data-fold=card]").count() == 0, "without its total the card cannot be folded"


def test_charts_of_the_page_share_unit_and_axis(page: Any, server: Any) -> None:
    page.goto(f"{server.url}/runs/{sender.BASELINE.run}")
    for name in ("stack", "host"):
        assert drawn(page, name).evaluate("(chart) => chart.plot.layout.yaxis.title.text") == "GiB"
    page.keyboard.press("x")
    for name in ("stack", "host", "utilization"):
        chart = drawn(page, name)
        eventually(lambda chart=chart: chart.evaluate("(chart) => chart.plot.layout.xaxis.title.text") == "step")


def test_a_live_stack_is_what_a_fresh_page_shows(page: Any, server: Any, live_run: Any) -> None:
    """The samples of an unfinished step give way to the step, and no step is drawn twice or lost."""
    training = live_run(server, name="live stack")
    eventually(lambda: page.goto(f"{server.url}/runs/{training.run}").status == 200)
    chart = drawn(page, "stack")
    covered = "(chart) => chart.figure.layout.meta.covered"
    eventually(lambda: chart.evaluate(covered) is not None)
    # the samples of an unfinished step are a part of their own: the first of them fetches the window again
    eventually(lambda: "unsplit" in chart.evaluate(DRAWN))

    def is_extended() -> bool:
        """Whether the next steps are added to the window. A change of the run between them fetches the window again."""
        chart.evaluate("(chart) => { chart.first = chart.figure; }")
        before = chart.evaluate(covered)
        eventually(lambda: chart.evaluate(covered) > before + 4, what="finished steps")
        return chart.evaluate("(chart) => chart.figure === chart.first")

    eventually(is_extended, what="the window is extended, not fetched again")
    x = chart.evaluate("(chart) => chart.traces.find((trace) => trace.meta.role === 'parameters').x")
    assert x == sorted(set(x))
    steps = "(run) => fetch(`/api/v1/runs/${run}/steps`).then((answer) => answer.json()).then((rows) => rows.length)"
    shown = (
        "(chart) => { const { covered } = chart.figure.layout.meta;"
        " return chart.traces.find((trace) => trace.meta.role === 'parameters').x.filter((x) => x <= covered).length; }"
    )
    finished = page.evaluate(steps, training.run)
    eventually(lambda: chart.evaluate(shown) - 1 >= finished, what="each finished step, and the begin of the first")
    assert chart.evaluate(shown) - 1 <= page.evaluate(steps, training.run), "none twice"


def test_the_last_step_stays_known_while_the_next_one_runs(page: Any, own_server: Any) -> None:
    """A live window behind the last step has none of its samples."""
    own = own_server()
    training = sender.Training(name="long step")
    rank = sender.Rank(own.url, training, start=time.time() - 30)
    rank.post(rank.attached(), *rank.blocks(*rank.make(20)))
    samples, steps = rank.make(1)
    none = {name: values[:0] for name, values in steps.items()}
    half = samples["time_ns"].size // 2
    rank.post(*rank.blocks({name: values[:half] for name, values in samples.items()}, none))
    page.goto(f"{own.url}/runs/{training.run}")
    chart = drawn(page, "stack")
    before = legend(chart)
    assert "unknown" not in (before["card"][0], before["others"][0]), before
    rows = "(chart) => chart.traces[0].x.length"
    points = chart.evaluate(rows)
    chart.evaluate("(chart) => { chart.first = chart.figure; }")
    rank.post(*rank.blocks({name: values[half:] for name, values in samples.items()}, none))
    eventually(lambda: chart.evaluate(rows) > points, what="samples of the unfinished step")
    assert chart.evaluate("(chart) => chart.figure === chart.first"), "extended, not fetched again"
    assert {name: row[0] for name, row in legend(chart).items()} == {name: row[0] for name, row in before.items()}


def test_a_late_answer_is_not_added_to_another_window(page: Any, server: Any) -> None:
    """A slow server answers two requests after the window was changed: neither is drawn."""
    page.goto(f"{server.url}/runs/{sender.BASELINE.run}")
    chart = drawn(page, "stack")
    added = chart.evaluate(
        """async (chart) => {
            const answers = [];
            chart.options.tail = () => new Promise((resolve) => answers.push(resolve));
            let added = 0;
            chart.tail.append = () => (added += 1);
            const fetches = [chart.tail.fetch(), chart.tail.fetch()];
            chart.tail.reset();
            for (const resolve of answers) resolve({ figure: {} });
            await Promise.all(fetches);
            fetches.push(chart.tail.fetch());
            answers.at(-1)({ figure: {} });
            await Promise.all(fetches);
            chart.tail.close();
            return [added, answers.length];
        }"""
    )
    assert added == [1, 2], "only the request after the change"
