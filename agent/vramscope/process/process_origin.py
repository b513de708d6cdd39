"""Who another process of this machine is, from ``/proc``: command, user, container and job.

What the system does not let this process read is None. No name service is asked, because it may wait for a network.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from vramscope.process import cluster
from vramscope.process.redaction import Secrets
from vramscope.protocol.messages import MAX_NAME, Job

MOST_READ: Final = 1 << 18
"""Maximum number of bytes read of one file."""
MOST_CHARACTERS: Final = 120
"""Maximum length of a shortened command line."""
CONTAINER_DIGITS: Final = 12
_CONTAINER: Final = re.compile(r"(?<![0-9a-f])([0-9a-f]{64})(?![0-9a-f])")
_POD: Final = re.compile(r"\bpod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})\b")
_CODE: Final = re.compile(r"-[A-Za-z]{0,8}c")
"""An option behind which code follows: ``-c``, ``-uc``, ``-lc``."""
_WITH_VALUE: Final = ("-X", "-W", "-o")
"""Options of Python and of shells whose value is the next word."""
_SLURM: Final = re.compile(r"/job_([0-9]{1,12})(?:/|$)", re.MULTILINE)


class ProcessOrigin(NamedTuple):
    """What is known of a process; the fields are those of ``OtherProcess``."""

    command: str | None = None
    user: str | None = None
    container: str | None = None
    manager: str | None = None
    job: str | None = None
    job_name: str | None = None
    pod: str | None = None


UNKNOWN_ORIGIN: Final = ProcessOrigin()


def origin_of(pid: int, secrets: Secrets, root: Path = Path("/")) -> ProcessOrigin:
    """Return who a process is. Costs about 0.1 ms; a process that has ended is unknown.

    root   folder with ``proc`` and ``etc``; a parameter for tests
    """
    folder = root / "proc" / str(pid)
    try:
        uid = folder.stat().st_uid
    except OSError:
        return UNKNOWN_ORIGIN
    is_own = uid == os.getuid()
    groups = _read(folder / "cgroup")
    container, pod, slurm = (pattern.search(groups) for pattern in (_CONTAINER, _POD, _SLURM))
    job = _job(folder) if is_own else None
    manager, job_id = (None, None) if job is None else (job.manager, job.array or job.id)
    if job_id is None and slurm is not None:
        manager, job_id = "slurm", slurm[1]
    pod_name = job.pod if job is not None and job.pod else None if pod is None else pod[1].replace("_", "-")
    if manager is None and pod_name is not None:
        manager = "kubernetes"
    return ProcessOrigin(
        command=_command(_read(folder / "cmdline"), secrets, is_own=is_own),
        user=_user(uid, root),
        container=None if container is None else container[1][:CONTAINER_DIGITS],
        manager=manager,
        job=_hidden(job_id, secrets),
        job_name=None if job is None else _hidden(job.name, secrets),
        pod=_hidden(pod_name, secrets),
    )


def _job(folder: Path) -> Job | None:
    """The outermost job with an identifier, from the environment of a process of the same user."""
    environ: Mapping[str, str] = dict(
        entry.split("=", 1) for entry in _read(folder / "environ").split("\0") if "=" in entry
    )
    found = cluster.jobs_of(environ, folder / "root")
    return next((job for job in found if job.id or job.pod), None)


def _command(text: str, secrets: Secrets, *, is_own: bool) -> str | None:
    """The shortened command line. Code behind ``-c`` is left out."""
    words = [word for word in text.split("\0") if word]
    if len(words) == 1:
        words = words[0].split()  # a title that the process gave itself
    if not words:
        return None
    program = _base(words[0]) if words[0][:1] in "/." and " " not in words[0] else words[0]
    rest = secrets.command_line(words[1:])
    at = _end_of_options(rest)
    if at < len(rest) and _CODE.fullmatch(rest[at]):
        shown = rest[: at + 1]
    elif rest[at : at + 1] == ["-m"]:
        shown = rest if is_own else rest[: at + 2]
    else:
        shown = [*rest[:at], *map(_base, rest[at : at + 1]), *rest[at + 1 :]]
        if not is_own:
            shown = shown[: at + 1] if rest[at : at + 1] and rest[at].endswith((".py", ".sh")) else []
    line = " ".join(secrets.hide(" ".join([program, *shown])).split())
    return line if len(line) <= MOST_CHARACTERS else line[: MOST_CHARACTERS - 1] + "…"


def _end_of_options(words: list[str]) -> int:
    """Return the place of the script, of ``-m``, or of the option before code."""
    at = 0
    while at < len(words) and words[at][:1] == "-" and words[at] != "-m" and not _CODE.fullmatch(words[at]):
        at += 2 if words[at] in _WITH_VALUE else 1
    return at


def _base(path: str) -> str:
    return path.rpartition("/")[2] or path


def _user(uid: int, root: Path) -> str:
    for line in _read(root / "etc" / "passwd").splitlines():
        name, *fields = line.split(":")
        if len(fields) > 1 and fields[1] == str(uid):
            return name[:MAX_NAME]
    return str(uid)


def _hidden(text: str | None, secrets: Secrets) -> str | None:
    return None if text is None else secrets.hide(text)[:MAX_NAME] or None


def _read(path: Path) -> str:
    """The first MOST_READ bytes of a file; "" if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(MOST_READ).decode("utf-8", "replace")
    except OSError:
        return ""
