"""Real servers at ports of their own: in a thread of the test, or as a process that can be killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import warm
from wire_maker import Agent

from vramscope.protocol import messages as wire_messages
from vramscope_server.cli.server import listen, uvicorn_server
from vramscope_server.services import Services
from vramscope_server.settings import Settings

PATIENCE_SECONDS = 60
"""Time for a server to start or to stop. It is long, so that a busy machine fails no test."""


class RunningServer:
    """A real server at a port of its own, in a thread. ``lost_after_seconds`` may be shorter than users can set it."""

    def __init__(self, data_dir: Path, **settings: Any) -> None:
        lost_after = {name: settings.pop(name) for name in ("lost_after_seconds",) if name in settings}
        given = Settings(data_dir=data_dir, **{"port": 0, "log_level": "critical", **settings})
        self.services = Services(given.model_copy(update=lost_after))
        listening = listen("127.0.0.1", 0)
        self.port = listening.getsockname()[1]
        self.url = self.services.address = f"http://127.0.0.1:{self.port}"
        self.server = uvicorn_server(self.services)
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [listening]}, daemon=True)
        self.thread.start()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self.server.started:
            if time.monotonic() > deadline or not self.thread.is_alive():
                raise RuntimeError("the server did not start")
            time.sleep(0.01)
        self.http = httpx.Client(base_url=f"{self.url}/api/v1", timeout=120, trust_env=False)

    def stop(self) -> float:
        """Stop as SIGTERM does; returns the seconds that it took."""
        started = time.monotonic()
        self.http.close()
        self.server.should_exit = True
        self.thread.join(PATIENCE_SECONDS)
        assert not self.thread.is_alive(), "the server did not stop"
        return time.monotonic() - started

    def post(self, body: bytes, **headers: str) -> httpx.Response:
        return self.http.post("/batches", content=body, headers={"Content-Type": wire_messages.CONTENT_TYPE, **headers})

    def send(self, agent: Agent, *messages: wire_messages.BatchItem, **options: Any) -> wire_messages.Ack:
        """Send a batch that must be accepted."""
        answer = self.post(agent.body(*messages, **options))
        assert answer.status_code == 200, answer.text
        return wire_messages.decode_ack(answer.content)

    def get(self, path: str, **parameters: Any) -> Any:
        answer = self.http.get(path, params=parameters)
        assert answer.status_code == 200, answer.text
        return answer.json()


_COMMAND = """
import os, sys
os.dup2(1, 2)
sys.argv[0] = "vramscope"
from vramscope_server import settings
settings.LEAST_LOST_AFTER_SECONDS = 0  # tests do not wait for so long
from vramscope_server.__main__ import main
sys.exit(main())
"""


class ServerProcess:
    """``vramscope server`` as a process of its own, at a free port. Without a ``prefix`` it is forked off a Python that has loaded
    the server's modules, which takes two seconds of CPU."""

    def __init__(self, data_dir: Path, *arguments: str, prefix: tuple[str, ...] = (), **settings: str) -> None:
        words = ["server", "--port", "0", *arguments]
        env = {
            **os.environ,
            "VRAMSCOPE_DATA_DIR": str(data_dir),
            **{f"VRAMSCOPE_{name.upper()}": value for name, value in settings.items()},
        }
        self.process: warm.Program | subprocess.Popen[str]
        if prefix:
            command = [*prefix, sys.executable, "-m", "vramscope_server", *words]
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env
            )
        else:
            self.process = warm.Program(_COMMAND, arguments=words, env=env, loaded="server")
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r"http://\S+", line)
        assert found, line + self.process.stdout.read()
        self.url = found.group(0)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                httpx.get(f"{self.url}/api/v1/health", trust_env=False)
                return
            except httpx.TransportError:
                assert time.monotonic() < deadline
                time.sleep(0.05)

    def end(self, how: int = signal.SIGTERM) -> int:
        self.process.send_signal(how)
        code = self.process.wait(PATIENCE_SECONDS)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code
