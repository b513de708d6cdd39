"""Reports from the server are the files that ``vramscope report`` writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from running import RunningServer
from wire_maker import SECOND, Agent, leak, scan

from vramscope.protocol import messages


@pytest.fixture(scope="module")
def runs(server: RunningServer) -> list[str]:
    """A run that leaks, and one that ran out of memory. One has a name with a slash and markup."""
    fine, dead = Agent(name="a/b <i>, c", config={"lr": 0.1}), Agent(name="dead", config={"lr": 0.2})
    server.send(fine, fine.samples(), fine.steps(30), scan(leak()), fine.ended())
    error = messages.Event(time_ns=dead.start_ns + SECOND, kind="out_of_memory", step=30)
    ended = dead.ended("failed", error_type="torch.OutOfMemoryError", error_line="CUDA out of memory.")
    server.send(dead, dead.samples(1, ooms=1), dead.steps(30), error, ended)
    return [fine.run, dead.run]


def written(cli: Any, server: RunningServer, file: Path, *names: str) -> str:
    assert cli("report", *names, "--out", str(file), "--server", server.url)[0] == 0
    return file.read_text()


def test_the_report_of_a_run(server: RunningServer, runs: list[str], cli: Any, tmp_path: Path) -> None:
    for run in runs:
        answer = server.http.get(f"/runs/{run}/report")
        assert answer.status_code == 200 and answer.headers["content-type"] == "text/html; charset=utf-8"
        assert answer.headers["content-disposition"] == f'attachment; filename="vramscope-{run}.html"'
        assert answer.text == written(cli, server, tmp_path / "run.html", run)
    assert "a/b &lt;i&gt;" in server.http.get(f"/runs/{runs[0]}/report").text
    assert server.http.get("/runs/nothing/report").status_code == 404


def test_the_report_of_a_comparison(server: RunningServer, runs: list[str], cli: Any, tmp_path: Path) -> None:
    answer = server.http.get("/compare/report", params={"runs": ",".join(runs), "base": runs[1]})
    assert answer.status_code == 200 and "vramscope-compare.html" in answer.headers["content-disposition"]
    assert answer.text == written(cli, server, tmp_path / "both.html", *reversed(runs))
    assert server.http.get("/compare/report", params={"runs": "nothing"}).status_code == 404
