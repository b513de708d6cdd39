"""Sends messages when a run fails, runs out of memory, leaks, falls silent, or comes close to the end of the device's memory.

Apprise delivers them: to webhooks, Slack, Discord, by mail and more, each by a URL of ``VRAMSCOPE_NOTIFY``. Each message is sent
once. What holds already when the server starts is not sent again.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, get_args

from sqlalchemy.exc import SQLAlchemyError

from vramscope_server.analysis.number_format import amount, percent
from vramscope_server.answers.runs import RunRow
from vramscope_server.answers.server import AlertRules
from vramscope_server.store.database import Database
from vramscope_server.store.ingest_state import BatchNews
from vramscope_server.store.preferences import alert_rules
from vramscope_server.store.run_queries import list_runs

log = logging.getLogger("vramscope_server.notifications")

Kind = Literal["out_of_memory", "failed", "lost", "leak", "headroom"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
PAUSES_SECONDS: Final = (5.0, 30.0, 120.0)
"""Pauses before the tries after a message that could not be sent."""
MOST_WAITING: Final = 1000
_OLD_RUNS: Final = 1000
"""Newest runs whose state is known at the start."""


class TargetRefused(Exception):
    """A target that cannot be used. The message is one sentence for the person who started the server."""


class Message(NamedTuple):
    """A message about a run."""

    title: str
    body: str


@dataclass(slots=True)
class Target:
    """A place that messages are sent to."""

    name: str
    """Its URL without secrets."""
    service: Any
    last_sent_seconds: float | None = None
    problem: str | None = None
    """Why the last message was not sent, or None."""


def messages_of(row: RunRow, rules: AlertRules) -> dict[Kind, Message]:
    """What is worth a message about a run now, by kind."""
    name, found = row["name"], dict[Kind, Message]()
    errors = row["out_of_memory"] or 0
    ended_by_it = row["state"] == "failed" and (row["error_type"] or "").endswith("OutOfMemoryError")
    if (errors or ended_by_it) and rules["out_of_memory"]["on"]:
        end = "It ended the run." if ended_by_it else "The run goes on."
        found["out_of_memory"] = Message(
            f"{name} ran out of GPU memory",
            f"{max(errors, 1)} out-of-memory error{'s' * (errors > 1)} in {row['steps'] or 0} steps. {end} {_peak(row)}",
        )
    if row["state"] == "failed" and not ended_by_it:
        found["failed"] = Message(
            f"{name} failed", f"{row['error_line'] or row['error_type'] or 'No error was reported.'}"
        )
    if row["state"] == "lost":
        found["lost"] = Message(
            f"{name} is silent", f"Nothing was received since step {row['steps'] or 0}, and it did not report an end."
        )
    leaked = row["leaked_bytes"] or 0
    if row["leaks"] and rules["leaks"]["on"] and leaked >= rules["leaks"]["least_bytes"]:
        found["leak"] = Message(
            f"{name} leaks memory", f"{amount(leaked)} are retained that the training needs no more."
        )
    capacity, reserved = row["capacity_bytes"], row["peak_reserved_bytes"]
    if rules["headroom"]["on"] and capacity and reserved:
        left = (capacity - reserved) / capacity
        if left < rules["headroom"]["below_fraction"]:
            found["headroom"] = Message(f"{name} has {percent(max(0.0, left))} of the device left", _peak(row))
    return found


def _peak(row: RunRow) -> str:
    return f"Peak: {amount(row['peak_reserved_bytes'])} reserved of {amount(row['capacity_bytes'])}."


class Notifier:
    """Sends what the writer's news are worth. :meth:`publish` only queues; a thread of its own sends.

    address   address of the pages, for links
    """

    def __init__(self, targets: list[Target], database: Database, address: Callable[[], str | None]) -> None:
        self.targets = targets
        self._database = database
        self._address = address
        self._known: dict[str, set[Kind]] = {}
        self._queue: queue.Queue[RunRow | None] = queue.Queue(MOST_WAITING)
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Note what holds already, and start the thread. Without targets it does nothing."""
        if not self.targets:
            return
        with self._database.reader() as connection:
            rules = alert_rules(connection)
            rows = list_runs(connection, limit=_OLD_RUNS)[0]
        self._known = {row["run_id"]: set(messages_of(row, rules)) for row in rows}
        self._thread = threading.Thread(target=self._run, name="vramscope-notifications", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread after what it sends now."""
        self._closing.set()
        if self._thread is not None:
            with contextlib.suppress(queue.Full):
                self._queue.put_nowait(None)
            self._thread.join(5)

    def publish(self, stored: Sequence[BatchNews], runs: Sequence[RunRow]) -> None:
        """Take the changed rows of the list of runs. A listener of the writer."""
        if self._thread is not None:
            for row in runs:
                with contextlib.suppress(queue.Full):
                    self._queue.put_nowait(row)

    def send_test(self) -> None:
        """Send a message to each target, once and at once. ``targets`` then has the results."""
        for target in self.targets:
            _send(target, Message("vramscope: a test", "Messages about runs will arrive here."), self._link(""))

    def _run(self) -> None:
        while not self._closing.is_set():
            row = self._queue.get()
            if row is None:
                return
            try:
                self._tell(row)
            except SQLAlchemyError as error:  # (of the rules)
                log.warning("a message about %s could not be made: %s", row["run_id"], error)

    def _tell(self, row: RunRow) -> None:
        with self._database.reader() as connection:
            rules = alert_rules(connection)
        known = self._known.setdefault(row["run_id"], set())
        for kind, message in messages_of(row, rules).items():
            if kind not in known:
                known.add(kind)
                for target in self.targets:
                    self._send_patiently(target, message, self._link(f"/runs/{row['run_id']}"))

    def _send_patiently(self, target: Target, message: Message, link: str) -> None:
        for pause in (*PAUSES_SECONDS, None):
            if _send(target, message, link) or pause is None or self._closing.wait(pause):
                return

    def _link(self, path: str) -> str:
        return f"{self._address() or ''}{path}"


def _send(target: Target, message: Message, link: str) -> bool:
    # (Apprise logs the errors of its services, and returns False.)
    done = bool(target.service.notify(title=message.title, body=f"{message.body}\n{link}", body_format="text"))
    if done:
        target.last_sent_seconds, target.problem = time.time(), None
    else:
        target.problem = "the last message was not accepted; the server's log says more"
    return done


def targets_of(urls: Sequence[str]) -> list[Target]:
    """Targets by their Apprise URLs. Raises TargetRefused. Importing Apprise takes half a second."""
    return [_target(url) for url in urls]


def _target(url: str) -> Target:
    try:
        import apprise
    except ModuleNotFoundError:
        raise TargetRefused(
            "VRAMSCOPE_NOTIFY needs a package that is missing: pip install 'vramscope[server,notify]'."
        ) from None
    asset = apprise.AppriseAsset(app_id="vramscope", app_desc="vramscope", app_url="", async_mode=False)
    service = apprise.Apprise(asset=asset)
    if not service.add(url):
        kind = url.partition(":")[0][:20]
        raise TargetRefused(f"VRAMSCOPE_NOTIFY has a URL that Apprise does not know; it begins with {kind!r}.")
    return Target(service[0].url(privacy=True), service)
