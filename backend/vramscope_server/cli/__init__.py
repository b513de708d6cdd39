"""The command line: one file a subcommand. All but ``server`` talk to a server over HTTP, as anybody could."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from vramscope import __version__
from vramscope_server.agent_commands import AGENT_COMMANDS

app = typer.Typer(
    name="vramscope",
    help="Where the GPU memory of PyTorch trainings goes.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

ServerUrl = Annotated[
    str, typer.Option("--server", envvar="VRAMSCOPE_SERVER", help="address of the server", metavar="URL")
]
DEFAULT_SERVER = "http://127.0.0.1:8265"
Json = Annotated[bool, typer.Option("--json", help="print JSON, for scripts")]


class TableFormat(str, Enum):
    """What a comparison can be printed as."""

    markdown = "markdown"
    csv = "csv"
    latex = "latex"
    json = "json"


RunName = Annotated[str, typer.Argument(help="id, unique prefix of one, or name", metavar="RUN")]


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="print the version")] = False) -> None:
    if version:
        print(f"vramscope {__version__}")
        raise typer.Exit


@app.command()
def server(
    host: Annotated[str | None, typer.Option(help="address to listen at; not loopback: tokens are demanded")] = None,
    port: Annotated[int | None, typer.Option(help="port to listen at; 8265 when not given, 0 for any")] = None,
    database: Annotated[str | None, typer.Option(help="SQLAlchemy URL, or the path of an SQLite file")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="folder of the SQLite file, when no database is given")] = None,
) -> None:
    """Run the server. What is not given comes from VRAMSCOPE_HOST, VRAMSCOPE_PORT and so on."""
    from vramscope_server.cli.server import serve

    raise typer.Exit(serve(host, port, database, data_dir))


@app.command()
def demo(
    steps: Annotated[int, typer.Option(min=0, help="optimizer steps; 0: until Ctrl-C")] = 0,
    server: ServerUrl = DEFAULT_SERVER,
) -> None:
    """Train something small to look at, with a server of its own if there is none."""
    from vramscope_server.cli.demo import show

    raise typer.Exit(show(server, steps))


@app.command("ls")
def list_runs(
    words: Annotated[
        list[str] | None, typer.Argument(help="only runs with these in name, project, tags or device", metavar="WORDS")
    ] = None,
    project: Annotated[str, typer.Option(help="only this project")] = "",
    state: Annotated[str, typer.Option(help="running, finished, failed or lost")] = "",
    limit: Annotated[
        int | None, typer.Option(min=0, help="so many; 50 when not given, all with --json; 0: all")
    ] = None,
    server: ServerUrl = DEFAULT_SERVER,
    as_json: Json = False,
) -> None:
    """List runs."""
    from vramscope_server.cli.ls import show

    show(server, as_json, query=" ".join(words or []), project=project, state=state, limit=limit)


@app.command("show")
def show_run(run: RunName, server: ServerUrl = DEFAULT_SERVER, as_json: Json = False) -> None:
    """Show one run: its peak, and what made it."""
    from vramscope_server.cli.show import show

    show(server, as_json, run)


@app.command()
def steps(
    run: RunName,
    rank: Annotated[int | None, typer.Option(help="which process; the lowest when not given")] = None,
    device: Annotated[int | None, typer.Option(help="which device; the rank's first when not given")] = None,
    first: Annotated[int | None, typer.Option("--from", help="first step")] = None,
    to: Annotated[int | None, typer.Option(help="last step, included")] = None,
    last: Annotated[
        int | None,
        typer.Option(min=1, max=100_000, help="only the newest so many; 20 when no steps are named, all with --json"),
    ] = None,
    server: ServerUrl = DEFAULT_SERVER,
    as_json: Json = False,
) -> None:
    """Exact peaks, step by step."""
    from vramscope_server.cli.steps import show

    show(server, as_json, run, rank=rank, device=device, first=first, to=to, last=last)


@app.command()
def compare(
    baseline: Annotated[str, typer.Argument(help="what the others are held against", metavar="BASELINE")],
    run: Annotated[list[str], typer.Argument(help="ids, unique prefixes of them, or names", metavar="RUN")],
    server: ServerUrl = DEFAULT_SERVER,
    form: Annotated[
        TableFormat | None, typer.Option("--format", help="print the table as markdown, csv, latex or json")
    ] = None,
    each: Annotated[bool, typer.Option("--each", help="repeats of one configuration each in a row of its own")] = False,
    as_json: Json = False,
) -> None:
    """Compare runs with a baseline: peaks, percent, time."""
    from vramscope_server.cli.compare import show

    show(server, "json" if as_json else form.value if form else None, baseline, run, each=each)


@app.command()
def check(
    run: RunName,
    peak_allocated: Annotated[
        str | None, typer.Option(help="the most that it may have allocated, as 20GiB", metavar="SIZE")
    ] = None,
    peak_reserved: Annotated[
        str | None, typer.Option(help="the most that it may have reserved, likewise", metavar="SIZE")
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(help="a run whose peak allocated it may not exceed", metavar="RUN")
    ] = None,
    tolerance: Annotated[float, typer.Option(min=0, max=1000, help="by more than so many percent")] = 1.0,
    skip: Annotated[
        list[str] | None, typer.Option(help="leave out finished, oom or leaks; several times: several", metavar="CHECK")
    ] = None,
    server: ServerUrl = DEFAULT_SERVER,
    as_json: Json = False,
) -> None:
    """For CI: exit 1 unless a run ended well, leaked nothing and stayed below its limits."""
    from vramscope_server.cli.check import Limits, show

    show(server, as_json, run, Limits(peak_allocated, peak_reserved, baseline, tolerance), skip or [])


@app.command()
def diff(
    a: Annotated[str, typer.Argument(help="a run (id, unique prefix, name), or a snapshot file", metavar="A")],
    b: Annotated[str, typer.Argument(help="what is held against it, likewise", metavar="B")],
    server: ServerUrl = DEFAULT_SERVER,
    as_json: Json = False,
) -> None:
    """Say which line of code holds more in B than in A, at their peaks."""
    from vramscope_server.cli.diff import show

    show(server, as_json, a, b)


@app.command()
def leaks(run: RunName, server: ServerUrl = DEFAULT_SERVER, as_json: Json = False) -> None:
    """Say who holds memory that should be gone, on which line, and what to do."""
    from vramscope_server.cli.leaks import show

    show(server, as_json, run)


@app.command()
def oom(
    run: Annotated[str | None, typer.Argument(help="id, unique prefix of one, or name", metavar="[RUN]")] = None,
    message: Annotated[
        str | None, typer.Option(help="explain a pasted error instead: a file with it, or - for what is piped in")
    ] = None,
    server: ServerUrl = DEFAULT_SERVER,
    as_json: Json = False,
) -> None:
    """Say why a run ran out of memory, and what would have been enough."""
    from vramscope_server.cli.oom import explain, show

    if (run is None) == (message is None):
        raise typer.BadParameter("name a run, or a text with --message: one of them")
    if message is not None:
        explain(message, as_json)
    else:
        show(server, as_json, str(run))


@app.command()
def whatif(
    target: Annotated[
        str, typer.Argument(help="a run (id, unique prefix, name), or a snapshot file", metavar="TARGET")
    ],
    conf: Annotated[
        list[str] | None,
        typer.Option(help="a value of PYTORCH_CUDA_ALLOC_CONF; several times: several. A usual set when not given"),
    ] = None,
    device_bytes: Annotated[
        int | None,
        typer.Option(min=1 << 20, max=1 << 50, help="memory of the whole card; the recorded one's when not given"),
    ] = None,
    server: ServerUrl = DEFAULT_SERVER,
    as_json: Json = False,
) -> None:
    """Replay a run under other allocator settings: what it would have reserved, and the smallest card for it."""
    from vramscope_server.cli.whatif import show

    show(server, as_json, target, conf or [], device_bytes)


@app.command()
def predict(
    run: RunName,
    technique: Annotated[
        list[str] | None,
        typer.Option(
            help="gradient_accumulation:4, gradient_checkpointing, optimizer_8bit, no_foreach, or several joined by +; several "
            "times: several. Each that brings something when not given"
        ),
    ] = None,
    server: ServerUrl = DEFAULT_SERVER,
    as_json: Json = False,
) -> None:
    """Say what the recorded step would need with techniques that were not tried."""
    from vramscope_server.cli.predict import show

    show(server, as_json, run, technique or [])


@app.command()
def snapshot(
    file: Annotated[Path, typer.Argument(help="what torch.cuda.memory._dump_snapshot() wrote, plain or .gz")],
    server: Annotated[
        str | None, typer.Option(help="send it to this server and print its page's address; else it is read here")
    ] = None,
    as_json: Json = False,
) -> None:
    """Say what is in a snapshot file: its peak, what held it, how much was fragmented."""
    from vramscope_server.cli.snapshot import show

    show(file, as_json, server)


@app.command(context_settings={"ignore_unknown_options": True}, add_help_option=False)
def run(words: Annotated[list[str], typer.Argument(metavar="-- python train.py")]) -> None:
    """Run a training with the agent in it, its code unchanged."""
    raise typer.Exit(AGENT_COMMANDS["run"](words))


@app.command(context_settings={"ignore_unknown_options": True}, add_help_option=False)
def sync(words: Annotated[list[str] | None, typer.Argument(hidden=True)] = None) -> None:
    """Send what trainings kept on disk while the server was away."""
    raise typer.Exit(AGENT_COMMANDS["sync"](words or []))


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
