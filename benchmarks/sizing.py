"""What a cluster of many ranks needs, calculated from measured costs. Nothing of this size was run.

    python benchmarks/sizing.py                  # 10,000 ranks
    python benchmarks/sizing.py --ranks 2000 --rows-per-second 1
    python benchmarks/sizing.py --write          # renews the table in docs/attacks.md

A post costs a fixed part and a part for each value. Both follow from two measurements on the same two cores, which server,
database and senders share: cluster.py (small posts) and ingest.py (large posts). What senders take of them is counted as the
server's, so the result is more than a server alone needs. Machines, networks and disks that differ give other figures.
"""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "attacks.md"
BEGIN: Final = "<!-- benchmarks/sizing.py -->"
END: Final = "<!-- end of sizing -->"
CORES: Final = 2
"""Cores of the machine of both measurements."""
SMALL_POSTS: Final = 1248.0
"""Posts a second, PostgreSQL with 4 processes (benchmarks/README.md, cluster.py, 2026-11-29)."""
SMALL_VALUES: Final = 8 * 24
"""Values of each of them."""
LARGE_VALUES_PER_SECOND: Final = 2_410_000.0
"""Values a second, SQLite (benchmarks/README.md, ingest.py, 2026-11-22). It was not measured on PostgreSQL."""
LARGE_VALUES: Final = 256 * 19
"""Values of a post there."""
BYTES_PER_VALUE: Final = 1.22
"""Stored bytes (the same run)."""
CONNECTIONS_PER_PROCESS: Final = 17
"""PostgreSQL connections (docs/deployment.md)."""
SHARE: Final = 0.5
"""Share of a core that a server process gives to posts before it asks agents to send less often (send_interval.py)."""
MOST_SEND_SECONDS: Final = 10.0
COLUMNS: Final = 24


@dataclass(frozen=True)
class Costs:
    """CPU seconds of a post, and of each value in it."""

    post: float
    value: float


@dataclass(frozen=True)
class Need:
    """What a server needs for a number of ranks."""

    ranks: int
    send_seconds: float
    posts_per_second: float
    values_per_second: float
    cores: float
    processes: int
    connections: int
    gigabytes_per_day: float


def measured() -> Costs:
    """The two costs that explain both measurements."""
    small, large = CORES / SMALL_POSTS, CORES / (LARGE_VALUES_PER_SECOND / LARGE_VALUES)
    value = (large - small) / (LARGE_VALUES - SMALL_VALUES)
    return Costs(post=small - value * SMALL_VALUES, value=value)


def need(ranks: int, rows_per_second: float, send_seconds: float = MOST_SEND_SECONDS) -> Need:
    """What a server needs for these ranks if each sends every ``send_seconds``."""
    costs = measured()
    posts = ranks / send_seconds
    values = ranks * rows_per_second * COLUMNS
    cores = posts * costs.post + values * costs.value
    processes = max(1, -int(-cores // SHARE))
    return Need(
        ranks,
        send_seconds,
        posts,
        values,
        cores,
        processes,
        processes * CONNECTIONS_PER_PROCESS,
        values * BYTES_PER_VALUE * 86_400 / 1e9,
    )


def table(needs: list[tuple[str, Need]]) -> str:
    """Rows of Markdown."""
    rows = [
        "| ranks | each sends every | posts a second | million values a second | cores for posts | server processes | "
        "PostgreSQL connections | stored a day |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for words, one in needs:
        rows.append(
            f"| {one.ranks:,}, {words} | {one.send_seconds:g} s | {one.posts_per_second:,.0f} | {one.values_per_second / 1e6:.2f} "
            f"| {one.cores:.1f} | {one.processes} | {one.connections} | {one.gigabytes_per_day:,.0f} GB |"
        )
    return "\n".join(rows)


def usual() -> str:
    """The table of the docs."""
    return table([("1 row a second", need(10_000, 1)), ("10 rows a second (default)", need(10_000, 10))])


def page(text: str) -> str:
    """The page with the present table."""
    new = f"{BEGIN}\n{usual()}\n{END}"
    return re.sub(re.escape(BEGIN) + ".*?" + re.escape(END), lambda _: new, text, flags=re.DOTALL)


def main() -> None:
    """Calculate and print."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--ranks", type=int, default=10_000, help="number of ranks")
    arguments.add_argument("--rows-per-second", type=float, default=10.0, help="rows of each rank a second")
    arguments.add_argument("--write", action="store_true", help="write the table into docs/attacks.md")
    given = arguments.parse_args()
    if given.write:
        PAGE.write_text(page(PAGE.read_text()))
        return
    costs = measured()
    print(f"cost of a post: {costs.post * 1e3:.2f} ms and {costs.value * 1e9:.0f} ns a value")
    print(table([(f"{given.rows_per_second:g} rows a second", need(given.ranks, given.rows_per_second))]))


if __name__ == "__main__":
    main()
