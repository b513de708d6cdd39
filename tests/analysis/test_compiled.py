"""Where compiled code cannot be kept on disk, it is compiled all the same."""

from __future__ import annotations

import pytest

from vramscope_server.analysis import compiled


def test_without_a_folder_to_keep_it_the_code_is_compiled_in_each_process(monkeypatch: pytest.MonkeyPatch) -> None:
    real = compiled.njit

    def no_place(*arguments: object, cache: bool = False, **options: object) -> object:
        if cache:
            raise RuntimeError("cannot cache function 'f': no locator available for file 'f.py'")
        return real(*arguments, **options)

    monkeypatch.setattr(compiled, "njit", no_place)

    @compiled.entry
    def twice(number: int) -> int:
        return 2 * number

    assert twice(21) == 42
    assert twice.signatures, "it was compiled"
