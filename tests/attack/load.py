"""Agents that send batches to a server that comes and goes, each batch until it is acknowledged."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
from wire_maker import Agent, new_id

from vramscope.protocol import messages

ROWS = 8
"""Samples of a batch. All of them have the number of the batch as their step."""
PATIENCE_SECONDS = 90
RETRY_SECONDS = 0.15
"""Time until a batch that was not acknowledged is sent again: short against the start of a server, and cheap."""


class Load:
    """Senders, one thread each. ``urls``: each batch goes to another of them, and so does its repetition."""

    def __init__(
        self, urls: list[str], senders: int = 4, *, one_run: bool = False, pause_seconds: float = 0.005
    ) -> None:
        self.urls = urls
        self.repeated = 0
        self._pause_seconds = pause_seconds
        self._stop = threading.Event()
        run = new_id() if one_run else None
        self.agents = [
            Agent(run, rank=rank if one_run else 0, world_size=senders if one_run else 1) for rank in range(senders)
        ]
        self.acknowledged = {agent.session: 0 for agent in self.agents}
        self._pool = ThreadPoolExecutor(senders)
        self._sending: list[Future[None]] = [self._pool.submit(self._send, agent) for agent in self.agents]

    @property
    def batches(self) -> int:
        """Batches that were acknowledged."""
        return sum(self.acknowledged.values())

    def wait(self, batches: int) -> None:
        """Wait until this many more are acknowledged. Raise what a sender raised."""
        goal, deadline = self.batches + batches, time.monotonic() + PATIENCE_SECONDS
        while self.batches < goal:
            for one in self._sending:
                if one.done():
                    one.result()
            assert time.monotonic() < deadline, f"{goal - self.batches} of {batches} batches were not acknowledged"
            time.sleep(0.05)

    def end(self) -> None:
        """Let each sender finish the batch that it sends."""
        self._stop.set()
        for one in self._sending:
            one.result(PATIENCE_SECONDS)
        self._pool.shutdown()

    def check(self, url: str) -> None:
        """Each acknowledged batch is stored once, whole, in order."""
        with httpx.Client(base_url=f"{url}/api/v1", trust_env=False, timeout=60) as http:
            for agent in self.agents:
                asked = {"names": "step", "rank": agent.rank, "points": 4000, "x": "time"}
                answer = http.get(f"/runs/{agent.run}/series", params=asked)
                assert answer.status_code == 200, answer.text
                found: Any = answer.json()
                sent = self.acknowledged[agent.session]
                assert sent == agent.sequence
                assert found["rows"] == sent * ROWS, f"{found['rows']} rows of {sent * ROWS}"
                if found["rows"] <= 4000:
                    wanted = [number for number in range(1, sent + 1) for _ in range(ROWS)]
                    assert found["series"]["step"]["value"] == wanted
                assert found.get("damaged", []) == []

    def _send(self, agent: Agent) -> None:
        turn = agent.rank
        with httpx.Client(trust_env=False, timeout=60) as http:
            while not self._stop.is_set():
                number = agent.sequence + 1
                body = agent.body(agent.samples(ROWS, at=number, step=number))
                while True:
                    turn += 1
                    if self._posted(http, self.urls[turn % len(self.urls)], body, number):
                        break
                    self.repeated += 1
                    time.sleep(RETRY_SECONDS)
                self.acknowledged[agent.session] = number
                time.sleep(self._pause_seconds)

    def _posted(self, http: httpx.Client, url: str, body: bytes, number: int) -> bool:
        try:
            headers = {"Content-Type": messages.CONTENT_TYPE}
            answer = http.post(f"{url}/api/v1/batches", content=body, headers=headers)
        except httpx.TransportError:
            return False
        if answer.status_code == 503:
            return False
        assert answer.status_code == 200, answer.text
        assert messages.decode_ack(answer.content).accepted == number, "nothing else was sent in this session"
        return True
