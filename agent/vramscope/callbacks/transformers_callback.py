"""``VramscopeCallback`` for the ``Trainer`` of transformers."""

from __future__ import annotations

from typing import Any, Final

from transformers import TrainerCallback
from transformers.integrations import integration_utils

from vramscope import agent
from vramscope.guard import guarded
from vramscope.integrations.running_trainer import trainer_at_work

REPORT_TO: Final = "vramscope"


class VramscopeCallback(TrainerCallback):  # type: ignore[misc]
    """Watches each training of its Trainer: ``Trainer(..., callbacks=[VramscopeCallback()])``.

    Takes the settings of ``agent.attach``. Name, configuration and logged numbers come from the Trainer.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self._settings = settings

    @guarded("the VramscopeCallback")
    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Attach to the Trainer that calls this."""
        agent.attach(trainer_at_work(), **self._settings)


integration_utils.INTEGRATION_TO_CALLBACK[REPORT_TO] = VramscopeCallback
