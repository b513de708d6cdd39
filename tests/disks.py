"""File systems of a few KiB, in memory: what fills one has a really full disk, with all that the kernel says of it."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path


class SmallDisk:
    """Mounted at ``path`` until ``close``. It takes the right to mount: root's, or that of a user whom ``sudo`` asks nothing."""

    def __init__(self, path: Path, kib: int) -> None:
        """Raises PermissionError where there is no right to mount."""
        path.mkdir()
        self.path = path
        self._right = [] if os.geteuid() == 0 else ["sudo", "-n"]
        try:
            self._run("mount", "-t", "tmpfs", "-o", f"size={kib}k,mode=777", "tmpfs")
        except (OSError, subprocess.CalledProcessError) as error:
            raise PermissionError(f"no right to mount a small disk here: {error}") from error

    @property
    def free_bytes(self) -> int:
        """What may still be written."""
        usage = os.statvfs(self.path)
        return usage.f_bavail * usage.f_frsize

    def fill(self) -> Path:
        """Write until nothing more fits; gives the file that takes the room."""
        ballast = self.path / "ballast"
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        return ballast

    def resize(self, kib: int) -> None:
        """Make it larger."""
        self._run("mount", "-o", f"remount,size={kib}k")

    def protect(self) -> None:
        """Nothing may be written from now on, by whomever."""
        self._run("mount", "-o", "remount,ro")

    def close(self) -> None:
        """Unmount; what lay on it is gone."""
        self._run("umount", "--lazy")

    def _run(self, *words: str) -> None:
        subprocess.run([*self._right, *words, self.path], check=True, capture_output=True)
