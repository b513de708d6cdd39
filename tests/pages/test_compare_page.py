"""Runs side by side."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest
import sender
from browsing import drawn, query
from legibility import SIDEWAYS, assert_legible
from test_fragmentation_page import COMPILED_MS, Sender
from waiting import eventually
from window_maker import training

from vramscope.protocol import messages

RUNS = f"{sender.BASELINE.run},{sender.CHECKPOINTING.run},{sender.BF16.run}"


def test_table_charts_and_differences(page: Any, server: Any) -> None:
    page.goto(f"{server.url}/compare?runs={RUNS}")
    table = page.locator(".compare-table")
    table.wait_for()
    rows = table.locator("tbody tr")
    assert rows.count() == 3
    assert "baseline" in rows.nth(0).inner_text()
    assert re.search(r"\d\d\.\d % smaller", rows.nth(1).inner_text())
    assert re.search(r"\d\d\.\d % slower", rows.nth(1).inner_text()), "checkpointing takes longer"
    assert re.search(r"\d\d\.\d % faster", rows.nth(2).inner_text())
    size = rows.nth(1).get_by_text(re.compile(r"^\d\d\.\d GiB$")).first
    assert re.fullmatch(r"[\d,]{14} bytes", size.get_attribute("title")), "to the byte on hover"
    verdict = page.locator("[data-verdict]").inner_text()
    assert re.search(r"bf16-checkpointing needs the least memory: \d\d % less than baseline-fp32", verdict), verdict
    assert re.search(r"\d\d\.\d GiB peak allocated instead of \d\d\.\d GiB, \d\d % slower per step", verdict), verdict
    overlay = drawn(page, "peaks_over_steps")
    widths = overlay.evaluate("(chart) => chart.plot.data.map((trace) => trace.line.width)")
    assert widths[0] > max(widths[1:])
    drawn(page, "peaks_side_by_side")
    drawn(page, "memory_against_time")
    differences = page.locator(".differences")
    text = differences.inner_text()
    assert "gradient_checkpointing" in text
    assert "model.layers" not in text, "the same in all"


def test_allocator_settings_without_a_recording_have_no_card(page: Any, server: Any) -> None:
    with page.expect_response("**/compare/predictions*") as answered:
        page.goto(f"{server.url}/compare?runs={RUNS}")
    rows = answered.value.json()["rows"]
    assert len({row["conf"] for row in rows}) > 1, "the runs differ in settings"
    drawn(page, "memory_against_time")
    assert not page.locator(".card.predictions").is_visible(), "there is nothing to say"


def test_what_was_predicted_of_techniques_stands_beside_what_was_measured(page: Any, server: Any) -> None:
    batch = messages.Technique(kind="batch", chip="batch 8", observed="seen", detail={"batch_size": 8})
    detail: dict[str, messages.Scalar] = {"covered_fraction": 1.0, "bits": 8}
    eight_bit = messages.Technique(kind="optimizer_8bit", chip="8-bit 100 %", observed="seen", detail=detail)
    base, narrow = Sender(server.url, "32-bit moments"), Sender(server.url, "8-bit <b>moments</b>")
    base.record(training(3, 12))
    for run, techniques in ((base, [batch]), (narrow, [batch, eight_bit])):
        run.send(messages.Techniques(time_ns=run.agent.start_ns, step=1, techniques=techniques))
        run.send(run.agent.steps(3, peak_allocated_bytes=909 << 20), run.agent.ended())
    page.goto(f"{server.url}/compare?runs={base.agent.run},{narrow.agent.run}")
    card = page.locator(".technique-predictions")
    card.locator("tbody tr").first.wait_for(timeout=COMPILED_MS)
    cells = [cell.inner_text() for cell in card.locator("tbody tr > *").all()]
    assert cells[:2] == ["8-bit <b>moments</b>", "8-bit state"] and cells[3] == "909 MiB"
    assert re.fullmatch(r"[\d.]+ MiB", cells[2]) and re.fullmatch(r"[\u2212+]?\d\.\d %", cells[4])
    assert_legible(page)
    page.goto(f"{server.url}/compare?runs={narrow.agent.run},{base.agent.run}")
    page.locator(".compare-table tbody tr").first.wait_for()
    assert not card.is_visible(), "a baseline with more techniques has nothing to predict"


def test_all_settings_are_there_and_can_be_searched(page: Any, server: Any) -> None:
    page.goto(f"{server.url}/compare?runs={RUNS}")
    table = page.locator(".differences")
    table.wait_for()
    assert "model.layers" not in table.inner_text()
    every = page.get_by_role("button", name="All settings")
    every.press("Enter")  # (what is drawn above meanwhile moves it away from under a pointer)
    eventually(lambda: "model.layers" in table.inner_text())
    assert every.evaluate("(button) => button === document.activeElement"), "the keyboard stays where it was"
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
    eventually(lambda: {"find": "expandable", "diff": "all"}.items() <= query(page).items())
    page.reload()
    eventually(lambda: table.locator("tbody tr:not(.group)").count() == 1)
    assert page.get_by_label("Find a setting").input_value() == "expandable"
    page.get_by_label("Find a setting").fill("no such words")
    page.get_by_text("No matching setting.").wait_for()


def test_another_baseline_is_in_the_url_and_turns_the_table(page: Any, server: Any) -> None:
    page.goto(f"{server.url}/compare?runs={RUNS}")
    page.locator(".picked").nth(2).get_by_role("button", name="set baseline").click()
    eventually(lambda: query(page).get("base") == sender.BF16.run)
    eventually(lambda: "bf16" in page.locator(".compare-table tbody tr").first.inner_text())
    assert re.search(r"\d\d\.\d % larger", page.locator(".compare-table").inner_text())


def test_runs_are_added_and_taken_out(page: Any, server: Any) -> None:
    page.goto(f"{server.url}/compare")
    page.get_by_text("No runs chosen").wait_for()
    search = page.get_by_label("Add a run")
    search.fill("checkpointing")
    eventually(lambda: page.locator("#runs-to-add option").count() == 1)
    search.press("Enter")
    page.locator(".compare-table").wait_for()
    assert sender.CHECKPOINTING.run in query(page)["runs"]
    page.get_by_role("button", name="remove bf16-checkpointing").click()
    page.get_by_text("No runs chosen").wait_for()


def test_copies_as_markdown_and_csv(page: Any, server: Any) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(f"{server.url}/compare?runs={RUNS}")
    page.locator(".compare-exports summary").click()
    page.get_by_role("button", name="Copy Markdown").click()
    page.get_by_role("button", name="Copied").wait_for()
    text = page.evaluate("navigator.clipboard.readText()")
    assert text.startswith("| technique | run | allocated MiB | change |")
    assert len([line for line in text.splitlines() if line.startswith("|")]) == 5
    page.get_by_role("button", name="Copy LaTeX").click()
    eventually(lambda: page.evaluate("navigator.clipboard.readText()").startswith("% \\usepackage{booktabs"))
    page.get_by_role("button", name="Copy link").click()
    eventually(
        lambda: page.evaluate("navigator.clipboard.readText()").endswith(f"runs={RUNS}&base={sender.BASELINE.run}")
    )
    page.locator(".compare-exports summary").click()
    with page.expect_download() as downloading:
        page.locator(".card").get_by_role("button", name="This table (CSV)", exact=True).click()
    lines = downloading.value.path().read_text().splitlines()
    assert lines[0].startswith("run,name,label,techniques,peak_allocated_bytes")
    assert len(lines) == 4


def test_warns_of_what_is_not_comparable(page: Any, server: Any) -> None:
    page.goto(f"{server.url}/compare?runs={sender.BASELINE.run},{sender.ON_CPU.run}")
    page.get_by_text("Not fully comparable").wait_for()
    row = page.locator(f".compare-table tr[data-run={sender.ON_CPU.run}]")
    assert "unknown" in row.inner_text() and "another device: CPU" in row.locator(".reasons").inner_text()


def test_the_front_is_named(page: Any, server: Any) -> None:
    page.goto(f"{server.url}/compare?runs={RUNS}")
    chart = drawn(page, "memory_against_time")
    names = chart.evaluate("(chart) => chart.plot.data.map((trace) => trace.name)")
    assert "Pareto front: bf16, bf16-checkpointing" in names


def test_a_baseline_that_was_deleted_is_named_and_the_others_can_be_compared(page: Any, server: Any) -> None:
    page.context.watcher.expected.append("404")
    page.goto(f"{server.url}/compare?runs=gone,{sender.BF16.run},{sender.BASELINE.run}&base=gone")
    banner = page.locator(".banner.bad")
    banner.wait_for()
    assert "Baseline 'gone' not found" in banner.inner_text()
    page.locator(".picked").nth(1).get_by_role("button", name="set baseline").click()
    page.get_by_role("button", name="remove gone").click()
    page.locator(".compare-table").wait_for()
    assert page.locator(".banner.bad").count() == 0


def test_an_unknown_run_is_named(page: Any, server: Any) -> None:
    page.context.watcher.expected.append("404")
    page.goto(f"{server.url}/compare?runs=there-is-no-such-run")
    banner = page.locator(".banner.bad")
    banner.wait_for()
    assert "there-is-no-such-run" in banner.inner_text()


def test_the_line_that_holds_more_is_shown_for_the_run_that_was_chosen(page: Any, server: Any) -> None:
    """Two runs with recordings, one of more layers; a third has none, and is not offered."""
    small, large = Sender(server.url, "small <b>"), Sender(server.url, "large <i>")
    for run, layers in ((small, 4), (large, 9)):
        run.send(run.agent.samples(20), run.agent.steps(20))
        run.record(training(2, layers))
        run.send(run.agent.ended())
    page.goto(f"{server.url}/compare?runs={small.agent.run},{large.agent.run},{sender.BF16.run}")
    card = page.locator(".site-difference")
    card.locator("table").wait_for(timeout=COMPILED_MS)
    assert card.locator("option").count() == 1
    heads = card.locator("thead th").all_inner_texts()
    assert heads[-2:] == ["small <b>", "large <i>"]
    assert card.locator("tbody tr").first.inner_text().split("\t")[1].strip().startswith("+")
    page.goto(f"{server.url}/compare?runs={RUNS}")
    page.locator(".compare-table").wait_for()
    assert not card.is_visible(), "nothing was recorded"


def test_a_name_as_long_as_can_be_makes_no_page_wider(page: Any, own_server: Any) -> None:
    """No words, so that nothing breaks by itself; recordings, so that all of the page is there."""
    own = own_server()
    short, long = Sender(own.url, "short"), Sender(own.url, ("a_very_long_name_" * 12)[:200])
    for run, layers in ((short, 4), (long, 9)):
        run.send(run.agent.samples(20), run.agent.steps(20))
        run.record(training(2, layers))
        run.send(run.agent.ended())
    page.goto(f"{own.url}/compare?runs={short.agent.run},{long.agent.run}&diff=all")
    page.locator(".site-difference table").wait_for(timeout=COMPILED_MS)
    drawn(page, "memory_against_time")
    legend = page.locator("vs-chart[data-figure=memory_against_time] .legend")
    assert legend.evaluate("(legend) => legend.scrollWidth <= legend.clientWidth"), "its names end in …"
    assert_legible(page)


def seeds(server: Any) -> list[str]:
    """Three seeds of one configuration, two of another; of two the step time differs by chance alone."""
    trainings = [
        dataclasses.replace(
            of,
            name=f"{of.name} seed {seed}",
            run=f"{of.run[:14]}{seed:02d}",
            seed=seed,
            config={**of.config, "seed": seed},
        )
        for of, many in ((sender.BASELINE, 3), (sender.CHECKPOINTING, 2))
        for seed in range(1, many + 1)
    ]
    return [sender.past(server.url, one, hours=2, steps=60).run for one in trainings]


def test_seeds_are_one_row_with_means_and_intervals_and_come_apart_on_demand(page: Any, own_server: Any) -> None:
    server = own_server()
    runs = seeds(server)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(f"{server.url}/compare?runs={','.join(runs)}")
    table = page.locator(".compare-table")
    table.wait_for()
    rows = table.locator("tbody tr")
    assert rows.count() == 2
    heads = [" ".join(head.lower().split()) for head in table.locator("thead th").all_inner_texts()]
    rows.first.locator("summary").click()
    base, other = ([cell.inner_text() for cell in row.locator("th, td").all()] for row in rows.all())
    assert (base[heads.index("n")], other[heads.index("n")]) == ("3", "2")
    assert all(f"seed {seed}" in base[0] for seed in (1, 2, 3)), "each can be opened"
    title = rows.first.locator("summary").inner_text()
    assert "(3 runs)" in title and "seed" not in title, "not the name of one of them"
    assert re.search(r"± [\d.]+ [MG]iB$", base[heads.index("peak allocated")])
    change = other[heads.index("change of peak allocated")]
    assert re.search(r"\d+\.\d % to \d+\.\d % smaller$", change), change
    page.locator(".compare-exports summary").click()
    page.get_by_role("button", name="Copy Markdown").click()
    page.get_by_role("button", name="Copied").wait_for()
    assert "| n |" in page.evaluate("navigator.clipboard.readText()")
    drawn(page, "peaks_over_steps")
    swatches = rows.first.locator(".swatch").evaluate_all(
        "(all) => all.map((one) => one.style.getPropertyValue('--swatch'))"
    )
    assert len(set(swatches)) == 3, "the charts show each run in its colour"
    groups = page.get_by_label("Group by")
    groups.select_option("each")
    eventually(lambda: rows.count() == 5)
    assert query(page)["group"] == "each" and table.locator("[data-spread]").count() == 0
    groups.select_option("config.seed")
    eventually(lambda: rows.count() == 3)
    first = rows.first.inner_text()
    assert re.search(r"1.*GiB to .*GiB", first, re.DOTALL), "lowest to highest of two configurations"
    groups.select_option("each")
    eventually(lambda: rows.count() == 5)
    page.reload()
    eventually(lambda: rows.count() == 5)
    for width in (1440, 400):
        page.set_viewport_size({"width": width, "height": 900})
        page.goto(f"{server.url}/compare?runs={','.join(runs)}")
        eventually(lambda: rows.count() == 2)
        assert_legible(page)
    page.set_viewport_size({"width": 400, "height": 900})
    assert page.evaluate(SIDEWAYS) == [], "nor for groups with their ranges"
    assert "Change of peak allocated" in " ".join(table.locator("thead").inner_text().split())
    values = page.locator(".differences tr", has_text="seed").locator("td")
    assert values.first.evaluate("(cell) => getComputedStyle(cell, '::before').content").startswith('"'), (
        "whose value it is"
    )


def test_long_settings_and_names_fit_a_narrow_screen(page: Any, server: Any) -> None:
    page.set_viewport_size({"width": 400, "height": 800})
    page.goto(f"{server.url}/compare?runs={RUNS}")
    row = page.locator(".compare-table th.run", has_text=sender.CHECKPOINTING.name)
    mark, name = row.locator(".swatch").bounding_box(), row.locator("a").bounding_box()
    assert name["x"] > mark["x"] + mark["width"], "beside its colour"
    assert row.locator("a").evaluate("(name) => name.scrollWidth <= name.clientWidth"), "in full"
    assert name["height"] < 1.6 * mark["height"] + 12, "in one line, which no number shares"
    assert row.bounding_box()["width"] > 340
    page.goto(f"{server.url}/compare?runs={RUNS}")
    page.locator(".differences").wait_for()
    # a value that many runs share is a chip; that of many techniques is wider than a phone
    page.locator(".differences td").first.evaluate(
        "(cell) => { const chip = document.createElement('span'); chip.className = 'chip'; cell.className = 'values';"
        " chip.textContent = 'AdamW fused, attention sdpa, batch 32 x 512, bf16, checkpointing'; cell.replaceChildren(chip); }"
    )
    assert page.evaluate(SIDEWAYS) == []


@pytest.mark.parametrize("menu", ["Columns", "Export"])
def test_menus_of_a_narrow_page_are_on_the_screen(page: Any, server: Any, menu: str) -> None:
    page.set_viewport_size({"width": 400, "height": 800})
    page.goto(f"{server.url}/compare?runs={RUNS}")
    page.locator(".compare-table").wait_for()
    page.locator(".differences").wait_for()
    assert page.evaluate(SIDEWAYS) == []
    details = page.locator(".compare-controls details", has=page.get_by_text(menu, exact=True))
    details.locator("summary").click()
    for item in details.locator(".menu-item, label, .menu-list > .button").all():
        item.scroll_into_view_if_needed()
        box = item.bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= 400, item.inner_text()
        middle = {"x": box["width"] / 2, "y": box["height"] / 2}
        item.click(trial=True, position=middle)  # nothing lies above it


def test_columns_are_chosen_and_rows_sorted_below_the_baseline(page: Any, server: Any) -> None:
    page.goto(f"{server.url}/compare?runs={RUNS}")
    table = page.locator(".compare-table")
    table.wait_for()
    heads = [" ".join(head.lower().split()) for head in table.locator("thead th").all_inner_texts()]
    assert heads[1:3] == ["dtype", "gradient_checkpointing"], "what differs comes first"
    assert "steps" not in heads
    page.locator(".compare-columns summary").click()
    page.locator(".compare-columns").get_by_label("Steps", exact=True).check()
    eventually(lambda: "Steps" in table.locator("thead th").all_inner_texts())
    assert page.locator(".compare-columns").get_by_label("Steps", exact=True).is_checked()
    page.locator(".compare-columns").get_by_label("dtype").uncheck()
    eventually(lambda: "dtype" not in table.locator("thead th").all_inner_texts())
    assert "steps" in query(page)["columns"] and "config.dtype" not in query(page)["columns"]
    page.get_by_role("button", name="Standard columns").click()
    eventually(lambda: "dtype" in table.locator("thead th").all_inner_texts())
    page.keyboard.press("Escape")

    def order() -> list[str]:
        return [str(row.get_attribute("data-run")) for row in table.locator("tbody tr").all()]

    head = table.locator("thead th", has_text="Step time").first
    head.get_by_role("button").click()
    eventually(lambda: head.get_attribute("aria-sort") == "ascending")
    assert order() == [sender.BASELINE.run, sender.BF16.run, sender.CHECKPOINTING.run]
    assert head.get_by_role("button").evaluate("(button) => button === document.activeElement")
    head.get_by_role("button").click()
    eventually(lambda: order() == [sender.BASELINE.run, sender.CHECKPOINTING.run, sender.BF16.run])
    page.reload()
    eventually(lambda: head.get_attribute("aria-sort") == "descending")


def test_many_columns_wrap_instead_of_scrolling_sideways(page: Any, server: Any) -> None:
    page.set_viewport_size({"width": 1440, "height": 900})
    page.goto(f"{server.url}/compare?runs={RUNS}")
    table = page.locator(".compare-table")
    table.wait_for()
    assert page.locator(".wrapped").count() == 0 and page.evaluate(SIDEWAYS) == []
    ids = page.locator(".compare-columns [data-column]").evaluate_all("(all) => all.map((one) => one.dataset.column)")
    assert len(ids) > 20
    page.goto(f"{server.url}/compare?runs={RUNS}&columns={','.join(ids)}")
    page.locator(".wrapped").wait_for()
    for width in (1440, 1000):
        page.set_viewport_size({"width": width, "height": 900})
        eventually(lambda: page.evaluate(SIDEWAYS) == [], what=f"no wide table at {width}")
        places = "(row) => [...row.cells].map((cell) => Math.round(cell.getBoundingClientRect().x))"
        head, *rows = [row.evaluate(places) for row in table.locator("tr").all()]
        assert all(row == head for row in rows), "a value is below the head of its column"
        assert len(set(head)) < len(head), "in several lines"
    page.goto(f"{server.url}/compare?runs={RUNS}&columns={','.join(ids[:4])}")
    table.wait_for()
    assert page.locator(".wrapped").count() == 0


def test_all_columns_can_be_removed(page: Any, server: Any) -> None:
    """The empty choice is in the address, so that it is not taken for no choice."""
    page.goto(f"{server.url}/compare?runs={RUNS}&columns=steps")
    table = page.locator(".compare-table")
    eventually(lambda: table.locator("thead th").all_inner_texts() == ["Run", "Steps"])
    page.locator(".compare-columns summary").click()
    page.locator(".compare-columns").get_by_label("Steps", exact=True).uncheck()
    eventually(lambda: table.locator("thead th").all_inner_texts() == ["Run"])
    page.reload()
    eventually(lambda: table.locator("thead th").all_inner_texts() == ["Run"])
    page.locator(".compare-columns summary").click()
    page.locator(".compare-columns").get_by_label("Steps", exact=True).check()
    eventually(lambda: table.locator("thead th").all_inner_texts() == ["Run", "Steps"])


def test_many_runs_stay_readable(page: Any, own_server: Any) -> None:
    """Chips fold, only some runs have a colour, and settings list their values instead of a column for each run."""
    server = own_server()
    sender.thousand(server.url, runs=20)
    runs = ",".join(f"5eeb{number:012x}" for number in range(20))
    page.goto(f"{server.url}/compare?runs={runs}&group=each")
    eventually(lambda: page.locator(".compare-table tbody tr").count() == 20)
    assert page.locator(".picked").count() == 8
    page.get_by_role("button", name="Show all 20 runs").click()
    eventually(lambda: page.locator(".picked").count() == 20)
    page.set_viewport_size({"width": 400, "height": 800})
    page.reload()
    eventually(lambda: page.locator(".picked").count() == 3)
    page.set_viewport_size({"width": 1440, "height": 900})
    page.reload()
    eventually(lambda: page.locator(".compare-table tbody tr").count() == 20)
    colours = page.locator(".compare-table .swatch").evaluate_all(
        "(all) => all.map((one) => one.style.getPropertyValue('--swatch'))"
    )
    assert len(set(colours[:8])) == 8 and set(colours[8:]) == {"var(--role-unknown)"}
    overlay = drawn(page, "peaks_over_steps")
    assert overlay.locator(".legend tbody tr").count() == 8
    assert "12 further runs are grey" in overlay.inner_text()
    tags = page.locator(".differences tr", has_text="tags")
    assert re.search(r"lr0\s*4", tags.inner_text())
    page.get_by_label("Group by").select_option("device")
    eventually(lambda: page.locator(".compare-table tbody tr").count() == 3)
    assert "NVIDIA H100 80GB HBM3" in page.locator(".compare-table tbody tr").first.inner_text()
    assert_legible(page)
    page.goto(f"{server.url}/compare?runs={','.join(runs.split(',')[:9])}&group=each")
    eventually(lambda: "1 further run is grey" in drawn(page, "peaks_over_steps").inner_text())


def test_peaks_that_may_be_higher_are_marked_in_the_table_and_in_the_charts(page: Any, own_server: Any) -> None:
    """A run with samples alone, beside one whose peaks are exact. The driver is sampled in both."""
    server = own_server()
    unknown = dict.fromkeys(("peak_allocated_bytes", "peak_reserved_bytes", "forward_peak_allocated_bytes"), -1)
    exact, sampled = Sender(server.url, "exact"), Sender(server.url, "sampled")
    for run, peaks in ((exact, {}), (sampled, unknown)):
        run.send(run.agent.samples(20, process_device_bytes=5 << 30), run.agent.steps(4, **peaks))
        run.send(run.agent.ended())
    page.goto(f"{server.url}/compare?runs={exact.agent.run},{sampled.agent.run}")
    table = page.locator(".compare-table")
    table.wait_for()
    heads = [" ".join(head.lower().split()) for head in table.locator("thead th").all_inner_texts()]
    rows = [[cell.inner_text() for cell in row.locator("th, td").all()] for row in table.locator("tbody tr").all()]
    assert [row[heads.index("peak allocated")][0] == "≥" for row in rows] == [False, True]
    bars = drawn(page, "peaks_side_by_side")
    bars.get_by_text("≥ sampled: the peak may be higher, because a rank has samples alone").wait_for()
    assert "≥ exact" not in bars.inner_text()
    for name in ("memory_against_time", "peaks_over_steps"):
        chart = drawn(page, name)
        assert "sampled: unknown" in chart.inner_text() and "≥" not in chart.inner_text(), (
            "what is not drawn has no mark"
        )
    assert bars.locator("g.annotation").all_text_contents() == ["≥"]
    page.locator(".compare-columns summary").click()
    page.locator(".compare-columns").get_by_label("Peak on device", exact=True).check()
    on_device = table.locator("tbody tr").first.get_by_text(re.compile(r"^≥ [\d.]+ GiB$"))
    on_device.wait_for()
    assert on_device.get_attribute("title").startswith("lower bound: ")
