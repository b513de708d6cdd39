"""The command line: one module per subcommand. All but ``server`` use a server's HTTP API."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from vramscope import __version__
from vramscope_server.agent_commands import AGENT_COMMANDS
from vramscope_server.cli import dry_run_options as options
from vramscope_server.cli import export_options
from vramscope_server.cli.choices import TableFormat, TokenAction, TokenRole
from vramscope_server.cli.exit_codes import BAD_ARGUMENTS
from vramscope_server.tables.formats import TableFile

app = typer.Typer(
    name="vramscope",
    help="GPU memory monitor for PyTorch training.\n\n\b\n"
    "vramscope server                   start the server\n"
    "vramscope run -- python train.py   watch a training, in a second terminal",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

ServerUrl = Annotated[str, typer.Option("--server", envvar="VRAMSCOPE_SERVER", help="Server address", metavar="URL")]
DEFAULT_SERVER = "http://127.0.0.1:8265"
Json = Annotated[bool, typer.Option("--json", help="Print JSON")]
RunName = Annotated[str, typer.Argument(help="Run id, unique id prefix, or name", metavar="RUN")]
DatabaseUrl = Annotated[str | None, typer.Option(help="SQLAlchemy URL, or path of an SQLite file")]
DataFolder = Annotated[Path | None, typer.Option(help="Folder of the SQLite file, if --database is not given")]


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version")] = False) -> None:
    if version:
        print(f"vramscope {__version__}")
        raise typer.Exit


@app.command()
def server(
    host: Annotated[str | None, typer.Option(help="Address to listen at; beyond loopback tokens are required")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen at (default 8265; 0 = any free port)")] = None,
    database: DatabaseUrl = None,
    data_dir: DataFolder = None,
    workers: Annotated[int | None, typer.Option(help="Number of processes (default 1; more need PostgreSQL)")] = None,
) -> None:
    """Run the server. Defaults come from VRAMSCOPE_HOST, VRAMSCOPE_PORT and so on."""
    from vramscope_server.cli.server import serve

    raise typer.Exit(serve(host, port, database, data_dir, workers))


@app.command(context_settings={"ignore_unknown_options": True}, add_help_option=False)
def run(words: Annotated[list[str], typer.Argument(metavar="-- python train.py")]) -> None:
    """Watch a training: vramscope run -- python train.py"""
    raise typer.Exit(AGENT_COMMANDS["run"](words))


@app.command()
def demo(
    steps: Annotated[int, typer.Option(min=0, help="Optimizer steps (0 = until Ctrl-C)")] = 0,
    server: ServerUrl = DEFAULT_SERVER,
) -> None:
    """Train a small model as a demo. Starts a server if none runs."""
    from vramscope_server.cli.demo import show

    raise typer.Exit(show(server, steps))


@app.command("ls")
def list_runs(
    words: Annotated[
        list[str] | None,
        typer.Argument(help="Only runs with these words in name, project, tags or device", metavar="WORDS"),
    ] = None,
    project: Annotated[str, typer.Option(help="Only this project")] = "",
    state: Annotated[str, typer.Option(help="Only this state: running, finished, failed or lost")] = "",
    job: Annotated[str, typer.Option(help="Only this job or array of a cluster, or this pod", metavar="ID")] = "",
    limit: Annotated[
        int | None, typer.Option(min=0, help="Maximum rows (default 50; 0 = all; all with --json)")
    ] = None,
    server: ServerUrl = DEFAULT_SERVER,
    as_json: Json = False,
) -> None:
    """List runs."""
    from vramscope_server.cli.ls import show

    show(server, as_json, query=" ".join(words or []), project=project, state=state, job=job, limit=limit)


@app.command("show")
def show_run(run: RunName, server: ServerUrl = DEFAULT_SERVER, as_json: Json = False) -> None:
    """Show one run: its peak and the memory breakdown."""
    from vramscope_server.cli.show import show

    show(server, as_json, run)


@app.command()
def steps(
    run: RunName,
    rank: Annotated[int | None, typer.Option(help="Rank (default: the lowest)")] = None,
    device: Annotated[int | None, typer.Option(help="Device index (default: the rank's first)")] = None,
    first: Annotated[int | None, typer.Option("--from", help="First step")] = None,
    to: Annotated[int | None, typer.Option(help="Last step, inclusive")] = None,
    last: Annotated[
        int | None,
        typer.Option(
            min=1, max=100_000, help="Only the newest steps (default 20 without --from and --to; all with --json)"
        ),
    ] = None,
    server: ServerUrl = DEFAULT_SERVER,
    as_json: Json = False,
) -> None:
    """Show the exact peak of each step."""
    from vramscope_server.cli.steps import show

    show(server, as_json, run, rank=rank, device=device, first=first, to=to, last=last)


@app.command()
def compare(
    baseline: Annotated[str, typer.Argument(help="Run to compare with", metavar="BASELINE")],
    run: Annotated[list[str], typer.Argument(help="Run ids, unique id prefixes, or names", metavar="RUN")],
    server: ServerUrl = DEFAULT_SERVER,
    form: Annotated[TableFormat | None, typer.Option("--format", help="Print the table in this format")] = None,
    each: Annotated[bool, typer.Option("--each", help="Show repeats of a configuration in separate rows")] = False,
    as_json: Json = False,
) -> None:
    """Compare runs with a baseline: peaks, savings, step times."""
    from vramscope_server.cli.compare import show

    show(server, "json" if as_json else form.value if form else None, baseline, run, each=each)


@app.command()
def check(
    run: RunName,
    peak_allocated: Annotated[
        str | None, typer.Option(help="Maximum peak allocated, such as 20GiB", metavar="SIZE")
    ] = None,
    peak_reserved: Annotated[
        str | None, typer.Option(help="Maximum peak reserved, such as 20GiB", metavar="SIZE")
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(help="Run whose peak allocated must not be exceeded", metavar="RUN")
    ] = None,
    tolerance: Annotated[
        float, typer.Option(min=0, max=1000, help="Percent by which the baseline may be exceeded", metavar="PERCENT")
    ] = 1.0,
    skip: Annotated[
        list[str] | None, typer.Option(help="Skip finished, oom or leaks (repeatable)", metavar="CHECK")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Fail on unknown values too")] = False,
    server: ServerUrl = DEFAULT_SERVER,
    as_json: Json = False,
) -> None:
    """For CI: exit 1 if a run failed, leaked or exceeded a limit."""
    from vramscope_server.cli.check import Limits, show

    show(server, as_json, run, Limits(peak_allocated, peak_reserved, baseline, tolerance), skip or [], strict)


@app.command()
def diff(
    a: Annotated[str, typer.Argument(help="Run (id, unique id prefix, name) or snapshot file", metavar="A")],
    b: Annotated[str, typer.Argument(help="Run or snapshot file to compare with A", metavar="B")],
    server: ServerUrl = DEFAULT_SERVER,
    as_json: Json = False,
) -> None:
    """Compare memory by source line at the peaks of A and B."""
    from vramscope_server.cli.diff import show

    show(server, as_json, a, b)


@app.command()
def leaks(run: RunName, server: ServerUrl = DEFAULT_SERVER, as_json: Json = False) -> None:
    """Show leaks: the holder, its source line and the fix."""
    from vramscope_server.cli.leaks import show

    show(server, as_json, run)


@app.command()
def oom(
    run: Annotated[str | None, typer.Argument(help="Run id, unique id prefix, or name", metavar="[RUN]")] = None,
    message: Annotated[
        str | None, typer.Option(help="Explain this error text or log instead (- = standard input)", metavar="FILE")
    ] = None,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print Markdown for an issue; long paths are shortened")
    ] = False,
    server: ServerUrl = DEFAULT_SERVER,
    as_json: Json = False,
) -> None:
    """Explain an out-of-memory error and list remedies."""
    from vramscope_server.cli.oom import run_command

    run_command(server, as_json, run, message, as_markdown=as_markdown)


@app.command()
def report(
    run: Annotated[
        list[str] | None, typer.Argument(help="Run ids, unique id prefixes, or names", metavar="RUN")
    ] = None,
    job: Annotated[
        str, typer.Option(help="Print all runs of a cluster's job instead; with --out, write them", metavar="ID")
    ] = "",
    out: Annotated[
        str | None, typer.Option(help="File to write (default: the run's name.html, or comparison.html)")
    ] = None,
    server: ServerUrl = DEFAULT_SERVER,
) -> None:
    """Write a run as one HTML file. Several runs: a comparison with the first one."""
    from vramscope_server.cli.report import run_command

    run_command(server, run or [], job, out)


@app.command()
def export(
    run: export_options.Runs = None,
    table: export_options.TableName = "",
    form: export_options.FileFormat = TableFile.csv,
    out: export_options.OutFile = None,
    rank: export_options.RankNumber = None,
    server: ServerUrl = DEFAULT_SERVER,
) -> None:
    """Write a table as CSV, JSON or Parquet. Without --table: list all tables."""
    from vramscope_server.cli.export import run_command

    run_command(server, run or [], table, form.value, out, rank)


@app.command()
def whatif(
    target: Annotated[str, typer.Argument(help="Run (id, unique id prefix, name) or snapshot file", metavar="TARGET")],
    conf: Annotated[
        list[str] | None,
        typer.Option(help="Value of PYTORCH_CUDA_ALLOC_CONF (repeatable; default: a common set)"),
    ] = None,
    device_bytes: Annotated[
        int | None,
        typer.Option(min=1 << 20, max=1 << 50, help="Memory of the device in bytes (default: the recorded device)"),
    ] = None,
    server: ServerUrl = DEFAULT_SERVER,
    as_json: Json = False,
) -> None:
    """Replay a run under other allocator settings. Shows peak reserved and the smallest device that fits."""
    from vramscope_server.cli.whatif import show

    show(server, as_json, target, conf or [], device_bytes)


@app.command()
def predict(
    run: RunName,
    technique: Annotated[
        list[str] | None,
        typer.Option(
            help="gradient_accumulation:4, gradient_checkpointing, optimizer_8bit, no_foreach, or several joined by + "
            "(repeatable; default: all that lower the peak)"
        ),
    ] = None,
    server: ServerUrl = DEFAULT_SERVER,
    as_json: Json = False,
) -> None:
    """Predict the peak of a recorded step with other techniques."""
    from vramscope_server.cli.predict import show

    show(server, as_json, run, technique or [])


@app.command()
def snapshot(
    file: Annotated[Path, typer.Argument(help="File of torch.cuda.memory._dump_snapshot(), or .gz", metavar="FILE")],
    server: Annotated[
        str | None, typer.Option(help="Upload to this server and print the page's address (default: read locally)")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write one self-contained page", metavar="FILE")] = None,
    as_json: Json = False,
) -> None:
    """Summarize a snapshot file: peak, source lines, fragmentation."""
    from vramscope_server.cli.snapshot_page import show

    show(file, as_json, server, html)


@app.command()
def dryrun(
    command: options.CommandWords,
    card: options.CardKeys = "h100",
    steps: options.StepCount = 3,
    timeout: options.TimeLimit = 900,
    tries: options.Tries = False,
    html: options.HtmlFile = None,
    assume: options.Assumed = None,
    ranks: options.RankCount = 1,
    as_rank: options.RankNumber = 0,
    server: ServerUrl = DEFAULT_SERVER,
    as_json: Json = False,
) -> None:
    """Check on an emulated GPU whether a training fits on a card."""
    from vramscope_server.cli.dryrun import show

    raise typer.Exit(show(server, as_json, command, card, steps, timeout, tries, ranks, as_rank, assume or (), html))


@app.command()
def cards(as_json: Json = False) -> None:
    """List the cards that a dry run can emulate."""
    from vramscope_server.cli.dryrun.cards import show

    show(as_json)


@app.command()
def mcp(
    allow_runs: Annotated[
        bool, typer.Option("--allow-runs", help="Offer dry runs, which execute the commands that the agent gives")
    ] = False,
    server: ServerUrl = DEFAULT_SERVER,
) -> None:
    """Answer a coding agent's questions about runs, over MCP."""
    try:
        from vramscope_server.cli.coding_agents.server import serve
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] != "mcp":
            raise
        print("vramscope: mcp needs one more package: pip install 'vramscope[server,mcp]'", file=sys.stderr)
        raise typer.Exit(BAD_ARGUMENTS) from None
    serve(server, may_run=allow_runs)


@app.command(context_settings={"ignore_unknown_options": True}, add_help_option=False)
def sync(words: Annotated[list[str] | None, typer.Argument(hidden=True)] = None) -> None:
    """Send data that trainings stored while no server answered."""
    raise typer.Exit(AGENT_COMMANDS["sync"](words or []))


@app.command()
def token(
    action: Annotated[TokenAction, typer.Argument(help="What to do", metavar="create|list|revoke")],
    name: Annotated[str, typer.Argument(help="Name of the token; to revoke: name or id", metavar="NAME")] = "",
    role: Annotated[
        TokenRole, typer.Option(help="read: look at everything; write: also send and change runs; admin: everything")
    ] = TokenRole.write,
    project: Annotated[
        list[str] | None, typer.Option(help="Limit the token to this project (repeatable; default: all projects)")
    ] = None,
    database: DatabaseUrl = None,
    data_dir: DataFolder = None,
    as_json: Json = False,
) -> None:
    """Create, list or revoke access tokens, on the server's machine."""
    from vramscope_server.cli import access_tokens

    if action is TokenAction.create:
        access_tokens.create(name, role.value, project or [], database, data_dir)
    elif action is TokenAction.list:
        access_tokens.show(as_json, database, data_dir)
    else:
        access_tokens.revoke(name, database, data_dir)


@app.command()
def backup(
    folder: Annotated[Path, typer.Argument(help="Folder for the copies", metavar="FOLDER")],
    every: Annotated[float, typer.Option(min=0, help="Hours between two copies, until Ctrl-C (0 = one copy)")] = 0,
    keep: Annotated[int, typer.Option(min=0, help="Number of newest copies to keep (0 = all)")] = 7,
    database: Annotated[str | None, typer.Option(help="Path of the SQLite file")] = None,
    data_dir: DataFolder = None,
) -> None:
    """Copy an SQLite database and its snapshot files. The server may run."""
    from vramscope_server.cli.backup import show

    show(folder, every, keep, database, data_dir)


def run_command(words: list[str]) -> int:
    """Run a subcommand; returns the exit code (docs/cli.md)."""
    from vramscope_server.cli.client import Failure

    try:
        app(args=words, prog_name="vramscope")
    except SystemExit as ended:  # typer tells what was wrong with the words itself
        return ended.code if isinstance(ended.code, int) else 0
    except Failure as failure:
        print(f"vramscope: {failure}", file=sys.stderr)
        return failure.code
    return 0
