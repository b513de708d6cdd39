"""The page of an out-of-memory error: the cause first, then what would have been enough; and what it says where there is none."""

from __future__ import annotations

import math
import re
import struct
import sys
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx
import msgspec
import sender
from browsing import COMPILED_MS, drawn

sys.path.insert(0, str(Path(__file__).parents[1] / "backend"))  # tests are imported by path

from window_maker import training as recorded
from wire_maker import Agent, column, new_id

from vramscope.oom.record_pieces import messages_of
from vramscope.protocol import messages as wire_messages
from vramscope.protocol import series, window
from vramscope.protocol.oom_record import Frame, ModuleBytes, OomRecord, pack

GIB, MIB = 1 << 30, 1 << 20
MARKUP = "<img src=x onerror=alert(1)>"


def box(record: str, **changes: Any) -> OomRecord:
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
        "holders": [ModuleBytes(module=MARKUP, category="parameters", held_bytes=GIB, tensors=3)], "layout": None, "pools": [],
        "samples": {}, "last_step": {"step": 900, "peak_allocated_bytes": 20 * GIB}, "outside_before_bytes": GIB,
        "outside_bytes": GIB, "neighbours": [], "process_rss_bytes": GIB, "host_used_bytes": None, "host_total_bytes": None,
        "settings": "", "settings_in_force": {}, "torch": "2.13.0", "leaks": [], "techniques": [], "window": None, "seconds": 0.002,
    }  # fmt: skip
    return OomRecord(**(values | changes))


def rich_box(record: str, recording: str | None, **changes: Any) -> OomRecord:
    """With all that a record may hold: samples of the last minute, the layout, the last good step, an open window."""
    now = time.time_ns()
    sizes = [28 * GIB + 24 * MIB, 600 * MIB, 1 * GIB, 400 * MIB]
    addresses = [sum(sizes[:at]) for at in range(len(sizes))]
    rich: dict[str, Any] = {
        "time_ns": now,
        "window": recording,
        "counters": {
            "allocated_bytes.all.current": 29 * GIB, "reserved_bytes.all.current": 30 * GIB,
            "active_bytes.all.current": 29 * GIB, "segment.all.current": 1, "num_alloc_retries": 3,
        },
        "counters_before": {"time_ns": now - 80_000_000, "allocated_bytes": 20 * GIB, "reserved_bytes": 30 * GIB,
                         "segments": 1, "alloc_retries": 2, "host_used_bytes": series.UNKNOWN},
        "samples": {
            "time_ns": column(now - (29 - at) * 10**9 for at in range(30)),
            "allocated_bytes": column(20 * GIB + at * 256 * MIB for at in range(30)),
            "reserved_bytes": column([30 * GIB] * 30),
            "device_used_bytes": column([31 * GIB] * 30),
        },
        "losses": {"time_ns": column([now - 2 * 10**9, now - 10**9]), "step": column([899, 900]),
                   "loss": struct.pack("<2d", 2.5, math.inf)},
        "last_step": {"step": 900, "peak_allocated_bytes": 20 * GIB, "peak_reserved_bytes": 30 * GIB,
                   "end_allocated_bytes": 8 * GIB},
        "holders": [ModuleBytes(module="encoder.0", category="parameters", held_bytes=2 * GIB, tensors=2),
                 ModuleBytes(module="encoder.0", category="gradients", held_bytes=2 * GIB, tensors=2),
                 ModuleBytes(module=MARKUP, category="optimizer", held_bytes=GIB, tensors=3)],
        "layout": window.Layout(
            segments={"address": column([0]), "size_bytes": column([30 * GIB]), "stream": column([0]), "large": column([1]),
                      "expandable": column([0]), "pool": column([0])},
            blocks={"segment": column([0] * 4), "address": column(addresses), "size_bytes": column(sizes),
                    "requested_bytes": column(sizes), "state": column([1, 0, 1, 0]), "stack": column([-1] * 4)},
        ),
        "error_text": f"CUDA out of memory. Tried to allocate 4.00 GiB. {MARKUP}",
    }  # fmt: skip
    return box(record, **(rich | changes))


def sent(server: Any, run: str, *boxes: OomRecord, more: tuple[wire_messages.Message, ...] = ()) -> None:
    """Bring boxes to a run that is there."""
    answer = httpx.get(f"{server.url}/api/v1/runs/{run}", trust_env=False).json()
    messages: list[wire_messages.Message] = []
    for one in boxes:
        about = {"time_ns": one.time_ns, "step": one.step, "asked_bytes": one.asked_bytes, "seen_by": one.seen_by}
        told_of = {"record": one.record, "asked_bytes": one.asked_bytes}
        messages.append(wire_messages.Event(time_ns=one.time_ns, kind="out_of_memory", step=one.step, data=told_of))
        messages.append(
            wire_messages.Piece(artifact=one.record, kind="oom", number=0, pieces=1, about=about, data=pack(one))
        )
    attached = wire_messages.Attached(
        project=answer["project"], name=answer["name"], rank=0, world_size=1, host="h", pid=1, start_ns=time.time_ns(),
        framework="loop", devices=[wire_messages.Device(index=0, name="GPU", total_bytes=32 * GIB)], python="3", torch="2",
        agent_version="1",
    )  # fmt: skip
    ended = wire_messages.Ended(time_ns=time.time_ns(), state="failed", error_type="OutOfMemoryError")
    batch = wire_messages.Batch(
        wire=wire_messages.WIRE_VERSION, session=boxes[0].record, run=run, rank=0, sequence=1, sent_ns=time.time_ns(),
        messages=[attached, *more, *messages, ended],
    )  # fmt: skip
    post(server, msgspec.msgpack.encode(batch))


def send(server: Any, agent: Agent, *messages: wire_messages.Message) -> None:
    post(server, agent.body(*messages))


def post(server: Any, body: bytes) -> None:
    headers = {"Content-Type": wire_messages.CONTENT_TYPE}
    answer = httpx.post(f"{server.url}/api/v1/batches", content=body, headers=headers, trust_env=False)
    assert answer.status_code == 200, answer.text


def test_an_error_is_explained_with_what_would_have_been_enough(page: Any, own_server: Any) -> None:
    server = own_server()
    training = sender.past(server.url, sender.BASELINE, hours=1, steps=100)
    early = box("bbbb000000000002", phase="forward", progress=0.05)
    sent(server, training.run, box("aaaa000000000001", time_ns=time.time_ns() - 10**9), early)
    page.goto(f"{server.url}/runs/{training.run}/oom")
    verdict = page.locator(".verdict")
    verdict.wait_for()
    assert verdict.get_attribute("data-cause") == "activations"
    assert "Requested 4.00 GiB" in verdict.inner_text()
    sure = page.locator(".oom-remedies tr[data-enough=true]")
    assert "2 micro-batches instead" in sure.first.inner_text()
    assert sure.first.locator(".saves").inner_text() == "at least 2.00 GiB", "enough, so no less than 33 of 31"
    larger = page.locator(".oom-remedies tr", has_text="a device with at least")
    assert larger.locator(".saves").inner_text().endswith(" GiB more"), "a larger device saves nothing"
    code = page.locator(".oom-remedies .remedy-code").first
    code.locator("summary").click()
    assert "zip(inputs.chunk(2), targets.chunk(2))" in code.locator("pre").inner_text()
    assert "unknown" in page.locator("[data-kpi=largest]").inner_text(), "memory layout unknown"
    assert re.search(r"33\.0 to 3\d\.\d GiB", page.locator("[data-kpi=needed]").inner_text())
    assert MARKUP in page.locator(".oom-stack .own").inner_text(), "markup stays text"
    choice = page.get_by_label("Error", exact=True)
    assert choice.input_value() == "aaaa000000000001", "of two that nobody survived the first"
    choice.select_option("bbbb000000000002")
    page.wait_for_url("**error=**")
    assert page.locator(".tabs [aria-current] .tab-count").text_content() == "2 errors"
    page.set_viewport_size({"width": 400, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") == 400, (
        "the list of errors is no wider than the screen"
    )
    page.set_viewport_size({"width": 1440, "height": 900})
    # 900 steps had finished: it was in the next, here as on the run's own page
    assert "step 901" in page.locator("[data-kpi=step]").inner_text()
    page.locator("[data-kpi=needed]").filter(has_text="at least 33.0 GiB").wait_for()  # it had hardly begun
    page.goto(f"{server.url}/runs/{training.run}/memory")
    event = page.locator("li", has=page.locator("a[href*='error=aaaa000000000001']"))
    assert "step 901" in event.inner_text()
    page.goto(f"{server.url}/runs")
    page.locator("a.chip", has_text="OOM").first.wait_for()


def recording_of(name: str, content: window.Window | None = None) -> wire_messages.Piece:
    """A window that was open when memory ran out."""
    about: dict[str, Any] = {"device": 0, "first_step": 1, "last_step": 3, "reason": "the first steps", "events": 12}
    packed = window.pack(content or recorded(0))
    return wire_messages.Piece(artifact=name, kind="window", number=0, pieces=1, about=about, data=packed)


def test_a_narrow_page_has_each_remedy_above_its_saving(page: Any, own_server: Any) -> None:
    server = own_server()
    training = sender.past(server.url, sender.BASELINE, hours=1, steps=5)
    sent(server, training.run, box("aaaa000000000009"))
    page.set_viewport_size({"width": 400, "height": 800})
    page.goto(f"{server.url}/runs/{training.run}/oom")
    page.locator(".oom-remedies tr[data-enough=true]").first.wait_for()
    first = page.locator(".oom-remedies tr").filter(has=page.locator(".saves:visible")).first
    remedy, saving = first.locator("th").bounding_box(), first.locator(".saves").bounding_box()
    assert remedy["x"] == saving["x"] and remedy["width"] > 300
    assert remedy["y"] + remedy["height"] <= saving["y"]


def test_the_map_has_the_colours_of_categories_where_a_recording_was_open(page: Any, own_server: Any) -> None:
    server = own_server()
    training = sender.past(server.url, sender.BASELINE, hours=1, steps=5)
    content, name = recorded(2, 4), new_id("w")
    with_colours = rich_box("cccc000000000001", name, layout=content.end, pools=content.pools)
    without = rich_box("cccc000000000002", None, layout=content.end, pools=content.pools)
    sent(server, training.run, with_colours, without, more=(recording_of(name, content),))
    shown = {}
    for record in ("cccc000000000001", "cccc000000000002"):
        page.goto(f"{server.url}/runs/{training.run}/oom?error={record}")
        folded = page.locator(".oom-map")
        folded.wait_for()
        if folded.get_attribute("open") is None:
            folded.get_by_text("Map of the segments").click()
        page.locator("vs-chart[data-figure=map][data-draws]").wait_for()
        shown[record] = page.locator(".oom-map .map-key > span").all_inner_texts()
    assert {"optimizer state", "free", "start of a segment"} <= set(shown["cccc000000000001"])
    assert "used" not in shown["cccc000000000001"]
    assert set(shown["cccc000000000002"]) == {"used", "free", "start of a segment"}


def test_all_that_the_record_holds_is_shown(page: Any, own_server: Any) -> None:
    server = own_server()
    training = sender.past(server.url, sender.BASELINE, hours=1, steps=100)
    recording = new_id("w")
    rich = rich_box("cccc000000000001", recording)
    before = {**(rich.counters_before or {}), "active_bytes": 29 * GIB - 4096, "alloc_retries": 5000}
    rich = msgspec.structs.replace(rich, counters={**rich.counters, "num_alloc_retries": 5001})
    sent(
        server,
        training.run,
        msgspec.structs.replace(rich, counters_before=before),
        more=(recording_of(recording),),
    )
    page.goto(f"{server.url}/runs/{training.run}/oom")
    page.locator(".verdict").wait_for()
    largest = page.locator("[data-kpi=largest]").inner_text()
    assert "600 MiB" in largest
    assert "2 free blocks: 1,000 MiB" in largest
    assert "encoder.0" in page.locator(".oom-panels .card", has_text="By module").inner_text()
    held = page.locator(".oom-panels .card", has_text="Device memory").inner_text()
    assert "activations, batch, temporaries" in held
    last = page.locator(".card", has_text="Compared with the last good step").inner_text()
    assert "step 900" in last
    assert "20.0 GiB" in last
    assert "29.0 GiB" in last, "at the error"
    counted = page.locator("[data-counters]")
    assert "80.0 ms before" in counted.inner_text()
    assert counted.locator("[data-counter=allocated_bytes]").inner_text().split("\t") == [
        "allocated", "20.0 GiB", "29.0 GiB", "+9.00 GiB"
    ]  # fmt: skip
    assert counted.locator("[data-counter=alloc_retries]").inner_text().split("\t") == [
        "alloc retries", "5,000", "5,001", "+1"
    ], "a count changes by one"  # fmt: skip
    folded = counted.locator("details [data-counter]")
    names = folded.evaluate_all("(rows) => rows.map((row) => row.dataset.counter)")
    assert "reserved_bytes" in names and "allocated_bytes" not in names, "what did not change is folded"
    assert "active_bytes" in names, "nor is 4 KiB of 29 GiB a change"
    assert not folded.first.is_visible()
    assert counted.locator("[data-counter=host_used_bytes]").count() == 0, "known neither before nor then"
    assert MARKUP in page.locator(".oom-words").inner_text()
    assert page.locator("img").count() == 0, "markup stays text"
    minute = drawn(page, "last-minute")
    assert minute.locator(".scatterlayer .trace").count() == 4, "allocated, reserved, the device, and what was asked"
    losses = drawn(page, "last-losses").inner_text()
    assert "from session.log" in losses
    assert "first infinite in step 900" in losses
    lines = page.locator(".oom-panels .card", has_text="By line of code")
    lines.get_by_text("train.py:87").first.wait_for(timeout=COMPILED_MS)
    assert f"recording={recording}" in str(lines.locator("a", has_text="open the recording").get_attribute("href"))
    assert not page.locator("vs-chart[data-figure=map]").is_visible(), "all of it is in use: the map would be one area"
    page.get_by_text("Map of the segments").click()
    segments = drawn(page, "map")
    assert (
        "30.0 GiB in 1 segment · 1,000 MiB free in 2 blocks, the largest 600 MiB"
        in segments.locator(".map-words").inner_text()
    )
    assert page.locator(".oom-ranks").count() == 0, "there is one alone"
    verdict, remedies = page.locator(".verdict").bounding_box(), page.locator(".oom-remedies").bounding_box()
    assert 0 <= remedies["y"] - verdict["y"] - verdict["height"] < 30, "nothing between the answer and what to do"
    assert page.locator(".kpis").bounding_box()["y"] > remedies["y"], "then the numbers behind it"
    message = page.locator(".oom-where .card", has_text="Error message")
    assert "written by the agent in 2.00 ms" in message.inner_text()
    link = message.get_by_text("Export as one HTML file")
    with page.expect_download() as download:
        link.click()
    assert download.value.suggested_filename == "oom-cccc000000000001.html"
    sent(server, training.run, rich_box("cccc000000000009", None, asked_bytes=700 * MIB))
    page.goto(f"{server.url}/runs/{training.run}/oom?error=cccc000000000009")
    page.locator("vs-chart[data-figure=map]").wait_for()  # 1,000 MiB were free, but in pieces: their places matter


def test_all_ranks_stand_side_by_side(page: Any, own_server: Any) -> None:
    """The one that ran out, one that waited, one of which nothing came; the segments drawn are those of the chosen one."""
    server = own_server()
    run = new_id()
    dead, waited = (Agent(run, rank=rank, world_size=3) for rank in (1, 0))
    now = time.time_ns()
    ended = wire_messages.Ended(time_ns=now, state="failed", error_type="OutOfMemoryError")
    send(server, dead, *messages_of(rich_box("abcd000000000001", None, rank=1, world_size=3, time_ns=now)), ended)
    beside = box(
        "abcd000000000002", rank=0, world_size=3, seen_by="bystander", asked_bytes=None, free_bytes=9 * GIB,
        time_ns=now + 120_000_000, module="encoder.1",
        counters={"allocated_bytes.all.current": 12 * GIB, "reserved_bytes.all.current": 22 * GIB},
    )  # fmt: skip
    send(server, waited, *messages_of(beside, "the server"))
    silent = Agent(run, rank=2, world_size=3, start_ns=now - 10**9)
    send(server, silent, silent.samples(1, at=0.85, allocated_bytes=7 * GIB, step=41, phase=2))
    page.goto(f"{server.url}/runs/{run}/oom")
    rows = page.locator(".oom-ranks tbody tr")
    rows.nth(2).wait_for()
    seen = [row.inner_text() for row in rows.all()]
    for text, words in zip(
        seen,
        (
            ("rank 0", "waited", "encoder.1", f"{MARKUP}.py:87", "reported by the server, 120 ms later"),
            ("rank 1", "ran out", "4.00 GiB", "1.00 GiB", "29.0 GiB", "30.0 GiB"),
            ("rank 2", "no record", "unknown", "step 42", "its newest sample, 150 ms before", "7.00 GiB", "2.00 GiB"),
        ),
        strict=True,
    ):  # fmt: skip
        assert not [word for word in words if word not in text], text
    assert [word for word in ("9.00 GiB", "12.0 GiB", "22.0 GiB") if word not in seen[0]] == []
    assert page.locator(".oom-ranks header").inner_text().endswith("no record from 1 of 3")
    assert page.locator("img").count() == 0, "markup stays text"
    rows.nth(1).get_by_role("button", name="Segments").click()
    segments = drawn(page, "map")
    assert "30.0 GiB in 1 segment" in segments.inner_text()
    rows.nth(0).get_by_role("button", name="Segments").click()
    segments.get_by_text("unknown: segments were not read").wait_for()
    assert "Segments of rank 0" in segments.inner_text()
    assert rows.nth(0).get_by_role("button").get_attribute("aria-pressed") == "true"


def test_without_a_window_it_says_why_no_lines_are_known(page: Any, own_server: Any) -> None:
    server = own_server()
    training = sender.past(server.url, sender.BASELINE, hours=1, steps=100)
    sent(server, training.run, rich_box("dddd000000000001", None))
    page.goto(f"{server.url}/runs/{training.run}/oom")
    why = page.locator("[data-sites=unknown]")
    why.wait_for()
    assert "No recording was open at the error" in why.inner_text()


class Elements(HTMLParser):
    """The elements of a page: what a browser would make of it. Text of scripts is none."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.elsewhere: list[str] = []
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.elsewhere += [
            f"{tag} {name}={value}" for name, value in attrs if name in ("src", "href", "data", "action")
        ]
        self.elsewhere += [f"{tag} {name}={value}" for name, value in attrs if name.startswith("on")]

    def handle_data(self, data: str) -> None:
        if self.cdata_elem is None:
            self.words += data


def test_the_export_needs_nothing_from_elsewhere(chromium: Any, own_server: Any, tmp_path: Path) -> None:
    """Opened from the disk it asks nobody for anything; names with markup are text; and it says what the page says."""
    server = own_server()
    training = sender.past(server.url, sender.BASELINE, hours=1, steps=100)
    sent(server, training.run, rich_box("eeee000000000001", None))
    text = httpx.get(f"{server.url}/api/v1/oom/eeee000000000001/export", trust_env=False, timeout=120).text
    made = Elements(text)
    assert made.elsewhere == []
    assert not {"img", "link", "iframe", "object", "embed", "base"} & set(made.tags)
    for one in (
        MARKUP,
        "Counters before and at the error",
        "80.0 ms before",
        "No recording was open at the error",
    ):
        assert one in made.words, one
    file = tmp_path / "export.html"
    file.write_text(text)
    context = chromium.new_context()
    page = context.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(file.as_uri())
    page.locator(".scatterlayer .trace").first.wait_for(state="attached")
    assert asked == [file.as_uri()]
    assert page.locator("img").count() == 0
    page.set_viewport_size({"width": 400, "height": 900})
    page.reload()
    page.locator(".scatterlayer .trace").first.wait_for(state="attached")
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    widths = page.locator("td.text").evaluate_all("(cells) => cells.map((cell) => cell.clientWidth)")
    assert widths and min(widths) > 150, "words are not broken into letters: the table scrolls"
    kinds = page.locator("td:not(.text)").evaluate_all(
        "(cells) => cells.map((cell) => getComputedStyle(cell).whiteSpace)"
    )
    assert set(kinds) == {"nowrap"}, "a number and its unit are one line"
    context.close()


def test_counters_that_did_not_change_before_the_error_are_called_equal() -> None:
    from vramscope_server.figures.oom_report import _counters

    rows = [
        {"name": "allocated_bytes", "before": GIB, "at": 2 * GIB},
        {"name": "reserved_bytes", "before": GIB, "at": GIB},
        {"name": "ooms", "before": None, "at": None},
    ]
    assert list(_counters(rows)) == [
        ("allocated", "1.00 GiB", "2.00 GiB"),
        ("reserved", "equal", "1.00 GiB"),
        ("ooms", "unknown", "unknown"),
    ]


def test_where_there_is_none_it_says_so(page: Any, server: Any) -> None:
    page.goto(f"{server.url}/runs/{sender.LEAKY.run}/oom")
    page.locator(".verdict[data-cause=none]").wait_for()
    assert "did not run out" in page.locator(".verdict").inner_text()


def open_failed(page: Any, server: Any, run: str, error_type: str, message: str | None) -> None:
    """Open the page of a run that failed without a record of its error."""
    rank = sender.Rank(server.url, sender.Training(name="no record", run=run))
    rank.history(5)
    rank.finish("failed", (error_type, message))
    rank.client.close()
    page.goto(f"{server.url}/runs/{run}/oom")


def test_a_run_that_failed_otherwise_is_not_said_to_have_had_memory(page: Any, own_server: Any) -> None:
    """The class of an error does not tell: cuBLAS raises a RuntimeError where memory lacks."""
    open_failed(page, own_server(), "11ee00000000000a", "RuntimeError", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED")
    page.locator(".verdict").get_by_text("no record of an out-of-memory error came with it").wait_for()
    assert "did not run out" not in page.locator("main").inner_text()


def test_an_error_without_a_record_is_not_denied(page: Any, own_server: Any) -> None:
    message = "CUDA out of memory. Tried to allocate 4.00 GiB."
    open_failed(page, own_server(), "11ee000000000009", "torch.OutOfMemoryError", message)
    verdict = page.locator(".verdict[data-cause=unknown]")
    verdict.get_by_text("The run ended with an out-of-memory error.").wait_for()
    assert "No out-of-memory error" not in page.locator("main").inner_text()
    assert "did not run out" not in page.locator("main").inner_text()
    assert [code.inner_text() for code in verdict.locator("code").all()] == ["vramscope sync"]
    page.locator(".error-text-result").get_by_text("Requested 4.00 GiB").wait_for()


def test_an_error_without_a_message_is_not_explained(page: Any, own_server: Any) -> None:
    open_failed(page, own_server(), "11ee00000000000b", "torch.OutOfMemoryError", None)
    page.locator(".verdict").get_by_text("The run ended with an out-of-memory error.").wait_for()
    assert page.get_by_label("Text of an out-of-memory error").input_value() == ""


def test_an_error_is_explained_by_its_text_on_a_page_that_was_open_before(page: Any, own_server: Any) -> None:
    server = own_server()
    rank = sender.Rank(server.url, sender.Training(name="dies", run="11ee00000000000c"))
    rank.history(5)
    page.goto(f"{server.url}/runs/{rank.training.run}/oom")
    page.get_by_text("An error would be explained here within seconds.").wait_for()
    rank.finish("failed", ("torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate 4.00 GiB."))
    rank.client.close()
    page.locator(".error-text-result").get_by_text("Requested 4.00 GiB").wait_for()


def test_the_line_to_copy_keeps_the_settings_of_the_run(page: Any, own_server: Any) -> None:
    server = own_server()
    training = sender.past(server.url, sender.BASELINE, hours=1, steps=100)
    text = "CUDA out of memory. Tried to allocate 1.50 GiB."
    settings = "garbage_collection_threshold:0.8"
    sent(
        server,
        training.run,
        rich_box("cccc000000000001", None, asked_bytes=1536 * MIB, error_text=text, settings=settings),
    )
    page.goto(f"{server.url}/runs/{training.run}/oom")
    code = page.locator(".oom-remedies .remedy-code code, .oom-remedies .remedy-code pre", has_text="export").first
    assert code.inner_text() == f"export PYTORCH_CUDA_ALLOC_CONF={settings},expandable_segments:True"
