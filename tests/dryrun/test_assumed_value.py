"""Values that ``--assume`` gives to reads of the device."""

from __future__ import annotations

import runpy
import struct
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from vramscope.dry_run import number_types
from vramscope.dry_run.read_log import ReadLog
from vramscope.dry_run.read_place import ReadPlace
from vramscope.protocol.assumed_value import AssumedValue, parse


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("train.py:12=true", True),
        ("src/train.py:3=false", False),
        ("train.py:12=128", 128),
        ("train.py:12=-1", -1),
        ("train.py:12=0.5", 0.5),
        ("train.py:12=1e-3", 0.001),
    ],
)
def test_the_form_is_parsed(text, value):
    found = parse(text)
    assert (found.value, type(found.value)) == (value, type(value))
    assert text.startswith(str(found))


@pytest.mark.parametrize(
    "text", ["train.py=true", "train.py:0=1", "train.py:12=yes", "12=1", "train.py:12=", "a b:1=1"]
)
def test_other_forms_are_refused(text):
    with pytest.raises(ValueError, match="is not of the form"):
        parse(text)


def test_a_value_is_for_the_end_of_a_path():
    one = AssumedValue("src/train.py", 12, True)
    assert one.is_for("/home/me/src/train.py", 12) and one.is_for("src/train.py", 12)
    assert not one.is_for("/home/me/other_src/train.py", 12) and not one.is_for("/home/me/src/train.py", 13)
    assert not one.is_for(None, None)


def test_bits_are_those_of_the_type_or_nothing():
    assert AssumedValue("a.py", 1, True).bits(1, False) == 1
    assert AssumedValue("a.py", 1, -1).bits(4, False) == 2**32 - 1
    assert AssumedValue("a.py", 1, 0.5).bits(4, True) == struct.unpack("<I", struct.pack("<f", 0.5))[0]
    for value, size, is_float in ((0.5, 8, False), (300, 1, False), (0.5, 2, True), (1, 4000, True), (1, 4000, False)):
        assert AssumedValue("a.py", 1, value).bits(size, is_float) is None, (value, size, is_float)
    for value, size, is_float in ((1e300, 4, True), (10**400, 8, True), (10**400, 8, False), (1e300, 8, False)):
        assert AssumedValue("a.py", 1, value).bits(size, is_float) is None, "a number that is too large"


def test_a_value_is_for_the_line_of_a_package_that_reads():
    log = ReadLog([parse("package/model.py:3=512")])
    place = ReadPlace("length", "item", "/home/me/train.py", 7, "main", "package/model.py:3", "0")
    assert log._given(place, 8) == 512
    assert log._given(replace(place, via="package/model.py:4"), 8) is None
    assert log._given(replace(place, via=None), 8) is None
    assert [(one.kind, one.assumed) for one in log.reads()] == [("used_number", "512 (--assume)")]
    assert log.unread == []


def test_a_loop_does_not_wait_for_a_truth_value_that_was_given():
    log = ReadLog([parse("train.py:7=false")])
    place = ReadPlace("branch", "item", "/home/me/train.py", 7, "main", None, "True")
    values = [log._given(place, 1) for _ in range(2001)]
    assert [number for number, value in enumerate(values, 1) if value] == [1000, 2000]


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("line", "value", "result", "kind"),
    [
        ("y = bool((x > 0).any())", "true", True, "branch"),
        ("y = bool((x > 0).any())", "false", False, "branch"),
        ("y = bool(torch.isfinite(x).all())", "false", False, "branch"),
        ("y = x.sum().item()", "0.5", 0.5, "used_number"),
        ("y = x.long().sum().item()", "-7", -7, "used_number"),
        ("y = x.int().max().item()", "42", 42, "used_number"),
        ("y = len(x.long().flatten().bincount())", "9", 9, "used_number"),
        ("y = torch.nn.functional.one_hot(x.long()).shape[-1]", "9", 9, "used_number"),
    ],
)
def test_a_line_reads_what_was_assumed(tmp_path, emulated_gpu, monkeypatch, line, value, result, kind):
    import torch

    for name in number_types.METHODS:
        monkeypatch.setattr(torch.Tensor, name, getattr(torch.Tensor, name))
    number_types.install()
    path = tmp_path / "train.py"
    path.write_text(f"import torch\nx = torch.zeros(20, 10, device='cuda')\n{line}")
    log = ReadLog([parse(f"train.py:3={value}"), parse("train.py:99=1")])
    assert log.watch(lambda: None)
    try:
        assert runpy.run_path(str(path))["y"] == result
    finally:
        log.stop()
    assert [read.kind for read in log.reads()] == [kind]
    assert log.unread == ["train.py:99"]


def test_a_mask_selects_as_many_elements_as_were_assumed():
    log = ReadLog([parse(f"{Path(__file__).name}:{sys._getframe().f_lineno + 1}=7")])
    assert [log.selected(sys._getframe(), elements) for elements in (100, 5)] == [7, 5]
    assert [(read.kind, read.assumed) for read in log.reads()] == [("used_number", "7 (--assume)")]
    assert log.unread == []
    assert log.selected(sys._getframe(), 100) == 100
