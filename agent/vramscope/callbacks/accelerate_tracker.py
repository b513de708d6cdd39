"""``VramscopeTracker`` for accelerate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from accelerate.tracking import GeneralTracker

from vramscope import agent
from vramscope.guard import guarded
from vramscope.session import Session


class VramscopeTracker(GeneralTracker):  # type: ignore[misc]
    """Watches the training of each process: ``Accelerator(log_with=VramscopeTracker())``.

    Takes the settings of ``agent.attach``.
    """

    name = "vramscope"
    requires_logging_directory = False
    main_process_only = False

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self._session: Session = agent.attach(**settings)

    @property
    def tracker(self) -> Session:
        """The session."""
        return self._session

    @guarded("the VramscopeTracker's configuration")
    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        """Add it to the run's configuration."""
        if self._session.live:
            self._session.adopt(None, dict(values))

    @guarded("the VramscopeTracker's numbers")
    def log(self, values: Mapping[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Add numbers to the run. Steps are counted by the agent; text is left out."""
        self._session.log(**{name: value for name, value in values.items() if isinstance(value, int | float)})

    @guarded("the VramscopeTracker's end")
    def finish(self) -> None:
        """End the run."""
        self._session.close()
