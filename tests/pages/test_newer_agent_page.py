"""A run of a newer agent: what the pages do not know stands there by its name, and what is missing is told."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec
from browsing import drawn, eventually
from test_fragmentation_page import Sender
from test_oom_page import GIB, rich_box
from wire_maker import leak as a_leak
from wire_maker import scan

from vramscope.oom.messages import messages_of
from vramscope.protocol import messages
from vramscope.protocol.oom_record import Holder


def test_what_is_not_known_is_shown_by_its_name_and_what_is_left_out_is_said_once(page: Any, server: Any) -> None:
    run = Sender(server.url, "newer")
    agent = run.agent
    echo = a_leak("echo", "radio", per="epoch", growth_bytes_per_step=None)
    known = [
        agent.samples(20, tensor_count=7),
        agent.steps(30, peak_phase=6),
        scan(echo, step=30),
        messages.Event(time_ns=agent.start_ns, kind="tape_ran_out"),
        agent.ended("preempted"),
    ]
    batch = msgspec.to_builtins(agent.batch(*known), builtin_types=(bytes,))
    batch["messages"][2:2] = [{"type": "spectrum"}] * 12
    headers = {"Content-Type": messages.CONTENT_TYPE}
    answer = httpx.post(
        f"{server.url}/api/v1/batches", content=msgspec.msgpack.encode(batch), headers=headers, trust_env=False
    )
    assert answer.status_code == 200, answer.text

    page.goto(f"{server.url}/runs/{agent.run}")
    banner = page.locator("[data-newer]")
    banner.wait_for()
    text = " ".join(banner.inner_text().split())
    assert text == (
        "Its agent tells what this server does not know. Left out: messages 'spectrum' (12). "
        "Kept until a newer server shows it: series 'tensor_count'."
    )
    assert page.locator("[data-newer]").count() == 1
    assert page.locator(".state.badge").first.inner_text().strip() == "preempted"
    drawn(page, "memory")
    drawn(page, "step_peaks")
    assert "tape ran out" in page.locator(".events").inner_text()

    page.goto(f"{server.url}/runs/{agent.run}/leaks")
    row = page.locator(".leaks tbody tr").first
    row.wait_for()
    words = " ".join(row.inner_text().split())
    assert "radio found by a newer agent echo train.py:87 412 411 epochs" in words
    assert "which its agent calls 'echo'" in page.locator(".verdict").inner_text()

    page.goto(f"{server.url}/")
    eventually(lambda: "preempted" in page.locator("main").inner_text())


def test_a_record_of_an_error_is_told_whatever_words_are_new_in_it(page: Any, server: Any) -> None:
    run = Sender(server.url, "a newer record")
    held = [Holder(module="encoder", category="master weights", held_bytes=5 * GIB, tensors=3)]
    leaks = [a_leak("echo", "radio", per="epoch")]
    box = rich_box(
        "abcd00000000e001", None, holders=held, update="in slices", seen_by="driver", phase="export", leaks=leaks
    )
    run.send(run.agent.samples(3), *messages_of(box))
    page.goto(f"{server.url}/runs/{run.agent.run}/oom")
    modules = page.locator(".oom-list tbody tr", has_text="encoder")
    modules.first.wait_for()
    assert "5.00 GiB" in modules.first.inner_text()
    assert "export" in page.locator("main").inner_text()


def test_a_run_of_which_all_is_known_says_nothing_of_it(page: Any, server: Any) -> None:
    run = Sender(server.url, "not newer")
    run.send(run.agent.samples(20), run.agent.steps(30))
    page.goto(f"{server.url}/runs/{run.agent.run}")
    drawn(page, "memory")
    assert page.locator("[data-newer]").count() == 0
