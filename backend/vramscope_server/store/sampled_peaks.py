"""Lower bounds of peaks that nobody measured. They can show that a limit is exceeded, and never that it is kept."""

from __future__ import annotations

from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from vramscope_server.store.rank_summary import decode_summary
from vramscope_server.store.tables import ranks, runs


class SampledPeaks(NamedTuple):
    """Highest samples of the ranks whose peaks were not measured, in bytes; None if all were."""

    allocated_bytes: int | None
    reserved_bytes: int | None


def sampled_peaks(connection: Connection, run_id: str) -> SampledPeaks:
    """Of a run. Both are None if it is unknown."""
    query = sa.select(ranks.c.summary).join(runs, runs.c.key == ranks.c.run_key).where(runs.c.id == run_id)
    summaries = [decode_summary(packed) for packed in connection.execute(query).scalars()]
    allocated = [one.sampled_allocated_bytes for one in summaries if one.sampled_allocated_bytes is not None]
    reserved = [one.sampled_reserved_bytes for one in summaries if one.sampled_reserved_bytes is not None]
    return SampledPeaks(max(allocated, default=None), max(reserved, default=None))
