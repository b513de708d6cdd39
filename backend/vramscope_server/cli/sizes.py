"""Sizes as people write them: ``20GiB``, ``8 GiB``, ``21474836480``."""

from __future__ import annotations

import re
from typing import Final

_SIZE: Final = re.compile(r"\s*\d*\.?\d+\s*[A-Za-z]*\s*")


def size_in_bytes(words: str) -> int:
    """Read a size. Raises ValueError."""
    from pydantic import ByteSize, TypeAdapter  # its ValidationError is a ValueError

    if not _SIZE.fullmatch(words):  # pydantic parses a prefix: 20,5GiB would be 20 bytes
        raise ValueError(words)
    return int(TypeAdapter(ByteSize).validate_python(words))
