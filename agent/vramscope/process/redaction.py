"""Removes secrets from what is sent: command lines, configurations, error texts. The environment itself is never sent.

A secret is recognised by its name (``secret_names``), by its form (``hf_...``, ``Bearer ...``), or as the value of an
environment variable, an option or a setting with a secret's name. Such a value is hidden wherever it occurs.

"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from vramscope.process.secret_names import Secrecy, secrecy
from vramscope.protocol import messages

HIDDEN: Final = "***"
MIN_CHARACTERS: Final = 8
"""Minimum length of a value to be searched for in other texts. A shorter one occurs in other words by chance."""
MAX_ARGUMENTS: Final = 256
MAX_SETTINGS: Final = 1024
MAX_CHARACTERS: Final = 1000
MAX_ITEMS: Final = 500
"""Maximum number of items read of a list: more would not be shown anyway."""
MAX_VISITED: Final = 20_000
"""Maximum number of items read of one configuration, all lists and maps together. Ends self-references."""
MAX_DEPTH: Final = 8
MAX_CHARACTERS_READ: Final = 1 << 16
"""Maximum number of characters read of one text."""
MAX_KNOWN: Final = 1000

_SHAPES: Final = re.compile(
    r"\b(?:hf_\w{16,}|sk-[\w-]{16,}|[sr]k_(?:live|test)_\w{10,}|gh[pousr]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}"
    r"|xox[abeoprs]-[\w-]{10,}|hooks\.slack\.com/\S+|(?:AKIA|ASIA)[0-9A-Z]{16}|AIza[\w-]{30,}|ya29\.[\w-]{20,}"
    r"|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*|vrs_[\w-]{16,}|wandb_v1_\w{16,}|nvapi-[\w-]{20,}|npm_\w{30,}|pypi-[\w-]{30,}"
    r"|dckr_pat_[\w-]{16,}|r8_\w{30,}|gsk_\w{30,}|dapi[0-9a-f]{32})"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*-----|$)"
)
_SCHEME: Final = re.compile(r"\b((?:Bearer|Basic)\s+)(?=[^\s\"']*[^\sa-z\"'])[\w.~+/=-]{8,}", re.IGNORECASE)
_USER_IN_ADDRESS: Final = re.compile(r"([A-Za-z][\w+.-]{0,30}://)[^/\s\"']*@")
_SIGNED: Final = re.compile(r"([?&][\w-]{0,30}sig(?:nature)?=)[^&\s\"']+", re.IGNORECASE)
_PASSWORD_IN_ADDRESS: Final = re.compile(r"://[^/\s:@]*:([^/\s]+)@")
# wandb's keys, and commits: a commit has a word before it that says so, or is part of a path
_FORTY_HEX: Final = re.compile(r"(?<![\w/@])[0-9a-f]{40}(?![\w/])")
_COMMIT_BEFORE: Final = re.compile(
    r"(commit|revision|rev|sha1?|hash|ref|checksum|version|head|etag|blob)\W{0,6}$", re.IGNORECASE
)

_NAMED: Final = re.compile(
    # an option; or a name, quoted or not, and the separator before its value
    r"(?<![\w.-])--?(?P<option>[A-Za-z][\w.-]{0,80})(?:\s{0,20}[=:]\s{0,20}|\s{1,20}|\\*[\"']\s{0,20},\s{0,20})"
    r"|(?<![\w.-])(?P<name>[A-Za-z_][\w.-]{0,80})(?:\\*[\"'])?\]?\s{0,20}(?:=>|:=|[=:])\s{0,20}"
)
_BEFORE_VALUE: Final = re.compile(r"(?:[|>][-+]?\s+)?(?:(?:Bearer|Basic|Token|Digest|ApiKey)\s+)?", re.IGNORECASE)
_QUOTE: Final = re.compile(r"(?:[A-Za-z_]\w{0,30}\()?[rbu]{0,2}(\\*[\"'])", re.IGNORECASE)
# a delimiter is part of a bare value if a letter follows at once
_BARE: Final = re.compile(r"(?:[^\s,;&\"'\])}]|[,;&\"'\])}](?=[^\s,;&\"'\])}]))*")
_PROSE: Final = frozenset(
    ("is", "was", "are", "must", "has", "not", "or", "and", "to", "in", "for", "expected", "required")
)

_PLAIN: Final = frozenset(
    ("", "true", "false", "none", "null", "yes", "no", "on", "off", "0", "1", "enabled", "disabled", HIDDEN)
)
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,9}(\.[0-9]*)?(e[+-]?[0-9]+)?", re.IGNORECASE)
_OF_A_TOKENIZER: Final = re.compile(r"<[^<>\s]{1,40}>|\[/?[A-Z_]{1,20}[0-9]*\]")
_OPTION: Final = re.compile(r"[-+~]*(?P<name>[A-Za-z_][\w./-]*)")
_USERS: Final = ("-u", "-U", "--user", "--username")


class Secrets:
    """The secrets of this process, as far as they are known. Used at attach and after errors, never in a step."""

    def __init__(self, environ: Mapping[str, str] | None = None, known: Iterable[str | None] = ()) -> None:
        """Collect the secrets of the environment. ``environ`` is read again each time; ``known``: texts that are secrets (a
        token)."""
        self._environ = os.environ if environ is None else environ
        self._known: set[str] = set()
        for text in known:
            self._learn(text or "")
        self._learn_environment()

    # -- texts to be sent------------------------------------------------------------------------------------------------

    def hide(self, text: str) -> str:
        """Return the text without known secrets, without texts that look like one, and without values after a secret's
        name."""
        self._learn_environment()
        return self._without_secrets(text)

    def command_line(self, arguments: Sequence[str]) -> list[str]:
        """Return the arguments with each secret's value hidden: ``--hf-token X``, ``--api_key=X``, ``wandb.key=X``, ``-u me
        -p X``."""
        shown: list[str] = []
        arguments = arguments[:MAX_ARGUMENTS]
        has_user = any(argument.partition("=")[0] in _USERS for argument in arguments)
        hides: Secrecy | None = None
        hides_many = False
        for argument in arguments:
            is_option = argument.startswith("--") or (len(argument) == 2 and argument[0] == "-")
            if hides is not None and not is_option:
                shown.append(self._hidden(argument, hides))
                hides = hides if hides_many else None
                continue
            name, equals, value = argument.partition("=")
            word = _OPTION.fullmatch(name)
            known = None if word is None else secrecy(word["name"])
            if equals:
                shown.append(argument if known is None else f"{name}={self._hidden(value, known)}")
                hides = None
                continue
            shown.append(argument)
            # A word without dashes can be a name in a pair: WANDB.KEY X
            hides = known if argument[:1] == "-" or known == "certain" or re.search(r"[._]", name) else None
            hides = "likely" if has_user and argument == "-p" else hides
            hides_many = name.endswith("s")
        # Only now: a secret found in one argument may occur in an earlier one.
        self._learn_environment()
        return [
            self._without_secrets(text, before)[:MAX_CHARACTERS]
            for before, text in zip(["", *shown], shown, strict=False)
        ]

    def configuration(self, values: Mapping[str, Any] | None) -> dict[str, messages.Scalar]:
        """Flatten the user's settings to dotted names. Secrets are hidden; values that are not scalars become text."""
        flat: dict[str, messages.Scalar] = {}
        self._learn_environment()
        visits = iter(range(MAX_VISITED))
        for name, value in self._flattened(values or {}, "", None, 0, visits):
            if len(flat) >= MAX_SETTINGS:
                break
            flat[self._without_values(name)[:200] or "unnamed"] = value
        return {
            name: self._without_secrets(value[:MAX_CHARACTERS_READ], name)[:MAX_CHARACTERS]
            if isinstance(value, str)
            else value
            for name, value in flat.items()
        }

    # -- values with a name ---------------------------------------------------------------------------------------------

    def _flattened(
        self, values: Mapping[Any, Any], prefix: str, above: Secrecy | None, depth: int, visits: Iterator[int]
    ) -> Iterator[tuple[str, messages.Scalar]]:
        named = _secrecy_of_pair(values)
        for (key, value), _ in zip(values.items(), visits, strict=False):
            name = f"{prefix}{key}"
            known = above or secrecy(name) or (named if str(key) == "value" else None)
            if isinstance(value, Mapping) and known != "certain" and depth < MAX_DEPTH:
                yield from self._flattened(value, f"{name}.", known, depth + 1, visits)
            else:
                yield name, _scalar(self._shown(value, known, depth, visits))

    def _shown(self, value: Any, known: Secrecy | None, depth: int, visits: Iterator[int]) -> Any:
        """Return the value or its replacement, in nested lists and maps too."""
        is_map = isinstance(value, Mapping)
        if known != "certain" and (is_map or _is_list(value)):
            if depth >= MAX_DEPTH:
                return "..."
            items = value.items() if is_map else value
            inner = [item for item, _, _ in zip(items, range(MAX_ITEMS), visits, strict=False)]
            if is_map:
                named = _secrecy_of_pair(value)
                return {
                    key: self._shown(
                        item, known or secrecy(str(key)) or (named if key == "value" else None), depth + 1, visits
                    )
                    for key, item in inner
                }
            of_pair = secrecy(inner[0]) if len(inner) == 2 and isinstance(inner[0], str) else None  # (name, value)
            shown = [
                self._shown(item, known or (of_pair if at else None), depth + 1, visits)
                for at, item in enumerate(inner)
            ]
            return tuple(shown) if isinstance(value, tuple) else shown
        if known is None or value is None or isinstance(value, bool):
            return value
        if isinstance(value, int | float) and known == "likely":
            return value
        return self._hidden(str(value), known)

    def _hidden(self, value: str, known: Secrecy) -> str:
        """Return :data:`HIDDEN`, or the value itself if it cannot be a secret (a number, ``true``)."""
        if _is_plain(value, known):
            return value
        looks_random = re.search(r"[0-9]", value) and re.search(r"[A-Za-z]", value)
        if known == "certain" or looks_random:
            self._learn(value)
        return HIDDEN

    # -- text ----------------------------------------------------------------------------------------------------------

    def _without_secrets(self, text: str, before: str = "") -> str:
        """Hide all secrets. ``behind``: the text before it, a setting's name or an option."""
        return self._without_named(self._without_values(text, before))

    def _without_values(self, text: str, before: str = "") -> str:
        """Hide known secrets and texts that look like one."""
        for secret in sorted(self._known, key=len, reverse=True):
            if secret in text:
                text = text.replace(secret, HIDDEN)
        text = _SHAPES.sub(HIDDEN, text)
        text = _SCHEME.sub(rf"\1{HIDDEN}", text)
        if "://" in text:
            text = _SIGNED.sub(rf"\1{HIDDEN}", _USER_IN_ADDRESS.sub(rf"\1{HIDDEN}@", text))

        def commit_or_hidden(found: re.Match[str]) -> str:
            context = before[-20:] + found.string[max(0, found.start() - 20) : found.start()]
            return found[0] if _COMMIT_BEFORE.search(context) else HIDDEN

        return self._without_cut_off(_FORTY_HEX.sub(commit_or_hidden, text))

    def _without_cut_off(self, text: str) -> str:
        """Hide part of a secret at the end of a text that was cut to a length."""
        if text.endswith("…"):
            for secret in list(self._known):
                for characters in range(min(len(secret) - 1, len(text) - 1), MIN_CHARACTERS - 1, -1):
                    if text.endswith(secret[:characters], 0, -1):
                        return f"{text[: -characters - 1]}{HIDDEN}…"
        return text

    def _without_named(self, text: str) -> str:
        """Hide values after the name of a secret: in JSON, YAML, a repr, an option, an address, a sentence."""
        parts, at = [], 0
        found = _NAMED.search(text)
        while found is not None:
            name = found["option"] or found["name"]
            known = secrecy(name)
            if known is None:
                found = _NAMED.search(text, found.end())
                continue
            start, end = _value_at(text, found.end())
            value = text[start:end]
            if _is_plain(value, known) or value in _PROSE:
                end = start
            else:
                parts += [text[at:start], HIDDEN]
                at = end
            found = _NAMED.search(text, max(end, found.end()))
        return "".join([*parts, text[at:]])

    # -- known secrets -------------------------------------------------------------------------------------------------

    def _learn_environment(self) -> None:
        for name, value in list(self._environ.items()):
            known = None if name in ("PWD", "OLDPWD") else secrecy(name)
            if known is not None and not _is_plain(value, known):
                self._learn(value)
            if "://" in value and "@" in value:
                for password in _PASSWORD_IN_ADDRESS.findall(value):
                    self._learn(password)

    def _learn(self, secret: str) -> None:
        for text in (secret, secret.strip()):
            if len(text) >= MIN_CHARACTERS and text not in self._known and len(self._known) < MAX_KNOWN:
                # also as it is written in an address, in JSON, in a repr; its bytes may be no UTF-8
                self._known |= {
                    text,
                    quote(text, safe="", errors="surrogatepass"),
                    json.dumps(text)[1:-1],
                    repr(text)[1:-1],
                }


def _secrecy_of_pair(values: Mapping[Any, Any]) -> Secrecy | None:
    """Return the secrecy of ``{"name": "HF_TOKEN", "value": ...}``, the form of variables in job files."""
    name = values.get("name") if "value" in values else None
    return secrecy(name) if isinstance(name, str) else None


def _is_list(value: object) -> bool:
    if isinstance(value, str | bytes | bytearray | range) or hasattr(value, "_fields"):
        return False
    return isinstance(value, Sequence)


def _scalar(value: Any) -> messages.Scalar:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else str(value)
    if isinstance(value, int):
        return value if abs(value) < 1 << 62 else str(value)
    return str(value)


def _is_plain(value: str, known: Secrecy) -> bool:
    text = value.strip()
    if text.lower() in _PLAIN:
        return True
    return known == "likely" and (_NUMBER.fullmatch(text) or _OF_A_TOKENIZER.fullmatch(text)) is not None


def _value_at(text: str, at: int) -> tuple[int, int]:
    """Return the start and end of the value that begins there, without its quotes."""
    before = _BEFORE_VALUE.match(text, at)
    start = at if before is None else before.end()
    quoted = _QUOTE.match(text, start)
    if quoted is not None:
        mark, start = quoted[1], quoted.end()
        end = text.find(mark, start)
        while end > 0 and text[end - 1] == "\\":  # an escaped one is part of the value
            end = text.find(mark, end + len(mark))
        return start, len(text) if end < 0 else end
    if text[start : start + 1] in ("[", "{", "("):
        return start, _closing(text, start)
    bare = _BARE.match(text, start)
    return start, start if bare is None else bare.end()


def _closing(text: str, at: int) -> int:
    """Return the position after the matching bracket, or the text's end."""
    depth = 0
    for found in re.compile(r"[\[({]|[\])}]").finditer(text, at):
        depth += 1 if found[0] in "[({" else -1
        if depth == 0:
            return found.end()
    return len(text)
