"""The command ``vramscope``.

``run`` and ``sync`` belong to the agent and work where only the agent is installed; all others need the extra ``server``.
"""

from __future__ import annotations

import sys

from vramscope import __version__
from vramscope_server.agent_commands import AGENT_COMMANDS

SERVER_EXTRA = "vramscope: {word} needs more than the agent: pip install 'vramscope[server]'"
AGENT_ALONE = """Usage: vramscope run [OPTIONS] -- COMMAND ...   watch the GPU memory of a training
       vramscope sync [OPTIONS]                  send data that was stored while no server answered
       vramscope --version

server, ls, show and all else need more than the agent: pip install 'vramscope[server]'"""
WRONG_WORDS = 2
INTERRUPTED = 130


def main(argv: list[str] | None = None) -> int:
    """Run one command. Returns its exit code: 0 done, 1 a check failed, 2 wrong arguments, 3 not found, 4 no server."""
    words = sys.argv[1:] if argv is None else argv
    # A name with characters that the terminal cannot show is no reason to fail.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    try:
        return _dispatch(words)
    except KeyboardInterrupt:
        return INTERRUPTED


def _dispatch(words: list[str]) -> int:
    first = words[0] if words else ""
    if first in AGENT_COMMANDS:
        return AGENT_COMMANDS[first](words[1:])
    if first == "--version":
        print(f"vramscope {__version__}")
        return 0
    try:
        from vramscope_server.cli import run_command

        return run_command(words)
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.startswith("vramscope"):
            raise
        if first in ("-h", "--help"):
            print(AGENT_ALONE)
            return 0
        print(SERVER_EXTRA.format(word=first) if first else AGENT_ALONE, file=sys.stderr)
        return WRONG_WORDS


if __name__ == "__main__":
    sys.exit(main())
