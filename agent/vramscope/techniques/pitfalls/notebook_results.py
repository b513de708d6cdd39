"""Pitfall: the notebook in which the training runs retains GPU memory that nothing else uses."""

from __future__ import annotations

from typing import Final

from vramscope.leaks.notebook_references import (
    RELEASE_ERROR,
    NotebookReference,
    current_shell,
    results_and_variables,
    retained_by_notebook,
)
from vramscope.protocol import messages
from vramscope.protocol.number_format import amount
from vramscope.techniques.observation import TrainingState
from vramscope.techniques.pitfalls.earlier_run import allocated_bytes

MIN_BYTES: Final = 64 * 2**20
"""Smallest memory of one name that is reported."""
MIN_FRACTION: Final = 0.01
"""Smallest share of the allocated memory that is reported."""
MAX_NAMES: Final = 3


class NotebookResults:
    """Searches when a run starts, and again only if the notebook refers to other tensors."""

    def __init__(self) -> None:
        self._searched: tuple[tuple[str, int], ...] = ()
        self._found: list[NotebookReference] = []

    def find(self, training: TrainingState) -> messages.Pitfall | None:
        """Search only in IPython, and only if much memory is allocated. A search takes about 0.6 µs for each object of Python."""
        shell = current_shell()
        allocated = allocated_bytes() if shell is not None else 0
        if allocated < MIN_BYTES:
            return None
        present = results_and_variables(shell)
        if present != self._searched:
            self._searched = present
            self._found = retained_by_notebook(shell, max(MIN_BYTES, int(MIN_FRACTION * allocated)))
        return _finding(training, self._found) if self._found else None


def _finding(training: TrainingState, found: list[NotebookReference]) -> messages.Pitfall:
    names = ", ".join(f"{one.name} ({amount(one.size_bytes)})" for one in found[:MAX_NAMES])
    more = f", and {len(found) - MAX_NAMES} more" if len(found) > MAX_NAMES else ""
    of_results = any(one.release != RELEASE_ERROR for one in found)
    of_error = any(one.release == RELEASE_ERROR for one in found)
    instead = ["end a cell with a semicolon or None, so that its result is not kept"] if of_results else []
    instead += ["catch the error where it occurs, or restart the kernel"] if of_error else []
    release = " and ".join(dict.fromkeys(f"`{one.release}`" for one in found))
    return training.finding(
        "notebook-keeps-memory",
        f"Only the notebook itself still refers to {amount(sum(one.size_bytes for one in found))} on the device: {names}{more}. "
        "The peaks of this run include them.",
        f"run {release} in a cell; next time {' and '.join(instead)}",
    )
