"""The comment on a pull request: its text from two results of each test, and the file that the plugin writes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from vramscope_server.pytest_plugin.baselines import Baseline, BaselineLine
from vramscope_server.pytest_plugin.comment import MARK, comment, main
from vramscope_server.pytest_plugin.measured_tests import MeasuredTest, read, write

MIB = 1 << 20
ROOT = Path(__file__).parents[2]


def baseline(mib: int, torch: str = "2.13.0", **lines_mib: int) -> Baseline:
    lines = [BaselineLine("../model.py", "forward", source, size * MIB) for source, size in lines_mib.items()]
    return Baseline("a10", torch, mib * MIB, lines)


def measured(name: str, before: Baseline | None, now: Baseline, limit_mib: int | None = None) -> MeasuredTest:
    return MeasuredTest(f"tests/{name}", "tests", None if limit_mib is None else limit_mib * MIB, before, now)


def test_the_comment_has_the_differences_by_line():
    before = baseline(100, mask=20, extra=0, attention=50)
    grown = measured("a.py::test_grows", before, baseline(140, mask=10, extra=64, attention=50), 102)
    same = measured("a.py::test_stays", baseline(50), baseline(50), 51)
    assert comment([grown, same]) == (
        """<!-- vramscope -->
### GPU memory: 1 of 2 tests differ, 1 above the limit

| test | before | now | difference | limit | |
|---|---|---|---|---|---|
| `tests/a.py::test_grows` | 100 MiB | 140 MiB | +40.0 MiB (40.0 %) | 102 MiB | **above the limit** |

<details><summary><code>tests/a.py::test_grows</code>, by source line</summary>

| difference | line |
|---|---|
| +64.0 MiB | `model.py` `forward`: `extra` |
| -10.0 MiB | `model.py` `forward`: `mask` |

</details>

Peak of allocated memory on an emulated GPU, by vramscope. Tests that failed before that are not listed.
"""
    )


def test_a_test_that_needs_less_is_listed_and_one_without_a_baseline_too():
    shrunk = measured("a.py::test_shrinks", baseline(100, old=60), baseline(40))
    new = measured("a.py::test_new", None, baseline(10, some=10))
    text = comment([new, shrunk])
    assert "| `tests/a.py::test_shrinks` | 100 MiB | 40.0 MiB | -60.0 MiB (60.0 %) |  |  |" in text
    assert "| `tests/a.py::test_new` | none | 10.0 MiB |  |  | no baseline |" in text
    assert "| -60.0 MiB | `model.py` `forward`: `old` |" in text
    assert "2 of 2 tests differ\n" in text


def test_without_a_difference_it_is_one_line():
    text = comment([measured("a.py::test_stays", baseline(50, line=50), baseline(50, line=50))])
    assert text.splitlines()[:2] == [MARK, "### GPU memory: no difference in 1 measured tests"]
    assert "|" not in text
    assert "no test was measured" in comment([])


def test_another_version_is_named():
    test = measured("a.py::test_grows", baseline(100, torch="2.12.0", x=1), baseline(140, x=41))
    assert "The baseline was stored with a10 and PyTorch 2.12.0." in comment([test])


def test_names_and_source_lines_are_no_markup():
    line = BaselineLine("m.py", "f", "a | b  `c` <b>", 50 * MIB)
    name = "a.py::test[<img src=x>|`]"
    text = comment([measured(name, baseline(100), Baseline("a10", "2.13.0", 150 * MIB, [line]))])
    assert "`a \\| b 'c' <b>`" in text
    assert "<img" not in text.replace("`tests/a.py::test[<img src=x>\\|']`", "")


def test_the_file_has_the_last_result_of_each_test(tmp_path: Path):
    file = tmp_path / "report.jsonl"
    for mib in (10, 20):
        write(file, measured("b.py::two", None, baseline(mib)))
    write(file, measured("a.py::one", None, baseline(30)))
    assert [(one.test, one.now.peak_allocated_bytes // MIB) for one in read(file)] == [
        ("tests/a.py::one", 30),
        ("tests/b.py::two", 20),
    ]
    assert not measured("a.py::one", None, baseline(30)).failed


def test_a_missing_or_damaged_file_is_named(tmp_path: Path, capsys: Any):
    (tmp_path / "damaged").write_text("{}\n")
    for words in ([], [str(tmp_path / "none")], [str(tmp_path / "damaged")]):
        assert main(words) == 2
        assert "usage: python -m vramscope_server.pytest_plugin.comment FILE" in capsys.readouterr().err


def test_the_script_prints_the_comment(tmp_path: Path):
    file = tmp_path / "report.jsonl"
    write(file, measured("a.py::one", baseline(30), baseline(40)))
    command = [sys.executable, "-m", "vramscope_server.pytest_plugin.comment", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == comment(read(file))


ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
GH = """#!/bin/sh
echo "$@" >> "$CALLS"
case "$*" in *--paginate*) echo "$OWN_COMMENT" ;; esac
"""


@pytest.mark.parametrize(
    ("own_comment", "number", "calls"),
    [
        ("77", "5", ["PATCH repos/me/it/issues/comments/77"]),
        ("", "5", ["POST repos/me/it/issues/5/comments"]),
        ("", "", []),
    ],
)
def test_the_action_renews_its_own_comment(tmp_path: Path, monkeypatch, own_comment, number, calls):
    """Its script runs here with a ``gh`` that notes its arguments. GitHub itself is not asked."""
    step = ACTION["runs"]["steps"][1]
    write(tmp_path / "vramscope.jsonl", measured("a.py::one", baseline(30), baseline(40)))
    for name, script in (("gh", GH), ("python", f'#!/bin/sh\nexec {sys.executable} "$@"\n')):
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)
    values = {"RUNNER_TEMP": str(tmp_path), "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"), "COMMENT": "true"}
    values |= {"NUMBER": number, "REPOSITORY": "me/it", "CALLS": str(tmp_path / "calls"), "OWN_COMMENT": own_comment}
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    subprocess.run(["bash", "-eo", "pipefail", "-c", step["run"]], check=True, timeout=60, cwd=tmp_path)
    assert (tmp_path / "summary").read_text().startswith(MARK)
    made = (tmp_path / "calls").read_text().splitlines() if calls else []
    assert [line for line in made if "--method" in line] == [
        f"api --method {call} --field body=@{tmp_path}/vramscope.md --silent" for call in calls
    ]


def test_inputs_of_the_action_reach_its_scripts_by_the_environment_only():
    """An expression within a script would be code of whoever wrote the value."""
    assert all("${{" not in step["run"] for step in ACTION["runs"]["steps"])
