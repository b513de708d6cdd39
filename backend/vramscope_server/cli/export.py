"""``vramscope export RUN --table NAME``: a table as CSV, JSON or Parquet."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from vramscope_server.analysis.number_format import amount
from vramscope_server.answers.tables import NamedTable
from vramscope_server.answers.whatif import WhatifJob
from vramscope_server.cli.client import Connection, Failure, ask, fetch, id_of
from vramscope_server.cli.compare import joined
from vramscope_server.cli.exit_codes import BAD_ARGUMENTS, NO_SERVER
from vramscope_server.cli.format import plain
from vramscope_server.cli.progress import Bar
from vramscope_server.cli.report import file_name
from vramscope_server.cli.tables import Column, console, print_table
from vramscope_server.cli.trace_source import newest_recording

_RUN_FIRST: Final = ("run", "profile", "recording", "whatif")
"""Scopes whose tables are of one run."""
_POLL_SECONDS: Final = 0.3


def run_command(server: str, runs: Sequence[str], name: str, form: str, out: str | None, rank: int | None) -> None:
    """List the tables, or write one to a file. Raises client.Failure."""
    tables: list[NamedTable] = ask(server, "/tables")
    if not name:
        _print_tables(tables)
        return
    table = next((one for one in tables if one["name"] == name), None)
    if table is None:
        names = ", ".join(one["name"] for one in tables)
        raise Failure(f"--table {plain(name)}: expected one of {names}", BAD_ARGUMENTS)
    parameters = {"format": form, "rank": rank, **_place(server, table, runs)}
    data = fetch(server, f"/tables/{table['name']}", **parameters)
    if out == "-":
        sys.stdout.buffer.write(data)
        return
    of_run = f"{file_name(runs[0])}-" if len(runs) == 1 else ""
    path = Path(out or f"{of_run}{name}.{form}")
    try:
        path.write_bytes(data)
    except OSError as fault:
        raise Failure(f"--out {plain(str(path))}: {fault.strerror}", BAD_ARGUMENTS) from fault
    print(f"{path} ({amount(path.stat().st_size)})")


def _print_tables(tables: Sequence[NamedTable]) -> None:
    columns = [Column("TABLE"), Column("NEEDS"), Column("CONTENT"), Column("COLUMNS", number=True)]
    needs = {"all": "", "compare": "runs"}
    rows = [[one["name"], needs.get(one["scope"], "a run"), one["title"], str(len(one["columns"]))] for one in tables]
    print_table(console(), columns, rows)


def _place(server: str, table: NamedTable, runs: Sequence[str]) -> dict[str, str]:
    """Parameters that name what the table is of."""
    scope = table["scope"]
    if scope == "compare" and runs:
        return {"runs": joined(server, runs)}
    if scope == "all" and not runs:
        return {}
    if scope not in _RUN_FIRST or len(runs) != 1:
        needed = {"all": "no run", "compare": "one or more runs"}.get(scope, "one run")
        raise Failure(f"the table {table['name']} needs {needed}.", BAD_ARGUMENTS)
    run = id_of(server, runs[0]) if "/" in runs[0] else runs[0]
    return _replayed(server, newest_recording(server, run, "replay")) if scope == "whatif" else {"run": run}


def _replayed(server: str, recording: str) -> dict[str, str]:
    """Run the usual what-if on a recording. Raises Failure."""
    with Connection(server) as connection, Bar("replaying settings", of_bytes=False) as tell:
        job: WhatifJob = connection.ask("POST", f"/recordings/{recording}/whatif")
        while job["state"] in ("waiting", "running"):
            tell(job["done"], job["total"])
            time.sleep(_POLL_SECONDS)
            job = connection.ask("GET", f"/recordings/{recording}/whatif/{job['job']}")
    if job["state"] != "done":
        raise Failure(f"the what-if failed: {plain(job['problem'] or 'no reason')}", NO_SERVER)
    return {"recording": recording, "job": job["job"]}
