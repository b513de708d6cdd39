"""The report of a run as an HTML file, from the server, for trackers that take files."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from vramscope.settings import Settings
from vramscope.transport.http import ServerConnection

NAME: Final = "vramscope-post-mortem.html"
WAIT_S: Final = 30.0
"""Maximum time that the server may take for the report."""
MOST_BYTES: Final = 16 << 20


@contextmanager
def post_mortem_file(settings: Settings, run_id: str) -> Iterator[Path | None]:
    """The file, which exists within the context; None if the server gives no report."""
    connection = ServerConnection(
        settings.server, settings.token, connect_timeout_s=settings.connect_timeout_s, read_timeout_s=WAIT_S
    )
    try:
        body = connection.download(f"/api/v1/runs/{run_id}/report", timeout_s=WAIT_S, most_bytes=MOST_BYTES)
    finally:
        connection.close()
    if body is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="vramscope-") as folder:
        path = Path(folder) / NAME
        path.write_bytes(body)
        yield path
