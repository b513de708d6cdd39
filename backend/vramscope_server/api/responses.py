"""Encodes answers as JSON."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from fastapi import Response


def _other(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not JSON")


encode = msgspec.json.Encoder(enc_hook=_other).encode


def answer(value: Any, status: int = 200) -> Response:
    """A JSON answer that no cache keeps; NaN becomes null."""
    return Response(encode(value), status, headers={"Cache-Control": "no-store"}, media_type="application/json")
