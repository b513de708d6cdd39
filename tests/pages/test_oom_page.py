"""The page of an out-of-memory error: the cause first, then what would have been enough; and what it says where there is none."""

from __future__ import annotations

import time
from typing import Any

import httpx
import msgspec
import sender

from vramscope import wire
from vramscope.black_box import BlackBox, Frame, Holder, pack

GIB, MIB = 1 << 30, 1 << 20
MARKUP = "<img src=x onerror=alert(1)>"


def box(record: str, **changes: Any) -> BlackBox:
    """A batch that was too large, in the backward of step 901."""
    values: dict[str, Any] = {
        "record": record, "seen_by": "observer", "time_ns": time.time_ns(), "rank": 0, "world_size": 1, "device": 0,
        "asked_bytes": 4 * GIB, "total_bytes": 32 * GIB, "free_bytes": GIB, "limit_bytes": None, "step": 900, "phase": "backward",
        "module": MARKUP, "node": "MmBackward0", "progress": None,
        "stack": [Frame(file="/usr/lib/torch/nn.py", line=1, function="linear", own=False),
                  Frame(file=f"/home/ada/{MARKUP}.py", line=87, function="train", own=True)],
        "counters": {"reserved_bytes.all.current": 30 * GIB, "active_bytes.all.current": 29 * GIB},
        "counters_before": {}, "peak_allocated_bytes": 29 * GIB,
        "owned_bytes": {"parameters": 2 * GIB, "gradients": 2 * GIB, "optimizer": 4 * GIB, "buffers": 0},
        "trainable_bytes": 2 * GIB, "largest_parameter_bytes": 100 * MIB, "waiting_bytes": 0, "optimizer_kind": "AdamW",
        "state_bytes_per_parameter_byte": 2.0, "allocated_before_forward_bytes": 8 * GIB,
        "holders": [Holder(module=MARKUP, category="parameters", held_bytes=GIB, tensors=3)], "layout": None, "pools": [],
        "samples": {}, "last_step": {"step": 900, "peak_allocated_bytes": 20 * GIB}, "outside_before_bytes": GIB,
        "outside_bytes": GIB, "neighbours": [], "process_rss_bytes": GIB, "host_used_bytes": None, "host_total_bytes": None,
        "settings": "", "settings_in_force": {}, "torch": "2.13.0", "leaks": [], "techniques": [], "window": None, "seconds": 0.002,
    }  # fmt: skip
    return BlackBox(**(values | changes))


def sent(server: Any, run: str, *boxes: BlackBox) -> None:
    """Bring boxes to a run that is there."""
    told = httpx.get(f"{server.url}/api/v1/runs/{run}", trust_env=False).json()
    messages: list[wire.Message] = []
    for one in boxes:
        about = {"time_ns": one.time_ns, "step": one.step, "asked_bytes": one.asked_bytes, "seen_by": one.seen_by}
        told_of = {"record": one.record, "asked_bytes": one.asked_bytes}
        messages.append(wire.Event(time_ns=one.time_ns, kind="out_of_memory", step=one.step, data=told_of))
        messages.append(wire.Piece(artifact=one.record, kind="oom", number=0, pieces=1, about=about, data=pack(one)))
    attached = wire.Attached(
        project=told["project"], name=told["name"], rank=0, world_size=1, host="h", pid=1, start_ns=time.time_ns(),
        framework="loop", devices=[wire.Device(index=0, name="GPU", total_bytes=32 * GIB)], python="3", torch="2",
        agent_version="1",
    )  # fmt: skip
    batch = wire.Batch(
        wire=wire.WIRE_VERSION, session=boxes[0].record, run=run, rank=0, sequence=1, sent_ns=time.time_ns(),
        messages=[attached, *messages, wire.Ended(time_ns=time.time_ns(), state="failed", error_type="OutOfMemoryError")],
    )  # fmt: skip
    answer = httpx.post(
        f"{server.url}/api/v1/batches", content=msgspec.msgpack.encode(batch), headers={"Content-Type": wire.CONTENT_TYPE},
        trust_env=False,
    )  # fmt: skip
    assert answer.status_code == 200, answer.text


def test_an_error_is_explained_with_what_would_have_been_enough(page: Any, own_server: Any) -> None:
    server = own_server()
    training = sender.past(server.url, sender.BASELINE, hours=1, steps=100)
    sent(server, training.run, box("aaaa000000000001", time_ns=time.time_ns() - 10**9), box("bbbb000000000002"))
    page.goto(f"{server.url}/runs/{training.run}/oom")
    verdict = page.locator(".verdict")
    verdict.wait_for()
    assert verdict.get_attribute("data-cause") == "activations"
    assert "Asked for 4.0 GiB" in verdict.inner_text()
    sure = page.locator(".oom-remedies tr[data-enough=true]")
    assert "micro-batches of 1/2" in sure.first.inner_text()
    assert "unknown" in page.locator("[data-kpi=largest]").inner_text(), "the layout was not read"
    assert MARKUP in page.locator(".oom-stack .own").inner_text(), "markup stays text"
    choice = page.get_by_label("Error", exact=True)
    assert choice.input_value() == "aaaa000000000001", "of two that nobody survived the first"
    choice.select_option("bbbb000000000002")
    page.wait_for_url("**error=**")
    # 900 steps had finished: it was in the next, here as on the run's own page
    assert "step 901" in page.locator("[data-kpi=step]").inner_text()
    page.goto(f"{server.url}/runs/{training.run}")
    event = page.locator("li", has=page.locator("a[href*='error=aaaa000000000001']"))
    assert "step 901" in event.inner_text()
    page.goto(f"{server.url}/runs")
    page.locator("a.chip", has_text="OOM").first.wait_for()


def test_where_there_is_none_it_says_so(page: Any, server: Any) -> None:
    page.goto(f"{server.url}/runs/{sender.LEAKY.run}/oom")
    page.locator(".verdict[data-cause=none]").wait_for()
    assert "never ran out" in page.locator(".verdict").inner_text()
