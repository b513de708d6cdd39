# ruff: noqa: E501 - a text as it is pasted
"""Forty-four texts of wrapped, interleaved and foreign logs, with the right answer of each, written down before any was tried.

Programs and numbers are made up. As in ``error_texts_of_libraries`` a hash of the name draws the half. Of texts that are
``held_out`` only the score is read.
"""

from __future__ import annotations

import json
from typing import Final

from error_texts import GIB, MIB, OLD_HINT, TRACEBACK, ErrorText, modern, old

DOCS_HINT: Final = (
    " If reserved but unallocated memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True to avoid "
    "fragmentation.  See documentation for Memory Management  (https://docs.pytorch.org/docs/stable/notes/cuda.html"
    "#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)"
)
PIECES: Final = modern("2.25 GiB", "39.49 GiB", "318.56 MiB", "30.11 GiB", "7.40 GiB", gpu=4, hint=DOCS_HINT)
FULL: Final = modern("1.12 GiB", "23.68 GiB", "604.25 MiB", "22.05 GiB", "240.11 MiB", gpu=1)
OLD_FULL: Final = old("392.00 MiB", "10.92 GiB", "9.81 GiB", "201.06 MiB", "10.11 GiB")
BAR: Final = "  4%|▍         | 121/2810 [01:02<22:58,  1.95it/s]"


def ranks(prefix: str, *texts: str) -> str:
    """The lines of several ranks, one of each in turn."""
    lines = [[prefix.format(rank=rank) + line for line in text.split("\n")] for rank, text in enumerate(texts)]
    longest = max(map(len, lines))
    return "\n".join(one[at] for at in range(longest) for one in lines if at < len(one)) + "\n"


NOTEBOOK: Final = {
    "cells": [
        {
            "cell_type": "code",
            "outputs": [
                {
                    "ename": "OutOfMemoryError",
                    "evalue": PIECES.partition(": ")[2],
                    "output_type": "error",
                    "traceback": [
                        "\x1b[0;31m---------------------------------------------------------------------------\x1b[0m",
                        "\x1b[0;31mOutOfMemoryError\x1b[0m                          Traceback (most recent call last)",
                        "Cell \x1b[0;32mIn[14], line 3\x1b[0m\n\x1b[1;32m      1\x1b[0m \x1b[38;5;28;01mfor\x1b[39;00m batch \x1b[38;5;129;01min\x1b[39;00m loader:\n",
                        "\x1b[0;31mOutOfMemoryError\x1b[0m: " + PIECES.partition(": ")[2],
                    ],
                }
            ],
        }
    ]
}

WRAPPED_LOGS: Final = (
    # -- PyTorch's allocator, in what surrounds it
    ErrorText(
        "two ranks of torchrun in turn",
        ranks("[default{rank}]:[rank{rank}]: ", TRACEBACK + PIECES, TRACEBACK + PIECES),
        "pytorch", "fragmentation", 2.25 * GIB, 4, says=("PYTORCH_ALLOC_CONF=expandable_segments:True",), never=("CUDA_ALLOC",),
    ),
    ErrorText(
        "bar on both sides of the message",
        BAR + "Traceback (most recent call last):\n  File \"finetune.py\", line 210, in <module>\n    main()\n" + FULL + "\r" + BAR + "\n",
        "pytorch", "", 1.12 * GIB, 1, never=("fragmented", "expandable"),
    ),
    ErrorText(
        "JSON in JSON",
        json.dumps({"log": json.dumps({"lvl": "error", "exc": TRACEBACK + PIECES}) + "\n", "stream": "stderr"}) + "\n",
        "pytorch", "fragmentation", 2.25 * GIB, 4,
    ),
    ErrorText("stored notebook", json.dumps(NOTEBOOK, indent=1), "pytorch", "fragmentation", 2.25 * GIB, 4),
    ErrorText(
        "exception in a list of results",
        "results = [{'lr': 0.001, 'error': OutOfMemoryError('" + FULL.partition(": ")[2] + "')}, {'lr': 0.01, 'error': None}]\n",
        "pytorch", "", 1.12 * GIB, 1, never=("fragmented",),
    ),
    ErrorText(
        "pytest's E",
        "    def test_step():\n>       train(model, batch)\n\ntests/test_train.py:31: \n_ _ _ _ _ _\nE       " + FULL + "\n\ntests/x.py:9: OutOfMemoryError\n=== short test summary info ===\nFAILED tests/test_train.py::test_step - torch.OutOfMemoryError: CUDA out of memory. Tried...\n",
        "pytorch", "", 1.12 * GIB, 1, never=("fragmented",),
    ),
    ErrorText(
        "tags of mpirun, hard wrap",
        "\n".join("[1,5]<stderr>:" + OLD_FULL[at : at + 72] for at in range(0, len(OLD_FULL), 72)),
        "pytorch", "", 392 * MIB, 0, never=("expandable", "fragmented"),
    ),
    ErrorText(
        "srun -l",
        "3: Traceback (most recent call last):\n0: step 12 loss 3.2\n3: " + PIECES + "\n1: step 12 loss 3.1\nsrun: error: n4: task 3: Exited with exit code 1\nsrun: Terminating StepId=901.0\n",
        "pytorch", "fragmentation", 2.25 * GIB, 4,
    ),
    ErrorText(
        "Chinese launcher on Windows",
        "训练失败,错误信息:CUDA out of memory. Tried to allocate 768.00 MiB (GPU 0; 12.00 GiB total capacity; 10.70 GiB already allocated; 0 bytes free; 11.20 GiB reserved in total by PyTorch)" + OLD_HINT + "\r\n  File \"D:\\训练\\lora.py\", line 77\r\n请按任意键继续. . .\r\n",
        "pytorch", "", 768 * MIB, 0, never=("expandable", "fragmented"),
    ),
    ErrorText(
        "HTML of a web UI",
        "<div class='error'>OutOfMemoryError: CUDA out of memory. Tried to allocate 4.50 GiB (GPU 0; 8.00 GiB total capacity; 3.10 GiB already allocated; 40.25 MiB free; 7.30 GiB reserved in total by PyTorch) If reserved memory is &gt;&gt; allocated memory try setting max_split_size_mb to avoid fragmentation.  See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF</div><p class='vram'>Torch active/reserved: 5.1/7.3 GiB, <wbr>Sys VRAM: 8.0/8.0 GiB (99.9%)</p>",
        "pytorch", "", 4.5 * GIB, 0, never=("expandable",),
    ),
    ErrorText(
        "cut in the middle of the last number",
        PIECES.partition("30.11")[0] + "30.1",
        "pytorch", "", 2.25 * GIB, 4, never=("fragmented", "30.1 B"),
    ),
    ErrorText(
        "sizes in KiB and bytes",
        modern("1.50 KiB", "1.95 GiB", "512 bytes", "1.21 GiB", "33.50 KiB"),
        "pytorch", "", 1536, 0, never=("fragmented", "expandable"),
    ),
    ErrorText(
        "more than an exabyte",
        TRACEBACK + "RuntimeError: CUDA out of memory. Tried to allocate more than 1EB memory.\n",
        "pytorch|pytorch_bare", "", says=("shape",), never=("smaller batch", "fragmented", "expandable"),
    ),
    ErrorText(
        "a process whose memory is not known",
        modern("3.00 GiB", "9.75 GiB", "1.10 GiB", "6.90 GiB", "310.00 MiB", more="Process 2290 has 17179869184.00 GiB memory in use. Including non-PyTorch memory, this process has 17179869184.00 GiB memory in use. "),
        "pytorch", "", 3 * GIB, 0, never=("17,179,869,184", "17179869184", "Other processes", "End the other"),
    ),
    ErrorText(
        "seven ranks that sit on GPU 0",
        modern("640.00 MiB", "15.77 GiB", "41.00 MiB", "10.20 GiB", "130.00 MiB", more="".join(f"Process {pid} has 612.00 MiB memory in use. " for pid in range(9101, 9108)) + "Including non-PyTorch memory, this process has 11.02 GiB memory in use. "),
        "pytorch", "other_process", 640 * MIB, 0, pids=(9101, 9107), says=("9101", "9107", "4.18 GiB"),
    ),
    ErrorText(
        "capture with pools of graphs",
        "Capturing CUDA graph shapes:  37%|███▋      | 13/35 [00:09<00:16,  1.30it/s]\n" + TRACEBACK + modern("514.00 MiB", "44.40 GiB", "210.75 MiB", "43.05 GiB is allocated by PyTorch, with 5.77 GiB allocated in private pools (e.g., CUDA Graphs)", "322.10 MiB").replace("CUDA Graphs) is allocated by PyTorch", "CUDA Graphs)") + "\nRuntimeError: CUDA error: operation failed due to a previous error during capture\n",
        "pytorch", "", 514 * MIB, 0, never=("48.8 GiB", "fragmented"),
    ),
    ErrorText(
        "expandable segments are on already",
        "+ export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n+ torchrun train.py\n" + modern("6.00 GiB", "79.10 GiB", "1.20 GiB", "69.00 GiB", "7.90 GiB"),
        "pytorch", "fragmentation|", 6 * GIB, 0, never=("expandable_segments:True",),
    ),
    ErrorText(
        "error of the elastic agent's file",
        "Root Cause (first observed failure):\n[0]:\n  time      : 2025-08-04_09:12:40\n  host      : a17\n  rank      : 6 (local_rank: 6)\n  exitcode  : 1 (pid: 30112)\n  error_file: /tmp/torchelastic_x/none_y/attempt_0/6/error.json\n  traceback : Traceback (most recent call last):\n    File \"/w/train.py\", line 9, in main\n      loss.backward()\n  " + PIECES + "\n  \n============\n",
        "pytorch", "fragmentation", 2.25 * GIB, 4,
    ),
    ErrorText(
        "SageMaker's error message",
        "UnexpectedStatusException: Error for Training job lm-2025: Failed. Reason: AlgorithmError: ExecuteUserScriptError:\nExitCode 1\nErrorMessage \"" + FULL + "\nCommand \"/opt/conda/bin/python3.10 train.py --batch 16\", exit code: 1\n",
        "pytorch", "", 1.12 * GIB, 1, never=("fragmented",),
    ),
    ErrorText(
        "caught in the first epoch, then a worker was killed",
        "WARNING skipping a batch: " + FULL + "\n" + "step ok\n" * 600 + TRACEBACK + "RuntimeError: DataLoader worker (pid 7712) is killed by signal: Killed. \n",
        "worker_killed", "outside_pytorch", says=("7712", "host"), never=("GPU 1",),
    ),
    ErrorText(
        "caught long ago, ended by a missing key",
        "WARNING skipping a batch: " + FULL + "\n" + "step ok\n" * 600 + "Traceback (most recent call last):\n  File \"/w/train.py\", line 61, in <module>\n    labels = batch[\"labels\"]\nKeyError: 'labels'\n",
        "pytorch|unknown", "", None, None, says=("KeyError",), never=("fragmented",),
    ),
    ErrorText(
        "accelerate found no batch",
        TRACEBACK + "RuntimeError: No executable batch size found, reached zero.\n",
        "pytorch_bare|accelerate", "", never=("fragmented", "expandable"),
    ),
    ErrorText(
        "free, but a smaller request failed, 1.12",
        old("48.00 MiB", "15.90 GiB", "1.46 GiB", "12.94 GiB", "1.50 GiB"),
        "pytorch", "", 48 * MIB, 0, says=("more free memory than was requested",), never=("fragmented", "expandable"),
    ),
    # -- other accelerators
    ErrorText(
        "hipBLAS cannot be created",
        "RuntimeError: CUDA error: HIPBLAS_STATUS_ALLOC_FAILED when calling `hipblasCreate(handle)`\n",
        "cublas|hipblas", "outside_pytorch", says=("hipBLAS",), never=("cuBLAS",),
    ),
    ErrorText(
        "fault of a page on an AMD card",
        "Memory access fault by GPU node-1 (Agent handle: 0x55d1) on address 0x7f21c0000000. Reason: Page not present or supervisor privilege.\nAborted (core dumped)\n",
        "unknown",
    ),
    ErrorText(
        "MPS on the shared pool with KiB",
        "RuntimeError: MPS backend out of memory (MPS allocated: 46.32 GiB, other allocations: 80.00 KiB, max allowed: 47.74 GiB). Tried to allocate 2.25 GiB on shared pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for memory allocations (may cause system failure).",
        "mps", "limit", 2.25 * GIB, never=("CUDA",),
    ),
    ErrorText(
        "XPU's unified runtime",
        TRACEBACK + "RuntimeError: UR backend failed. UR backend returns:39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)\n",
        "xpu", "outside_pytorch", never=("CUDA",),
    ),
    ErrorText(
        "NPU's workspace allocator",
        "RuntimeError: NPU out of memory. NPUWorkspaceAllocator tried to allocate 3.10 GiB(NPU 7; 60.97 GiB total capacity; 140.50 MiB free). If you want to reduce memory usage, take a try to set the environment variable TASK_QUEUE_ENABLE=1.\n",
        "pytorch", "", 3.1 * GIB, 7, never=("CUDA", "fragmented"),
    ),
    # -- libraries
    ErrorText(
        "AcceleratorError with its link",
        TRACEBACK + "torch.AcceleratorError: CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation' in https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more information.\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.\n",
        "cuda", "outside_pytorch", never=("pinned",),
    ),
    ErrorText(
        "thread that pins batches",
        "RuntimeError: Caught RuntimeError in pin memory thread for device 2.\nOriginal Traceback (most recent call last):\n  File \"/opt/torch/utils/data/_utils/pin_memory.py\", line 40, in do_one_step\n    data = pin_memory(data, device)\nRuntimeError: CUDA error: out of memory\n",
        "cuda|pinned|host", "outside_pytorch", says=("pinned",),
    ),
    ErrorText(
        "RMM's pool",
        "MemoryError: std::bad_alloc: out_of_memory: RMM failure at:/opt/conda/include/rmm/mr/device/pool_memory_resource.hpp:257: Maximum pool size exceeded (failed to allocate 2.500000 GiB)\n",
        "cuda|rmm", "outside_pytorch", never=("host's memory ran out", "CUDA_ALLOC"),
    ),
    ErrorText(
        "faiss on a card",
        "RuntimeError: Error in virtual void* faiss::gpu::StandardGpuResourcesImpl::allocMemory(const faiss::gpu::AllocRequest&) at /f/StandardGpuResources.cpp:452: Error: 'err == cudaSuccess' failed: StandardGpuResources: alloc fail type FlatData dev 0 space Device stream 0x55 size 30720000000 bytes (cudaMalloc error out of memory [2])\n",
        "cuda|faiss", "outside_pytorch", never=("CUDA_ALLOC", "host's memory ran out"),
    ),
    ErrorText(
        "no algorithm for a convolution",
        TRACEBACK + "RuntimeError: Unable to find a valid cuDNN algorithm to run convolution\n",
        "cudnn", "outside_pytorch", certain=False, says=("may not be memory",),
    ),
    ErrorText(
        "NCCL's segment in /dev/shm",
        "gpu3:211:260 [2] misc/shmutils.cc:72 NCCL WARN Call to posix_fallocate failed : No space left on device\ngpu3:211:260 [2] misc/shmutils.cc:113 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-dXb4aQ (size 9637888)\ngpu3:211:260 [2] NCCL INFO transport/shm.cc:114 -> 2\n",
        "shared_memory|nccl_shared_memory", "outside_pytorch", says=("shm-size",),
    ),
    ErrorText(
        "tensor memory of Triton",
        "triton.runtime.errors.OutOfResources: out of resource: tensor memory, Required: 640, Hardware limit: 512. Reducing block sizes or `num_stages` may help.\n",
        "triton", "", says=("Triton",), never=("shared memory",),
    ),
    ErrorText(
        "vLLM's cache is too small for the model's length",
        "ValueError: The model's max seq len (131072) is larger than the maximum number of tokens that can be stored in KV cache (50784). Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine.\n",
        "vllm", "", says=("vLLM", "max_model_len"),
    ),
    ErrorText(
        "JAX with its newer class",
        "jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 17179869184 bytes.\n",
        "jax", "", 16 * GIB, says=("not of PyTorch",), never=("PYTORCH_",),
    ),
    # -- the host
    ErrorText(
        "AWS Batch ended the container",
        "{\n  \"status\": \"FAILED\",\n  \"container\": {\"exitCode\": 137, \"reason\": \"OutOfMemoryError: Container killed due to memory usage\"}\n}\n",
        "kubernetes|container|batch_system", "outside_pytorch", says=("host",), never=("CUDA_ALLOC",),
    ),
    ErrorText(
        "deepspeed's launcher sees -9",
        "[2025-04-11 07:40:02,118] [INFO] [launch.py:319:sigkill_handler] Killing subprocess 4211\n[2025-04-11 07:40:02,240] [ERROR] [launch.py:325:sigkill_handler] ['/usr/bin/python3', '-u', 'train.py', '--local_rank=1'] exits with return code = -9\n",
        "killed", "outside_pytorch", certain=False,
    ),
    ErrorText(
        "summary of raylet",
        "(raylet) [2025-06-01 10:00:12,400 E 120 120 (raylet) node_manager.cc:3007] 2 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers crashed due to other reasons at node (ID: 77ab, IP: 10.0.1.7) over the last time period.\n",
        "ray", "outside_pytorch", never=("CUDA_ALLOC",),
    ),
    ErrorText(
        "CPU allocator of Windows",
        "RuntimeError: [enforce fail at C:\\actions-runner\\_work\\pytorch\\c10\\core\\impl\\alloc_cpu.cpp:121] data. DefaultCPUAllocator: not enough memory: you tried to allocate 603979776 bytes.\r\nDrücken Sie eine beliebige Taste . . .\r\n",
        "host", "outside_pytorch", 603979776, never=("CUDA_ALLOC",),
    ),
    # -- no out-of-memory error
    ErrorText(
        "deepspeed ends the others after a missing key",
        TRACEBACK + "KeyError: 'labels'\n[2025-04-11 07:40:02,118] [INFO] [launch.py:319:sigkill_handler] Killing subprocess 4211\n[2025-04-11 07:40:02,240] [ERROR] [launch.py:325:sigkill_handler] ['/usr/bin/python3'] exits with return code = 1\n",
        "unknown",
    ),
    ErrorText(
        "memory summary without an error",
        "|===========================================================================|\n|                  PyTorch CUDA memory summary, device ID 0                 |\n|---------------------------------------------------------------------------|\n|            CUDA OOMs: 0            |        cudaMalloc retries: 2         |\n|===========================================================================|\n| Allocated memory      |   1822 MiB |   7310 MiB |\n",
        "unknown",
    ),
    ErrorText(
        "no room on the node's disk, a crash, and a launch with too much",
        "The node was low on resource: ephemeral-storage. Container trainer was using 80Gi.\nRuntimeError: DataLoader worker (pid 19) is killed by signal: Segmentation fault. \nRuntimeError: CUDA error: too many resources requested for launch\njava.lang.OutOfMemoryError is listed in docs/errors.md\n",
        "unknown",
    ),
)  # fmt: skip
