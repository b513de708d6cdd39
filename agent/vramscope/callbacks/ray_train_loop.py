"""``VramscopeTrainLoop`` for Ray Train."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import ray.train

from vramscope import agent
from vramscope.guard import guarded
from vramscope.session import Session


class VramscopeTrainLoop:
    """Watches the training function in each worker of Ray Train: ``TorchTrainer(VramscopeTrainLoop(train_loop), ...)``.

    Takes the settings of ``agent.attach``. The run has the name of Ray's run, the loop's configuration, and the numbers and
    checkpoints that the loop passes to ``ray.train.report``. It ends with the function: Ray kills its workers, so no end of a
    process would be seen.
    """

    def __init__(self, train_loop: Callable[..., Any], **settings: Any) -> None:
        functools.update_wrapper(self, train_loop)  # Ray asks for the number of arguments
        self._train_loop = train_loop
        self._settings = settings

    def __call__(self, *config: Any) -> Any:
        """Run the function, in a worker."""
        session = self._attach(config)
        with session, _reports_logged(session, self._train_loop):
            return self._train_loop(*config)

    def _attach(self, config: tuple[Any, ...]) -> Session:
        settings = dict(self._settings)
        with guarded("the settings of a Ray worker"):
            if settings.get("name") is None:
                settings["name"] = ray.train.get_context().get_experiment_name()
            if settings.get("config") is None and config and isinstance(config[0], Mapping):
                settings["config"] = config[0]
        return agent.attach(**settings)


@contextmanager
def _reports_logged(session: Session, train_loop: Callable[..., Any]) -> Iterator[None]:
    """Within the block, the session gets what passes through Ray's functions, also where the loop's module imported them."""

    @guarded("the numbers that Ray Train reports")
    def reported(metrics: Mapping[str, Any], checkpoint: Any = None, **_: Any) -> None:
        session.log(**{name: value for name, value in metrics.items() if isinstance(value, int | float)})
        if checkpoint is not None:
            session.checkpoint()

    def report(original: Callable[..., Any], *words: Any, **named: Any) -> Any:
        reported(*words, **named)
        return original(*words, **named)

    def get_checkpoint(original: Callable[..., Any], *words: Any, **named: Any) -> Any:
        found = original(*words, **named)
        if found is not None:
            session.checkpoint(loaded=True)
        return found

    scopes = [vars(ray.train), getattr(inspect.unwrap(train_loop), "__globals__", {})]
    with _replaced("report", report, scopes), _replaced("get_checkpoint", get_checkpoint, scopes):
        yield


@contextmanager
def _replaced(function: str, around: Callable[..., Any], scopes: Sequence[dict[str, Any]]) -> Iterator[None]:
    """Replace a function of ``ray.train`` by a call of ``around(original, ...)``, under each name that it has in the scopes."""
    original = getattr(ray.train, function)

    @functools.wraps(original)
    def wrapper(*words: Any, **named: Any) -> Any:
        return around(original, *words, **named)

    places = [(scope, name) for scope in scopes for name, value in list(scope.items()) if value is original]
    for scope, name in places:
        scope[name] = wrapper
    try:
        yield
    finally:
        for scope, name in places:
            if scope.get(name) is wrapper:
                scope[name] = original
