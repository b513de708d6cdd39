"""The operations of a run: its profiles, what they say, rows and figures, and asking for one."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from browsing import drawn, part_on_first_screen, query
from legibility import SIDEWAYS, assert_legible
from waiting import eventually

sys.path.append(str(Path(__file__).parents[1] / "backend"))

from profile_maker import MARKUP, a_profile
from wire_maker import Agent, new_id, steps

from vramscope.protocol import messages as wire_messages
from vramscope.protocol.profile import Profile, pack

SECOND = 1_000_000_000


class Sender:
    """A process that sends to a server of the pages' tests."""

    def __init__(self, url: str, name: str) -> None:
        self.url = url
        self.agent = Agent(new_id("pagesops"), name=name, start_ns=time.time_ns() - 60 * SECOND)
        self.page = f"{url}/runs/{self.agent.run}/operations"

    def send(self, *messages: wire_messages.Message) -> wire_messages.Ack:
        answer = httpx.post(
            f"{self.url}/api/v1/batches",
            content=self.agent.body(*messages),
            headers={"Content-Type": wire_messages.CONTENT_TYPE},
            trust_env=False,
        )
        assert answer.status_code == 200, answer.text
        return wire_messages.decode_ack(answer.content)

    def step(self, first: int = 1) -> wire_messages.Ack:
        return self.send(steps(start_ns=self.agent.start_ns, first=first))

    def profile(self, profile: Profile, kind: str = "profile", data: bytes | None = None) -> str:
        ident = new_id("pagesprofile")
        about: dict[str, wire_messages.Scalar] = {
            name: getattr(profile, name) for name in ("first_step", "last_step", "reason")
        }
        piece = wire_messages.Piece(
            artifact=ident, kind=kind, number=0, pieces=1, about=about, data=data or pack(profile)
        )
        self.send(piece)
        return ident


@pytest.fixture(scope="module")
def profiled(server: Any) -> Sender:
    """A run that has ended, with two profiles: one with device times and a trace, one without either."""
    run = Sender(server.url, "profiled")
    run.step()
    run.profile(a_profile(device_time=False, stacks=False, lines={}, reason="after warm-up", first_step=5, last_step=5))
    run.profile(a_profile())
    run.profile(a_profile(), kind="trace", data=b"a trace")
    run.send(wire_messages.Ended(time_ns=time.time_ns(), state="finished"))
    return run


def names(page: Any) -> list[str]:
    return page.locator(".profile-rows tbody th code, .profile-rows tbody th > span.muted").all_inner_texts()


def test_what_takes_time_and_memory_stands_in_two_sentences_two_figures_and_three_tables(
    page: Any, profiled: Sender
) -> None:
    page.goto(profiled.page)
    verdict = page.locator(".profile-verdict")
    verdict.wait_for()
    assert "The device was busy for 80.0 % of it" in verdict.inner_text()
    assert "net.py:7 (1.50 GiB)" in verdict.inner_text()
    assert "142 ms" in page.locator("[data-kpi=cost]").inner_text(), "2 ms, 100 ms, and twice 20 ms of slower steps"
    bars = drawn(page, "profile-operations")
    assert bars.evaluate("(chart) => chart.traces.length") >= 2
    drawn(page, "profile-modules")
    eventually(lambda: names(page)[0] == "aten::mm")
    assert MARKUP in names(page), "a name is text"
    page.get_by_role("button", name="CPU self").click()
    eventually(lambda: names(page)[0].startswith("(Python"))
    page.locator("[data-table=lines]").click()
    eventually(lambda: sorted(names(page)) == ["(no line of yours)", "net.py:7", "net.py:8 or later"])
    page.get_by_label("Search names").fill("nowhere")
    page.get_by_text("No matching name.").wait_for()
    page.get_by_label("Search names").fill("")
    page.locator("[data-table=modules]").click()
    eventually(lambda: "up.inner" in names(page))
    assert page.get_by_role("link", name="Trace").get_attribute("href").endswith("/trace")


def test_what_was_held_is_stacked_by_operations_modules_or_lines(page: Any, profiled: Sender) -> None:
    page.goto(profiled.page)
    chart = drawn(page, "profile-memory")
    items = page.locator("[data-figure=profile-memory] .legend")
    assert "1.00 GiB aten::mm" not in items.inner_text(), "both phases' are one"
    assert "1.50 GiB aten::mm" in items.inner_text() and f"512 MiB {MARKUP}" in items.inner_text()
    assert "maximum not attributed: 2.00 MiB" in page.locator("[data-figure=profile-memory] .chart-notes").inner_text()
    page.locator("[data-stack=lines]").click()
    eventually(lambda: "net.py:7" in items.inner_text())
    assert query(page)["stack"] == "lines"
    drawn(page, "profile-memory")
    assert chart.evaluate("(chart) => chart.traces[0].meta.role") == "earlier:before the profile"


def test_on_a_phone_the_memory_is_on_the_first_screen_and_what_explains_it_follows(page: Any, profiled: Sender) -> None:
    page.set_viewport_size({"width": 400, "height": 800})
    page.goto(profiled.page)
    plot = drawn(page, "profile-memory").locator(".plot-frame")
    page.evaluate("scrollTo(0, 0)")
    eventually(lambda: part_on_first_screen(page, plot) > 0.5, what="most of the plot above the bar")
    choice = page.get_by_role("group", name="Memory by")
    sentence, figures = page.locator(".profile-peak"), page.locator(".kpis")
    below = [one.bounding_box()["y"] for one in (page.locator(".profile-verdict"), plot, choice, sentence, figures)]
    assert below == sorted(below)
    page.set_viewport_size({"width": 1440, "height": 900})
    eventually(lambda: choice.bounding_box()["y"] < plot.bounding_box()["y"], what="the choice above its chart")
    assert page.locator(".profile-verdict .profile-peak").is_visible(), "one banner again"


def test_the_title_of_an_axis_is_not_cut_off_on_a_phone(page: Any, profiled: Sender) -> None:
    page.set_viewport_size({"width": 360, "height": 800})
    page.goto(profiled.page)
    title = drawn(page, "profile-memory").locator(".g-xtitle")
    edge = title.locator("xpath=ancestor::*[local-name()='svg'][last()]").bounding_box()
    box = title.bounding_box()
    assert box["x"] >= edge["x"] and box["x"] + box["width"] <= edge["x"] + edge["width"]


def test_the_rows_fit_a_narrow_screen(page: Any, profiled: Sender) -> None:
    page.set_viewport_size({"width": 400, "height": 800})
    page.goto(profiled.page)
    page.locator(".profile-rows tfoot").wait_for()
    assert page.evaluate(SIDEWAYS) == []


def test_another_profile_says_what_it_does_not_know(page: Any, profiled: Sender) -> None:
    page.goto(profiled.page)
    page.get_by_label("Profile", exact=True).select_option(index=1)
    eventually(lambda: "unknown" in page.locator("[data-kpi=device]").inner_text())
    assert "profile" in query(page)
    assert page.get_by_role("button", name="Device time").count() == 0
    page.locator("[data-table=lines]").click()
    page.get_by_text("this profile has no Python stacks").wait_for()
    assert page.get_by_role("link", name="Trace").count() == 0


def test_a_live_run_is_asked_and_its_profile_shows_itself(page: Any, server: Any) -> None:
    run = Sender(server.url, "asked for a profile")
    run.step()
    page.goto(run.page)
    page.get_by_text("profiles two steps of this run").wait_for()
    page.get_by_role("button", name="Profile the next steps").click()
    page.locator("[data-asked] progress").wait_for()
    eventually(lambda: wire_messages.RECORD_PROFILE in run.step(first=9).requests)
    run.profile(a_profile())
    page.locator(".profile-verdict").wait_for()
    eventually(lambda: page.locator("[data-asked]").count() == 0)
    run.send(wire_messages.Ended(time_ns=time.time_ns(), state="finished"))
    page.get_by_role("button", name="Profile the next steps").wait_for(state="detached")


def test_a_profile_that_cannot_be_read_says_so_and_one_that_is_deleted_goes(page: Any, server: Any) -> None:
    run = Sender(server.url, "damaged profile")
    run.step()
    run.profile(a_profile(), data=b"damaged")
    run.send(wire_messages.Ended(time_ns=time.time_ns(), state="finished"))
    page.context.watcher.expected.append("422")
    page.goto(run.page)
    page.get_by_text("This profile cannot be read").wait_for()
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Delete", exact=True).click()
    page.get_by_text("This run ended without a profile").wait_for()


def test_it_fits_is_legible_and_nothing_lies_on_another(page: Any, profiled: Sender) -> None:
    page.goto(profiled.page)
    page.locator(".profile-verdict").wait_for()
    eventually(lambda: len(names(page)) > 2)
    assert_legible(page)
