"""Sends messages when a run fails, runs out of memory, leaks, is silent, or comes close to the end of the device's memory.

Apprise delivers them: to webhooks, Slack, Discord, by mail and more, each by a URL of ``VRAMSCOPE_NOTIFY``. Each message is sent
once. The state at the start of the server is not sent again.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, NamedTuple

from sqlalchemy.exc import SQLAlchemyError

from vramscope_server.analysis.number_format import UNKNOWN, amount, percent
from vramscope_server.analysis.peak_bound import peak_bound
from vramscope_server.answers.runs import RunRow
from vramscope_server.answers.server import AlertRules
from vramscope_server.known_messages import KnownMessages
from vramscope_server.message_claims import MessageClaims
from vramscope_server.store.database import Database
from vramscope_server.store.ingest_state import BatchNews
from vramscope_server.store.preferences import alert_rules
from vramscope_server.store.run_queries import list_runs

log = logging.getLogger("vramscope_server.notifications")

Kind = Literal["out_of_memory", "failed", "lost", "leak", "headroom"]
PAUSES_SECONDS: Final = (5.0, 30.0, 120.0)
"""Pauses before the tries after a message that could not be sent."""
MOST_WAITING: Final = 1000
"""Maximum number of rows, and of messages to one target, that wait. Further ones are dropped."""
_OLD_RUNS: Final = 1000
"""Newest runs whose state is known at the start."""


class TargetRefused(Exception):
    """A target that cannot be used. The message is one sentence for the person who started the server."""


class Message(NamedTuple):
    """A message about a run."""

    title: str
    body: str


class _Delivery:
    """A message on its way to several targets. ``settled`` is called once all of them have it, or gave up."""

    def __init__(self, message: Message, targets: int, settled: Callable[[], None]) -> None:
        self.message = message
        self._left = targets
        self._settled = settled
        self._lock = threading.Lock()

    def done(self) -> None:
        """One target is done with it."""
        with self._lock:
            self._left -= 1
            is_last = self._left == 0
        if is_last:
            self._settled()


def messages_of(row: RunRow, rules: AlertRules) -> dict[Kind, Message]:
    """Messages that the state of a run is worth now, by kind."""
    name, found = row["name"], dict[Kind, Message]()
    ended_by_oom = row["state"] == "failed" and (row["error_type"] or "").endswith("OutOfMemoryError")
    errors = row["out_of_memory"] or 0
    if row["state"] == "failed":
        title = f"{name} ran out of GPU memory and failed" if ended_by_oom else f"{name} failed"
        found["failed"] = Message(title, row["error_line"] or row["error_type"] or "It reported no error.")
    if row["state"] == "lost":
        found["lost"] = Message(f"{name} is silent", f"Its newest step is {_step(row)}. It did not report an end.")
    if errors and not ended_by_oom and rules["out_of_memory"]["on"]:
        errors_text = f"{errors} out-of-memory error{'s' * (errors > 1)} until step {_step(row)}."
        found["out_of_memory"] = Message(f"{name} ran out of GPU memory", f"{errors_text} {_peak(row)}")
    leaked = row["leaked_bytes"] or 0
    if row["leaks"] and rules["leaks"]["on"] and leaked >= rules["leaks"]["least_bytes"]:
        found["leak"] = Message(f"{name} leaks memory", f"Leaks retain {amount(leaked)}.")
    capacity, reserved = row["capacity_bytes"], peak_bound(row, "peak_reserved")
    if rules["headroom"]["on"] and capacity and reserved.bytes:
        left = (capacity - reserved.bytes) / capacity
        if left < rules["headroom"]["below_fraction"]:
            most = "at most " if reserved.is_lower else ""
            title = f"{name} has {most}{percent(max(0.0, left))} of the device left"
            found["headroom"] = Message(title, _peak(row))
    return found


def _step(row: RunRow) -> str:
    return UNKNOWN if row["steps"] is None else f"{row['steps']:,}"


def _peak(row: RunRow) -> str:
    reserved, capacity = peak_bound(row, "peak_reserved"), amount(row["capacity_bytes"])
    if reserved.is_lower:
        return f"Peak reserved: at least {amount(reserved.bytes)} of {capacity} ({reserved.why})."
    return f"Peak reserved: {amount(reserved.bytes)} of {capacity}."


class Target:
    """A place that messages are sent to, by a thread of its own: one that does not answer delays no other.

    name   its URL without secrets
    """

    def __init__(self, name: str, service: Any) -> None:
        self.name = name
        self.last_sent_seconds: float | None = None
        self.problem: str | None = None
        """Why the last message was not sent, or None."""
        self._service = service
        self._queue: queue.Queue[_Delivery] = queue.Queue(MOST_WAITING)
        self._closing = threading.Event()

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._run, name="vramscope-messages", daemon=True).start()

    def close(self) -> None:
        """Send nothing further. The thread ends with the process: a service may not answer for long."""
        self._closing.set()

    def put(self, delivery: _Delivery) -> None:
        """Queue a message, unless too many wait."""
        try:
            self._queue.put_nowait(delivery)
        except queue.Full:
            delivery.done()

    def send(self, message: Message) -> bool:
        """Send a message now, with one try. Some seconds, or as long as the service waits."""
        # Apprise logs the errors of its services, and returns False.
        done = bool(self._service.notify(title=message.title, body=message.body, body_format="text"))
        if done:
            self.last_sent_seconds, self.problem = time.time(), None
        else:
            self.problem = "The last message was not accepted. The server's log has the reason."
        return done

    def _run(self) -> None:
        while not self._closing.is_set():
            delivery = self._queue.get()
            for pause in (*PAUSES_SECONDS, 0.0):
                if self._closing.is_set() or self.send(delivery.message) or self._closing.wait(pause):
                    break
            if not self._closing.is_set():
                delivery.done()


class Notifier:
    """Sends messages about changed runs. :meth:`publish` only queues their rows; a thread of its own reads them.

    address   address of the pages, for links
    leads     whether this server process does what only one may do
    """

    def __init__(
        self,
        targets: list[Target],
        database: Database,
        address: Callable[[], str | None],
        leads: Callable[[], bool] = lambda: True,
    ) -> None:
        self.targets = targets
        self._claims = MessageClaims(database, leads)
        self._database = database
        self._address = address
        self._known = KnownMessages()
        self._queue: queue.Queue[RunRow | None] = queue.Queue(MOST_WAITING)
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Note the present state of all runs, and start the threads. Without targets it does nothing."""
        if not self.targets:
            return
        with self._database.reader() as connection:
            rules = alert_rules(connection)
            rows = list_runs(connection, limit=_OLD_RUNS)[0]
            for row in reversed(rows):  # the newest are kept the longest
                self._known.add(row["run_id"], *messages_of(row, rules))
        for target in self.targets:
            target.start()
        self._thread = threading.Thread(target=self._run, name="vramscope-notifications", daemon=True)
        self._thread.start()
        self._claims.start(lambda row: self.publish([], [row]))

    def close(self) -> None:
        """End the thread, and send nothing further."""
        self._claims.close()
        for target in self.targets:
            target.close()
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(5)

    def publish(self, stored: Sequence[BatchNews], runs: Sequence[RunRow]) -> None:
        """Take the changed rows of the list of runs. A listener of the writer."""
        if self._thread is not None:
            for row in runs:
                with contextlib.suppress(queue.Full):
                    self._queue.put_nowait(row)

    def send(self, run_id: str, kind: str, message: Message, page: str) -> None:
        """Queue a message for each target, with a link to a page, unless another process sends it. Raises SQLAlchemyError."""
        if not self._claims.take(run_id, kind):
            return
        linked = message._replace(body=f"{message.body}\n{self._address() or ''}{page}")
        delivery = _Delivery(linked, len(self.targets), lambda: self._claims.settle(run_id, kind))
        for target in self.targets:
            target.put(delivery)

    def send_test(self) -> None:
        """Send a message to each target now. ``targets`` then has the results."""
        for target in self.targets:
            target.send(Message("vramscope: a test", f"Messages about runs will arrive here.\n{self._address() or ''}"))

    def _run(self) -> None:
        while (row := self._queue.get()) is not None:
            try:
                self._send_about(row)
            except SQLAlchemyError as error:
                log.warning("no message about %s: %s", row["run_id"], error)

    def _send_about(self, row: RunRow) -> None:
        with self._database.reader() as connection:
            rules = alert_rules(connection)
        known = self._known.of(row["run_id"])
        for kind, message in messages_of(row, rules).items():
            if kind not in known:
                self.send(row["run_id"], kind, message, f"/runs/{row['run_id']}")
                self._known.add(row["run_id"], kind)


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
    return Target(service[0].url(privacy=True).partition("?")[0], service)
