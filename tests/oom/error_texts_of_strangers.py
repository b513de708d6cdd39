# ruff: noqa: E501 - a text as it is pasted
"""Fourteen texts of 2026-11-30, written by somebody who had not read the rules, with the right answer of each before any was tried.

Programs and numbers are made up. Hashes of the names draw the half of which only the score was read.
"""

from __future__ import annotations

import hashlib
from typing import Final

from error_texts import GIB, TRACEBACK, ErrorText, modern

XPU_HINT: Final = " Please use `empty_cache` to release all unoccupied cached memory."

STRANGERS_TEXTS: Final = (
    # -- PyTorch's allocator, on devices whose numbers do not fit
    ErrorText(
        "XPU 2.14 on Windows, an empty device and nearly all of it requested",
        "torch.OutOfMemoryError: XPU out of memory. Tried to allocate 15.00 GiB. GPU 0 has a total capacity of 16.48 GiB of which 15.97 GiB is free. Of the allocated memory 0 bytes is allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated." + XPU_HINT + "\n",
        "pytorch", "", 15 * GIB, 0, says=("more free memory than was requested",), never=("fragmented", "CUDA", "expandable"),
    ),
    ErrorText(
        "unified memory of an APU, more free than its total",
        TRACEBACK + modern("16.00 GiB", "15.49 GiB", "84.98 GiB", "1.67 GiB", "8.08 GiB").replace("CUDA out", "HIP out") + "\n",
        # (The request is larger than the total, and smaller than what is free. No setting of the allocator helps.)
        "pytorch", "", 16 * GIB, 0, never=("fragmented", "other process"),
    ),
    ErrorText(
        "IPEX refuses one block of more than 4 GB",
        TRACEBACK + "RuntimeError: Current platform can NOT allocate memory block with size larger than 4GB! Tried to allocate 6.20 GiB (GPU  0; 15.56 GiB total capacity; 1.02 GiB already allocated; 1.05 GiB reserved in total by PyTorch)\n",
        "xpu_block", "", 6.2 * GIB, 0, never=("fragmented", "CUDA", "other process"),
    ),
    ErrorText(
        "process id of the host in a container, under LLaMA-Factory with ZeRO-3",
        "[INFO|trainer.py:2409] 2025-08-03 09:12:44,310 >>   Num Epochs = 3\n  2%|▏         | 41/2043 [11:02<8:59:01, 16.15s/it]\n[rank1]: Traceback (most recent call last):\n[rank1]:   File \"/app/src/llamafactory/launcher.py\", line 23, in <module>\n[rank1]:     launch()\n[rank1]: " + modern("3.39 GiB", "79.32 GiB", "1.40 GiB", "74.28 GiB", "1.59 GiB", gpu=1, more="Process 105400 has 77.91 GiB memory in use. ") + "\n",
        # (77.91 GiB are what this process has reserved, with its context: the id is the host's.)
        "pytorch", "", 3.39 * GIB, 1, never=("fragmented", "other process"),
    ),
    # -- libraries
    ErrorText(
        "vLLM wakes up, and its memory has been taken",
        "(EngineCore_DP0 pid=2214) INFO 09-30 10:11:12 [gpu_worker.py:145] Waking up\nCUDA Error: out of memory at /workspace/csrc/cumem_allocator.cpp:62\n(EngineCore_DP0 pid=2214) ERROR 09-30 10:11:13 [core.py:710] RuntimeError: CUDA Error: out of memory at /workspace/csrc/cumem_allocator.cpp:62\n",
        "cuda|vllm", "outside_pytorch|", never=("CUDA_ALLOC", "fragmented"),
    ),
    ErrorText(
        "paged optimizer of bitsandbytes",
        "  0%|          | 0/1200 [00:00<?, ?it/s]\nError out of memory at line 380 in file /src/csrc/pythonInterface.c\n",
        "cuda|bitsandbytes", "outside_pytorch|", says=("bitsandbytes",), never=("CUDA_ALLOC", "fragmented"),
    ),
    ErrorText(
        "TensorRT cannot resize its buffer",
        "[11/02/2025-10:12:01] [TRT] [E] [virtualMemoryBuffer.cpp::resizePhysical::154] Error Code 2: OutOfMemory (Requested size was 22942842880 bytes.)\n[11/02/2025-10:12:01] [TRT] [E] IExecutionContext::setDeviceMemory: Error Code 2: Internal Error\nTraceback (most recent call last):\n  File \"engine.py\", line 71, in allocate\nAttributeError: 'NoneType' object has no attribute 'set_tensor_address'\n",
        "cuda|tensorrt", "outside_pytorch|", 22942842880, says=("TensorRT",), never=("CUDA_ALLOC", "fragmented"),
    ),
    ErrorText(
        "kernel of Triton finds no memory when it is loaded",
        TRACEBACK + '  File "/venv/triton/backends/nvidia/driver.py", line 480, in __call__\n    self.launch(gridX, gridY, gridZ, stream, function, *args)\nRuntimeError: Triton Error [CUDA]: out of memory\n',
        "cuda|triton", "outside_pytorch|", never=("shared memory", "fragmented"),
    ),
    ErrorText(
        "arena of ONNX Runtime has a limit",
        "onnxruntime.capi.onnxruntime_pybind11_state.RuntimeException: [ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Non-zero status code returned while running MatMul node. Name:'/layer.3/MatMul' Status Message: /onnxruntime_src/onnxruntime/core/framework/bfc_arena.cc:376 void* onnxruntime::BFCArena::AllocateRawInternal(size_t, bool, onnxruntime::Stream*, bool, onnxruntime::WaitNotificationFn) Available memory of 41943040 is smaller than requested bytes of 135383040\n",
        "onnxruntime", "limit|outside_pytorch|", 135383040, says=("ONNX Runtime", "gpu_mem_limit"), never=("CUDA_ALLOC",),
    ),
    # -- the host
    ErrorText(
        "actor of Ray whose worker died, with its possible reasons",
        "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n\tclass_name: TrainWorker\n\tactor_id: 7f3a\n\tpid: 5120\n\tip: 10.0.0.8\nThe actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of file. There are some potential root causes. (1) The process is killed by SIGKILL by OOM killer due to high memory usage. (2) ray stop --force is called. (3) The worker is crashed unexpectedly due to SIGSEGV or other unexpected errors.\n",
        "killed|ray", "outside_pytorch", certain=False, never=("CUDA_ALLOC",),
    ),
    ErrorText(
        "older Slurm counts the memory of a step",
        "epoch 2 loss 0.71\nslurmstepd: error: Step 441207.0 exceeded memory limit (66891264 > 66060288), being killed\nslurmstepd: error: *** STEP 441207.0 ON gpu3 CANCELLED AT 2024-02-11T03:11:54 ***\n",
        "slurm|batch_system", "outside_pytorch", says=("--mem",), never=("CUDA_ALLOC",),
    ),
    ErrorText(
        "events of a cluster, a node that ran out of memory",
        "LAST SEEN   TYPE      REASON      OBJECT           MESSAGE\n4m11s       Normal    Pulled      pod/trainer-0    Container image \"trainer:1.4\" already present on machine\n92s         Warning   SystemOOM   node/gpu-7       System OOM encountered, victim process: python3, pid: 88123\n",
        "kernel|kubernetes|container", "outside_pytorch", says=("88123",), never=("CUDA_ALLOC",),
    ),
    # -- no out-of-memory error
    ErrorText(
        "TensorRT skips a tactic, and the engine is built",
        "[11/02/2025-10:02:41] [TRT] [W] Tactic Device request: 4096MB Available: 2731MB. Device memory is insufficient to use tactic.\n[11/02/2025-10:02:41] [TRT] [W] Skipping tactic 3 due to insufficient memory on requested size of 4294967296 detected for tactic 0x0000000000000004.\nTry decreasing the workspace size with IBuilderConfig::setMemoryPoolLimit().\n[11/02/2025-10:09:13] [TRT] [I] Engine generation completed in 391.4 seconds.\nsaved unet.plan\n",
        "unknown",
    ),
    ErrorText(
        "ComfyUI decodes in tiles, and the prompt is done",
        "Requested to load AutoencoderKL\nloaded completely 9.5367431640625e+25 159.87 True\nWarning: Ran out of memory when regular VAE decoding, retrying with tiled VAE decoding.\nPrompt executed in 41.72 seconds\n",
        "unknown",
    ),
)  # fmt: skip
_BY_HASH = sorted(STRANGERS_TEXTS, key=lambda text: hashlib.sha256(text.name.encode()).digest())
UNSEEN_STRANGERS: Final = frozenset(text.name for text in _BY_HASH[: len(_BY_HASH) // 2])
"""Names of the texts that were opened only after their score had been read."""
