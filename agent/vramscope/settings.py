"""The agent's settings: one frozen value, read from ``VRAMSCOPE_*`` once, when the training attaches.

What ``attach`` is given wins over the environment, and the environment over the defaults below. A value that cannot be
is told in one sentence: which setting, what was seen, what would be right.
"""

from __future__ import annotations

import dataclasses
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import urlsplit

MIB: Final = 1024 * 1024


class Variable(NamedTuple):
    """Where a setting comes from: its variable, what it means, and what reads it."""

    name: str
    meaning: str
    read: Callable[[Any], Any]
    """gives the value, or raises Wrong with the words for what would be right"""
    default_text: str


class InvalidValue(Exception):
    """The given value cannot be; the text says what would be right."""


_HOST_AND_PORT: Final = re.compile(r"(\[[0-9a-fA-F:.]+\]|[\w.-]+):[0-9]{1,5}(/.*)?")


def with_scheme(address: str) -> str:
    """``localhost:8265`` as what is meant by it: http://localhost:8265. Everything else as it is."""
    return f"http://{address}" if _HOST_AND_PORT.fullmatch(address) else address


def _url(value: Any) -> str:
    expected = "an address such as http://127.0.0.1:8265, without user, query or fragment"
    text = with_scheme(str(value).strip().rstrip("/"))
    try:
        parts = urlsplit(text)
        port_is_right = parts.port is None or parts.port > 0
    except ValueError as fault:
        raise InvalidValue(expected) from fault
    if "@" in parts.netloc:
        raise InvalidValue(expected + " (a token goes into VRAMSCOPE_TOKEN)")
    if (
        parts.scheme not in ("http", "https")
        or not parts.hostname
        or not port_is_right
        or parts.query
        or parts.fragment
    ):
        raise InvalidValue(expected)
    if re.search(r"[\s\x00-\x1f\x7f]", text):
        raise InvalidValue(expected)
    return text


def _name(value: Any) -> str:
    text = str(value).strip()
    if not 1 <= len(text) <= 200 or not text.isprintable():
        raise InvalidValue("1 to 200 printable characters")
    return text


def _token(value: Any) -> str:
    text = str(value).strip()
    if not re.fullmatch(r"[!-~]{1,512}", text):
        raise InvalidValue("up to 512 visible ASCII characters, as the server showed it")
    return text


def _run_id(value: Any) -> str:
    text = str(value).strip()
    if not re.fullmatch(r"[0-9a-z]{8,40}", text):
        raise InvalidValue("8 to 40 characters of 0-9 and a-z")
    return text


def _tags(value: Any) -> tuple[str, ...]:
    if not isinstance(value, str) and (isinstance(value, bytes) or not isinstance(value, Iterable)):
        raise InvalidValue("a list of tags, or text with commas between them")
    given = value.split(",") if isinstance(value, str) else list(value)
    tags = tuple(dict.fromkeys(_name(tag) for tag in given if str(tag).strip()))
    if len(tags) > 64:
        raise InvalidValue("at most 64 tags, with commas between them")
    return tags


def _yes_or_no(value: Any) -> bool:
    text = str(value).strip().lower()
    if text in ("1", "true", "yes", "on"):
        return True
    if text in ("0", "false", "no", "off"):
        return False
    raise InvalidValue("1 or 0")


def _phases(value: Any) -> bool | Literal["every"]:
    if str(value).strip().lower() == "every":
        return "every"
    try:
        return _yes_or_no(value)
    except InvalidValue as fault:
        raise InvalidValue("1, 0 or every") from fault


def _whole(low: int, high: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        text = str(value).strip()
        if isinstance(value, bool) or not re.fullmatch(r"[0-9]{1,15}", text) or not low <= int(text) <= high:
            raise InvalidValue(f"a whole number from {low} to {high}")
        return int(text)

    return read


def _seconds(low: float, high: float) -> Callable[[Any], float]:
    def read(value: Any) -> float:
        text = str(value).strip()
        if isinstance(value, bool) or not re.fullmatch(r"[0-9]+(\.[0-9]+)?", text) or not low <= float(text) <= high:
            raise InvalidValue(f"seconds from {low:g} to {high:g}")
        return float(text)

    return read


def _bytes(value: Any) -> int:
    found = re.fullmatch(r"([0-9]{1,15})\s*(|B|KiB|MiB|GiB|TiB)", str(value).strip(), re.IGNORECASE)
    units = {"": 1, "b": 1, "kib": 1024, "mib": MIB, "gib": 1024 * MIB, "tib": 1024 * 1024 * MIB}
    if isinstance(value, bool) or not found or int(found[1]) * units[found[2].lower()] < MIB:
        raise InvalidValue("a size of at least 1 MiB, such as 268435456 or 256MiB")
    return int(found[1]) * units[found[2].lower()]


def _folder(value: Any) -> Path:
    text = os.fspath(value) if isinstance(value, os.PathLike) else str(value)
    if not text.strip() or "\x00" in text:
        raise InvalidValue("the path of a folder")
    try:
        return Path(text).expanduser()
    except RuntimeError as fault:  # ~somebody who is not known here
        raise InvalidValue("the path of a folder; nobody's home is known by that name") from fault


def default_spool_dir(environ: Mapping[str, str] | None = None) -> Path:
    """Where samples wait for a server: the user's state folder, or a temporary one where there is no home."""
    environ = os.environ if environ is None else environ
    if environ.get("XDG_STATE_HOME", "").startswith("/"):
        return Path(environ["XDG_STATE_HOME"], "vramscope", "spool")
    home = environ.get("HOME", "") or os.path.expanduser("~")  # noqa: PTH111 - Path.home() raises where there is none
    if home.startswith("/"):
        return Path(home, ".local", "state", "vramscope", "spool")
    return Path(tempfile.gettempdir(), f"vramscope-{os.getuid()}", "spool")


def _setting(name: str, default: Any, read: Callable[[Any], Any], meaning: str, default_text: str = "") -> Any:
    shown = default_text or ("not set" if default is None else str(default))
    metadata = {"variable": Variable(name, meaning, read, shown)}
    if callable(default):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that the agent can be told. Each line: variable, default, what reads it, what it means."""

    server: str = _setting("VRAMSCOPE_SERVER", "http://127.0.0.1:8265", _url, "Where the server is.")
    token: str | None = _setting(
        "VRAMSCOPE_TOKEN", None, _token, "Token with the scope `ingest`, for a server that asks for one. Never shown."
    )
    project: str = _setting("VRAMSCOPE_PROJECT", "default", _name, "Project that the run belongs to.")
    run_name: str | None = _setting(
        "VRAMSCOPE_RUN_NAME", None, _name, "Name of the run.", "made from the script's or notebook's name and the time"
    )
    run_id: str | None = _setting(
        "VRAMSCOPE_RUN_ID",
        None,
        _run_id,
        "Id of the run: 8 to 40 characters of 0-9 and a-z. All ranks of one job must share it.",
        "made from what the launcher says of the job, else random",
    )
    resume: bool = _setting(
        "VRAMSCOPE_RESUME", False, _yes_or_no, "1: go on with the run that has this id, instead of starting one.", "0"
    )
    tags: tuple[str, ...] = _setting("VRAMSCOPE_TAGS", (), _tags, "Tags of the run, with commas between them.", "none")
    disabled: bool = _setting("VRAMSCOPE_DISABLED", False, _yes_or_no, "1: attach does nothing at all.", "0")
    interval_ms: int = _setting(
        "VRAMSCOPE_INTERVAL_MS", 100, _whole(10, 60_000), "Milliseconds between two samples of the memory counters."
    )
    flush_ms: int = _setting(
        "VRAMSCOPE_FLUSH_MS", 200, _whole(20, 60_000), "Milliseconds between two batches to the server."
    )
    leaks: bool = _setting(
        "VRAMSCOPE_LEAKS", True, _yes_or_no, "0: nothing looks for graphs and tensors that outlive their step.", "1"
    )
    windows: bool = _setting(
        "VRAMSCOPE_WINDOWS",
        True,
        _yes_or_no,
        "0: no windows of allocator history are recorded; what fragments, and what other settings would give, is not known then.",
        "1",
    )
    techniques: bool = _setting(
        "VRAMSCOPE_TECHNIQUES",
        True,
        _yes_or_no,
        "0: nothing looks how it is trained (checkpointing, mixed precision, optimizer ..), nor for known traps.",
        "1",
    )
    loss: bool = _setting(
        "VRAMSCOPE_LOSS",
        True,
        _yes_or_no,
        "0: the loss is not read; numbers passed to `session.log` are sent all the same.",
        "1",
    )
    profile: bool = _setting(
        "VRAMSCOPE_PROFILE",
        True,
        _yes_or_no,
        "0: no step is profiled by itself, only when somebody asks for it at the page.",
        "1",
    )
    phases: bool | Literal["every"] = _setting(
        "VRAMSCOPE_PHASES",
        True,
        _phases,
        "0: only whole steps are measured, not their phases; costs less. 1: phases are read in every step as long as that "
        "takes less than 2 % of its time, else in part of the steps. every: in every step, whatever that takes, which is not "
        "measured then.",
        "1",
    )
    spool_dir: Path = _setting(  # noqa: RUF009 - makes a dataclass field
        "VRAMSCOPE_SPOOL_DIR",
        default_spool_dir,
        _folder,
        "Folder where batches wait while the server is away.",
        "`$XDG_STATE_HOME/vramscope/spool`, else `~/.local/state/vramscope/spool`",
    )
    spool_bytes: int = _setting(
        "VRAMSCOPE_SPOOL_BYTES",
        256 * MIB,
        _bytes,
        "Most that the folder may hold, all runs together; when it is full the oldest batches go, counted.",
        "256MiB",
    )
    connect_timeout_s: float = _setting(
        "VRAMSCOPE_CONNECT_TIMEOUT_S", 2.0, _seconds(0.1, 60), "Seconds that a connection to the server may take."
    )
    read_timeout_s: float = _setting(
        "VRAMSCOPE_READ_TIMEOUT_S", 10.0, _seconds(0.1, 300), "Seconds that the server may take for an answer."
    )
    close_timeout_s: float = _setting(
        "VRAMSCOPE_CLOSE_TIMEOUT_S",
        3.0,
        _seconds(0, 60),
        "Seconds that the end of the training may wait for the last batches; what is left then stays in the folder.",
    )
    quiet: bool = _setting("VRAMSCOPE_QUIET", False, _yes_or_no, "1: the agent says nothing on the terminal.", "0")

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None, **overrides: Any) -> Settings:
        """Settings from the arguments that are not None, then from the environment, then from the defaults.

        A variable that is set but empty counts as not set. Raises ValueError for a value that cannot be.
        """
        values, _ = cls._read(environ, overrides)
        return cls(**values)

    @classmethod
    def for_training(cls, environ: Mapping[str, str] | None = None, **overrides: Any) -> tuple[Settings, str]:
        """The same for who watches a training, and what keeps it from sending: "" where nothing does.

        A server that cannot be read (``server`` is empty then) or such a token is no reason not to watch: what is seen can be
        sent later. Raises ValueError for any other value that cannot be.
        """
        values, wrong = cls._read(environ, overrides, forgiven=("server", "token"))
        return cls(**values), "; ".join(wrong)

    @classmethod
    def _read(
        cls, environ: Mapping[str, str] | None, overrides: Mapping[str, Any], forgiven: Sequence[str] = ()
    ) -> tuple[dict[str, Any], list[str]]:
        environ = os.environ if environ is None else environ
        unknown = sorted(overrides.keys() - VARIABLES.keys())
        if unknown:
            raise ValueError(f"no such setting: {', '.join(unknown)}; there are {', '.join(VARIABLES)}")
        values: dict[str, Any] = {"spool_dir": default_spool_dir(environ)}
        wrong: list[str] = []
        for field, variable in VARIABLES.items():
            given, source = overrides.get(field), field
            if given is None:
                given, source = environ.get(variable.name, "").strip() or None, variable.name
            if given is None:
                continue
            try:
                values[field] = _checked(variable, source, given)
            except ValueError as fault:
                if field not in forgiven:
                    raise
                wrong.append(str(fault))
                values[field] = "" if field == "server" else None
        return values, wrong

    def __repr__(self) -> str:
        shown = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        shown["token"] = None if self.token is None else "***"
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


def _checked(variable: Variable, source: str, given: Any) -> Any:
    try:
        return variable.read(given)
    except InvalidValue as wrong:
        seen = "a value that is not shown" if variable.name == "VRAMSCOPE_TOKEN" else repr(given)
        raise ValueError(f"{source}: saw {seen[:200]}; expected {wrong}") from None


VARIABLES: Final[dict[str, Variable]] = {
    field.name: field.metadata["variable"] for field in dataclasses.fields(Settings)
}
"""Field of :class:`Settings` -> its variable. docs/settings.md is held to it by a test."""
