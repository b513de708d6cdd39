"""Settings of the server: each field is an environment variable ``VRAMSCOPE_<NAME>`` (docs/settings.md)."""

from __future__ import annotations

import importlib.util
import ipaddress
import os
import re
import urllib.parse
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

LEAST_LOST_AFTER_SECONDS: Final = 15.0
"""Agents send every 10 s at least, and may be late: after less silence live runs would count as lost."""
_BUCKET: Final = re.compile(r"s3://[A-Za-z0-9][A-Za-z0-9._-]*(/[^/?#]+)*/*")


def default_data_dir() -> Path:
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "vramscope"


class Settings(BaseSettings):
    """Passed to ``create_app``: two servers with different settings can run in one process.

    Raises pydantic.ValidationError, which names the field, for an invalid value.
    """

    model_config = SettingsConfigDict(env_prefix="VRAMSCOPE_", extra="ignore", frozen=True, env_ignore_empty=True)

    host: str = Field(
        default="127.0.0.1", description="Address to listen on. Any address but loopback requires tokens."
    )
    port: int = Field(default=8265, ge=0, le=65535, description="Port to listen on; 0 is any free port.")
    workers: int = Field(
        default=1, ge=1, le=64, description="Number of server processes at the address; more than one need PostgreSQL."
    )
    data_dir: Path = Field(default_factory=default_data_dir, description="Folder of the SQLite database.")
    database: str | None = Field(
        default=None,
        description="SQLAlchemy URL of the database, or the path of an SQLite file; "
        "by default SQLite's `vramscope.db` in the data directory.",
    )
    synchronous: Literal["NORMAL", "FULL"] = Field(
        default="NORMAL",
        description="Durability of SQLite. NORMAL: acknowledged data survives a crash of the server; FULL: also of the machine.",
    )
    retention_days: float | None = Field(
        default=None,
        gt=0,
        le=36_500,
        description="Days after which silent runs are deleted; by default never. Pinned and baseline runs stay.",
    )
    retention_bytes: int | None = Field(
        default=None,
        gt=0,
        description="Maximum size of the database; above it the oldest ended runs are deleted. Pinned and baseline runs stay.",
    )
    snapshots_bytes: int = Field(
        default=50 << 30,
        gt=0,
        description="Maximum size of the columns of uploaded snapshots; above it the oldest are deleted.",
    )
    artifacts: str | None = Field(
        default=None,
        description="Bucket for uploaded snapshots, `s3://BUCKET/PREFIX`; by default they are files in the data directory.",
    )
    artifacts_cache_bytes: int = Field(
        default=20 << 30,
        gt=0,
        description="Maximum size of the columns that are fetched from the bucket and kept on this machine.",
    )
    snapshot_memory_bytes: int = Field(
        default=8 << 30,
        ge=512 << 20,
        description="Maximum memory for the conversion of a snapshot: about 300 bytes an event.",
    )
    lost_after_seconds: float = Field(
        default=30.0,
        le=2_592_000,
        allow_inf_nan=False,
        description="Seconds of silence after which a run that has not ended counts as lost; at least 15.",
    )
    require_tokens: bool | None = Field(
        default=None,
        description="Whether to require tokens; by default only if the host is not loopback, or users sign in.",
    )
    groups: Annotated[list[str], NoDecode] = Field(
        default_factory=list,
        description="What users of a group may do: `GROUP=ROLE` or `GROUP=ROLE:PROJECT+PROJECT`, separated by commas. "
        "The first that fits counts; the group `*` is everybody who signed in.",
    )
    proxy_user_header: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9-]*$",
        description="Header in which an authenticating proxy names the user, such as `X-Forwarded-Email`; requires tokens "
        "of all others.",
    )
    trusted_proxies: Annotated[list[str], NoDecode] = Field(
        default_factory=list,
        validate_default=True,
        description="Addresses and networks of the proxy, separated by commas: the header counts from these alone.",
    )
    proxy_role: Literal["read", "write"] = Field(
        default="read", description="Role of the users that the proxy names: `read` or `write`."
    )
    proxy_admins: Annotated[list[str], NoDecode] = Field(
        default_factory=list, description="Users with the role admin, as the proxy names them, separated by commas."
    )
    proxy_groups_header: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9-]*$",
        description="Header in which the proxy names the groups of the user, separated by commas; `VRAMSCOPE_GROUPS` then "
        "decides, and users without a group of it have no access.",
    )
    oidc_issuer: str | None = Field(
        default=None,
        description="Address of an OpenID provider at which people sign in; requires tokens of all others.",
    )
    oidc_client_id: str | None = Field(default=None, description="Client that the provider knows this server as.")
    oidc_client_secret: str | None = Field(
        default=None, min_length=8, description="Secret of that client. It also signs the cookies of users."
    )
    oidc_name_claim: str = Field(default="email", description="Claim with the name of the user, else `sub`.")
    oidc_groups_claim: str = Field(
        default="groups",
        validate_default=True,
        description="Claim with the groups of the user; `a.b` is b inside a, such as `realm_access.roles`.",
    )
    allowed_hosts: Annotated[list[str], NoDecode] = Field(
        default_factory=list,
        description="Further host names of a server without tokens, separated by commas.",
    )
    notify: Annotated[list[str], NoDecode] = Field(
        default_factory=list,
        description="Places to send messages about runs to: URLs of Apprise, separated by spaces.",
    )
    audit_entries: int = Field(
        default=50_000,
        ge=100,
        description="Maximum number of entries of the audit log; above it the oldest are deleted.",
    )
    public_url: str | None = Field(
        default=None, description="Address of the pages in messages; by default the one that the server listens on."
    )
    metrics_ranks: int = Field(
        default=500,
        ge=0,
        le=10_000,
        description="Maximum number of ranks with metrics of their own in `/metrics`; those of the newest runs come first.",
    )
    otlp_endpoint: str | None = Field(
        default=None,
        description="Address of an OpenTelemetry receiver (OTLP over HTTP), such as `http://collector:4318`, that gets the "
        "metrics of `/metrics`.",
    )
    queue_bytes: int = Field(
        default=24 * 1024 * 1024,
        ge=8 * 1024 * 1024,
        description="Maximum bytes of batches that wait to be stored; above it, agents retry later.",
    )
    log_level: Literal["critical", "error", "warning", "info", "debug"] = Field(
        default="warning", description="Log level of the console."
    )

    @field_validator("lost_after_seconds")
    @classmethod
    def _longer_than_agents_are_silent(cls, value: float) -> float:
        if value < LEAST_LOST_AFTER_SECONDS:
            raise ValueError(
                f"agents may be silent for 10 s, so live runs would count as lost: {LEAST_LOST_AFTER_SECONDS:g} or more"
            )
        return value

    @field_validator("allowed_hosts", "trusted_proxies", "proxy_admins", "groups", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value

    @field_validator("groups")
    @classmethod
    def _grants(cls, value: list[str]) -> list[str]:
        for text in value:
            _check_grant(text)
        return value

    @field_validator("proxy_groups_header")
    @classmethod
    def _with_groups(cls, value: str | None, others: ValidationInfo) -> str | None:
        if value is not None and not others.data.get("groups"):
            raise ValueError("VRAMSCOPE_GROUPS says what the groups may do")
        return value

    @field_validator("oidc_issuer")
    @classmethod
    def _provider(cls, value: str | None, others: ValidationInfo) -> str | None:
        if value is None:
            return None
        parts = urllib.parse.urlsplit(value)
        if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(parts.hostname or "")):
            raise ValueError("an address begins with https://")
        if not others.data.get("groups"):
            raise ValueError("VRAMSCOPE_GROUPS says who has access: *=read lets everybody in whom the provider knows")
        if importlib.util.find_spec("authlib") is None:
            raise ValueError("authlib is missing: pip install 'vramscope[server,oidc]'")
        return value.rstrip("/")

    @field_validator("artifacts")
    @classmethod
    def _bucket(cls, value: str | None) -> str | None:
        if value is None:
            return None
        if not _BUCKET.fullmatch(value) or {".", ".."} & set(value.split("/")):
            raise ValueError("an address is s3://BUCKET or s3://BUCKET/PREFIX; credentials stand in AWS_... variables")
        if importlib.util.find_spec("obstore") is None:
            raise ValueError("obstore is missing: pip install 'vramscope[server,s3]'")
        return value.rstrip("/")

    @field_validator("otlp_endpoint")
    @classmethod
    def _receiver(cls, value: str | None) -> str | None:
        if value is None:
            return None
        if not value.startswith(("http://", "https://")):
            raise ValueError("an address begins with http:// or https://")
        try:
            found = importlib.util.find_spec("opentelemetry.exporter.otlp.proto.http.metric_exporter")
        except ModuleNotFoundError:  # one of its parents
            found = None
        if found is None:
            raise ValueError("OpenTelemetry is missing: pip install 'vramscope[server,otel]'")
        return value.rstrip("/")

    @field_validator("oidc_groups_claim")
    @classmethod
    def _with_client(cls, value: str, others: ValidationInfo) -> str:
        known = others.data
        if known.get("oidc_issuer") and not (known.get("oidc_client_id") and known.get("oidc_client_secret")):
            raise ValueError(
                "VRAMSCOPE_OIDC_CLIENT_ID and VRAMSCOPE_OIDC_CLIENT_SECRET belong to VRAMSCOPE_OIDC_ISSUER"
            )
        return value

    @field_validator("proxy_user_header", "oidc_issuer")
    @classmethod
    def _with_tokens(cls, value: str | None, others: ValidationInfo) -> str | None:
        if value is not None and others.data.get("require_tokens") is False:
            raise ValueError("VRAMSCOPE_REQUIRE_TOKENS=0 lets everybody in without a name")
        return value

    @field_validator("trusted_proxies")
    @classmethod
    def _networks(cls, value: list[str], others: ValidationInfo) -> list[str]:
        if others.data.get("proxy_user_header") is not None and not value:
            raise ValueError("name the addresses of the proxy: anybody else could send the header, too")
        return [str(ipaddress.ip_network(one)) for one in value]

    @field_validator("notify", mode="before")
    @classmethod
    def _split_urls(cls, value: object) -> object:
        return value.split() if isinstance(value, str) else value

    @field_validator("public_url")
    @classmethod
    def _without_slash(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith(("http://", "https://")):
            raise ValueError("an address begins with http:// or https://")
        return value and value.rstrip("/")

    @property
    def database_url(self) -> str:
        """URL of the database, with the default."""
        given = self.database or str(self.data_dir / "vramscope.db")
        return given if "://" in given else f"sqlite:///{Path(given).expanduser().absolute()}"

    @property
    def snapshots_dir(self) -> Path:
        """Folder of uploaded snapshots: beside the SQLite database, else in the data directory."""
        url = self.database_url
        if url.startswith("sqlite:///"):
            return Path(url.removeprefix("sqlite:///").partition("?")[0] + "-snapshots")
        return self.data_dir / "snapshots"

    @property
    def tokens_required(self) -> bool:
        """Whether requests need a token, or a user who signed in."""
        if self.require_tokens is None:
            named = self.proxy_user_header is not None or self.oidc_issuer is not None
            return not is_loopback(self.host) or named
        return self.require_tokens


def _check_grant(text: str) -> None:
    from vramscope_server.user_grants import UserGrant

    UserGrant.parse(text)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
