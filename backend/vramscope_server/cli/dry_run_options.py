"""Options of ``vramscope dryrun``, apart from the code that runs it, which takes longer to import."""

from __future__ import annotations

from typing import Annotated

import typer

CommandWords = Annotated[list[str], typer.Argument(metavar="-- python train.py", help="Command to run, after --")]
CardKeys = Annotated[
    str,
    typer.Option(help="Card to emulate, as vramscope cards lists them; several with commas, or all"),
]
StepCount = Annotated[int, typer.Option(min=1, help="Optimizer steps after which the training is ended")]
TimeLimit = Annotated[float, typer.Option(min=1, help="Seconds after which a run is ended")]
Tries = Annotated[bool, typer.Option("--try", help="Also try changes, and name the smallest change that fits")]
HtmlFile = Annotated[
    str | None, typer.Option("--html", metavar="FILE", help="With --try: write the table and a chart to this file")
]
Assumed = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FILE:LINE=VALUE",
        help="Value that a line reads from the device; balanced: as many rows for each expert of a mixture (repeatable)",
    ),
]
RankCount = Annotated[int, typer.Option(min=1, help="Number of ranks of the training; one of them is run")]
RankNumber = Annotated[int, typer.Option(min=0, help="The rank that is run")]
