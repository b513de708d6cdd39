"""Messages of every format since 1.11 become numbers; unknown texts are kept."""

from __future__ import annotations

import time
from typing import Any

import pytest

from vramscope.oom_diagnosis.diagnosis import diagnose
from vramscope.oom_diagnosis.evidence import facts_of_message
from vramscope.oom_diagnosis.parse_message import MAX_CHARACTERS, parse, parse_parts

MIB, GIB = 1 << 20, 1 << 30
LONG = MAX_CHARACTERS * 5 // 4
"""Characters of a text that is read in two parts."""
TORCH_1 = (
    "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 1; 7.79 GiB total capacity; 5.92 GiB already allocated; 18.56 MiB "
    "free; 6.03 GiB allowed; 6.00 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try setting "
    "max_split_size_mb to avoid fragmentation.  See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF"
)
TORCH_2_1 = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacty of 15.78 GiB of which 1.19 GiB is free. "
    "Process 3721 has 14.59 GiB memory in use. Of the allocated memory 13.00 GiB is allocated by PyTorch, and 1.25 GiB is "
    "reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting max_split_size_mb to avoid "
    "fragmentation.  See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF"
)
TORCH_2_4 = (
    "CUDA out of memory. Tried to allocate 512 bytes. GPU 3 has a total capacity of 79.15 GiB of which 2.81 MiB is free. "
    "Process 88 has 10.00 GiB memory in use. Including non-PyTorch memory, this process has 69.00 GiB memory in use. 70.00 GiB "
    "allowed; Of the allocated memory 60.00 GiB is allocated by PyTorch, with 72.00 MiB allocated in private pools (e.g., CUDA "
    "Graphs), and 7.50 GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory Management  "
    "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
)
ASYNC = (
    "Allocation on device 0 would exceed allowed memory. (out of memory)\nCurrently allocated     : 1.00 GiB\n"
    "Requested               : 2.00 GiB\nDevice limit            : 1.50 GiB\nFree (according to CUDA): 54.00 MiB\n"
    "PyTorch limit (set by user-supplied memory fraction)\n                        : 17179869184.00 GiB"
)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        (
            TORCH_1,
            {
                "wording": "1.11 to 2.0", "device": 1, "asked_bytes": 20 * MIB, "limit_bytes": 6.03, "allocated_bytes": 5.92,
                "reserved_bytes": 6.0, "total_bytes": 7.79, "unallocated_bytes": 6.0 - 5.92,
            },
        ),
        (
            TORCH_2_1,
            {
                "wording": "2.1", "device": 0, "asked_bytes": 2 * GIB, "total_bytes": 15.78, "free_bytes": 1.19,
                "allocated_bytes": 13.0, "unallocated_bytes": 1.25, "reserved_bytes": 14.25,
            },
        ),
        (
            TORCH_2_4,
            {
                "wording": "2.2 to 2.8", "device": 3, "asked_bytes": 512, "limit_bytes": 70.0, "process_bytes": 69.0,
                "allocated_bytes": 60.0, "private_pools_bytes": 72 * MIB, "unallocated_bytes": 7.5,
                "reserved_bytes": 60 * GIB + 7 * GIB + 512 * MIB,
            },
        ),
        (TORCH_2_4.replace("https://pytorch.org/docs", "https://docs.pytorch.org/docs"), {"wording": "2.9 and later"}),
        (
            ASYNC,
            {"device": 0, "asked_bytes": 2 * GIB, "allocated_bytes": GIB, "free_bytes": 54 * MIB, "limit_bytes": None},
        ),
    ],
)  # fmt: skip
def test_each_message_format_is_parsed(text: str, numbers: dict[str, Any]) -> None:
    """Each number within its reported rounding."""
    message = parse(f"Traceback (most recent call last):\n  ...\ntorch.OutOfMemoryError: {text}\n\nmore")
    for name, right in numbers.items():
        seen = getattr(message, name)
        if isinstance(right, float):
            assert abs(seen - right * GIB) <= message.rounding_bytes[name] + 1, name
        else:
            assert seen == right, name


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("CUDA out of memory. Allocation was preemptively rejected because it would exceed per_process_memory_fraction "
         "limit. Requested size: 2.00 GiB", "preemptive"),
        ("HIP out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 63.98 GiB", "pytorch"),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "cublas"),
        ("RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED", "cudnn"),
        ("ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 2 'out of memory'", "nccl"),
        ("RuntimeError: CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported", "cuda"),
        ("Error out of memory at line 380 in file /src/csrc/pythonInterface.cpp", "bitsandbytes"),
        ("RuntimeError: DataLoader worker (pid 3342) is killed by signal: Killed. ", "worker_killed"),
        ("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 4096000 bytes.", "host"),
        ("Unexpected bus error: a worker is out of shared memory", "shared_memory"),
        ("Segmentation fault (core dumped)", "unknown"),
        ("", "unknown"),
    ],
)  # fmt: skip
def test_kinds_of_memory_errors_are_distinguished(text: str, kind: str) -> None:
    message = parse(text)
    assert message.kind == kind
    assert message.is_known == (kind != "unknown")
    assert message.text in text
    if kind == "unknown":
        assert message.text == text, "kept verbatim"
        assert message.asked_bytes is None


def cpu_seconds(text: str) -> float:
    began = time.process_time()
    parse(text)
    return time.process_time() - began


@pytest.mark.parametrize(
    "unit",
    [
        "; 1",
        "CUDA out of memory. Tried to allocate ",
        "unable to mmap",
        "DataLoader worker (pid 1, ",
        " \n" * 9,
        "x",
        "12 13 ",
        "reason: ",
        "exit code ",
        "exit code 137  ",
        "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True ",
        "[TRT] ",
    ],
)
def test_the_time_to_parse_a_text_grows_with_its_length_only(unit: str) -> None:
    """Texts made to be slow. Of 16 times the length a search that starts again at each place takes 256 times as long."""
    short, whole = (unit * (length // len(unit)) for length in (MAX_CHARACTERS // 16, LONG))
    short_seconds = cpu_seconds(short)
    began = time.process_time()
    found = parse(whole)
    assert time.process_time() - began < 32 * short_seconds
    assert len(found.text) <= 8192
    assert found.shortened or whole.rstrip().endswith(found.text), "it ends where the text does"


@pytest.mark.parametrize("text", [TORCH_1, TORCH_2_1, TORCH_2_4], ids=["1.11", "2.1", "2.4"])
def test_a_text_that_begins_within_a_message_is_read(text: str) -> None:
    """People copy the last lines of a terminal. What was requested is not known then."""
    begin = text.index("total capac")
    message = parse(text[begin:])
    whole = parse(text)
    assert (message.kind, message.asked_bytes, message.errors) == ("pytorch", None, 1)
    assert (message.free_bytes, message.allocated_bytes) == (whole.free_bytes, whole.allocated_bytes)
    assert whole.errors == 1 and parse(f"see {text}").errors == 1
    assert parse(f"a note\n{text[begin:]}").kind == "unknown", "in a log it may be a quotation"


def test_a_panel_whose_first_line_ends_at_a_blank_is_read() -> None:
    for width in range(60, 90):
        lines = [TORCH_2_1[at : at + width] for at in range(0, len(TORCH_2_1), width)]
        boxed = "\n".join(f"│ {line:<{width}} │" for line in lines)
        assert parse(f"╭{'─' * (width + 2)}╮\n{boxed}\n╰{'─' * (width + 2)}╯").unallocated_bytes == 1.25 * GIB, width


def test_a_cut_message_invents_no_numbers() -> None:
    """Cut anywhere, the parser neither fails nor invents a number; nor does the diagnosis."""
    whole = parse(TORCH_2_4)
    for end in range(0, len(TORCH_2_4), 3):
        message = parse(TORCH_2_4[:end])
        for name in ("total_bytes", "limit_bytes", "process_bytes", "allocated_bytes", "private_pools_bytes"):
            assert getattr(message, name) in (None, getattr(whole, name))
        assert diagnose(facts_of_message(message)).sentence


def test_a_message_with_enough_numbers_has_a_cause() -> None:
    cause = diagnose(facts_of_message(parse(TORCH_2_1.replace("2.00 GiB", "2.20 GiB")))).kind
    assert cause == "fragmentation", "1.19 GiB free and 1.25 GiB in pieces"
    alone = TORCH_2_4.replace("70.00 GiB allowed; ", "").replace("512 bytes", "8.00 GiB")
    assert diagnose(facts_of_message(parse(alone))).kind == "other_process"
    assert diagnose(facts_of_message(parse("CUDA out of memory. Tried to allocate 2.00 GiB."))).kind == ""


LINE = "2026-07-01 12:00:00 INFO step 17 loss 0.25\n"
"""A line of a log."""


@pytest.mark.parametrize("behind", [0, 500_000])
def test_the_last_error_of_a_long_log_is_reported(behind: int) -> None:
    """Errors are at the end of logs. The position of the cuts does not matter."""
    before = f"RuntimeError: {TORCH_2_1}\n" + LINE * ((LONG - behind) // len(LINE))
    log = f"{before}Traceback (most recent call last):\ntorch.OutOfMemoryError: {TORCH_1}\n{'x' * behind}"
    assert len(log) > LONG
    message = parse(log)
    assert (message.kind, message.device, message.asked_bytes, message.errors) == ("pytorch", 1, 20 * MIB, 2)
    for size in (200_001, MAX_CHARACTERS):
        assert parse_parts(log[at : at + size] for at in range(0, len(log), size)) == message


def test_an_error_across_two_parts_is_whole() -> None:
    """Parts of one length, with the error at each position."""
    whole = parse(f"{TORCH_2_4}\n{LINE}")
    for shift in range(0, 2000, 97):
        log = f"{'-' * ((1 << 17) - 1000 + shift)}{TORCH_2_4}\n{LINE}"
        assert parse_parts(log[at : at + (1 << 17)] for at in range(0, len(log), 1 << 17)) == whole


def test_one_error_in_many_words_counts_once() -> None:
    """A chain of exceptions, and errors of other ranks: the most specific words count."""
    chain = (
        f"torch.OutOfMemoryError: {TORCH_2_1}\n\nDuring handling of the above exception, another exception occurred:\n\n"
        f"{'  File train.py, line 3' * 80}\nRuntimeError: CUDA error: out of memory\n"
    )
    assert (parse(chain).kind, parse(chain).errors) == ("pytorch", 1)
    mapped = parse("RuntimeError: unable to mmap 1024 bytes from file </torch_1_2>: Cannot allocate memory (12)")
    assert (mapped.kind, mapped.errors) == ("shared_memory", 1)
    message = parse(f"{TORCH_1}\n{LINE * 100}[rank0]: NCCL error, unhandled cuda error: the peer is gone")
    assert (message.kind, message.errors, message.certain) == ("pytorch", 2, True), (
        "what may mean anything explains nothing"
    )
    message = parse(
        f"{TORCH_1}, caught\n{LINE * 100}MemoryError: Unable to allocate 93.1 GiB for an array with shape (1,)"
    )
    assert (message.kind, message.errors) == ("host", 2), "the one that ended it"
    assert parse("Segmentation fault").errors == 0


def test_a_workers_long_traceback_is_one_error() -> None:
    """The kind comes after the traceback, the worker before it."""
    frames = "".join(f'  File "/home/ada/a/long/way/down/{n}/data.py", line {n}, in __getitem__\n' for n in range(40))
    text = (
        "Caught MemoryError in DataLoader worker process 3.\nOriginal Traceback (most recent call last):\n"
        f"{frames}numpy._core._exceptions._ArrayMemoryError: Unable to allocate 1.50 PiB for an array with shape (9,)"
    )
    message = parse(text, "RuntimeError")
    assert (message.kind, message.worker, message.asked_bytes, message.errors) == ("host", 3, 3 << 49, 1)
    again = parse(message.text, "RuntimeError")
    assert (again.kind, again.worker, again.asked_bytes) == ("host", 3, 3 << 49)


def test_an_unknown_text_keeps_its_tags() -> None:
    text = "No room on the accelerator: <b>17 GB</b> were wanted"
    assert parse(text).text == text
    assert parse("CUDA out of memory. Tried to allocate <b>17.00</b> GiB").asked_bytes == 17 << 30
