"""A comment on a pull request: what marked tests need, and which source lines need more or less than in the baseline.

``python -m vramscope_server.pytest_plugin.comment FILE`` prints it as Markdown. FILE is that of ``--gpu-memory-report``.
"""

from __future__ import annotations

import posixpath
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from vramscope_server.analysis.number_format import amount, count, percent
from vramscope_server.pytest_plugin.baselines import Baseline
from vramscope_server.pytest_plugin.measured_tests import MeasuredTest, read

MARK: Final = "<!-- vramscope -->"
"""First line, by which a later run finds the comment and replaces it."""
LEAST_SHARE: Final = 0.001
"""Share of the peak from which on a difference is shown."""
MOST_TESTS: Final = 50
MOST_LINES: Final = 10
MOST_CHARACTERS: Final = 60_000
"""GitHub refuses comments of more than 65,536."""
PEAK: Final = "Peak of allocated memory on an emulated GPU, by vramscope. Tests that failed before that are not listed."
WRONG_ARGUMENTS: Final = 2


def comment(tests: Sequence[MeasuredTest]) -> str:
    """Format the comment. Tests without a difference are counted only."""
    changed = [test for test in tests if _is_changed(test)]
    rows = [MARK, f"### GPU memory: {_summary(tests, changed)}", ""]
    if changed:
        rows += ["| test | before | now | difference | limit | |", "|---|---|---|---|---|---|"]
        rows += [_row(test) for test in changed[:MOST_TESTS]]
        if len(changed) > MOST_TESTS:
            rows.append(f"\n{count(len(changed) - MOST_TESTS)} more tests are not listed.")
        rows.append("")
        for test in changed[:MOST_TESTS]:
            rows += _lines(test)
    return "\n".join([*rows, PEAK, ""])


def _is_changed(test: MeasuredTest) -> bool:
    if test.before is None or test.failed:
        return True
    return _is_large(test.now.peak_allocated_bytes - test.before.peak_allocated_bytes, test)


def _is_large(difference_bytes: int, test: MeasuredTest) -> bool:
    return abs(difference_bytes) > LEAST_SHARE * test.now.peak_allocated_bytes


def _summary(tests: Sequence[MeasuredTest], changed: Sequence[MeasuredTest]) -> str:
    failed = sum(test.failed for test in tests)
    if not tests:
        return "no test was measured"
    if not changed:
        return f"no difference in {count(len(tests))} measured tests"
    text = f"{count(len(changed))} of {count(len(tests))} tests differ"
    return f"{text}, {count(failed)} above the limit" if failed else text


def _row(test: MeasuredTest) -> str:
    now = test.now.peak_allocated_bytes
    before, difference = "none", ""
    if test.before is not None:
        more, base = now - test.before.peak_allocated_bytes, test.before.peak_allocated_bytes
        before, difference = amount(base), f"{_signed(more)} ({percent(abs(more) / max(1, base))})"
    limit = "" if test.limit_bytes is None else amount(test.limit_bytes)
    state = "**above the limit**" if test.failed else "no baseline" if test.before is None else ""
    return f"| `{_code(test.test)}` | {before} | {amount(now)} | {difference} | {limit} | {state} |"


def _lines(test: MeasuredTest) -> Iterator[str]:
    """Yield the lines with the largest differences; of a test without a baseline nothing."""
    if test.before is None:
        return
    differences = _by_source(test.now)
    differences.subtract(_by_source(test.before))
    ordered = sorted(differences.items(), key=lambda one: (-abs(one[1]), one[0]))
    shown = [(place, more) for place, more in ordered if _is_large(more, test)][:MOST_LINES]
    if not shown:
        return
    yield f"<details><summary><code>{_html(test.test)}</code>, by source line</summary>"
    yield ""
    yield "| difference | line |"
    yield "|---|---|"
    for (file, function, source), more in shown:
        where = (
            f"`{_code(_in_repository(test.folder, file))}` `{_code(function)}`: `{_code(source)}`" if file else function
        )
        yield f"| {_signed(more)} | {where} |"
    if (test.before.card, test.before.torch) != (test.now.card, test.now.torch):
        yield ""
        yield f"The baseline was stored with {test.before.card} and PyTorch {test.before.torch}."
    yield ""
    yield "</details>"
    yield ""


def _by_source(baseline: Baseline) -> Counter[tuple[str, str, str]]:
    return Counter({(line.file, line.function, line.source): line.bytes for line in baseline.lines})


def _in_repository(folder: str, file: str) -> str:
    return posixpath.normpath(posixpath.join(folder, file))


def _signed(more_bytes: int) -> str:
    return f"+{amount(more_bytes)}" if more_bytes >= 0 else f"-{amount(-more_bytes)}"


def _code(text: str) -> str:
    """Return text within backticks, in which only these and bars matter."""
    return " ".join(text.split()).replace("`", "'").replace("|", "\\|")


def _html(text: str) -> str:
    return " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _short(text: str) -> str:
    if len(text) <= MOST_CHARACTERS:
        return text
    return text[:MOST_CHARACTERS].rpartition("\n")[0] + "\n\nThe rest is left out.\n"


def main(arguments: Sequence[str]) -> int:
    """Print the comment. Exit code 2: the file is missing or damaged."""
    try:
        (file,) = arguments
        print(_short(comment(read(Path(file)))), end="")
    except (OSError, ValueError) as fault:
        print(f"usage: python -m vramscope_server.pytest_plugin.comment FILE ({fault})", file=sys.stderr)
        return WRONG_ARGUMENTS
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
