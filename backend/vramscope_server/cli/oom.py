"""``vramscope oom RUN``: cause of an out-of-memory error, and remedies; ``--message FILE``: of a pasted text."""

from __future__ import annotations

import codecs
import gzip
import io
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, Final

from rich.text import Text
from typing_extensions import TypedDict

from vramscope.oom_diagnosis.diagnosis import Diagnosis, diagnose
from vramscope.oom_diagnosis.evidence import facts_of_message
from vramscope.oom_diagnosis.message import Message, MessageFields
from vramscope.oom_diagnosis.message_kinds import KINDS
from vramscope.oom_diagnosis.parse_message import MAX_CHARACTERS, parse_parts
from vramscope_server.analysis.number_format import amount, count
from vramscope_server.analysis.oom.error_text import numbers_of
from vramscope_server.analysis.oom.saving import saving_words
from vramscope_server.answers.oom import OomExplained, OomList, OomRank
from vramscope_server.answers.oom_record import CounterRow, Culprit
from vramscope_server.answers.other_processes import OtherProcessAtError
from vramscope_server.answers.run_detail import RunAnswer
from vramscope_server.cli.client import Failure, address, ask, path_of, print_json, source_of
from vramscope_server.cli.exit_codes import BAD_ARGUMENTS, CHECK_FAILED, NOT_FOUND
from vramscope_server.cli.format import ABSENT, plain, process_name
from vramscope_server.cli.oom_markdown import ENOUGH, markdown
from vramscope_server.cli.tables import Column, console, print_table
from vramscope_server.reports.source import explained_error

GZIP: Final = b"\x1f\x8b"
MOST_WAIT_SECONDS: Final = 60
_COLUMNS: Final = (
    Column("REMEDY"),
    Column("SAVES", number=True),
    Column("ENOUGH"),
    Column("COST", needed=2),
    Column("SOURCE", needed=1),
)
_RANKS: Final = (
    Column("RANK", number=True),
    Column("STATE"),
    Column("STEP", number=True),
    Column("FREE", number=True),
    Column("ALLOCATED", number=True),
    Column("RESERVED", number=True),
    Column("AT", needed=1),
)
_OTHERS: Final = (
    Column("OTHER PROCESS", needed=1),
    Column("USES", number=True),
    Column("BEFORE", number=True),
)
MOST_OTHERS: Final = 8
MOST_RANKS: Final = 32
_COUNTERS: Final = (Column("COUNTER"), Column("LAST SAMPLE", number=True), Column("AT THE ERROR", number=True))
_KEPT: Final = ("cause", "culprit", "rank", "step", "phase", "message", "survived", "remedies")


def show_markdown(server: str, run: str) -> None:
    """Print the error that ended the run, or its newest one, as Markdown. Raises Failure: 3 the run has none."""
    listed: OomList = ask(server, f"/runs/{path_of(server, run)}/oom")
    if listed["fatal"] is None:
        raise Failure(f"{plain(listed['name'])} has no out-of-memory errors.", NOT_FOUND)
    sys.stdout.write(markdown(explained(server, listed["fatal"]), *_versions(server, listed["run_id"])))


def _versions(server: str, run_id: str) -> tuple[str | None, str | None]:
    """Versions of PyTorch and of HIP, as far as a rank has reported them."""
    detail: RunAnswer = ask(server, f"/runs/{run_id}")
    return next(((rank["torch"], rank["hip"]) for rank in detail["ranks"] if rank["torch"]), (None, None))


def run_command(server: str, as_json: bool, run: str | None, message: str | None, *, as_markdown: bool) -> None:
    """The command: of a run, or of a file with a message. Raises client.Failure, and typer.BadParameter."""
    from typer import BadParameter

    if (run is None) == (message is None):
        raise BadParameter("give either a run or --message")
    if as_markdown and (as_json or run is None):
        raise BadParameter("--markdown needs a run, and excludes --json")
    if message is not None:
        explain(message, as_json)
    elif as_markdown:
        show_markdown(server, str(run))
    else:
        show(server, as_json, str(run))


def show(server: str, as_json: bool, run: str) -> None:
    """Print the error that ended the run, or its newest one. JSON: an object, or null where there is none. Raises Failure."""
    listed: OomList = ask(server, f"/runs/{path_of(server, run)}/oom")
    record = listed["fatal"]
    if record is None:
        _show_none(listed, as_json)
        return
    error = explained(server, record)
    if as_json:
        fields: Mapping[str, object] = error
        rest = {key: value for key, value in fields.items() if key not in _KEPT and key != "text"}
        print_json({key: fields[key] for key in _KEPT} | rest | {"errors": listed["errors"]})
        return
    out = console()
    out.print(Text(plain(error["sentence"]), style="bold red" if error["survived"] is False else "bold yellow"))
    if error["survived"]:
        out.print(Text("The run survived this error.", style="green"))
    if error["remedies"]:
        out.print()
        rows: list[list[str | Text]] = [
            [
                plain(row["what"]),
                saving_words(row, error, ABSENT),
                Text(ENOUGH[row["enough"]], style="bold green" if row["enough"] else "default"),
                plain(row["cost"]),
                f"{row['source']}: {plain(row['source_words'])}",
            ]
            for row in error["remedies"]
        ]
        print_table(out, _COLUMNS, rows)
    if error["neighbours"]:
        out.print()
        if error["neighbours_words"]:
            out.print(Text(plain(error["neighbours_words"])))
        print_table(out, _OTHERS, [_other(row) for row in error["neighbours"][:MOST_OTHERS]])
        if len(error["neighbours"]) > MOST_OTHERS:
            out.print(Text(f"{count(len(error['neighbours']) - MOST_OTHERS)} more processes (see --json)", style="dim"))
    if error["ranks"]:
        out.print()
        print_table(out, _RANKS, [_rank(row) for row in error["ranks"][:MOST_RANKS]])
        if len(error["ranks"]) > MOST_RANKS:
            out.print(Text(f"{count(len(error['ranks']) - MOST_RANKS)} more ranks (see --json)", style="dim"))
    own = [frame for frame in error["stack"] if frame["own"]]
    if own:
        out.print()
        for frame in own[:5]:
            out.print(Text(f"  {plain(frame['file'])}:{frame['line']} in {plain(frame['function'])}"), soft_wrap=True)
    if error["counters"]["rows"]:
        out.print()
        print_table(out, _COUNTERS, [_counter(row) for row in error["counters"]["rows"]])
    if len(listed["errors"]) > 1:
        survived = sum(1 for row in listed["errors"] if row["survived"])
        ranks = sorted({row["rank"] for row in listed["errors"]})
        where = f" on ranks {', '.join(map(str, ranks))}" if len(ranks) > 1 else ""
        summary = f"{count(len(listed['errors']))} out-of-memory errors in this run{where}, {count(survived)} survived"
        out.print(Text(summary, style="dim"))
    out.print(Text(f"{address(server)}/runs/{listed['run_id']}/oom", style="cyan"))


def _rank(row: OomRank) -> list[str | Text]:
    state = {True: "ran out", False: "waited", None: "no record"}[row["ran_out"]]
    if row["record"] is None and row["as_of_seconds"] is not None:
        state += f", sampled {-row['as_of_seconds']:.2f} s before"
    line = f"{plain(row['file']).rpartition('/')[2]}:{row['line']}" if row["file"] else ABSENT
    return [
        str(row["rank"]),
        Text(state, style="bold red" if row["ran_out"] else "default"),
        ABSENT if row["step"] is None else count(row["step"] + 1),
        amount(row["free_bytes"], ABSENT),
        amount(row["allocated_bytes"], ABSENT),
        amount(row["reserved_bytes"], ABSENT),
        line,
    ]


def _other(row: OtherProcessAtError) -> list[str | Text]:
    return [
        process_name(row),
        amount(row["used_bytes"], ABSENT),
        amount(row["before_bytes"], ABSENT)
        + ("" if row["before_seconds"] is None else f", {count(row['before_seconds'])} s earlier"),
    ]


def _counter(row: CounterRow) -> tuple[str, str, str]:
    words = amount if row["name"].endswith("_bytes") else count
    name = row["name"].removesuffix("_bytes").replace("_", " ")
    return name, words(row["before"], ABSENT), words(row["at"], ABSENT)


def explained(server: str, record: str) -> OomExplained:
    """The error with the evidence of the open recording, unless that takes too long. Raises Failure."""
    return explained_error(source_of(server), record, MOST_WAIT_SECONDS)


def _show_none(listed: OomList, as_json: bool) -> None:
    lost = listed["vanished"]
    if as_json:
        print_json(
            None if lost is None else lost | {"culprit": None, "message": None, "survived": False, "remedies": []}
        )
        return
    if lost is not None:
        console().print(Text(plain(lost["sentence"]), style="bold red"))
        console().print(Text(lost["first_aid"]))
    else:
        console().print(f"{plain(listed['name'])} has no out-of-memory errors.", highlight=False)


def explain(file_name: str, as_json: bool) -> None:
    """Explain a text: the error alone, or the last error of a log of any length. Raises Failure: 1 no such error, 2 no
    such file."""
    try:
        if file_name == "-":
            message = _read(sys.stdin.buffer)
        else:
            with Path(file_name).open("rb") as file:
                message = _read(file)
    except OSError as fault:
        raise Failure(f"{plain(file_name)} cannot be read: {fault.strerror}.", BAD_ARGUMENTS) from None
    diagnosis = diagnose(facts_of_message(message)) if message.is_known else None
    if as_json:
        print_json(_as_json(message, diagnosis))
    if diagnosis is None:
        raise Failure("this text has no known out-of-memory error.", CHECK_FAILED)
    if as_json:
        return
    out = console()
    out.print(Text(diagnosis.sentence, style="bold"))
    if message.errors > 1:
        out.print(
            Text(f"The text has {count(message.errors)} errors; this is the last of those that say most.", style="dim")
        )
    if not message.certain:
        out.print(Text("Other errors use the same text: it may not be memory.", style="yellow"))
    if diagnosis.first_aid:
        out.print(Text(diagnosis.first_aid))
    out.print()
    for name, value in _rows(message, diagnosis):
        out.print(Text(f"  {name:<16} {value}"))
    format_words = f"; format: PyTorch {message.wording}" if message.wording else ""
    out.print(Text(f"  {KINDS[message.kind]}{format_words}", style="dim"))


def explained_text(text: str) -> ExplainedText:
    """Explain the last error of a text. Raises Failure: 1 no such error."""
    message = parse_parts([text])
    if not message.is_known:
        raise Failure("this text has no known out-of-memory error.", CHECK_FAILED)
    return _as_json(message, diagnose(facts_of_message(message)))


def _rows(message: Message, diagnosis: Diagnosis) -> Iterator[tuple[str, str]]:
    """Numbers of the text, and what follows from them."""
    if message.device is not None:
        yield "device", str(message.device)
    for name, value in numbers_of(message, diagnosis):
        yield name, amount(value)


class _FirstAid(TypedDict):
    """Fields of a remedy that a text alone has."""

    what: str
    saves_bytes: int | None
    enough: bool | None
    source: str


class ExplainedText(TypedDict):
    """Fields of a run's error that a text alone has."""

    cause: str | None
    sentence: str | None
    culprit: Culprit
    rank: int | None
    step: int | None
    phase: str | None
    message: MessageFields
    survived: bool | None
    remedies: list[_FirstAid]


def _as_json(message: Message, diagnosis: Diagnosis | None) -> ExplainedText:
    """The fields that a text has, as of a run's error."""
    return {
        "cause": None if diagnosis is None else diagnosis.kind.value or None,
        "sentence": None if diagnosis is None else diagnosis.sentence,
        "culprit": {"file": None, "line": None, "module": None},
        "rank": None,
        "step": None,
        "phase": None,
        "message": message.as_dict(),
        "survived": None,
        "remedies": []
        if diagnosis is None or not diagnosis.first_aid
        else [{"what": diagnosis.first_aid, "saves_bytes": None, "enough": None, "source": "advice"}],
    }


def _read(file: BinaryIO) -> Message:
    return parse_parts(_decoded(file))


def _decoded(file: BinaryIO) -> Iterator[str]:
    """Text of a file in parts: UTF-8, or UTF-16 (PowerShell's ``>`` writes that) with or without its mark; gzip is unpacked."""
    data = file.read(MAX_CHARACTERS)
    if data.startswith(GZIP):
        unpacked = gzip.open(io.BytesIO(data + file.read()))  # noqa: SIM115 - ends with the generator
        try:
            yield from _decoded(unpacked)  # type: ignore[arg-type]
        except (EOFError, OSError) as fault:
            raise Failure(f"this gzip file is damaged: {fault}.", BAD_ARGUMENTS) from None
        return
    decoder = codecs.getincrementaldecoder(_encoding(data[:1024]))(errors="replace")
    while data:
        yield decoder.decode(data)
        data = file.read(MAX_CHARACTERS)
    yield decoder.decode(b"", final=True)


def _encoding(start: bytes) -> str:
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    # In UTF-16, every other byte of English text is 0.
    for first, name in ((1, "utf-16-le"), (0, "utf-16-be")):
        zeros = start[first::2].count(0)
        if zeros > 0.8 * max(1, len(start) // 2):
            return name
    return "utf-8-sig"
