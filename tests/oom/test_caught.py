"""Errors of memory that PyTorch's allocator does not tell, and that the training catches: recorded where they end a forward or a
backward, once each, and marked survived when the run goes on."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "backend")]

import staged  # noqa: E402
from deaths import Death  # noqa: E402
from running import RunningServer  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.xdist_group("deaths")]

CUBLAS = "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
MODEL = f"""
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(256, 256, device="cuda")
        def forward(self, x):
            if len(x) > 100:
                raise RuntimeError({CUBLAS!r})  # cublas
            return self.linear(x)
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(256, 256, device="cuda"), Layer()
        def forward(self, x):
            return self.last(self.first(x))
    class Host(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1
        @staticmethod
        def backward(ctx, grad):
            torch.empty(1 << 50)  # host
            return grad
    model = Model()
    optimizer = optimizer_of(model)
"""
CAUGHT = Death(
    "caught",
    "outside_pytorch",
    f"""{MODEL}
    step(model, optimizer, 64, 256)
    for rows in (200, 64):
        try:
            step(model, optimizer, rows, 256)  # loop
        except RuntimeError:
            pass
    try:
        Host.apply(model(torch.empty(64, 256, device="cuda"))).sum().backward()
    except RuntimeError:
        optimizer.zero_grad()
    step(model, optimizer, 64, 256)
    """,
    survived=True,
)
FATAL = Death(
    "not caught",
    "outside_pytorch",
    f"""{MODEL}
    step(model, optimizer, 64, 256)
    for _ in range(2):
        try:
            step(model, optimizer, 200, 256)
        except RuntimeError:
            pass
    step(model, optimizer, 200, 256)  # ends
    """,
)
OTHERS = Death(
    "errors of other kinds, and an old one that is being handled",
    "",
    f"""{MODEL}
    class Silent(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(256, 256, device="cuda")
        def forward(self, x):
            if x.requires_grad:
                raise RuntimeError("mat1 and mat2 shapes cannot be multiplied (64x256 and 512x256)")
            self.linear(x)
    silent = Silent()
    step(model, optimizer, 64, 256)
    agent.attach(silent)
    try:
        raise RuntimeError({CUBLAS!r})
    except RuntimeError:
        silent(torch.empty(64, 256, device="cuda"))
    try:
        silent(torch.empty(64, 256, device="cuda", requires_grad=True))
    except RuntimeError:
        pass
    step(model, optimizer, 64, 256)
    """,
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    running = RunningServer(tmp_path_factory.mktemp("server"))
    yield running
    running.stop()


def explained(server: RunningServer, run: str) -> list[dict[str, Any]]:
    errors = server.get(f"/runs/{run}/oom")["errors"]
    return [server.get(f"/oom/{error['record']}", wait_seconds=0) for error in errors]


def test_an_error_of_a_library_that_is_caught_is_recorded_and_survived(
    server: RunningServer, tmp_path: Path, emulated_gpu: None
) -> None:
    run, code, said = staged.run(CAUGHT, server.url, tmp_path)
    assert code == 0, said[-2000:]
    script = str(tmp_path / f"{run}.py")
    forward, backward = explained(server, run)
    assert (forward["survived"], backward["survived"]) == (True, True)
    assert (forward["message"]["kind"], forward["cause"]) == ("cublas", "outside_pytorch")
    assert (forward["phase"], forward["step"], forward["culprit"]["module"]) == ("forward", 1, "last")
    assert forward["message"]["text"] == CUBLAS.partition("error: ")[2]
    frames = [(frame["line"], frame["own"]) for frame in forward["stack"]]
    assert frames[0] == (staged.asked_at(replace(CAUGHT, line="# cublas"), script), True)
    assert (staged.asked_at(replace(CAUGHT, line="# loop"), script), True) in frames, "down to the training's own loop"
    assert (backward["message"]["kind"], backward["phase"], backward["step"]) == ("host", "backward", 2)
    assert backward["message"]["asked_bytes"] == 4 << 50
    assert backward["stack"][0]["line"] == staged.asked_at(replace(CAUGHT, line="# host"), script)


def test_one_that_comes_again_and_then_ends_the_run_is_one_record(
    server: RunningServer, tmp_path: Path, emulated_gpu: None
) -> None:
    run, code, said = staged.run(FATAL, server.url, tmp_path)
    assert code == 1
    (error,) = explained(server, run)
    assert (error["survived"], error["message"]["kind"], error["error_type"]) == (False, "cublas", "RuntimeError")
    assert error["sentence"] in said
    assert f"/runs/{run}/oom" in said


def test_errors_of_other_kinds_leave_no_record(server: RunningServer, tmp_path: Path, emulated_gpu: None) -> None:
    """Nor does one of memory that is being handled while a forward gives back nothing."""
    run, code, said = staged.run(OTHERS, server.url, tmp_path)
    assert code == 0, said[-2000:]
    assert explained(server, run) == []
