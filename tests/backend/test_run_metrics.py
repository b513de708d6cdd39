"""Metrics of running runs in ``/metrics``: their values, their labels, their number, and that they end with the run."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from running import PATIENCE_SECONDS, RunningServer
from wire_maker import GIB, Agent

from vramscope.protocol import series
from vramscope_server.metrics.run_metrics import COUNTS, PEAKS, SAMPLED
from vramscope_server.store.project_scope import ProjectScope

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs" / "deployment.md"
DASHBOARD = ROOT / "backend" / "monitoring" / "grafana" / "vramscope.json"
Start = Callable[..., RunningServer]
Lines = dict[tuple[str, str, str, str], float]
"""Values by metric without ``vramscope_run_``, run, rank and device."""


def scraped(server: RunningServer, **headers: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Samples of all metrics of runs, by name."""
    answer = server.http.get(f"{server.url}/metrics", headers=headers)
    assert answer.status_code == 200, answer.text
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(answer.text):
        for one in family.samples:
            if one.name.startswith("vramscope_run_"):
                found.setdefault(one.name.removeprefix("vramscope_run_"), []).append((one.labels, one.value))
    return found


def lines(server: RunningServer, **headers: str) -> Lines:
    return {
        (name, labels["run"], labels["rank"], labels.get("device", "")): value
        for name, several in scraped(server, **headers).items()
        for labels, value in several
        if labels
    }


def test_each_device_has_its_newest_sample_and_each_rank_its_totals(start_server: Start) -> None:
    server = start_server()
    zero = Agent(world_size=2, devices=2)
    one = Agent(zero.run, rank=1, world_size=2)
    nvml = {"device_used_bytes": 9 * GIB, "gpu_utilization_percent": [70, 80, 90, series.UNKNOWN]}
    server.send(zero, zero.samples(4, allocated_bytes=[1, 2, 4, 3], ooms=[0, 0, 1, 1], **nvml))
    server.send(zero, zero.samples(4, device=1, allocated_bytes=11), zero.steps(3, at=1.0))
    server.send(one, one.samples(4, allocated_bytes=21))
    server.send(
        zero, zero.samples(2, at=-9.0, allocated_bytes=77), zero.samples(2, at=2.0, allocated_bytes=series.UNKNOWN)
    )
    run = zero.run
    assert lines(server) == {
        ("allocated_bytes", run, "0", "0"): 3,
        ("allocated_bytes", run, "0", "1"): 11,
        ("allocated_bytes", run, "1", "0"): 21,
        **{("reserved_bytes", run, *place): 2 * GIB for place in (("0", "0"), ("0", "1"), ("1", "0"))},
        ("device_used_bytes", run, "0", "0"): 9 * GIB,
        ("gpu_utilization_percent", run, "0", "0"): 90,
        **{("device_capacity_bytes", run, *place): 80 * GIB for place in (("0", "0"), ("0", "1"), ("1", "0"))},
        ("peak_allocated_bytes", run, "0", ""): 3 * GIB + 3 * 512,
        ("peak_allocated_bytes", run, "1", ""): 21,
        ("peak_reserved_bytes", run, "0", ""): 4 * GIB,
        ("peak_reserved_bytes", run, "1", ""): 2 * GIB,
        **{("steps_total", run, rank, ""): 3 for rank in ("0", "1")},
        ("out_of_memory_errors_total", run, "0", ""): 1,
    }
    detail = server.get(f"/runs/{run}")
    assert [row["peak_allocated_bytes"] for row in detail["ranks"]] == [3 * GIB + 3 * 512, 21], "as the API has them"


def test_a_value_that_is_not_measured_any_more_ends(start_server: Start) -> None:
    server = start_server()
    agent = Agent()
    server.send(agent, agent.samples(2, gpu_utilization_percent=50))
    server.send(agent, agent.samples(2, at=20.0))
    assert ("gpu_utilization_percent", agent.run, "0", "0") in lines(server)
    server.send(agent, agent.samples(2, at=60.0))
    assert ("gpu_utilization_percent", agent.run, "0", "0") not in lines(server)
    assert ("allocated_bytes", agent.run, "0", "0") in lines(server)


def test_a_session_does_not_show_values_of_the_one_before(start_server: Start) -> None:
    server = start_server()
    first = Agent()
    server.send(first, first.samples(2, allocated_bytes=5))
    second = Agent(first.run, start_ns=first.start_ns + 5_000_000_000)
    server.send(second)
    assert ("allocated_bytes", first.run, "0", "0") not in lines(server)
    server.send(second, second.samples(2, allocated_bytes=6))
    assert lines(server)["allocated_bytes", first.run, "0", "0"] == 6


def test_the_metrics_of_a_run_end_with_it(start_server: Start) -> None:
    server = start_server(lost_after_seconds=1.0)
    ended, silent = Agent(), Agent()
    for agent in (ended, silent):
        server.send(agent, agent.samples(2))
    assert {key[1] for key in lines(server)} == {ended.run, silent.run}
    server.send(ended, ended.ended())
    assert {key[1] for key in lines(server)} <= {silent.run}
    deadline = time.monotonic() + PATIENCE_SECONDS
    while lines(server):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert server.get(f"/runs/{silent.run}")["state"] == "lost"
    assert server.services.latest_samples.of_rank(silent.run, 0, 0) == {}, "nothing stays in memory"


def test_a_lost_rank_of_a_running_run_has_no_metrics(start_server: Start) -> None:
    server = start_server()
    zero = Agent(world_size=2)
    one = Agent(zero.run, rank=1, world_size=2)
    for agent in (zero, one):
        server.send(agent, agent.samples(2))
    server.send(one, one.ended())
    assert server.get(f"/runs/{zero.run}")["state"] == "running"
    assert {key[2] for key in lines(server)} == {"0"}


def test_the_number_is_bounded_and_the_newest_runs_come_first(start_server: Start) -> None:
    server = start_server(metrics_ranks=2)
    agents = [Agent(start_ns=time.time_ns() + number) for number in range(3)]
    for agent in agents:
        server.send(agent, agent.samples(2))
    assert {key[1] for key in lines(server)} == {agents[1].run, agents[2].run}
    assert scraped(server)["ranks_left_out"] == [({}, 1)]


def test_hostile_names_stay_in_their_label(start_server: Start) -> None:
    name = 'a"} 1\nvramscope_runs{state="fake"} 9 \\'
    server = start_server()
    agent = Agent(name=name, project='p"\n')
    server.send(agent, agent.samples(2))
    ((labels, _),) = scraped(server)["allocated_bytes"]
    assert (labels["name"], labels["project"]) == (name, 'p"\n')
    assert '\nvramscope_runs{state="fake' not in server.http.get(f"{server.url}/metrics").text


def test_a_bound_token_sees_the_runs_of_its_projects(start_server: Start) -> None:
    server = start_server(require_tokens=True)
    tokens = server.services.tokens
    everything = {"Authorization": f"Bearer {tokens.make('all', 'write', ProjectScope.of(None))[1]}"}
    bound = {"Authorization": f"Bearer {tokens.make('nlp', 'read', ProjectScope.of(['nlp']))[1]}"}
    agents = [Agent(project=project) for project in ("nlp", "vision")]
    for agent in agents:
        assert server.post(agent.body(agent.samples(2)), **everything).status_code == 200
    assert {key[1] for key in lines(server, **everything)} == {agent.run for agent in agents}
    assert {key[1] for key in lines(server, **bound)} == {agents[0].run}
    assert scraped(server, **bound)["ranks_left_out"] == [({}, 0)]


def test_the_docs_name_each_metric_of_a_run() -> None:
    named = re.findall(r"^\| `vramscope_run_(\w+)`", DOCS.read_text(), re.MULTILINE)
    assert set(named) == {
        *SAMPLED,
        "device_capacity_bytes",
        *(f"{name}_bytes" for name, _ in PEAKS),
        *(f"{name}_total" for name in COUNTS),
    }


def test_the_dashboard_reads_metrics_and_labels_that_exist(start_server: Start) -> None:
    server = start_server()
    agent = Agent()
    values = {"device_used_bytes": GIB, "gpu_utilization_percent": 50, "ooms": 1}
    server.send(agent, agent.samples(4, **values), agent.steps(3))
    labels: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(server.http.get(f"{server.url}/metrics").text):
        for one in family.samples:
            labels.setdefault(one.name, set()).update(one.labels)
    dashboard = json.loads(DASHBOARD.read_text())
    panels = dashboard["panels"]
    asked = [(target["expr"], target["legendFormat"]) for panel in panels for target in panel["targets"]]
    asked += [(one["query"]["query"], "") for one in dashboard["templating"]["list"] if one["type"] == "query"]
    used: set[str] = set()
    for expression, legend in asked:
        names = re.findall(r"vramscope_\w+", expression)
        assert names and set(names) <= labels.keys(), expression
        filters = re.findall(r"(\w+)=~?\"", expression) + re.findall(r"\{\{(\w+)\}\}", legend)
        filters += re.findall(r"label_values\(.*, (\w+)\)", expression)
        assert all(set(filters) <= labels[name] for name in names), (expression, legend)
        used.update(names)
    assert {name for name in labels if name.startswith("vramscope_run_")} <= used, "each metric of a run is shown"
    assert len({panel["id"] for panel in panels}) == len(panels)
    linked = [link["url"] for panel in panels for link in panel["fieldConfig"]["defaults"].get("links", [])]
    assert set(linked) == {"${server}/runs/${__field.labels.run}"}
