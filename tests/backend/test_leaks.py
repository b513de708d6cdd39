"""Leaks from the wire to the API: the newest look of each rank's newest process counts, on SQLite and on PostgreSQL."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st
from running import RunningServer
from wire_maker import GIB, SECOND, Agent, leak, scan

from vramscope.protocol import messages, series
from vramscope_server.analysis.leaks.verdict_text import leak_verdict
from vramscope_server.analysis.series.trend import trend
from vramscope_server.store import tables
from vramscope_server.store.leaks import held_together, merge_leaks

MIB = 1 << 20


@pytest.fixture
def stored(start_server: Callable[..., RunningServer], database_url: str) -> RunningServer:
    return start_server(database=database_url)


def leaks_of(server: RunningServer, agent: Agent, **parameters: Any) -> Any:
    return server.get(f"/runs/{agent.run}/leaks", **parameters)


def row_of(server: RunningServer, agent: Agent) -> Any:
    (row,) = [row for row in server.get("/runs")["runs"] if row["run_id"] == agent.run]
    return row


# ---- which look counts ----


def test_the_newest_look_replaces_the_one_before_and_a_late_one_does_not(stored: RunningServer) -> None:
    agent = Agent()
    stored.send(agent, scan(leak(), step=10))
    stored.send(agent, scan(leak(), leak(name="outputs", line=90), step=30), sequence=3)
    stored.send(agent, scan(step=20), sequence=2)
    stored.send(agent, scan(step=20), sequence=2)
    leaks = leaks_of(stored, agent)
    assert [found["name"] for found in leaks["leaks"]] == ["history", "outputs"]
    assert [seen["step"] for seen in leaks["scans"]] == [30]
    with stored.services.database.reader() as connection:
        assert connection.execute(sa.select(sa.func.count()).select_from(tables.scans)).scalar() == 1
    stored.send(agent, scan(step=40), sequence=4)
    leaks = leaks_of(stored, agent)
    assert (leaks["leaks"], leaks["scans"][0]["step"], leaks["verdict"]["level"]) == ([], 40, "none")
    row = row_of(stored, agent)
    assert (row["leaks"], row["leaked_bytes"], row["worst_leak"]) == (0, 0, None)


def test_a_fix_that_the_source_line_tells_comes_as_lines(stored: RunningServer) -> None:
    agent = Agent()
    told = leak(name="history", fix="item", source="    history.append(loss)")
    stored.send(agent, scan(told, leak(name="outputs", line=90, fix="item", source="keep(loss)"), step=10))
    found = {one["name"]: one for one in leaks_of(stored, agent)["leaks"]}
    assert found["history"]["fixed"] == ["    history.append(loss.item())"]
    assert (found["outputs"]["source"], found["outputs"]["fixed"]) == ("keep(loss)", [])


def test_what_a_process_held_died_with_it(stored: RunningServer) -> None:
    """A run that is taken up again: nobody has looked in the new process yet."""
    agent = Agent()
    stored.send(agent, agent.steps(2, graphs_alive=[3, 7]), scan(leak()), agent.ended("failed", at=2))
    assert row_of(stored, agent)["leaks"] == 1
    again = Agent(agent.run, start_ns=agent.start_ns + 60 * SECOND)
    stored.send(again, again.samples(2), sent_ns=time.time_ns() + 60 * SECOND)
    row = row_of(stored, agent)
    assert (row["leaks"], row["leaked_bytes"], row["worst_leak"]) == (None, None, None)
    assert leaks_of(stored, agent)["scans"] == []
    stored.send(agent, scan(leak(), step=900))
    assert row_of(stored, agent)["leaks"] is None, "a scan of the old process that arrives late does not count"
    stored.send(again, scan(leak(name="second")))
    assert [found["name"] for found in leaks_of(stored, agent)["leaks"]] == ["second"]


def test_it_is_still_known_after_a_restart(start_server: Callable[..., RunningServer], database_url: str) -> None:
    first = start_server(database=database_url)
    agent = Agent()
    first.send(agent, agent.steps(2, graphs_alive=5), scan(leak()))
    before, row = leaks_of(first, agent), row_of(first, agent)
    first.stop()
    second = start_server(database=database_url)
    assert leaks_of(second, agent) == before
    second.send(agent, agent.samples(1))  # the row is written again from what is known
    after = row_of(second, agent)
    names = ("leaks", "leaked_bytes", "worst_leak", "graphs_alive")
    assert [after[name] for name in names] == [row[name] for name in names] == [1, GIB, "growing", 5]


def test_a_deleted_run_leaves_no_look(stored: RunningServer) -> None:
    agent = Agent()
    stored.send(agent, scan(leak()), agent.ended())
    assert stored.http.delete(f"/runs/{agent.run}").status_code == 204
    with stored.services.database.reader() as connection:
        assert connection.execute(sa.select(sa.func.count()).select_from(tables.scans)).scalar() == 0


def test_text_that_only_one_database_would_take_is_kept_by_both(stored: RunningServer) -> None:
    """PostgreSQL takes no NUL in a text; a variable's ``repr`` may hold anything."""
    agent = Agent()
    odd = "a\x00b ☃ </script>"
    stored.send(agent, scan(leak(name=odd, chain=[odd], advice=odd), not_scanned=odd))
    leaks = leaks_of(stored, agent)
    assert leaks["leaks"][0]["chain"] == [odd]
    assert leaks["scans"][0]["not_scanned"] == odd


# ---- several ranks ----


def test_the_same_leak_on_several_ranks_is_one_entry_with_the_largest_figures(server: RunningServer) -> None:
    zero = Agent(world_size=3)
    ranks = [zero, *(Agent(zero.run, rank=rank, world_size=3) for rank in (1, 2))]
    server.send(ranks[0], scan(leak(held_bytes=100, exclusive_bytes=90, count=9, growth_bytes_per_step=None)))
    server.send(ranks[1], scan(leak(held_bytes=300, exclusive_bytes=10, count=3, holder="of rank 1")))
    server.send(ranks[2], scan(leak(name="own", line=None, file=None, held_bytes=50, exclusive_bytes=50)))
    leaks = leaks_of(server, zero)
    shared, own = leaks["leaks"]
    assert (shared["ranks"], own["ranks"]) == ([0, 1], [2])
    assert (shared["held_bytes"], shared["exclusive_bytes"], shared["count"]) == (300, 90, 9)
    assert shared["holder"] == "of rank 1", "words of the rank that holds most"
    assert shared["growth_bytes_per_step"] == GIB / 412
    assert leaks["leaked_bytes"] == 300, "of the rank where it is most, not of all cards together"
    assert server.get(f"/runs/{zero.run}")["leak_count"] == 2
    assert [seen["rank"] for seen in leaks["scans"]] == [0, 1, 2]


def test_growing_comes_first_then_what_holds_most(server: RunningServer) -> None:
    agent = Agent()
    server.send(
        agent,
        scan(
            leak("overlap", "output", held_bytes=8 * GIB, growth_bytes_per_step=None),
            leak("growing", "slow", held_bytes=2 * GIB, growth_bytes_per_step=10.0),
            leak("cycle", "node", held_bytes=9 * GIB, growth_bytes_per_step=None),
            leak("tensor-growth", "fast", held_bytes=GIB, growth_bytes_per_step=99.5),
        ),
    )
    assert [found["name"] for found in leaks_of(server, agent)["leaks"]] == ["fast", "slow", "node", "output"]
    assert row_of(server, agent)["worst_leak"] == "tensor-growth"


def test_of_steady_findings_the_fix_that_lowers_the_peak_most_comes_first(server: RunningServer) -> None:
    """A result that is retained beside nothing may be large, and its fix saves nothing."""
    agent = Agent()
    kept = [
        leak("overlap", name, growth_bytes_per_step=0.0, held_bytes=held, peak_effect_bytes=effect)
        for name, held, effect in (("large", 900, 0), ("small", 300, 300), ("unknown", 500, None))
    ]
    server.send(agent, scan(*kept))
    assert [one["name"] for one in leaks_of(server, agent)["leaks"]] == ["unknown", "small", "large"]


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000)), max_size=8))
def test_bytes_held_together_lie_between_the_largest_and_the_sum(sizes: list[tuple[int, int]]) -> None:
    leaks = [leak(name=f"n{i}", held_bytes=max(pair), exclusive_bytes=min(pair)) for i, pair in enumerate(sizes)]
    together = held_together(leaks)
    assert max((one.held_bytes for one in leaks), default=0) <= together <= sum(one.held_bytes for one in leaks)


def test_bytes_that_two_hold_together_count_once() -> None:
    """``loss`` and ``out`` hold the same graph; each has a little of its own."""
    assert held_together([leak(held_bytes=110, exclusive_bytes=10), leak(held_bytes=105, exclusive_bytes=5)]) == 115


def test_the_id_of_a_leak_stays_while_its_figures_change() -> None:
    (one,) = merge_leaks({0: scan(leak(count=1))})
    (two,) = merge_leaks({0: scan(leak(count=99, held_bytes=5))})
    (other,) = merge_leaks({0: scan(leak(line=88))})
    assert one["id"] == two["id"] != other["id"]


# ---- the API ----


def test_a_leak_comes_with_all_that_the_agent_told(server: RunningServer) -> None:
    agent = Agent()
    sent = leak()
    server.send(agent, scan(sent, not_scanned="7 of 9 holders: 250 ms were over"))
    leaks = leaks_of(server, agent)
    (found,) = leaks["leaks"]
    shown = [name for name in sent.__struct_fields__ if name != "fix"]  # its answer is "fixed"
    assert {name: found[name] for name in shown} == {name: msgspec.to_builtins(sent)[name] for name in shown}
    assert found["ranks"] == [0] and len(found["id"]) == 10
    assert "graphs of earlier steps" in found["kind_words"]
    (seen,) = leaks["scans"]
    assert seen["time_seconds"] == pytest.approx(time.time(), abs=30)
    assert (seen["step"], seen["tensors"], seen["leaks"]) == (412, 5310, 1)
    assert seen["not_scanned"].startswith("7 of 9")
    full = server.get(f"/runs/{agent.run}")
    assert [one["name"] for one in full["leaks"]] == ["history"]


def test_without_a_look_nothing_is_claimed(server: RunningServer) -> None:
    agent = Agent()
    server.send(agent, agent.steps(5))
    leaks = leaks_of(server, agent)
    assert (leaks["leaks"], leaks["scans"], leaks["leaked_bytes"], leaks["graphs_alive"]) == ([], [], None, None)
    assert leaks["verdict"]["level"] == "unknown"
    assert "has not scanned yet" in leaks["verdict"]["sentence"]
    assert leaks["floor"]["slope_bytes_per_step"] is None and leaks["floor"]["growing"] is None
    assert server.get(f"/runs/{agent.run}")["leaks"] is None
    server.send(agent, agent.ended())
    assert "has not scanned." in leaks_of(server, agent)["verdict"]["sentence"], "none is to come"


def test_where_nothing_trains_rounds_are_called_what_they_are(server: RunningServer) -> None:
    agent = Agent()
    kept = leak("tensor-growth", "predictions", age_steps=None, per="call", first_step=0, last_step=0)
    server.send(agent, scan(step=0, reason="the look after call 60"))
    leaks = leaks_of(server, agent)["verdict"]
    assert leaks["level"] == "none" and "No optimizer step has ended" in leaks["sentence"]
    server.send(agent, scan(kept, step=0, reason="the look after call 100"))
    leaks = leaks_of(server, agent)
    assert "keeps 412 tensors, more each call." in leaks["verdict"]["sentence"]
    assert re.search(r"It grows by .* per call\.", leaks["verdict"]["sentence"])
    assert leaks["leaks"][0]["per"] == "call"


def growing_run(
    server: RunningServer, growth: int, steps: int = 200, columns: dict[str, Any] | None = None, **attached: Any
) -> Agent:
    agent, columns = Agent(**attached), columns or {}
    floor = (10 * GIB + np.arange(steps) * growth).tolist()
    peak = (20 * GIB + np.arange(steps) * growth).tolist()
    alive = list(range(steps))
    server.send(
        agent, agent.steps(steps, after_step_bytes=floor, peak_allocated_bytes=peak, graphs_alive=alive, **columns)
    )
    return agent


def test_the_floors_slope_and_the_steps_until_memory_ends(server: RunningServer) -> None:
    agent = growing_run(server, 64 * MIB)
    leaks = leaks_of(server, agent)
    floor = leaks["floor"]
    assert floor["slope_bytes_per_step"] == pytest.approx(64 * MIB, rel=1e-6)
    assert floor["growing"] is True
    assert floor["room_bytes"] == 80 * GIB - (20 * GIB + 199 * 64 * MIB), "up to the peak, not up to the floor"
    assert floor["steps_to_out_of_memory"] == pytest.approx(floor["room_bytes"] / (64 * MIB), rel=1e-6)
    assert floor["seconds_to_out_of_memory"] == pytest.approx(floor["steps_to_out_of_memory"] / 10, rel=0.01)
    assert leaks_of(server, agent, to=100)["floor"]["room_bytes"] == floor["room_bytes"], "of now, whatever is shown"
    assert (leaks["graphs_alive"], leaks["verdict"]["level"]) == (199, "growth")
    assert "64.0 MiB per step" in leaks["verdict"]["sentence"]
    assert "out of memory after about 761 more steps (76 s)" in leaks["verdict"]["sentence"]
    slow = leaks_of(server, growing_run(server, 4 * MIB))
    assert re.search(r"out of memory after about 1\d,\d{3} more steps", slow["verdict"]["sentence"])


def test_a_run_that_has_ended_gets_no_forecast(server: RunningServer) -> None:
    agent = growing_run(server, 64 * MIB)
    server.send(agent, scan(leak(growth_bytes_per_step=60.0 * MIB)), agent.ended(), sequence=5)
    leaks = leaks_of(server, agent)
    assert leaks["floor"]["growing"] is True and leaks["floor"]["steps_to_out_of_memory"] is None
    assert leaks["verdict"]["sentence"].endswith("It grows by 60.0 MiB per step.")


@pytest.mark.parametrize(("full_gib", "forecast"), [(5, False), (100, True), (None, True)])
def test_a_bound_that_fits_the_card_ends_the_growth(
    server: RunningServer, full_gib: int | None, forecast: bool
) -> None:
    """A deque with maxlen, say."""
    agent = growing_run(server, 64 * MIB)
    full_bytes = None if full_gib is None else full_gib * GIB
    server.send(agent, scan(leak(growth_bytes_per_step=60.0 * MIB, full_bytes=full_bytes)))
    leaks = leaks_of(server, agent)
    assert (leaks["floor"]["steps_to_out_of_memory"] is not None) == forecast
    sentence = leaks["verdict"]["sentence"]
    assert ("out of memory after about" in sentence) == forecast
    words = {5: "5.00 GiB", 100: "100 GiB", None: None}[full_gib]
    assert (f"up to about {words} when it is full" in sentence) == (full_gib is not None)


@pytest.mark.parametrize(("step_bytes", "level"), [(2 << 10, "unknown"), (20 << 10, "growth")])
def test_a_few_hundred_kilobytes_in_a_small_model_are_no_alarm(
    server: RunningServer, step_bytes: int, level: str
) -> None:
    """A list that gets some numbers longer is a considerable share of a model of 1 MiB. It is reported all the same."""
    agent = Agent()
    floor = (MIB + np.arange(100) * step_bytes).tolist()
    server.send(agent, agent.steps(100, after_step_bytes=floor, peak_allocated_bytes=[8 * MIB] * 100), scan())
    verdict = leaks_of(server, agent)["verdict"]
    assert verdict["level"] == level and verdict["sentence"].startswith("Memory after each step rises by")


@pytest.mark.parametrize(("factor", "level"), [(1, "growth"), (3, "growth"), (4, "none"), (20, "none")])
def test_a_batch_that_is_longer_in_each_step_is_no_leak(server: RunningServer, factor: int, level: str) -> None:
    """Lengths in rising order: the last batch is still referred to when a step ends, and its activations were larger still."""
    agent = Agent()
    at = np.arange(100)
    floor, peak = GIB + at * MIB, 2 * GIB + at * MIB * factor
    server.send(agent, agent.steps(100, after_step_bytes=floor.tolist(), peak_allocated_bytes=peak.tolist()), scan())
    leaks = leaks_of(server, agent)
    assert leaks["verdict"]["level"] == level
    assert (leaks["floor"]["steps_to_out_of_memory"] is None) == (level == "none")
    assert leaks["floor"]["growing"] is True, "the page shows the slope, and no forecast"
    assert ("A longer batch does that." in leaks["verdict"]["sentence"]) == (level == "none")


@pytest.mark.parametrize(("kind", "level"), [("overlap", "held"), ("growing", "leak")])
def test_an_output_that_is_longer_in_each_step_is_no_leak_either(server: RunningServer, kind: str, level: str) -> None:
    agent, at = Agent(), np.arange(100)
    floor, peak = GIB + at * 64 * MIB, 2 * GIB + at * 1280 * MIB
    server.send(
        agent,
        agent.steps(100, after_step_bytes=floor.tolist(), peak_allocated_bytes=peak.tolist()),
        scan(leak(kind, growth_bytes_per_step=None)),
    )
    verdict = leaks_of(server, agent)["verdict"]
    assert verdict["level"] == level
    assert ("A longer batch does that." in verdict["sentence"]) == (kind == "overlap")
    assert "does not grow" not in verdict["sentence"]


def test_without_a_scan_the_verdict_points_to_the_error(server: RunningServer) -> None:
    """The diagnosis of an error in the first step names a holder where no scan was made."""
    agent = Agent()
    server.send(agent, agent.samples(ooms=2), agent.ended())
    sentence = leaks_of(server, agent)["verdict"]["sentence"]
    assert sentence.startswith("The agent has not scanned.")
    assert "`vramscope oom`" in sentence


def test_too_few_steps_tell_nothing(server: RunningServer) -> None:
    agent = Agent()
    server.send(agent, agent.steps(10, after_step_bytes=[GIB] * 10), scan())
    assert leaks_of(server, agent)["verdict"]["level"] == "unknown"


@pytest.mark.parametrize(("share", "level"), [(1.0, "none"), (0.9, "none"), (0.5, "growth"), (0.0, "growth")])
def test_a_floor_that_rises_with_the_models_is_told_as_theirs(server: RunningServer, share: float, level: str) -> None:
    """Layers that are added as the training goes on; counted in every fourth step only."""
    grown = [GIB + int(step * share * 64 * MIB) if step % 4 == 0 else -1 for step in range(200)]
    rest = {
        f"end_{name}_bytes": [MIB if value > 0 else -1 for value in grown]
        for name in ("gradients", "buffers", "optimizer")
    }
    agent = growing_run(server, 64 * MIB, columns={"end_parameters_bytes": grown, **rest})
    server.send(agent, scan())
    verdict = leaks_of(server, agent)["verdict"]
    assert verdict["level"] == level
    assert ("The models themselves grow" in verdict["sentence"]) == (level == "none")
    assert "out of memory after about" in verdict["sentence"], "whoever grows, the end is the same"


def test_of_a_run_that_ran_out_of_memory_no_end_is_forecast(server: RunningServer) -> None:
    agent = growing_run(server, 64 * MIB)
    server.send(
        agent, agent.ended("failed", at=21.0, error_type="torch.OutOfMemoryError", error_line="CUDA out of memory.")
    )
    leaks = leaks_of(server, agent)
    assert leaks["floor"]["ran_out_step"] == 201
    assert re.search(r"64\.0 MiB per step \(.*\): memory ran out in step 201\.", leaks["verdict"]["sentence"])
    assert "more steps" not in leaks["verdict"]["sentence"]


def test_what_others_have_of_the_card_is_no_room(server: RunningServer) -> None:
    """CUDA's context, and whoever else computes there: by the newest sample that knows."""
    agent = growing_run(server, 64 * MIB)
    alone = leaks_of(server, agent)["floor"]
    assert alone["outside_bytes"] is None
    server.send(
        agent,
        agent.samples(3, at=20.0, step=200, device_used_bytes=[7 * GIB, 8 * GIB, -1], reserved_bytes=[5 * GIB] * 3),
    )
    floor = leaks_of(server, agent)["floor"]
    assert floor["outside_bytes"] == 3 * GIB
    assert floor["room_bytes"] == alone["room_bytes"] - 3 * GIB


def test_where_the_capacity_is_not_known_neither_is_the_end(server: RunningServer) -> None:
    agent = Agent()
    agent.attached = msgspec.structs.replace(agent.attached, devices=[messages.Device(index=0, name="a card")])
    server.send(agent, agent.steps(100, after_step_bytes=(GIB + np.arange(100) * MIB).tolist()))
    floor = leaks_of(server, agent)["floor"]
    assert floor["growing"] is True
    assert floor["capacity_bytes"] is floor["room_bytes"] is floor["steps_to_out_of_memory"] is None


def test_a_flat_floor_says_what_could_not_have_been_seen(server: RunningServer) -> None:
    agent = growing_run(server, 0)
    server.send(agent, scan())
    leaks = leaks_of(server, agent)
    assert leaks["floor"]["growing"] is False
    assert leaks["floor"]["steps_to_out_of_memory"] is None
    assert leaks["verdict"]["level"] == "none"
    assert leaks["verdict"]["sentence"].startswith("No growth over 200 steps. Growth below")


def test_a_window_of_steps_has_a_slope_of_its_own(server: RunningServer) -> None:
    agent = Agent()
    floor = np.where(np.arange(400) < 200, 0, np.arange(400) - 200) * MIB + GIB
    server.send(agent, agent.steps(400, after_step_bytes=floor.tolist()))
    assert leaks_of(server, agent, to=200)["floor"]["growing"] is False
    late = leaks_of(server, agent, **{"from": 201})["floor"]
    assert (late["growing"], late["steps"]) == (True, 200)


def test_the_floor_is_that_of_the_newest_process(server: RunningServer) -> None:
    """Taken up again from an earlier step: the fixed process is not judged by the floor of the broken one."""
    broken = Agent()
    server.send(broken, broken.steps(100, after_step_bytes=(GIB + np.arange(100) * MIB).tolist()), broken.ended(at=11))
    fixed = Agent(broken.run, start_ns=broken.start_ns + 60 * SECOND)
    server.send(fixed, fixed.steps(100, after_step_bytes=GIB), sent_ns=time.time_ns() + 80 * SECOND)
    floor = leaks_of(server, fixed)["floor"]
    assert (floor["growing"], floor["steps"]) == (False, 100)
    drawn = server.get(f"/runs/{fixed.run}/figures/floor", x="step")
    assert drawn["window"]["rows"] == {"steps": 100}


def test_the_verdict_keeps_held_and_saved_apart(server: RunningServer) -> None:
    def sentence(**fields: Any) -> str:
        agent = Agent()
        server.send(agent, scan(leak(**fields)))
        return str(leaks_of(server, agent)["verdict"]["sentence"])

    assert sentence().startswith("history (train.py:87) keeps the graphs of 412 earlier steps. It retains 1.00 GiB; ")
    assert "keeps 824 graphs of earlier steps. " in sentence(count=824)  # (a loss and logits of each)
    assert "keeps the graphs of 1 earlier step. " in sentence(count=1, age_steps=1)
    assert "keeps 1 tensor, more" in sentence(kind="tensor-growth", count=1)
    assert "the peak falls by 512 MiB" in sentence()
    assert "freeing it would not lower the peak" in sentence(peak_effect_bytes=0)
    assert "the effect on the peak is unknown" in sentence(peak_effect_bytes=None)
    small = sentence(held_bytes=960, exclusive_bytes=960, node_bytes=5 * MIB, growth_bytes_per_step=4.0)
    assert "It grows by 4 B per step and about 21.3 KiB of host memory for its nodes" in small
    assert "It retains 960 B, and about 5.00 MiB of host memory in autograd nodes; " in small


HOSTED = {"peak_effect_bytes": 0, "examples": ["412 x float32[64, 128] on cpu"], "growth_bytes_per_step": 32768.0}


def test_what_a_training_on_a_card_keeps_on_the_host_is_told_as_that_and_is_no_leak(server: RunningServer) -> None:
    agent = Agent()
    server.send(agent, scan(leak("tensor-growth", "collected", **HOSTED)))
    leaks = leaks_of(server, agent)
    assert leaks["verdict"] == {
        "level": "host",
        "sentence": "collected (train.py:87) is kept on the host: it takes 1.00 GiB and grows by 32.0 KiB of host memory per step. "
        "GPU memory is not affected.",
    }
    assert [(one["on_host"], one["kind_words"]) for one in leaks["leaks"]] == [(True, "kept on the host")]
    row = row_of(server, agent)
    assert (row["leaks"], row["leaked_bytes"], row["worst_leak"]) == (0, 0, None)


@pytest.mark.parametrize(
    "changes",
    [{"peak_effect_bytes": None}, {"examples": ["4 x float32[9] on cpu", "8 x float32[64] on cuda:0"]}],
    ids=["a training on the CPU", "some of it lies on the card"],
)
def test_elsewhere_what_is_kept_is_a_leak(server: RunningServer, changes: dict[str, Any]) -> None:
    agent = Agent()
    server.send(agent, scan(leak("tensor-growth", "collected", **(HOSTED | changes))))
    assert leaks_of(server, agent)["verdict"]["level"] == "leak"
    assert row_of(server, agent)["leaks"] == 1


def test_what_is_kept_on_the_host_comes_behind_what_the_card_suffers_from(server: RunningServer) -> None:
    agent = Agent()
    small = leak("overlap", "logits", held_bytes=MIB, exclusive_bytes=MIB, growth_bytes_per_step=None)
    server.send(agent, scan(leak("tensor-growth", "collected", **HOSTED), small))
    leaks = leaks_of(server, agent)
    assert [one["name"] for one in leaks["leaks"]] == ["logits", "collected"]
    assert (leaks["verdict"]["level"], leaks["leaked_bytes"]) == ("held", MIB)


@pytest.mark.parametrize("kind", series.LEAK_KINDS)
def test_what_does_not_grow_is_not_called_leaking(server: RunningServer, kind: str) -> None:
    agent = Agent()
    steady = kind in ("overlap", "overlap-unfreed", "no_grad-missing", "idle-optimizer")
    server.send(agent, scan(leak(kind, growth_bytes_per_step=None)))
    verdict = leaks_of(server, agent)["verdict"]
    assert verdict["level"] == ("held" if steady else "leak")
    assert ("It does not grow." in verdict["sentence"]) == steady


def test_what_is_emptied_when_an_epoch_is_over_is_no_endless_growth(server: RunningServer) -> None:
    """What it holds then is real; that it takes more and more until memory runs out is not."""
    agent, at = Agent(), "on_train_epoch_end() (train.py:93)"
    emptied = leak(
        held_bytes=3 * MIB, node_bytes=0, emptied_at=at, emptied_after=100, growth_bytes_per_step=0.0, count=100
    )
    server.send(agent, agent.steps(200, after_step_bytes=GIB), scan(emptied))
    leaks = leaks_of(server, agent)
    (found,) = leaks["leaks"]
    assert (found["emptied"], found["emptied_after"]) == (f"after 100 steps, in {at}", 100)
    assert leaks["verdict"]["level"] == "held"
    reported = leaks["verdict"]["sentence"]
    assert (
        f"keeps the graphs of 100 earlier steps until it is emptied after 100 steps, in {at}. It retains at most 3.00 MiB;"
        in reported
    )
    assert reported.endswith("It does not grow beyond that.") and "out of memory" not in reported
    gathered = msgspec.structs.replace(emptied, kind="tensor-growth", emptied_at="", per="batch")
    server.send(agent, scan(gathered, step=413), sequence=2)
    leaks = leaks_of(server, agent)
    assert "keeps 100 tensors until it is emptied after 100 batches. It retains" in leaks["verdict"]["sentence"]
    assert leaks["leaks"][0]["kind_words"] == "tensors are collected, and freed together"


def test_what_may_be_emptied_yet_has_an_end_under_a_condition(server: RunningServer) -> None:
    agent = growing_run(server, 64 * MIB)
    server.send(agent, scan(leak(emptied_at="train.py:93", growth_bytes_per_step=60.0 * MIB)))
    leaks = leaks_of(server, agent)
    assert (leaks["leaks"][0]["emptied"], leaks["verdict"]["level"]) == (
        "at train.py:93, which was not seen so far",
        "leak",
    )
    sentence = leaks["verdict"]["sentence"]
    assert "until it is emptied at train.py:93, which was not seen so far." in sentence
    assert "out of memory after about" in sentence and sentence.endswith(", if it is not emptied before.")


def test_ranks_of_which_one_has_not_seen_yet_that_it_is_emptied_agree(server: RunningServer) -> None:
    emptied = leak(held_bytes=9 * MIB, emptied_at="train.py:93", emptied_after=100, growth_bytes_per_step=0.0)
    waiting = leak(held_bytes=8 * MIB, emptied_at="train.py:93", growth_bytes_per_step=99.0)
    (merged,) = merge_leaks({0: scan(emptied), 1: scan(waiting)})
    assert (merged["emptied_after"], merged["growth_bytes_per_step"]) == (100, 0.0)


def test_where_the_floor_rises_beside_what_is_held_that_is_told(server: RunningServer) -> None:
    agent = growing_run(server, 64 * MIB)
    server.send(agent, scan(leak("overlap", growth_bytes_per_step=None)))
    verdict = leaks_of(server, agent)["verdict"]
    assert verdict["level"] == "growth"
    assert "It does not grow." not in verdict["sentence"]


@pytest.mark.parametrize(("growth", "level"), [(60.0 * MIB, "unknown"), (MIB / 4, "growth")])
def test_a_container_that_may_fill_up_is_named_and_is_no_leak(server: RunningServer, growth: float, level: str) -> None:
    """It explains the growth, or a small part of it."""
    agent = growing_run(server, 64 * MIB)
    filling = [leak("tensor-growth", name, growth_bytes_per_step=growth) for name in ("cache.by_id", "seen")]
    on_host = leak("tensor-growth", "rows", **HOSTED)
    server.send(agent, scan(filling=[msgspec.to_builtins(one) for one in (*filling, on_host)]))
    report = leaks_of(server, agent)
    assert report["leaks"] == [] and report["verdict"]["level"] == level
    sentence = report["verdict"]["sentence"]
    assert sentence.startswith("Memory after each step rises by 64.0 MiB per step")
    assert ": at this pace, out of memory after about 761 more steps" in sentence
    assert "cache.by_id" in sentence or "seen" in sentence
    assert "and 1 more container" in sentence and "found no holder" not in sentence
    assert not row_of(server, agent)["leaks"]


def test_after_the_end_nothing_is_promised_of_a_container_that_may_fill_up() -> None:
    known: dict[str, Any] = {"looked": True, "steps": 90, "floor": None, "steps_left": None, "seconds_left": None}
    filling = [leak("tensor-growth", "cache.by_id", held_bytes=MIB)]
    running = leak_verdict([], ended=False, filling=filling, **known)
    over = leak_verdict([], ended=True, filling=filling, **known)
    assert running.level == over.level == "unknown"
    assert "if it grows on" in running.sentence
    assert "cache.by_id" in over.sentence and over.sentence.endswith("Whether it has a bound is unknown.")


def test_of_a_cache_that_takes_ever_fewer_entries_the_pace_of_late_is_told() -> None:
    known: dict[str, Any] = {"looked": True, "steps": 90, "floor": None, "steps_left": None, "seconds_left": None}
    why = [messages.Transition(state="suspected", reason="slows-down", step=80)]
    filling = [leak("tensor-growth", "masks", held_bytes=MIB, growth_bytes_per_step=2048.0, why=why)]
    running = leak_verdict([], ended=False, filling=filling, **known)
    over = leak_verdict([], ended=True, filling=filling, **known)
    assert running.level == over.level == "unknown"
    assert (
        "masks (train.py:87) grows, more and more slowly (by 2.00 KiB a step of late): 1.00 MiB so far"
        in running.sentence
    )
    assert "reported as a leak" not in running.sentence
    assert "masks (train.py:87) grew to 1.00 MiB, more and more slowly (by 2.00 KiB a step of late)" in over.sentence


@pytest.mark.parametrize("beside", [True, False], ids=["beside an overlap", "alone"])
def test_of_a_tensor_that_is_cut_no_leak_is_foretold(server: RunningServer, beside: bool) -> None:
    """It explains the growth of memory, beside a value that lives a step too long as well."""
    agent = growing_run(server, 64 * MIB)
    why = [messages.Transition(state="suspected", reason="is-cut", step=80)]
    bank = leak("tensor-growth", "bank", held_bytes=60 * MIB, growth_bytes_per_step=64.0 * MIB, why=why)
    overlap = [leak("overlap", "z", peak_effect_bytes=0, growth_bytes_per_step=None)] if beside else []
    server.send(agent, scan(*overlap, filling=[bank]))
    verdict = leaks_of(server, agent)["verdict"]
    assert verdict["level"] == ("held" if beside else "unknown")
    assert "bank (train.py:87) gr" in verdict["sentence"] and "reported as a leak" not in verdict["sentence"]
    assert verdict["sentence"].endswith("A line that keeps only a slice of it may bound it.")


@pytest.mark.parametrize(("rise", "level"), [(0.002, "unknown"), (0.05, "growth")])
def test_growth_that_nobody_is_named_for_is_a_badge_from_a_share_of_the_memory_on(rise: float, level: str) -> None:
    """A data set that gets larger with each round, say."""
    floor = trend(np.arange(1.0, 101), GIB * (1 + rise * np.arange(100) / 100))
    assert floor is not None and floor.growing
    verdict = leak_verdict([], looked=True, steps=100, ended=True, floor=floor, steps_left=None, seconds_left=None)
    assert verdict.level == level and "Memory after each step rises by" in verdict.sentence


def test_no_scan_is_claimed_where_none_was_needed() -> None:
    """The agent compared memory after a few steps only; the fit over all steps is a rise."""
    floor = trend(np.arange(1.0, 101), GIB * (1 + 0.05 * np.arange(100) / 100))
    more = {"looked": True, "steps": 100, "ended": True, "floor": floor, "steps_left": None, "seconds_left": None}
    verdict = leak_verdict([], saw_no_reason=True, **more)
    assert verdict.level == "growth" and verdict.sentence.endswith("The agent saw no reason to scan.")


def test_memory_that_rises_more_and_more_slowly_is_neither_growth_nor_level() -> None:
    floor = trend(np.arange(1.0, 401), GIB + 64 * MIB * (1 - np.exp(-np.arange(400) / 150)))
    assert floor is not None and floor.slows and not floor.growing
    verdict = leak_verdict([], looked=True, steps=400, ended=True, floor=floor, steps_left=None, seconds_left=None)
    assert verdict.level == "unknown"
    assert (
        verdict.sentence.startswith("Memory after each step rises more and more slowly")
        and "No growth" not in verdict.sentence
    )


def test_where_the_floor_of_the_card_rises_that_comes_first(server: RunningServer) -> None:
    agent = growing_run(server, 64 * MIB)
    server.send(agent, scan(leak("tensor-growth", "collected", **HOSTED)))
    verdict = leaks_of(server, agent)["verdict"]
    assert verdict["level"] == "growth"
    assert verdict["sentence"].startswith("Memory after each step rises by 64.0 MiB per step")
    assert verdict["sentence"].endswith("of host memory per step. GPU memory is not affected.")


def test_a_floor_that_rises_faster_than_what_was_found_is_told_besides(server: RunningServer) -> None:
    agent = growing_run(server, 64 * MIB)
    server.send(agent, scan(leak(growth_bytes_per_step=10.0 * MIB)))
    sentence = leaks_of(server, agent)["verdict"]["sentence"]
    assert "It grows by 10.0 MiB per step; memory after each step rises by 64.0 MiB per step (±" in sentence
    server.send(agent, scan(leak(growth_bytes_per_step=60.0 * MIB)))
    sentence = leaks_of(server, agent)["verdict"]["sentence"]
    assert "It grows by 60.0 MiB per step: out of memory after about" in sentence
    server.send(agent, scan(leak("cycle", growth_bytes_per_step=None)))
    assert "Memory after each step rises by 64.0 MiB per step" in leaks_of(server, agent)["verdict"]["sentence"]


def test_floors_known_for_some_of_the_steps_are_told_by_the_steps_they_span(server: RunningServer) -> None:
    agent = Agent()
    server.send(agent, agent.steps(200, after_step_bytes=[GIB if step % 4 == 0 else -1 for step in range(200)]), scan())
    leaks = leaks_of(server, agent)
    assert leaks["floor"]["steps"] == 197
    assert "over 197 steps" in leaks["verdict"]["sentence"]


def test_leaks_stand_beside_each_other_in_the_comparison(server: RunningServer) -> None:
    broken, fixed, unknown = Agent(name="broken"), Agent(name="fixed"), Agent(name="unlooked")
    server.send(broken, broken.steps(3, graphs_alive=[1, 2, 3]), scan(leak()))
    server.send(fixed, fixed.steps(3, graphs_alive=0), scan())
    server.send(unknown, unknown.steps(3))
    rows = server.get("/compare", runs=f"{broken.run},{fixed.run},{unknown.run}")["rows"]
    assert [(row["leaks"], row["leaked_bytes"], row["graphs_alive"]) for row in rows] == [
        (1, GIB, 3), (0, 0, 0), (None, None, None),
    ]  # fmt: skip


# ---- live ----


def test_a_look_is_heard_within_two_seconds_by_those_who_watch_the_run(server: RunningServer) -> None:
    agent, other = Agent(), Agent()
    server.send(agent, agent.samples(1))
    last = server.get("/live/delta", runs=agent.run)["last"]
    sent = time.monotonic()
    server.send(other, scan(leak()))
    server.send(agent, scan(leak(), leak(name="b")))
    fields: dict[str, list[Any]] = {"scan": [], "run": []}
    while not fields["scan"] or len({row["run_id"] for row in fields["run"] if row["leaks"]}) < 2:
        assert time.monotonic() - sent < 2
        answer = server.get("/live/delta", runs=agent.run, after=last)
        last = answer["last"]
        for event in answer["events"]:
            fields.setdefault(event["event"], []).append(event["data"])
        time.sleep(0.02)
    assert fields["scan"] == [{"run": agent.run, "rank": 0, "step": 412, "leaks": 2}]
    assert {row["run_id"]: row["leaks"] for row in fields["run"] if row["leaks"]} == {agent.run: 2, other.run: 1}


# ---- bad looks ----


def spoiled(**changes: Any) -> dict[str, Any]:
    made: dict[str, Any] = msgspec.to_builtins(scan(leak()))
    fields = {"type": "scan", **made}
    for path, value in changes.items():
        (fields["leaks"][0] if path in messages.Leak.__struct_fields__ else fields)[path] = value
    return fields


ONE = msgspec.to_builtins(leak())
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no name of a kind": (spoiled(kind="<b>"), "messages[1].leaks[0].kind"),
    "negative bytes": (spoiled(held_bytes=-1), "messages[1].leaks[0].held_bytes"),
    "absurdly many bytes": (spoiled(exclusive_bytes=(1 << 62) + 1), "messages[1].leaks[0].exclusive_bytes"),
    "half a byte": (spoiled(peak_effect_bytes=1.5), "messages[1].leaks[0].peak_effect_bytes"),
    "line 0": (spoiled(line=0), "messages[1].leaks[0].line"),
    "no name": (spoiled(name=""), "messages[1].leaks[0].name"),
    "a name without end": (spoiled(name="x" * 201), "messages[1].leaks[0].name"),
    "a chain of 17": (spoiled(chain=["x"] * 17), "messages[1].leaks[0].chain"),
    "a chain of numbers": (spoiled(chain=[1]), "messages[1].leaks[0].chain"),
    "growth is not a number": (spoiled(growth_bytes_per_step=float("nan")), "messages[1].leaks[0].growth_bytes_per_step"),
    "endless growth": (spoiled(growth_bytes_per_step=float("inf")), "messages[1].leaks[0].growth_bytes_per_step"),
    "no advice": ({**spoiled(), "leaks": [{k: v for k, v in ONE.items() if k != "advice"}]}, "messages[1].leaks[0].advice"),
    "65 leaks": (spoiled(leaks=[ONE] * 65), "messages[1].leaks"),
    "leaks are a map": (spoiled(leaks={"a": ONE}), "messages[1].leaks"),
    "time before 1970": (spoiled(time_ns=-5), "messages[1].time_ns"),
    "time in 2120": (spoiled(time_ns=150 * 365 * 86_400 * SECOND), "messages[1].time_ns"),
    "it took no time at all": (spoiled(seconds=-0.1), "messages[1].seconds"),
    "it took for ever": (spoiled(seconds=float("inf")), "messages[1].seconds"),
    "a negative step": (spoiled(step=-1), "messages[1].step"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_bad_look_is_refused_by_its_field_and_nothing_is_stored(server: RunningServer, case: str) -> None:
    reported, field = BAD[case]
    agent = Agent()
    batch: dict[str, Any] = msgspec.msgpack.decode(agent.body())
    batch["messages"].append(reported)
    answer: httpx.Response = server.post(msgspec.msgpack.encode(batch))
    problem = answer.json()
    assert answer.status_code == 422, problem
    assert problem["field"].startswith(field), problem
    assert problem["expected"] and len(answer.content) < 3000
    assert server.http.get(f"/runs/{agent.run}").status_code == 404


def test_a_small_buffer_with_a_bound_is_a_note_everywhere(server: RunningServer) -> None:
    """The list of runs, the page's level and its entry say the same of it, and of a larger one."""
    buffer = leak("growing", "buffer", held_bytes=MIB, full_bytes=9 * MIB)
    for peak, note in [(GIB, True), (100 * MIB, False)]:
        agent = Agent()
        server.send(agent, agent.steps(200, peak_allocated_bytes=peak), scan(buffer))
        page, row = leaks_of(server, agent), row_of(server, agent)
        assert [found["note"] for found in page["leaks"]] == [note]
        assert page["verdict"]["level"] == ("held" if note else "leak")
        assert row["leaks"] == (0 if note else 1)
