"""Write slow_tests.json from the times of a whole run.

``make test-all ARGS=--junitxml=times.xml; .venv/bin/python tests/record_slow_tests.py times.xml``
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from xml.etree import ElementTree

from selection import SLOW_TESTS, is_of_a_corpus, name_of

SLOW_SECONDS = 2.0
"""A test that takes this long counts as slow: beside two other workers on two cores, what its fixtures need included."""


def slow_tests(times: Path) -> dict[str, float]:
    """Seconds of each slow test but the cases of corpora, by its name, of a report in JUnit's format."""
    seconds = {}
    for case in ElementTree.parse(times).getroot().iter("testcase"):
        name = name_of(f"{case.attrib['classname'].replace('.', '/')}.py::{case.attrib['name']}")
        if float(case.attrib["time"]) >= SLOW_SECONDS and not is_of_a_corpus(Path(name.partition("::")[0]), name):
            seconds[name] = round(float(case.attrib["time"]), 1)
    return dict(sorted(seconds.items()))


if __name__ == "__main__":
    SLOW_TESTS.write_text(json.dumps(slow_tests(Path(sys.argv[1])), indent=0) + "\n")
