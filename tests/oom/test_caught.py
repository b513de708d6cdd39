"""Memory errors that PyTorch's allocator does not report and that the training catches.

Each is recorded once and marked as survived when the run continues.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "backend")]

import staged  # noqa: E402
from deaths import Death  # noqa: E402
from running import RunningServer  # noqa: E402

from vramscope.oom.recorder import OomRecorder  # noqa: E402
from vramscope.process.patching import Patches  # noqa: E402
from vramscope.steps.patches.caught_errors import CaughtErrors  # noqa: E402

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
        raise RuntimeError({CUBLAS!r})  # between
    except RuntimeError:
        silent(torch.empty(64, 256, device="cuda"))
    try:
        silent(torch.empty(64, 256, device="cuda", requires_grad=True))
    except RuntimeError:
        pass
    step(model, optimizer, 64, 256)
    """,
)
HOST = Death(
    "the host's memory, as Python and NumPy say it",
    "outside_pytorch",
    """
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(256, 256, device="cuda")
        def forward(self, x):
            if len(x) > 100:
                b"x" * (1 << 62)  # forward
            return self.linear(x)
    class Host(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1
        @staticmethod
        def backward(ctx, grad):
            raise MemoryError  # backward
    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return 4
        def __getitem__(self, index):
            import numpy
            return numpy.zeros(1 << 60, "u1")  # data
    model = nn.Sequential(Layer())
    optimizer = optimizer_of(model)
    def caught(call):
        try:
            call()
        except (MemoryError, RuntimeError):  # (a worker's comes as the latter)
            pass
        optimizer.zero_grad()
        step(model, optimizer, 64, 256)
    step(model, optimizer, 64, 256)
    caught(lambda: step(model, optimizer, 200, 256))
    caught(lambda: Host.apply(model(torch.empty(64, 256, device="cuda"))).sum().backward())
    caught(lambda: next(iter(torch.utils.data.DataLoader(Rows()))))
    caught(lambda: next(iter(torch.utils.data.DataLoader(Rows(), num_workers=1))))
    try:
        raise MemoryError  # between
    except MemoryError:
        torch.cuda.empty_cache()
    step(model, optimizer, 64, 256)
    """,
    survived=True,
)
ELSEWHERE = Death(
    "caught in the optimizer's step, and between two steps",
    "outside_pytorch",
    f"""{MODEL}
    class Refusing(torch.optim.SGD):
        refuses = False
        @torch.no_grad()
        def step(self, closure=None):
            if self.refuses:
                self.refuses = False
                raise RuntimeError({CUBLAS!r})  # refuses
            return super().step(closure)
    optimizer = Refusing(model.parameters(), 0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    step(model, optimizer, 64, 256)
    optimizer.refuses = True
    try:
        step(model, optimizer, 64, 256)  # caught
    except RuntimeError as error:
        if "ALLOC_FAILED" in str(error):
            torch.cuda.empty_cache()
            torch.cuda.empty_cache()
    step(model, optimizer, 64, 256)
    def gather():
        return torch.empty(1 << 50)  # gathers
    for _ in range(2):
        try:
            gather()
        except RuntimeError:
            for _ in range(3):
                step(model, optimizer, 64, 256)
    try:
        gather()
    except RuntimeError:
        told = "in time"
    step(model, optimizer, 64, 256)
    """,
    survived=True,
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    running = RunningServer(tmp_path_factory.mktemp("server"))
    yield running
    running.stop()


def explained(server: RunningServer, run: str) -> list[dict[str, Any]]:
    errors = server.get(f"/runs/{run}/oom")["errors"]
    return [server.get(f"/oom/{error['record']}", wait_seconds=0) for error in errors]


def test_a_caught_library_error_is_recorded_and_survived(
    server: RunningServer, tmp_path: Path, emulated_gpu: None
) -> None:
    run, code, output = staged.run(CAUGHT, server.url, tmp_path)
    assert code == 0, output[-2000:]
    script = str(tmp_path / f"{run}.py")
    assert output.count("vramscope: the training caught an out-of-memory error. ") == 1, "the first only"
    assert "vramscope: 2 out-of-memory errors were caught in this run: " in output
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


def test_host_errors_of_python_and_numpy_are_recorded(
    server: RunningServer, tmp_path: Path, emulated_gpu: None
) -> None:
    run, code, output = staged.run(HOST, server.url, tmp_path)
    assert code == 0, output[-2000:]
    script = str(tmp_path / f"{run}.py")
    errors = explained(server, run)
    seen = [(one["message"]["kind"], one["cause"], one["phase"], one["step"], one["survived"]) for one in errors]
    phases = ("forward", "backward", "data", "data", "data")
    assert seen == [("host", "outside_pytorch", phase, at, True) for at, phase in enumerate(phases, 1)]
    marks = ("# forward", "# backward", "# data", None, "# between")
    for error, mark in zip(errors, marks, strict=True):
        if mark is not None:
            line = staged.asked_at(replace(HOST, line=mark), script)
            assert next(frame["line"] for frame in error["stack"] if frame["own"]) == line, mark
    assert errors[2]["message"]["asked_bytes"] == 1 << 60
    assert (errors[3]["message"]["worker"], "DataLoader worker 0" in errors[3]["sentence"]) == (0, True)


def test_an_error_caught_elsewhere_is_recorded(server: RunningServer, tmp_path: Path, emulated_gpu: None) -> None:
    """Each once, whatever its ``except`` block does. The last one is only seen when its block ends."""
    run, code, output = staged.run(ELSEWHERE, server.url, tmp_path)
    assert code == 0, output[-2000:]
    script = str(tmp_path / f"{run}.py")
    line = {
        mark: staged.asked_at(replace(ELSEWHERE, line=mark), script) for mark in ("# refuses", "# gathers", "# caught")
    }
    in_step, *between = explained(server, run)
    assert (in_step["message"]["kind"], in_step["phase"], in_step["step"]) == ("cublas", "optimizer", 1)
    assert in_step["stack"][0]["line"] == line["# refuses"]
    assert line["# caught"] in [frame["line"] for frame in in_step["stack"]]
    assert [(one["message"]["kind"], one["phase"], one["step"]) for one in between] == [
        ("host", "data", 2),
        ("host", "data", 5),
    ]
    assert {one["stack"][0]["line"] for one in between} == {line["# gathers"]}
    assert {one["survived"] for one in (in_step, *between)} == {True}


def test_one_that_comes_again_and_then_ends_the_run_is_one_record(
    server: RunningServer, tmp_path: Path, emulated_gpu: None
) -> None:
    run, code, output = staged.run(FATAL, server.url, tmp_path)
    assert code == 1
    (error,) = explained(server, run)
    assert (error["survived"], error["message"]["kind"], error["error_type"]) == (False, "cublas", "RuntimeError")
    assert error["sentence"] in output
    assert f"/runs/{run}/oom" in output


def test_other_errors_leave_no_record(server: RunningServer, tmp_path: Path, emulated_gpu: None) -> None:
    """A memory error that is being handled while a forward returns nothing does not belong to that forward."""
    run, code, output = staged.run(OTHERS, server.url, tmp_path)
    assert code == 0, output[-2000:]
    (between,) = explained(server, run)
    assert (between["phase"], between["step"], between["culprit"]["module"]) == ("data", 1, None)
    assert between["stack"][0]["line"] == staged.asked_at(
        replace(OTHERS, line="# between"), str(tmp_path / f"{run}.py")
    )


def test_errors_before_attach_are_not_recorded() -> None:
    seen: list[BaseException] = []
    later = RuntimeError("later")
    try:
        raise RuntimeError("earlier")
    except RuntimeError:
        caught = CaughtErrors(lambda error, in_except: seen.append(error))
        caught.scan()
    caught.scan()
    try:
        raise later
    except RuntimeError:
        caught.scan()
        caught.scan()
    assert seen == [later]


@pytest.mark.parametrize("of", ["cuda", "accelerator"])
def test_an_error_handled_during_empty_cache_is_recorded(of: str) -> None:
    import torch

    torch.empty(1, device="cuda")
    seen: list[BaseException] = []
    patches = Patches()
    CaughtErrors(lambda error, in_except: seen.append(error)).install(patches)
    refused = RuntimeError("refused")
    try:
        raise refused
    except RuntimeError:
        getattr(torch, of).empty_cache()
        getattr(torch, of).empty_cache()
    finally:
        patches.remove()
    assert seen == [refused]


def test_two_threads_that_see_the_run_go_on_count_an_error_once() -> None:
    """The sampler's thread and the training's."""
    seen: list[Any] = []
    recorder = object.__new__(OomRecorder)
    recorder._closing, recorder._caught, recorder._first_caught = threading.Lock(), 0, None
    recorder._clock, recorder._put = SimpleNamespace(step=5), seen.append
    for number in range(1, 200):
        recorder._open = record = SimpleNamespace(record=f"r{number}")
        together = threading.Barrier(2)

        def survived(record: Any = record, together: threading.Barrier = together) -> None:
            together.wait()
            recorder._survived(record)

        threads = [threading.Thread(target=survived) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (recorder._caught, len(seen)) == (number, number)
