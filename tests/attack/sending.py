"""A sender as in a training, and rows for it: what attacks between agent and server begin with."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from collector import attached, column
from wire_maker import new_id

from vramscope.protocol import messages
from vramscope.settings import Settings
from vramscope.transport.ring import Ring
from vramscope.transport.sender import Sender
from vramscope.transport.spool import Spool


class Training:
    """Puts a row into the ring every few milliseconds, as a sampler does."""

    def __init__(self, sender: Sender) -> None:
        self.rows = 0
        self.longest_put_s = 0.0
        self._sender = sender
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.01):
            step = self.rows
            columns = {"time_ns": column(time.time_ns()), "step": column(step), "allocated_bytes": column(step)}
            began = time.thread_time()
            self._sender.ring.put(messages.Block(stream="samples", device=0, rows=1, columns=columns))
            self.longest_put_s = max(self.longest_put_s, time.thread_time() - began)
            self.rows += 1


def sender_to(address: str, folder: Path, token: str | None = None) -> tuple[Sender, str]:
    """A sender of impatient settings, not yet started, and its run."""
    settings = Settings.from_environment(
        {}, server=address, token=token, spool_dir=folder, flush_ms=20, read_timeout_s=0.3, connect_timeout_s=0.3
    )
    run = new_id()
    sender = Sender(
        settings,
        session=new_id("s"),
        run=run,
        rank=0,
        first_message=lambda: attached(devices=[messages.Device(index=0, name="a card")], start_ns=time.time_ns()),
        ring=Ring(),
        spool=Spool(settings.spool_dir, settings.spool_bytes),
    )
    return sender, run
