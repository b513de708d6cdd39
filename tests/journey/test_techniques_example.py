"""The ready experiment: from the command to the table; what it says where it cannot begin; and that its own model is the same with
and without checkpointing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import warm

sys.path.insert(0, str(Path(__file__).parents[1] / "backend"))

from running import RunningServer

EXAMPLE = Path(__file__).parents[2] / "examples" / "techniques.py"

ALIKE = f"""
import sys; sys.path.insert(0, {str(EXAMPLE.parent)!r})
import techniques, torch
words, labels = techniques.text(4, techniques.SMALL)
gradients = []
for checkpointing in (False, True):
    torch.manual_seed(7)
    model = techniques.plain_roberta(techniques.SMALL, checkpointing).train()
    model(words, labels)[0].backward()
    gradients.append([weight.grad.clone() for weight in model.parameters()])
assert len(gradients[0]) > 30 and any(one.abs().sum() > 0 for one in gradients[0])
assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))
print("alike")
"""


def output_of(*words: str) -> tuple[int, str]:
    done = subprocess.run([sys.executable, EXAMPLE, *words], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stderr


def test_without_a_server_it_says_so_before_it_trains() -> None:
    code, words = output_of("--server", "http://127.0.0.1:9", "--small")
    assert code == 4 and "No vramscope server answers at http://127.0.0.1:9" in words and "vramscope server" in words


def test_a_technique_that_it_does_not_know_is_named_with_those_that_it_does() -> None:
    code, words = output_of("--only", "magic")
    assert code == 2 and "'magic'" in words and "all but 8-bit" in words
    assert output_of("--steps", "0")[0] == 2


def test_its_plain_model_learns_the_same_with_checkpointing() -> None:
    program = warm.Program(ALIKE, env=dict(os.environ), cwd=EXAMPLE.parents[1])
    out, err = program.communicate(timeout=120)
    assert program.returncode == 0 and "alike" in out, err[-3000:]


@pytest.mark.gpu
@pytest.mark.frameworks
def test_it_trains_each_by_itself_and_ends_with_the_table_and_the_page(tmp_path: Path, emulated_gpu: None) -> None:
    server = RunningServer(tmp_path / "server")
    try:
        done = subprocess.run(
            [sys.executable, EXAMPLE, "--small", "--steps", "3", "--only", "all but 8-bit", "--server", server.url],
            capture_output=True,
            text=True,
            timeout=170,
            env={**os.environ, "VRAMSCOPE_SPOOL_DIR": str(tmp_path / "spool"), "EMULATED_GPU_LEDGER": "private"},
        )
        assert done.returncode == 0, done.stderr[-3000:]
        assert "[1/2] baseline" in done.stdout
        assert "failed" not in done.stdout
        runs = done.stdout.rstrip().rpartition("?runs=")[2].split(",")
        assert f"{server.url}/compare?runs={','.join(runs)}" in done.stdout
        compared = server.get("/compare", runs=",".join(runs))
        techniques = {
            run: {one["kind"]: one["chip"] for one in server.get(f"/runs/{run}")["techniques"]} for run in runs
        }
    finally:
        server.stop()
    baseline, leaner = compared["rows"]
    assert [row["run"] for row in compared["rows"]] == runs
    assert [row["effective_batch"] for row in compared["rows"]] == [16, 16]
    assert leaner["peak_allocated_bytes"] < baseline["peak_allocated_bytes"]
    assert set(techniques[runs[1]]) - set(techniques[runs[0]]) == {
        "gradient_checkpointing", "gradient_accumulation", "mixed_precision"
    }  # fmt: skip
    table = [line for line in done.stdout.splitlines() if line.startswith("|")]
    assert len(table) == 4, "head, rule, and a row for each"
    assert f"| {leaner['peak_allocated_bytes'] / 2**20:.0f} |" in table[3]
