"""Comparisons through the API: many runs, runs of all kinds, text to take along, a baseline that is gone."""

from __future__ import annotations

import csv
import io
import json
import time

import msgspec
import pytest
from running import RunningServer
from wire_maker import GIB, SECOND, Agent

from vramscope.protocol import messages
from vramscope_server.__main__ import main

MIB = 1 << 20


def report_of(agent: Agent, *chips: tuple[str, str], **details: dict[str, messages.Scalar]) -> messages.Techniques:
    techniques = [
        messages.Technique(kind=kind, chip=chip, observed="seen", detail=details.get(kind, {})) for kind, chip in chips
    ]
    return messages.Techniques(time_ns=agent.start_ns, step=1, techniques=techniques)


def test_techniques_device_peak_batch_and_wall_time_come_from_what_was_sent(server: RunningServer) -> None:
    base, other = Agent(name="base"), Agent(name="other")
    details = {"batch": {"batch_size": 16}, "gradient_accumulation": {"micro_steps": 4}}
    for agent, scale, chips in ((base, 2, ()), (other, 1, (("gradient_checkpointing", "checkpointing"),))):
        newer = ("weights_on_tape", "on tape")  # of a newer agent: not known here, and told by its chip all the same
        every = (newer, ("batch", "batch 16"), ("gradient_accumulation", "accumulation 4"), *chips)
        seen = agent.samples(
            allocated_bytes=GIB // 2,
            process_device_bytes=scale * 5 * GIB,
            device_used_bytes=scale * 5 * GIB + 700 * MIB,
        )
        steps = agent.steps(20, peak_allocated_bytes=scale * GIB, duration_ns=SECOND // 2)
        server.send(agent, report_of(agent, *every, **details), seen, steps)
        server.send(agent, agent.ended(at=40.0))
    first, second = server.get("/compare", runs=f"{base.run},{other.run}")["rows"]
    assert second["label"] == "checkpointing" and second["techniques"][-1] == "checkpointing"
    assert "on tape" in first["techniques"] and "on tape" in second["techniques"]
    assert (second["peak_device_bytes"], second["peak_device_of"]) == (5 * GIB, "process")
    assert second["saved_fraction"] == second["device_saved_fraction"] == 0.5
    assert (second["effective_batch"], second["accumulation"]) == (64, 4)
    assert second["samples_per_second"] == pytest.approx(128, rel=0.003)
    assert second["wall_seconds"] == pytest.approx(40) and second["wall_time_ratio"] == pytest.approx(1)
    assert {reason["kind"] for reason in first["reasons"]} == {"tenants"}, "700 MiB are of somebody else"


def test_a_rank_with_samples_alone_makes_the_peak_a_lower_bound(server: RunningServer) -> None:
    base, mixed = Agent(name="base"), Agent(name="mixed", world_size=2)
    other = Agent(name="mixed", run=mixed.run, rank=1, world_size=2)
    unknown = dict.fromkeys(("peak_allocated_bytes", "peak_reserved_bytes", "forward_peak_allocated_bytes"), -1)
    for agent, peaks in ((base, {}), (mixed, {}), (other, unknown)):
        server.send(agent, agent.samples(3), agent.steps(20, **peaks), agent.ended())
    first, second = server.get("/compare", runs=f"{base.run},{mixed.run}")["rows"]
    assert first["reasons"] == []
    assert {"kind": "sampled", "text": "the peak is a lower bound: a rank has samples alone"} in second["reasons"]


def test_a_run_that_went_on_counts_the_time_of_both_attempts_and_not_the_night_between(server: RunningServer) -> None:
    start = time.time_ns() - 100_000 * SECOND
    first = Agent(name="resumed", start_ns=start)
    server.send(first, first.steps(20), sent_ns=start + 30 * SECOND)
    server.send(first, first.ended("failed", at=30.0))
    second = Agent(first.run, name="resumed", start_ns=start + 50_000 * SECOND)
    server.send(second, second.steps(20, first=21))
    server.send(second, second.ended(at=70.0))
    assert server.get(f"/runs/{first.run}")["trained_seconds"] == pytest.approx(100)


def test_an_emulated_gpu_is_known_by_its_uuid_or_its_name(server: RunningServer) -> None:
    """Its times are shown as what they are worth; its memory is the allocator's own."""
    cards = {
        "real": ("NVIDIA H100 80GB HBM3", "GPU-3f1c8c57-6174-6564-2d67-70752d303030"),
        "by uuid": ("NVIDIA H100 80GB HBM3", "GPU-656d756c-6174-6564-2d67-70752d303031"),
        "by name": ("emulated H100 80GB", None),
    }
    agents = [Agent(name=name) for name in cards]
    for agent, (card, uuid) in zip(agents, cards.values(), strict=True):
        device = messages.Device(index=0, name=card, uuid=uuid, total_bytes=80 * GIB)
        agent.attached = msgspec.structs.replace(agent.attached, devices=[device])
        server.send(agent, agent.steps(20), agent.ended(at=20.0))
    rows = server.get("/compare", runs=",".join(agent.run for agent in agents))["rows"]
    assert [row["emulated"] for row in rows] == [False, True, True]
    assert all(row["step_time_ratio"] is not None for row in rows), "told, and marked"
    listed = {row["run_id"]: row["device"] for row in server.get("/runs")["runs"]}
    assert [listed[agent.run] for agent in agents] == [
        "NVIDIA H100 80GB HBM3",
        "NVIDIA H100 80GB HBM3 (emulated)",
        "emulated H100 80GB",
    ]


def test_a_loss_that_an_emulated_gpu_did_not_compute_is_unknown(server: RunningServer) -> None:
    """Computed values read as 0 there. A loss of 0 on a card is a loss."""
    for name, values, known in (
        ("emulated H100 80GB", [0.0, 0.0], False),
        ("emulated H100 80GB", [2.0, 1.0], True),
        ("NVIDIA H100 80GB HBM3", [0.0, 0.0], True),
    ):
        agent = Agent()
        device = messages.Device(index=0, name=name, uuid=None, total_bytes=80 * GIB)
        agent.attached = msgspec.structs.replace(agent.attached, devices=[device])
        server.send(agent, agent.steps(2), agent.scalars(loss=list(values)))
        assert (server.get(f"/runs/{agent.run}")["loss"] is not None) == known


def test_fifty_runs_of_all_kinds_at_once(server: RunningServer) -> None:
    """With steps, with one, with none; ended, failed, running; all in a second."""
    agents = [Agent(name=f"run {number} <b>|_%&") for number in range(50)]
    for number, agent in enumerate(agents):
        server.send(agent, *([agent.steps(number % 30)] if number % 30 else []), agent.samples(2))
        if number % 3:
            server.send(agent, agent.ended("failed" if number % 3 == 2 else "finished", error_type="E"))
    named = ",".join(agent.run for agent in agents)
    began = time.monotonic()
    answer = server.get("/compare", runs=named, base=agents[7].run)
    assert time.monotonic() - began < 5
    assert [row["run"] for row in answer["rows"]] == [agents[7].run, *(a.run for a in agents if a is not agents[7])]
    kinds = {reason["kind"] for row in answer["rows"] for reason in row["reasons"]}
    assert {"running", "failed", "steps"} <= kinds
    for form in ("markdown", "latex", "csv"):
        text = server.http.get("/compare/table", params={"runs": named, "format": form})
        assert text.status_code == 200 and text.headers["content-type"].endswith("charset=utf-8")
    assert len(list(csv.reader(io.StringIO(text.text)))) == 51
    for name in ("peaks_over_steps", "peaks_side_by_side", "memory_against_time"):
        assert server.http.get(f"/compare/figures/{name}", params={"runs": named}).status_code == 200
    one_more = Agent()
    server.send(one_more, one_more.samples(1))
    refused = server.http.get("/compare", params={"runs": f"{named},{one_more.run}"})
    assert refused.status_code == 422 and refused.json()["expected"] == "1 to 50 runs"


def test_a_baseline_that_is_gone_is_called_so(server: RunningServer) -> None:
    base, other = Agent(name="gone soon"), Agent(name="stays")
    for agent in (base, other):
        server.send(agent, agent.steps(20), agent.ended())
    assert server.http.delete(f"/runs/{base.run}").status_code == 204
    for path in ("/compare", "/compare/table", "/compare/figures/memory_against_time"):
        answer = server.http.get(path, params={"runs": f"{base.run},{other.run}", "base": base.run})
        assert answer.status_code == 404
        assert answer.json()["field"] == "base" and "was deleted, or never existed here" in answer.json()["detail"]


def test_the_command_prints_what_the_page_copies(server: RunningServer, capsys: pytest.CaptureFixture[str]) -> None:
    base, other = Agent(name="a base"), Agent(name="an\x1b[31mother")
    for agent in (base, other):
        server.send(agent, report_of(agent, ("mixed_precision", agent.run[-2:])), agent.steps(20), agent.ended())
    for form in ("markdown", "latex", "csv"):
        assert main(["compare", base.run, other.run, "--format", form, "--server", server.url]) == 0
        page = server.http.get("/compare/table", params={"runs": f"{base.run},{other.run}", "format": form}).text
        out = capsys.readouterr().out
        assert out.splitlines() == page.replace("\x1b", "\\x1b").splitlines(), form
    assert main(["compare", base.run, other.run, "--format", "word", "--server", server.url]) == 2


def test_seeds_are_one_row_for_people_and_a_line_each_for_programs(
    server: RunningServer, capsys: pytest.CaptureFixture[str]
) -> None:
    def finished(name: str, seed: int, peak: int) -> Agent:
        agent = Agent(name=f"{name} {seed}", config={"kind": name, "seed": seed}, git_commit="abc")
        server.send(agent, agent.steps(20, peak_allocated_bytes=peak * MIB), agent.ended())
        return agent

    base = [finished("wide", seed, 1000 + seed) for seed in (1, 2, 3)]
    runs = [*base, finished("narrow", 1, 500)]
    named = {"runs": ",".join(agent.run for agent in runs), "base": base[0].run}
    answer = server.get("/compare", **named)
    assert [row["run"] for row in answer["rows"]] == [agent.run for agent in runs], "a row a run, as always"
    assert [(row["title"], row["n"]) for row in answer["together"]] == [("wide (3 runs)", 3), ("narrow 1", 1)]
    assert answer["together"][0]["peak_allocated_bytes"] == 1002 * MIB
    words = ["compare", *(agent.run for agent in runs), "--server", server.url]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "wide (3 runs)" in out and "1,002 MiB ± 2.48 MiB" in out and "Student's t" in out
    assert main([*words, "--each"]) == 0
    out = capsys.readouterr().out
    assert "wide 2" in out and "±" not in out
    assert main([*words, "--format", "markdown", "--each"]) == 0
    assert capsys.readouterr().out.count("\n| ") == 1 + 4, "the rule and a line a run"
    table = server.http.get("/compare/table", params=named | {"format": "csv"}).text
    lines = list(csv.DictReader(io.StringIO(table, newline="")))
    assert [line["n"] for line in lines] == ["3", "3", "3", "1"]
    assert main([*words, "--json"]) == 0
    assert [row["run"] for row in json.loads(capsys.readouterr().out)] == [agent.run for agent in runs]


def test_any_setting_forms_groups_with_mean_and_range(server: RunningServer) -> None:
    def finished(kind: str, lr: float, peak: int, tags: list[str]) -> Agent:
        agent = Agent(name=f"{kind} {lr}", config={"kind": kind, "lr": lr}, tags=tags)
        server.send(agent, agent.steps(20, peak_allocated_bytes=peak * MIB), agent.ended())
        return agent

    runs = [
        finished("wide", 0.1, 1000, ["a"]),
        finished("narrow", 0.1, 500, ["b"]),
        finished("narrow", 0.2, 700, ["a"]),
    ]
    named = {"runs": ",".join(agent.run for agent in runs)}
    kinds = server.get("/compare", **named, group="config.kind")["together"]
    assert [(row["group"], row["n"]) for row in kinds] == [("wide", 1), ("narrow", 2)]
    assert kinds[1]["peak_allocated_bytes"] == 600 * MIB and kinds[1]["saved_fraction"] == pytest.approx(0.4)
    spread = kinds[1]["spreads"]["peak_allocated_bytes"]
    assert (spread["low"], spread["high"], spread["kind"]) == (500 * MIB, 700 * MIB, "range")
    answer = server.get("/compare", **named, group="tags")
    assert [row["group"] for row in answer["together"]] == ["a", "b"]
    assert {"tags", "config.kind", "config.lr"} <= {one["name"] for one in answer["differences"]}
    assert "narrow (2 runs)" in server.http.get("/compare/table", params=named | {"group": "config.kind"}).text
    refused = server.http.get("/compare", params=named | {"group": "config.nothing"})
    assert refused.status_code == 422 and "config.kind" in refused.json()["expected"]


def test_a_group_has_the_number_of_losses_that_all_its_runs_share(server: RunningServer) -> None:
    def finished(kind: str, losses: int) -> Agent:
        agent = Agent(name=f"{kind} {losses}", config={"kind": kind})
        server.send(agent, agent.steps(20), agent.scalars(loss=[1.0 / (at + 1) for at in range(losses)]), agent.ended())
        return agent

    runs = [finished("even", 20), finished("even", 20), finished("odd", 20), finished("odd", 3)]
    named = {"runs": ",".join(agent.run for agent in runs), "group": "config.kind"}
    answer = server.get("/compare", **named)
    assert answer["rows"][2]["loss_of"] != answer["rows"][3]["loss_of"]
    assert [row["loss_of"] for row in answer["together"]] == [answer["rows"][0]["loss_of"], None]
    assert all(row["final_loss"] is not None for row in answer["together"])
