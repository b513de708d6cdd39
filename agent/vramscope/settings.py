"""The agent's settings: one frozen value, read from ``VRAMSCOPE_*`` once, when the training attaches.

Arguments of ``attach`` win over the environment, and the environment over the defaults below. A wrong value is reported in
one sentence: the setting, the value, and what is expected.

"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from vramscope import setting_values as values

BUDGET: Final = 0.02
"""Default share of the training's time that watching may take."""


class Variable(NamedTuple):
    """Source of a setting: its variable, its meaning, and the function that reads it."""

    name: str
    meaning: str
    read: Callable[[Any], Any]
    """Returns the value, or raises InvalidValue with a text that says what is expected."""
    default_text: str


def _setting(name: str, default: Any, read: Callable[[Any], Any], meaning: str, default_text: str = "") -> Any:
    shown = default_text or ("not set" if default is None else str(default))
    metadata = {"variable": Variable(name, meaning, read, shown)}
    if callable(default):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings of the agent. Each line: variable, default, reader, meaning."""

    server: str = _setting("VRAMSCOPE_SERVER", "http://127.0.0.1:8265", values.url, "Address of the server.")
    token: str | None = _setting(
        "VRAMSCOPE_TOKEN",
        None,
        values.token,
        "Token with the role `write`, for a server that asks for one. Never shown.",
    )
    project: str = _setting("VRAMSCOPE_PROJECT", "default", values.name, "Project that the run belongs to.")
    run_name: str | None = _setting(
        "VRAMSCOPE_RUN_NAME",
        None,
        values.name,
        "Name of the run.",
        "made from the script's or notebook's name and the time",
    )
    run_id: str | None = _setting(
        "VRAMSCOPE_RUN_ID",
        None,
        values.run_id,
        "Id of the run: 8 to 40 characters of 0-9 and a-z. All ranks of one job must share it.",
        "made from the launcher's job id, else random",
    )
    resume: bool = _setting(
        "VRAMSCOPE_RESUME",
        False,
        values.yes_or_no,
        "1: continue the run with this id instead of starting a new one.",
        "0",
    )
    tags: tuple[str, ...] = _setting(
        "VRAMSCOPE_TAGS", (), values.tags, "Tags of the run, with commas between them.", "none"
    )
    disabled: bool = _setting("VRAMSCOPE_DISABLED", False, values.yes_or_no, "1: attach does nothing.", "0")
    mirror: tuple[str, ...] = _setting(
        "VRAMSCOPE_MIRROR",
        values.MIRRORS,
        values.mirrors,
        "Trackers that get the memory figures while a run of theirs is active, with commas between them; or none.",
        ",".join(values.MIRRORS),
    )
    interval_ms: int = _setting(
        "VRAMSCOPE_INTERVAL_MS",
        100,
        values.whole(10, 60_000),
        "Milliseconds between two samples of the memory counters.",
    )
    flush_ms: int = _setting(
        "VRAMSCOPE_FLUSH_MS",
        200,
        values.whole(20, 10_000),
        "Milliseconds between two batches to the server. After ten seconds it is up to a second, where sending would take more "
        "than 0.2 % of a core. A server with many ranks asks for more, up to 10 s.",
    )
    leaks: bool = _setting("VRAMSCOPE_LEAKS", True, values.yes_or_no, "0: no leak detection.", "1")
    windows: bool = _setting(
        "VRAMSCOPE_WINDOWS",
        True,
        values.yes_or_no,
        "0: no allocator history is recorded, so there are no fragmentation figures and no predictions for other settings.",
        "1",
    )
    techniques: bool = _setting(
        "VRAMSCOPE_TECHNIQUES",
        True,
        values.yes_or_no,
        "0: no detection of techniques (checkpointing, mixed precision, optimizer, ...) and of known pitfalls.",
        "1",
    )
    loss: bool = _setting(
        "VRAMSCOPE_LOSS",
        True,
        values.yes_or_no,
        "0: the loss is not read; numbers passed to `session.log` are sent all the same.",
        "1",
    )
    profile: bool = _setting(
        "VRAMSCOPE_PROFILE",
        True,
        values.yes_or_no,
        "0: steps are profiled only on request from the page.",
        "1",
    )
    phases: bool | Literal["every"] = _setting(
        "VRAMSCOPE_PHASES",
        True,
        values.phases,
        "0: only whole steps are measured, not their phases; costs less. 1: phases are measured in every step while that "
        "takes less than 2 % of its time, else in some steps. every: in every step; the overhead is then not measured.",
        "1",
    )
    detail: Literal["auto", "every", "peaks"] = _setting(
        "VRAMSCOPE_DETAIL",
        "auto",
        values.detail,
        "auto: as much as the budget allows. every: every step in full, whatever it costs. peaks: only the exact peak of each "
        "step, without phases, leaks, recordings, profiles, techniques and loss. A variable of one of these wins.",
    )
    budget: float = _setting(
        "VRAMSCOPE_BUDGET",
        BUDGET,
        values.share,
        "Share of the training's time that watching may take, the agent's own threads included, besides 0.3 s in a run, import "
        "and attach included. Where steps are so short that it would take more, most steps are plain: only their ends are "
        "seen, and one exact peak covers a group of them.",
    )
    spool_dir: Path = _setting(  # noqa: RUF009 - makes a dataclass field
        "VRAMSCOPE_SPOOL_DIR",
        values.default_spool_dir,
        values.folder,
        "Folder for unsent batches.",
        "`$XDG_STATE_HOME/vramscope/spool`, else `~/.local/state/vramscope/spool`",
    )
    spool_bytes: int = _setting(
        "VRAMSCOPE_SPOOL_BYTES",
        256 * values.MIB,
        values.size_bytes,
        "Maximum size of that folder, all runs together. When it is full, the oldest batches are removed and counted.",
        "256MiB",
    )
    connect_timeout_s: float = _setting(
        "VRAMSCOPE_CONNECT_TIMEOUT_S",
        2.0,
        values.seconds(0.1, 60),
        "Timeout for a connection to the server, in seconds.",
    )
    read_timeout_s: float = _setting(
        "VRAMSCOPE_READ_TIMEOUT_S", 10.0, values.seconds(0.1, 300), "Timeout for an answer of the server, in seconds."
    )
    close_timeout_s: float = _setting(
        "VRAMSCOPE_CLOSE_TIMEOUT_S",
        3.0,
        values.seconds(0, 60),
        "Maximum time that the end of the training waits for the last batches, in seconds; the rest stays in the folder.",
    )
    quiet: bool = _setting(
        "VRAMSCOPE_QUIET", False, values.yes_or_no, "1: the agent prints nothing on the terminal.", "0"
    )

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None, **overrides: Any) -> Settings:
        """Read settings from the arguments that are not None, then from the environment, then from the defaults.

        A variable that is set but empty counts as not set. Raises ValueError for an invalid value.

        """
        given, _ = cls._read(environ, overrides)
        return cls(**given)

    @classmethod
    def for_training(cls, environ: Mapping[str, str] | None = None, **overrides: Any) -> tuple[Settings, str]:
        """Read settings for a training. Also returns why nothing can be sent, "" if it can.

        An invalid server (``server`` is empty then) or token does not prevent recording: samples can be sent later. Raises
        ValueError for any other invalid value.

        """
        given, wrong = cls._read(environ, overrides, optional=("server", "token"))
        return cls(**given), "; ".join(wrong)

    @classmethod
    def _read(
        cls, environ: Mapping[str, str] | None, overrides: Mapping[str, Any], optional: Sequence[str] = ()
    ) -> tuple[dict[str, Any], list[str]]:
        environ = os.environ if environ is None else environ
        unknown = sorted(overrides.keys() - VARIABLES.keys())
        if unknown:
            raise ValueError(f"unknown setting: {', '.join(unknown)}; known settings: {', '.join(VARIABLES)}")
        given: dict[str, Any] = {"spool_dir": values.default_spool_dir(environ)}
        wrong: list[str] = []
        for field, variable in VARIABLES.items():
            value, source = overrides.get(field), field
            if value is None:
                value, source = environ.get(variable.name, "").strip() or None, variable.name
            if value is None:
                continue
            try:
                given[field] = _checked(variable, source, value)
            except ValueError as fault:
                if field not in optional:
                    raise
                wrong.append(str(fault))
                given[field] = "" if field == "server" else None
        return {**values.DETAILS[given.get("detail", "auto")], **given}, wrong

    def __repr__(self) -> str:
        shown = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        shown["token"] = None if self.token is None else "***"
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


def _checked(variable: Variable, source: str, value: Any) -> Any:
    try:
        return variable.read(value)
    except values.InvalidValue as wrong:
        shown = "a value that is not shown" if variable.name == "VRAMSCOPE_TOKEN" else repr(value)
        raise ValueError(f"{source}: saw {shown[:200]}; expected {wrong}") from None


VARIABLES: Final[dict[str, Variable]] = {
    field.name: field.metadata["variable"] for field in dataclasses.fields(Settings)
}
"""Field of :class:`Settings` -> its variable. A test compares docs/settings.md with it."""
