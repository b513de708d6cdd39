# ruff: noqa: E501 - a text as it is pasted
"""Twenty-seven texts of 2026-11-29 with the right answer of each, written down before any was tried. Programs and numbers are made up.

As in ``error_texts_of_libraries``: a hash of the name draws the half. Of texts that are ``held_out`` only the score is read.
"""

from __future__ import annotations

from typing import Final

from error_texts import GIB, MIB, TRACEBACK, ErrorText, modern

PIECES: Final = modern("1.50 GiB", "31.73 GiB", "402.00 MiB", "22.60 GiB", "7.90 GiB", gpu=2)
FULL: Final = modern("896.00 MiB", "44.40 GiB", "310.00 MiB", "43.10 GiB", "180.00 MiB", gpu=0)

SERVING: Final = (
    # -- PyTorch's allocator
    ErrorText(
        "structlog line in JSON",
        '{"ts":"2025-11-02T11:20:31Z","level":"error","rank":2,"event":"step failed","exception":"'
        + (TRACEBACK + PIECES).replace('"', '\\"').replace("\n", "\\n")
        + '"}\n{"ts":"2025-11-02T11:20:32Z","level":"info","event":"shutdown"}\n',
        "pytorch",
        "fragmentation",
        1.5 * GIB,
        2,
        says=("expandable_segments:True",),
    ),
    ErrorText(
        "title of a report, cut",
        "CUDA out of memory. Tried to allocate 2.44 GiB (GPU 0; 23.65 GiB total capacity; 17.38 GiB already allocated; 1.09 GiB free; 20.4",
        "pytorch",
        "",
        2.44 * GIB,
        0,
    ),
    ErrorText(
        "web UI on a small card",
        "OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has a total capacty of 8.00 GiB of which 0 bytes is free. Of the allocated memory 6.97 GiB is allocated by PyTorch, and 292.71 MiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting max_split_size_mb to avoid fragmentation.  See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF\nTime taken: 12.4 sec.\nA: 7.31 GB, R: 7.43 GB, Sys: 8.0/8 GB (100.0%)",
        "pytorch",
        "",
        512 * MIB,
        0,
        never=("fragmented", "expandable"),
    ),
    ErrorText(
        "engine core prefix on each line",
        "\n".join(
            "(EngineCore_0 pid=778) ERROR 11-02 10:11:12 [core.py:708] " + line
            for line in (TRACEBACK + PIECES).split("\n")
        )
        + "\n(APIServer pid=700) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}\n",
        "pytorch",
        "fragmentation",
        1.5 * GIB,
        2,
    ),
    ErrorText(
        "ray worker prefix, wrapped",
        "\n".join("(RayTrainWorker pid=4411, ip=10.1.2.3) " + FULL[at : at + 90] for at in range(0, len(FULL), 90)),
        "pytorch",
        "",
        896 * MIB,
        0,
        never=("fragmented",),
    ),
    ErrorText(
        "two neighbours on a slice",
        modern("640.00 MiB", "19.62 GiB", "101.00 MiB", "8.90 GiB", "200.00 MiB").replace(
            "Of the allocated",
            "Process 9911 has 5.10 GiB memory in use. Process 9912 has 4.80 GiB memory in use. Including non-PyTorch memory, this process has 9.60 GiB memory in use. Of the allocated",
        ),
        "pytorch",
        "other_process",
        640 * MIB,
        0,
        pids=(9911, 9912),
        says=("9911", "9912"),
        never=("fragmented",),
    ),
    ErrorText(
        "cached of 1.3",
        "RuntimeError: CUDA out of memory. Tried to allocate 734.00 MiB (GPU 0; 10.76 GiB total capacity; 9.43 GiB already allocated; 413.31 MiB free; 128.50 MiB cached)",
        "pytorch",
        "",
        734 * MIB,
        0,
        never=("fragmented", "expandable"),
    ),
    ErrorText(
        "ComfyUI with tips",
        '!!! Exception during processing !!! Allocation on device \nTraceback (most recent call last):\n  File "/c/execution.py", line 510, in execute\n    output_data = get_output_data(obj)\ntorch.OutOfMemoryError: Allocation on device \nThis error means you ran out of memory on your GPU.\n\nTIPS: If the workflow worked before you might have accidentally set the batch_size to a large number.\nGot an OOM, unloading all loaded models.\nPrompt executed in 41.02 seconds\n',
        "pytorch_bare",
        "",
        never=("expandable",),
    ),
    # -- other accelerators
    ErrorText(
        "XPU with its own hint",
        "torch.OutOfMemoryError: XPU out of memory. Tried to allocate 4.00 GiB. GPU 0 has a total capacity of 15.56 GiB. Of the allocated memory 13.07 GiB is allocated by PyTorch, and 512.30 MiB is reserved by PyTorch but unallocated. Please use `empty_cache` to release all unoccupied cached memory.",
        "pytorch",
        "",
        4 * GIB,
        0,
        never=("CUDA_ALLOC", "fragmented"),
    ),
    ErrorText(
        "NPU, little idle",
        "RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB (NPU 6; 60.97 GiB total capacity; 57.50 GiB already allocated; 57.50 GiB current active; 1.01 GiB free; 58.90 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.",
        "pytorch",
        "",
        2 * GIB,
        6,
        never=("CUDA_ALLOC", "fragmented"),
    ),
    ErrorText(
        "Gaudi",
        "RuntimeError: [Rank:0] FATAL ERROR :: MODULE:PT_DEVMEM Allocation failed for size::536870912 (512)MB\n",
        "hpu",
        "",
        says=("Gaudi",),
        never=("CUDA_ALLOC",),
    ),
    ErrorText(
        "MIOpen warns about workspaces",
        "MIOpen(HIP): Warning [IsEnoughWorkspace] [EvaluateInvokers] Solver <GemmFwdRest>, workspace required: 1073741824, provided ptr: 0 size: 0\nepoch 3 loss 0.21\n",
        "unknown",
    ),
    # -- libraries and serving
    ErrorText(
        "SGLang at start",
        '[2025-10-10 12:00:00 TP0] Scheduler hit an exception: Traceback (most recent call last):\n  File "/sgl/model_runner.py", line 900, in init_memory_pool\nRuntimeError: Not enough memory. Please try to increase --mem-fraction-static. self.server_args.mem_fraction_static=0.7\n',
        "sglang",
        "",
        says=("SGLang", "mem-fraction-static"),
    ),
    ErrorText(
        "vLLM, free memory on device",
        "ValueError: Free memory on device cuda:0 (10.2/23.64 GiB) on startup is less than desired GPU memory utilization (0.9, 21.28 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.",
        "vllm",
        "",
        says=("vLLM",),
    ),
    ErrorText(
        "NCCL cannot calloc",
        "node3:55:90 [1] NCCL WARN Failed to CUDA calloc async 608 bytes\ntorch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:268, unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.19.3\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nFailed to CUDA calloc async 608 bytes\n",
        "nccl",
        "outside_pytorch",
        certain=False,
    ),
    ErrorText(
        "cuBLASLt's handle",
        "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasLtCreate(&handle)`",
        "cublas",
        "outside_pytorch",
        certain=False,
        says=("may not be memory",),
    ),
    ErrorText(
        "no plan of cuDNN's frontend",
        "RuntimeError: cuDNN Frontend error: [cudnn_frontend] Error: No execution plans support the graph.",
        "unknown",
    ),
    ErrorText(
        "pinning under WSL",
        'Traceback (most recent call last):\n  File "/usr/lib/python3/site-packages/torch/utils/data/_utils/pin_memory.py", line 57, in pin_memory\n    return data.pin_memory(device)\nRuntimeError: CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.\n',
        "cuda|host|pinned",
        "outside_pytorch",
        says=("pinned",),
    ),
    ErrorText(
        "XLA's driver line",
        "2025-01-05 08:00:00.123456: I external/local_xla/xla/stream_executor/cuda/cuda_driver.cc:1101] failed to allocate 7.50GiB (8053063680 bytes) from device: CUDA_ERROR_OUT_OF_MEMORY: out of memory",
        "tensorflow|jax|xla|cuda",
        "|outside_pytorch",
        never=("CUDA_ALLOC_CONF",),
    ),
    ErrorText(
        "ONNX Runtime's arena",
        "onnxruntime.capi.onnxruntime_pybind11_state.RuntimeException: [ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Non-zero status code returned while running Conv node. Name:'/c/Conv' Status Message: /ort/core/framework/bfc_arena.cc:376 void* onnxruntime::BFCArena::AllocateRawInternal(size_t, bool) Failed to allocate memory for requested buffer of size 1073741824",
        "onnxruntime",
        "",
        says=("ONNX Runtime",),
        never=("CUDA_ALLOC_CONF",),
    ),
    # -- the host
    ErrorText(
        "systemd says oom-kill",
        "Nov 02 11:00:01 gpu4 systemd[1]: train.service: A process of this unit has been killed by the OOM killer.\nNov 02 11:00:02 gpu4 systemd[1]: train.service: Main process exited, code=killed, status=9/KILL\nNov 02 11:00:02 gpu4 systemd[1]: train.service: Failed with result 'oom-kill'.\n",
        "kernel|systemd",
        "outside_pytorch",
        never=("CUDA_ALLOC",),
    ),
    ErrorText(
        "memory limit of LSF",
        "TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.\nExited with exit code 137.\n\nResource usage summary:\n\n    CPU time :    1201.00 sec.\n    Max Memory :  64 GB\n",
        "batch_system|lsf|killed",
        "outside_pytorch",
        never=("CUDA_ALLOC",),
    ),
    ErrorText(
        "table of sacct",
        "JobID           State      ExitCode     MaxRSS\n------------ ---------- -------- ----------\n881          OUT_OF_ME+    0:125\n881.0        OUT_OF_ME+    0:125  66060288K\n",
        "slurm",
        "outside_pytorch",
        never=("CUDA_ALLOC",),
    ),
    ErrorText(
        "zsh on a Mac",
        "epoch 0:  31%|###\nzsh: killed     python train.py\n/opt/py/resource_tracker.py:254: UserWarning: resource_tracker: There appear to be 1 leaked semaphore objects to clean up at shutdown\n",
        "killed",
        "outside_pytorch",
        certain=False,
    ),
    # -- no out-of-memory error
    ErrorText(
        "a checkpoint and a full disk",
        "RuntimeError: [enforce fail at inline_container.cc:603] . unexpected pos 1342177344 vs 1342177232\nOSError: [Errno 28] No space left on device\n",
        "unknown",
    ),
    ErrorText(
        "a plan to retry, then stopped by hand",
        "INFO trainer | will retry up to 3 times after CUDA out of memory errors\nstep 10\n^CTraceback (most recent call last):\nKeyboardInterrupt\n",
        "unknown",
    ),
    ErrorText(
        "the name cannot be imported",
        "ImportError: cannot import name 'OutOfMemoryError' from 'torch.cuda' (/opt/torch/cuda/__init__.py)\n",
        "unknown",
    ),
)
