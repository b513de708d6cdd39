"""Functions that read the value of a setting, given as text or as Python's value. Each raises InvalidValue with what it expects."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit

MIB: Final = 1024 * 1024
MIRRORS: Final = ("wandb", "mlflow", "tensorboard", "trackio", "comet", "neptune", "clearml", "aim", "swanlab")
DETAILS: Final[dict[str, dict[str, Any]]] = {
    "auto": {},
    "every": {"phases": "every"},
    "peaks": dict.fromkeys(("phases", "leaks", "windows", "profile", "techniques", "loss"), False),
}
"""Other settings that follow from a value of ``detail``."""


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


def url(value: Any) -> str:
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


def name(value: Any) -> str:
    text = str(value).strip()
    if not 1 <= len(text) <= 200 or not text.isprintable():
        raise InvalidValue("1 to 200 printable characters")
    return text


def token(value: Any) -> str:
    text = str(value).strip()
    if not re.fullmatch(r"[!-~]{1,512}", text):
        raise InvalidValue("up to 512 visible ASCII characters, as the server showed it")
    return text


def run_id(value: Any) -> str:
    text = str(value).strip()
    if not re.fullmatch(r"[0-9a-z]{8,40}", text):
        raise InvalidValue("8 to 40 characters of 0-9 and a-z")
    return text


def tags(value: Any) -> tuple[str, ...]:
    if not isinstance(value, str) and (isinstance(value, bytes) or not isinstance(value, Iterable)):
        raise InvalidValue("a list of tags, or text with commas between them")
    value = value.split(",") if isinstance(value, str) else list(value)
    tags = tuple(dict.fromkeys(name(tag) for tag in value if str(tag).strip()))
    if len(tags) > 64:
        raise InvalidValue("at most 64 tags, with commas between them")
    return tags


def mirrors(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        value = value.lower().replace(" ", "").split(",")
    wanted = [str(one) for one in value] if isinstance(value, Iterable) else [repr(value)]
    if wanted == ["none"]:
        return ()
    if not set(wanted) <= set(MIRRORS):
        raise InvalidValue(f"some of {', '.join(MIRRORS)}, with commas between them, or none")
    return tuple(dict.fromkeys(wanted))


def yes_or_no(value: Any) -> bool:
    text = str(value).strip().lower()
    if text in ("1", "true", "yes", "on"):
        return True
    if text in ("0", "false", "no", "off"):
        return False
    raise InvalidValue("1 or 0")


def phases(value: Any) -> bool | Literal["every"]:
    if str(value).strip().lower() == "every":
        return "every"
    try:
        return yes_or_no(value)
    except InvalidValue as fault:
        raise InvalidValue("1, 0 or every") from fault


def detail(value: Any) -> str:
    text = str(value).strip().lower()
    if text not in DETAILS:
        raise InvalidValue("auto, every or peaks")
    return text


def whole(low: int, high: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        text = str(value).strip()
        if isinstance(value, bool) or not re.fullmatch(r"[0-9]{1,15}", text) or not low <= int(text) <= high:
            raise InvalidValue(f"a whole number from {low} to {high}")
        return int(text)

    return read


def seconds(low: float, high: float) -> Callable[[Any], float]:
    def read(value: Any) -> float:
        text = str(value).strip()
        if isinstance(value, bool) or not re.fullmatch(r"[0-9]+(\.[0-9]+)?", text) or not low <= float(text) <= high:
            raise InvalidValue(f"seconds from {low:g} to {high:g}")
        return float(text)

    return read


def share(value: Any) -> float:
    text = str(value).strip()
    if isinstance(value, bool) or not re.fullmatch(r"[0-9]*\.?[0-9]+", text) or not 0 < float(text) <= 1:
        raise InvalidValue("a share above 0 and up to 1, such as 0.02")
    return float(text)


def size_bytes(value: Any) -> int:
    found = re.fullmatch(r"([0-9]{1,15})\s*(|B|KiB|MiB|GiB|TiB)", str(value).strip(), re.IGNORECASE)
    units = {"": 1, "b": 1, "kib": 1024, "mib": MIB, "gib": 1024 * MIB, "tib": 1024 * 1024 * MIB}
    if isinstance(value, bool) or not found or int(found[1]) * units[found[2].lower()] < MIB:
        raise InvalidValue("a size of at least 1 MiB, such as 268435456 or 256MiB")
    return int(found[1]) * units[found[2].lower()]


def folder(value: Any) -> Path:
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
