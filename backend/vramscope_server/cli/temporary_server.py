"""``python -m vramscope_server.cli.temporary_server HOST PORT FILE``: a server that stops when no process locks the file."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Final

from vramscope_server.cli.server import serve

EVERY_SECONDS: Final = 0.5


def main(host: str, port: str, users: str) -> int:
    """Serve until no command uses the server, or a signal stops it. Returns the exit code."""
    threading.Thread(target=_stop_without_users, args=(Path(users),), daemon=True).start()
    return serve(host, int(port), None, None)


def _stop_without_users(path: Path) -> None:
    with path.open("ab") as file:
        while True:
            time.sleep(EVERY_SECONDS)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            os.kill(os.getpid(), signal.SIGTERM)
            threading.Event().wait()  # keeps the lock, so that a new command waits for the end


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
