"""Outcomes of staged deaths, each run once a process and shared by all tests that need them."""

from __future__ import annotations

import functools
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "backend")]

import staged  # noqa: E402
from deaths import Death  # noqa: E402
from running import RunningServer  # noqa: E402


class Outcomes:
    """One server for all of them; a folder of its own for each."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="deaths-", ignore_cleanup_errors=True)
        self._server: RunningServer | None = None
        self._known: dict[str, staged.Outcome] = {}
        self._runs = 0

    def of(self, death: Death) -> staged.Outcome:
        if death.name not in self._known:
            if self._server is None:
                self._server = RunningServer(Path(self._folder.name) / "server")
            self._runs += 1
            folder = Path(self._folder.name) / str(self._runs)
            folder.mkdir()
            self._known[death.name] = staged.staged(death, self._server.url, folder)
        return self._known[death.name]

    @property
    def url(self) -> str:
        """Address of the server, once one of them ran."""
        assert self._server is not None
        return self._server.url

    def forget(self, death: Death) -> None:
        """Run it again when its outcome is next asked for."""
        self._known.pop(death.name, None)

    def close(self) -> None:
        if self._server is not None:
            self._server.stop()
            self._server = None
        self._folder.cleanup()


@functools.cache
def shared() -> Outcomes:
    """The outcomes of this process."""
    return Outcomes()
