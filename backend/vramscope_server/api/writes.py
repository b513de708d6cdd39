"""Changes that the writer makes for requests; its errors as problems."""

from __future__ import annotations

import concurrent.futures
import contextlib
from collections.abc import Callable, Iterator
from typing import TypeVar

from sqlalchemy.engine import Connection

from vramscope_server.api.problems import Busy, NotFound, Storage
from vramscope_server.services import Services
from vramscope_server.store.audit_log import Note
from vramscope_server.store.ingest_state import IngestState
from vramscope_server.store.writer import QueueFull, StorageTrouble, WriterClosed

T = TypeVar("T")
_WAIT_SECONDS = 30


def change(services: Services, work: Callable[[Connection, IngestState], T], note: Note | None = None) -> T:
    """Wait until a change is stored, with its note for the audit log.

    Raises Busy, Storage, NotFound (for a LookupError), and the change's own ValueError.
    """

    def both(connection: Connection, state: IngestState) -> T:
        done = work(connection, state)
        if note is not None:
            note(connection)
        return done

    try:
        with storing("changed"):
            return services.writer.do(both).result(_WAIT_SECONDS)
    except LookupError as error:
        raise NotFound(f"{error.args[0]!r} was deleted.") from None


@contextlib.contextmanager
def storing(done: str) -> Iterator[None]:
    """Errors of the writer as problems; ``done``: what was not done, "stored" or "changed"."""
    try:
        yield
    except StorageTrouble as trouble:
        raise Storage(f"Nothing was {done}: {trouble}.", headers={"Retry-After": "5"}) from None
    except (QueueFull, WriterClosed, concurrent.futures.TimeoutError):
        raise Busy("The server has too much to store. Retry in a few seconds.", headers={"Retry-After": "2"}) from None
