"""``vramscope predict RUN``: predicted peak of a recorded step with other techniques."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.text import Text

from vramscope_server.analysis.number_format import amount, count, percent
from vramscope_server.answers.anatomy import PredictionAnswer, PredictionRow, TechniquePlan
from vramscope_server.cli.client import ask, print_json
from vramscope_server.cli.format import ABSENT, plain
from vramscope_server.cli.tables import Column, console, print_table
from vramscope_server.cli.trace_source import newest_recording

_COLUMNS: Final = (
    Column("TECHNIQUES"),
    Column("PEAK ALLOCATED", number=True),
    Column("SAVED", number=True),
    Column("", number=True),
    Column("ROWS THAT FIT", needed=1, number=True),
)


def show(server: str, as_json: bool, run: str, techniques: Sequence[str]) -> None:
    """Print the predictions, the recorded step first, or the API's answer as JSON. Raises client.Failure."""
    newest = newest_recording(server, run, "predict from")
    prediction: PredictionAnswer = ask(server, f"/recordings/{newest}/prediction", techniques=",".join(techniques))
    if as_json:
        print_json(prediction)
        return
    out = console()
    if prediction["rows"]:
        out.print(Text(f"predicted from step {prediction['step']}", style="bold"))
        print_table(out, _COLUMNS, [_cells(row, prediction) for row in prediction["rows"]])
        out.print()
    for note in prediction["notes"]:
        out.print(Text(f"note: {plain(note)}", style="dim"))


def _cells(row: PredictionRow, prediction: PredictionAnswer) -> list[str]:
    peak, saved = row["peak_allocated_bytes"], row["saved_bytes"]
    is_recorded = row is prediction["rows"][0]
    return [
        "as recorded" if is_recorded else _techniques(row["techniques"], row["rows"]),
        amount(peak, ABSENT),
        "" if is_recorded else amount(saved, ABSENT),
        "" if is_recorded or saved is None or peak is None else percent(saved / (peak + saved)),
        _fit(row["rows_that_fit"], prediction["furthest_rows"]),
    ]


def _techniques(techniques: TechniquePlan, rows: int | None) -> str:
    parts = techniques["gradient_accumulation"]
    of = "" if rows is None else f" x {count(rows)} {'row' if rows == 1 else 'rows'}"
    words = {
        f"accumulation {parts}{of}": parts > 1,
        "checkpointing": techniques["gradient_checkpointing"],
        "8-bit state": techniques["optimizer_8bit"],
        "foreach=False": techniques["no_foreach"],
    }
    return " + ".join(name for name, used in words.items() if used)


def _fit(rows: int | None, furthest: int | None) -> str:
    if rows is None or furthest is None:
        return ABSENT
    return f"{count(rows)} or more" if rows >= furthest else count(rows)
