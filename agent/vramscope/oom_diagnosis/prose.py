"""Sentences of a diagnosis: the cause first, then its numbers, then the request that failed. Nothing is decided here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from vramscope.oom_diagnosis import other_errors
from vramscope.oom_diagnosis.cause import (
    Cause,
    CauseKind,
    FreeBlocks,
    FrozenGradients,
    GrownOutside,
    GrowthLeak,
    HostMemoryFull,
    LibraryRequest,
    Limiting,
    MemoryLimit,
    MemoryParts,
    Missing,
    NotKnown,
    OtherProcesses,
    OtherSoftware,
    RefusedByFraction,
    RetainedLeak,
    SupersededState,
    UsedElsewhere,
    WeightCopy,
)
from vramscope.oom_diagnosis.demand import has_piled_up_state, waits_for_backward
from vramscope.oom_diagnosis.estimate_prose import input_words
from vramscope.oom_diagnosis.facts import Facts
from vramscope.oom_diagnosis.input_growth import has_larger_input
from vramscope.protocol.number_format import amount, decimals
from vramscope.protocol.series import phase_place

_PINNED_CALL: Final = (
    "The call that failed pins memory of the host, so that the host's pinned memory most likely ran out."
)
_MOSTLY_FREE: Final = "So much was free that the host's pinned memory most likely ran out, not the device's."
_TINY_SHARE: Final = 1e-4
"""Share of the largest part of a sum below which another part is left out."""
_LIBRARIES: Final = {
    "hip": "A HIP call", "cupy": "CuPy", "ggml": "llama.cpp (ggml)", "hipblas": "hipBLAS", "miopen": "MIOpen",
    "cublas": "cuBLAS", "cudnn": "cuDNN", "cusolver": "cuSOLVER", "cusparse": "cuSPARSE", "cufft": "cuFFT", "nccl": "NCCL",
    "bitsandbytes": "bitsandbytes", "xpu": "Intel's driver", "npu": "Ascend's driver", "dml": "DirectML",
}  # fmt: skip


def sentence_of(cause: Cause, facts: Facts) -> str:
    """The verdict: cause, numbers, request. What is not known is left out."""
    return _joined(_verdict(cause, facts), _later(facts))


def _later(facts: Facts) -> str:
    if not facts.later_exception:
        return ""
    return f"A later traceback ends with {facts.later_exception}: if it is of the same process, this error was caught."


def _verdict(cause: Cause, facts: Facts) -> str:
    details = cause.details
    if isinstance(details, HostMemoryFull):
        return _host(facts)
    if isinstance(details, LibraryRequest):
        return _library(facts, pinned=details.pinned)
    if isinstance(details, OtherSoftware):
        asked = f"{amount(facts.asked_bytes)} were requested." if facts.asked_bytes is not None else ""
        return _joined(other_errors.HEADLINES[facts.kind], asked)
    if isinstance(details, NotKnown) and details.missing is Missing.WORKER_NOT_KILLED:
        ended = "A DataLoader worker ended, but Linux has ended no process for lack of memory during the run."
        return _joined(ended, "The reason is something else.", _on_which_rank(facts))
    request = "" if facts.from_text and facts.asked_bytes is None else _request(facts)
    return _joined(_why(cause, facts), _beyond_device(facts), request)


def _why(cause: Cause, facts: Facts) -> str:
    """The cause and its numbers, of an error of PyTorch's allocator."""
    match cause.details:
        case RetainedLeak() as leak:
            return f"Memory leak: {_holder(leak)} retains {amount(leak.retained_bytes)}. Without it, the step fits."
        case GrowthLeak() as leak:
            where = "during the evaluation" if leak.in_evaluation else "from step to step"
            grown = (
                f"Memory leak: memory has grown by {amount(leak.growth_bytes)} {where}. Without that, the step fits."
            )
            return _joined(grown, f"{_holder(leak)} retains about as much." if leak.holder else "")
        case MemoryLimit() if facts.kind == "mps":
            used, most = amount(facts.reserved_bytes), amount(facts.limit_bytes)
            return f"The limit of MPS is reached: this process uses {used}, and {most} are allowed."
        case MemoryLimit() as limit:
            return (
                f"The memory limit of this process is too low: it may reserve {amount(limit.limit_bytes)} and has reserved "
                f"{amount(limit.reserved_bytes)}."
            )
        case RefusedByFraction():
            return "The memory fraction of this process does not allow the request."
        case SupersededState(state_bytes=kept):
            return (
                f"Memory leak: earlier optimizers keep {amount(kept)} of state for weights that a later one updates. Without "
                "it, the step fits."
            )
        case FrozenGradients(gradients_bytes=unused):
            return f"Gradients of frozen weights take {amount(unused)}. No optimizer uses them. Without them, the step fits."
        case WeightCopy() as copy:
            where = f" ({copy.line})" if copy.line else ""
            size = amount(copy.copy_bytes)
            return f"{copy.holder}{where} has a copy of the model's weights, {size}. Without it, the request fits."
        case OtherProcesses() as others:
            fits = "request" if facts.from_text else "step"
            return f"Other processes use {amount(others.used_bytes)} of the device. Without them, the {fits} fits."
        case UsedElsewhere(used_bytes=used):
            return (
                f"{amount(used)} of the device are used by other processes, or by {facts.software} itself: they are neither "
                "free nor reserved by PyTorch here. Without them, the request fits."
            )
        case GrownOutside() as outside:
            return (
                f"This process uses {amount(outside.outside_bytes)} of the device outside PyTorch, "
                f"{amount(outside.growth_bytes)} more than at first. Without that growth, the step fits."
            )
        case FreeBlocks() as blocks:
            return _fragmentation(blocks)
        case MemoryParts() as parts:
            return _parts(cause.kind, parts, facts)
        case NotKnown(missing=Missing.PARTS, available_bytes=available, exceeds=exceeds):
            if exceeds:
                return f"Allocated and requested memory exceed the {amount(available)} that PyTorch can use."
            used, idle = amount(facts.used_bytes), amount(facts.idle_bytes)
            return f"{used} of the {amount(available)} that PyTorch can use are allocated, and {idle} are reserved and unused."
        case NotKnown(missing=Missing.LARGER_THAN_DEVICE) if facts.no_size:
            return "The request is larger than an exabyte, which is no real size: a shape is wrong."
        case NotKnown(missing=Missing.LARGER_THAN_DEVICE):
            return f"The request alone is larger than the device's {amount(facts.total_bytes)}."
        case NotKnown(missing=Missing.FREE_WAS_ENOUGH):
            service = ", CUDA MPS" if facts.software == "CUDA" else ""
            return (
                "The device reported more free memory than was requested, so this is no fragmentation. Known reasons: another "
                f"process took it first, or a quota applies (Windows, WSL, a virtual GPU{service})."
            )
        case _:
            return "The message has too few numbers to know the cause."


def _beyond_device(facts: Facts) -> str:
    """Only a driver that uses the host's memory too lets PyTorch reserve more than the device has."""
    if (
        not facts.from_text
        or facts.reserved_bytes is None
        or facts.reserved_bytes <= (facts.total_bytes or facts.reserved_bytes)
    ):
        return ""
    return (
        f"PyTorch has reserved {amount(facts.reserved_bytes)}, more than the device's {amount(facts.total_bytes)}: the driver "
        "uses the host's memory too (Windows, WSL)."
    )


def _holder(leak: RetainedLeak | GrowthLeak) -> str:
    return f"{leak.holder or 'a variable'}{f' ({leak.line})' if leak.line else ''}"


def _fragmentation(blocks: FreeBlocks) -> str:
    (used, asked), total, available = summed((blocks.used_bytes, blocks.asked_bytes), blocks.available_bytes)
    return (
        f"Free memory is fragmented: {amount(blocks.idle_bytes)} are reserved and unused, in blocks too small for this request. "
        f"If it were one block, the request would fit: {used} used and {asked} requested are {total} of {available}."
    )


_NEARLY_ALL: Final = 0.9
_LARGEST: Final = {
    CauseKind.WEIGHTS: "The weights need too much memory.",
    CauseKind.OPTIMIZER: "The optimizer needs too much memory.",
    CauseKind.ACTIVATIONS: "The activations need too much memory.",
    CauseKind.DATA: "The data on the device needs too much memory.",
}


def _parts(kind: CauseKind, parts: MemoryParts, facts: Facts) -> str:
    if kind is CauseKind.WEIGHTS and facts.copy_of:
        headline = f"The copy of {facts.copy_of} that is being made does not fit."
    elif parts.reason is Limiting.FIXED:
        headline = "The model does not fit, even without activations."
        if kind is CauseKind.OPTIMIZER:
            headline = "The optimizer's state does not fit beside the weights, even without activations."
        elif parts.fixed_bytes - parts.other_models_bytes <= parts.available_bytes:
            headline = "The model does not fit beside other models and copies of weights, even without activations."
    elif parts.reason is Limiting.UPDATE:
        headline = "The optimizer's update needs too much memory."
    elif parts.reason is Limiting.OUTSIDE:
        headline = "Tensors that the program makes between a step and the next forward pass need too much memory."
    elif parts.reason is Limiting.BEFORE:
        headline = "Tensors that the program makes before the first step need too much memory."
    elif parts.reason is Limiting.LOADING:
        headline = "The weights that are being loaded do not fit."
    else:
        headline = _LARGEST[kind]
    return _joined(headline, _sum_of_parts(parts, facts), _remark(parts, facts))


def _sum_of_parts(parts: MemoryParts, facts: Facts) -> str:
    """All parts, in one unit, and their sum beside what PyTorch can use."""
    rows: list[tuple[str, int]] = []
    if parts.fixed_bytes:
        waits = " ({} of them still on the host)" if parts.waiting_bytes else ""
        rows.append((f"weights {{}}{waits}", parts.parameters_bytes + parts.waiting_bytes))
    if parts.buffers_bytes:
        rows.append(("buffers {}", parts.buffers_bytes))
    if parts.other_models_bytes:
        rows.append((f"other models and copies of weights {{}}{_copy(facts)}", parts.other_models_bytes))
    expected = " (expected)" if not facts.gradients_bytes and not facts.optimizer_bytes else ""
    if parts.gradients_bytes:
        rows.append((f"gradients {{}}{expected}", parts.gradients_bytes))
    if parts.bucket_bytes:
        rows.append(("DistributedDataParallel's copies of them {}", parts.bucket_bytes))
    if parts.state_bytes:
        rows.append((f"optimizer state {{}}{expected}", parts.state_bytes))
    if parts.reason is not Limiting.FIXED:
        if parts.data_bytes:
            where = f" ({facts.data_line})" if facts.data_line else ""
            rows.append((f"data in {facts.data_name}{where} {{}}", parts.data_bytes))
        if parts.reason is Limiting.OUTSIDE:
            rows.append(("tensors made since the last step {}", parts.outside_bytes))
        if parts.reason is Limiting.BEFORE:
            rows.append(("tensors of the program {}", parts.outside_bytes))
        else:
            rows.append(("activations, batch and temporaries {}", parts.working_bytes))
        if parts.asked_bytes:
            rows.append(("this request {}", parts.asked_bytes))
    rows = _without_tiny(rows, parts.available_bytes)
    values, total, available = summed([size for _, size in rows], parts.available_bytes)
    waiting = amount(parts.waiting_bytes)
    words = [
        text.format(*((value, waiting) if text.count("{}") == 2 else (value,)))
        for (text, _), value in zip(rows, values, strict=True)
    ]
    unknown = "" if parts.fixed_bytes else "No weights are known. "
    state = " The optimizer's state is not known yet." if facts.state_is_unknown and not parts.state_bytes else ""
    listed = ", ".join(words)
    return f"{unknown}{listed[0].upper()}{listed[1:]}: {total} in total, and PyTorch can use {available}.{state}"


def _copy(facts: Facts) -> str:
    """The variable with most copies, and its line."""
    if not facts.copy_name:
        return ""
    name, line = (text.replace("{", "{{").replace("}", "}}") for text in (facts.copy_name, facts.copy_line))
    return f" ({name}{f', {line}' if line else ''})"


def _without_tiny(rows: list[tuple[str, int]], limit: int) -> list[tuple[str, int]]:
    """The parts without those that are tiny beside the largest, unless the sum is above the limit because of them."""
    least = max((size for _, size in rows), default=0) * _TINY_SHARE
    kept = [row for row in rows if row[1] >= least] or rows
    exceeds = sum(size for _, size in rows) > limit
    return kept if (sum(size for _, size in kept) > limit) == exceeds else rows


def _remark(parts: MemoryParts, facts: Facts) -> str:
    """What else explains the need."""
    if parts.reason in (Limiting.FIXED, Limiting.LOADING, Limiting.OUTSIDE, Limiting.BEFORE):
        return ""
    remarks = []
    known = parts.fixed_bytes + parts.data_bytes + parts.outside_bytes + parts.working_bytes + parts.asked_bytes
    if known <= parts.available_bytes < parts.likely_bytes:
        whole = "pass" if facts.phase == "eval" else "step"
        remarks.append(
            f"The whole {whole} would need about {amount(parts.likely_bytes)}."
            if parts.rest_is_known
            else f"The rest of the {whole} needs more. How much is not known."
        )
    elif known <= parts.available_bytes and facts.idle_bytes:
        remarks.append(f"{amount(facts.idle_bytes)} are reserved and unused, in blocks too small for this request.")
    if has_piled_up_state(facts):
        more = max(facts.other_state_bytes, facts.superseded_state_bytes)
        remarks.append(f"{amount(more)} of the state exceed what one optimizer keeps for the same weights.")
    if parts.reason is Limiting.UPDATE:
        return " ".join(remarks)
    if facts.evaluates:
        remarks.append("The model is in evaluation mode with gradients on, so that its graphs are kept.")
        return " ".join(remarks)
    if waits_for_backward(facts):
        remarks.append(f"{facts.forwards} forwards of this step have had no backward: their graphs are alive together.")
    if has_larger_input(facts):
        remarks.append(f"{input_words(facts)}.")
    if parts.asked_bytes and parts.asked_bytes >= _NEARLY_ALL * known and facts.source_line:
        remarks.append("This single request is most of it: check the shapes on its line.")
    return " ".join(remarks)


def _on_rank(facts: Facts) -> str:
    """Empty where there is one process."""
    return f" on rank {facts.rank} of {facts.world_size}" if facts.rank is not None and facts.world_size > 1 else ""


def _on_which_rank(facts: Facts) -> str:
    return f"It happened{_on_rank(facts)}." if _on_rank(facts) else ""


def _request(facts: Facts) -> str:
    where = _on_rank(facts) + (f" at {facts.source_line}" if facts.source_line else "")
    if facts.module:
        where += f", in module {facts.module}"
    if facts.thread is not None:
        where += f", by thread {facts.thread!r}" + (f" during step {facts.step + 1}" if facts.step is not None else "")
    elif facts.step is not None and (facts.phase not in (None, "other") or facts.step):
        place = "in" if facts.phase in (None, "other") else f"{phase_place(facts.phase)} of"
        where += f", {place} step {facts.step + 1}"
    asked = "memory" if facts.asked_bytes is None else amount(facts.asked_bytes)
    return f"Requested {asked}{where}{_free(facts, '; ')}."


def _free(facts: Facts, before: str) -> str:
    if facts.free_bytes is None:
        return ""
    return f"{before}{amount(facts.free_bytes)} of {amount(facts.total_bytes)} were free"


def _library(facts: Facts, *, pinned: bool) -> str:
    library = _LIBRARIES.get(facts.kind, "A CUDA call")
    where = _on_rank(facts) + (f" at {facts.source_line}" if facts.source_line else "")
    reserved = ""
    if facts.reserved_bytes:
        unused = "" if facts.idle_bytes is None else f", {amount(facts.idle_bytes)} of it unused"
        reserved = f"PyTorch had reserved {amount(facts.reserved_bytes)}{unused}."
    free = _free(facts, "")
    doubt = f"{library} reports an error{where}. Too little device memory is a common reason. It does not use PyTorch's allocator."
    return _joined(
        f"{library} could not get memory{where}. It does not use PyTorch's allocator." if facts.certain else doubt,
        _PINNED_CALL if facts.kind == "pinned" else _MOSTLY_FREE if pinned else "",
        f"{free}." if free else "",
        reserved,
    )


def _host(facts: Facts) -> str:
    asked = "" if facts.asked_bytes is None else f"{amount(facts.asked_bytes)} were requested."
    worker = "" if facts.worker is None else f"It happened in DataLoader worker {facts.worker}."
    size = ""
    if facts.rss_bytes is not None and facts.host_total_bytes:
        in_use = f"; {amount(facts.host_used_bytes)} were in use in total" if facts.host_used_bytes is not None else ""
        size = f"The process used {amount(facts.rss_bytes)} of {amount(facts.host_total_bytes)}{in_use}."
    kills = ""
    if facts.host_kills:
        processes = "1 process" if facts.host_kills == 1 else f"{facts.host_kills:,} processes"
        kills = f"Linux has ended {processes} for lack of memory during the run."
    headline = other_errors.HEADLINES.get(facts.kind, "The host's memory ran out, not the GPU's.")
    if not facts.certain:
        headline = other_errors.UNCERTAIN_HEADLINES.get(facts.kind, headline)
    return _joined(headline, asked, worker, _on_which_rank(facts), size, kills)


def _joined(*sentences: str) -> str:
    return " ".join(filter(None, sentences))


# -- amounts -------------------------------------------------------------------------------------------------------------------

_UNITS: Final = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1))


def summed(parts: Sequence[int], limit: int) -> tuple[list[str], str, str]:
    """Parts, their sum and a limit, in one unit, so that the printed parts add up to the printed sum.

    The largest has three significant digits. Further digits, and then smaller units, are used until the printed sum is above
    or below the limit as the exact one is, and no part above zero reads as zero.
    """
    total = sum(parts)
    most = max(total, limit)
    for unit, size in _UNITS:
        if unit == "B":
            digits = range(1)
        elif most < size:
            continue
        else:
            digits = range(decimals(most / size), 3)
        for shown in digits:
            rounded = [round(part / size, shown) for part in parts]
            whole, bound = round(sum(rounded), shown), round(limit / size, shown)
            hidden = any(part and not value for part, value in zip(parts, rounded, strict=True))
            if unit == "B" or ((whole > bound) == (total > limit) and not hidden):
                words = [f"{value:,.{shown}f} {unit}" for value in (*rounded, whole, bound)]
                return words[:-2], words[-2], words[-1]
    raise AssertionError("bytes are printed exactly")
