"""Pages without data say what to do next, with a command or a link."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import httpx
import sender
from legibility import assert_legible
from test_oom_page import rich_box, sent


def test_compare_without_any_run_shows_how_to_make_two(page: Any, own_server: Any) -> None:
    own = own_server()
    page.goto(f"{own.url}/compare")
    page.get_by_role("heading", name="No runs yet").wait_for()
    assert page.locator("main pre").inner_text().splitlines() == [
        f"vramscope run --server {own.url} --name baseline -- python train.py",
        f"vramscope run --server {own.url} --name bf16 -- python train.py --bf16",
    ]
    assert_legible(page)


def test_compare_with_runs_asks_to_choose(page: Any, server: Any) -> None:
    page.goto(f"{server.url}/compare")
    page.get_by_role("heading", name="No runs chosen").wait_for()
    page.get_by_role("link", name="list of runs").wait_for()


def test_a_run_before_its_first_step_says_what_it_waits_for(page: Any, own_server: Any) -> None:
    own = own_server()
    rank = sender.Rank(own.url, sender.Training(name="new", run="11ee000000000001"))
    rank.post(rank.attached())
    page.goto(f"{own.url}/runs/{rank.training.run}")
    verdict = page.locator("[data-verdict]")
    verdict.get_by_text("Waiting for the first step.").wait_for()
    page.get_by_text("Not reported yet. The agent observes from step 2 on.").wait_for()
    assert page.locator(".peak-stack").is_hidden(), "there is no peak"
    assert_nothing_is_called_unknown(page)
    assert page.locator(".view-bar").is_hidden(), "there is no window to choose"
    assert_legible(page)
    rank.history(5)
    rank.client.close()
    verdict.get_by_text("So far: it fits").wait_for()
    page.locator(".peak-stack").get_by_text("allocated").first.wait_for()
    page.locator("vs-chart[data-figure=stack][data-draws]").wait_for()
    page.locator(".kpis [data-kpi=peak]").get_by_text("GiB").first.wait_for()


def assert_nothing_is_called_unknown(page: Any) -> None:
    """A page without data says so once, in its banner: no figure, chart or choice of a window repeats it."""
    assert page.locator(".kpi .value.unknown").filter(visible=True).count() == 0
    assert page.locator("vs-chart").filter(visible=True).count() == 0


def test_samples_before_the_first_step_do_not_say_that_it_fits(page: Any, own_server: Any) -> None:
    own = own_server()
    rank = sender.Rank(own.url, sender.Training(name="new", run="11ee00000000000b"))
    rank.post(rank.attached())
    samples, steps = rank.make(1)
    samples["step"] = samples["step"] * 0
    for block in rank.blocks(samples, {name: values[:0] for name, values in steps.items()}):
        if block.rows:
            rank.post(block)
    page.goto(f"{own.url}/runs/{rank.training.run}")
    verdict = page.locator("[data-verdict]")
    verdict.get_by_text("Waiting for the first step.").wait_for()
    assert re.search(
        r"So far at least [\d.]+ GiB allocated, with at most [\d.]+ GiB of headroom\.", verdict.inner_text()
    )
    assert "fits" not in verdict.inner_text()
    rank.history(5)
    rank.client.close()
    verdict.get_by_text("So far: it fits").wait_for()


def test_other_pages_of_a_run_without_data_show_no_empty_chart(page: Any, own_server: Any) -> None:
    own = own_server()
    rank = sender.Rank(own.url, sender.Training(name="new", run="11ee00000000000a"))
    rank.post(rank.attached())
    for tab, sentence in {"leaks": "No optimizer step has ended", "fragmentation": "No recording"}.items():
        page.goto(f"{own.url}/runs/{rank.training.run}/{tab}")
        page.get_by_text(sentence).first.wait_for()
        assert_nothing_is_called_unknown(page)
        assert_legible(page)
    rank.history(20)
    rank.client.close()
    page.locator("vs-chart[data-figure=fragmentation]").wait_for()
    page.goto(f"{own.url}/runs/{rank.training.run}/leaks")
    page.locator("vs-chart[data-figure=floor][data-draws]").wait_for()


def test_a_run_on_the_cpu_shows_no_chart_of_the_allocator(page: Any, server: Any) -> None:
    page.goto(f"{server.url}/runs/{sender.ON_CPU.run}/fragmentation")
    page.get_by_text("This run used no CUDA device.").wait_for()
    assert page.locator("vs-chart").filter(visible=True).count() == 0


def test_a_run_that_failed_before_its_first_step_shows_its_error_alone(page: Any, own_server: Any) -> None:
    own = own_server()
    rank = sender.Rank(own.url, sender.Training(name="early", run="11ee000000000008"))
    rank.post(rank.attached())
    rank.finish("failed", ("FileNotFoundError", "No such file or directory: 'data/train.bin'"))
    rank.client.close()
    page.goto(f"{own.url}/runs/{rank.training.run}")
    page.locator(".banner.bad").get_by_text("FileNotFoundError").wait_for()
    page.get_by_role("heading", name="Environment").wait_for()
    assert_nothing_is_called_unknown(page)
    assert_legible(page)


def test_a_run_that_ended_without_a_step_says_how_steps_are_found(page: Any, own_server: Any) -> None:
    own = own_server()
    for training in (
        sender.Training(name="on a card", run="11ee000000000002"),
        dataclasses.replace(sender.ON_CPU, run="11ee000000000003"),
    ):
        rank = sender.Rank(own.url, training)
        rank.post(rank.attached())
        rank.finish("finished", None)
        rank.client.close()
        page.goto(f"{own.url}/runs/{training.run}")
        verdict = page.locator("[data-verdict]")
        verdict.get_by_text("No step ended.").wait_for()
        verdict.get_by_text("step()").wait_for()


def test_a_lost_run_is_not_said_to_have_had_enough_memory(page: Any, own_server: Any) -> None:
    own = own_server(lost_after_seconds=0.5)
    rank = sender.Rank(own.url, sender.Training(name="lost", run="11ee000000000004"))
    rank.post(rank.attached())
    rank.client.close()
    page.goto(f"{own.url}/runs/{rank.training.run}/oom")
    verdict = page.locator("[data-cause=none]")
    verdict.get_by_text("None arrived before the connection was lost.").wait_for()
    assert [code.inner_text() for code in verdict.locator("code").all()] == ["vramscope sync"]
    assert_legible(page)


def test_an_out_of_memory_error_is_named_once_in_the_list(page: Any, own_server: Any) -> None:
    own = own_server()
    run = sender.past(own.url, sender.TOO_LARGE, hours=1, steps=5, state="failed", error=sender.OUT_OF_MEMORY).run
    sent(own, run, rich_box("cccc000000000002", None))
    page.goto(f"{own.url}/runs")
    row = page.locator("tr", has_text=sender.TOO_LARGE.name)
    row.get_by_role("link", name="OOM").wait_for()
    assert "OutOfMemoryError" not in row.inner_text()


def test_the_texts_of_an_empty_list_stand_in_its_middle(page: Any, own_server: Any) -> None:
    page.goto(f"{own_server().url}/snapshots")
    card = page.locator(".card.empty")
    card.wait_for()
    box = card.bounding_box()
    for text in card.locator("p").all():
        inner = text.bounding_box()
        assert abs(inner["x"] + inner["width"] / 2 - box["x"] - box["width"] / 2) < 1


def test_a_narrow_list_of_snapshots_needs_no_sideways_scrolling(page: Any, own_server: Any) -> None:
    own = own_server()
    for number in range(3):
        content = f"no snapshot {number}".encode()
        httpx.post(
            f"{own.url}/api/v1/snapshots?name=rank{number}_after_warmup.pickle", content=content, trust_env=False
        ).raise_for_status()
    page.set_viewport_size({"width": 400, "height": 800})
    page.goto(f"{own.url}/snapshots")
    card = page.get_by_role("region", name="Snapshot files")
    card.get_by_role("button", name="Delete").nth(2).wait_for()
    assert card.evaluate("(card) => card.scrollWidth <= card.clientWidth")
