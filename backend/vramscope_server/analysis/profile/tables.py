"""Tables of a profile as arrays, with sorting, search and paging."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from vramscope.protocol.profile import KEYS, QUANTITIES, SPECIAL, TABLES, Profile
from vramscope.protocol.series import PHASES, UNKNOWN
from vramscope_server.analysis.array_types import IntArray

DEFAULT_SORT: Final = "self_peak_bytes"
SORTS: Final = (*QUANTITIES, "name")
Row: TypeAlias = dict[str, str | int | bool | None]
"""A row by the names of its columns."""
_TEXTS: Final = ("name", "shapes", "kind", "file")


@dataclass(frozen=True)
class Table:
    """Table of a profile. Columns are those of ``protocol.profile.KEYS`` and ``QUANTITIES``: integers, -1 if unknown."""

    name: str
    columns: dict[str, IntArray]
    words: list[str]

    @classmethod
    def of(cls, profile: Profile, name: str) -> Table:
        """Table with this name; empty if the profile has no rows."""
        data = getattr(profile, name)
        columns = {key: np.frombuffer(data.get(key, b""), "<i8") for key in (*KEYS[name], *QUANTITIES)}
        return cls(name, columns, profile.words)

    def __len__(self) -> int:
        return self.columns["calls"].size

    @cached_property
    def names(self) -> list[str]:
        """Names of the rows."""
        return self.texts("name")

    def texts(self, key: str) -> list[str]:
        """Texts of a column; "?" for an invalid position."""
        words = self.words
        return [words[at] if 0 <= at < len(words) else "?" for at in self.columns[key].tolist()]

    @cached_property
    def special(self) -> npt.NDArray[np.bool_]:
        """Whether each row is a rest that belongs to no operation, module or line."""
        return np.array([name in SPECIAL for name in self.names], bool)

    def rows(
        self, *, sort: str = DEFAULT_SORT, rising: bool = False, search: str = "", limit: int = 100, offset: int = 0
    ) -> tuple[list[Row], int]:
        """Sorted rows with ``search`` in their name, class or file (ignoring case), and the number of matches."""
        keys = [key for key in _TEXTS if key in KEYS[self.name]]
        texts: dict[str, list[str]] = {key: self.texts(key) for key in keys}
        found = np.arange(len(self))
        if search:
            wanted = search.casefold()
            matches = [any(wanted in texts[key][row].casefold() for key in keys) for row in range(len(self))]
            found = found[np.array(matches, bool)] if len(self) else found
        if sort == "name":
            order = np.argsort(np.array(texts["name"], object)[found], kind="stable")
        else:
            order = np.argsort(self.columns[sort][found], kind="stable")
            order = order if rising else order[::-1]
        chosen = found[order][offset : offset + limit]
        return [self._row(int(row), texts) for row in chosen], int(found.size)

    def _row(self, row: int, texts: dict[str, list[str]]) -> Row:
        values: Row = {"special": bool(self.special[row])}
        for key, column in self.columns.items():
            value = int(column[row])
            if key in texts:
                values[key] = texts[key][row]
            elif key == "phase":
                values[key] = PHASES[value] if 0 <= value < len(PHASES) else None
            else:
                values[key] = None if value == UNKNOWN else value
        return values

    @cached_property
    def sums(self) -> dict[str, int | None]:
        """Totals of the quantities that count in one row only; None if unknown."""
        return {
            name: (None if (column := self.columns[name]).size == 0 or (column == UNKNOWN).any() else int(column.sum()))
            for name in QUANTITIES
            if name.startswith("self_")
        }


def tables_of(profile: Profile) -> dict[str, Table]:
    """All tables by name."""
    return {name: Table.of(profile, name) for name in TABLES}
