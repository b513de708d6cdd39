"""``vramscope run -- python train.py``: the same training, watched, with no change of its code.

The command takes this process's place (exec), so its exit code, its signals and its terminal are its own. What it gets
from us is environment: the settings as ``VRAMSCOPE_*``, one run id for all of its ranks, and at the front of PYTHONPATH a
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

WRONG_WORDS: Final = 2
CANNOT_RUN: Final = 127

AUTOSTART: Final = Path(__file__).parent / "autostart"
MACHINES: Final = ("--nnodes", "--num_machines", "--num-machines", "--num_nodes", "--num-nodes")
"""How torchrun, accelerate and deepspeed are told that the job spans several machines."""

TASKS: Final = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE")
"""Set where a launcher starts us once for each rank."""


def main(argv: Sequence[str]) -> int:
    """Start the command, given the words after ``run``. Comes back only if that is not possible: 2 or 127."""
    parser = _parser()
    options, command = _split(argv)
    try:
        words = parser.parse_args(options)
    except SystemExit as end:  # argparse ends the process; we are called as a function
        return int(end.code or 0)
    command = command or words.command
    if not command:
        parser.print_usage(sys.stderr)
        print("vramscope run: the command is missing, such as: vramscope run -- python train.py", file=sys.stderr)
        return WRONG_WORDS
    given = {
        "server": words.server,
        "project": words.project,
        "run_name": words.name,
        "tags": words.tag or None,
        "interval_ms": words.interval_ms,
    }
    try:
        # A variable that cannot be read keeps no training from its start: the agent in there says so, and watches.
        settings, unsendable = Settings.for_training(**given)
        if words.server is not None and not settings.server:
            raise ValueError(unsendable)
    except ValueError as fault:
        print(f"vramscope run: {fault}", file=sys.stderr)
        return WRONG_WORDS
    environment = child_environment(os.environ, settings, command)
    if settings.disabled:
        terminal.say("VRAMSCOPE_DISABLED is set; the command runs unwatched")
    elif "VRAMSCOPE_RUN_ID" in environment and not unsendable:
        terminal.say(f"a training in here will be at {settings.server}/runs/{environment['VRAMSCOPE_RUN_ID']}")
    return _become(command, environment)


def child_environment(environ: Mapping[str, str], settings: Settings, command: Sequence[str]) -> dict[str, str]:
    """The environment of the watched command: what was there, our settings, and the way to the agent."""
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
    elif not _one_of_many(environ, command):
        child["VRAMSCOPE_RUN_ID"] = secrets.token_hex(8)
    before = [entry for entry in environ.get("PYTHONPATH", "").split(os.pathsep) if entry and entry != str(AUTOSTART)]
    child["PYTHONPATH"] = os.pathsep.join([str(AUTOSTART), *before])
    return child


def _one_of_many(environ: Mapping[str, str], command: Sequence[str]) -> bool:
    """Whether others like us start the other ranks: an id made here would not be theirs, so the agent finds a common one."""
    if any(environ.get(name, "").isdecimal() and int(environ[name]) > 1 for name in TASKS):
        return True
    for position, word in enumerate(command):
        flag, equals, value = word.partition("=")
        if flag in MACHINES:
            number = value if equals else "".join(command[position + 1 : position + 2])
            return number not in ("1", "1:1")
    return False


def _become(command: Sequence[str], environment: Mapping[str, str]) -> int:
    # Python ignores these two, and what is ignored stays so across exec; the command expects the defaults.
    for name in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(name, signal.SIG_DFL)
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvpe(command[0], list(command), dict(environment))
    except OSError as fault:
        hint = f" (did you mean: python {command[0]}?)" if command[0].endswith(".py") else ""
        print(f"vramscope run: cannot run {command[0]}: {fault.strerror}{hint}", file=sys.stderr)
    except ValueError as fault:  # a NUL character in a word
        print(f"vramscope run: cannot run {command[0]!r}: {fault}", file=sys.stderr)
    return CANNOT_RUN


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="vramscope run",
        description="Run a training and watch its GPU memory, with no change of its code.",
        usage="vramscope run [--project P] [--name N] [--server URL] [--tag T]... [--interval-ms N] -- COMMAND ...",
    )
    parser.add_argument("--project", help="project that the run belongs to")
    parser.add_argument("--name", help="name of the run")
    parser.add_argument("--server", help="address of the server (VRAMSCOPE_SERVER, http://127.0.0.1:8265)")
    parser.add_argument("--tag", action="append", help="a tag of the run; may be given several times")
    parser.add_argument("--interval-ms", help="milliseconds between two samples (100)")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND", help="what to run, after --")
    return parser


def _split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Our words, and those of the command after ``--``."""
    words = list(argv)
    if "--" in words:
        at = words.index("--")
        return words[:at], words[at + 1 :]
    return words, []
