"""Other processes on the device: on the page of a run, on that of an error, and in the answers for coding agents."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "backend")]

import httpx  # noqa: E402
from test_coding_agents import answers  # noqa: E402
from test_oom_page import box, send, sent  # noqa: E402
from wire_maker import Agent, new_id  # noqa: E402

from vramscope.protocol import messages  # noqa: E402
from vramscope.protocol.other_process import EVENT, OtherProcess  # noqa: E402
from vramscope_server.cli.coding_agents.server import made  # noqa: E402

GIB = 1 << 30
MARKUP = "<b>rollout.py</b>"


def report(pid: int, used: int, **fields: Any) -> messages.Event:
    data = {"pid": pid, "used_bytes": used, "peak_bytes": used, "device": 0, "ended": False, **fields}
    return messages.Event(time_ns=time.time_ns(), kind=EVENT, step=1, data=data)


def test_the_page_of_a_run_names_them(page: Any, own_server: Any) -> None:
    server = own_server()
    training = Agent(run=new_id())
    named = {"command": f"python {MARKUP}", "user": "ada", "manager": "slurm", "job": "4711", "job_name": "grpo"}
    broken = messages.Event(time_ns=time.time_ns(), kind=EVENT, step=1, data={"pid": "x", "device": 0})
    unmeasured = messages.Event(
        time_ns=time.time_ns(), kind=EVENT, step=1, data={"pid": 9, "device": 0, "ended": False}
    )
    send(
        server,
        training,
        training.samples(others_device_bytes=[3 * GIB] * 4, other_process_1_bytes=[GIB, GIB, 2 * GIB, GIB]),
        report(7, 2 * GIB, series="other_process_1_bytes", **named),
        report(8, GIB),
        broken,
        report(7, GIB, **named | {"peak_bytes": GIB}),
        report(8, 0, ended=True),
        unmeasured,
        report(10, GIB, device=True),
        report(11, (1 << 64) - 1),
    )
    page.goto(f"{server.url}/runs/{training.run}/memory")
    panel = page.locator("[data-others]")
    panel.wait_for()
    first, unknown, left = (row.inner_text() for row in panel.locator("tbody tr").all())
    assert f"python {MARKUP}" in first
    assert "pid 7, user ada, Slurm job 4711 (grpo)" in first
    assert "1.00 GiB" in first and "2.00 GiB" in first, "now and highest"
    assert " on" in first and " to " not in first, "it is there as long as no report says that it left"
    assert "pid 9" in unknown and unknown.count("unknown") == 3, "name, bytes and highest bytes"
    assert "name unknown" in left and "left" in left and " to " in left
    chart = page.locator("[data-figure='processes']")
    chart.scroll_into_view_if_needed()
    chart.get_by_text(f"python {MARKUP} (pid 7)").wait_for()
    events = page.locator(".events").inner_text()
    assert "device process" not in events, "the list of events is not filled with them"


def test_a_run_that_knows_of_none_shows_no_table(page: Any, own_server: Any) -> None:
    server = own_server()
    alone, unknown = Agent(run=new_id()), Agent(run=new_id())
    send(server, alone, alone.samples(device_used_bytes=[GIB] * 4, process_device_bytes=[GIB] * 4))
    send(server, unknown, unknown.samples(device_used_bytes=[2 * GIB] * 4))
    with httpx.Client(base_url=f"{server.url}/api/v1", trust_env=False) as http:
        answers = [http.get(f"/runs/{one.run}").json()["other_processes"] for one in (alone, unknown)]
    assert answers == [[], None], "none, and not known"
    page.goto(f"{server.url}/runs/{alone.run}/memory")
    page.locator(".events").wait_for()
    assert page.locator("[data-others]").count() == 0
    assert not page.locator("[data-figure='processes']").is_visible()


def test_the_page_of_an_error_says_who_grew(page: Any, own_server: Any) -> None:
    server = own_server()
    training = Agent(run=new_id())
    send(server, training, training.samples())
    others = [
        OtherProcess(
            pid=7, used_bytes=6 * GIB, before_bytes=2 * GIB, before_seconds=60, command=f"python {MARKUP}", user="ada"
        ),
        OtherProcess(pid=8, used_bytes=None),
    ]
    sent(server, training.run, box("cdcd000000000001", neighbours=others))
    page.goto(f"{server.url}/runs/{training.run}/oom")
    panel = page.locator("[data-others]")
    panel.wait_for()
    text = panel.inner_text()
    said = f"Pid 7 (python {MARKUP}, user ada) grew: it had 2.00 GiB 60 seconds earlier, and now has 6.00 GiB."
    assert said in page.locator(".verdict").inner_text()
    assert said not in text, "one sentence is read once"
    assert "60 s earlier" in text
    assert "unknown" in panel.locator("tbody tr").nth(1).inner_text()


def test_the_answer_for_coding_agents_names_them_as_data_of_the_run(own_server: Any) -> None:
    server = own_server()
    training = Agent(run=new_id())
    send(server, training, training.samples())
    other = OtherProcess(
        pid=7, used_bytes=6 * GIB, before_bytes=GIB, before_seconds=60, command="python serve.py\nDelete"
    )
    sent(server, training.run, box("cdcd000000000002", neighbours=[other]))
    (error,) = answers(made(server.url, may_run=False), ("explain_out_of_memory", {"run": training.run}))
    (named,) = error["from_run"]["other_processes"]
    assert "pid 7 (python serve.py" in named["name"] and "\n" not in named["name"]
    assert (named["bytes"], named["bytes_before"], named["seconds_before"]) == (6 * GIB, GIB, 60)


def test_the_table_of_a_run_fits_a_narrow_screen(page: Any, own_server: Any) -> None:
    server = own_server()
    training = Agent(run=new_id())
    named = {"command": "python /home/ada/grpo/rollout.py --model meta-llama/Llama-3.1-8B", "user": "ada"}
    send(server, training, training.samples(), report(7, 123 * GIB, **named), report(8, 999 << 20))
    send(server, training, report(8, 0, ended=True))
    page.set_viewport_size({"width": 400, "height": 800})
    page.goto(f"{server.url}/runs/{training.run}/memory")
    scroll = page.locator("[data-others] .scroll")
    scroll.wait_for()
    assert scroll.evaluate("(box) => box.scrollWidth - box.clientWidth") <= 0
