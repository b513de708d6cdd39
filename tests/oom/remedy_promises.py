"""Applies every remedy that is called enough, and measures each saving that can be measured.

``table.py`` follows the first sure remedy of a death. ``python tests/oom/remedy_promises.py`` follows all of them. A saving is
the difference of two peaks of allocated memory, both on a card that is large enough: of the unchanged program, and of the
changed one. It is not measured where the unchanged program has no peak on a large card (a leak that goes on), or where
nothing is saved (another card, a setting).

With words only the deaths whose names have one of them, and nothing is written. ``--at-once N`` runs N deaths at a time.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "backend")]

import httpx  # noqa: E402
import staged  # noqa: E402
from deaths import Death  # noqa: E402
from every_death import EVERY_DEATH  # noqa: E402
from running import RunningServer  # noqa: E402

LARGE_CARD: Final = "128G"
KEPT_SHARE: Final = 0.05
"""Share by which a saving may differ from what was promised."""
WITHOUT_A_PEAK: Final = ("leak", "other_process", "limit", "fragmentation")
"""Causes of which the unchanged program has another peak on a large card, or none."""
RESULTS: Final = HERE / "PROMISES.md"


@dataclasses.dataclass(frozen=True, slots=True)
class Followed:
    """One remedy that was called enough, and what came of it."""

    death: str
    what: str
    survived: bool
    why: str
    """End of the output of a run that did not survive."""
    promised_bytes: int | None
    came_bytes: int | None
    """Measured saving; None where it cannot be measured."""

    @property
    def is_kept(self) -> bool | None:
        """Whether the saving is within KEPT_SHARE of the promised one, both ways; None where it was not promised or measured."""
        if self.promised_bytes is None or self.came_bytes is None:
            return None
        return abs(self.came_bytes - self.promised_bytes) <= KEPT_SHARE * self.promised_bytes

    def row(self) -> str:
        """Row of the table."""
        saving = "-" if self.promised_bytes is None else f"{self.promised_bytes / (1 << 20):,.0f} MiB"
        came = "-" if self.came_bytes is None else f"{self.came_bytes / (1 << 20):,.0f} MiB"
        if self.is_kept is False:
            came = f"**{came}**"
        return f"| {self.death} | {self.what} | {'yes' if self.survived else '**no**'} | {saving} | {came} |"


def follow(death: Death, server: str, folder: Path) -> Iterator[Followed]:
    """Let the death happen, and run it again with each remedy that is called enough."""
    folder.mkdir(parents=True)
    run_id, _, _ = staged.run(death, server, folder)
    if death.killed:
        staged.sync(server, folder)
    _, error = staged.report_of(server, run_id)
    unchanged: int | None = None
    for remedy in error["remedies"] if error else ():
        if not remedy["enough"] or not death.tried:
            continue
        try:
            staged.applied(remedy, death)
        except AssertionError:
            continue
        again, code, output = staged.run(death, server, folder, remedy)
        left = [
            one for one in staged.report_of(server, again)[0]["errors"] if death.survived or one["survived"] is not True
        ]
        came = None
        is_saving = remedy["saves_bytes"] is not None and not remedy["card_bytes"] and not remedy["conf"]
        if is_saving and death.cause not in WITHOUT_A_PEAK:
            if unchanged is None:
                unchanged = _peak(death, server, folder, None)
            changed = _peak(death, server, folder, remedy)
            came = None if unchanged is None or changed is None else unchanged - changed
        survived = code == 0 and not left
        yield Followed(
            death.name,
            _short(remedy["what"]),
            survived,
            "" if survived else output[-800:],
            remedy["saves_bytes"] if is_saving else None,
            came,
        )


def _peak(death: Death, server: str, folder: Path, remedy: dict[str, Any] | None) -> int | None:
    """Highest allocated memory on a card that is large enough; None where the program did not end well."""
    run_id, code, _ = staged.run(death, server, folder, remedy, EMULATED_GPU_TOTAL_MEM=LARGE_CARD)
    run = httpx.get(f"{server}/api/v1/runs/{run_id}", timeout=60, trust_env=False).raise_for_status().json()
    peak: int | None = run["peak_allocated_bytes"]
    return peak if code == 0 else None


def _short(what: str) -> str:
    return staged.re.sub(r"pid \d+", "pid N", staged.re.sub(r"[0-9a-f]{16}\.py", "train.py", what)).partition(": ")[0]


def summary(found: list[Followed]) -> str:
    """One sentence each on the remedies and the savings."""
    measured = [one for one in found if one.is_kept is not None]
    kept = sum(one.is_kept is True for one in measured)
    survived, deaths = sum(one.survived for one in found), len({one.death for one in found})
    return (
        f"{len(found)} remedies of {deaths} deaths were called enough; with {survived} of them the "
        f"program ran to its end. {len(measured)} savings were measured; {kept} came within {KEPT_SHARE:.0%} of what was promised."
    )


def main() -> int:
    """Print the rows, and write PROMISES.md. Exit code 1 where a remedy was not enough."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--at-once", type=int, default=2)
    options = parser.parse_args()
    chosen = [
        death
        for death in EVERY_DEATH
        if death.remedy and (not options.words or any(word in death.name for word in options.words))
    ]
    found: list[Followed] = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        server = RunningServer(Path(folder) / "server")

        def one(numbered: tuple[int, Death]) -> list[Followed]:
            number, death = numbered
            rows = list(follow(death, server.url, Path(folder) / str(number)))
            for row in rows:
                print(row.row(), *([row.why] if row.why else []), sep="\n", flush=True)
            return rows

        with ThreadPoolExecutor(options.at_once) as pool:
            for rows in pool.map(one, enumerate(chosen)):
                found += rows
        server.stop()
    print(summary(found))
    if not options.words:
        head = "| death | remedy | enough | promised saving | measured |\n|---|---|---|---|---|"
        rows_text = "\n".join(row.row() for row in found)
        RESULTS.write_text(
            "# Remedies that are called enough, applied\n\n"
            "`python tests/oom/remedy_promises.py` writes this page. Emulated GPU.\n\n"
            f"{summary(found)}\n\n{head}\n{rows_text}\n"
        )
    return 0 if all(one.survived for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
