# ruff: noqa: E501 - a text as it is pasted
"""Forty texts with the right answer of each, written down before any of them was tried. Programs and numbers are made up.

Faults were mended against those that are not ``held_out``. Of the others only the score was read (``text_scores.py``).
One of these was seen by accident, in the output of a test. It got another name, and counts with the texts used for fixes.
"""

from __future__ import annotations

from typing import Final

from error_texts import GIB, MIB, TRACEBACK, ErrorText, modern, old

COLAB: Final = modern("128.00 MiB", "14.74 GiB", "60.12 MiB", "14.20 GiB", "344.55 MiB").replace(
    "Of the allocated", "Process 38217 has 14.68 GiB memory in use. Of the allocated"
)
FULL: Final = modern("2.00 GiB", "79.15 GiB", "610.00 MiB", "77.20 GiB", "402.00 MiB", gpu=3)
PIECES: Final = modern("3.00 GiB", "47.40 GiB", "212.00 MiB", "35.10 GiB", "11.20 GiB")
BOXED: Final = (
    "╭──────────────────────────── Training failed ────────────────────────────╮\n"
    "│ CUDA out of memory. Tried to allocate 3.00 GiB. GPU 1 has a total       │\n"
    "│ capacity of 47.40 GiB of which 212.00 MiB is free. Of the allocated     │\n"
    "│ memory 35.10 GiB is allocated by PyTorch, and 11.20 GiB is reserved by  │\n"
    "│ PyTorch but unallocated.                                                │\n"
    "╰─────────────────────────────────────────────────────────────────────────╯\n"
)

LIBRARIES: Final = (
    # -- PyTorch's allocator
    ErrorText("loguru line", "2025-03-01 10:22:33.123 | ERROR    | __main__:fit:88 - " + FULL, "pytorch", "", 2 * GIB, 3, never=("fragmented", "expandable")),
    ErrorText("a fraction that newer versions print", modern("512.00 MiB", "79.10 GiB", "60.10 GiB", "15.30 GiB", "120.00 MiB").replace("Of the allocated", "15.82 GiB allowed; Including non-PyTorch memory, this process has 16.20 GiB memory in use. Of the allocated"), "pytorch", "limit", 512 * MIB, 0, says=("15.8 GiB",), never=("expandable",)),
    ErrorText("colab names the process itself", TRACEBACK + COLAB, "pytorch", "", 128 * MIB, 0, never=("Other processes", "End the other", "expandable")),
    ErrorText("accelerate's error behind it", TRACEBACK + PIECES + "\nTraceback (most recent call last):\n  File \"/usr/local/bin/accelerate\", line 8, in <module>\n    sys.exit(main())\nsubprocess.CalledProcessError: Command '['/usr/bin/python3', 'train.py']' returned non-zero exit status 1.\n", "pytorch", "fragmentation", 3 * GIB, 0, says=("expandable_segments:True",)),
    ErrorText("elastic's summary behind it", "[rank3]: " + FULL + "\nW0301 10:22:40.101000 7 torch/distributed/elastic/multiprocessing/api.py:897] Sending process 101 closing signal SIGTERM\ntorch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n============================================================\ntrain.py FAILED\n------------------------------------------------------------\nRoot Cause (first observed failure):\n[0]:\n  rank      : 3 (local_rank: 3)\n  exitcode  : 1 (pid: 104)\n  error_file: <N/A>\n", "pytorch", "", 2 * GIB, 3),
    ErrorText("watchdogs of the other ranks behind it", "[rank3]: " + FULL + "\n[rank0]:[E301 10:32:40.1 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=90, OpType=ALLREDUCE, NumelIn=1) ran for 600030 milliseconds before timing out.\n[rank0]: torch.distributed.DistBackendError: NCCL communicator was aborted on rank 0.\n", "pytorch", "", 2 * GIB, 3),
    ErrorText("two ranks line by line", "[rank0]: Traceback (most recent call last):\n[rank1]: Traceback (most recent call last):\n[rank0]:   File \"/w/train.py\", line 40, in <module>\n[rank1]:   File \"/w/train.py\", line 40, in <module>\n[rank0]: " + PIECES + "\n[rank1]: " + PIECES.replace("GPU 0", "GPU 1") + "\n", "pytorch", "fragmentation", 3 * GIB, 1, says=("expandable_segments:True",)),
    ErrorText("pdsh prefix of deepspeed", "\n".join("10.0.0.12: " + line for line in (TRACEBACK + PIECES.replace(" Of the", "\nOf the")).split("\n")), "pytorch", "fragmentation", 3 * GIB, 0),
    ErrorText("a progress bar on its line", "Epoch 0:  12%|█▏        | 33/270 [00:21<02:31,  1.56it/s, loss=1.2, v_num=0]\rEpoch 0:  13%|█▎        | 34/270 [00:22<02:30,  1.56it/s, loss=1.2, v_num=0]" + old("1.00 GiB", "15.90 GiB", "10.20 GiB", "90.00 MiB", "15.20 GiB"), "pytorch", "fragmentation", GIB, 0, says=("max_split_size_mb",), never=("expandable",)),
    ErrorText("CI time stamps", "2025-05-01T10:00:00.1234567Z Traceback (most recent call last):\n2025-05-01T10:00:00.1234580Z   File \"train.py\", line 3, in <module>\n2025-05-01T10:00:00.1300000Z " + PIECES + "\n2025-05-01T10:00:01.0000000Z ##[error]Process completed with exit code 1.\n", "pytorch", "fragmentation", 3 * GIB, 0),
    ErrorText("docker's JSON lines", '{"log":"' + TRACEBACK.replace('"', '\\"').replace("\n", "\\n") + FULL + '\\n","stream":"stderr","time":"2025-02-02T10:10:10.5Z"}', "pytorch", "", 2 * GIB, 3),
    ErrorText("a box of rich", BOXED, "pytorch", "fragmentation", 3 * GIB, 1),
    ErrorText("inductor wraps it", "torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:\n" + PIECES.replace("torch.", "", 1) + "\n\nSet TORCH_LOGS=\"+dynamo\" and TORCHDYNAMO_VERBOSE=1 for more information\n", "pytorch", "fragmentation", 3 * GIB, 0),
    ErrorText("ComfyUI on one line", "!!! Exception during processing !!! Allocation on device 0 would exceed allowed memory. (out of memory) Currently allocated     : 6.48 GiB Requested               : 50.00 MiB Device limit            : 8.00 GiB Free (according to CUDA): 0 bytes PyTorch limit (set by user-supplied memory fraction)                         : 17179869184.00 GiB", "cudaMallocAsync", "", 50 * MIB, 0),
    ErrorText("skipped, then ended by something else", "2023-01-01 10:00:00 | WARNING | trainer | OOM: Ran out of memory with exception: " + old("1.00 GiB", "15.90 GiB", "14.90 GiB", "90.00 MiB", "15.20 GiB") + "\n2023-01-01 10:00:00 | WARNING | trainer | attempting to recover from OOM in forward pass\n" + "2023-01-01 10:00:01 | INFO | step ok\n" * 300 + "Traceback (most recent call last):\n  File \"train.py\", line 70, in <module>\n    print(stats['ppl'])\nKeyError: 'ppl'\n", "pytorch", "", GIB, 0, says=("KeyError",)),
    # -- other accelerators
    ErrorText("MPS with GB", "RuntimeError: MPS backend out of memory (MPS allocated: 5.05 GB, other allocations: 3.29 GB, max allowed: 9.07 GB). Tried to allocate 1024.00 MB on private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for memory allocations (may cause system failure).", "mps", "limit", GIB, says=("8.34 GiB", "9.07 GiB"), never=("CUDA_ALLOC",)),
    ErrorText("MPS, one buffer", TRACEBACK + "RuntimeError: Invalid buffer size: 14.22 GB\n", "mps", "", says=("MPS",), never=("CUDA_ALLOC",)),
    ErrorText("Metal's command buffer", "Error: command buffer exited with error status.\n\tThe Metal Performance Shaders operations encoded on it may not have completed.\n\tError:\n\t(null)\n\tInsufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)\n", "mps", "", says=("MPS",), never=("CUDA_ALLOC",)),
    ErrorText("XPU out of resources", "RuntimeError: level_zero backend failed with error: 40 (UR_RESULT_ERROR_OUT_OF_RESOURCES)", "xpu", "outside_pytorch", never=("CUDA_ALLOC",)),
    ErrorText("HIP error", "RuntimeError: HIP error: out of memory\nHIP kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.\nFor debugging consider passing AMD_SERIALIZE_KERNEL=3", "cuda|hip", "outside_pytorch", never=("PYTORCH_CUDA",)),
    ErrorText("Ascend's driver", "RuntimeError: NPU out of memory. Tried to allocate 512.00 MiB (NPU 5; 29.50 GiB total capacity; 27.10 GiB already allocated; 27.10 GiB current active; 160.00 MiB free; 28.30 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.\n[ERROR] 2025-01-01-10:00:00 (PID:77, Device:5, RankID:5) ERR99999 UNKNOWN application exception\n", "pytorch", "fragmentation", 512 * MIB, 5, never=("CUDA_ALLOC",)),
    # -- libraries
    ErrorText("RMM's MemoryError is the GPU's", "MemoryError: std::bad_alloc: out_of_memory: CUDA error at: /opt/conda/include/rmm/mr/device/cuda_memory_resource.hpp:60: cudaErrorMemoryAllocation out of memory", "cuda", "outside_pytorch", never=("host's memory ran out",)),
    ErrorText("CuPy", TRACEBACK + "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 4,294,967,296 bytes (allocated so far: 12,884,901,888 bytes).\n", "cuda|cupy", "outside_pytorch", 4 * GIB, says=("CuPy",)),
    ErrorText("llama.cpp", "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 5123.00 MiB on device 0: cudaMalloc failed: out of memory\nllama_model_load: error loading model: unable to allocate CUDA0 buffer\n", "cuda|ggml", "outside_pytorch"),
    ErrorText("cuSOLVER's handle", "RuntimeError: cusolver error: CUSOLVER_STATUS_INTERNAL_ERROR, when calling `cusolverDnCreate(handle)`", "cublas|cusolver", "outside_pytorch", certain=False, says=("may not be memory", "cuSOLVER")),
    ErrorText("cuSPARSE", "RuntimeError: CUDA error: insufficient resources when calling `cusparseSpGEMM_workEstimation( handle, opA, opB, &alpha, descA, descB, &beta, descC)`", "cusparse|cuda|cublas", "outside_pytorch", says=("cuSPARSE",)),
    ErrorText("autotune without a choice", "torch._inductor.exc.InductorError: RuntimeError: No valid triton configs. OutOfMemoryError: out of resource: triton_red_fused_2 Required: 147456 Hardware limit:101376 Reducing block sizes or `num_stages` may help.", "triton", "", says=("Triton", "not the reason")),
    ErrorText("NCCL's shared memory", "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:2251, unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.21.5\nncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error. \nLast error:\nError while creating shared memory segment /dev/shm/nccl-QFHd2E (size 9637888)", "shared_memory|nccl_shared_memory", "outside_pytorch", says=("shm-size",)),
    ErrorText("NCCL's warning", "gpu01:1234:1301 [0] include/alloc.h:205 NCCL WARN Cuda failure 2 'out of memory'\n", "nccl", "outside_pytorch"),
    ErrorText("vLLM's sampler", "RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests. Please try lowering `max_num_seqs` or `gpu_memory_utilization` when initializing the engine.", "vllm", "", says=("vLLM", "max_num_seqs")),
    ErrorText("vLLM's longest request", "ValueError: To serve at least one request with the models's max seq len (131072), (16.00 GiB KV cache is needed, which is larger than the available KV cache memory (6.20 GiB). Based on the available memory, the estimated maximum model length is 50784.", "vllm", "", says=("vLLM",)),
    # -- other frameworks
    ErrorText("TensorFlow's notice is no failure", "W tensorflow/core/common_runtime/bfc_allocator.cc:314] Allocator (GPU_0_bfc) ran out of memory trying to allocate 2.20GiB with freed_by_count=0. The caller indicates that this is not a failure, but this may mean that there could be performance gains if more memory were available.\nEpoch 1/3\n", "unknown", never=("ran out of memory.",)),
    ErrorText("JAX behind its allocator's warning", "W external/xla/xla/tsl/framework/bfc_allocator.cc:501] Allocator (GPU_0_bfc) ran out of memory trying to allocate 8.00GiB (rounded to 8589934592)requested by op \njaxlib._jax.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8589934592 bytes.\n", "jax", "", 8 * GIB, says=("not of PyTorch",), never=("TensorFlow", "PYTORCH_")),
    ErrorText("Paddle is not TensorFlow", "ResourceExhaustedError: \n\nOut of memory error on GPU 0. Cannot allocate 1.250000GB memory on GPU 0, 23.500000GB memory has been allocated and available memory is only 200.000000MB.\n\nPlease check whether there is any other process using GPU 0.\n", "paddle", "", says=("Paddle",), never=("TensorFlow", "PYTORCH_")),
    ErrorText("a quota of a web service", "google.genai.errors.ClientError: 429 RESOURCE_EXHAUSTED. {'error': {'code': 429, 'message': 'Quota exceeded'}}\nError: RESOURCE_EXHAUSTED: Quota exceeded for requests per minute\n", "unknown", never=("JAX", "memory ran out", "ran out of memory")),
    # -- the host
    ErrorText("Windows' paging file", "OSError: [WinError 1455] The paging file is too small for this operation to complete. Error loading \"C:\\venv\\lib\\site-packages\\torch\\lib\\cufft64_10.dll\" or one of its dependencies.", "host", "outside_pytorch", says=("host",)),
    ErrorText("too many open files", "RuntimeError: unable to open shared memory object </torch_4412_883920_0> in read-write mode: Too many open files (24)", "unknown", never=("ran out", "shm-size")),
    ErrorText("kubelet's eviction", "Events:\n  Type     Reason   Age  From     Message\n  Warning  Evicted  3m   kubelet  The node was low on resource: memory. Threshold quantity: 100Mi, available: 52Mi. Container trainer was using 61Gi, request is 8Gi, has larger consumption of memory.\n", "kubernetes", "outside_pytorch", says=("node",)),
    ErrorText("container state, not killed for memory", "{\n  \"Status\": \"exited\",\n  \"OOMKilled\": false,\n  \"Dead\": false,\n  \"ExitCode\": 1\n}\n", "unknown", never=("ran out",)),
    ErrorText("a job's time limit", "step 900 loss 2.1\nslurmstepd: error: *** JOB 77120 ON gpu03 CANCELLED AT 2025-02-02T10:00:00 DUE TO TIME LIMIT ***\nsrun: Job step aborted: Waiting up to 32 seconds for job step to finish.\nsrun: error: gpu03: task 0: Killed\n", "unknown", never=("memory ran out", "memory runs out")),
    ErrorText("dlib's call in C++", "Traceback (most recent call last):\n  File \"faces.py\", line 14, in <module>\n    boxes = detector(image, 1)\nRuntimeError: Error while calling cudaMalloc(&data, n) in file /tmp/dlib/cuda/gpu_data.cpp:218. code: 2, reason: out of memory\n", "cuda", "outside_pytorch", never=("host",)),
    ErrorText("Julia's CUDA.jl", "ERROR: LoadError: Out of GPU memory trying to allocate 1.000 GiB\nCUDA.OutOfGPUMemoryError: Out of GPU memory trying to allocate 1.000 GiB\nEffective GPU memory usage: 97.11% (7.766 GiB/7.998 GiB)\n", "cuda", "outside_pytorch"),
    ErrorText("workspace of DeepSpeed's inference", "  File \"generate.py\", line 31, in <module>\n    model.generate(ids, max_new_tokens=512)\nRuntimeError: Workspace can't be allocated, no enough memory.\n", "cuda", "outside_pytorch", never=("host",)),
    ErrorText("a workspace of an editor", "Error: Workspace can't be allocated to this user, no seats are left\n", "unknown", never=("ran out",)),
)  # fmt: skip
LATER_HELD_OUT: Final = tuple(one for one in LIBRARIES if one.held_out)
