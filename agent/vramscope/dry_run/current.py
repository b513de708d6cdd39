"""Returns this process's part of a dry run. Outside of dry runs their modules are not imported."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from vramscope.protocol.dry_run import FOLDER_VARIABLE

if TYPE_CHECKING:
    from vramscope.dry_run.process import DryRunProcess


def current_part() -> DryRunProcess | None:
    """Return the part, or None outside of a dry run. The first call starts watching."""
    if not os.environ.get(FOLDER_VARIABLE):
        return None
    from vramscope.dry_run import process  # imports 20 modules

    return process.current()
