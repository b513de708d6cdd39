"""All tables by name."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from vramscope_server.answers.anatomy import CategoryBytes, ModuleBytes, PhaseBytes, PredictionRow
from vramscope_server.answers.compare import CompareRow
from vramscope_server.answers.leaks import LeakInWords, LeakScan
from vramscope_server.answers.oom import OomError
from vramscope_server.answers.peak import PeakPart
from vramscope_server.answers.profiles import ProfileTableRow
from vramscope_server.answers.recordings import ProfileRow, RecordingRow
from vramscope_server.answers.run_detail import Pitfall, RankRow, RunEvent, Technique
from vramscope_server.answers.runs import ListedRun
from vramscope_server.answers.steps import Step, StepPhase
from vramscope_server.answers.whatif import SweepRow
from vramscope_server.tables.columns import Column, Kind, Part, columns_of
from vramscope_server.tables.table import MissingPart, Row, Rows, Scope, Table, TableQuery, TableSource

PAGE_ROWS: Final = 1000

_RUN: Final = Column("run_id", Kind.text, ("run_id",), ("RunInFull", "run_id"))
_RANK: Final = Column("rank", Kind.integer, ("rank",), ("RankRow", "rank"))
_DEVICE: Final = Column("device", Kind.integer, ("device",), meaning="Index of the device; -1 is the CPU.")


def _runs(source: TableSource, query: TableQuery) -> Iterator[Sequence[Row]]:
    cursor: str | None = ""
    while cursor is not None:
        page = source(
            "/runs", query=query.query, project=query.project, state=query.state, tag=query.tag, device=query.device_name,
            job=query.cluster_job, limit=PAGE_ROWS, cursor=cursor,
        )  # fmt: skip
        yield page["runs"]
        cursor = page["next_cursor"]


def _steps(source: TableSource, query: TableQuery) -> Iterator[Sequence[Row]]:
    run_id = _run_id(source, query)
    for piece in source.steps(run_id, query.rank, query.device, query.first, query.to):
        yield [{"run_id": run_id, "rank": one.rank, "device": one.device, **one.step} for one in piece]


def _phases(source: TableSource, query: TableQuery) -> Iterator[Sequence[Row]]:
    for piece in _steps(source, query):
        yield [{**step, **phase, "phase": name} for step in piece for name, phase in step["phases"].items()]


def _of_run(field: str) -> Rows:
    """Rows that the full answer of a run contains."""

    def rows(source: TableSource, query: TableQuery) -> Iterator[Sequence[Row]]:
        run = source(f"/runs/{_quoted(query.run)}")
        yield [{"run_id": run["run_id"], **row} for row in run[field] or ()]

    return rows


def _ranks(source: TableSource, query: TableQuery) -> Iterator[Sequence[Row]]:
    for piece in _of_run("ranks")(source, query):
        yield [{**rank, "device_names": [one["name"] or "" for one in rank["devices"]]} for rank in piece]


def _below_run(part: str, field: str) -> Rows:
    """Rows of an answer below a run."""

    def rows(source: TableSource, query: TableQuery) -> Iterator[Sequence[Row]]:
        answer = source(f"/runs/{_quoted(query.run)}/{part}")
        yield [{**row, "run_id": answer["run_id"]} for row in answer[field]]

    return rows


def _peak(source: TableSource, query: TableQuery) -> Iterator[Sequence[Row]]:
    peak = source(f"/runs/{_quoted(query.run)}/peak")
    yield [{**peak, **part, "level": level["level"]} for level in peak["levels"] for part in level["parts"]]


def _compare(source: TableSource, query: TableQuery) -> Iterator[Sequence[Row]]:
    answer = source("/compare", runs=query.runs, base=query.base)
    yield [{**row, "not_comparable": [reason["text"] for reason in row["reasons"]]} for row in answer["rows"]]


def _settings(source: TableSource, query: TableQuery) -> Iterator[Sequence[Row]]:
    answer = source("/compare", runs=query.runs, base=query.base)
    differing = {one["name"] for one in answer["differences"]}
    yield [
        {"run": row["run"], "name": row["name"], "setting": setting["name"], "value": value,
         "differs": setting["name"] in differing}
        for setting in answer["settings"]
        for row, value in zip(answer["rows"], setting["values"], strict=True)
    ]  # fmt: skip


def _profile(table: str) -> Rows:
    def rows(source: TableSource, query: TableQuery) -> Iterator[Sequence[Row]]:
        profile = query.profile or _newest(source, query, "profiles", "profile")
        for at in itertools.count(0, PAGE_ROWS):
            page = source(f"/profiles/{_quoted(profile)}/tables/{table}", limit=PAGE_ROWS, offset=at)
            yield [{"profile": profile, "steps": page["steps"], **row} for row in page["rows"]]
            if at + PAGE_ROWS >= page["total"]:
                return

    return rows


def _anatomy(field: str) -> Rows:
    def rows(source: TableSource, query: TableQuery) -> Iterator[Sequence[Row]]:
        recording = query.recording or _newest(source, query, "recordings", "recording")
        answer = source(f"/recordings/{_quoted(recording)}/anatomy")
        yield [{"recording": recording, "step": answer["step"], **row} for row in answer[field]]

    return rows


def _predictions(source: TableSource, query: TableQuery) -> Iterator[Sequence[Row]]:
    recording = query.recording or _newest(source, query, "recordings", "recording")
    answer = source(f"/recordings/{_quoted(recording)}/prediction")
    yield [{"recording": recording, "step": answer["step"], **row} for row in answer["rows"]]


def _whatif(source: TableSource, query: TableQuery) -> Iterator[Sequence[Row]]:
    job = source(f"/recordings/{_quoted(query.recording)}/whatif/{_quoted(query.job)}")
    if job["result"] is None:
        raise MissingPart(job["problem"] or "The what-if is not done yet.")
    yield [{"recording": job["recording"], **row} for row in job["result"]["rows"]]


def _quoted(text: str) -> str:
    return quote(text, safe="")


def _run_id(source: TableSource, query: TableQuery) -> str:
    return str(source(f"/runs/{_quoted(query.run)}")["run_id"])


def _newest(source: TableSource, query: TableQuery, kind: str, field: str) -> str:
    """Newest complete profile or recording of the run. Raises MissingPart."""
    listed: Sequence[Mapping[str, Any]] = source(f"/runs/{_quoted(query.run)}/{kind}")[kind]
    newest = next((str(one[field]) for one in listed if one["whole"]), None)
    if newest is None:
        raise MissingPart(f"The run has no complete {field}.")
    return newest


_PROFILE: Final = (
    Column("profile", Kind.text, ("profile",), ("ProfileRow", "profile")),
    Column("steps", Kind.integer, ("steps",), ("ProfileTable", "steps")),
)
_RECORDING: Final = (
    Column("recording", Kind.text, ("recording",), ("RecordingRow", "recording")),
    Column("step", Kind.integer, ("step",), ("AnatomyAnswer", "step")),
)
_OPERATIONS: Final = ("phase", "shapes")
_MODULES: Final = ("kind",)
_LINES: Final = ("file", "line", "last_line")
_MOMENTS: Final = {"peak_categories": Part("peak_", "_bytes"), "end_categories": Part("end_", "_bytes")}

TABLES: Final[Mapping[str, Table]] = {
    table.name: table
    for table in (
        Table("runs", "All runs", Scope.all, columns_of(ListedRun, without=("sparkline",)), _runs),
        Table("compare", "Runs beside a baseline", Scope.compare,
              (*columns_of(CompareRow, without=("reasons",), parts={"leave_one_out": Part("leave_one_out_")}),
               Column("not_comparable", Kind.texts, ("not_comparable",),
                      meaning="Reasons why the run is not fully comparable.")), _compare),
        Table("settings", "Settings of compared runs", Scope.compare,
              (Column("run", Kind.text, ("run",), ("CompareRow", "run")),
               Column("name", Kind.text, ("name",), ("CompareRow", "name")),
               Column("setting", Kind.text, ("setting",), ("Setting", "name")),
               Column("value_json", Kind.json, ("value",), meaning="Value in this run, as JSON."),
               Column("differs", Kind.boolean, ("differs",), meaning="Whether the runs have different values.")),
              _settings),
        Table("steps", "Peak of each step", Scope.run,
              (_RUN, _RANK, _DEVICE, *columns_of(Step, without=("phases",), parts=_MOMENTS)), _steps),
        Table("phases", "Peak and duration of each phase of each step", Scope.run,
              (_RUN, _RANK, _DEVICE, Column("step", Kind.integer, ("step",), ("Step", "step")),
               Column("first_step", Kind.integer, ("first_step",), ("Step", "first_step")),
               Column("phase", Kind.text, ("phase",), meaning="Name of the phase."), *columns_of(StepPhase)), _phases),
        Table("ranks", "Ranks", Scope.run,
              (_RUN, *columns_of(RankRow, without=("not_finite",), parts={"loss": Part("loss_")}),
               Column("device_names", Kind.texts, ("device_names",), meaning="Names of the devices.")), _ranks),
        Table("events", "Events", Scope.run, (_RUN, *columns_of(RunEvent)), _of_run("events")),
        Table("techniques", "Techniques that save memory", Scope.run, (_RUN, *columns_of(Technique)),
              _of_run("techniques")),
        Table("pitfalls", "Pitfalls in the training loop", Scope.run, (_RUN, *columns_of(Pitfall)),
              _of_run("findings")),
        Table("leaks", "Leaks", Scope.run, (_RUN, *columns_of(LeakInWords)), _below_run("leaks", "leaks")),
        Table("leak_scans", "Newest scan for leaks of each rank", Scope.run, (_RUN, *columns_of(LeakScan)),
              _below_run("leaks", "scans")),
        Table("peak", "Parts of the memory at the peak", Scope.run,
              (_RUN, _RANK, _DEVICE, Column("step", Kind.integer, ("step",), ("PeakMemory", "step")),
               Column("level", Kind.text, ("level",), ("PeakLevel", "level")), *columns_of(PeakPart)), _peak),
        Table("out_of_memory", "Out-of-memory errors", Scope.run, columns_of(OomError), _below_run("oom", "errors")),
        Table("recordings", "Recordings", Scope.run, columns_of(RecordingRow), _below_run("recordings", "recordings")),
        Table("profiles", "Profiles", Scope.run, columns_of(ProfileRow), _below_run("profiles", "profiles")),
        Table("operations", "Operations of a profile", Scope.profile,
              (*_PROFILE, *columns_of(ProfileTableRow, without=(*_MODULES, *_LINES))), _profile("operations")),
        Table("modules", "Modules of a profile", Scope.profile,
              (*_PROFILE, *columns_of(ProfileTableRow, without=(*_OPERATIONS, *_LINES))), _profile("modules")),
        Table("lines", "Source lines of a profile", Scope.profile,
              (*_PROFILE, *columns_of(ProfileTableRow, without=(*_OPERATIONS, *_MODULES))), _profile("lines")),
        Table("categories_at_peak", "Categories at the peak of a recording", Scope.recording,
              (*_RECORDING, *columns_of(CategoryBytes)), _anatomy("categories")),
        Table("phases_at_peak", "Phases that allocated the memory at the peak of a recording", Scope.recording,
              (*_RECORDING, *columns_of(PhaseBytes)), _anatomy("phases")),
        Table("modules_at_peak", "Modules at the peak of a recording", Scope.recording,
              (*_RECORDING, *columns_of(ModuleBytes)), _anatomy("modules")),
        Table("predictions", "Peaks with other techniques, predicted", Scope.recording,
              (*_RECORDING, *columns_of(PredictionRow, parts={"techniques": Part("")})), _predictions),
        Table("whatif", "Allocator settings, replayed", Scope.whatif,
              (_RECORDING[0], *columns_of(SweepRow, without=("band",), parts={"risk": Part("risk_")}),
               Column("band_low_bytes", Kind.integer, ("band", 0), ("SweepRow", "band")),
               Column("band_high_bytes", Kind.integer, ("band", 1), ("SweepRow", "band"))), _whatif),
    )
}  # fmt: skip
"""Tables by name, in the order in which they are listed."""
