"""``vramscope oom`` for a run on a real server and for a pasted text: output, JSON, exit codes."""

from __future__ import annotations

import io
import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "backend"), str(HERE.parent / "pages")]

from running import RunningServer  # noqa: E402
from test_message import LINE, TORCH_1, TORCH_2_4  # noqa: E402
from test_oom_page import GIB, MARKUP, box, rich_box, sent  # noqa: E402
from wire_maker import Agent, new_id  # noqa: E402

from vramscope_server.cli.oom_markdown import _program, markdown  # noqa: E402

Cli = Callable[..., tuple[int, str, str]]
STABLE = "cause culprit rank step phase message survived remedies"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    running = RunningServer(tmp_path_factory.mktemp("server"))
    yield running
    running.stop()


def a_run(server: RunningServer, *boxes: Any, **attached: Any) -> Agent:
    agent = Agent(**attached)
    server.send(agent, agent.samples())
    if boxes:
        sent(server, agent.run, *boxes)
    return agent


def test_a_runs_error_is_explained(server: RunningServer, cli: Cli) -> None:
    """Verdict, remedies, the user's own lines, and the address of the page, in this order."""
    agent = a_run(server, box(new_id("o")))
    code, out, err = cli("oom", agent.run, "--server", server.url)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert "Requested 4.00 GiB at " in " ".join(out.split())
    assert out.index("2 micro-batches instead") < out.index(".py:87 in train")
    assert "yes" in next(line for line in lines if "2 micro-batches instead" in line)
    assert "/usr/lib/torch" not in out, "a library's frames are left out"
    assert lines[-1] == f"{server.url}/runs/{agent.run}/oom"
    assert "survived" not in out


def test_counters_are_shown_before_and_at_the_error(server: RunningServer, cli: Cli) -> None:
    agent = a_run(server, rich_box(new_id("o"), None))
    _, out, _ = cli("oom", agent.run, "--server", server.url)
    rows = [line.split() for line in out.splitlines()]
    at = rows.index(["COUNTER", "LAST", "SAMPLE", "AT", "THE", "ERROR"])
    assert rows[at + 1 : at + 6] == [
        ["allocated", "20.0", "GiB", "29.0", "GiB"],
        ["reserved", "30.0", "GiB", "30.0", "GiB"],
        ["active", "–", "29.0", "GiB"],  # noqa: RUF001 - unknown
        ["segments", "1", "1"],
        ["alloc", "retries", "2", "3"],
    ]
    answer = json.loads(cli("oom", agent.run, "--json", "--server", server.url)[1])
    assert answer["counters"]["before_seconds"] == pytest.approx(0.08)
    assert answer["counters"]["rows"][2] == {"name": "active_bytes", "before": None, "at": 29 * GIB}


def test_json_has_the_stable_keys(server: RunningServer, cli: Cli) -> None:
    """The contract of docs/support.md, with nothing but JSON on stdout. Of two fatal errors the first is
    shown.
    """
    first, second = new_id("o"), new_id("o")
    now = time.time_ns()
    agent = a_run(server, box(first, time_ns=now - 10**9), box(second, time_ns=now))
    code, out, err = cli("oom", agent.run, "--json", "--server", server.url)
    assert (code, err) == (0, "")
    answer = json.loads(out)
    assert list(answer)[: len(STABLE.split())] == STABLE.split()
    assert (answer["record"], answer["cause"], answer["survived"]) == (first, "activations", False)
    assert answer["culprit"] == {"file": f"/home/ada/{MARKUP}.py", "line": 87, "module": MARKUP}
    assert answer["message"]["asked_bytes"] == 4 * GIB
    assert {"what", "saves_bytes", "enough", "source"} <= answer["remedies"][0].keys()
    assert [one["record"] for one in answer["errors"]] == [first, second]


def test_a_run_without_errors_says_so(server: RunningServer, cli: Cli) -> None:
    agent = a_run(server, name="calm")
    assert cli("oom", agent.run, "--server", server.url) == (
        0,
        "calm has no out-of-memory errors.\n",
        "",
    )
    assert cli("oom", agent.run, "--json", "--server", server.url) == (0, "null\n", "")


def test_missing_things_have_their_exit_codes(server: RunningServer, cli: Cli, tmp_path: Path) -> None:
    code, out, err = cli("oom", "no-such-run", "--server", server.url)
    assert (code, out) == (3, "")
    assert "no-such-run" in err
    code, out, err = cli("oom", "any", "--server", "http://127.0.0.1:9")
    assert (code, out) == (4, "")
    assert "http://127.0.0.1:9" in err
    missing = tmp_path / "no.log"
    code, out, err = cli("oom", "--message", missing)
    assert (code, out) == (2, "")
    assert "cannot be read: No such file or directory" in err
    assert cli("oom", "--message", tmp_path)[0] == 2, "a folder is no text"
    assert cli("oom")[0] == cli("oom", "any", "--message", missing)[0] == 2, "one of them, and not both"


def test_a_pasted_error_is_explained_without_a_server(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "pasted"
    file.write_text(f"torch.OutOfMemoryError: {TORCH_2_4}\n")
    code, out, err = cli("oom", "--message", file)
    assert (code, err) == (0, "")
    assert "Requested 512 B; 2.81 MiB of 79.2 GiB were free." in " ".join(out.split())
    assert "format: PyTorch 2.2 to 2.8" in out
    code, out, err = cli("oom", "--message", file, "--json")
    answer = json.loads(out)
    assert (code, err) == (0, "")
    assert list(answer)[:1] == ["cause"]
    assert set(STABLE.split()) <= answer.keys()
    assert (answer["message"]["asked_bytes"], answer["message"]["device"], answer["message"]["errors"]) == (512, 3, 1)
    assert (answer["culprit"], answer["rank"]) == ({"file": None, "line": None, "module": None}, None)


@pytest.mark.parametrize("piped", [False, True], ids=["a file", "piped in"])
def test_the_last_error_of_a_log_of_three_megabytes_is_found(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piped: bool
) -> None:
    """The log may have bytes that are not text."""
    log = tmp_path / "train.log"
    log.write_bytes(f"{TORCH_2_4}\r\n{LINE * ((3 << 20) // len(LINE))}".encode() + b"\xff\xfe\n" + TORCH_1.encode())
    if piped:
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(log.read_bytes())))
    code, out, err = cli("oom", "--message", "-" if piped else log)
    assert (code, err) == (0, "")
    assert "Requested 20.0 MiB; 18.6 MiB of 7.79 GiB were free." in " ".join(out.split())
    assert "The text has 2 errors; this is the last of those that say most." in out


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-8-sig"])
def test_utf_16_logs_of_powershell_are_read(cli: Cli, tmp_path: Path, encoding: str) -> None:
    log = tmp_path / "train.log"
    mark = "\ufeff" if encoding == "utf-16-be" else ""
    log.write_bytes(f"{mark}{LINE * 20_000}\r\n{TORCH_2_4}\r\n".encode(encoding))
    code, out, err = cli("oom", "--message", log)
    assert (code, err) == (0, "")
    assert "Requested 512 B; 2.81 MiB of 79.2 GiB were free." in " ".join(out.split())


@pytest.mark.parametrize("size", [30, 1 << 20], ids=["a line", "a megabyte"])
def test_a_text_without_an_error_fails(cli: Cli, tmp_path: Path, size: int) -> None:
    file = tmp_path / "other.log"
    file.write_text(("Segmentation fault (core dumped)\n" * (size // 30))[:size])
    code, out, err = cli("oom", "--message", file)
    assert (code, out) == (1, "")
    assert "this text has no known out-of-memory error" in err
    code, out, err = cli("oom", "--message", file, "--json")
    answer = json.loads(out)
    assert code == 1
    assert (answer["cause"], answer["message"]["kind"], answer["message"]["errors"]) == (None, "unknown", 0)
    assert answer["message"]["text"].startswith("Segmentation fault"), "kept as it is"


def test_an_error_as_markdown_has_no_folder_of_its_user_and_no_markup_of_the_run() -> None:
    error: dict[str, Any] = {
        "survived": False,
        "sentence": "The activations need | too much `memory` at /home/alice/a/b/c/train.py:7, and /a/b is short.",
        "cause": "activations",
        "culprit": {"file": "/mnt/home/alice/my project/src/train.py", "line": 7, "module": "net.blocks.3"},
        "step": 4,
        "phase": "forward",
        "asked_bytes": 1 << 30,
        "shortfall_bytes": None,
        "settings": "expandable_segments:True",
        "techniques": ["bf16"],
        "by_category": [{"name": "parameters", "bytes": 3 << 30}],
        "by_site": [
            {"file": "C:\\Users\\John Smith\\lab\\code\\model.py", "line": 3, "bytes": 2 << 30},
            {"file": None, "line": None, "bytes": 1},
        ],
        "neighbours": [
            {
                "pid": 7,
                "command": "/home/alice/env/bin/python3.11 /home/alice/serve.py --key hidden",
                "user": "alice",
                "container": "0123456789ab",
                "manager": "slurm",
                "job": "17",
                "job_name": "alice's",
                "pod": "jupyter-alice",
                "used_bytes": 6 << 30,
                "before_bytes": 1 << 30,
                "before_seconds": 60,
            }
        ],
        "leaks": [{"name": "losses", "held_bytes": 5 << 20}],
        "remedies": [
            {"what": "micro-batches of 8 rows <b>", "saves_bytes": None, "enough": None, "cost": "almost none"}
        ],
        "stack": [
            {"file": "/mnt/home/alice/my project/src/train.py", "line": 7, "function": "step", "own": True},
            {"file": "/usr/lib/torch/x.py", "line": 1, "function": "f", "own": False},
        ],
    }
    text = markdown(error, "2.13.0")  # type: ignore[arg-type]
    assert "alice" not in text and "John" not in text and "hidden" not in text
    assert "| pid 7 (python3.11 serve.py, slurm job 17) | 6.00 GiB | 1.00 GiB, 60 s earlier |" in text
    assert "| line | `…/my project/src/train.py:7` |" in text
    assert "| `…/lab/code/model.py:3` | 2.00 GiB |" in text
    assert "| step | 5, forward |" in text
    assert "| requested | 1.00 GiB |" in text and "| missing | unknown |" in text
    assert "at …/train.py:7, and /a/b is short" in text
    assert "need \\| too much \\`memory\\`" in text and "\\<b\\>" in text
    assert "| micro-batches of 8 rows \\<b\\> | unknown | may be | almost none |" in text
    assert "…/my project/src/train.py:7 in step" in text and "torch/x.py" not in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {3, 4, 5}


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("/home/ada lovelace/env/bin/python train.py", None),
        ("python /home/ada", "python"),
        ("/usr/bin/mypython s3cr3t", None),
        ("/opt/bin/trainer", "trainer"),
        ("torchrun train.py", "torchrun train.py"),
        ("", None),
    ],
)
def test_of_a_command_only_the_program_and_its_script_are_shown(command: str, shown: str | None) -> None:
    assert _program(command) == shown
