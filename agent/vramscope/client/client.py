"""``vramscope.Client``: the runs of a server, for scripts and notebooks."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Final
from urllib.parse import quote

from vramscope.client.answers import RunFacts, RunPage
from vramscope.client.connection import Connection
from vramscope.client.run import Run
from vramscope.client.table import Table, read_table

PAGE: Final = 200
"""Number of runs that are asked for at once."""


class Client:
    """Reads runs from a server. It changes nothing. Use it as a context manager, or call :meth:`close`.

    server   address; by default ``VRAMSCOPE_SERVER``, else http://127.0.0.1:8265
    token    token with the role ``read``; by default ``VRAMSCOPE_TOKEN``

    Its methods raise :class:`vramscope.client.errors.ServerError`. For one thread at a time.
    """

    def __init__(self, server: str | None = None, token: str | None = None) -> None:
        self._connection = Connection(server, token)

    @property
    def server(self) -> str:
        """Address of the server."""
        return self._connection.server

    def runs(
        self,
        query: str | None = None,
        *,
        project: str | None = None,
        state: str | None = None,
        tag: str | None = None,
        device: str | None = None,
    ) -> Iterator[Run]:
        """Iterate over runs: pinned ones and baselines first, then the newest. More are asked for as they are needed.

        query    words in name, project, tags, device, identifier or state
        state    ``running``, ``finished``, ``failed`` or ``lost``
        device   full name of the device
        """
        conditions = {"query": query, "project": project, "state": state, "tag": tag, "device": device, "limit": PAGE}
        cursor: str | None = None
        while True:
            page = self._connection.get("/runs", RunPage, {**conditions, "cursor": cursor})
            for facts in page.runs:
                yield Run(self._connection, facts)
            cursor = page.next_cursor
            if cursor is None:
                return

    def run(self, name: str) -> Run:
        """Return a run by its identifier, a unique prefix of it, or its name (the newest run with it)."""
        return Run(self._connection, self._connection.get(f"/runs/{quote(name, safe='')}", RunFacts))

    def compare(self, *runs: str, table: str = "compare") -> Table:
        """Return the table ``compare`` or ``settings`` of these runs. The first is the baseline."""
        # The server separates runs by commas, which a name may contain; an identifier has none.
        identifiers = [self.run(run).id if "," in run else run for run in runs]
        return read_table(self._connection, table, {"runs": ",".join(identifiers)})

    def close(self) -> None:
        """Close the connection to the server."""
        self._connection.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, frames: TracebackType | None
    ) -> None:
        self.close()
