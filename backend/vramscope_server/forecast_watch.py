"""Sends a message, once per run, when the memory of a running run runs out soon at its present rate.

The forecast is that of ``GET /runs/RUN/leaks``. Where that has none, nothing is sent.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from sqlalchemy.engine import Connection
from sqlalchemy.exc import SQLAlchemyError

from vramscope_server.analysis.number_format import amount, duration
from vramscope_server.known_messages import KnownMessages
from vramscope_server.notifications import Message, Notifier
from vramscope_server.store.database import Database
from vramscope_server.store.leaks import merge_leaks
from vramscope_server.store.memory_floor import MemoryFloor, memory_floor
from vramscope_server.store.preferences import alert_rules
from vramscope_server.store.run_queries import UnknownRun, find_run, load_scans, running_runs
from vramscope_server.store.series_reader import RankDevice, list_rank_devices
from vramscope_server.store.stored_rows import StoredRun

log = logging.getLogger("vramscope_server.notifications")

EVERY_SECONDS: Final = 30.0
"""Minimum pause between two checks of all running runs."""
PAUSE_RATIO: Final = 20.0
"""Minimum ratio of that pause to the duration of the last check: checks take at most a twentieth of one core."""


class ForecastWatch:
    """Checks all running runs in a thread of its own. It starts none if no messages are sent."""

    def __init__(self, database: Database, notifier: Notifier, leads: Callable[[], bool] = lambda: True) -> None:
        self._leads = leads
        self._database = database
        self._notifier = notifier
        self._known = KnownMessages()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread. The state at the start of the server is noted and not sent."""
        if self._notifier.targets:
            self._thread = threading.Thread(target=self._run, name="vramscope-forecasts", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop the thread."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(5)

    def _run(self) -> None:
        old = self._check()
        for run_id in old:
            self._known.add(run_id, "forecast")
        took_seconds = 0.0
        while not self._stop.wait(max(EVERY_SECONDS, PAUSE_RATIO * took_seconds)):
            began_at = time.monotonic()
            if self._leads():
                self._send(self._check())
            took_seconds = time.monotonic() - began_at

    def _send(self, found: dict[str, Message]) -> None:
        for run_id, message in found.items():
            try:
                self._notifier.send(run_id, "forecast", message, f"/runs/{run_id}/leaks")
            except SQLAlchemyError as error:
                log.warning("no forecast for %s: %s", run_id, error)
                continue
            self._known.add(run_id, "forecast")

    def _check(self) -> dict[str, Message]:
        """Messages about runs that are not known yet, by run."""
        found: dict[str, Message] = {}
        try:
            with self._database.reader() as connection:
                rule = alert_rules(connection)["forecast"]
                ids = running_runs(connection) if rule["on"] else []
            for run_id in ids:
                if self._stop.is_set():
                    break
                if "forecast" not in self._known.of(run_id):
                    # Each run gets a connection, because a long one keeps SQLite from shortening its log.
                    with self._database.reader() as connection:
                        message = forecast_message(connection, run_id, rule["below_seconds"])
                    if message is not None:
                        found[run_id] = message
        except SQLAlchemyError as error:
            log.warning("forecasts were not checked: %s", error)
        return found


def forecast_message(connection: Connection, run_id: str, below_seconds: float) -> Message | None:
    """Message about the device of a run that is full first, if that is sooner than ``below_seconds``."""
    try:
        run = find_run(connection, run_id, suggest=False)
    except UnknownRun:  # deleted in the meantime
        return None
    scans = {rank: found.scan for rank, found in load_scans(connection, run).items()}
    leaks = merge_leaks(scans, run.peak_allocated_bytes)
    first: tuple[float, RankDevice, MemoryFloor] | None = None
    for place in list_rank_devices(connection, run, live=True):
        floor = memory_floor(connection, run, place, leaks)
        seconds = floor.forecast.seconds
        if seconds is not None and seconds < below_seconds and (first is None or seconds < first[0]):
            first = seconds, place, floor
    return None if first is None else _message(run, *first)


def _message(run: StoredRun, seconds: float, place: RankDevice, floor: MemoryFloor) -> Message:
    # An estimate: no seconds beside minutes.
    when = f"{seconds:.0f} s" if seconds < 99 else f"{seconds / 60:.0f} min" if seconds < 5400 else duration(seconds)
    slope = amount(None if floor.fit is None else floor.fit.slope)
    return Message(
        f"{run.name} will be out of GPU memory in about {when} at this rate",
        f"Memory after each step grows by {slope} per step on rank {place.rank}, device {place.device}. "
        f"{amount(floor.room_bytes)} are left at the peak.",
    )
