"""Bytes that libraries allocate besides tensors: cuDNN for convolutions, cuBLAS for matrix products. Used by model_peaks.py."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any


def convolutions() -> list[dict[str, Any]]:
    """Workspace of convolutions, forward and backward: the peak less the tensors that are alive then."""
    import torch

    shapes = [
        *(
            (n, c, s, k)
            for n, (c, s), k in itertools.product((1, 8, 32), ((3, 224), (64, 56), (256, 28), (512, 14)), (1, 3, 7))
        ),
    ]
    kinds = itertools.product((torch.float32, torch.bfloat16), (False, True), (False, True))
    rows = []
    for dtype, channels_last, benchmark in kinds:
        torch.backends.cudnn.benchmark = benchmark
        for n, c, s, k in shapes:
            if benchmark and n != 8:
                continue
            layout = torch.channels_last if channels_last else torch.contiguous_format
            layer = torch.nn.Conv2d(c, max(c, 64), k, padding=k // 2, bias=False).to("cuda", dtype)
            layer = layer.to(memory_format=layout)
            x = torch.randn(n, c, s, s, device="cuda", dtype=dtype).to(memory_format=layout).requires_grad_()
            row = {"dtype": str(dtype)[6:], "channels_last": channels_last, "benchmark": benchmark}
            row |= {"batch": n, "channels": c, "outputs": max(c, 64), "size": s, "kernel": k}
            for call in ("first", "second"):
                torch.cuda.empty_cache()
                before = torch.cuda.memory_allocated()
                torch.cuda.reset_peak_memory_stats()
                y = layer(x)
                row[f"{call}_forward"] = torch.cuda.max_memory_allocated() - before - y.nbytes
                gradient = torch.ones_like(y)
                before = torch.cuda.memory_allocated()
                torch.cuda.reset_peak_memory_stats()
                y.backward(gradient)
                row[f"{call}_backward"] = torch.cuda.max_memory_allocated() - before - x.nbytes - layer.weight.nbytes
                x.grad = layer.weight.grad = None
                del y, gradient
            rows.append(row)
    return rows


def products() -> list[dict[str, Any]]:
    """What stays allocated after the first matrix products, and the peak beside the result; last, the CUDA context."""
    import torch

    rows: list[dict[str, Any]] = []
    free, _ = torch.cuda.mem_get_info()

    def measured(call: str, dtype: Any, act: Callable[[Any, Any], Any]) -> None:
        a = torch.randn(512, 512, device="cuda", dtype=dtype)
        bias = torch.randn(512, device="cuda", dtype=dtype)
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        out = act(a, bias)
        peak = torch.cuda.max_memory_allocated() - before - out.nbytes
        stays = torch.cuda.memory_allocated() - before - out.nbytes
        rows.append({"call": call, "dtype": str(dtype)[6:], "peak_bytes": peak, "stays_bytes": stays})

    linear = torch.nn.functional.linear
    for dtype in (torch.float32, torch.bfloat16):
        measured("matmul", dtype, lambda a, bias: a @ a)
        measured("addmm", dtype, lambda a, bias: torch.addmm(bias, a, a))
        measured("linear", dtype, lambda a, bias: linear(a, a, bias))
        measured("bmm", dtype, lambda a, bias: torch.bmm(a[None], a[None]))
        measured("linear of a batch", dtype, lambda a, bias: linear(a.view(8, 64, 512), a, bias))
    with torch.cuda.stream(torch.cuda.Stream()):
        measured("matmul on a second stream", torch.bfloat16, lambda a, bias: a @ a)
    left, _ = torch.cuda.mem_get_info()
    rows.append({"call": "beside reserved", "bytes": free - left - torch.cuda.memory_reserved()})
    return rows
