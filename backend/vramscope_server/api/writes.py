"""What people ask to be changed or stored, done by the writer; its troubles as problems."""

from __future__ import annotations

import concurrent.futures
import contextlib
from collections.abc import Callable, Iterator
from typing import TypeVar

from sqlalchemy.engine import Connection

from vramscope_server.api.problems import Busy, NotFound, Storage
from vramscope_server.services import House
from vramscope_server.store.ingest_state import Book
from vramscope_server.store.writer import QueueFull, StorageTrouble, WriterClosed

T = TypeVar("T")
_WAIT_SECONDS = 30


def change(house: House, work: Callable[[Connection, Book], T]) -> T:
    """Wait until it is stored. Raises Busy, Storage, NotFound (for a LookupError), and the work's own ValueError."""
    try:
        with storing("changed"):
            return house.writer.do(work).result(_WAIT_SECONDS)
    except LookupError as error:
        raise NotFound(f"There is no {error.args[0]!r} any more.") from None


@contextlib.contextmanager
def storing(done: str) -> Iterator[None]:
    """The writer's troubles as problems; ``done``: what was not, "stored" or "changed"."""
    try:
        yield
    except StorageTrouble as trouble:
        raise Storage(f"Nothing was {done}: {trouble}.", headers={"Retry-After": "5"}) from None
    except (QueueFull, WriterClosed, concurrent.futures.TimeoutError):
        raise Busy("The server has too much to store at the moment.", headers={"Retry-After": "2"}) from None
