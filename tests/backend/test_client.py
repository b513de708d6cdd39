"""``vramscope.Client`` reads a real server: runs, every row of a series, leaks, errors, figures; refusals name the reason."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import httpx
import numpy as np
import plotly.graph_objects
import pytest
from running import RunningServer
from wire_maker import Agent, leak, scan

import vramscope
from vramscope.client import run as run_module
from vramscope.client.connection import Connection
from vramscope.client.errors import ServerError
from vramscope.client.table import read_table
from vramscope_server.api.steps import DAMAGED


@pytest.fixture(scope="module")
def long_run(server: RunningServer) -> Agent:
    """9,500 steps and 9,500 samples: more than the server answers at once."""
    agent = Agent(name="long/run", project="tables", tags=["a", "b"])
    rng = np.random.default_rng(3)
    for part in range(19):
        peaks = (rng.integers(1, 1000, 500) * 512).tolist()
        server.send(agent, agent.steps(500, at=part * 100, first=part * 500 + 1, forward_peak_allocated_bytes=peaks))
        server.send(agent, agent.samples(500, at=part * 100, allocated_bytes=peaks))
    server.send(agent, agent.ended(at=2000))
    return agent


def test_a_run_is_found_by_id_name_and_conditions(server: RunningServer, long_run: Agent) -> None:
    with vramscope.Client(server.url) as client:
        run = client.run(long_run.run)
        assert (run.name, run.facts.project, run.facts.tags) == ("long/run", "tables", ("a", "b"))
        assert run.facts.state == "finished"
        assert run.facts.steps == 9_500
        assert run.url == f"{server.url}/runs/{long_run.run}"
        assert [one.id for one in client.runs(project="tables")] == [long_run.run]
        assert [one.id for one in client.runs(project="tables", state="running")] == []
        assert run.facts.note == ""
        server.http.patch(f"/runs/{long_run.run}", json={"note": "the long one"})
        assert run.refresh().note == run.facts.note == "the long one"


def test_all_runs_come_page_by_page(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    agents = [Agent(project="many") for _ in range(7)]
    for agent in agents:
        server.send(agent, agent.steps(2))
    monkeypatch.setattr("vramscope.client.client.PAGE", 3)
    with vramscope.Client(server.url) as client:
        assert sorted(run.id for run in client.runs(project="many")) == sorted(agent.run for agent in agents)


def test_a_series_has_every_row_once(server: RunningServer, long_run: Agent) -> None:
    with vramscope.Client(server.url) as client:
        run = client.run(long_run.run)
        steps = run.series(["forward_peak_allocated_bytes"])
        assert steps.x.tolist() == list(range(1, 9_501))
        stored = server.get(f"/runs/{long_run.run}/steps?limit=10000")
        expected = [step["phases"]["forward"]["peak_allocated_bytes"] for step in stored]
        assert steps["forward_peak_allocated_bytes"].tolist() == expected
        samples = run.series(["allocated_bytes"], stream="samples", axis="time")
        assert len(samples) == 9_500
        assert (np.diff(samples.x) > 0).all()
        assert samples["allocated_bytes"].tolist() == expected
        part = run.series(["forward_peak_allocated_bytes"], first=10, last=12)
        assert part.x.tolist() == [10, 11, 12]


def test_rows_at_one_place_end(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """All samples of one step: no window is small enough for them, so the highest value of each part counts."""
    agent = Agent()
    server.send(agent, agent.samples(40, step=[7] * 40, allocated_bytes=list(range(40))))
    monkeypatch.setattr(run_module, "MOST_POINTS", 10)
    with vramscope.Client(server.url) as client:
        series = client.run(agent.run).series(["allocated_bytes"], stream="samples")
    assert 1 <= len(series) <= 10
    assert series["allocated_bytes"].max() == 39


@pytest.mark.parametrize("is_relative", [True, False])
def test_a_long_window_between_two_times_has_every_row(
    server: RunningServer, long_run: Agent, is_relative: bool
) -> None:
    """Limits count from the run's start, or from 1970."""
    with vramscope.Client(server.url) as client:
        run = client.run(long_run.run)
        zero = 0.0 if is_relative else run.facts.started_seconds
        assert zero is not None
        series = run.series(["allocated_bytes"], stream="samples", axis="time", first=zero - 1, last=zero + 3000)
    assert len(series) == 9_500
    assert (np.diff(series.x) > 0).all()


def test_unknown_values_are_nan(server: RunningServer) -> None:
    agent = Agent()
    server.send(agent, agent.steps(3, forward_peak_allocated_bytes=[5, -1, 7]))
    with vramscope.Client(server.url) as client:
        values = client.run(agent.run).series(["forward_peak_allocated_bytes"])["forward_peak_allocated_bytes"]
    assert values[[0, 2]].tolist() == [5, 7]
    assert np.isnan(values[1])


def test_scalars_keep_what_is_not_finite(server: RunningServer) -> None:
    agent = Agent()
    server.send(agent, agent.steps(3), agent.scalars(loss=[1.5, float("inf"), float("nan")]))
    with vramscope.Client(server.url) as client:
        loss = client.run(agent.run).series(["loss"], stream="scalars")["loss"]
    assert loss[:2].tolist() == [1.5, float("inf")]
    assert np.isnan(loss[2])


TABLES = """
from vramscope.client.series import Series

series = Series("step", [1.0, 2.0], {"peak_bytes": [5, None]})
frame = series.to_pandas()
assert frame.index.tolist() == [1, 2] and frame.index.name == "step", frame
assert frame["peak_bytes"].tolist()[0] == 5 and frame["peak_bytes"].isna().tolist() == [False, True], frame
frame = series.to_polars()
assert frame["step"].to_list() == [1, 2], frame
assert frame["peak_bytes"].to_list()[0] == 5 and frame["peak_bytes"].is_nan().to_list() == [False, True], frame

from vramscope.client.table import Table

large = (1 << 53) + 1
rows = [{"a_bytes": large, "b": None, "c": ["x"]}, {"a_bytes": None, "b": 0.5, "c": []}]
frame = Table("t", ["a_bytes", "b", "c"], rows).to_pandas()
assert frame["a_bytes"][0] == large and frame["a_bytes"].isna().tolist() == [False, True], frame
assert frame["c"].tolist() == [["x"], []] and frame["b"][1] == 0.5, frame
assert list(Table("t", ["a_bytes", "b"], []).to_pandas().columns) == ["a_bytes", "b"]
frame = Table("t", ["a_bytes", "b", "c"], rows).to_polars()
assert frame["a_bytes"].to_list() == [large, None] and frame["c"].to_list() == [["x"], []], frame
"""


@pytest.mark.slow
def test_a_series_becomes_a_table_of_pandas_and_polars(tmp_path: Path) -> None:
    """Both are installed for this test alone: frameworks behave otherwise where they find them."""
    folder = tmp_path / "tables"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--target", folder, "pandas", "polars"]
    subprocess.run(install, check=True)
    paths = os.pathsep.join([str(folder), *sys.path])
    child = subprocess.run(
        [sys.executable, "-c", TABLES], env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True
    )
    assert child.returncode == 0, child.stderr


def test_leaks_and_the_next_change(server: RunningServer) -> None:
    agent = Agent()
    server.send(agent, agent.steps(30), scan(leak(name="history", line=90), step=20))
    with vramscope.Client(server.url) as client:
        run = client.run(agent.run)
        report = run.leaks()
        assert [one.name for one in report.leaks] == ["history"]
        assert report.verdict.level == "leak"
        assert report.leaks[0].line == 90
        assert run.next_change().title == "fix the leak of history"
        assert run.out_of_memory_errors() == []


def test_a_table_has_every_row_and_column(server: RunningServer, long_run: Agent) -> None:
    with vramscope.Client(server.url) as client:
        run = client.run(long_run.run)
        table = run.table("phases", rank=0, first=2, last=4)
        assert [row["step"] for row in table if row["phase"] == "forward"] == [2, 3, 4]
        assert table.columns == tuple(table[0]) and table.missing == ""
        forward = run.series(["forward_peak_allocated_bytes"])["forward_peak_allocated_bytes"]
        peaks = [row["peak_allocated_bytes"] for row in run.table("phases") if row["phase"] == "forward"]
        assert peaks == forward.tolist()
        leaks = run.table("leaks")
        assert (len(leaks), leaks.column("held_bytes")) == (0, []), "an empty table has its columns"
        with pytest.raises(KeyError):
            leaks.column("no_such_column")
        with pytest.raises(ServerError, match="no_such_table"):
            run.table("no_such_table")


def test_runs_are_compared(server: RunningServer) -> None:
    small, large = Agent(name="small"), Agent(name="large")
    for agent, peak_bytes in ((small, 1 << 20), (large, 3 << 20)):
        server.send(agent, agent.steps(3, forward_peak_allocated_bytes=[peak_bytes] * 3), agent.ended(at=10))
    with vramscope.Client(server.url) as client:
        table = client.compare(small.run, large.run)
        assert table.column("run") == [small.run, large.run]
        assert client.compare(small.run, large.run, table="settings").name == "settings"
        with pytest.raises(ServerError, match="nobody"):
            client.compare(small.run, "nobody")


def test_a_run_with_a_comma_in_its_name_is_compared(server: RunningServer) -> None:
    named, other = Agent(name="lr 0.1, seed 1"), Agent(name="other")
    for agent in (named, other):
        server.send(agent, agent.steps(3), agent.ended(at=10))
    with vramscope.Client(server.url) as client:
        assert client.compare("lr 0.1, seed 1", other.run).column("run") == [named.run, other.run]


def test_a_table_names_the_steps_that_the_server_cannot_read() -> None:
    def answers(request: httpx.Request) -> httpx.Response:
        assert request.url.params["format"] == "json"
        return httpx.Response(200, json=[{"step": 1}], headers={DAMAGED: "2-9"})

    connection = Connection("http://127.0.0.1:9", None)
    connection._client = httpx.Client(base_url="http://127.0.0.1:9", transport=httpx.MockTransport(answers))
    table = read_table(connection, "steps", {"run": "x"})
    assert (table.missing, table.rows) == ("2-9", [{"step": 1}])


def test_a_figure_is_plotlys(server: RunningServer, long_run: Agent) -> None:
    with vramscope.Client(server.url) as client:
        figure = client.run(long_run.run).figure("stack")
    assert isinstance(figure, plotly.graph_objects.Figure)
    assert len(figure.data)


def test_refusals_say_why(server: RunningServer, long_run: Agent) -> None:
    with vramscope.Client(server.url) as client:
        with pytest.raises(ServerError) as missing:
            client.run("nobody")
        assert missing.value.status == 404
        assert "nobody" in str(missing.value)
        with pytest.raises(ServerError) as unknown:
            client.run(long_run.run).series(["no_such_series"])
        assert unknown.value.status == 422
        assert "no_such_series" in str(unknown.value)


def test_without_a_server_the_address_is_named() -> None:
    with vramscope.Client("http://127.0.0.1:9") as client, pytest.raises(ServerError, match=r"http://127\.0\.0\.1:9"):
        client.run("any")
    with pytest.raises(ValueError, match="server"):
        vramscope.Client("ftp://x")


def test_a_token_is_sent(start_server, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    running = start_server(require_tokens=True)
    with vramscope.Client(running.url) as client, pytest.raises(ServerError) as refused:
        next(client.runs())
    assert refused.value.status == 401
