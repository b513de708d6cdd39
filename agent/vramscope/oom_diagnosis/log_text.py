"""Plain text of a log: without colours and unusual blanks, and with its broken lines joined again."""

from __future__ import annotations

import re
from typing import Final

_COLOURS: Final = re.compile(
    r"(?:\x1b|\\{1,4}u001[bB]|\\{1,4}x1[bB]|\\{1,4}033|#033|\^\[)\[[0-9;?]{0,20}[A-Za-z]|\[[0-9;]{1,20}m"
    r"|\x1b\][^\x07\x1b\n]{0,200}(?:\x07|\x1b\\)"
)
"""Escape sequences of terminals. JSON, Python and syslog write the escape character in other ways; some viewers drop it."""
_BLANKS: Final = {
    **dict.fromkeys((0xA0, 0x2007, 0x2009, 0x202F, 0x3000), " "),
    **dict.fromkeys((0x200B, 0x200C, 0x200D, 0x2060, 0xFEFF, 0x00), None),
    0x0D: "\n",
    0xFF1A: ":",
    0xFF0C: ",",
}
_TAGS: Final = re.compile(
    r"</?(?:a|b|br|code|div|em|font|i|li|mark|p|pre|samp|span|strong|td|tr|u|wbr)\b(?:[ /][^<>\n]{0,300})?>",
    re.IGNORECASE,
)
"""Tags of a web page or of a notebook that was exported, also between a number and its unit."""
_BOX: Final = re.compile(r"^[│┃║][ ]?|[ ]{0,400}[│┃║]$", re.MULTILINE)
"""Sides of a box that is drawn around a message."""
MOST_LINES: Final = 200
"""Lines of one error that are joined."""
_NEXT_LINES: Final = 4
"""Lines that show the width of a terminal where the first line lost the blank at its end."""
LEAST_WIDTH: Final = 40
"""Width of the narrowest terminal."""
MOST_LINE_CHARACTERS: Final = 2000
"""Characters of a line of source code."""
_SOURCE_CHARACTERS: Final = 300
"""Characters of a line before a position in which source code is recognised."""
_CLASS: Final = re.compile(r"[\w.]*(?:Error|Exception)(?: \d+)?:\s*$")
"""Name of an exception at the end of what stands before its message."""

_CODE: Final = re.compile(
    r"\braise [\w.]{1,80}\(|\bassert \(|\bpytest\.raises\(|\bassertRaises\w{0,10}\(|\bre\.(?:search|match|findall|compile)\("
    r"|\.side_effect ?= ?"
)
"""Beginning of a statement that names an error and does not report one."""
_ASSERTED: Final = re.compile(r"\bassert ([\"'])")
"""An assertion that begins with a string. What follows the string may be a real error on the same line of a log."""
_FRAME: Final = re.compile(r'([^"\n]{0,200})File "[^"\n]{1,1000}", line \d')


def plain(text: str, *, keeps_tags: bool = False) -> str:
    """The text without colours and tags, with ordinary blanks and line ends. Costs 10 ms for a megabyte."""
    if "\x1b" in text or "[0m" in text or "[0;" in text:
        text = _COLOURS.sub("", text)
    if "</" in text and not keeps_tags:
        text = _TAGS.sub("", text).replace("&nbsp;", " ")
    if not text.isascii() or "\r" in text or "\x00" in text:
        text = _BOX.sub("", text.replace("\r\n", "\n").translate(_BLANKS))
    return text


def without_prefixes(before: str, text: str) -> str:
    """The lines of an error without what a logger puts before each of them.

    before   beginning of the first line, up to the error
    text     from the error on
    """
    mark = _CLASS.sub("", before)
    if not mark.strip():
        return text
    # Times and process ids differ from line to line.
    prefix = re.compile(re.sub(r"\d+", r"\\d{1,20}", re.escape(mark).replace("\\ ", " ")).rstrip() + r"\s?")
    lines = text.split("\n", MOST_LINES)
    for at, line in enumerate(lines[1:MOST_LINES], 1):
        found = prefix.match(line)
        if found is None:
            break
        lines[at] = line[found.end() :]
    return "\n".join(lines)


def exception_name(before: str) -> str:
    """The end of the beginning of a line: the name of the exception, without what a logger puts before it."""
    return before[len(_CLASS.sub("", before)) :]


def joined(before: str, text: str) -> str:
    """The lines of an error joined where a terminal broke them at its width, in the middle of a word or at a blank.

    before   beginning of the first line, up to the error
    """
    lines = text.split("\n", MOST_LINES)
    width = first = len(before) + len(lines[0])
    if width < LEAST_WIDTH or len(lines) == 1:
        return text
    width += any(len(line) == width + 1 for line in lines[1:_NEXT_LINES])  # the blank at its end may be lost
    whole = lines[0]
    for at, line in enumerate(lines[1:MOST_LINES], 1):
        broken = len(lines[at - 1]) if at > 1 else first
        if broken not in (width, width - 1) or not line.strip():
            return "\n".join([whole, *lines[at:]])
        whole += line if broken == width else f" {line}"  # the blank at the end of a line is often lost
    return "\n".join([whole, *lines[MOST_LINES:]])


def all_joined(text: str) -> str:
    """A short text with each line joined to the next one that has the width of the widest."""
    lines = text.split("\n")
    width = max(map(len, lines))
    if width < LEAST_WIDTH or sum(len(line) == width for line in lines) < 2:
        return text
    return "".join(line if len(line) == width else f"{line}\n" for line in lines)


def in_source_line(text: str, at: int) -> bool:
    """Whether a position is in a line of source code, as tracebacks and test reports show it."""
    newline = text.rfind("\n", max(0, at - MOST_LINE_CHARACTERS), at)
    line = text[max(newline + 1, at - MOST_LINE_CHARACTERS) : at]
    last = line[-_SOURCE_CHARACTERS:].rpartition("\\n")[2]  # JSON has a traceback on one line
    if any(last.count(")", code.end()) <= last.count("(", code.end()) for code in _CODE.finditer(last)):
        return True
    if any(last.count(found[1], found.start(1)) % 2 for found in _ASSERTED.finditer(last)):
        return True
    if newline < 0:
        return False
    frame = _FRAME.match(text[text.rfind("\n", max(0, newline - MOST_LINE_CHARACTERS), newline) + 1 : newline])
    return frame is not None and line.startswith(f"{frame.group(1)}  ")
