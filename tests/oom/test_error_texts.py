"""Pasted texts are explained rightly, or not at all: kind, cause, numbers, remedy."""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from error_texts import TEXTS, ErrorText
from error_texts_of_exports import EXPORTS
from error_texts_of_full_logs import FULL_LOGS
from error_texts_of_libraries import LIBRARIES
from error_texts_of_other_languages import OTHER_LANGUAGES
from error_texts_of_serving import SERVING
from error_texts_of_strangers import STRANGERS_TEXTS
from error_texts_of_wrapped_logs import WRAPPED_LOGS
from text_scores import SCORES, score

from vramscope.oom_diagnosis.parse_message import MAX_CHARACTERS, parse
from vramscope_server.cli.client import Failure
from vramscope_server.cli.oom import explain

KNOWN_FAULTS = {
    "Ascend's driver": "partly",
    "accelerate found no batch": "partly",
    "events of a cluster, a node that ran out of memory": "partly",
}
"""Later texts whose answer is not right yet, with the score that they get. Whoever mends one removes its line."""


def answer(text: str, folder: Path, capsys: pytest.CaptureFixture[str], encoding: str = "utf-8") -> str:
    """What ``vramscope oom --message`` prints."""
    file = folder / "error.txt"
    file.write_bytes(text.encode(encoding))
    try:
        explain(str(file), as_json=False)
    except Failure as failure:
        return str(failure)
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("case", TEXTS, ids=lambda case: case.name)
def test_a_pasted_text_gets_the_right_answer(
    case: ErrorText, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from vramscope.oom_diagnosis.diagnosis import diagnose
    from vramscope.oom_diagnosis.evidence import facts_of_message

    message = parse(case.text)
    assert (message.kind, message.certain) == (case.kind, case.certain)
    assert message.device == case.device
    assert {process.pid for process in message.processes if not process.mine} >= set(case.pids)
    if case.asked is None:
        assert case.kind == "unknown" or message.asked_bytes is None
    else:
        assert abs((message.asked_bytes or 0) - case.asked) <= message.rounding_bytes.get("asked_bytes", 0) + 1
    if case.kind != "unknown":
        assert diagnose(facts_of_message(message)).kind.value == case.cause
    output = answer(case.text, tmp_path, capsys)
    assert [words for words in case.says if words not in output] == []
    assert [words for words in case.never if words in output] == []


@pytest.mark.parametrize(
    "case",
    [*LIBRARIES, *SERVING, *WRAPPED_LOGS, *FULL_LOGS, *EXPORTS, *OTHER_LANGUAGES, *STRANGERS_TEXTS],
    ids=lambda case: case.name,
)
def test_a_later_text_gets_the_right_answer(case: ErrorText) -> None:
    """Since all scores are published, the texts that were held out are tested like the others."""
    found, why = score(case)
    assert SCORES.index(found) <= SCORES.index(KNOWN_FAULTS.get(case.name, "right")), why


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-8-sig"])
def test_other_encodings_are_read(encoding: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a mark, UTF-16 is known by its zeros."""
    assert "fragmented" in answer(TEXTS[1].text, tmp_path, capsys, encoding)


def test_gzip_is_read_and_a_damaged_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packed = gzip.compress(TEXTS[1].text.encode())
    (tmp_path / "log.gz").write_bytes(packed)
    explain(str(tmp_path / "log.gz"), as_json=False)
    assert "fragmented" in capsys.readouterr().out
    (tmp_path / "log.gz").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(Failure, match="damaged"):
        explain(str(tmp_path / "log.gz"), as_json=False)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("train.service: Failed with result 'oom-kill'.", "kernel"),
        ("systemd-oomd[812]: Killed /user.slice/a.scope due to memory pressure for /user.slice being 68.1%", "kernel"),
        ('earlyoom[700]: sending SIGTERM to process 31 uid 1000 "python": badness 900, VmRSS 50000 MiB', "kernel"),
        ("=>> PBS: job killed: vmem 66060288kb exceeded limit 65011712kb", "batch_system"),
        ("Error from slot1@node: memory usage exceeded request_memory", "batch_system"),
        ("fish: Job 1, 'python train.py' terminated by signal SIGKILL (Forced quit)", "killed"),
        ("subprocess.CalledProcessError: Command '['python']' died with <Signals.SIGKILL: 9>.", "killed"),
        ("Your session crashed after using all available RAM.", "host"),
        ("zsh: killed by an impatient user", "unknown"),
        ("PBS: job killed: walltime 3612 exceeded limit 3600", "unknown"),
        ("train.service: Failed with result 'exit-code'.", "unknown"),
    ],
)
def test_kills_by_the_host_are_recognised(text: str, kind: str) -> None:
    message = parse(text)
    assert (message.kind, message.certain) == (kind, kind != "killed")


def test_the_agent_takes_none_of_these_for_its_trainings_error() -> None:
    """An exception that only quotes such words is no out-of-memory error of the training."""
    for text in ("exit code 137", "Reason: OOMKilled", "OutOfResources: out of resource: shared memory"):
        assert parse(text).is_known
        assert not parse(text, "RuntimeError").is_known
    assert len(TEXTS) >= 60 and MAX_CHARACTERS > 0
