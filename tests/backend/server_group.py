"""Several real server processes on one real PostgreSQL, at ports of their own."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
from running import ServerProcess
from wire_maker import Agent

from vramscope.protocol import messages


class Member:
    """One of the processes, and a connection to it."""

    def __init__(self, url: str, data_dir: Path, **settings: str) -> None:
        self.process = ServerProcess(data_dir, "--database", url, **settings)
        self.pid = self.process.process.pid
        self.http = httpx.Client(base_url=f"{self.process.url}/api/v1", timeout=60, trust_env=False)

    def post(self, body: bytes) -> httpx.Response:
        return self.http.post("/batches", content=body, headers={"Content-Type": messages.CONTENT_TYPE})

    def send(self, agent: Agent, *items: messages.BatchItem, **options: Any) -> messages.Ack:
        """Send a batch that must be accepted."""
        answer = self.post(agent.body(*items, **options))
        assert answer.status_code == 200, answer.text
        return messages.decode_ack(answer.content)

    def get(self, path: str, **parameters: Any) -> Any:
        answer = self.http.get(path, params=parameters)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def rows(self, agent: Agent) -> int:
        """Stored samples of an agent's rank."""
        return int(self.get(f"/runs/{agent.run}/series", names="step", rank=agent.rank)["rows"])

    def children(self, word: str) -> list[psutil.Process]:
        """Processes that it started with this word in their command."""
        return [one for one in psutil.Process(self.pid).children(recursive=True) if word in " ".join(one.cmdline())]

    @contextlib.contextmanager
    def conversions_stopped(self) -> Iterator[None]:
        """Stop the processes that convert snapshots, and end them afterwards: without their server nobody would."""
        stopped = self.children("snapshot_conversion")
        for child in stopped:
            child.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            for child in stopped:
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()

    def kill(self) -> None:
        self.process.end(signal.SIGKILL)
        self.http.close()

    def end(self) -> None:
        if self.process.process.poll() is None:
            self.process.end()
        self.http.close()
