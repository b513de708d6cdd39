"""Parts that several answers share."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta
from typing_extensions import TypedDict

PlotlyFigure = dict[str, Any]
"""A figure as Plotly's JSON: ``data`` and ``layout``."""


# Their keys are keywords of Python: no class can have them as attributes.
EventWindow = TypedDict(
    "EventWindow",
    {
        "from": Annotated[int, Meta(description="First event of the window; -1 is the point before the first event.")],
        "to": Annotated[int, Meta(description="End of the window, not included.")],
    },
)
AxisWindow = TypedDict(
    "AxisWindow",
    {
        "from": Annotated["float | None", Meta(description="Requested start, in seconds or as a step; null is open.")],
        "to": Annotated["float | None", Meta(description="Requested end, included; null is open.")],
    },
)
ByteWindow = TypedDict(
    "ByteWindow",
    {
        "from": Annotated[int, Meta(description="Offset of the first byte.")],
        "to": Annotated[int, Meta(description="Offset of the end, not included.")],
    },
)


class FigureAnswer(TypedDict):
    """A figure."""

    figure: PlotlyFigure
    """Plotly figure without template and theme colours."""


class Frame(TypedDict):
    """A frame of a call stack."""

    file: str
    """Path of the source file."""
    line: int
    """Line number in the file."""
    function: str
    """Name of the function."""
    library: bool
    """Whether the file belongs to a library, not to the user's code."""


class Moment(TypedDict):
    """The point after an event of a recording."""

    event: int
    """Number of the event, counted from 0; -1 is the point before the first event."""
    step: int | None
    """Optimizer step at that point, counted from 1."""
    phase: str | None
    """Phase of the step: `data`, `forward`, `backward`, `optimizer`, `eval` or `other`."""
    module: str | None
    """Module whose forward or backward pass was running."""
    seconds: float | None
    """Time since the first event of the recording."""


class Damage(TypedDict):
    """Rows of a window that cannot be read because stored bytes changed on the disk."""

    rows: int
    """Number of these rows."""
    first_seconds: float
    """Time of the first of them, since 1970."""
    last_seconds: float
    """Time of the last of them, since 1970."""
    first_step: int | None
    """First step of them."""
    last_step: int | None
    """Last step of them."""


class Asked(TypedDict):
    """Processes that were asked for a recording or a profile."""

    asked: list[int]
    """Ranks that receive the request with their next acknowledgement."""
