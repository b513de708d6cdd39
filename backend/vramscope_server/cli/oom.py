"""``vramscope oom RUN``: why it ran out of memory and what would have been enough; ``--message FILE``: of a pasted text."""

from __future__ import annotations

import codecs
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

from rich.text import Text

from vramscope.oom_diagnosis.cause import CAUSES, judge
from vramscope.oom_diagnosis.evidence import facts_of_message
from vramscope.oom_diagnosis.message import KINDS, MAX_CHARACTERS, Message, parse_pieces
from vramscope_server.cli.client import BAD_WORDS, CHECK_FAILED, Failure, address, ask, path_of, print_json
from vramscope_server.cli.format import ABSENT, amount, count, plain
from vramscope_server.cli.tables import Column, console, print_table

WAIT_SECONDS: Final = 5
MOST_WAIT_SECONDS: Final = 60
ENOUGH: Final = {True: "yes", False: "no", None: "may be"}
_COLUMNS: Final = (
    Column("REMEDY"),
    Column("SAVES", number=True),
    Column("ENOUGH"),
    Column("COST", needed=2),
    Column("SOURCE", needed=1),
)
_RANKS: Final = (
    Column("RANK", number=True),
    Column("IT"),
    Column("STEP", number=True),
    Column("FREE", number=True),
    Column("ALLOCATED", number=True),
    Column("RESERVED", number=True),
    Column("AT", needed=1),
)
MOST_RANKS: Final = 32
_COUNTERS: Final = (Column("COUNTER"), Column("BEFORE", number=True), Column("AT THE ERROR", number=True))
_KEPT: Final = ("cause", "culprit", "rank", "step", "phase", "message", "survived", "remedies")


def show(server: str, as_json: bool, run: str) -> None:
    """Print the error that ended the run, or its newest one; JSON: an object, or null where there is none. Raises Failure."""
    told: dict[str, Any] = ask(server, f"/runs/{path_of(server, run)}/oom")
    record = told["fatal"]
    if record is None:
        _show_none(told, as_json)
        return
    error = _explained(server, record)
    if as_json:
        rest = {key: value for key, value in error.items() if key not in _KEPT and key != "text"}
        print_json({key: error[key] for key in _KEPT} | rest | {"errors": told["errors"]})
        return
    out = console()
    out.print(Text(plain(error["sentence"]), style="bold red" if error["survived"] is False else "bold yellow"))
    if error["survived"]:
        out.print(Text("The run survived it.", style="green"))
    if error["remedies"]:
        out.print()
        rows: list[list[str | Text]] = [
            [
                plain(row["what"]),
                amount(row["saves_bytes"], ABSENT),
                Text(ENOUGH[row["enough"]], style="bold green" if row["enough"] else "default"),
                plain(row["cost"]),
                f"{row['source']}: {plain(row['source_words'])}",
            ]
            for row in error["remedies"]
        ]
        print_table(out, _COLUMNS, rows)
    if error["ranks"]:
        out.print()
        print_table(out, _RANKS, [_rank(row) for row in error["ranks"][:MOST_RANKS]])
        if len(error["ranks"]) > MOST_RANKS:
            out.print(Text(f"{count(len(error['ranks']) - MOST_RANKS)} more ranks: --json", style="dim"))
    own = [frame for frame in error["stack"] if frame["own"]]
    if own:
        out.print()
        for frame in own[:5]:
            out.print(Text(f"  {plain(frame['file'])}:{frame['line']} in {plain(frame['function'])}"), soft_wrap=True)
    if error["counters"]["rows"]:
        out.print()
        print_table(out, _COUNTERS, [_counter(row) for row in error["counters"]["rows"]])
    if len(told["errors"]) > 1:
        survived = sum(1 for row in told["errors"] if row["survived"])
        ranks = sorted({row["rank"] for row in told["errors"]})
        where = f" on ranks {', '.join(map(str, ranks))}" if len(ranks) > 1 else ""
        of_them = f"{count(len(told['errors']))} such errors in this run{where}, {count(survived)} of them survived"
        out.print(Text(of_them, style="dim"))
    out.print(Text(f"{address(server)}/runs/{told['run_id']}/oom", style="cyan"))


def _rank(row: dict[str, Any]) -> list[str | Text]:
    what = {True: "ran out", False: "waited", None: "no record came"}[row["ran_out"]]
    if row["record"] is None and row["as_of_seconds"] is not None:
        what += f"; {-row['as_of_seconds']:.2f} s before:"
    place = f"{plain(row['file']).rpartition('/')[2]}:{row['line']}" if row["file"] else ABSENT
    return [
        str(row["rank"]),
        Text(what, style="bold red" if row["ran_out"] else "default"),
        ABSENT if row["step"] is None else count(row["step"] + 1),
        *(amount(row[name], ABSENT) for name in ("free_bytes", "allocated_bytes", "reserved_bytes")),
        place,
    ]


def _counter(row: dict[str, Any]) -> tuple[str, str, str]:
    words = amount if row["name"].endswith("_bytes") else count
    name = row["name"].removesuffix("_bytes").replace("_", " ")
    return name, words(row["before"], ABSENT), words(row["at"], ABSENT)


def _explained(server: str, record: str) -> dict[str, Any]:
    """With what the open window adds, unless that takes too long: then without."""
    until = time.monotonic() + MOST_WAIT_SECONDS
    while True:
        error: dict[str, Any] = ask(server, f"/oom/{record}", wait_seconds=WAIT_SECONDS)
        if not error["pending"] or time.monotonic() > until:
            return error
        time.sleep(0.1)


def _show_none(told: dict[str, Any], as_json: bool) -> None:
    gone = told["vanished"]
    if as_json:
        print_json(
            None if gone is None else gone | {"culprit": None, "message": None, "survived": False, "remedies": []}
        )
        return
    if gone is not None:
        console().print(Text(plain(gone["sentence"]), style="bold red"))
        console().print(Text(gone["first_aid"]))
    else:
        console().print(f"{plain(told['name'])} had no out-of-memory error that is known here.", highlight=False)


def explain(place: str, as_json: bool) -> None:
    """Explain a text: the error alone, or a log of any length, of whose errors the last is told. Raises Failure: 1 where no such
    error is in it, 2 no such file."""
    try:
        if place == "-":
            told = _read(sys.stdin.buffer)
        else:
            with Path(place).open("rb") as file:
                told = _read(file)
    except OSError as fault:
        raise Failure(f"{plain(place)} cannot be read: {fault.strerror}.", BAD_WORDS) from None
    verdict = judge(facts_of_message(told)) if told.is_known else None
    cause = verdict.cause if verdict is not None and verdict.cause in CAUSES else None
    if as_json:
        print_json(
            {
                "cause": cause,
                "sentence": None if verdict is None else verdict.sentence,
                "culprit": {"file": None, "line": None, "module": None},
                "rank": None,
                "step": None,
                "phase": None,
                "message": told.as_dict(),
                "survived": None,
                "remedies": []
                if verdict is None or not verdict.first_aid
                else [{"what": verdict.first_aid, "saves_bytes": None, "enough": None, "source": "advice"}],
            }
        )
    if verdict is None:
        raise Failure("there is no out-of-memory error in this text that is known here.", CHECK_FAILED)
    if as_json:
        return
    out = console()
    out.print(Text(verdict.sentence, style="bold"))
    if told.errors > 1:
        out.print(Text(f"The text tells of {count(told.errors)} errors; this is the last.", style="dim"))
    if not told.certain:
        out.print(Text("These words are used for other errors too: it may not be memory.", style="yellow"))
    if verdict.first_aid:
        out.print(Text(verdict.first_aid))
    out.print()
    for name, value in told.as_dict().items():
        if name.endswith("_bytes") and isinstance(value, int):
            off = told.rounding_bytes.get(name)
            out.print(
                Text(
                    f"  {name.removesuffix('_bytes').replace('_', ' '):<16} {amount(value)}{f' ± {amount(off)}' if off else ''}"
                )
            )
    out.print(
        Text(f"  {KINDS[told.kind]}{f'; as PyTorch {told.wording} says it' if told.wording else ''}", style="dim")
    )


def _read(file: BinaryIO) -> Message:
    return parse_pieces(_decoded(file))


def _decoded(file: BinaryIO) -> Iterator[str]:
    """UTF-8, or what its first bytes say: PowerShell's ``>`` writes UTF-16."""
    data = file.read(MAX_CHARACTERS)
    utf_16 = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    decoder = codecs.getincrementaldecoder("utf-16" if utf_16 else "utf-8-sig")(errors="replace")
    while data:
        yield decoder.decode(data)
        data = file.read(MAX_CHARACTERS)
    yield decoder.decode(b"", final=True)
