"""The command ``vramscope``.

``run`` and ``sync`` are the agent's and work where only the agent is installed; all else needs the extra ``server``.
"""

from __future__ import annotations

import sys

SERVER_EXTRA = "vramscope {word} needs more than the agent: pip install 'vramscope[server]'"


def main(argv: list[str] | None = None) -> int:
    """Run one command. Returns its exit code: 0 done, 1 a check failed, 2 the words were wrong, 3 not found, 4 no server."""
    words = sys.argv[1:] if argv is None else argv
    if words[:1] == ["run"]:
        from vramscope import launch

        return launch.main(words[1:])
    if words[:1] == ["sync"]:
        from vramscope import spool

        return spool.sync_main(words[1:])
    try:
        from vramscope_server.cli import run_command
    except ModuleNotFoundError as missing:
        if missing.name is not None and missing.name.startswith("vramscope"):
            raise
        print(SERVER_EXTRA.format(word=words[0] if words else "COMMAND"), file=sys.stderr)
        return 2
    return run_command(words)


if __name__ == "__main__":
    sys.exit(main())
