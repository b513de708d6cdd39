"""Several targets of attach: which framework and configuration the run has, in any order."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from vramscope.integrations import plain, target
from vramscope.integrations.connection import Connection
from vramscope.integrations.target import Target
from vramscope.process.redaction import Secrets
from vramscope.steps.hooks import LoopHooks

TRAINER = "a Trainer"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Target:
    def connect(given: object, hooks: LoopHooks) -> Connection | None:
        return Connection("trainer", {"rate": 1, "depth": 2}) if given is TRAINER else None

    hooks: Any = SimpleNamespace(
        models=SimpleNamespace(add=lambda model: None, find_at_attach=lambda: None, find_if_unheard=lambda: None),
        lead=lambda optimizer: None,
    )
    monkeypatch.setattr(target, "FRAMEWORKS", (SimpleNamespace(connect=connect), plain))
    monkeypatch.setattr(target, "trainer_at_work", lambda: None)
    return Target(hooks, None, Secrets(), on_failure=lambda kind, line: None, learned=lambda: None)


@pytest.mark.parametrize("trainer_is_first", [True, False])
def test_a_trainer_and_its_model_are_a_trainer_and_the_users_configuration_wins(
    made: Target, trainer_is_first: bool
) -> None:
    model = nn.Linear(2, 2)
    first, second = (TRAINER, model) if trainer_is_first else (model, TRAINER)
    made.begin(first, {"rate": 9})
    made.adopt(second, None)
    made.adopt(torch.optim.SGD(model.parameters(), 0.1), None)
    made.adopt(None, None)
    assert made.framework == "trainer"
    assert made.config == {"rate": 9, "depth": 2}


def test_configuration_that_is_given_later_replaces_the_earlier(made: Target) -> None:
    made.begin(None, {"rate": 8})
    made.adopt(TRAINER, {"rate": 9})
    assert (made.framework, made.config) == ("trainer", {"rate": 9, "depth": 2})
