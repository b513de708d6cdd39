"""The parts with which a dry run changes a program from outside."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from vramscope.dry_run.changes.after_import import after_import
from vramscope.dry_run.changes.change import Call
from vramscope.dry_run.changes.checkpointing import repeated_blocks


def test_each_patch_of_a_module_runs_once_after_its_import(tmp_path, monkeypatch):
    (tmp_path / "framework_of_a_test.py").write_text("value = 1")
    monkeypatch.syspath_prepend(tmp_path)
    seen = []
    for number in range(2):
        after_import("framework_of_a_test", lambda module, number=number: seen.append((number, module.value)))
    assert not seen
    import framework_of_a_test  # type: ignore[import-not-found]

    assert sorted(seen) == [(0, 1), (1, 1)]
    after_import("framework_of_a_test", lambda module: seen.append((2, module.value)))
    assert seen[-1] == (2, 1)
    assert not hasattr(vars(framework_of_a_test.__spec__.loader), "exec_module")
    monkeypatch.delitem(sys.modules, "framework_of_a_test")


def test_an_argument_is_changed_however_it_was_given():
    def function(first: int, second: int = 2, *, third: int = 3) -> SimpleNamespace:
        return SimpleNamespace(first=first, second=second, third=third)

    for args, kwargs in (((1, 5), {}), ((1,), {"second": 5}), ((1,), {})):
        call = Call.of(function, args, kwargs)
        assert (call["second"], call["third"]) == (5 if "second" in kwargs or len(args) == 2 else 2, 3)
        call["second"] = 7
        assert call.to(function) == SimpleNamespace(first=1, second=7, third=3)


def test_blocks_are_the_outermost_modules_of_a_class_that_repeats():
    torch = pytest.importorskip("torch")
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList(nn.TransformerEncoderLayer(8, 2) for _ in range(2))

    model = nn.Module()
    model.stem = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    model.blocks = nn.ModuleList(Block() for _ in range(3))
    model.last = nn.Sequential(Block())
    assert list(repeated_blocks(model)) == ["blocks.0", "blocks.1", "blocks.2", "last.0"]
    assert repeated_blocks(model.stem) == {}
