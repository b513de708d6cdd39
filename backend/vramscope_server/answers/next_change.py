"""The one change of a training that is most worth trying."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict

ChangeSource = Literal["out-of-memory", "leak", "recording", "finding"]


class NextChange(TypedDict):
    """The one change that is most worth trying, or the reason why none is known."""

    run_id: str
    """Identifier of the run."""
    title: str | None
    """The change in a few words, such as `gradient checkpointing`; null if there is no such name."""
    what: str | None
    """The change in one or two sentences, with its numbers; null if none is known."""
    saves_bytes: int | None
    """Bytes by which the peak falls, or that become free; null if unknown."""
    of: str | None
    """Name of the peak that falls, `allocated`. Null if the bytes are others: the size of the device that is needed, say."""
    source: ChangeSource | None
    """Origin of the proposal; a finding is one about the script."""
    page: str | None
    """Page that explains it, relative to the run's page, such as `/leaks`."""
    caution: str | None
    """Limit of the number, such as a recording that does not contain the run's peak."""
    reason: str | None
    """Why no change is proposed; null if one is."""
    pending: bool
    """True while the recording is replayed under other allocator settings: a later answer may be another."""
