"""The demo that a page starts: who may, where it trains, what it leaves, and that it ends with the server."""

from __future__ import annotations

import importlib.util
import os
import signal
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from running import RunningServer, ServerProcess
from waiting import eventually

from vramscope_server import demo_run
from vramscope_server.demo_run import DemoDevice


def bearer(token: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def test_a_demo_trains_and_its_run_is_stored(start_server: Callable[..., RunningServer]) -> None:
    server = start_server()
    server.services.demo.steps = 6
    assert server.get("/demo")["state"] == "idle" and server.get("/demo")["unavailable"] is None
    begun = server.http.post("/demo")
    assert begun.status_code == 202 and begun.json()["state"] == "running"
    assert server.http.post("/demo").status_code == 409, "one at a time"
    eventually(lambda: server.get("/demo")["state"] != "running", what="its end")
    ended = server.get("/demo")
    assert (ended["state"], ended["problem"], ended["step"]) == ("finished", None, 6)
    run = server.get(f"/runs/{begun.json()['run_id']}")
    assert (run["project"], run["name"], run["state"]) == ("demo", "demo", "finished")
    assert server.http.post("/demo").status_code == 202, "another may follow"


def test_a_server_with_tokens_lends_one_to_the_demo(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(require_tokens=True)
    server.services.demo.steps = 3
    admin = bearer(server.services.first_token)
    writer = bearer(server.services.tokens.make("w", "write")[1])
    refused = server.http.get("/demo", headers=writer).json()
    assert refused["unavailable"] == "Only the server's own machine, or the role admin, may start the demo."
    assert server.http.post("/demo", headers=writer).status_code == 403
    assert server.http.post("/demo", headers=admin).status_code == 202
    lent = [token for token in server.services.tokens.listed() if token.name == "demo on the server"]
    assert [(token.role, token.scope.names) for token in lent] == [("write", ("demo",))]
    eventually(lambda: server.http.get("/demo", headers=admin).json()["state"] != "running", what="its end")
    assert server.http.get("/demo", headers=admin).json()["problem"] is None
    left = lambda: [token.name for token in server.services.tokens.listed()]  # noqa: E731
    eventually(lambda: "demo on the server" not in left(), what="the token is revoked")


def test_another_machine_cannot_start_a_process_on_a_server_without_tokens(
    start_server: Callable[..., RunningServer],
) -> None:
    """The proxy on this machine names the address of its client."""
    server = start_server(require_tokens=False)
    elsewhere = {"X-Forwarded-For": "192.0.2.7"}
    assert server.http.post("/demo", headers=elsewhere).status_code == 403
    assert "own machine" in server.http.get("/demo", headers=elsewhere).json()["unavailable"]
    assert server.get("/demo")["state"] == "idle"


def test_without_pytorch_it_says_so(
    start_server: Callable[..., RunningServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "torch" else find(name, *rest))
    server = start_server()
    sentence = "The demo needs PyTorch in the server's environment: pip install torch"
    assert server.get("/demo")["unavailable"] == sentence
    answer = server.http.post("/demo")
    assert (answer.status_code, answer.json()["detail"]) == (409, sentence)


def test_a_demo_that_fails_shows_the_last_line_of_its_output(
    start_server: Callable[..., RunningServer], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "broken.py"
    script.write_text("print('begin')\nraise ValueError('no such layer')\n")
    monkeypatch.setattr(demo_run, "TRAINING", script)
    server = start_server()
    server.http.post("/demo")
    eventually(lambda: server.get("/demo")["state"] == "failed", what="its end")
    assert server.get("/demo")["problem"] == "ValueError: no such layer"


@pytest.mark.parametrize("signal_sent", [signal.SIGTERM, signal.SIGKILL])
def test_the_demo_ends_with_the_server(tmp_path: Path, signal_sent: signal.Signals) -> None:
    """Also with one that is killed, which can end nothing itself."""
    server = ServerProcess(tmp_path)
    try:
        run = httpx.post(f"{server.url}/api/v1/demo", trust_env=False).json()["run_id"]
        process = eventually(lambda: processes_of(run), what="the process of the training")[0]
    finally:
        server.end(signal_sent)
    eventually(lambda: not is_alive(process), what="the training's end")


def processes_of(run: str) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"VRAMSCOPE_RUN_ID={run}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:
            continue  # it ended, or belongs to somebody else
    return found


def is_alive(process: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except OSError:
        return False


def test_a_real_gpu_is_left_alone() -> None:
    of_cpu = demo_run._environment({"VRAMSCOPE_TOKEN": "x", "PATH": "/bin"}, "run", None, DemoDevice.cpu)
    assert of_cpu["CUDA_VISIBLE_DEVICES"] == of_cpu["HIP_VISIBLE_DEVICES"] == "-1"
    assert "VRAMSCOPE_TOKEN" not in of_cpu and of_cpu["PATH"] == "/bin"
    of_emulated = demo_run._environment(dict(os.environ), "run", "vrs_x", DemoDevice.emulated_gpu)
    assert of_emulated["VRAMSCOPE_TOKEN"] == "vrs_x" and of_emulated["EMULATED_GPU_LEDGER"] == "private"
