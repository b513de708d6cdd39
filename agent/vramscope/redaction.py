"""Takes secrets out of what is sent: command lines and configurations. The environment itself is never sent."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from vramscope import wire

HIDDEN: Final = "***"

# tokens, token_id, tokenizer: settings of a model, not secrets
_SECRET_NAME = re.compile(
    r"(token(?!s|_id|_type|iz)|secret|passw(or)?d|passphrase|api_?key|access_?key|private_?key|credential|auth(orization)?$|bearer|cookie)",
    re.IGNORECASE,
)
# How well-known secrets look, for those that stand where no name gives them away.
_SECRET_VALUE = re.compile(
    r"\b(hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}"
    r"|xox[abprs]-[\w-]{10,}|AKIA[0-9A-Z]{16}|AIza[\w-]{30,}|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*|vrs_[\w-]{16,}"
    r"|[0-9a-f]{40})\b"
)
MOST_ARGUMENTS: Final = 256
MOST_CHARACTERS: Final = 1000


def is_secret(name: str) -> bool:
    """Whether a setting of this name is likely to hold a secret."""
    last = re.split(r"[./]", name.replace("-", "_"))[-1]
    return bool(_SECRET_NAME.search(last))


def without_secrets(text: str) -> str:
    """The text with well-known secrets and the passwords in addresses hidden."""
    text = _SECRET_VALUE.sub(HIDDEN, text)
    if "://" in text and "@" in text:
        text = re.sub(r"(\w+://)[^/@\s]*@", rf"\1{HIDDEN}@", text)
    if "?" in text and "://" in text and urlsplit(text).query:
        text = re.sub(
            r"([?&])([^=&\s]+)=([^&\s#]*)",
            lambda m: f"{m[1]}{m[2]}={HIDDEN}" if is_secret(m[2]) else m[0],
            text,
        )
    return text[:MOST_CHARACTERS]


def command_line(arguments: Sequence[str]) -> list[str]:
    """The arguments with each secret's value hidden: ``--hf-token X``, ``--api_key=X``, ``password=X``, and by look."""
    shown: list[str] = []
    hide_next = False
    for argument in arguments[:MOST_ARGUMENTS]:
        name, equals, _ = argument.partition("=")
        if hide_next and not argument.startswith("--"):
            shown.append(HIDDEN)
            hide_next = False
            continue
        hide_next = False
        if equals and is_secret(name.lstrip("-+")):
            shown.append(f"{name}={HIDDEN}")
        else:
            hide_next = argument.startswith("-") and not equals and is_secret(name.lstrip("-"))
            shown.append(without_secrets(argument))
    return shown


def configuration(given: Mapping[str, Any] | None, prefix: str = "") -> dict[str, wire.Scalar]:
    """The user's settings flattened to dotted names; secrets hidden, what is no scalar as its text."""
    flat: dict[str, wire.Scalar] = {}
    for key, value in (given or {}).items():
        name = f"{prefix}{key}"[:200] or "unnamed"
        if len(flat) >= 1024:
            break
        if is_secret(name) and value not in (None, "", False, True):
            flat[name] = HIDDEN
        elif isinstance(value, Mapping):
            for inner, scalar in configuration(value, f"{name}.").items():
                if len(flat) < 1024:
                    flat[inner] = scalar
        elif isinstance(value, float):
            flat[name] = value if value == value and abs(value) != float("inf") else str(value)
        elif value is None or isinstance(value, bool):
            flat[name] = value
        elif isinstance(value, int):
            flat[name] = value if abs(value) < 1 << 62 else str(value)
        else:
            flat[name] = without_secrets(str(value))
    return flat
