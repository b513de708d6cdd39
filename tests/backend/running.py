"""A real server at a port of its own, in a thread of the test."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import httpx
from wire_maker import Agent

from vramscope import wire
from vramscope_server.cli.server import Server, listen, uvicorn_server
from vramscope_server.house import House
from vramscope_server.settings import Settings


class RunningServer:
    """A real server at a port of its own, in a thread."""

    def __init__(self, data_dir: Path, **settings: Any) -> None:
        self.house = House(Settings(data_dir=data_dir, **{"port": 0, "log_level": "critical", **settings}))
        listening = listen("127.0.0.1", 0)
        self.port = listening.getsockname()[1]
        self.url = self.house.address = f"http://127.0.0.1:{self.port}"
        self.server: Server = uvicorn_server(self.house)
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [listening]}, daemon=True)
        self.thread.start()
        deadline = time.monotonic() + 20
        while not self.server.started:
            if time.monotonic() > deadline or not self.thread.is_alive():
                raise RuntimeError("the server did not start")
            time.sleep(0.01)
        self.http = httpx.Client(base_url=f"{self.url}/api/v1", timeout=20, trust_env=False)

    def stop(self) -> float:
        """Stop as SIGTERM does; returns the seconds that it took."""
        started = time.monotonic()
        self.http.close()
        self.server.should_exit = True
        self.thread.join(20)
        assert not self.thread.is_alive(), "the server did not stop"
        return time.monotonic() - started

    def post(self, body: bytes, **headers: str) -> httpx.Response:
        return self.http.post("/batches", content=body, headers={"Content-Type": wire.CONTENT_TYPE, **headers})

    def send(self, agent: Agent, *messages: wire.Message, **options: Any) -> wire.Ack:
        """Send a batch that must be accepted."""
        answer = self.post(agent.body(*messages, **options))
        assert answer.status_code == 200, answer.text
        return wire.decode_ack(answer.content)

    def get(self, path: str, **parameters: Any) -> Any:
        answer = self.http.get(path, params=parameters)
        assert answer.status_code == 200, answer.text
        return answer.json()
