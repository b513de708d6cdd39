"""``vramscope run -- python train.py``: the same training, with the agent attached and without a change of its code.

The command replaces this process (exec), so that its exit code, its signals and its terminal are its own. It gets
environment variables: the settings as ``VRAMSCOPE_*``, one run id for all of its ranks, and at the front of PYTHONPATH a
folder whose ``sitecustomize.py`` attaches when a training begins.

"""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from vramscope.process import terminal
from vramscope.settings import Settings

WRONG_ARGUMENTS: Final = 2
CANNOT_RUN: Final = 127

AUTOSTART: Final = Path(__file__).parent / "autostart"
MACHINES: Final = ("--nnodes", "--num_machines", "--num-machines", "--num_nodes", "--num-nodes")
"""Options of torchrun, accelerate and deepspeed for a job on several machines."""

TASKS: Final = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE")
"""Variables that are set where a launcher starts this command once for each rank."""


def main(argv: Sequence[str]) -> int:
    """Start the command with the arguments after ``run``. Returns only if that fails: 2 or 127."""
    parser = _parser()
    options, command = _split(argv)
    try:
        arguments = parser.parse_args(options)
    except SystemExit as end:  # argparse ends the process; we are called as a function
        return int(end.code or 0)
    command = command or arguments.command
    if not command:
        parser.print_usage(sys.stderr)
        print("vramscope run: no command; example: vramscope run -- python train.py", file=sys.stderr)
        return WRONG_ARGUMENTS
    overrides = {
        "server": arguments.server,
        "project": arguments.project,
        "run_name": arguments.name,
        "tags": arguments.tag or None,
        "interval_ms": arguments.interval_ms,
    }
    try:
        # An invalid variable does not prevent the training: the agent in the command reports it.
        settings, unsendable = Settings.for_training(**overrides)
        if arguments.server is not None and not settings.server:
            raise ValueError(unsendable)
    except ValueError as fault:
        print(f"vramscope run: {fault}", file=sys.stderr)
        return WRONG_ARGUMENTS
    environment = child_environment(os.environ, settings, command)
    if settings.disabled:
        terminal.say("VRAMSCOPE_DISABLED is set; the command runs without the agent")
    elif "VRAMSCOPE_RUN_ID" in environment and not unsendable:
        run = environment["VRAMSCOPE_RUN_ID"]
        terminal.say(f"this run will appear at {settings.server}/runs/{run} when its training or inference begins")
        environment[terminal.ANNOUNCED] = run
    return _exec(command, environment)


def child_environment(environ: Mapping[str, str], settings: Settings, command: Sequence[str]) -> dict[str, str]:
    """Build the environment of the command: the current one, the settings, and the folder that attaches."""
    child = dict(environ)
    if settings.server:
        child["VRAMSCOPE_SERVER"] = settings.server
    child["VRAMSCOPE_PROJECT"] = settings.project
    child["VRAMSCOPE_INTERVAL_MS"] = str(settings.interval_ms)
    if settings.run_name is not None:
        child["VRAMSCOPE_RUN_NAME"] = settings.run_name
    if settings.tags:
        child["VRAMSCOPE_TAGS"] = ",".join(settings.tags)
    if settings.run_id is not None:
        child["VRAMSCOPE_RUN_ID"] = settings.run_id
    elif not _starts_one_rank(environ, command):
        child["VRAMSCOPE_RUN_ID"] = secrets.token_hex(8)
    child["VRAMSCOPE_COMMAND_PID"] = str(os.getpid())  # the command replaces this process
    before = [entry for entry in environ.get("PYTHONPATH", "").split(os.pathsep) if entry and entry != str(AUTOSTART)]
    child["PYTHONPATH"] = os.pathsep.join([str(AUTOSTART), *before])
    return child


def _starts_one_rank(environ: Mapping[str, str], command: Sequence[str]) -> bool:
    """Return whether the other ranks are started separately. They would not share an id made here, so the agent derives
    one."""
    if any(environ.get(name, "").isdecimal() and int(environ[name]) > 1 for name in TASKS):
        return True
    for position, word in enumerate(command):
        flag, equals, value = word.partition("=")
        if flag in MACHINES:
            number = value if equals else "".join(command[position + 1 : position + 2])
            return number not in ("1", "1:1")
    return False


def _exec(command: Sequence[str], environment: Mapping[str, str]) -> int:
    # Python ignores these two signals, and exec keeps that; the command expects the defaults.
    for name in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(name, signal.SIG_DFL)
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvpe(command[0], list(command), dict(environment))
    except OSError as fault:
        hint = f" (did you mean: python {command[0]}?)" if command[0].endswith(".py") else ""
        print(f"vramscope run: cannot run {command[0]}: {fault.strerror}{hint}", file=sys.stderr)
    except ValueError as fault:  # a NUL character in an argument
        print(f"vramscope run: cannot run {command[0]!r}: {fault}", file=sys.stderr)
    return CANNOT_RUN


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="vramscope run",
        description="Watch the GPU memory of a training, without a change of its code.",
        usage="vramscope run [--project P] [--name N] [--server URL] [--tag T]... [--interval-ms N] -- COMMAND ...",
    )
    parser.add_argument("--project", help="project that the run belongs to")
    parser.add_argument("--name", help="name of the run")
    parser.add_argument(
        "--server", help="address of the server (default: VRAMSCOPE_SERVER, else http://127.0.0.1:8265)"
    )
    parser.add_argument("--tag", action="append", help="tag of the run (repeatable)")
    parser.add_argument("--interval-ms", help="milliseconds between two samples (default 100)")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND", help="command to run, after --")
    return parser


def _split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split the arguments into ours and the command after ``--``."""
    arguments = list(argv)
    if "--" in arguments:
        at = arguments.index("--")
        return arguments[:at], arguments[at + 1 :]
    return arguments, []
