"""The agent's settings: one frozen value, read from ``VRAMSCOPE_*`` once, when the training attaches.

Arguments of ``attach`` win over the environment, and the environment over the defaults below. A wrong value is reported in
one sentence: the setting, the value, and what is expected.

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
MIRRORS: Final = ("wandb", "mlflow", "tensorboard", "trackio", "comet", "neptune", "clearml", "aim", "swanlab")
BUDGET: Final = 0.02
"""Default share of the training's time that watching may take."""


class Variable(NamedTuple):
    """Source of a setting: its variable, its meaning, and the function that reads it."""

    name: str
    meaning: str
    read: Callable[[Any], Any]
    """Returns the value, or raises InvalidValue with a text that says what is expected."""
    default_text: str


class InvalidValue(Exception):
    """The value is invalid; the text says what is expected."""


_HOST_AND_PORT: Final = re.compile(r"(\[[0-9a-fA-F:.]+\]|[\w.-]+):[0-9]{1,5}(/.*)?")


def with_scheme(address: str) -> str:
    """Add http:// to a host and port, such as ``localhost:8265``. Other addresses stay as they are."""
    return f"http://{address}" if _HOST_AND_PORT.fullmatch(address) else address


def is_loopback(address: str) -> bool:
    """True if an address is this machine's own, which a proxy of the environment cannot reach."""
    host = urlsplit(address).hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")


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
    value = value.split(",") if isinstance(value, str) else list(value)
    tags = tuple(dict.fromkeys(_name(tag) for tag in value if str(tag).strip()))
    if len(tags) > 64:
        raise InvalidValue("at most 64 tags, with commas between them")
    return tags


def _mirrors(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        value = value.lower().replace(" ", "").split(",")
    wanted = [str(one) for one in value] if isinstance(value, Iterable) else [repr(value)]
    if wanted == ["none"]:
        return ()
    if not set(wanted) <= set(MIRRORS):
        raise InvalidValue(f"some of {', '.join(MIRRORS)}, with commas between them, or none")
    return tuple(dict.fromkeys(wanted))


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


def _detail(value: Any) -> str:
    text = str(value).strip().lower()
    if text not in DETAILS:
        raise InvalidValue("auto, every or peaks")
    return text


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


def _share(value: Any) -> float:
    text = str(value).strip()
    if isinstance(value, bool) or not re.fullmatch(r"[0-9]*\.?[0-9]+", text) or not 0 < float(text) <= 1:
        raise InvalidValue("a share above 0 and up to 1, such as 0.02")
    return float(text)


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
    except RuntimeError as fault:  # ~name of an unknown user
        raise InvalidValue("the path of a folder; no user has this name") from fault


def default_spool_dir(environ: Mapping[str, str] | None = None) -> Path:
    """Return the default folder of unsent samples: the user's state folder, or a temporary one without a home folder."""
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


DETAILS: Final[dict[str, dict[str, Any]]] = {
    "auto": {},
    "every": {"phases": "every"},
    "peaks": dict.fromkeys(("phases", "leaks", "windows", "profile", "techniques", "loss"), False),
}
"""Other settings that follow from a value of ``detail``."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings of the agent. Each line: variable, default, reader, meaning."""

    server: str = _setting("VRAMSCOPE_SERVER", "http://127.0.0.1:8265", _url, "Address of the server.")
    token: str | None = _setting(
        "VRAMSCOPE_TOKEN", None, _token, "Token with the role `write`, for a server that asks for one. Never shown."
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
        "made from the launcher's job id, else random",
    )
    resume: bool = _setting(
        "VRAMSCOPE_RESUME", False, _yes_or_no, "1: continue the run with this id instead of starting a new one.", "0"
    )
    tags: tuple[str, ...] = _setting("VRAMSCOPE_TAGS", (), _tags, "Tags of the run, with commas between them.", "none")
    disabled: bool = _setting("VRAMSCOPE_DISABLED", False, _yes_or_no, "1: attach does nothing.", "0")
    mirror: tuple[str, ...] = _setting(
        "VRAMSCOPE_MIRROR",
        MIRRORS,
        _mirrors,
        "Trackers that get the memory figures while a run of theirs is active, with commas between them; or none.",
        ",".join(MIRRORS),
    )
    interval_ms: int = _setting(
        "VRAMSCOPE_INTERVAL_MS", 100, _whole(10, 60_000), "Milliseconds between two samples of the memory counters."
    )
    flush_ms: int = _setting(
        "VRAMSCOPE_FLUSH_MS",
        200,
        _whole(20, 10_000),
        "Milliseconds between two batches to the server. After ten seconds it is up to a second, where sending would take more "
        "than 0.2 % of a core. A server with many ranks asks for more, up to 10 s.",
    )
    leaks: bool = _setting("VRAMSCOPE_LEAKS", True, _yes_or_no, "0: no leak detection.", "1")
    windows: bool = _setting(
        "VRAMSCOPE_WINDOWS",
        True,
        _yes_or_no,
        "0: no allocator history is recorded, so there are no fragmentation figures and no predictions for other settings.",
        "1",
    )
    techniques: bool = _setting(
        "VRAMSCOPE_TECHNIQUES",
        True,
        _yes_or_no,
        "0: no detection of techniques (checkpointing, mixed precision, optimizer, ...) and of known pitfalls.",
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
        "0: steps are profiled only on request from the page.",
        "1",
    )
    phases: bool | Literal["every"] = _setting(
        "VRAMSCOPE_PHASES",
        True,
        _phases,
        "0: only whole steps are measured, not their phases; costs less. 1: phases are measured in every step while that "
        "takes less than 2 % of its time, else in some steps. every: in every step; the overhead is then not measured.",
        "1",
    )
    detail: Literal["auto", "every", "peaks"] = _setting(
        "VRAMSCOPE_DETAIL",
        "auto",
        _detail,
        "auto: as much as the budget allows. every: every step in full, whatever it costs. peaks: only the exact peak of each "
        "step, without phases, leaks, recordings, profiles, techniques and loss. A variable of one of these wins.",
    )
    budget: float = _setting(
        "VRAMSCOPE_BUDGET",
        BUDGET,
        _share,
        "Share of the training's time that watching may take, the agent's own threads included, besides 0.3 s in a run, import "
        "and attach included. Where steps are so short that it would take more, most steps are plain: only their ends are "
        "seen, and one exact peak covers a group of them.",
    )
    spool_dir: Path = _setting(  # noqa: RUF009 - makes a dataclass field
        "VRAMSCOPE_SPOOL_DIR",
        default_spool_dir,
        _folder,
        "Folder for unsent batches.",
        "`$XDG_STATE_HOME/vramscope/spool`, else `~/.local/state/vramscope/spool`",
    )
    spool_bytes: int = _setting(
        "VRAMSCOPE_SPOOL_BYTES",
        256 * MIB,
        _bytes,
        "Maximum size of that folder, all runs together. When it is full, the oldest batches are removed and counted.",
        "256MiB",
    )
    connect_timeout_s: float = _setting(
        "VRAMSCOPE_CONNECT_TIMEOUT_S", 2.0, _seconds(0.1, 60), "Timeout for a connection to the server, in seconds."
    )
    read_timeout_s: float = _setting(
        "VRAMSCOPE_READ_TIMEOUT_S", 10.0, _seconds(0.1, 300), "Timeout for an answer of the server, in seconds."
    )
    close_timeout_s: float = _setting(
        "VRAMSCOPE_CLOSE_TIMEOUT_S",
        3.0,
        _seconds(0, 60),
        "Maximum time that the end of the training waits for the last batches, in seconds; the rest stays in the folder.",
    )
    quiet: bool = _setting("VRAMSCOPE_QUIET", False, _yes_or_no, "1: the agent prints nothing on the terminal.", "0")

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None, **overrides: Any) -> Settings:
        """Read settings from the arguments that are not None, then from the environment, then from the defaults.

        A variable that is set but empty counts as not set. Raises ValueError for an invalid value.

        """
        values, _ = cls._read(environ, overrides)
        return cls(**values)

    @classmethod
    def for_training(cls, environ: Mapping[str, str] | None = None, **overrides: Any) -> tuple[Settings, str]:
        """Read settings for a training. Also returns why nothing can be sent, "" if it can.

        An invalid server (``server`` is empty then) or token does not prevent recording: samples can be sent later. Raises
        ValueError for any other invalid value.

        """
        values, wrong = cls._read(environ, overrides, optional=("server", "token"))
        return cls(**values), "; ".join(wrong)

    @classmethod
    def _read(
        cls, environ: Mapping[str, str] | None, overrides: Mapping[str, Any], optional: Sequence[str] = ()
    ) -> tuple[dict[str, Any], list[str]]:
        environ = os.environ if environ is None else environ
        unknown = sorted(overrides.keys() - VARIABLES.keys())
        if unknown:
            raise ValueError(f"unknown setting: {', '.join(unknown)}; known settings: {', '.join(VARIABLES)}")
        values: dict[str, Any] = {"spool_dir": default_spool_dir(environ)}
        wrong: list[str] = []
        for field, variable in VARIABLES.items():
            value, source = overrides.get(field), field
            if value is None:
                value, source = environ.get(variable.name, "").strip() or None, variable.name
            if value is None:
                continue
            try:
                values[field] = _checked(variable, source, value)
            except ValueError as fault:
                if field not in optional:
                    raise
                wrong.append(str(fault))
                values[field] = "" if field == "server" else None
        return {**DETAILS[values.get("detail", "auto")], **values}, wrong

    def __repr__(self) -> str:
        shown = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        shown["token"] = None if self.token is None else "***"
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


def _checked(variable: Variable, source: str, value: Any) -> Any:
    try:
        return variable.read(value)
    except InvalidValue as wrong:
        shown = "a value that is not shown" if variable.name == "VRAMSCOPE_TOKEN" else repr(value)
        raise ValueError(f"{source}: saw {shown[:200]}; expected {wrong}") from None


VARIABLES: Final[dict[str, Variable]] = {
    field.name: field.metadata["variable"] for field in dataclasses.fields(Settings)
}
"""Field of :class:`Settings` -> its variable. A test compares docs/settings.md with it."""
