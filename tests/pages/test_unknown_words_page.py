"""Pages show words of the wire's lists that they do not know as they are."""

from __future__ import annotations

from typing import Any

import httpx
from browsing import drawn
from test_fragmentation_page import Sender
from test_oom_page import GIB, rich_box
from waiting import eventually
from wire_maker import leak as a_leak
from wire_maker import scan

from vramscope.oom.record_pieces import messages_of
from vramscope.protocol import messages
from vramscope.protocol.oom_record import ModuleBytes


def test_unknown_words_of_a_run_are_shown_as_they_are(page: Any, server: Any) -> None:
    run = Sender(server.url, "newer")
    agent = run.agent
    echo = a_leak("echo", "radio", per="epoch", growth_bytes_per_step=None)
    known = [
        agent.samples(20),
        agent.steps(30, peak_phase=6),
        scan(echo, step=30),
        messages.Event(time_ns=agent.start_ns, kind="tape_ran_out"),
        agent.ended("preempted"),
    ]
    headers = {"Content-Type": messages.CONTENT_TYPE}
    answer = httpx.post(f"{server.url}/api/v1/batches", content=agent.body(*known), headers=headers, trust_env=False)
    assert answer.status_code == 200, answer.text

    page.goto(f"{server.url}/runs/{agent.run}")
    assert page.locator(".state.badge").first.inner_text().strip() == "preempted"
    drawn(page, "stack")
    drawn(page, "phases")
    assert "tape ran out" in page.locator(".events").inner_text()

    page.goto(f"{server.url}/runs/{agent.run}/leaks")
    row = page.locator(".leaks tbody tr").first
    row.wait_for()
    words = " ".join(row.inner_text().split())
    assert "radio found by a newer agent echo train.py:87 412 411 epochs" in words
    assert "which its agent calls 'echo'" in page.locator(".verdict").inner_text()

    page.goto(f"{server.url}/")
    eventually(lambda: "preempted" in page.locator("main").inner_text())


def test_unknown_words_of_an_oom_record_are_shown_as_they_are(page: Any, server: Any) -> None:
    run = Sender(server.url, "a newer record")
    held = [ModuleBytes(module="encoder", category="master weights", held_bytes=5 * GIB, tensors=3)]
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
