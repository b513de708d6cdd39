"""Peaks that nobody measured, or that other code reset: lower bounds wherever a peak is shown."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from running import RunningServer
from wire_maker import GIB, Agent

from vramscope_server.cli.coding_agents import run_answers
from vramscope_server.store import migration
from vramscope_server.store.database import APPLICATION_ID, Database
from vramscope_server.store.rank_summary import RankSummary, encode_summary
from vramscope_server.store.run_queries import find_run

Cli = Callable[..., tuple[int, str, str]]
EXACT, SAMPLED, RESET, MIXED = "bounds000000001", "bounds000000002", "bounds000000003", "bounds000000004"
NO_PEAKS = dict.fromkeys(("peak_allocated_bytes", "peak_reserved_bytes", "forward_peak_allocated_bytes"), -1)


@pytest.fixture(scope="module")
def stored(server: RunningServer) -> RunningServer:
    """2 GiB measured; 3 GiB sampled; 4 GiB with a step that was reset; 5 GiB on a rank that is measured beside one of samples."""
    for name, run, rank, allocated, changes in (
        ("exact", EXACT, 0, GIB, {"peak_allocated_bytes": 2 * GIB}),
        ("sampled", SAMPLED, 0, 3 * GIB, NO_PEAKS),
        ("reset", RESET, 0, GIB, {"peak_allocated_bytes": 4 * GIB, "foreign_reset": [0] * 19 + [2]}),
        ("mixed", MIXED, 0, GIB, {"peak_allocated_bytes": 5 * GIB}),
        ("mixed", MIXED, 1, 3 * GIB, NO_PEAKS),
    ):
        agent = Agent(run, name=name, rank=rank, world_size=2 if run == MIXED else 1)
        sampled = agent.samples(3, allocated_bytes=allocated, reserved_bytes=8 * GIB)
        server.send(agent, sampled, agent.steps(20, **changes))
    return server


def test_the_list_says_which_peaks_are_lower_bounds(stored: RunningServer, cli: Cli) -> None:
    rows = {row["name"]: row for row in stored.get("/runs")["runs"]}
    names = ("peak_allocated_bytes", "sampled_allocated_bytes", "lower_bound_steps")
    assert {name: tuple(row[key] for key in names) for name, row in rows.items()} == {
        "exact": (2 * GIB, None, 0),
        "sampled": (None, 3 * GIB, 0),
        "reset": (4 * GIB, None, 1),
        "mixed": (5 * GIB, 3 * GIB, 0),
    }
    for row in rows.values():
        detail = stored.get(f"/runs/{row['run_id']}")
        assert {name: detail[name] for name in names} == {name: row[name] for name in names}
    code, out, _ = cli("ls", "--server", stored.url)
    lines = {name: line for line in out.split("\n") for name in rows if f" {name} " in line}
    assert code == 0
    assert "≥ 3.00 GiB" in lines["sampled"] and "≥ 8.00 GiB" in lines["sampled"]
    assert "≥ 4.00 GiB" in lines["reset"] and "≥ 5.00 GiB" in lines["mixed"]
    assert "2.00 GiB" in lines["exact"] and "≥" not in lines["exact"]


def test_a_comparison_says_which_savings_are_bounds(stored: RunningServer, cli: Cli) -> None:
    def compared(*runs: str) -> list[tuple[float | None, str | None]]:
        rows = stored.get("/compare", runs=",".join(runs))["rows"]
        return [(row["saved_fraction"], row["saved_bounds"].get("saved_fraction")) for row in rows]

    assert compared(EXACT, SAMPLED, RESET) == [(0.0, None), (-0.5, "at most"), (-1.0, "at most")]
    assert compared(RESET, EXACT, SAMPLED) == [(0.0, None), (0.5, "at least"), (None, "unknown")]
    for row in stored.get("/compare", runs=f"{EXACT},{MIXED}")["together"]:
        assert (row["peak_allocated_bytes"], row["lower_bounds"][:1]) == (
            (2 * GIB, []) if row["run"] == EXACT else (5 * GIB, ["peak_allocated_bytes"])
        )
    code, out, _ = cli("compare", EXACT, SAMPLED, "--server", stored.url)
    (line,) = (line for line in out.split("\n") if line.startswith("sampled"))
    assert code == 0 and "≥ 3.00 GiB" in line and "≥ +50.0 %" in line and "≥: lower bound" in out
    assert "≥" not in cli("compare", EXACT, EXACT, "--server", stored.url)[1]
    (line,) = (
        line for line in cli("compare", RESET, EXACT, "--server", stored.url)[1].split("\n") if line.startswith("exact")
    )
    assert "≤ -50.0 %" in line
    text = stored.http.get("/compare/table", params={"runs": f"{EXACT},{SAMPLED}"}).text
    assert "| ≥ 3,072 | ≥ +50.0 % |" in text and "≥: lower bound" in text
    latex = stored.http.get("/compare/table", params={"runs": f"{EXACT},{SAMPLED}", "format": "latex"}).text
    assert r"$\geq$ 3,072" in latex
    table = stored.http.get("/compare/table", params={"runs": f"{EXACT},{SAMPLED}", "format": "csv"}).text
    lines = list(csv.DictReader(io.StringIO(table)))
    assert [line["lower_bounds"] for line in lines] == ["", "peak_allocated_bytes peak_reserved_bytes"]


def test_repeats_of_which_one_is_a_bound_are_a_bound_together(server: RunningServer) -> None:
    for run, name, more in (
        ("repeats00000001", "plain", {"peak_allocated_bytes": 2 * GIB}),
        ("repeats00000002", "seed", {"peak_allocated_bytes": GIB}),
        ("repeats00000003", "seed", {"peak_allocated_bytes": GIB, "foreign_reset": [2] * 20}),
    ):
        agent = Agent(run, name=name, config={"lr": 1.0 if name == "plain" else 0.1})
        server.send(agent, agent.samples(), agent.steps(20, **more), agent.ended())
    runs = ",".join(f"repeats0000000{number}" for number in (1, 2, 3))
    base, seeds = server.get("/compare", runs=runs, group="config.lr")["together"]
    assert (base["lower_bounds"], base["saved_bounds"]) == ([], {})
    assert seeds["lower_bounds"] == ["peak_allocated_bytes", "peak_reserved_bytes"]
    assert (
        seeds["saved_fraction"] == pytest.approx(0.5, abs=1e-5) and seeds["saved_bounds"]["saved_fraction"] == "at most"
    )


def test_metrics_say_which_peaks_are_lower_bounds(stored: RunningServer) -> None:
    lines = stored.http.get(f"{stored.url}/metrics").text.split("\n")
    of = {
        (run, rank): [
            line for line in lines if "vramscope_run_peak_allocated_bytes{" in line and run in line and rank in line
        ]
        for run, rank in ((EXACT, 'rank="0"'), (SAMPLED, 'rank="0"'), (RESET, 'rank="0"'), (MIXED, 'rank="1"'))
    }
    ends = {key[0]: ('bound="lower"' in line, float(line.split()[-1]) / GIB) for key, (line,) in of.items()}
    assert ends == {EXACT: (False, 2), SAMPLED: (True, 3), RESET: (True, 4), MIXED: (True, 3)}


def test_coding_agents_are_told_of_lower_bounds(stored: RunningServer) -> None:
    found = {row["run_id"]: row for row in run_answers.runs(stored.url, "", 10)["runs"]}
    assert (found[SAMPLED]["peak_allocated_bytes"], found[SAMPLED]["peaks_are_lower_bounds"]) == (3 * GIB, True)
    assert (found[EXACT]["peak_allocated_bytes"], found[EXACT]["peaks_are_lower_bounds"]) == (2 * GIB, False)
    assert "at least 4.00 GiB" in run_answers.summary(stored.url, RESET)["peak_in_words"]


def test_older_runs_get_their_bounds(empty_database_url: str) -> None:
    """Of two runs one has a rank with samples alone."""
    config = Config()
    config.set_main_option("script_location", str(migration.MIGRATIONS))
    engine = sa.create_engine(empty_database_url)
    measured = RankSummary(peak_allocated_bytes=7, step_peak_bytes=7, lower_bound_steps=0)
    samples = RankSummary(peak_allocated_bytes=5, peak_reserved_bytes=6, lower_bound_steps=2)
    with engine.begin() as connection:
        if connection.dialect.name == "sqlite":
            connection.exec_driver_sql(f"PRAGMA application_id={APPLICATION_ID}")
        config.attributes["connection"] = connection
        command.upgrade(config, "0007")
        runs, ranks = (sa.Table(name, sa.MetaData(), autoload_with=connection) for name in ("runs", "ranks"))
        blank: dict[str, Any] = {
            one.name: [] if isinstance(one.type, sa.JSON) else False if isinstance(one.type, sa.Boolean) else 0
            for one in runs.columns
            if not one.nullable and one.server_default is None
        }
        for key, summaries in ((1, [measured]), (2, [measured, samples])):
            texts = {"id": f"r{key}", "project": "p", "name": "old", "state": "finished"}
            connection.execute(runs.insert().values({**blank, **texts, "key": key}))
            for rank, summary in enumerate(summaries):
                row = {"run_key": key, "rank": rank, "session_id": f"s{key}{rank}", "summary": encode_summary(summary)}
                connection.execute(ranks.insert().values(row))
    engine.dispose()
    database = Database(empty_database_url)
    with database.reader() as connection:
        first, second = (find_run(connection, name) for name in ("r1", "r2"))
    database.close()
    assert (first.sampled_allocated_bytes, first.lower_bound_steps or 0) == (None, 0)
    assert (second.sampled_allocated_bytes, second.sampled_reserved_bytes, second.lower_bound_steps) == (5, 6, 2)
