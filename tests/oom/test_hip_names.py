"""Names on a PyTorch for ROCm: the variable of the allocator's settings, and HIP instead of CUDA."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest
import torch

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / folder) for folder in ("oom", "backend", "pages")]

from test_oom_page import GIB, MIB, box  # noqa: E402
from window_maker import training  # noqa: E402

from vramscope.memory import allocator_settings  # noqa: E402
from vramscope.oom_diagnosis.diagnosis import diagnose  # noqa: E402
from vramscope.oom_diagnosis.evidence import facts_of_message, facts_of_record  # noqa: E402
from vramscope.oom_diagnosis.parse_message import parse  # noqa: E402
from vramscope.protocol.gpu_backend import allocator_variable, is_hip, software, variables_read  # noqa: E402
from vramscope.protocol.oom_record import OomRecord  # noqa: E402
from vramscope_server.analysis.oom.report import report_of  # noqa: E402
from vramscope_server.analysis.trace.from_window import from_window  # noqa: E402
from vramscope_server.analysis.whatif.sweep import sweep  # noqa: E402

CUDA, HIP, NEUTRAL = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF"
TEXT = (
    "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 63.98 GiB of which "
    "500.00 MiB is free. Of the allocated memory 40.00 GiB is allocated by PyTorch, and 22.00 GiB is reserved by PyTorch but "
    "unallocated. If reserved but unallocated memory is large try setting {hint}=expandable_segments:True to avoid fragmentation. "
    " See documentation for Memory Management  (https://{site}/docs/stable/notes/cuda.html#environment-variables)"
)


@pytest.mark.parametrize(
    ("version", "hip", "variable"),
    [
        ("2.13.0+cu130", None, CUDA),
        ("2.6.0", None, CUDA),
        ("", None, CUDA),
        ("2.8.0+rocm6.4", "6.4.43482", HIP),
        ("2.8.0+rocm6.4", None, HIP),
        ("2.9.1+gitff65f5b", "7.0.51831", NEUTRAL),
        ("2.10.0+rocm7.1", None, NEUTRAL),
        ("3.0.0", "8.0", NEUTRAL),
        ("a build of ours", "6.4", HIP),
        (None, "6.4", HIP),
    ],
)
def test_version_and_backend_decide_the_variable(version: str | None, hip: str | None, variable: str) -> None:
    assert allocator_variable(version, hip) == variable
    assert is_hip(version, hip) is (variable != CUDA)
    assert software(version, hip) == ("CUDA" if variable == CUDA else "HIP")


def fragmented(version: str, hip: str | None) -> OomRecord:
    counters = {"reserved_bytes.all.current": 30 * GIB, "active_bytes.all.current": 12 * GIB}
    return box("abab000000000001", counters=counters, free_bytes=MIB, torch=version, hip=hip, progress=0.9)


@pytest.mark.parametrize(
    ("version", "hip", "variable"),
    [("2.8.0", "6.4.43482", HIP), ("2.10.0+rocm7.1", None, NEUTRAL), ("2.13.0", None, CUDA)],
)
def test_first_aid_and_remedies_name_it(version: str, hip: str | None, variable: str) -> None:
    record = fragmented(version, hip)
    report = report_of(record)
    setting = f"{variable}=expandable_segments:True"
    assert setting in [remedy.what for remedy in report.remedies]
    assert report.diagnosis.facts.fragmentation_setting == setting
    assert report.diagnosis.facts.software == ("CUDA" if variable == CUDA else "HIP")
    assert diagnose(facts_of_record(record)).first_aid in (setting, report.diagnosis.first_aid)


@pytest.mark.parametrize(
    ("hint", "site", "variable"),
    [
        (CUDA, "pytorch.org", HIP),
        (HIP, "pytorch.org", HIP),
        (CUDA, "docs.pytorch.org", NEUTRAL),
        (NEUTRAL, "docs.pytorch.org", NEUTRAL),
    ],
)
def test_a_pasted_text_gets_a_variable_of_its_build(hint: str, site: str, variable: str) -> None:
    """PyTorch for ROCm keeps CUDA's hint in some versions."""
    diagnosis = diagnose(facts_of_message(parse(TEXT.format(hint=hint, site=site))))
    assert diagnosis.first_aid == f"{variable}=expandable_segments:True"


def test_memory_of_the_driver_is_hips() -> None:
    text = (
        "HIP out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 63.98 GiB of which 500.00 MiB is free. "
        "Of the allocated memory 10.00 GiB is allocated by PyTorch, and 10.00 MiB is reserved by PyTorch but unallocated."
    )
    assert "by HIP itself" in diagnose(facts_of_message(parse(text))).sentence
    assert "by CUDA itself" in diagnose(facts_of_message(parse(text.replace("HIP", "CUDA")))).sentence


@pytest.mark.parametrize(
    ("backend", "command"),
    [("CUDA", "nvidia-smi"), ("HIP", "amd-smi process"), ("XPU", "xpu-smi ps"), ("NPU", "npu-smi info"), ("MUSA", "")],
)
def test_advice_has_the_tools_of_the_backend(backend: str, command: str) -> None:
    text = (
        f"{backend} out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 63.98 GiB of which 5.00 GiB is "
        "free. Of the allocated memory 10.00 GiB is allocated by PyTorch, and 10.00 MiB is reserved by PyTorch but unallocated."
    )
    diagnosis = diagnose(facts_of_message(parse(text)))
    beginning, _, rest = diagnosis.first_aid.partition(", and for a quota")
    assert rest and beginning == "Look for other processes on the device" + (f" ({command})" if command else "")
    assert ("CUDA" in diagnosis.sentence) is (backend == "CUDA")


@pytest.mark.parametrize("backend", ["CUDA", "HIP"])
def test_a_kernel_of_triton_that_finds_no_memory_is_known(backend: str) -> None:
    message = parse(f"RuntimeError: Triton Error [{backend}]: out of memory")
    assert (message.kind, message.certain) == (backend.lower(), True)
    assert not parse(f"RuntimeError: Triton Error [{backend}]: invalid argument").is_known


@pytest.mark.parametrize(("version", "variable"), [("2.13.0", CUDA), ("2.13.0+rocm7.2", NEUTRAL)])
def test_what_if_recommends_by_the_variable_of_the_recording(version: str, variable: str) -> None:
    trace = from_window(msgspec.structs.replace(training(), torch=version))
    assert sweep(trace, ["expandable_segments:True"]).recommendation.variable == variable


def test_the_agent_reads_the_variable_of_its_build(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (CUDA, HIP, NEUTRAL):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(HIP, "max_split_size_mb:64")
    assert allocator_settings.settings_text({}) == ("max_split_size_mb:64" if torch.version.hip else "")
    monkeypatch.setattr(torch.version, "hip", "6.4.43482")
    assert allocator_settings.settings_text({}) == "max_split_size_mb:64"
    monkeypatch.setenv(CUDA, "max_split_size_mb:32")
    assert allocator_settings.settings_text({}) == "max_split_size_mb:32", "PyTorch asks for it first"
    assert variables_read(None) == (CUDA, NEUTRAL)
