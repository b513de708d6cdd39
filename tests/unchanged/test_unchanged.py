"""The agent changes nothing that a program can observe, but for its own lines on stderr."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "agent"))

import warm
from collector import Collector
from programs import PRELUDE, PROGRAMS, SLOW_PROGRAMS
from unusual_programs import UNUSUAL_PROGRAMS

pytestmark = pytest.mark.gpu

NOBODY = "http://127.0.0.1:9"
"""A server that is not there."""
OWN_LINES = re.compile(r"^vramscope: .*\n", re.MULTILINE)
VARIES = (
    (re.compile(r"0x[0-9a-f]+"), "0x"),
    (re.compile(r"\b\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d[,.\d]*"), "TIME"),
    (re.compile(r"^([VIWE])\d{4} \d\d:\d\d:\d\d\.\d+ \d+ ", re.MULTILINE), r"\1 "),
    (re.compile(r"\b\d+\.\d+ ?(s|it/s|ms)\b"), "DURATION"),
    (re.compile(r"('train_(?:runtime|samples_per_second|steps_per_second)': )'[\d.]+'"), r"\1"),
    (re.compile(r"127\.0\.0\.1:\d+"), "LOOPBACK"),
    (re.compile(r"USDT:TIME \d+:\d+"), "USDT:"),  # a profiler's session with its process
    (re.compile(r"\(pid=\d+\)"), "(pid=)"),  # Python 3.12 and later warn of a fork beside threads
)


class Observed(NamedTuple):
    """What a run of a program shows."""

    code: int
    out: str
    err: str
    files: dict[str, str]


def observe(program: str, at: Path, *, server: str | None) -> Observed:
    """Run a program in a folder of its own, which has the same name each time; ``server`` None: without the agent."""
    folder = at / ("plain" if server is None else "watched") / "run"
    folder.mkdir(parents=True)
    env = {
        **os.environ,
        "WATCHED": "no" if server is None else "yes",
        "VRAMSCOPE_SERVER": server or NOBODY,
        "VRAMSCOPE_SPOOL_DIR": str(at / "spool"),
        "TORCH_LOGS": "recompiles,graph_breaks",
        "HF_HUB_OFFLINE": "1",
    }
    done = warm.run(PRELUDE + program, env=env, cwd=folder)
    files = {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    return Observed(done.returncode, plain(done.stdout, at), plain(OWN_LINES.sub("", done.stderr), at), files)


def plain(text: str, at: Path) -> str:
    for pattern, instead in VARIES:
        text = pattern.sub(instead, text)
    return text.replace(f"{at}/plain", "AT").replace(f"{at}/watched", "AT")


def check(program: str, at: Path, collector: Collector | None) -> None:
    alone = observe(program, at, server=None)
    watched = observe(program, at, server=NOBODY if collector is None else collector.url)
    assert watched.err == alone.err
    assert watched.out == alone.out
    assert watched.files == alone.files
    assert watched.code == alone.code
    assert "Traceback" not in alone.err or alone.code or "error" in alone.out, alone.err
    if collector is not None and alone.code != -signal.SIGTERM:
        assert collector.stored, "the program was not watched"


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_runs_as_without_the_agent(name: str, tmp_path: Path) -> None:
    with Collector() as collector:
        check(PROGRAMS[name], tmp_path, collector)


@pytest.mark.parametrize("name", UNUSUAL_PROGRAMS)
def test_an_unusual_program_runs_as_without_the_agent(name: str, tmp_path: Path) -> None:
    with Collector() as collector:
        check(UNUSUAL_PROGRAMS[name], tmp_path, collector)


@pytest.mark.parametrize("name", ["objects saved, nothing given", "log at DEBUG", "exit code", "compiled step"])
def test_a_program_runs_as_without_the_agent_where_no_server_answers(name: str, tmp_path: Path) -> None:
    check(PROGRAMS[name], tmp_path, None)


@pytest.mark.slow
@pytest.mark.frameworks
@pytest.mark.parametrize("name", SLOW_PROGRAMS)
def test_a_frameworks_program_runs_as_without_the_agent(name: str, tmp_path: Path) -> None:
    pytest.importorskip(name)
    with Collector() as collector:
        check(SLOW_PROGRAMS[name], tmp_path, collector)
