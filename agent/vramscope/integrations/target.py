"""What trains here: what attach was given, or a Trainer that was found at work; its framework, and the user's configuration."""

from __future__ import annotations

import argparse
import dataclasses
import weakref
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, Final

from vramscope.guard import guarded
from vramscope.integrations import accelerate, deepspeed, huggingface, lightning, plain
from vramscope.integrations.connection import Declarations
from vramscope.integrations.running_trainer import trainer_at_work
from vramscope.process import terminal
from vramscope.process.redaction import Secrets
from vramscope.protocol import messages
from vramscope.steps.hooks import LoopHooks

ACCEPTED: Final = (
    "a transformers Trainer, a lightning Trainer, an accelerate Accelerator, "
    "a torch.nn.Module, a torch optimizer, or nothing"
)
FRAMEWORKS: Final = (huggingface, lightning, accelerate, deepspeed, plain)
"""Integrations, in the order in which they are asked. Each has ``connect(target, hooks) -> Connection | None``."""


class Target:
    """Of one session.

    on_failure   receives an error's type and first line, if the framework reports one that ends the training
    learned      is called when more is known than at the beginning
    named        receives the name that the user gave the run in the framework
    """

    def __init__(
        self,
        hooks: LoopHooks,
        techniques: Declarations | None,
        secrets: Secrets,
        *,
        on_failure: Callable[[str, str], None],
        learned: Callable[[], None],
        named: Callable[[str], None] = lambda name: None,
    ) -> None:
        self.framework = ""
        self.config: dict[str, messages.Scalar] = {}
        """Configuration of the run. Never changed in place, because the sender's thread reads it."""
        self.waits = False
        """True if the session began without a target: the first target belongs to it."""
        self._hooks, self._techniques, self._secrets = hooks, techniques, secrets
        self._on_failure, self._learned, self._named = on_failure, learned, named
        self._found: Callable[[], object] = lambda: None
        """Returns the Trainer that was found while it trained, as long as it lives."""

    def begin(self, target: object, config: Mapping[str, Any] | None) -> None:
        """Connects the target, or a running Trainer. If there is none, the first backward pass is waited for."""
        self.waits = target is None
        if target is None:
            target = trainer_at_work()  # under ``vramscope run`` it makes its optimizer just now
            if target is None:
                self._hooks.on_first_backward = self._look_for_trainer
            else:
                self._found = weakref.ref(target)
        self._connect(target)
        self.config = {**self.config, **self._read(config)}

    def adopt(self, target: object, config: Mapping[str, Any] | None) -> None:
        """Learn what trains, or more of the user's configuration, later."""
        if target is not None and target is self._found():
            target = None  # that is known
        if target is None and not config:
            return
        if target is not None:
            self.waits = False
            self._connect(target)
        self.config = {**self.config, **self._read(config)}
        self._learned()

    @guarded("the Trainer that was found")
    def _look_for_trainer(self) -> None:
        """Looks for a running Trainer once, in the first backward pass of a session without a target."""
        found = trainer_at_work() if self.waits else None
        if found is not None:
            self._found = weakref.ref(found)
            self._connect(found)
            self._learned()

    def _connect(self, target: object) -> None:
        connection = next(filter(None, (framework.connect(target, self._hooks) for framework in FRAMEWORKS)), None)
        if connection is None:
            terminal.say(
                f"attach was given {type(target).__module__}.{type(target).__qualname__}; it knows {ACCEPTED}. "
                "The training is watched all the same, through PyTorch's global hooks."
            )
            connection = plain.connect(None, self._hooks)
            assert connection is not None
        if connection.framework == plain.FRAMEWORK and self.framework:
            return  # it says less than the Trainer, or as much as the other model
        connection.on_failure(self._on_failure)
        if self._techniques is not None:
            self._techniques.begin(connection.framework, connection.config)
        self.framework = connection.framework
        if connection.run_name:
            self._named(connection.run_name)
        self.config = {**self._read(connection.config), **self.config}  # what the user said goes before the framework's

    def _read(self, given: object) -> dict[str, messages.Scalar]:
        with guarded("the reading of the configuration"):  # a mapping of the user's own may raise
            named = _by_name(given)
            if named is not None:
                return self._secrets.configuration(named)
            terminal.say(
                f"attach was given {type(given).__name__} as config; it knows a mapping of names to values, a dataclass or what "
                "argparse gives. The training is watched all the same."
            )
        return {}


def _by_name(given: object) -> Mapping[str, Any] | None:
    """Settings by their names; None: what was given has none."""
    if given is None:
        return {}
    if isinstance(given, Mapping):
        return given
    if dataclasses.is_dataclass(given) and not isinstance(given, type):
        return {field.name: getattr(given, field.name) for field in dataclasses.fields(given)}
    if isinstance(given, argparse.Namespace | SimpleNamespace):
        return vars(given)
    return None
