"""Shapes of the JSON answers, one module a noun.

An answer is a ``TypedDict``: a plain dictionary at run time, checked by mypy where it is built. The docstring below each field
is its description in ``openapi.json`` and in docs/http.md. The end of a name is its unit: ``_bytes``, ``_seconds``, ``_ns``,
``_fraction``, ``_ratio``. ``None`` is unknown.
"""
