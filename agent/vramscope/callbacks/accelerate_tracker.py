"""``VramscopeTracker`` for accelerate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from accelerate import Accelerator
from accelerate.tracking import GeneralTracker

from vramscope import agent
from vramscope.guard import guarded
from vramscope.process.patching import Patches
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
        self._patches = Patches()
        with guarded("the VramscopeTracker's checkpoints"):  # a tracker does not know its Accelerator
            self._patches.wrap(Accelerator, "save_state", self._saved)
            self._patches.wrap(Accelerator, "load_state", self._loaded)

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
        self._patches.remove()
        self._session.close()

    def _saved(self, original: Any, accelerator: Any, *args: Any, **kwargs: Any) -> Any:
        if accelerator.is_main_process:
            self._session.checkpoint()
        return original(accelerator, *args, **kwargs)

    def _loaded(self, original: Any, accelerator: Any, *args: Any, **kwargs: Any) -> Any:
        if accelerator.is_main_process:
            self._session.checkpoint(loaded=True)
        return original(accelerator, *args, **kwargs)
