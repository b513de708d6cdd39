"""Write slow_tests.json from the times of whole runs.

``SLOW_TESTS_SECONDS=inf make test ARGS=--junitxml=times.xml; .venv/bin/python tests/record_slow_tests.py times.xml [more.xml ...]``

A test's time includes fixtures that it was the first to use. With several runs, the shortest time of each test counts.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from xml.etree import ElementTree

from selection import SLOW_TESTS, is_of_a_corpus, name_of

SLOW_SECONDS = 2.0
"""A test that takes this long counts as slow: beside two other workers on two cores, what its fixtures need included."""


def slow_tests(runs: list[Path]) -> dict[str, float]:
    """Seconds of each slow test but the cases of corpora, by its name, of reports in JUnit's format."""
    seconds: dict[str, float] = {}
    for run in runs:
        for case in ElementTree.parse(run).getroot().iter("testcase"):
            name = name_of(f"{case.attrib['classname'].replace('.', '/')}.py::{case.attrib['name']}")
            taken = round(float(case.attrib["time"]), 1)
            seconds[name] = min(taken, seconds.get(name, taken))
    return {
        name: taken
        for name, taken in sorted(seconds.items())
        if taken >= SLOW_SECONDS and not is_of_a_corpus(Path(name.partition("::")[0]), name)
    }


if __name__ == "__main__":
    SLOW_TESTS.write_text(json.dumps(slow_tests([Path(file) for file in sys.argv[1:]]), indent=0) + "\n")
