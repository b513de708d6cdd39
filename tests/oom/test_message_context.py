"""What a text says around its error: a setting in force, and the call that failed."""

from __future__ import annotations

import pytest

from vramscope.oom_diagnosis.message_context import sets_expandable_segments
from vramscope.oom_diagnosis.parse_message import MAX_CHARACTERS, parse

ON = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"


@pytest.mark.parametrize(
    "line",
    [
        f"export {ON}",
        f"+ export {ON}",
        f"+ {ON}",
        f"ENV {ON}",
        f"set {ON}",
        f'declare -x PYTORCH_CUDA_ALLOC_CONF="{ON.partition("=")[2]}"',
        f"$ {ON} python train.py",
        f"{ON} torchrun --nproc-per-node 8 train.py",
        f"NCCL_DEBUG=INFO {ON} CUDA_VISIBLE_DEVICES=0 /opt/bin/python3.12 train.py",
        f"ada@node:~/work$ env {ON} python train.py",
        f"cd /work && export {ON}",
        'os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"',
        "export PYTORCH_ALLOC_CONF=max_split_size_mb:128,expandable_segments:True",
        f"export {ON.replace('True', 'False')}\nexport {ON}",
    ],
)
def test_a_setting_that_is_made_is_in_force(line: str) -> None:
    assert sets_expandable_segments(f"epoch 1\n{line}\nepoch 2\n") is True


@pytest.mark.parametrize(
    "line",
    [
        f"- {ON}",
        f"* {ON}",
        f"  {ON}",
        ON,
        f"Try {ON} python train.py",
        'env.pop("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")',
        f"try setting {ON} to avoid fragmentation.",
        f"If reserved but unallocated memory is large try setting\n{ON} to\navoid fragmentation.",
        f"large try set\nting\n{ON}\nto avoid fragmentation.",
        f"You can export {ON} and try again",
        f"export {ON} to avoid fragmentation",
        f"echo '{ON}'",
    ],
)
def test_advice_sets_nothing(line: str) -> None:
    assert sets_expandable_segments(f"epoch 1\n{line}\nepoch 2\n") is None


@pytest.mark.parametrize(
    "line",
    [
        f"export {ON},expandable_segments:False",
        f"export {ON}\nexport {ON.replace('True', 'False')}",
        f"export {ON}\nexport PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128",
    ],
)
def test_a_later_setting_wins(line: str) -> None:
    assert sets_expandable_segments(f"epoch 1\n{line}\nepoch 2\n") is False
    lines = line.split("\n")
    steps = "step\n" * (MAX_CHARACTERS // 4)
    log = f"{lines[0]}\n{steps}{lines[-1]}\nCUDA out of memory. Tried to allocate 2.00 GiB."
    assert not parse(log).sets_expandable


ERROR = "RuntimeError: CUDA error: out of memory\n"
FRAMES = 'Traceback (most recent call last):\n  File "/w/train.py", line 3, in <module>\n    {}\n'


def test_an_option_in_a_log_is_not_the_call_that_failed() -> None:
    assert parse(f"args: batch=8 pin_memory=True workers=4\n{ERROR}").kind == "cuda"
    assert parse(f"args: batch=8 pin_memory=True\n{FRAMES.format('x = x.cuda()')}{ERROR}").kind == "cuda"
    assert parse(f"epoch 1\n{FRAMES.format('x = x.pin_memory()')}{ERROR}").kind == "pinned"
    assert parse("epoch 1\nRuntimeError: CUDA error: out of memory in cudaHostAlloc\n").kind == "pinned"
