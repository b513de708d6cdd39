"""The commands that ask a server: their JSON for scripts, their words for people, their exit codes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import msgspec
import pytest
from running import RunningServer
from wire_maker import GIB, SECOND, Agent, leak, new_id, scan

from vramscope import __version__
from vramscope.protocol import messages, series
from vramscope.protocol.other_process import EVENT
from vramscope_server.cli import client
from vramscope_server.cli.format import ABSENT

MIB = GIB // 1024
VRAMSCOPE = [sys.executable, "-m", "vramscope_server"]
Cli = Callable[..., tuple[int, str, str]]


def make_run(server: RunningServer, name: str, *, peak: int = 3 * GIB, rows: int = 30, **attached: Any) -> Agent:
    """A finished run of ``rows`` steps, the last of which is the highest: ``peak`` bytes in backward."""
    agent = Agent(name=name, **attached)
    peaks = [peak - GIB] * (rows - 1) + [peak]
    server.send(agent, agent.samples(), agent.steps(rows, peak_allocated_bytes=peaks))
    server.send(agent, agent.ended())
    return agent


def test_show_says_how_many_steps_finished_before_an_out_of_memory_error(server, cli):
    agent = Agent(name="died")
    error = messages.Event(time_ns=agent.start_ns + SECOND, kind="out_of_memory", step=30)
    ended = agent.ended("failed", error_type="torch.OutOfMemoryError", error_line="CUDA out of memory.")
    server.send(agent, agent.samples(1, ooms=1), agent.steps(30), error, ended)
    code, out, _ = cli("show", agent.run, "--server", server.url)
    assert code == 0 and re.search(r"steps +30 finished before the error, ", out)
    make_run(server, "whole")
    assert "before the error" not in cli("show", "whole", "--server", server.url)[1]


def test_show_says_where_too_few_steps_were_seen_to_detect_growth(server, cli):
    agent = Agent(name="short")
    server.send(agent, agent.samples(), agent.steps(3), scan(), agent.ended())
    assert "none found; too few steps to detect growth" in cli("show", agent.run, "--server", server.url)[1]
    jumps = Agent(name="rises in jumps")
    levels = [(1 + step // 40) << 30 for step in range(120)]
    server.send(jumps, jumps.samples(), jumps.steps(120, after_step_bytes=levels), scan(), jumps.ended())
    shown = cli("show", jumps.run, "--server", server.url)[1]
    assert "none confirmed; see vramscope leaks" in shown and "too few steps" not in shown


def test_show_names_other_processes_and_their_device(server, cli):
    """Their names come from other users of the machine."""
    agent = Agent(name="beside")
    named = {"pid": 7, "device": 0, "used_bytes": 2 * GIB, "peak_bytes": 3 * GIB, "command": "python \x1b]0;a\x07.py"}
    came = messages.Event(time_ns=agent.start_ns, kind=EVENT, step=1, data=named)
    unmeasured = messages.Event(time_ns=agent.start_ns, kind=EVENT, step=1, data={"pid": 8, "device": 0})
    server.send(agent, agent.samples(), agent.steps(3), came, unmeasured)
    running = " ".join(cli("show", agent.run, "--server", server.url)[1].split())
    assert r"pid 7 (python \x1b]0;a\x07.py): uses 2.00 GiB, highest 3.00 GiB" in running
    assert "pid 8: uses unknown, highest unknown" in running
    left = messages.Event(time_ns=agent.start_ns + SECOND, kind=EVENT, step=2, data={**named, "pid": 8, "ended": True})
    server.send(agent, left, agent.ended())
    ended = " ".join(cli("show", agent.run, "--server", server.url)[1].split())
    assert ": last reported 2.00 GiB, highest 3.00 GiB" in ended
    assert ": has left, highest 3.00 GiB" in ended


# ---- JSON ----


def test_show_json_has_the_keys_that_scripts_lean_on(server, cli):
    """The contract of docs/support.md, key by key, and nothing but JSON on stdout."""
    agent = make_run(server, "keys")
    code, out, err = cli("show", agent.run, "--json", "--server", server.url)
    assert (code, err) == (0, "")
    answer = json.loads(out)
    stable = """run_id name state device steps world_size peak_allocated_bytes peak_reserved_bytes peak_step peak_phase
        peak_categories step_seconds_median fragmentation leaks out_of_memory techniques allocator_settings
        agent_overhead dropped_samples"""
    assert set(stable.split()) <= answer.keys()
    assert answer["peak_allocated_bytes"] == 3 * GIB
    assert (answer["peak_step"], answer["peak_phase"]) == (30, "backward")
    assert {"parameters", "gradients", "optimizer", "activations", "other"} <= answer["peak_categories"].keys()
    assert answer["fragmentation"] == {
        "inactive_split_bytes": GIB // 4,
        "reserved_minus_allocated_bytes": GIB - 3 * 512,  # of the four samples the one with most allocated
        "unusable_bytes": None,
        "never_needed_bytes": GIB,
        "parts": None,
    }


def test_steps_json_is_one_object_a_step_and_takes_a_window(server, cli):
    """All steps without --last; with --from and --to those, ends included."""
    agent = make_run(server, "windows")
    code, out, _ = cli("steps", agent.run, "--json", "--server", server.url)
    rows = json.loads(out)
    assert code == 0 and [row["step"] for row in rows] == list(range(1, 31))
    stable = "step peak_allocated_bytes peak_reserved_bytes phases seconds foreign_reset"
    assert set(stable.split()) <= rows[0].keys()
    assert rows[0]["phases"]["forward"]["peak_allocated_bytes"] == 2 * GIB
    _, out, _ = cli("steps", agent.run, "--from", 5, "--to", 7, "--json", "--server", server.url)
    assert [row["step"] for row in json.loads(out)] == [5, 6, 7]
    _, out, _ = cli("steps", agent.run, "--last", 2, "--json", "--server", server.url)
    assert [row["step"] for row in json.loads(out)] == [29, 30]


def test_settings_of_one_framework_alone_do_not_hide_what_differs(server, cli):
    """A Trainer tells a hundred of them; a plain loop beside it has none."""
    many = {f"argument_{number}": number for number in range(20)}
    make_run(server, "by a trainer", framework="huggingface", config=many | {"lr": 1.0})
    make_run(server, "by a loop", config={"lr": 2.0})
    code, out, _ = cli("compare", "by a trainer", "by a loop", "--server", server.url)
    assert code == 0 and "config.lr: by a trainer 1.0; by a loop 2.0" in out and "argument_" not in out
    assert "20 settings that only some runs have" in out
    make_run(server, "by another", config={"lr": 1.0, "one_more": 3})
    assert (
        f"config.one_more: by a loop {ABSENT}; by another 3"
        in cli("compare", "by a loop", "by another", "--server", server.url)[1]
    )


def test_compare_json_keeps_the_order_baseline_first(server, cli):
    """Saved fraction and time ratio are against the first; a name with a comma or a slash is as good as any."""
    low = make_run(server, "bf16, batch 8", peak=2 * GIB)
    base = make_run(server, "org/model", peak=4 * GIB)
    code, out, _ = cli("compare", "org/model", "bf16, batch 8", "--json", "--server", server.url)
    rows = json.loads(out)
    assert code == 0 and [row["run"] for row in rows] == [base.run, low.run]
    assert [row["saved_fraction"] for row in rows] == [0.0, 0.5]
    assert rows[1]["step_time_ratio"] == pytest.approx(1, abs=0.01)
    assert "techniques" in rows[0]


def test_ls_json_gives_all_rows_and_obeys_its_conditions(server, cli):
    """More runs than the fifty that a person sees; limit, project and state narrow them down."""
    for number in range(53):
        make_run(server, f"many of number-{number}", rows=1, project="many")
    _, out, _ = cli("ls", "--project", "many", "--json", "--server", server.url)
    rows = json.loads(out)
    assert len(rows) == 53
    _, found, _ = cli("ls", "many", "number-52", "--json", "--server", server.url)
    assert [row["name"] for row in json.loads(found)] == ["many of number-52"]
    _, limited, _ = cli("ls", "--project", "many", "--limit", 3, "--json", "--server", server.url)
    assert [row["run_id"] for row in json.loads(limited)] == [row["run_id"] for row in rows[:3]]
    _, running, _ = cli("ls", "--project", "many", "--state", "running", "--json", "--server", server.url)
    assert json.loads(running) == []
    _, shown, _ = cli("ls", "--project", "many", "--server", server.url)
    assert "50 of 53 runs" in shown


def test_leaks_json_is_a_list_with_the_keys_that_scripts_lean_on(server, cli):
    """The contract of docs/support.md; empty where nothing leaks, and stderr says where nobody has looked."""
    agent = make_run(server, "leaky")
    code, out, err = cli("leaks", agent.run, "--json", "--server", server.url)
    assert (code, json.loads(out)) == (0, []) and "no scan yet" in err
    server.send(agent, scan())
    assert cli("leaks", agent.run, "--json", "--server", server.url) == (0, "[]\n", "")
    sent = [leak(), leak("cycle", "Node", file=None, line=None)]
    server.send(agent, scan(*sent))
    code, out, err = cli("leaks", agent.run, "--json", "--server", server.url)
    assert (code, err) == (0, "")
    answer = json.loads(out)
    stable = "kind holder file line count held_bytes peak_effect_bytes growth_bytes_per_step advice"
    fields = {*messages.Leak.__struct_fields__} - {"fix"}  # its answer is "fixed"
    assert set(stable.split()) | {"ranks", "fixed"} | fields <= answer[0].keys()
    assert [one["kind"] for one in answer] == ["growing", "cycle"]
    assert (answer[0]["file"], answer[0]["line"], answer[1]["line"]) == ("/home/me/train.py", 87, None)
    shown = json.loads(cli("show", agent.run, "--json", "--server", server.url)[1])
    assert [one["name"] for one in shown["leaks"]] == ["history", "Node"]


# ---- for people ----


def test_show_tells_where_the_peak_was_and_what_made_it(server, cli):
    """The summary that the demo ends with: numbers, their place, and the address of the page."""
    agent = make_run(server, "story")
    server.send(
        agent,
        messages.Overhead(
            seconds_per_step=1e-5, fraction=0.0001, resolvable=False, noise_fraction=0.002, watched_steps=20,
            unwatched_steps=10, hook_seconds=0.1, sampler_cpu_seconds=0.1,
        ),
    )  # fmt: skip
    code, out, _ = cli("show", "story", "--server", server.url)
    assert code == 0
    assert "story  finished" in out
    assert "3.00 GiB in step 30, backward (3.8 % of the device)" in out
    assert re.search(r"activations, temporaries +512 MiB +16\.7 %", out)
    assert "25.0 %: peak reserved exceeds peak allocated by 1.00 GiB" in out
    assert "30, 100 ms each (median)" in out
    assert "below 0.5 % of a step" in out
    assert out.rstrip().endswith(f"{server.url}/runs/{agent.run}")
    assert "\x1b" not in out, "no colours in a pipe"


def test_a_peak_that_was_not_taken_apart_is_told_with_the_highest_step_that_was(server, cli):
    """Taking apart costs time, so it happens now and then: what is shown instead says from which sample it is."""
    agent = Agent(name="seldom")
    unknown = {f"peak_{name}_bytes": [series.UNKNOWN, GIB // 8, series.UNKNOWN] for name in series.CATEGORIES}
    server.send(agent, agent.steps(3, peak_allocated_bytes=[GIB, GIB * 2, GIB * 3], **unknown))
    _, out, _ = cli("show", agent.run, "--server", server.url)
    assert "no breakdown in step 3; in step 2, with 2.00 GiB:" in out
    assert re.search(r"parameters +128 MiB", out)


def test_a_value_retained_one_step_too_long_is_no_leak(server, cli):
    agent = make_run(server, "last result")
    server.send(agent, scan(leak("overlap", "loss", growth_bytes_per_step=None, peak_effect_bytes=None)))
    _, out, _ = cli("show", agent.run, "--server", server.url)
    assert re.search(r"leaks +none found, but a value is retained one step longer than needed", out)


def test_advice_from_an_unreadable_recording_is_unknown(server, cli):
    agent = make_run(server, "damaged recording")
    about = {"device": 0, "first_step": 1, "last_step": 3, "reason": "the first steps", "events": 12}
    server.send(
        agent, messages.Piece(artifact=new_id("w"), kind="window", number=0, pieces=1, data=b"not one", about=about)
    )
    code, out, _ = cli("show", agent.run, "--server", server.url)
    assert code == 0
    assert re.search(r"advice +unknown: .*not a recording", out)


def test_what_is_not_known_is_called_so(server, cli):
    """A training on the CPU, without CUDA and NVML, has no zeros to show."""
    agent = Agent(name="on the cpu", allocator_settings=None)
    agent.attached = msgspec.structs.replace(
        agent.attached, devices=[messages.Device(index=series.CPU, name="CPU (x86_64)")]
    )
    server.send(
        agent,
        agent.samples(3, device=series.CPU, allocated_bytes=-1, reserved_bytes=-1, inactive_split_bytes=-1),
        agent.steps(2, device=series.CPU, peak_allocated_bytes=-1, peak_reserved_bytes=-1, peak_phase=-1),
    )
    _, shown, _ = cli("show", agent.run, "--server", server.url)
    assert not re.search(r"^(peak|never needed|unusable|allocator)", shown, re.MULTILINE), (
        "nothing counts it on the CPU"
    )
    assert "0 B" not in shown and "0.0 " not in shown
    assert "CPU (x86_64) (no peak counters)" in shown
    assert "window" not in shown, "none can be recorded"
    _, listed, _ = cli("ls", "on the cpu", "--server", server.url)
    assert ABSENT in listed and "0 B" not in listed
    _, stepped, _ = cli("steps", agent.run, "--server", server.url)
    assert ABSENT in stepped and "0 B" not in stepped


def test_a_name_is_shown_and_never_obeyed(server, cli):
    """Terminal codes, markup and reversed writing in a name are text."""
    make_run(server, "evil\x1b[31m \u202e[bold]x", project="[red]p")
    for words in (
        ("ls", "evil"),
        ("show", "evil\x1b[31m \u202e[bold]x"),
        ("compare", "evil\x1b[31m \u202e[bold]x", "evil"),
    ):
        _, out, err = cli(*words, "--server", server.url)
        assert "\x1b" not in out + err and "\u202e" not in out + err
        assert "\\x1b[31m \\u202e[bold]x" in out + err


def test_a_note_is_in_show_and_in_the_rows_of_ls(server, cli):
    agent = make_run(server, "noted-run")
    server.http.patch(f"/runs/{agent.run}", json={"note": "first\nsecond \x1b[31mred"})
    code, out, err = cli("show", "noted-run", "--server", server.url)
    assert code == 0 and "first second \\x1b[31mred" in out, err
    assert (
        json.loads(cli("ls", "noted-run", "--json", "--server", server.url)[1])[0]["note"]
        == "first\nsecond \x1b[31mred"
    )


def test_names_are_whole_in_a_pipe(server, cli):
    """However long: a script that cuts columns apart gets what there is."""
    name = "a long name " * 16
    make_run(server, name.strip())
    _, out, _ = cli("ls", "a long name", "--server", server.url)
    assert name.strip() in out


def test_reading_with_head_is_no_error(server):
    """The reader closes the pipe early: no trace on stderr."""
    agent = make_run(server, "headless", rows=5000)
    words = " ".join([*VRAMSCOPE, "steps", agent.run, "--json", "--server", server.url])
    done = subprocess.run(["bash", "-c", f"{words} | head -1"], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[\n" and done.stderr == ""


# ---- what goes wrong ----


@pytest.mark.parametrize(
    "words", [("show", "no-such"), ("steps", "no-such"), ("compare", "no-such", "x"), ("show", "a/b")]
)
def test_an_unknown_run_is_3_and_says_what_there_is(server, cli, words):
    make_run(server, "no-such-run")
    code, out, err = cli(*words, "--json", "--server", server.url)
    assert (code, out) == (3, "")
    assert "not found" in err and ("Did you mean: " in err or "List runs: vramscope ls" in err)
    assert err.count("\n") == 1


def test_a_suggested_name_with_blanks_can_be_pasted(server, cli):
    make_run(server, "a name 2026-11-29")
    code, _, err = cli("show", "a name", "--server", server.url)
    assert code == 3 and "Did you mean: 'a name 2026-11-29'" in err


def test_an_unknown_rank_is_3_and_says_which_there_are(server, cli):
    agent = make_run(server, "one rank")
    code, _, err = cli("steps", agent.run, "--rank", 7, "--server", server.url)
    assert code == 3 and "no rank 7" in err and "one of 0" in err


@pytest.mark.parametrize("name", ["gr\udcf6\udcdfe", "x" * 100_000], ids=["latin-1", "too long"])
@pytest.mark.parametrize(
    "words", [("show",), ("leaks",), ("oom",), ("compare", "x"), ("whatif",), ("diff", "x"), ("ls", "--project")]
)
def test_words_that_no_run_can_have_end_with_a_line(server, cli, words, name):
    """What a terminal of another encoding gave, or what was pasted whole."""
    code, out, err = cli(*words, name, "--json", "--server", server.url)
    assert code in ((0,) if words[0] == "ls" and len(name) < 100 else (2, 3)), err
    assert (out, err.count("\n")) == (("", 1) if code else ("[]\n", 0))


def test_an_address_of_another_encoding_is_none(cli):
    code, out, err = cli("ls", "--server", "http://gr\udcf6\udcdfe")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "is not a server address" in err


def test_a_proxy_that_cannot_be_used_is_told_and_not_asked_for_this_machine(server, cli, monkeypatch):
    for name in ("ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "gopher://x")
    assert cli("ls", "--server", server.url)[0] == 0
    code, out, err = cli("ls", "--server", "http://192.0.2.1:8265")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "a proxy or certificate of the environment cannot be used" in err and "gopher://x" in err


def test_a_card_larger_than_all_is_refused(cli, tmp_path):
    code, out, err = cli("whatif", tmp_path, "--device-bytes", "9" * 30)
    assert (code, out) == (2, "") and "--device-bytes" in err


def test_no_server_is_4_and_says_where_and_how_to_start_one(cli):
    code, out, err = cli("ls", "--json", "--server", "http://127.0.0.1:9")
    assert (code, out) == (4, "")
    assert err == (
        "vramscope: no server answers at http://127.0.0.1:9 (Connection refused). "
        "Start one with: vramscope server --port 9\n"
    )


def test_another_server_is_4_and_told_as_such(cli):
    """A page of something else is no vramscope, whatever its status."""

    class Other(BaseHTTPRequestHandler):
        status = 200

        def do_GET(self) -> None:
            self.send_response(self.status)
            self.end_headers()
            self.wfile.write(b"<html>hello</html>")

        def log_message(self, *_: object) -> None:
            pass

    other = HTTPServer(("127.0.0.1", 0), Other)
    Thread(target=other.serve_forever, args=(0.02,), daemon=True).start()
    for Other.status in (200, 404, 500):
        code, _, err = cli("show", "x", "--server", f"http://127.0.0.1:{other.server_port}")
        assert code == 4 and "is not a vramscope server" in err
    other.shutdown()
    other.server_close()


def test_an_older_server_is_named_as_such_where_it_does_not_tell_enough(server, cli):
    """What it tells is that of the real one, less what came later."""
    agent = Agent(name="of an older server")
    server.send(agent, agent.samples(), agent.steps(), scan(leak()), agent.ended())
    later = {"unusable_bytes", "lower_bound_steps", "per"}

    class Older(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = httpx.get(server.url + self.path, trust_env=False)
            response = json.loads(
                answer.content, object_hook=lambda o: {name: value for name, value in o.items() if name not in later}
            )
            self.send_response(answer.status_code)
            self.end_headers()
            self.wfile.write(json.dumps(response).encode())

        def log_message(self, *_: object) -> None:
            pass

    older = ThreadingHTTPServer(("127.0.0.1", 0), Older)
    Thread(target=older.serve_forever, args=(0.02,), daemon=True).start()
    at = f"http://127.0.0.1:{older.server_port}"
    for words in (["ls"], ["show", agent.run], ["leaks", agent.run], ["compare", agent.run, agent.run]):
        code, _, err = cli(*words, "--server", at)
        assert code == 4, words
        assert re.search(r"has no field '(unusable_bytes|lower_bound_steps|per)'", err), err
        assert err.count("\n") == 1
        assert cli(*words, "--server", server.url)[0] == 0
    assert cli("show", agent.run, "--json", "--server", at)[0] == 0, "scripts see what there is"
    older.shutdown()
    older.server_close()


def test_a_server_that_takes_its_time_is_waited_for_in_sight(monkeypatch, cli):
    """After two seconds a terminal shows what it waits for; a pipe gets nothing. The wait has an end."""

    class Slow(BaseHTTPRequestHandler):
        seconds = client.ANSWER_SECONDS / 60

        def do_GET(self) -> None:
            time.sleep(self.seconds)
            with contextlib.suppress(OSError):  # nobody waits any more
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b'{"runs": [], "total": 0, "next_cursor": null}')

        def log_message(self, *_: object) -> None:
            pass

    slow = ThreadingHTTPServer(("127.0.0.1", 0), Slow)
    Thread(target=slow.serve_forever, args=(0.02,), daemon=True).start()
    at = f"http://127.0.0.1:{slow.server_port}"
    ours, theirs = os.openpty()
    command = [*VRAMSCOPE, "ls", "--json", "--server", at]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=theirs, timeout=60, check=False)
    os.close(theirs)
    assert (done.returncode, json.loads(done.stdout)) == (0, [])
    assert b"waiting for the server " in os.read(ours, 65_536)
    os.close(ours)
    assert cli("ls", "--json", "--server", at)[::2] == (0, "")
    monkeypatch.setattr(client, "ANSWER_SECONDS", 0.5)
    code, _, err = cli("ls", "--server", at)
    assert code == 4 and f"the server at {at} did not answer within 0.5 s" in err
    slow.shutdown()
    slow.server_close()


def test_without_its_token_a_server_is_2_and_with_it_0(start_server, cli, monkeypatch):
    server = start_server(require_tokens=True)
    code, _, err = cli("ls", "--server", server.url)
    assert code == 2 and f"The server at {server.url} asks for a token. (set VRAMSCOPE_TOKEN" in err
    monkeypatch.setenv("VRAMSCOPE_TOKEN", "vrs_of_another_server")
    code, _, err = cli("ls", "--server", server.url)
    assert code == 2 and "This server has no such token." in err
    monkeypatch.setenv("VRAMSCOPE_TOKEN", server.services.first_token)
    code, out, _ = cli("ls", "--server", server.url)
    assert code == 0 and "No runs yet" in out


@pytest.mark.parametrize(
    "words",
    [
        ("no-such-command",),
        ("show",),
        ("show", "x", "--no-such-option"),
        ("compare", "only-one"),
        ("steps", "x", "--last", "0"),
        ("steps", "x", "--rank", "one"),
        ("ls", "--server", "not an address"),
        ("ls", "--server", "ftp://127.0.0.1"),
        ("ls", "--server", "http://name:secret@127.0.0.1"),
        ("demo", "--steps", "-1"),
        ("run",),
        ("sync", "--no-such-option"),
    ],
    ids=" ".join,
)
def test_wrong_words_are_2_and_told_on_stderr(cli, words):
    code, out, err = cli(*words)
    assert code == 2
    assert out == "" and err and "Traceback" not in err and "secret" not in err


def test_a_window_that_ends_before_it_begins_is_2(server, cli):
    agent = make_run(server, "backwards")
    code, _, err = cli("steps", agent.run, "--from", 9, "--to", 3, "--server", server.url)
    assert code == 2 and "from is 9" in err


def test_an_unknown_state_is_2_and_names_the_known(server, cli):
    code, _, err = cli("ls", "--state", "asleep", "--server", server.url)
    assert code == 2 and "running" in err


def test_version_and_the_agents_commands_need_no_extra(tmp_path: Path):
    """`pip install vramscope` alone: run, sync and --version work, the rest says in one line what to install."""
    hidden = "import sys\nfor name in ('typer', 'rich', 'fastapi', 'uvicorn', 'numpy'): sys.modules[name] = None\n"
    script = hidden + "from vramscope_server.__main__ import main\nsys.exit(main(sys.argv[1:]))"

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", script, *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)

    assert run("--version").stdout == f"vramscope {__version__}\n"
    module = [sys.executable, "-m", "vramscope", "--version"]
    assert subprocess.check_output(module, text=True, timeout=60, cwd=tmp_path) == f"vramscope {__version__}\n"
    assert run("run", "--", sys.executable, "-c", "print(5)").stdout == "5\n"
    assert run("sync", "--help").returncode == 0
    for words in (["ls"], ["server"]):
        missing = run(*words)
        assert missing.returncode == 2 and missing.stdout == ""
        assert "pip install 'vramscope[server]'" in missing.stderr and missing.stderr.count("\n") == 1
    helped, nothing = run("--help"), run()
    assert (helped.returncode, helped.stderr) == (0, "") and (nothing.returncode, nothing.stdout) == (2, "")
    assert (
        helped.stdout == nothing.stderr and "vramscope sync" in helped.stdout and "vramscope[server]" in helped.stdout
    )


def test_leaks_say_who_holds_what_and_what_to_do(server, cli):
    """Verdict, table, chain, examples, advice; control characters of a name are shown, not obeyed."""
    agent = make_run(server, "told", rows=3)
    server.send(agent, scan(leak(), leak("overlap", "a\x1b[2Jb", held_bytes=5), not_scanned="12 of 40 holders"))
    code, out, _ = cli("leaks", agent.run, "--server", server.url)
    assert code == 0
    assert out.startswith(
        "history (train.py:87) keeps the graphs of 412 earlier steps. It retains 1.00 GiB; after the fix"
    )
    assert "not scanned: 12 of 40 holders" in out
    assert re.search(r"history +growing +train.py:87 +412 +411 steps +1.00 GiB +1.00 GiB +2.49 MiB/step +512 MiB", out)
    assert "└ list[412]" in out and "412 x float32[] on cuda:0" in out
    assert "fix: history.append(loss.item())" in out
    assert "a\\x1b[2Jb" in out and "\x1b[2J" not in out
    assert f"{server.url}/runs/{agent.run}/leaks" in out
    assert "RANKS" not in out
    assert out.count("by replay: unknown") == 2
    on_the_host = make_run(server, "on the host", rows=3)
    server.send(on_the_host, scan(leak(examples=["412 x float32[] on cpu"])))
    assert "by replay" not in cli("leaks", on_the_host.run, "--server", server.url)[1], "no window could ever tell"
    line = make_run(server, "with its line", rows=3)
    server.send(line, scan(leak(fix="item", source="        history.append(loss)")))
    told = cli("leaks", line.run, "--server", server.url)[1]
    assert "-         history.append(loss)\n" in told and "+         history.append(loss.item())\n" in told
    shown = cli("show", agent.run, "--server", server.url)[1]
    assert "1, retaining 1.00 GiB (growing: history)" in shown
    assert re.search(r"try first +fix the leak of history \(peak allocated falls by 512 MiB\)", shown)
    listed = cli("ls", "told", "--server", server.url)[1]
    assert "LEAKED" in listed
    code, _, err = cli("leaks", "nobody-of-that-name", "--server", server.url)
    assert code == 3 and "nobody-of-that-name" in err


def test_leaks_of_a_run_that_has_none_say_what_could_not_have_been_seen(server, cli):
    agent = make_run(server, "clean", rows=5)
    server.send(agent, agent.steps(200, first=6, after_step_bytes=GIB), scan())
    _, out, _ = cli("leaks", agent.run, "--server", server.url)
    assert re.match(r"No growth over 200 steps\. Growth below \d+ B per step cannot be detected\.\n", out)
    assert "none found" in cli("show", agent.run, "--server", server.url)[1]
    other = make_run(server, "another", rows=3)
    server.send(other, scan(leak()))
    compared = cli("compare", agent.run, other.run, "--server", server.url)[1]
    assert re.search(r"clean .* none", compared)


def test_show_agrees_with_leaks(cli: Cli, server: RunningServer) -> None:
    """One said "none found" where the other said that memory rises."""
    agent = Agent()
    rising = [GIB + step * (1 << 20) for step in range(100)]
    server.send(agent, agent.steps(100, after_step_bytes=rising), scan())
    assert "Memory after each step rises by" in cli("leaks", agent.run, "--server", server.url)[1]
    assert "no holder found, but memory after each step rises" in cli("show", agent.run, "--server", server.url)[1]
    incomplete = Agent()
    left_out = scan(not_scanned="the older ones of 30,000 tensors")
    server.send(incomplete, incomplete.steps(100, after_step_bytes=[GIB] * 100), left_out)
    assert "The last scan left out the older ones" in cli("leaks", incomplete.run, "--server", server.url)[1]
    assert "none found; the last scan left something out" in cli("show", incomplete.run, "--server", server.url)[1]
