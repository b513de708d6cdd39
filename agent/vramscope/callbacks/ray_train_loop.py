"""``VramscopeTrainLoop`` for Ray Train."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import ray.train

from vramscope import agent
from vramscope.guard import guarded
from vramscope.session import Session


class VramscopeTrainLoop:
    """Watches the training function in each worker of Ray Train: ``TorchTrainer(VramscopeTrainLoop(train_loop), ...)``.

    Takes the settings of ``agent.attach``. The run has the name of Ray's run, the loop's configuration, and the numbers that the
    loop passes to ``ray.train.report``. It ends with the function: Ray kills its workers, so no end of a process would be seen.
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
    """Within the block, ``ray.train.report`` passes its numbers to the session, also where the loop's module imported it."""
    original = ray.train.report

    @guarded("the numbers that Ray Train reports")
    def log(metrics: Mapping[str, Any], *_: Any, **__: Any) -> None:
        session.log(**{name: value for name, value in metrics.items() if isinstance(value, int | float)})

    @functools.wraps(original)
    def report(*words: Any, **named: Any) -> Any:
        log(*words, **named)
        return original(*words, **named)

    scopes = [vars(ray.train), getattr(inspect.unwrap(train_loop), "__globals__", {})]
    places = [(scope, name) for scope in scopes for name, value in list(scope.items()) if value is original]
    for scope, name in places:
        scope[name] = report
    try:
        yield
    finally:
        for scope, name in places:
            if scope.get(name) is report:
                scope[name] = original
