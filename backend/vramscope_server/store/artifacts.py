"""Artifacts: recordings that are too large for one message, assembled from their pieces in any order.

A piece that arrives twice counts once. ``kind``, ``pieces`` and ``about`` are those of the first piece; the others must
agree. A run keeps its newest artifacts, within :data:`MAX_ARTIFACTS` and :data:`MAX_BYTES`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from vramscope.protocol import messages, series
from vramscope_server.store.batch_errors import BadBatch
from vramscope_server.store.project_scope import visible
from vramscope_server.store.stored_rows import StoredRun
from vramscope_server.store.tables import artifact_pieces, artifacts, runs

MAX_ARTIFACTS: Final = 64
MAX_BYSTANDERS: Final = 1024
"""Limit of bystander records, apart from MAX_ARTIFACTS: one per rank may arrive at once, and they must not displace the
error."""
MAX_BYTES: Final = 512 * 1024 * 1024
"""Limit of all artifacts of one run; the largest possible one takes half of it."""

_COLUMNS: Final = tuple(column.name for column in artifacts.columns)
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(dict[str, messages.Scalar]).decode


@dataclass(slots=True, kw_only=True)
class ArtifactRecord:
    """An artifact as the writer knows it: a row of ``tables.artifacts``, and what changed."""

    id: str
    run_key: int
    session_id: str
    rank: int
    kind: str
    about: bytes
    """Facts about it in MessagePack, as the wire has them."""
    pieces: int
    received: int = 0
    """Number of pieces that are stored."""
    bytes: int = 0
    """Size of these pieces."""
    received_ns: int
    numbers: set[int] = field(default_factory=set)
    """Numbers of these pieces; empty once all are stored."""
    new: bool = False
    dirty: bool = False

    @classmethod
    def begin(cls, piece: messages.Piece, run_key: int, session_id: str, rank: int, now_ns: int) -> ArtifactRecord:
        """An artifact from its first piece."""
        return cls(
            id=piece.artifact,
            run_key=run_key,
            session_id=session_id,
            rank=rank,
            kind=piece.kind,
            about=_encode(piece.about),
            pieces=piece.pieces,
            received_ns=now_ns,
            new=True,
        )

    def to_row(self) -> dict[str, Any]:
        """All columns by name."""
        return {name: getattr(self, name) for name in _COLUMNS}

    @property
    def whole(self) -> bool:
        """Whether all pieces are stored."""
        return self.received == self.pieces

    @property
    def facts(self) -> dict[str, messages.Scalar]:
        """``about`` as plain values; empty if it is damaged."""
        return _facts(self.about)

    def check(self, piece: messages.Piece) -> None:
        """Raise BadBatch if the piece contradicts the first one."""
        fields = {"kind": piece.kind, "pieces": piece.pieces, "about": _encode(piece.about)}
        for name, value in fields.items():
            if value != getattr(self, name):
                seen, right = (value, getattr(self, name)) if name != "about" else ("different", "the same")
                raise BadBatch(f"piece.{name}", seen, f"{right}, as in the other pieces of {piece.artifact}")

    def take(self, piece: messages.Piece, now_ns: int) -> bool:
        """Add a piece; False if it is stored already."""
        if self.whole or piece.number in self.numbers:
            return False
        self.numbers.add(piece.number)
        self.received += 1
        self.bytes += len(piece.data)
        self.received_ns = now_ns
        self.dirty = True
        if self.whole:
            self.numbers.clear()
        return True


def load_artifacts(connection: Connection, run_key: int) -> dict[str, ArtifactRecord]:
    """All artifacts of a run, oldest first."""
    query = sa.select(artifacts).where(artifacts.c.run_key == run_key).order_by(artifacts.c.received_ns, artifacts.c.id)
    found = {row["id"]: ArtifactRecord(**row) for row in connection.execute(query).mappings()}
    incomplete = [ident for ident, record in found.items() if not record.whole]
    pieces = sa.select(artifact_pieces.c.artifact, artifact_pieces.c.number)
    if incomplete:
        for ident, number in connection.execute(pieces.where(artifact_pieces.c.artifact.in_(incomplete))):
            found[ident].numbers.add(number)
    return found


def superfluous(records: Iterable[ArtifactRecord]) -> list[str]:
    """Identifiers of the artifacts to delete, oldest first, so that the rest is within the limits of a run. Artifacts of
    unknown kinds go first: they must not displace any that can be shown."""

    def worth(record: ArtifactRecord) -> tuple[bool, int]:
        return record.kind in series.ARTIFACT_KINDS, record.received_ns

    newest_first = sorted(records, key=worth, reverse=True)
    kept_bytes, gone = 0, []
    left = {True: MAX_BYSTANDERS, False: MAX_ARTIFACTS}
    for position, record in enumerate(newest_first):
        kept_bytes += record.bytes
        is_bystander = record.kind == "bystander"
        left[is_bystander] -= 1
        if position > 0 and (left[is_bystander] < 0 or kept_bytes > MAX_BYTES):
            gone.append(record.id)
    return gone[::-1]


def delete_artifacts(connection: Connection, which: sa.ColumnElement[bool]) -> None:
    """Delete the artifacts that match a condition on ``tables.artifacts``, with their pieces."""
    pieces = artifact_pieces.delete().where(artifact_pieces.c.artifact.in_(sa.select(artifacts.c.id).where(which)))
    connection.execute(pieces)
    connection.execute(artifacts.delete().where(which))


# -- reading


@dataclass(frozen=True, slots=True)
class StoredArtifact:
    """An artifact in the database, without its bytes."""

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
        """Whether all pieces are stored."""
        return self.received == self.pieces


_FACTS: Final = sa.select(
    runs.c.id.label("run_id"), *(artifacts.c[name] for name in StoredArtifact.__slots__ if name != "run_id")
).join(runs, runs.c.key == artifacts.c.run_key)


def list_artifacts(connection: Connection, run: StoredRun) -> list[StoredArtifact]:
    """Artifacts of a run, newest first. Of devices that one process recorded at a time, the one with the highest peak is first."""
    newest = (artifacts.c.received_ns.desc(), artifacts.c.id)
    query = _FACTS.where(artifacts.c.run_key == run.key).order_by(*newest)
    found = [_stored(row) for row in connection.execute(query).mappings()]
    together: list[list[StoredArtifact]] = []
    for stored in found:
        if together and _recorded_together(stored, together[-1]):
            together[-1].append(stored)
        else:
            together.append([stored])
    return [stored for several in together for stored in sorted(several, key=_peak_bytes, reverse=True)]


def _recorded_together(stored: StoredArtifact, others: Sequence[StoredArtifact]) -> bool:
    """True if it is the recording of another device of the same process and the same steps."""
    names = ("first_step", "last_step")
    first = others[0]
    same = (stored.kind, stored.rank) == (first.kind, first.rank)
    same &= all(stored.about.get(name) is not None and stored.about[name] == first.about.get(name) for name in names)
    return same and all(stored.about.get("device") != other.about.get("device") for other in others)


def _peak_bytes(stored: StoredArtifact) -> int:
    peak = stored.about.get("peak_allocated_bytes")
    return peak if isinstance(peak, int) else 0


def find_artifact(connection: Connection, ident: str) -> StoredArtifact | None:
    """Artifact with this identifier, of a visible run."""
    query = _FACTS.where(artifacts.c.id == ident, visible(connection, runs.c.project))
    row = connection.execute(query).mappings().first()
    return None if row is None else _stored(row)


def read_artifact(connection: Connection, ident: str) -> bytes:
    """Bytes of the stored pieces."""
    query = sa.select(artifact_pieces.c.data).where(artifact_pieces.c.artifact == ident)
    return b"".join(connection.execute(query.order_by(artifact_pieces.c.number)).scalars())


def _stored(row: RowMapping) -> StoredArtifact:
    return StoredArtifact(**(dict(row) | {"about": _facts(row["about"])}))


def _facts(about: bytes) -> dict[str, messages.Scalar]:
    try:
        return _decode(about)
    except (msgspec.MsgspecError, UnicodeDecodeError):  # damaged on the disk
        return {}
