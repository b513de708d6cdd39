"""Options of ``vramscope export``."""

from __future__ import annotations

from typing import Annotated

import typer

from vramscope_server.tables.formats import TableFile

Runs = Annotated[
    list[str] | None, typer.Argument(help="Run; several, baseline first, for compare and settings", metavar="RUN")
]
TableName = Annotated[str, typer.Option(help="Table to write (default: list all tables)", metavar="NAME")]
FileFormat = Annotated[TableFile, typer.Option("--format", help="Format of the file")]
OutFile = Annotated[
    str | None, typer.Option(help="File to write (default: RUN-TABLE.FORMAT; - = standard output)", metavar="FILE")
]
RankNumber = Annotated[int | None, typer.Option(help="Rank of the steps (default: all)")]
