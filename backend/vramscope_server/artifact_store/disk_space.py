"""Checks that files fit on the disk of this machine, before they are written."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

SPARE_BYTES: Final = 64 << 20
"""Bytes that must stay free on the disk: the database needs space, too."""


class DiskFull(Exception):
    """Too little space on the disk. The message says how much is free."""


def check_room(folder: Path, wanted_bytes: int) -> None:
    """Raise DiskFull if the bytes do not fit on the disk of a folder."""
    free = shutil.disk_usage(folder).free
    if free < wanted_bytes + SPARE_BYTES:
        raise DiskFull(f"{wanted_bytes:,} bytes are needed, {free:,} are free")
