"""Listeners to the steps of optimizers, which may end at any moment."""

from __future__ import annotations

import threading

import pytest
import torch
from torch.optim.optimizer import (
    _global_optimizer_post_hooks,
    _global_optimizer_pre_hooks,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from vramscope.process.on_thread import on_thread
from vramscope.process.optimizer_calls import OptimizerCalls, optimizer_calls


def optimizer():
    parameter = torch.nn.Parameter(torch.zeros(3))
    parameter.grad = torch.ones(3)
    return torch.optim.SGD([parameter], 0.1)


@pytest.fixture
def users_hooks():
    """Registers hooks behind ours: PyTorch looks for the next one after ours has run."""
    handles = []

    def register():
        handles.append(register_optimizer_step_pre_hook(lambda *_: None))
        handles.append(register_optimizer_step_post_hook(lambda *_: None))

    yield register
    for handle in handles:
        handle.remove()


def hooks() -> int:
    return len(_global_optimizer_pre_hooks) + len(_global_optimizer_post_hooks)


def test_the_last_listener_may_end_inside_a_step(users_hooks):
    """PyTorch goes through its hooks: one that removed itself there would make ``step()`` raise."""
    before = hooks()
    calls, seen = OptimizerCalls(), []

    def once(*_):
        seen.append(1)
        end()

    end = calls.after(once)
    users_hooks()
    stepping = optimizer()
    stepping.step()
    stepping.step()
    assert seen == [1]
    calls.before(lambda *_: None)()
    assert hooks() == before + 2, "the next change outside of a step removes the hooks"


def test_a_listener_before_a_step_may_end_there_too(users_hooks):
    before = hooks()
    calls = OptimizerCalls()
    end = calls.before(lambda *_: end())
    users_hooks()
    optimizer().step()
    calls.after(lambda *_: None)()
    assert hooks() == before + 2


def test_what_is_left_for_another_thread_does_not_disturb_its_step(users_hooks):
    """A session that ended in one thread leaves something to do in the thread that trains."""
    ready, go, done, failed = threading.Event(), threading.Event(), [], []

    def train():
        stepping = optimizer()
        ready.set()
        go.wait(30)
        try:
            stepping.step()
        except RuntimeError as error:
            failed.append(error)

    thread = threading.Thread(target=train)
    thread.start()
    ready.wait(30)
    on_thread(thread.ident, lambda: done.append(threading.get_ident()))
    users_hooks()
    go.set()
    thread.join(30)
    assert (done, failed) == ([thread.ident], [])
    optimizer_calls.before(lambda *_: None)()
