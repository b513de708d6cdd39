"""Columns of a run: one value for each row, as NumPy arrays, or as a table of pandas or polars."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class Series:
    """Columns of one rank and device. ``series["peak_allocated_bytes"]`` is a NumPy array of float64; unknown values are NaN.

    Every integer up to 2**53 is exact in it: 8 PiB.
    """

    def __init__(self, axis: str, x_values: list[float], columns: Mapping[str, list[Any]]) -> None:
        import numpy

        self.axis = axis
        """``step`` or ``time``."""
        self.x: npt.NDArray[np.float64] = numpy.asarray(x_values, dtype="float64")
        """Numbers of the steps, or seconds since 1970."""
        self._columns = {
            name: numpy.asarray([_number(value) for value in values], "float64") for name, values in columns.items()
        }

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(self._columns)

    def __getitem__(self, name: str) -> npt.NDArray[np.float64]:
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        """Number of rows."""
        return int(self.x.size)

    def to_pandas(self) -> Any:
        """Return a ``pandas.DataFrame`` whose index is the axis."""
        import pandas  # type: ignore[import-untyped, import-not-found, unused-ignore]

        return pandas.DataFrame(self._columns, index=pandas.Index(self.x, name=self.axis))

    def to_polars(self) -> Any:
        """Return a ``polars.DataFrame``. The axis is its first column."""
        import polars  # type: ignore[import-not-found, unused-ignore]

        return polars.DataFrame({self.axis: self.x, **self._columns})


def _number(value: Any) -> float:
    """Return a value of the API; null is NaN, and scalars that are not finite are words."""
    return float("nan") if value is None else float(value)
