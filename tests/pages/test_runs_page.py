"""The list of runs: what it shows, what it does not run, and that it is alive."""

# ruff: noqa: RUF001  the signs are those of the pages

from __future__ import annotations

import importlib.util
import re
import time
from typing import Any

import httpx
import sender
from browsing import drawn, query
from waiting import eventually


def row(page: Any, run: str) -> Any:
    return page.locator(f'tr[data-run="{run}"]')


def listed(page: Any) -> list[str]:
    """Ids of the runs in the table, in one query: it may change at any time."""
    runs: list[str] = page.locator("tbody tr").evaluate_all("(rows) => rows.map((row) => row.dataset.run)")
    return runs


def test_shows_every_run_with_its_numbers(page: Any, server: Any) -> None:
    page.goto(server.url)
    row(page, sender.CHECKPOINTING.run).wait_for()
    assert page.evaluate("location.pathname") == "/runs"
    text = row(page, sender.CHECKPOINTING.run).inner_text()
    assert "bf16-checkpointing" in text
    assert re.search(r"1\d\.\d GiB", text)
    assert re.search(r"−\d\d\.\d %", text), "the change against the project's baseline"
    assert row(page, sender.CHECKPOINTING.run).locator(".spark path").count() == 2
    assert "checkpointing · bf16 · AdamW fused" in text
    assert "7 of 8" in row(page, sender.EIGHT.run).inner_text()
    failed = row(page, sender.TOO_LARGE.run).inner_text()
    assert "failed" in failed
    assert "torch.OutOfMemoryError: CUDA out of memory" in failed
    assert "AdamW" not in failed, "one line has room for the error or for the techniques"
    first = page.locator("tbody tr").first
    assert first.get_attribute("data-run") == sender.BASELINE.run, "the baseline stands on top"


def test_unknown_is_not_zero(page: Any, server: Any) -> None:
    page.goto(f"{server.url}/runs")
    cells = row(page, sender.ON_CPU.run).locator("td.peak, td.frag")
    cells.first.wait_for()
    for text in cells.all_inner_texts():
        assert "0" not in text
        assert "—" in text


def test_markup_in_names_stays_text(page: Any, server: Any) -> None:
    """A name is what someone typed; no page may run it."""
    page.goto(f"{server.url}/runs")
    link = row(page, sender.HOSTILE.run).locator("a")
    link.first.wait_for()
    assert link.first.inner_text() == sender.MARKUP
    link.first.click()
    page.get_by_role("heading", name=sender.MARKUP).wait_for()
    page.locator("vs-chart[data-draws]").first.wait_for()
    page.goto(f"{server.url}/compare?runs={sender.HOSTILE.run},{sender.BASELINE.run}&diff=all")
    drawn(page, "peaks_over_steps")
    assert sender.MARKUP in page.locator(".compare-table").inner_text()
    for address in (
        f"/runs/{sender.HOSTILE.run}",
        "/runs",
        "/runs/%3Cimg%20src%3Dx%20onerror%3D%22window.pwned%3D1%22%3E",
    ):
        page.context.watcher.expected.append("404")
        page.goto(server.url + address)
        page.locator("h1").wait_for()
        assert page.locator("main img, main script, main b, main u").count() == 0
        assert page.evaluate("window.pwned") is None


def test_the_search_is_in_the_url_and_comes_back(page: Any, server: Any) -> None:
    page.goto(f"{server.url}/runs")
    row(page, sender.BASELINE.run).wait_for()
    page.keyboard.press("/")
    page.keyboard.type("bf16")
    row(page, sender.BASELINE.run).wait_for(state="detached")
    eventually(lambda: query(page).get("q") == "bf16")  # the row may have gone at "bf1" already
    page.reload()
    row(page, sender.BF16.run).wait_for()
    assert page.locator("tbody tr").count() == 2
    assert page.get_by_label("Search runs").input_value() == "bf16"
    assert "−" in row(page, sender.BF16.run).locator(".delta").inner_text(), "the baseline is known though filtered out"
    page.goto(f"{server.url}/runs?q=nothing-is-called-so")
    page.get_by_text("No run matches").wait_for()


def test_filters_by_project_and_state(page: Any, server: Any) -> None:
    page.goto(f"{server.url}/runs")
    row(page, sender.BASELINE.run).wait_for()
    page.get_by_label("State", exact=True).select_option("failed")
    row(page, sender.BASELINE.run).wait_for(state="detached")
    eventually(lambda: {text.strip() for text in page.locator("tbody .state").all_inner_texts()} == {"failed"})
    row(page, sender.TOO_LARGE.run).wait_for()
    page.get_by_label("State", exact=True).select_option("")
    row(page, sender.BASELINE.run).wait_for()
    page.get_by_label("Project", exact=True).select_option("llama")
    row(page, sender.BASELINE.run).wait_for(state="detached")
    eventually(lambda: listed(page) == [sender.EIGHT.run])


def test_filters_by_device_and_tag(page: Any, server: Any) -> None:
    page.goto(f"{server.url}/runs")
    row(page, sender.BASELINE.run).wait_for()
    assert "NVIDIA H100 80GB HBM3" in page.get_by_label("Device", exact=True).locator("option").all_inner_texts()
    page.get_by_label("Device", exact=True).select_option("CPU")
    eventually(lambda: listed(page) == [sender.ON_CPU.run])
    assert query(page) == {"device": "CPU"}
    page.get_by_label("Device", exact=True).select_option("")
    row(page, sender.BASELINE.run).wait_for()
    page.get_by_label("Tag", exact=True).select_option("ckpt")
    eventually(lambda: listed(page) == [sender.CHECKPOINTING.run])
    page.reload()
    eventually(lambda: listed(page) == [sender.CHECKPOINTING.run])
    assert page.get_by_label("Tag", exact=True).input_value() == "ckpt"
    page.goto(f"{server.url}/runs?tag=no-such-tag")
    page.get_by_text("No run matches").wait_for()
    assert page.get_by_label("Tag", exact=True).input_value() == "no-such-tag", (
        "what hides the runs can be seen, and taken away"
    )


def test_sorts_with_unknown_last(page: Any, server: Any) -> None:
    page.goto(f"{server.url}/runs")
    row(page, sender.BASELINE.run).wait_for()
    page.get_by_role("button", name="Peak allocated").click()
    runs = [run for run in listed(page) if not run.startswith("pages")]  # those that other tests have sent
    assert runs[0] == sender.TOO_LARGE.run
    assert runs[-1] == sender.ON_CPU.run
    page.get_by_role("button", name="Peak allocated").click()
    runs = [run for run in listed(page) if not run.startswith("pages")]  # those that other tests have sent
    assert runs[0] == sender.CHECKPOINTING.run
    assert runs[-1] == sender.ON_CPU.run


def test_the_order_is_in_the_url_and_comes_back(page: Any, server: Any) -> None:
    page.goto(f"{server.url}/runs?q=bf16")
    row(page, sender.BF16.run).wait_for()
    head = page.get_by_role("button", name="Peak allocated")
    column = page.get_by_role("columnheader", name="Peak allocated")
    assert query(page) == {"q": "bf16"}
    head.click()
    eventually(lambda: query(page) == {"q": "bf16", "sort": "-peak_allocated"})
    head.click()
    eventually(lambda: query(page) == {"q": "bf16", "sort": "peak_allocated"})
    lowest_first = [sender.CHECKPOINTING.run, sender.BF16.run]
    eventually(lambda: listed(page) == lowest_first)
    page.reload()
    eventually(lambda: listed(page) == lowest_first)
    assert column.get_attribute("aria-sort") == "ascending"
    row(page, sender.BF16.run).locator("a").first.click()
    page.get_by_role("heading", name=sender.BF16.name, exact=True).wait_for()
    page.go_back()
    eventually(lambda: listed(page) == lowest_first)
    assert column.get_attribute("aria-sort") == "ascending"
    page.goto(f"{server.url}/runs?q=bf16&sort=-run")
    eventually(lambda: listed(page) == lowest_first, what="names from the end: bf16-checkpointing, bf16")
    page.goto(f"{server.url}/runs?q=bf16&sort=no_such_column")
    row(page, sender.BF16.run).wait_for()
    assert page.locator("[aria-sort]").count() == 0
    head.click()
    head.click()
    head.click()
    eventually(lambda: query(page) == {"q": "bf16"}, what="the server's own order")


def test_chosen_runs_go_to_compare(page: Any, server: Any) -> None:
    page.goto(f"{server.url}/runs")
    row(page, sender.BASELINE.run).locator("input").check()
    row(page, sender.BF16.run).locator("input").check()
    page.get_by_role("button", name="Compare (2)").click()
    page.locator(".compare-table").wait_for()
    assert {sender.BASELINE.run, sender.BF16.run} <= set(query(page)["runs"].split(","))


def test_pinning_puts_a_run_on_top_and_stays(page: Any, own_server: Any) -> None:
    own = own_server()
    for number in range(3):
        sender.past(own.url, sender.Training(name=f"run-{number}", run=f"0000000{number}"), hours=3 - number, steps=5)
    page.goto(f"{own.url}/runs")
    page.get_by_role("button", name="pin to the top: run-0").click()
    eventually(lambda: page.locator("tbody tr").first.get_attribute("data-run") == "00000000")
    page.reload()
    page.locator("tbody tr").first.wait_for()
    assert page.locator("tbody tr").first.get_attribute("data-run") == "00000000"


def test_the_empty_page_helps_and_turns_live_by_itself(page: Any, own_server: Any, live_run: Any) -> None:
    own = own_server()
    page.goto(own.url)
    page.get_by_text("waiting for the first run").wait_for()
    words = page.locator(".welcome").inner_text()
    assert "pip install vramscope" in words
    assert f"vramscope run --server {own.url} -- python train.py" in words
    assert f'agent.attach(trainer, server="{own.url}")' in words
    assert f'agent.attach(server="{own.url}")' in words and f"vramscope demo --steps 300 --server {own.url}" in words
    assert "TOKEN" not in words, "this server asks for none"
    page.locator(".live[data-state=live]").wait_for()
    training = live_run(own)
    row(page, training.run).wait_for()
    assert page.locator(".welcome").count() == 0
    steps = row(page, training.run).locator(".steps")
    eventually(lambda: steps.inner_text().isdigit(), what="the first step")
    first = int(steps.inner_text())
    eventually(lambda: int(steps.inner_text()) > first, what="more steps")


def test_many_runs_come_page_by_page(page: Any, own_server: Any) -> None:
    own = own_server()
    began = time.time() - 9999
    client = sender.Rank(own.url, sender.BASELINE).client
    for number in range(130):
        rank = sender.Rank(
            own.url, sender.Training(name=f"run-{number:03d}", run=f"{number:08d}"), start=began + number
        )
        rank.client = client
        samples, steps = rank.make(3)
        rank.post(rank.attached(), *rank.blocks(samples, steps), rank.ended())
    page.goto(f"{own.url}/runs")
    page.get_by_text("of 130 runs").wait_for()
    assert page.locator("tbody tr").count() == 100
    page.get_by_role("button", name="Run", exact=True).click()
    eventually(lambda: page.locator("tbody tr").count() == 130, what="a sorted list is a whole list")
    assert page.locator("tbody tr").first.get_attribute("data-run") == "00000000"
    page.reload()
    eventually(lambda: page.locator("tbody tr").count() == 130, what="the same order of all")
    page.goto(f"{own.url}/runs")
    page.get_by_text("of 130 runs").wait_for()
    page.mouse.wheel(0, 9000)
    eventually(lambda: page.locator("tbody tr").count() == 130, what="the rest, by scrolling")


def test_exports_what_is_listed(page: Any, server: Any) -> None:
    page.goto(f"{server.url}/runs")
    row(page, sender.BASELINE.run).wait_for()
    with page.expect_download() as downloading:
        page.keyboard.press("e")
    text = downloading.value.path().read_text()
    assert text.splitlines()[0].startswith("run_id,name,project,state")
    assert sender.BASELINE.run in text


def test_the_demo_starts_with_one_click_and_opens_its_run(page: Any, own_server: Any) -> None:
    own = own_server()
    page.goto(own.url)
    page.get_by_role("button", name="Start the demo").click()
    page.get_by_role("progressbar", name="progress of the demo").wait_for()
    page.wait_for_url(re.compile(r"/runs/[0-9a-f]{16}$"))
    page.get_by_role("heading", name="demo").wait_for()
    page.goto(f"{own.url}/runs")
    eventually(lambda: "finished" in page.locator("tbody tr").first.inner_text(), what="the end of the demo")


def test_a_server_without_pytorch_says_why_there_is_no_demo(page: Any, own_server: Any, monkeypatch: Any) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "torch" else find(name, *rest))
    own = own_server()
    page.goto(own.url)
    page.get_by_text("The demo needs PyTorch in the server's environment: pip install torch").wait_for()
    assert page.get_by_role("button", name="Start the demo").is_disabled()


def test_a_peak_that_is_a_lower_bound_is_marked_in_the_list_and_in_a_comparison(page: Any, own_server: Any) -> None:
    own = own_server()
    ranks = [
        sender.Rank(own.url, sender.Training(name=name, run=f"pages000000000{end}", config={"device": name}))
        for name, end in (("cuda", "e1"), ("xpu", "e2"))
    ]
    for rank in ranks:
        samples, steps = rank.make(40)
        if rank.training.name == "xpu":
            for name in [name for name in steps if "peak" in name]:
                steps[name][:] = -1
            samples["allocated_bytes"][:] *= 3
        rank.post(rank.attached(), *rank.blocks(samples, steps), rank.ended())
    exact, bound = (rank.training.run for rank in ranks)
    httpx.patch(f"{own.url}/api/v1/runs/{exact}", json={"baseline": True}).raise_for_status()
    page.goto(f"{own.url}/runs")
    eventually(lambda: re.match(r"≥ [\d.]+ GiB", row(page, bound).locator("td.peak").inner_text().strip()))
    assert re.match(r"≥ \+[\d.]+ %", row(page, bound).locator("td.delta").inner_text())
    assert "≥" not in row(page, exact).inner_text()
    page.goto(f"{own.url}/compare?runs={exact},{bound}")
    compared = page.locator(f".compare-table tr[data-run={bound}]")
    eventually(lambda: re.search(r"≥ [\d.]+ GiB\s", compared.inner_text()))
    assert re.search(r"at least [\d.]+ % larger", " ".join(compared.inner_text().split()))
    assert "≥" not in page.locator(f".compare-table tr[data-run={exact}]").inner_text()
    page.goto(f"{own.url}/compare?runs={bound},{exact}")
    compared = page.locator(f".compare-table tr[data-run={exact}]")
    eventually(lambda: re.search(r"at least [\d.]+ % smaller", " ".join(compared.inner_text().split())))
