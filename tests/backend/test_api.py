"""The HTTP API gives what docs/http.md says."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import numpy as np
import pytest
from running import RunningServer
from wire_maker import GIB, SECOND, Agent

from vramscope.protocol import messages
from vramscope.protocol.series import CATEGORIES
from vramscope_server.figures.registry import COMPARE_FIGURES, RUN_FIGURES

ROW = [
    "run_id", "project", "name", "tags", "note", "state", "device", "capacity_bytes", "world_size", "ranks_reporting",
    "steps", "started_seconds", "last_seen_seconds", "ended_seconds", "peak_allocated_bytes",
    "peak_reserved_bytes", "sampled_allocated_bytes", "sampled_reserved_bytes", "lower_bound_steps", "peak_step",
    "step_seconds_median", "fragmentation_fraction", "unusable_bytes", "pinned", "baseline",
    "error_type", "error_line", "leaks", "leaked_bytes", "worst_leak", "graphs_alive", "recordings",
    "profiles", "oom_records", "techniques", "out_of_memory", "sparkline",
]  # fmt: skip
FULL = [
    "peak_phase", "peak_categories", "fragmentation", "techniques", "findings", "allocator_settings", "agent_overhead",
    "dropped_samples", "framework", "config", "command", "git_commit", "ranks", "events", "window",
]  # fmt: skip
SHOW = [
    "run_id", "name", "state", "device", "steps", "world_size", "peak_allocated_bytes", "peak_reserved_bytes",
    "peak_step", "peak_phase", "peak_categories", "step_seconds_median", "fragmentation", "leaks",
    "out_of_memory", "techniques", "allocator_settings", "agent_overhead", "dropped_samples",
]  # fmt: skip


@pytest.fixture(scope="module")
def long_run(server: RunningServer) -> Agent:
    """20,000 samples and 500 steps of an ended run; one sample stands out."""
    agent = Agent(name="long", config={"batch_size": 8}, git_commit="abc123", command=["python", "train.py"])
    rng = np.random.default_rng(5)
    for part in range(5):
        allocated = (rng.integers(0, 1000, 4000) * 512).tolist()
        if part == 3:
            allocated[1234] = 70 * GIB
        step = (np.arange(4000) // 40 + part * 100).tolist()
        server.send(agent, agent.samples(4000, at=part * 400, allocated_bytes=allocated, step=step, ooms=1))
        server.send(agent, agent.steps(100, at=part * 400, first=part * 100 + 1, data_peak_allocated_bytes=-1))
    overhead = messages.Overhead(
        seconds_per_step=1e-5, fraction=0.001, resolvable=False, noise_fraction=0.002, watched_steps=400, unwatched_steps=100,
        hook_seconds=0.1, sampler_cpu_seconds=0.2,
    )  # fmt: skip
    event = messages.Event(time_ns=agent.start_ns + SECOND, kind="notice", step=3, data={"text": "hello"})
    server.send(agent, event, overhead, agent.ended(at=2000, dropped_samples=7))
    return agent


def test_what_was_dropped_is_told_of_a_run_that_runs_and_unknown_until_its_agent_tells(server: RunningServer) -> None:
    agent = Agent()
    server.send(agent, agent.samples(3))
    assert server.get(f"/runs/{agent.run}")["dropped_samples"] is None
    cost = dict.fromkeys(("seconds_per_step", "fraction", "noise_fraction")) | {"resolvable": False}
    counted = dict.fromkeys(("watched_steps", "unwatched_steps", "hook_seconds", "sampler_cpu_seconds"), 0)
    server.send(agent, messages.Overhead(**cost, **counted))  # type: ignore[arg-type]
    assert server.get(f"/runs/{agent.run}")["dropped_samples"] is None, "of an older agent"
    server.send(agent, messages.Overhead(**cost, **counted, dropped_samples=5))  # type: ignore[arg-type]
    assert server.get(f"/runs/{agent.run}")["dropped_samples"] == 5
    server.send(agent, agent.ended(dropped_samples=6))
    assert server.get(f"/runs/{agent.run}")["dropped_samples"] == 6


def test_resets_by_others_are_told_of_the_run_and_of_each_rank(server: RunningServer) -> None:
    agent = Agent()
    server.send(agent, agent.steps(4, foreign_reset=[0, 1, 2, 0]))
    run = server.get(f"/runs/{agent.run}")
    assert [(r["foreign_reset_steps"], r["lower_bound_steps"]) for r in (run, run["ranks"][0])] == [(2, 1)] * 2
    server.send(agent, agent.ended())
    (row,) = server.get("/compare", runs=agent.run)["rows"]
    assert "lower bound" in row["reasons"][-1]["text"]


def test_a_run_has_all_that_the_document_lists(server: RunningServer, long_run: Agent) -> None:
    run = server.get(f"/runs/{long_run.run}")
    assert set(ROW) | set(FULL) <= run.keys()
    assert set(SHOW) <= run.keys()
    (row,) = [row for row in server.get("/runs")["runs"] if row["run_id"] == long_run.run]
    assert list(row) == [*ROW, "jobs"]
    assert all(run[name] == row[name] for name in ROW if name not in ("leaks", "out_of_memory"))
    assert run["peak_allocated_bytes"] == 70 * GIB
    assert (run["steps"], run["dropped_samples"], row["out_of_memory"]) == (500, 7, 1)
    assert run["agent_overhead"] == {
        "seconds_per_step": 1e-5, "fraction": 0.001, "resolvable": False, "noise_fraction": 0.002, "hook_seconds": 0.1,
        "sampler_cpu_seconds": 0.2,
    }  # fmt: skip
    assert run["events"] == [
        {
            "time_seconds": pytest.approx(long_run.start_ns / 1e9 + 1),
            "rank": 0,
            "kind": "notice",
            "step": 3,
            "data": {"text": "hello"},
        }
    ]
    (rank,) = run["ranks"]
    assert (rank["host"], rank["pid"], rank["torch"], rank["devices"][0]["index"]) == ("node1", 4242, "2.13.0", 0)
    assert run["window"]["first_step"] == 0
    assert run["window"]["last_seconds"] - run["window"]["first_seconds"] == pytest.approx(1999.9)


def test_few_rows_come_as_they_are_and_many_as_an_envelope_that_keeps_the_peak(
    server: RunningServer, long_run: Agent
) -> None:
    path = f"/runs/{long_run.run}/series"
    few = server.get(path, names="allocated_bytes,power_milliwatts", **{"from": 10, "to": 11})
    assert (few["envelope"], few["rows"], len(few["x_values"])) == (False, 11, 11)
    assert few["series"]["power_milliwatts"]["value"] == [None] * 11
    many = server.get(path, names="allocated_bytes", points=100)
    series = many["series"]["allocated_bytes"]
    assert (many["envelope"], many["rows"]) == (True, 20_000)
    assert len(many["x_values"]) == len(series["min"]) == len(series["mean"]) == len(series["max"]) == 100
    assert max(series["max"]) == 70 * GIB
    assert all(
        low <= mean <= high for low, mean, high in zip(series["min"], series["mean"], series["max"], strict=True)
    )
    assert many["x_values"] == sorted(many["x_values"])
    steps = server.get(path, names="allocated_bytes", points=100, x="step")
    assert max(steps["series"]["allocated_bytes"]["max"]) == 70 * GIB
    assert 0 <= steps["x_values"][0] <= steps["x_values"][-1] <= 500


def test_windows_may_be_asked_for_since_1970_or_since_the_runs_start(server: RunningServer, long_run: Agent) -> None:
    path = f"/runs/{long_run.run}/series"
    start = server.get(f"/runs/{long_run.run}")["started_seconds"]
    near = server.get(path, names="allocated_bytes", **{"from": 50.01, "to": 60.01})
    absolute = server.get(path, names="allocated_bytes", **{"from": start + 50.01, "to": start + 60.01})
    assert near["x_values"] == absolute["x_values"]
    assert len(near["x_values"]) == 100


def test_a_row_of_several_steps_counts_as_so_many(server: RunningServer) -> None:
    """An agent reads the peaks of very short steps in groups: steps 1, 2 to 65, 66."""
    agent = Agent()
    rows = {"step": [1, 65, 66], "first_step": [-1, 2, -1], "duration_ns": [900, 100, 900], "peak_phase": [3, -1, 3]}
    server.send(agent, agent.steps(3, **rows))
    server.send(agent, agent.ended())
    steps = server.get(f"/runs/{agent.run}/steps")
    assert [(step["first_step"], step["step"]) for step in steps] == [(1, 1), (2, 65), (66, 66)]
    run = server.get(f"/runs/{agent.run}")
    assert run["steps"] == 66
    assert run["step_seconds_median"] == pytest.approx(100e-9, rel=0.002), "of 66 steps, 64 took so long"
    figure = server.get(f"/runs/{agent.run}/figures/stack", x="step")["figure"]
    (allocated,) = [trace for trace in figure["data"] if trace["name"] == "allocated"]
    assert allocated["line"]["shape"] == "vh", "as wide as the group is"


def test_a_peak_without_categories_names_the_nearest_step_that_has_them(server: RunningServer) -> None:
    agent = Agent()
    known = {f"peak_{name}_bytes": [GIB, -1, GIB] for name in CATEGORIES}
    rows = {"step": [1, 65, 66], "first_step": [-1, 2, -1], "peak_allocated_bytes": [7 * GIB, 8 * GIB, 7 * GIB]}
    server.send(agent, agent.steps(3, **rows, **known))
    peak = server.get(f"/runs/{agent.run}/peak")
    assert (peak["first_step"], peak["step"]) == (2, 65)
    (allocated,) = (level for level in peak["levels"] if level["level"] == "allocated")
    assert allocated["parts"] == [{"role": "unsplit", "label": "unknown", "bytes": 8 * GIB}]
    assert peak["nearest_detailed"]["step"] == 66
    assert {part["bytes"] for part in peak["nearest_detailed"]["parts"]} == {GIB}


def test_steps_come_one_object_a_step(server: RunningServer, long_run: Agent) -> None:
    steps = server.get(f"/runs/{long_run.run}/steps")
    assert [step["step"] for step in steps] == list(range(1, 501))
    assert {"step", "peak_allocated_bytes", "peak_reserved_bytes", "phases", "seconds", "foreign_reset"} <= steps[
        0
    ].keys()
    assert steps[0]["seconds"] == pytest.approx(0.1)
    assert steps[0]["phases"]["forward"]["peak_allocated_bytes"] == 2 * GIB
    assert "eval" not in steps[0]["phases"], "what is not known is left out"
    assert [s["step"] for s in server.get(f"/runs/{long_run.run}/steps", **{"from": 20, "to": 22})] == [20, 21, 22]
    assert [s["step"] for s in server.get(f"/runs/{long_run.run}/steps", limit=2)] == [499, 500]


@pytest.mark.parametrize("name", RUN_FIGURES)
@pytest.mark.parametrize("x", ["time", "step"])
def test_each_figure_is_drawn_for_a_run_with_data_and_for_one_without(
    server: RunningServer, long_run: Agent, name: str, x: str
) -> None:
    drawn = server.get(f"/runs/{long_run.run}/figures/{name}", x=x, points=200)
    assert drawn["figure"].keys() >= {"data", "layout"}
    assert drawn["window"]["rank"] == 0
    json.dumps(drawn, allow_nan=False)
    empty = Agent()
    server.send(empty)
    assert "figure" in server.get(f"/runs/{empty.run}/figures/{name}", x=x)


def test_a_thinned_stack_has_the_numbers_of_every_step(server: RunningServer, long_run: Agent) -> None:
    peaks = [step["peak_allocated_bytes"] for step in server.get(f"/runs/{long_run.run}/steps")]

    def numbers(points: int) -> Any:
        return server.get(f"/runs/{long_run.run}/figures/stack", x="step", points=points)["figure"]["layout"]["meta"]

    assert numbers(20)["levels"] == numbers(4000)["levels"]
    assert numbers(20)["levels"]["allocated"] == {"last": peaks[-1], "peak": max(peaks), "highest": max(peaks)}
    assert numbers(20)["peak"]["step"] == 1 + peaks.index(max(peaks))


def test_the_peak_is_what_the_stack_has_at_its_highest(server: RunningServer, long_run: Agent) -> None:
    found = server.get(f"/runs/{long_run.run}/peak")
    meta = server.get(f"/runs/{long_run.run}/figures/stack")["figure"]["layout"]["meta"]
    levels = {level["level"]: level["total_bytes"] for level in found["levels"]}
    assert levels == {level: numbers["peak"] for level, numbers in meta["levels"].items()}
    assert found["step"] == meta["peak"]["step"]
    empty = Agent()
    server.send(empty)
    assert server.get(f"/runs/{empty.run}/peak")["levels"] == []


@pytest.mark.parametrize("name", COMPARE_FIGURES)
def test_each_figure_of_several_runs_is_drawn(server: RunningServer, long_run: Agent, name: str) -> None:
    other = Agent(name="other")
    server.send(other, other.steps(20))
    answer = server.get(f"/compare/figures/{name}", runs=f"{other.run},{long_run.run}", base=long_run.run)
    assert [run["run"] for run in answer["window"]["runs"]] == [long_run.run, other.run]


def test_runs_are_compared_with_the_baseline_first(server: RunningServer) -> None:
    half = Agent(name="half", config={"batch_size": 4}, torch="2.12.0")
    whole = Agent(name="whole", config={"batch_size": 8})
    server.send(half, half.steps(20, peak_allocated_bytes=GIB, duration_ns=SECOND * 2))
    server.send(whole, whole.steps(20, peak_allocated_bytes=2 * GIB, duration_ns=SECOND), whole.ended())
    answer = server.get("/compare", runs=f"{half.run},{whole.run}", base=whole.run)
    assert [row["run"] for row in answer["rows"]] == [whole.run, half.run]
    assert answer["rows"][0]["saved_fraction"] == 0
    assert answer["rows"][1]["saved_fraction"] == pytest.approx(0.5)
    assert answer["rows"][1]["step_time_ratio"] == pytest.approx(2, rel=0.003)
    assert {"name": "config.batch_size", "values": [8, 4]} in answer["differences"]
    settings = {one["name"]: one["values"] for one in answer["settings"]}
    assert len(settings) > len(answer["differences"]) and all(len(values) == 2 for values in settings.values())
    assert settings["python"][0] == settings["python"][1] is not None
    assert all(one["values"] == settings[one["name"]] for one in answer["differences"])
    assert "python" not in {one["name"] for one in answer["differences"]}
    assert {reason["kind"] for reason in answer["rows"][1]["reasons"]} == {"running", "torch", "batch"}
    result = " ".join(answer["warnings"])
    assert "batch_size" in result and "PyTorch 2.12.0" in result and "half: still running" in result


def test_a_run_is_renamed_tagged_pinned_and_what_is_changed_stays(server: RunningServer) -> None:
    agent = Agent(name="before")
    server.send(agent)
    changed = server.http.patch(f"/runs/{agent.run}", json={"name": "after", "tags": ["a", "b", "a"], "pinned": True})
    assert changed.status_code == 200
    row = changed.json()
    assert (row["name"], row["tags"], row["pinned"]) == ("after", ["a", "b"], True)
    server.send(agent, agent.attached, agent.samples(1))
    assert server.get(f"/runs/{agent.run}")["name"] == "after", "the agent does not rename it back"
    for wrong in ({"name": ""}, {"nonsense": 1}, {"tags": "a"}, [], {"pinned": "perhaps"}):
        answer = server.http.patch(f"/runs/{agent.run}", json=wrong)
        assert answer.status_code == 422, wrong
        assert answer.headers["content-type"] == "application/problem+json"


def test_a_note_is_plain_text_that_the_agent_does_not_change(server: RunningServer) -> None:
    agent = Agent(name="noted")
    server.send(agent)
    path = f"/runs/{agent.run}"
    assert server.get(path)["note"] == ""
    text = "batch 32 <b>fails</b>\nlr = 3e-4"
    assert server.http.patch(path, json={"note": f"  {text}\n"}).json()["note"] == text
    server.send(agent, agent.attached, agent.samples(1))
    assert server.get(path)["note"] == text
    assert next(row for row in server.get("/runs")["runs"] if row["run_id"] == agent.run)["note"] == text
    assert server.http.patch(path, json={"note": "x" * 2001}).status_code == 422
    assert server.http.patch(path, json={"note": " "}).json()["note"] == ""


def test_a_live_run_is_not_deleted_and_an_ended_one_is(server: RunningServer) -> None:
    agent = Agent()
    server.send(agent, agent.samples(2))
    assert server.http.delete(f"/runs/{agent.run}").status_code == 409
    server.send(agent, agent.ended())
    assert server.http.delete(f"/runs/{agent.run}").status_code == 204
    assert server.http.get(f"/runs/{agent.run}").status_code == 404
    again = server.post(agent.body(agent.samples(2)))
    assert again.json()["type"] == "urn:vramscope:problem:unknown-session"


def test_health_metrics_server_and_the_api_page_answer(server: RunningServer) -> None:
    assert server.get("/health") == {"status": "ok"}
    answer = server.get("/server")
    assert {
        "version",
        "wire",
        "plotly_py",
        "plotly_js",
        "database",
        "retention",
        "address",
        "compiling",
        "problems",
    } <= answer.keys()
    assert answer["database"]["kind"] == "sqlite"
    assert answer["database"]["writable"] is True
    assert answer["address"] == server.url
    metrics = server.http.get(f"{server.url}/metrics").text
    for name in (
        "batches_total",
        "values_total",
        "commit_seconds_sum",
        "queue_length",
        "database_bytes",
        'runs{state="running"}',
    ):
        assert f"vramscope_{name}" in metrics, name
    page = server.http.get("/docs").text
    assert "/api/v1/runs/{run}/series" in page
    assert "http://" not in page and "https://" not in page, "nothing is fetched from elsewhere"


def test_many_ranks_and_devices_are_drawn_each_for_itself(server: RunningServer) -> None:
    zero = Agent(world_size=2, devices=2)
    one = Agent(zero.run, rank=1, world_size=2, devices=2)
    for agent in (zero, one):
        server.send(agent, *(agent.samples(2, device=d, allocated_bytes=100 * agent.rank + d) for d in (0, 1)))
    seen: dict[Any, int] = {}
    for rank in (0, 1):
        for device in (0, 1):
            answer = server.get(f"/runs/{zero.run}/series", names="allocated_bytes", rank=rank, device=device)
            seen[rank, device] = answer["series"]["allocated_bytes"]["value"][0]
    assert seen == {(0, 0): 0, (0, 1): 1, (1, 0): 100, (1, 1): 101}
    assert server.get(f"/runs/{zero.run}/series", names="step")["rank"] == 0


def test_a_mistake_of_ours_is_told_by_a_number_and_keeps_its_text_to_the_log(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("the password is 1234")

    monkeypatch.setattr("vramscope_server.api.runs.list_runs", broken)
    answer = server.http.get("/runs")
    problem = answer.json()
    assert (answer.status_code, problem["type"]) == (500, "urn:vramscope:problem:fault")
    assert "1234" not in answer.text
    assert "content-security-policy" in answer.headers
    assert any(problem["id"] in record.getMessage() for record in caplog.records)
    assert server.get("/health") == {"status": "ok"}


def test_a_database_that_cannot_be_read_is_told_as_such(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    import sqlite3

    import sqlalchemy as sa

    def broken(*_: object, **__: object) -> None:
        raise sa.exc.OperationalError("SELECT", None, sqlite3.OperationalError("disk I/O error"))

    monkeypatch.setattr("vramscope_server.api.runs.list_runs", broken)
    answer = server.http.get("/runs")
    assert (answer.status_code, answer.json()["type"]) == (503, "urn:vramscope:problem:storage")
    assert "I/O" in answer.json()["detail"]


def test_findings_of_every_rank_are_shown(server: RunningServer) -> None:
    """What a rank keeps on another's device only that rank knows."""
    ranks = [Agent(run="shared00000000ff", rank=rank, world_size=3) for rank in range(3)]
    for agent, kinds in zip(ranks, (["empty-cache"], ["memory-on-other-ranks-device"], ["empty-cache"]), strict=True):
        findings = [
            messages.Pitfall(kind=kind, text=f"{kind} of rank {agent.rank}", advice="", first_step=2) for kind in kinds
        ]
        techniques = messages.Techniques(time_ns=agent.start_ns, step=2, techniques=[], findings=findings)
        server.send(agent, agent.steps(3), techniques)
    assert [finding["text"] for finding in server.get("/runs/shared00000000ff")["findings"]] == [
        "empty-cache of rank 0",
        "memory-on-other-ranks-device of rank 1",
    ]


@pytest.mark.parametrize("points", [20, 800])
def test_phases_add_up_to_the_median_step(server: RunningServer, points: int) -> None:
    """Thinned rows gave an evaluation in one step of a hundred the weight of all."""
    agent = Agent()
    evaluates = np.arange(3000) % 100 == 50
    first = np.arange(3000) == 0
    columns = {
        "data_ns": np.full(3000, SECOND // 100),
        "forward_ns": np.where(first, 60 * SECOND, 3 * SECOND // 100),
        "backward_ns": np.full(3000, 6 * SECOND // 100),
        "optimizer_ns": np.full(3000, 2 * SECOND // 100),
        "other_ns": np.where(evaluates, SECOND // 50, -1),
        "eval_ns": np.where(evaluates, 5 * SECOND, -1),
    }
    server.send(agent, agent.steps(3000, **{name: values.tolist() for name, values in columns.items()}))
    figure = server.get(f"/runs/{agent.run}/figures/phases?x=step&points={points}")["figure"]
    bars = {trace["meta"]["label"]: trace for trace in figure["data"] if trace.get("yaxis", "y") == "y"}
    times = {label: float(trace["text"][0]) for label, trace in bars.items()}
    assert {label: times[label] for label in ("data", "forward", "backward", "optimizer")} == {
        "data": 10.0, "forward": 30.0, "backward": 60.0, "optimizer": 20.0,
    }  # fmt: skip
    assert sum(times.values()) == pytest.approx(120.0)


def test_a_run_that_has_begun_may_get_a_name_from_its_agent_but_never_loses_the_users(server: RunningServer) -> None:
    agent = Agent(name="train 12:00")
    server.send(agent, agent.steps(2))
    server.send(agent, msgspec.structs.replace(agent.attached, name="from the framework"))
    assert server.get(f"/runs/{agent.run}")["name"] == "from the framework"
    server.http.patch(f"/runs/{agent.run}", json={"name": "mine"}).raise_for_status()
    server.send(agent, msgspec.structs.replace(agent.attached, name="another"))
    assert server.get(f"/runs/{agent.run}")["name"] == "mine"


def test_a_text_is_explained_without_a_run(server: RunningServer) -> None:
    text = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.65 GiB"
    text += " of which 1.04 GiB is free. Of the allocated memory 19.72 GiB is allocated by PyTorch, and 2.41 GiB is reserved"
    text += " by PyTorch but unallocated."
    found = server.http.post("/oom/text", json={"text": f"noise\n{text}\n"}).json()
    assert (found["cause"], found["certain"], found["errors"]) == ("fragmentation", True, 1)
    assert {"name": "requested", "bytes": 2 << 30} in found["numbers"]
    nothing = server.http.post("/oom/text", json={"text": "Epoch 1"}).json()
    assert (nothing["cause"], nothing["sentence"], nothing["numbers"]) == (None, None, [])
    for text in ("", "x" * 200_001):
        refused = server.http.post("/oom/text", json={"text": text})
        assert (refused.status_code, refused.json()["field"]) == (422, "text")
