"""What can be set on the server: each field is an environment variable ``VRAMSCOPE_<NAME>`` (docs/settings.md)."""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict


def _data_dir() -> Path:
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "vramscope"


class Settings(BaseSettings):
    """Passed to ``create_app``: two servers with different settings can live in one process.

    Raises pydantic.ValidationError, naming the field, for a value that cannot be.
    """

    model_config = SettingsConfigDict(env_prefix="VRAMSCOPE_", extra="ignore", frozen=True, env_ignore_empty=True)

    host: str = Field(default="127.0.0.1", description="Address to listen at. Anything but loopback demands tokens.")
    port: int = Field(default=8265, ge=0, le=65535, description="Port to listen at; 0 takes a free one.")
    data_dir: Path = Field(default_factory=_data_dir, description="Where the SQLite database lies.")
    database: str | None = Field(
        default=None,
        description="SQLAlchemy URL of the database, or the path of an SQLite file; "
        "SQLite's `vramscope.db` in the data directory when not given.",
    )
    synchronous: Literal["NORMAL", "FULL"] = Field(
        default="NORMAL",
        description="SQLite's care. NORMAL: what was acknowledged survives a crash of the server; FULL: of the machine too.",
    )
    retention_days: float | None = Field(
        default=None,
        gt=0,
        description="Runs not heard of for so long are deleted. Not set: kept. Pinned and baseline runs stay.",
    )
    retention_bytes: int | None = Field(
        default=None,
        gt=0,
        description="Oldest ended runs are deleted while the database is larger. Pinned and baseline stay.",
    )
    snapshots_bytes: int = Field(
        default=50 << 30,
        gt=0,
        description="The columns of uploaded snapshots may take so much of the disk; the oldest are deleted beyond.",
    )
    snapshot_memory_bytes: int = Field(
        default=8 << 30,
        ge=512 << 20,
        description="Memory that the conversion of one snapshot may take: some 300 bytes an event.",
    )
    lost_after_seconds: float = Field(
        default=30.0, gt=0, description="A run that is silent for so long, without having said that it ended, is lost."
    )
    require_tokens: bool | None = Field(
        default=None, description="Demand tokens. Not set: only when the host is not loopback."
    )
    allowed_hosts: Annotated[list[str], NoDecode] = Field(
        default_factory=list,
        description="More names under which browsers may reach a server without tokens, separated by commas.",
    )
    queue_bytes: int = Field(
        default=24 * 1024 * 1024,
        ge=8 * 1024 * 1024,
        description="Maximum bytes of batches that wait to be stored; above it, agents retry later.",
    )
    log_level: Literal["critical", "error", "warning", "info", "debug"] = Field(
        default="warning", description="What the server tells on its console besides its address."
    )

    @field_validator("allowed_hosts", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value

    @property
    def database_url(self) -> str:
        """The database's URL, default filled in."""
        given = self.database or str(self.data_dir / "vramscope.db")
        return given if "://" in given else f"sqlite:///{Path(given).expanduser().absolute()}"

    @property
    def snapshots_dir(self) -> Path:
        """Where uploaded snapshots lie: beside the SQLite database that knows them, else in the data directory."""
        url = self.database_url
        if url.startswith("sqlite:///"):
            return Path(url.removeprefix("sqlite:///").partition("?")[0] + "-snapshots")
        return self.data_dir / "snapshots"

    @property
    def tokens_required(self) -> bool:
        """Whether requests need a token."""
        return not is_loopback(self.host) if self.require_tokens is None else self.require_tokens


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
