"""A training that leaks until it dies: what its fix would save, and when it will die, are known after a third of the way."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import httpx
import pytest
import warm
from waiting import eventually

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]

TRAINING = """
import pathlib, sys, time, torch
from torch import nn
from vramscope import agent
agent.attach(run_id="1ea4dea700000001", name="until it dies", interval_ms=20)
model = nn.Sequential(nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 1024)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
outputs = []
for step in range(1000):
    output = model(torch.randn(2048, 1024, device="cuda"))
    optimizer.zero_grad()
    output.square().mean().backward()
    optimizer.step()
    outputs.append(output.detach())
    while step == 50 and not pathlib.Path(sys.argv[1]).exists():
        time.sleep(0.05)
"""
"""Eight MiB a step, on a card of 2 GiB, of which CUDA's context takes 520 MiB; at step 51 it waits to be asked."""


def test_the_end_is_told_a_third_of_the_way_and_what_the_fix_would_bring(server: str, tmp_path: Path) -> None:
    go = tmp_path / "go"
    env = {
        **os.environ,
        "VRAMSCOPE_SERVER": server,
        "VRAMSCOPE_SPOOL_DIR": str(tmp_path / "spool"),
        "EMULATED_GPU_TOTAL_MEM": "2G",
        "EMULATED_GPU_LEDGER": "private",
    }
    with warm.Program(TRAINING, arguments=[str(go)], env=env, cwd=tmp_path) as program:

        def get(path: str) -> Any:
            answer = httpx.get(f"{server}/api/v1/runs/1ea4dea700000001{path}", timeout=120)
            return answer.json() if answer.is_success else None

        def at_the_pause() -> Any:
            assert program.poll() is None, program.communicate()
            answer = get("/leaks")
            known = (
                answer and answer["leaks"] and answer["floor"]["last_step"] == 51 and answer["floor"]["outside_bytes"]
            )
            return answer if known else None

        result = eventually(at_the_pause, 300)
        (leak,) = result["leaks"]
        assert (leak["kind"], leak["name"]) == ("tensor-growth", "outputs")

        replay = eventually(lambda: (found := get(f"/leaks/{leak['id']}/replay")) and found["effect"] and found, 300)
        effect = replay["effect"]
        assert effect["saved_bytes"] == effect["alive_bytes"] > 0
        assert effect["saved_bytes"] == pytest.approx(effect["step"] * (8 << 20), abs=8 << 20)
        low, _ = effect["peak_reserved_after_band"]
        assert low <= effect["peak_reserved_bytes"] - effect["saved_bytes"] + (20 << 20)

        go.touch()
        program.communicate(timeout=300)
        assert program.returncode == 1
    died = eventually(lambda: (run := get("")) and run["state"] == "failed" and run, 300)
    steps_left = result["floor"]["steps_to_out_of_memory"]
    assert 100 < died["steps"] < 180, "the pause was about a third of the way"
    assert 51 + steps_left == pytest.approx(died["steps"], rel=0.05)
