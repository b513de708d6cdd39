"""``VramscopeMonitor`` and ``VramscopeLogger`` for Lightning."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from vramscope import agent
from vramscope.guard import guarded
from vramscope.session import Session

if "pytorch_lightning" in sys.modules and "lightning" not in sys.modules:
    from pytorch_lightning import Callback
    from pytorch_lightning.loggers import Logger
else:
    from lightning.pytorch import Callback
    from lightning.pytorch.loggers import Logger


class VramscopeMonitor(Callback):  # type: ignore[misc]
    """Watches the trainings of its Trainer: ``Trainer(callbacks=[VramscopeMonitor()])``. Takes the settings of ``agent.attach``."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self._settings = settings

    @guarded("the VramscopeMonitor")
    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Attach to the Trainer before it trains."""
        if stage == "fit":
            config = {**_hyperparameters(pl_module), **dict(self._settings.get("config") or {})}
            agent.attach(trainer, **{**self._settings, "config": config})


class VramscopeLogger(Logger):  # type: ignore[misc]
    """Takes what ``self.log`` reports and what ``save_hyperparameters`` keeps: ``Trainer(logger=VramscopeLogger())``.

    Watches the training as well, so that no VramscopeMonitor is needed. Takes the settings of ``agent.attach``.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self._settings = settings
        self._session: Session | None = None

    @property
    def experiment(self) -> Session:
        """The session, which begins with the first use. It does not begin again after it has ended."""
        if self._session is None:
            self._session = agent.attach(**self._settings)
        return self._session

    @property
    def name(self) -> str:
        """Name of the run."""
        return str(getattr(self._session, "name", None) or "vramscope")

    @property
    def version(self) -> str:
        """Id of the run."""
        return str(getattr(self._session, "run_id", None) or "0")

    @guarded("the VramscopeLogger's hyperparameters")
    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Add them to the run's configuration."""
        known = params if isinstance(params, Mapping) else vars(params)
        session = self.experiment
        if session.live:
            session.adopt(None, dict(known))

    @guarded("the VramscopeLogger's metrics")
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Add numbers to the run; Lightning gives Python numbers. Steps are counted by the agent."""
        self.experiment.log(**{name: value for name, value in metrics.items() if name != "epoch"})


def _hyperparameters(module: Any) -> dict[str, Any]:
    return dict(getattr(module, "hparams", None) or {})
