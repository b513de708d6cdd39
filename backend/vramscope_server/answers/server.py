"""The server itself: health, tokens, alerts, sign-in."""

from __future__ import annotations

from typing_extensions import NotRequired, TypedDict


class DatabaseFacts(TypedDict):
    """The database of the server."""

    kind: str
    """`sqlite` or `postgresql`."""
    bytes: int
    """Size of the stored data."""
    runs: int
    """Number of runs."""
    writable: bool
    """Whether data can be stored."""


class RetentionFacts(TypedDict):
    """Limits above which old runs are deleted."""

    days: float | None
    """Age in days; null is no limit."""
    bytes: int | None
    """Size of the database; null is no limit."""
    clock: str | None
    """What is wrong with the server's clock, by which ages are counted; null: nothing is known to be."""


class ServerFacts(TypedDict):
    """The server."""

    version: str
    """Version of vramscope."""
    wire: int
    """Version of the wire contract."""
    plotly_py: str
    """Version of Plotly for Python."""
    plotly_js: str | None
    """Version of Plotly.js that the pages use."""
    database: DatabaseFacts
    """The database."""
    retention: RetentionFacts
    """Limits above which old runs are deleted."""
    address: str | None
    """Address that the server listens on."""
    host_name: str
    """Name of the server's machine."""
    compiling: bool
    """Whether machine code for recordings is being compiled, which happens once after an installation."""
    parquet: bool
    """Whether recordings can be exported as Parquet."""
    problems: list[str]
    """Problems of the server, in sentences."""


class Health(TypedDict):
    """Health of the server."""

    status: str
    """`ok`; `degraded` comes with status 503."""
    problems: NotRequired[list[str]]
    """Problems in sentences; only if the status is `degraded`."""


class DemoAnswer(TypedDict):
    """The demo of the server: a small training that a page can start."""

    state: str
    """`idle`, `running`, `finished` or `failed`: the newest demo since the server started."""
    device: str | None
    """`cpu`, or `emulated_gpu` where one is installed; null if none was started. A real GPU is never used."""
    run_id: str | None
    """Identifier of its run; null if none was started."""
    step: int | None
    """Last stored step; null before the first."""
    steps: int
    """Number of steps of a demo."""
    started_seconds: float | None
    """Time of its start, since 1970; null if none was started."""
    problem: str | None
    """Last line of the output of a demo that failed."""
    unavailable: str | None
    """Why the caller cannot start a demo, in a sentence; null if it can."""


class TokenRow(TypedDict):
    """An access token, without its secret."""

    id: str
    """Identifier of the token."""
    name: str
    """Name of the token."""
    role: str
    """`read`, `write` or `admin`: each may do what the ones before it may."""
    projects: list[str] | None
    """Projects to which it is bound; null: all."""
    created_seconds: float | None
    """Time of creation, since 1970."""
    last_used_seconds: float | None
    """Time of the last use, since 1970."""


class CreatedToken(TypedDict):
    """A new access token with its secret."""

    id: str
    """Identifier of the token."""
    name: str
    """Name of the token."""
    role: str
    """`read`, `write` or `admin`: each may do what the ones before it may."""
    projects: list[str] | None
    """Projects to which it is bound; null: all."""
    created_seconds: float | None
    """Time of creation, since 1970."""
    token: str
    """The secret; no other answer contains it."""


class AlertRule(TypedDict):
    """Whether an alert is counted."""

    on: bool
    """Whether the alert is counted."""


class LeakRule(AlertRule):
    """Rule for leaks."""

    least_bytes: int
    """Leaks count from this much retained memory on."""


class HeadroomRule(AlertRule):
    """Rule for free device memory at the peak."""

    below_fraction: float
    """Headroom counts below this share of the device."""


class NeverNeededRule(AlertRule):
    """Rule for reserved memory that no step allocates."""

    above_fraction: float
    """Never needed memory counts above this share of the reserved memory."""


class ForecastRule(TypedDict):
    """Rule for memory that runs out soon."""

    on: bool
    """Whether a message is sent; pages do not count this alert."""
    below_seconds: float
    """A message is sent if the forecast time until the memory runs out is below it."""


class AlertRules(TypedDict):
    """A rule for each alert."""

    leaks: LeakRule
    """Leaks."""
    out_of_memory: AlertRule
    """Out-of-memory errors."""
    findings: AlertRule
    """Mistakes in the training script."""
    resets: AlertRule
    """Resets of PyTorch's peak counters by other code."""
    headroom: HeadroomRule
    """Free device memory at the peak."""
    never_needed: NeverNeededRule
    """Reserved memory that no step allocates."""
    forecast: ForecastRule
    """Memory that runs out soon at its present rate."""


class Alerts(TypedDict):
    """Alert rules of the server, for all users."""

    rules: AlertRules
    """Rules in force."""
    defaults: AlertRules
    """Rules of a new installation."""


class NotificationTarget(TypedDict):
    """A place that messages about runs are sent to."""

    name: str
    """Its URL without secrets."""
    last_sent_seconds: float | None
    """Time of the last message, since 1970; null if none was sent since the server started."""
    problem: str | None
    """Why the last message was not sent; null if it was."""


class SessionFacts(TypedDict):
    """Access of the caller."""

    required: bool
    """Whether this server requires a token."""
    authenticated: bool
    """Whether the caller has access."""
    role: str | None
    """Role of the caller: `read`, `write` or `admin`; null without access."""
    projects: list[str] | None
    """Projects to which the caller is bound; null: all, or no access."""
    name: str | None
    """Name of the token, or of the user who signed in; null: none."""
    by: str | None
    """`token`, or `proxy` or `oidc` if an authenticating proxy or an OpenID provider signed the caller in; null without access
    or where none is required."""
    oidc: bool
    """Whether people can sign in at an OpenID provider: `GET /session/oidc` leads there."""
