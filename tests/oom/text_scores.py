"""Scores of the answers to pasted texts: ``python tests/oom/text_scores.py`` prints both halves, ``--half odd`` with reasons.

Faults were mended against the odd half. Of the even half (``held_out``) only the score was read until the scores of
``fourth_error_texts`` were published; since then all texts are tested.
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
from fourth_error_texts import FOURTH_TEXTS
from later_error_texts import LATER_TEXTS
from third_error_texts import THIRD_TEXTS

from vramscope.oom_diagnosis.diagnosis import diagnose
from vramscope.oom_diagnosis.evidence import facts_of_message
from vramscope.oom_diagnosis.parse_message import parse
from vramscope_server.cli.client import Failure
from vramscope_server.cli.oom import explain

SCORES: Final = ("right", "partly", "silent", "wrong")
"""Best first."""
WRITTEN: Final = {
    "later_error_texts.py": LATER_TEXTS,
    "third_error_texts.py": THIRD_TEXTS,
    "fourth_error_texts.py": FOURTH_TEXTS,
}


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
    for half, held_out in (("used for fixes", False), ("unseen", True)):
        counts = Counter(score(text)[0] for text in texts if text.held_out is held_out)
        lines.append(f"| {half} | {' | '.join(str(counts[name]) for name in SCORES)} |")
    return "\n".join(lines)


def main() -> None:
    """Print the scores."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--half", choices=("odd",), help="print the reasons in the half that is used for fixes")
    options = parser.parse_args()
    for written, texts in WRITTEN.items():
        if options.half:
            for text in texts:
                if not text.held_out and (why := score(text))[0] != "right":
                    print(f"\n{why[0]} {text.name}: {why[1]}")
        print(f"{written}:\n{table(texts)}\n")


if __name__ == "__main__":
    main()
