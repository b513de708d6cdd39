"""``VramscopeTrainLoop``: with a stand-in of Ray in each run of the tests, and with the real Ray at night."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from collector import Collector
from training import Arrived, run

from vramscope.protocol import messages

STAND_IN = """
import sys, types
ray, train = types.ModuleType("ray"), types.ModuleType("ray.train")
def report(metrics, *, checkpoint=None):
    kept.append(metrics)
train.get_checkpoint = lambda: present
present = None
train.report, train.get_context = report, lambda: types.SimpleNamespace(get_experiment_name=lambda: "the name in Ray")
ray.train, kept = train, []
sys.modules |= {"ray": ray, "ray.train": train}
from ray.train import report as imported_before
from vramscope.integrations import VramscopeTrainLoop
def loop(config):
    for _ in range(4):
        model(torch.zeros(8, 64, device=device)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    imported_before({"accuracy": 0.5, "note": "text"})
    if config["fails"]:
        raise ValueError("the last line")
    return "result"
"""


def numbers(collector: Collector) -> set[str]:
    return {name for batch in collector.stored.values() for scalars in batch.scalars for name in scalars.columns}


def test_a_run_has_rays_name_and_what_the_loop_reports(collector: Collector, spool: Path) -> None:
    called = """
        watched = VramscopeTrainLoop(loop, tags=["ray"])
        assert watched({"rate": 0.1, "fails": False}) == "result"
        train.report({"after": 1.0})
        assert kept == [{"accuracy": 0.5, "note": "text"}, {"after": 1.0}] and train.report is report is imported_before
    """
    run(STAND_IN + inspect.cleandoc(called), collector, spool)
    arrived = Arrived(collector)
    assert (arrived.attached.name, arrived.attached.tags) == ("the name in Ray", ["ray"])
    assert arrived.attached.config == {"rate": 0.1, "fails": False}
    assert [row["step"] for row in arrived.rows("steps")] == [1, 2, 3, 4]
    assert "accuracy" in numbers(collector) and "after" not in numbers(collector)
    assert arrived.ended is not None and arrived.ended.state == "finished"


def test_its_checkpoints_are_events_of_the_run(collector: Collector, spool: Path) -> None:
    called = """
        present = object()
        def saving(config):
            assert train.get_checkpoint() is present
            loop(config)
            report({"accuracy": 0.5}, checkpoint=object())
        VramscopeTrainLoop(saving)({"rate": 0.1, "fails": False})
    """
    run(STAND_IN + inspect.cleandoc(called), collector, spool)
    arrived = Arrived(collector)
    events = [(event.kind, event.step) for event in arrived.of(messages.Event) if "checkpoint" in event.kind]
    assert events == [("checkpoint_loaded", 0), ("checkpoint", 4)]


def test_an_error_of_the_loop_reaches_ray_and_the_run(collector: Collector, spool: Path) -> None:
    called = """
        try:
            VramscopeTrainLoop(loop, name="mine")({"fails": True})
        except ValueError as error:
            assert str(error) == "the last line"
        else:
            raise AssertionError
    """
    run(STAND_IN + inspect.cleandoc(called), collector, spool)
    arrived = Arrived(collector)
    assert arrived.attached.name == "mine"
    assert arrived.ended is not None
    assert (arrived.ended.state, arrived.ended.error_type) == ("failed", "ValueError")
    assert arrived.ended.error_line == "the last line"


def test_a_thread_may_set_globals_while_the_loop_begins(collector: Collector, spool: Path) -> None:
    called = """
        import threading
        sys.setswitchinterval(1e-6)
        globals().update({f"number_{at}": at for at in range(3000)})
        done = threading.Event()
        def sets():
            while not done.is_set():
                globals()["more"] = 1
                globals().pop("more")
        thread = threading.Thread(target=sets)
        thread.start()
        from vramscope.callbacks.ray_train_loop import _reports_logged
        try:
            for _ in range(100):
                with _reports_logged(None, loop):
                    pass
        finally:
            done.set()
            thread.join()
    """
    run(STAND_IN + inspect.cleandoc(called), collector, spool)


def test_ray_sees_how_many_arguments_the_loop_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = ModuleType("ray")
    stand_in.train = SimpleNamespace()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray", stand_in)
    monkeypatch.setitem(sys.modules, "ray.train", ModuleType("ray.train"))
    monkeypatch.delitem(sys.modules, "vramscope.callbacks.ray_train_loop", raising=False)
    from vramscope.callbacks.ray_train_loop import VramscopeTrainLoop

    del sys.modules[
        "vramscope.callbacks.ray_train_loop"
    ]  # not by monkeypatch: that would bring the one of the stand-in back
    assert len(inspect.signature(VramscopeTrainLoop(lambda: None)).parameters) == 0
    assert len(inspect.signature(VramscopeTrainLoop(lambda config: None)).parameters) == 1


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("ends", ["finishes", "fails"])
def test_with_the_real_ray(collector: Collector, tmp_path: Path, tmp_path_factory: Any, ends: str) -> None:
    installed = tmp_path_factory.getbasetemp() / "ray"
    if not installed.exists():
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--target", installed, "ray[train]"]
        subprocess.run(install, check=True)
    paths = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(installed)])
    environment = os.environ | {"PYTHONPATH": paths, "VRAMSCOPE_SERVER": collector.url}
    program = [sys.executable, str(Path(__file__).with_name("ray_program.py")), str(tmp_path), ends]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=300)
    assert (done.returncode == 0) is (ends == "finishes"), done.stderr
    batches = list(collector.stored.values())
    assert len({batch.run for batch in batches}) == 1 and {batch.rank for batch in batches} == {0, 1}
    arrived = Arrived(collector)
    assert (arrived.attached.name, arrived.attached.project) == ("two workers", "rays")
    assert arrived.attached.config["rate"] == 0.1
    assert "accuracy" in numbers(collector)
    assert [(event.kind, event.step) for event in arrived.of(messages.Event) if "checkpoint" in event.kind] == [
        ("checkpoint", 6),
        ("checkpoint", 6),
    ], "one of each rank"
    assert arrived.ended is not None and arrived.ended.state == ("finished" if ends == "finishes" else "failed")
