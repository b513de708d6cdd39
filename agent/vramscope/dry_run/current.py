"""This process's part of a dry run, without the modules of one where there is none."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from vramscope.protocol.dry_run import FOLDER_VARIABLE

if TYPE_CHECKING:
    from vramscope.dry_run.process import DryRunProcess


def current_part() -> DryRunProcess | None:
    """Return it. Watching begins with the first call. None: this is no dry run."""
    if not os.environ.get(FOLDER_VARIABLE):
        return None
    from vramscope.dry_run import process  # and 20 other modules

    return process.current()
