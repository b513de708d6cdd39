"""``vramscope mcp``: answers the questions of a coding agent over the Model Context Protocol, on standard input and output."""

from __future__ import annotations

import contextlib
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

from vramscope import __version__
from vramscope_server.answers.anatomy import PredictionAnswer
from vramscope_server.answers.compare import CompareAnswer
from vramscope_server.cli.client import Failure, address, ask, path_of
from vramscope_server.cli.coding_agents import run_answers
from vramscope_server.cli.coding_agents.quoted import NOTICE, quoted, said
from vramscope_server.cli.oom import explained_text
from vramscope_server.cli.snapshot import report_of
from vramscope_server.cli.trace_source import is_file, newest_recording
from vramscope_server.cli.whatif import rows_of

INSTRUCTIONS: Final = (
    "vramscope knows where the GPU memory of PyTorch trainings goes. For a run that died ask explain_out_of_memory; for memory "
    "that creeps up ask find_leaks; for a smaller peak ask peak_anatomy and predict_techniques. RUN is an id, a unique prefix of "
    f"it, or a name; list_runs gives them. {NOTICE}"
)
MOST_TEXT: Final = 200_000
"""Characters of a log that explain_text reads, from its end."""
DRY_RUN_SECONDS: Final = 900
SPARE_SECONDS: Final = 120
"""Time in which a dry run that takes too long can end its training."""
_READS: Final = ToolAnnotations(read_only_hint=True, destructive_hint=False, open_world_hint=False)
_COMPARED: Final = (
    "state",
    "peak_allocated_bytes",
    "saved_fraction",
    "peak_reserved_bytes",
    "lower_bounds",
    "step_seconds_median",
    "step_time_ratio",
    "batch",
    "accumulation",
    "leaks",
    "final_loss",
)
_SETTING: Final = (
    "device",
    "conf",
    "recorded",
    "recommended",
    "peak_reserved_bytes",
    "smallest_card_bytes",
    "saved_bytes",
    "out_of_memory",
    "certainty",
)


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """A Failure becomes the tool's error."""
    try:
        yield
    except Failure as failure:
        raise ToolError(said(str(failure))) from None


def made(server: str, *, may_run: bool) -> MCPServer[Any]:
    """Return the protocol's server. ``may_run`` offers dry_run, which executes programs; all other tools only read."""
    offered: MCPServer[Any] = MCPServer(
        "vramscope", instructions=INSTRUCTIONS, version=__version__, log_level="WARNING"
    )

    @offered.tool(annotations=_READS)
    def list_runs(words: str = "", limit: int = 20) -> run_answers.Runs:
        """List the newest runs: state, peak, number of leaks and errors. words: in name, project, tags or device."""
        with _refusals():
            return run_answers.runs(server, words, max(1, min(limit, 100)))

    @offered.tool(annotations=_READS)
    def summarize_run(run: str) -> run_answers.Summary:
        """Peak of a run, what it is made of, whether something leaks, and mistakes that cost memory."""
        with _refusals():
            return run_answers.summary(server, run)

    @offered.tool(annotations=_READS)
    def explain_out_of_memory(run: str) -> run_answers.OutOfMemory:
        """Cause of a run's out-of-memory error, the source line to change, and changes with what each saves.

        enough: true means that a replay or measurement shows that the run survives with this change alone.
        """
        with _refusals():
            found = run_answers.out_of_memory(server, run)
        if found is None:
            raise ToolError("This run has no out-of-memory error. summarize_run tells how it ended.")
        return found

    @offered.tool(annotations=_READS)
    def find_leaks(run: str) -> run_answers.Leaks:
        """Variables that retain memory of earlier steps: name, file, line, bytes, and the change."""
        with _refusals():
            return run_answers.leaks(server, run)

    @offered.tool(annotations=_READS)
    def peak_anatomy(run: str) -> run_answers.Anatomy:
        """Memory at the peak of the newest recorded step by category and module, and advice with lines."""
        with _refusals():
            return run_answers.anatomy(server, run)

    @offered.tool(annotations=_READS)
    def predict_techniques(run: str, techniques: list[str] | None = None) -> dict[str, Any]:
        """Predict the allocated peak of a recorded step with other techniques.

        techniques: gradient_checkpointing, gradient_accumulation:4, optimizer_8bit, no_foreach, or several joined by +. None
        predicts all that lower the peak.
        """
        with _refusals():
            newest = newest_recording(server, run, "predict from")
            answer: PredictionAnswer = ask(
                server, f"/recordings/{newest}/prediction", techniques=",".join(techniques or [])
            )
            page = f"{address(server)}/runs/{path_of(server, run)}/anatomy"
        return {"notice": NOTICE, **answer, "page": page}

    @offered.tool(annotations=_READS)
    def what_if_settings(run: str, settings: list[str] | None = None) -> dict[str, Any]:
        """Replay a run's newest recording under other allocator settings, as expandable_segments:True."""
        with _refusals():
            if is_file(run):
                raise ToolError(said(f"{run!r} looks like a file; this tool takes runs."))
            rows = rows_of(server, run, settings or [], None)
            page = f"{address(server)}/runs/{path_of(server, run)}/fragmentation"
        return {
            "notice": NOTICE,
            "rows": [{name: row.get(name) for name in _SETTING} for row in rows],
            "page": page,
        }

    @offered.tool(annotations=_READS)
    def compare_runs(baseline: str, runs: list[str]) -> dict[str, Any]:
        """Peaks, step times and settings of runs against a baseline."""
        with _refusals():
            answer: CompareAnswer = ask(server, "/compare", runs=",".join([baseline, *runs]), base=baseline)
        return {
            "notice": NOTICE,
            "rows": [
                {
                    "run_id": row["run"],
                    **{name: row[name] for name in _COMPARED},
                    "not_comparable": [said(reason["text"]) for reason in row["reasons"]],
                    "from_run": {"name": quoted(row["name"])},
                }
                for row in answer["rows"]
            ],
            "from_run": {
                "differing_settings": [
                    {"name": quoted(one["name"], 100), "values": [quoted(str(value), 100) for value in one["values"]]}
                    for one in answer["differences"][:40]
                ]
            },
            "page": f"{address(server)}/compare?runs={','.join(row['run'] for row in answer['rows'])}",
        }

    @offered.tool(annotations=_READS)
    def explain_text(text: str) -> dict[str, Any]:
        """Explain the text of an out-of-memory error, or the last one in a log. Needs no run and no server."""
        with _refusals():
            return {"notice": NOTICE, **explained_text(text[-MOST_TEXT:])}

    @offered.tool(annotations=_READS)
    def summarize_snapshot(path: str) -> dict[str, Any]:
        """Summarize a file of torch.cuda.memory._dump_snapshot: peak, source lines, categories. It is read, never executed."""
        with _refusals():
            report = report_of(Path(path))
        for device in report["devices"]:
            device["sites"] = device["sites"][: run_answers.MOST_ROWS]
            for site in device["sites"]:
                site["file"], site["function"] = quoted(site["file"]), quoted(site["function"]) or ""
                site["module"] = quoted(site["module"])
        return {"notice": NOTICE, "from_run": report}

    if may_run:

        @offered.tool(annotations=ToolAnnotations(read_only_hint=False, open_world_hint=True))
        def dry_run(command: str, card: str = "", folder: str = ".") -> dict[str, Any]:
            """Run a training for three steps on an emulated GPU: does it fit on this card? It executes the command."""
            try:
                words = shlex.split(command)
            except ValueError as fault:
                raise ToolError(f"The command cannot be split into words: {fault}.") from None
            return _dry_run(words, card, Path(folder))

    return offered


def _dry_run(command: list[str], card: str, folder: Path) -> dict[str, Any]:
    # The program ends its training by itself, which a killed process could not do.
    words = [
        sys.executable,
        "-m",
        "vramscope_server",
        "dryrun",
        "--json",
        f"--timeout={DRY_RUN_SECONDS}",
        *(["--card", card] if card else []),
        "--",
        *command,
    ]
    try:
        done = subprocess.run(
            words,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=DRY_RUN_SECONDS + SPARE_SECONDS,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise ToolError(f"The dry run did not end within {DRY_RUN_SECONDS} s.") from None
    except OSError as fault:
        raise ToolError(f"The dry run did not start: {fault.strerror}.") from None
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        raise ToolError(quoted(done.stderr[-2_000:], 2_000) or f"The dry run ended with {done.returncode}.") from None
    return answer


def serve(server: str, *, may_run: bool) -> None:
    """Answer until standard input ends. Raises Failure where the address is none."""
    address(server)
    made(server, may_run=may_run).run("stdio")
