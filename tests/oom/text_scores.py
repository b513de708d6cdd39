"""Scores of the answers to pasted texts: ``python tests/oom/text_scores.py`` prints both halves, ``--reasons`` with reasons.

Faults were mended against one half. Of the other, only the score was read until it was published. Since then all texts are
tested.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parent))

from error_texts import ErrorText
from error_texts_of_exports import EXPORTS, UNSEEN_EXPORTS
from error_texts_of_full_logs import FULL_LOGS, UNSEEN
from error_texts_of_libraries import LIBRARIES
from error_texts_of_other_languages import OTHER_LANGUAGES, UNSEEN_OTHER_LANGUAGES
from error_texts_of_serving import SERVING
from error_texts_of_strangers import STRANGERS_TEXTS, UNSEEN_STRANGERS
from error_texts_of_wrapped_logs import WRAPPED_LOGS

from vramscope.oom_diagnosis.diagnosis import diagnose
from vramscope.oom_diagnosis.evidence import facts_of_message
from vramscope.oom_diagnosis.parse_message import parse
from vramscope_server.cli.client import Failure
from vramscope_server.cli.oom import explain

SCORES: Final = ("right", "partly", "silent", "wrong")
"""Best first."""
WRITTEN: Final = {
    "error_texts_of_libraries.py": LIBRARIES,
    "error_texts_of_serving.py": SERVING,
    "error_texts_of_wrapped_logs.py": WRAPPED_LOGS,
    "error_texts_of_full_logs.py": FULL_LOGS,
    "error_texts_of_exports.py": EXPORTS,
    "error_texts_of_other_languages.py": OTHER_LANGUAGES,
    "error_texts_of_strangers.py": STRANGERS_TEXTS,
}


def is_unseen(text: ErrorText) -> bool:
    """Whether only the score of this text was read."""
    drawn = (*FULL_LOGS, *EXPORTS, *OTHER_LANGUAGES, *STRANGERS_TEXTS)
    names = UNSEEN | UNSEEN_EXPORTS | UNSEEN_OTHER_LANGUAGES | UNSEEN_STRANGERS
    return text.name in names if text in drawn else text.held_out


def output_of(text: str) -> str:
    """What ``vramscope oom --message`` prints, on one line."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "error.txt"
        file.write_text(text)
        printed = io.StringIO()
        try:
            with contextlib.redirect_stdout(printed):
                explain(str(file), as_json=False)
        except Failure as failure:
            return str(failure)
        return " ".join(printed.getvalue().split())


def score(case: ErrorText) -> tuple[str, str]:
    """Score and reason. Wrong: another kind or cause, a wrong number, or words that are false here."""
    message = parse(case.text)
    output = output_of(case.text)
    cause = diagnose(facts_of_message(message)).kind.value if message.is_known else ""
    said = f"{message.kind}, {cause or 'no cause'}, certain {message.certain}, {message.asked_bytes} on {message.device}: {output}"
    if false := [words for words in case.never if words in output]:
        return "wrong", f"says {false}; {said}"
    if message.kind not in case.kind.split("|"):
        return ("silent" if message.kind == "unknown" else "wrong"), said
    if cause and cause not in case.cause.split("|"):
        return "wrong", said
    numbers = ((case.asked, message.asked_bytes, message.rounding_bytes.get("asked_bytes", 0) + 1),
               (case.device, message.device, 0))  # fmt: skip
    for right, read, error in numbers:
        if right is not None and read is not None and abs(read - right) > error:
            return "wrong", said
        if right is not None and read is None:
            return "partly", said
    missing = [words for words in case.says if words not in output]
    if cause not in case.cause.split("|") or message.certain is not case.certain or missing:
        return "partly", f"lacks {missing}; {said}"
    return "right", ""


def table(texts: Iterable[ErrorText]) -> str:
    """One row for each half."""
    lines = [f"| half | {' | '.join(SCORES)} |", f"|---|{'---|' * len(SCORES)}"]
    texts = list(texts)
    for half, unseen in (("used for fixes", False), ("unseen", True)):
        counts = Counter(score(text)[0] for text in texts if is_unseen(text) is unseen)
        lines.append(f"| {half} | {' | '.join(str(counts[name]) for name in SCORES)} |")
    return "\n".join(lines)


def main() -> None:
    """Print the scores."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reasons", action="store_true", help="print the reasons in the half that is used for fixes")
    options = parser.parse_args()
    for written, texts in WRITTEN.items():
        if options.reasons:
            for text in texts:
                if not is_unseen(text) and (why := score(text))[0] != "right":
                    print(f"\n{why[0]} {text.name}: {why[1]}")
        print(f"{written}:\n{table(texts)}\n")


if __name__ == "__main__":
    main()
