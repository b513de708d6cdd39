"""Artifacts: what a process recorded that is too large for one message, gathered from its pieces in any order.

The same piece twice is one piece. What all pieces of an artifact must tell alike (``kind``, ``pieces``, ``about``) the first
that came tells. A run keeps its newest artifacts, within :data:`MAX_ARTIFACTS` and :data:`MAX_BYTES`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from vramscope.protocol import messages, series
from vramscope_server.store.series_reader import Run
from vramscope_server.store.tables import artifact_pieces, artifacts, runs
from vramscope_server.store.validation import BadBatch

MAX_ARTIFACTS: Final = 64
MAX_BYSTANDERS: Final = 1024
"""beside them: with many ranks there are as many at once, and they must not push out the error that they stand by"""
MAX_BYTES: Final = 512 * 1024 * 1024
"""Of all artifacts of one run; the largest possible one has half of it."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(dict[str, messages.Scalar]).decode


@dataclass(slots=True)
class ArtifactRecord:
    """One artifact as the writer knows it. ``values`` is its row in ``tables.artifacts``."""

    values: dict[str, Any]
    numbers: set[int] = field(default_factory=set)
    """of the pieces that are there; not kept once all are"""
    new: bool = False
    dirty: bool = False

    @classmethod
    def begin(cls, piece: messages.Piece, run_key: int, session_id: str, rank: int, now_ns: int) -> ArtifactRecord:
        """An artifact of which the first piece has come."""
        values = {
            "id": piece.artifact, "run_key": run_key, "session_id": session_id, "rank": rank, "kind": piece.kind,
            "about": _encode(piece.about), "pieces": piece.pieces, "received": 0, "bytes": 0, "received_ns": now_ns,
        }  # fmt: skip
        return cls(values, new=True)

    @property
    def whole(self) -> bool:
        """Are all pieces there?"""
        return bool(self.values["received"] == self.values["pieces"])

    def check(self, piece: messages.Piece) -> None:
        """Raises BadBatch if the piece tells otherwise than the first one did."""
        told = {"kind": piece.kind, "pieces": piece.pieces, "about": _encode(piece.about)}
        for name, value in told.items():
            if value != self.values[name]:
                seen, right = (value, self.values[name]) if name != "about" else ("something else", "the same")
                raise BadBatch(f"piece.{name}", seen, f"{right}, as in the other pieces of {piece.artifact}")

    def take(self, piece: messages.Piece, now_ns: int) -> bool:
        """Note a piece; False if it is there already."""
        if self.whole or piece.number in self.numbers:
            return False
        self.numbers.add(piece.number)
        self.values["received"] += 1
        self.values["bytes"] += len(piece.data)
        self.values["received_ns"] = now_ns
        self.dirty = True
        if self.whole:
            self.numbers.clear()
        return True


def load_artifacts(connection: Connection, run_key: int) -> dict[str, ArtifactRecord]:
    """All artifacts of a run, oldest first."""
    query = sa.select(artifacts).where(artifacts.c.run_key == run_key).order_by(artifacts.c.received_ns, artifacts.c.id)
    found = {row["id"]: ArtifactRecord(dict(row)) for row in connection.execute(query).mappings()}
    begun = [ident for ident, record in found.items() if not record.whole]
    pieces = sa.select(artifact_pieces.c.artifact, artifact_pieces.c.number)
    if begun:
        for ident, number in connection.execute(pieces.where(artifact_pieces.c.artifact.in_(begun))):
            found[ident].numbers.add(number)
    return found


def superfluous(records: Iterable[ArtifactRecord]) -> list[str]:
    """Ids of those that must go, oldest first, so that the rest is within the bounds of a run. First those of which nobody here
    knows what they are: they push out none that can be shown."""

    def worth(record: ArtifactRecord) -> tuple[bool, int]:
        return record.values["kind"] in series.ARTIFACT_KINDS, record.values["received_ns"]

    newest_first = sorted(records, key=worth, reverse=True)
    kept_bytes, gone = 0, []
    left = {True: MAX_BYSTANDERS, False: MAX_ARTIFACTS}
    for position, record in enumerate(newest_first):
        kept_bytes += record.values["bytes"]
        is_bystander = record.values["kind"] == "bystander"
        left[is_bystander] -= 1
        if position > 0 and (left[is_bystander] < 0 or kept_bytes > MAX_BYTES):
            gone.append(record.values["id"])
    return gone[::-1]


def delete_artifacts(connection: Connection, which: sa.ColumnElement[bool]) -> None:
    """Delete those of which a condition on ``tables.artifacts`` holds, with their pieces."""
    pieces = artifact_pieces.delete().where(artifact_pieces.c.artifact.in_(sa.select(artifacts.c.id).where(which)))
    connection.execute(pieces)
    connection.execute(artifacts.delete().where(which))


# -- reading


@dataclass(frozen=True, slots=True)
class Stored:
    """An artifact as it lies in the database, without its bytes."""

    id: str
    run_id: str
    rank: int
    kind: str
    about: Mapping[str, messages.Scalar]
    pieces: int
    received: int
    bytes: int
    received_ns: int

    @property
    def whole(self) -> bool:
        """Are all pieces there?"""
        return self.received == self.pieces


_FACTS: Final = sa.select(
    runs.c.id.label("run_id"), *(artifacts.c[name] for name in Stored.__slots__ if name != "run_id")
).join(runs, runs.c.key == artifacts.c.run_key)


def list_artifacts(connection: Connection, run: Run) -> list[Stored]:
    """Those of a run, newest first."""
    newest = (artifacts.c.received_ns.desc(), artifacts.c.id)
    query = _FACTS.where(artifacts.c.run_key == run["key"]).order_by(*newest)
    return [_stored(row) for row in connection.execute(query).mappings()]


def find_artifact(connection: Connection, ident: str) -> Stored | None:
    """The one of this id."""
    row = connection.execute(_FACTS.where(artifacts.c.id == ident)).mappings().first()
    return None if row is None else _stored(row)


def read_artifact(connection: Connection, ident: str) -> bytes:
    """Its bytes, as far as its pieces are there."""
    query = sa.select(artifact_pieces.c.data).where(artifact_pieces.c.artifact == ident)
    return b"".join(connection.execute(query.order_by(artifact_pieces.c.number)).scalars())


def _stored(row: RowMapping) -> Stored:
    try:
        about = _decode(row["about"])
    except (msgspec.MsgspecError, UnicodeDecodeError):  # damaged on the disk: what it tells is then unknown
        about = {}
    return Stored(**(dict(row) | {"about": about}))
