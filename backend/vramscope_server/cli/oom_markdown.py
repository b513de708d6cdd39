"""``vramscope oom RUN --markdown``: an out-of-memory error as text for an issue or a chat.

It has no name of a host, pod or user, no arguments of a command line and no configuration, and of a path the last three parts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from vramscope.protocol.gpu_backend import software
from vramscope.protocol.other_process import name_words
from vramscope_server.analysis.number_format import amount, count
from vramscope_server.analysis.oom.saving import saving_words
from vramscope_server.answers.oom import OomExplained
from vramscope_server.answers.other_processes import OtherProcessAtError
from vramscope_server.cli.format import plain

ENOUGH: Final = {True: "yes", False: "no", None: "may be"}
MOST_ROWS: Final = 8
MOST_FRAMES: Final = 5
MOST_PARTS: Final = 3
"""Parts of a path that are shown: the file and the folders around it."""
_INTERPRETER: Final = re.compile(r"python[\d.]*|torchrun|deepspeed")
_SCRIPT: Final = re.compile(r"\.(?:py|sh)$")
_PATH: Final = re.compile(r"(?<![\w.~-])(?:[A-Za-z]:)?(?:[/\\][^/\\\s:|`\"'<>]+){3,}")


def markdown(error: OomExplained, torch: str | None, hip: str | None = None) -> str:
    """The error as Markdown. ``torch``, ``hip``: versions of PyTorch and of HIP, if known."""
    return "\n".join(_lines(error, torch, hip)) + "\n"


def shortened(path: str) -> str:
    """The last three parts of a path: the first ones name machines and people."""
    parts = re.split(r"[/\\]", path)
    return path if len(parts) <= MOST_PARTS else "…/" + "/".join(parts[-MOST_PARTS:])


def without_folders(text: str) -> str:
    """Text in which of each long path only the last part is left."""
    return _PATH.sub(lambda found: "…/" + re.split(r"[/\\]", found[0])[-1], text)


def _lines(error: OomExplained, torch: str | None, hip: str | None) -> Iterator[str]:
    survived = {True: "survived", False: "ended the run", None: "unknown whether the run went on"}[error["survived"]]
    yield f"### {software(torch, hip)} out of memory, {survived}"
    yield ""
    yield _text(error["sentence"])
    yield ""
    culprit = error["culprit"]
    facts = [
        ("cause", error["cause"] or "unknown"),
        ("line", "unknown" if culprit["file"] is None else f"`{_code(culprit['file'])}:{culprit['line']}`"),
        ("module", None if not culprit["module"] else f"`{_code(culprit['module'])}`"),
        ("step", None if error["step"] is None else f"{count(error['step'] + 1)}, {error['phase'] or 'phase unknown'}"),
        ("requested", amount(error["asked_bytes"], "unknown")),
        ("missing", amount(error["shortfall_bytes"], "unknown")),
        ("PyTorch", torch),
        ("allocator settings", f"`{_code(error['settings'])}`" if error["settings"] else None),
        ("techniques", ", ".join(map(_text, error["techniques"])) or None),
    ]
    yield from _table(("", ""), [(name, value) for name, value in facts if value is not None])
    if error["by_category"]:
        yield "**Memory of the device at the error**"
        yield ""
        yield from _table(("", "size"), [(_text(part["name"]), amount(part["bytes"])) for part in error["by_category"]])
    if error["by_site"]:
        yield "**Largest lines**"
        yield ""
        sites = [site for site in error["by_site"] if site["file"]][:MOST_ROWS]
        rows = [(f"`{_code(site['file'] or '')}:{site['line']}`", amount(site["bytes"])) for site in sites]
        yield from _table(("line", "size"), rows)
    if error["neighbours"]:
        yield "**Other processes on the device**"
        yield ""
        others = [
            (_text(_process(row)), amount(row["used_bytes"], "unknown"), _before(row)) for row in error["neighbours"]
        ]
        yield from _table(("process", "size", "before"), others[:MOST_ROWS])
    if error["leaks"]:
        yield "**Retained from earlier steps**"
        yield ""
        named = [(f"`{_code(leak['name'])}`", amount(leak["held_bytes"])) for leak in error["leaks"][:MOST_ROWS]]
        yield from _table(("variable", "size"), named)
    if error["remedies"]:
        yield "**Remedies**"
        yield ""
        remedies = [
            (_text(row["what"]), saving_words(row, error), ENOUGH[row["enough"]], _text(row["cost"]))
            for row in error["remedies"][:MOST_ROWS]
        ]
        yield from _table(("change", "saves", "enough", "cost"), remedies)
    own = [frame for frame in error["stack"] if frame["own"]][:MOST_FRAMES]
    if own:
        yield "```"
        yield from (f"{shortened(plain(frame['file']))}:{frame['line']} in {plain(frame['function'])}" for frame in own)
        yield "```"
        yield ""
    yield "Explained by vramscope."


def _process(row: OtherProcessAtError) -> str:
    """A process by program and job. Arguments, users and the names of pods and containers are left out."""
    return name_words(row["pid"], _program(row["command"] or ""), None, None, row["manager"], row["job"], None)


def _program(command: str) -> str | None:
    """An interpreter and its script, ``python train.py``, or a program's name. None where a folder has a blank in its name:
    then the first word may be a part of it."""
    first, *rest = command.split() or [""]
    name = _last(first)
    if _INTERPRETER.fullmatch(name):
        script = _last(rest[0]) if rest else ""
        return f"{name} {script}" if _SCRIPT.search(script) else name
    return (name or None) if first == name or not rest else None


def _last(path: str) -> str:
    return re.split(r"[/\\]", path)[-1]


def _before(row: OtherProcessAtError) -> str:
    if row["before_bytes"] is None or row["before_seconds"] is None:
        return "unknown"
    return f"{amount(row['before_bytes'])}, {count(row['before_seconds'])} s earlier"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    yield from (f"| {' | '.join(row)} |" for row in rows)
    yield ""


def _text(text: str) -> str:
    """Text of the run within Markdown: one line, in which nothing is markup."""
    line = without_folders(" ".join(plain(text).split()))
    return re.sub(r"([\\`*_{}\[\]<>#|~@])", r"\\\1", line)


def _code(text: str) -> str:
    """The same within backticks, where only these and bars matter."""
    return shortened(" ".join(plain(text).split())).replace("`", "'").replace("|", "\\|")
