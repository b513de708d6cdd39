"""Every table as CSV, JSON and Parquet, from a real server."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from profile_maker import a_profile
from running import RunningServer
from test_damage import damage
from window_maker import training
from wire_maker import GIB, SECOND, Agent, leak, scan

from vramscope.protocol import messages
from vramscope.protocol.profile import pack as pack_profile
from vramscope.protocol.window import pack as pack_window
from vramscope_server.api import steps as api_steps
from vramscope_server.api.tables import unit_of_column
from vramscope_server.store.project_scope import ProjectScope
from vramscope_server.store.token_rows import Role
from vramscope_server.tables import catalogue
from vramscope_server.tables.catalogue import TABLES
from vramscope_server.tables.columns import Kind
from vramscope_server.tables.formats import TableFile
from vramscope_server.tables.table import Scope

NAME = '=HYPERLINK("http://evil.example","click"),a/b'
LARGE = 2**53 + 1
"""Not exact as a floating-point number."""
COUNTED = {
    "accumulation", "address", "age_steps", "batch", "calls", "count", "device", "device_allocs", "effective_batch",
    "emptied_after", "final_loss", "first_loss", "first_step", "foreign_reset", "foreign_reset_steps", "graphs_alive",
    "last_line", "last_step", "leaks", "level", "line", "loss_count", "loss_final", "loss_final_of", "loss_first", "loss_last",
    "loss_last_step", "loss_of", "lower_bound_steps", "micro_steps", "n", "oom_records", "out_of_memory",
    "out_of_memory_at_event", "peak_step", "pid", "pieces", "pieces_received", "profiles", "rank", "ranks_reporting",
    "recordings", "retries", "risk_level", "rows", "rows_that_fit", "step", "steps", "tensors", "world_size",
    "gradient_accumulation",
}  # fmt: skip
"""Numbers without a unit: they count, number or are a loss."""


def pieces(ident: str, kind: str, data: bytes, **about: Any) -> list[messages.Piece]:
    size = messages.MAX_PIECE_BYTES
    parts = [data[at : at + size] for at in range(0, len(data), size)]
    return [
        messages.Piece(artifact=ident, kind=kind, number=at, pieces=len(parts), about=about, data=part)
        for at, part in enumerate(parts)
    ]


@pytest.fixture(scope="module")
def runs(server: RunningServer) -> list[str]:
    """A run with everything, of two ranks, and an empty one."""
    full = Agent(name=NAME, world_size=2, tags=["a", "-1+1"])
    other = Agent(full.run, rank=1, world_size=2, start_ns=full.start_ns, name=NAME)
    empty = Agent(name="empty")
    names = {"chip": "batch 8", "declared": "batch 8", "observed": "batch 8", "detail": {"batch_size": 8}}
    ended = {"error_type": "ValueError", "error_line": "\t@SUM(A1)"}
    server.send(
        full,
        full.samples(),
        full.steps(12, peak_allocated_bytes=LARGE, backward_ns=10**7, backward_peak_allocated_bytes=3 * GIB),
        messages.Techniques(
            time_ns=full.start_ns,
            step=1,
            techniques=[messages.Technique(kind="batch", **names)],
            findings=[messages.Pitfall(kind="eager", text="+Attention", advice="sdpa", file="train.py", line=7)],
        ),
        scan(leak(name="=1+1")),
        messages.Event(time_ns=full.start_ns + SECOND, kind="notice", step=5, data={"text": "a"}),
        *pieces(f"w{full.run}"[:12], "window", pack_window(training()), device=0, first_step=1, last_step=2),
        *pieces(
            f"p{full.run}"[:12], "profile", pack_profile(a_profile()), first_step=2, last_step=3, reason="asked for"
        ),
        full.ended("failed", **ended),
    )
    server.send(other, other.samples(), other.steps(5, peak_allocated_bytes=GIB), other.ended())
    server.send(empty, empty.ended())
    return [full.run, empty.run]


def named(server: RunningServer, runs: list[str], table: str) -> dict[str, Any]:
    """Parameters that a table needs."""
    scope = TABLES[table].scope
    if scope is Scope.all:
        return {}
    if scope is Scope.compare:
        return {"runs": ",".join(runs)}
    if scope is not Scope.whatif:
        return {"run": runs[0]}
    recording = server.get(f"/runs/{runs[0]}/recordings")["recordings"][0]["recording"]
    path = f"/recordings/{recording}/whatif"
    job = server.http.post(path, json={"confs": ["expandable_segments:True"]}).json()
    while job["state"] in ("waiting", "running"):
        job = server.get(f"{path}/{job['job']}")
    return {"recording": recording, "job": job["job"]}


def rows_of(server: RunningServer, table: str, **parameters: Any) -> list[dict[str, Any]]:
    return server.get(f"/tables/{table}", format="json", **parameters)  # type: ignore[no-any-return]


@pytest.mark.parametrize("table", list(TABLES))
def test_a_table_is_the_same_in_all_formats(server: RunningServer, runs: list[str], table: str) -> None:
    asked = named(server, runs, table)
    rows = rows_of(server, table, **asked)
    assert rows or table == "out_of_memory", "each other table has rows here"
    columns = TABLES[table].columns
    assert all(list(row) == [column.name for column in columns] for row in rows)
    answers = {
        form: server.http.get(f"/tables/{table}", params={"format": form, **asked}) for form in ("csv", "parquet")
    }
    lines = list(csv.reader(io.StringIO(answers["csv"].content.decode(), newline="")))
    assert lines[0] == [column.name for column in columns]
    assert len(lines) == len(rows) + 1
    whole = pq.read_table(io.BytesIO(answers["parquet"].content))
    assert whole.to_pylist() == rows, "Parquet has what JSON has"
    kinds = {Kind.integer: pa.int64(), Kind.number: pa.float64(), Kind.boolean: pa.bool_()}
    for column in columns:
        assert whole.schema.field(column.name).type == kinds.get(column.kind, whole.schema.field(column.name).type)
    integers = [at for at, column in enumerate(columns) if column.kind is Kind.integer]
    for line, row in zip(lines[1:], rows, strict=True):
        for at in integers:
            assert line[at] == ("" if (value := row[columns[at].name]) is None else str(value))
    assert answers["csv"].headers["content-disposition"].endswith(f'{table}.csv"')


def test_columns_have_different_names_and_units() -> None:
    for table in TABLES.values():
        names = [column.name for column in table.columns]
        assert len(set(names)) == len(names), table.name
        without = {
            column.name
            for column in table.columns
            if column.kind in (Kind.integer, Kind.number) and unit_of_column(column) is None
        }
        assert not without - COUNTED, table.name


def test_the_list_of_tables_describes_every_column(server: RunningServer) -> None:
    listed = server.get("/tables")
    assert [one["name"] for one in listed] == list(TABLES)
    for table in listed:
        for column in table["columns"]:
            assert column["about"].endswith("."), (table["name"], column["name"])
    steps = next(one for one in listed if one["name"] == "steps")["columns"]
    assert next(one["unit"] for one in steps if one["name"] == "peak_parameters_bytes") == "bytes"


def test_the_page_of_the_docs_names_every_table() -> None:
    text = (Path(__file__).parents[2] / "docs" / "export.md").read_text()
    needs = {Scope.all: "", Scope.compare: "runs"}
    for table in TABLES.values():
        assert f"| `{table.name}` | {needs.get(table.scope, 'a run')} | {table.title} |" in text


def test_formulas_are_text_in_csv_and_as_they_are_elsewhere(server: RunningServer, runs: list[str]) -> None:
    def cells(table: str, column: str, **asked: Any) -> list[str]:
        text = server.http.get(f"/tables/{table}", params=asked).content.decode()
        return [row[column] for row in csv.DictReader(io.StringIO(text, newline=""))]

    assert f"'{NAME}" in cells("runs", "name")
    assert cells("leaks", "name", run=runs[0]) == ["'=1+1"]
    assert cells("pitfalls", "text", run=runs[0]) == ["'+Attention"]
    assert "'\t@SUM(A1)" in cells("ranks", "error_line", run=runs[0])
    assert "a; -1+1" in cells("runs", "tags"), "the cell begins with a letter"
    assert rows_of(server, "leaks", run=runs[0])[0]["name"] == "=1+1"


def test_steps_are_exact_and_of_all_ranks(
    server: RunningServer, runs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_steps, "_PIECE_STEPS", 5)
    rows = rows_of(server, "steps", run=runs[0])
    assert [(row["rank"], row["step"]) for row in rows] == [(0, at + 1) for at in range(12)] + [
        (1, at + 1) for at in range(5)
    ]
    assert {row["peak_allocated_bytes"] for row in rows} == {LARGE, GIB}
    assert len(rows_of(server, "steps", run=runs[0], rank=0, **{"from": 3, "to": 8})) == 6
    phases = [row for row in rows_of(server, "phases", run=runs[0]) if row["phase"] == "backward" and row["rank"] == 0]
    assert [(row["peak_allocated_bytes"], row["seconds"]) for row in phases] == [(3 * GIB, 0.01)] * 12
    assert rows_of(server, "steps", run=runs[1]) == []
    by_name = rows_of(server, "steps", run=NAME)
    assert by_name == rows, "a name with a slash is found"


def test_a_rank_or_a_device_selects_all_steps_of_it(server: RunningServer) -> None:
    first = Agent(name="実験 ü", world_size=2, devices=2)
    second = Agent(first.run, rank=1, world_size=2, devices=2, start_ns=first.start_ns, name="実験 ü")
    for agent in (first, second):
        server.send(agent, agent.steps(3), agent.steps(2, device=1), agent.ended())

    def places(**asked: int) -> list[tuple[int, int]]:
        rows = rows_of(server, "steps", run="実験 ü", **asked)
        return list(dict.fromkeys((row["rank"], row["device"]) for row in rows))

    assert places() == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert places(rank=1) == [(1, 0), (1, 1)]
    assert places(device=1) == [(0, 1), (1, 1)]
    assert places(rank=1, device=0) == [(1, 0)]
    for asked in ({"rank": 2}, {"device": 2}, {"rank": 1, "device": 2}):
        assert server.http.get("/tables/steps", params={"run": first.run, **asked}).status_code == 404


def test_all_runs_are_listed_however_many_pages(
    server: RunningServer, runs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogue, "PAGE_ROWS", 1)
    assert {row["run_id"] for row in rows_of(server, "runs")} >= set(runs)
    assert [row["run_id"] for row in rows_of(server, "runs", query="empty")] == [runs[1]]
    rows = rows_of(server, "operations", run=runs[0])
    assert len(rows) == len({json.dumps(row) for row in rows}) > 1


@pytest.mark.parametrize(
    ("table", "parameters", "status", "field"),
    [
        ("nothing", {}, 404, "name"),
        ("steps", {}, 422, "run"),
        ("compare", {}, 422, "runs"),
        ("whatif", {"recording": "r"}, 422, "job"),
        ("whatif", {"recording": "r", "job": "j"}, 404, "recording"),
        ("steps", {"run": "nobody"}, 404, "run"),
        ("steps", {"run": "empty", "from": 5, "to": 2}, 422, "to"),
        ("operations", {"run": "empty"}, 409, None),
        ("operations", {"profile": "../runs"}, 404, "profile"),
        ("runs", {"format": "xlsx"}, 422, "format"),
    ],
)
def test_what_is_no_table_is_refused(
    server: RunningServer, runs: list[str], table: str, parameters: dict[str, Any], status: int, field: str | None
) -> None:
    answer = server.http.get(f"/tables/{table}", params=parameters)
    assert (answer.status_code, answer.json().get("field")) == (status, field)
    assert answer.headers["content-type"] == "application/problem+json"


def test_parquet_without_pyarrow_is_refused(
    server: RunningServer, runs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    answer = server.http.get("/tables/runs", params={"format": "parquet"})
    assert answer.status_code == 409 and "vramscope[parquet]" in answer.json()["detail"]
    assert server.http.get("/tables/runs", params={"format": TableFile.csv.value}).status_code == 200


def test_a_token_of_a_project_gets_rows_of_that_project_only(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(require_tokens=True)

    def headers(name: str, role: Role, *projects: str) -> dict[str, str]:
        made = server.services.tokens.make(name, role, ProjectScope.of(projects or None))
        return {"Authorization": f"Bearer {made[1]}"}

    write, bound = headers("writer", "write"), headers("bound", "read", "mine")
    for project in ("mine", "other"):
        agent = Agent(project=project, name=project)
        assert server.post(agent.body(agent.steps()), **write).status_code == 200

    def get(table: str, **asked: str) -> httpx.Response:
        return server.http.get(f"/tables/{table}", params={"format": "json", **asked}, headers=bound)

    assert [row["name"] for row in get("runs").json()] == ["mine"]
    assert get("steps", run="mine").status_code == 200
    assert get("steps", run="other").status_code == 404
    assert server.http.get("/tables/runs").status_code == 401


@pytest.mark.parametrize("how", ["zeros", "a column"])
def test_steps_that_cannot_be_read_are_named(
    start_server: Callable[..., RunningServer], cli: Any, tmp_path: Path, how: str
) -> None:
    server, agent = start_server(), Agent()
    for part in range(3):
        server.send(agent, agent.steps(100, at=part * 10, first=part * 100 + 1))
    damage(server, "steps", 1, how)
    answer = server.http.get("/tables/steps", params={"run": agent.run, "format": "json"})
    assert [row["step"] for row in answer.json()] == [*range(1, 101), *range(201, 301)]
    assert answer.headers["vramscope-damaged-steps"] == "101-200"
    assert answer.headers["content-disposition"].endswith('-steps-incomplete.json"')
    asked = ("--table", "steps", "--out", str(tmp_path / "steps.csv"), "--server", server.url)
    assert "steps 101-200 are damaged" in cli("export", agent.run, *asked)[2]


def test_the_command_writes_a_table(server: RunningServer, runs: list[str], cli: Any, tmp_path: Path) -> None:
    code, out, _ = cli("export", "--server", server.url)
    assert code == 0 and all(table in out for table in TABLES)
    path = tmp_path / "steps.parquet"
    asked = ("--table", "steps", "--format", "parquet", "--out", str(path))
    code, out, _ = cli("export", runs[0], *asked, "--server", server.url)
    assert code == 0 and str(path) in out
    assert pq.read_table(path).num_rows == 17
    code, _, _ = cli("export", NAME, "--table", "steps", "--rank", "1", "--out", str(path), "--server", server.url)
    assert code == 0 and path.read_text().count("\n") == 6
    code, _, _ = cli("export", runs[0], "--table", "whatif", "--out", str(path), "--server", server.url)
    assert code == 0 and "expandable_segments:True" in path.read_text()
    code, _, _ = cli("export", *runs, "--table", "compare", "--out", str(path), "--server", server.url)
    assert code == 0 and path.read_text().count("\n") == 3
    for words in (["--table", "nothing"], ["--table", "steps"], [*runs, "--table", "steps"], ["--table", "compare"]):
        assert cli("export", *words, "--server", server.url)[0] == 2


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_example_of_the_docs_runs_with_pandas(server: RunningServer, runs: list[str], tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "export.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    code = code.replace("http://127.0.0.1:8265", server.url).replace("run=bf16", f"run={runs[0]}")
    folder = str(tmp_path / "packages")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--target", folder, "pandas"]
    subprocess.run(install, check=True, capture_output=True)
    environment = os.environ | {"PYTHONPATH": folder}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert str(LARGE) in done.stdout and str(GIB) in done.stdout
