# ruff: noqa: E501 - a text as it is pasted
"""Texts as people paste them, each with the right answer. Formats are those of the software; programs and numbers are made up.

Half of them, chosen by a hash of the name, was held out while the rules were written (``HELD_OUT``).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

GIB, MIB = 1 << 30, 1 << 20
HINT: Final = (
    " If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid "
    "fragmentation.  See documentation for Memory Management  (https://pytorch.org/docs/stable/notes/cuda.html#environment-"
    "variables)"
)
OLD_HINT: Final = (
    " If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.  See documentation for "
    "Memory Management and PYTORCH_CUDA_ALLOC_CONF"
)


@dataclass(frozen=True)
class ErrorText:
    """A text and the right answer."""

    name: str
    text: str
    kind: str
    """Kind of the message; "unknown" for a text that is no out-of-memory error."""
    cause: str = ""
    """Value of the cause; empty where none can be known."""
    asked: float | None = None
    """Requested bytes, within the rounding of the text."""
    device: int | None = None
    pids: tuple[int, ...] = ()
    says: tuple[str, ...] = ()
    """Words that the answer must contain."""
    never: tuple[str, ...] = ()
    """Words that the answer must not contain."""
    certain: bool = True

    @property
    def held_out(self) -> bool:
        return hashlib.sha256(self.name.encode()).digest()[0] % 2 == 1


def modern(
    asked: str, total: str, free: str, allocated: str, unused: str, *, gpu: int = 0, more: str = "", hint: str = HINT
) -> str:
    """A message of PyTorch 2.2 to 2.8."""
    return (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {asked}. GPU {gpu} has a total capacity of {total} of "
        f"which {free} is free. {more}Of the allocated memory {allocated} is allocated by PyTorch, and {unused} is reserved by "
        f"PyTorch but unallocated.{hint}"
    )


def old(asked: str, total: str, allocated: str, free: str, reserved: str, *, gpu: int = 0, hint: str = OLD_HINT) -> str:
    """A message of PyTorch 1.5 to 2.0."""
    return (
        f"RuntimeError: CUDA out of memory. Tried to allocate {asked} (GPU {gpu}; {total} total capacity; {allocated} already "
        f"allocated; {free} free; {reserved} reserved in total by PyTorch){hint}"
    )


def wrapped(text: str, width: int) -> str:
    return "\n".join(text[at : at + width] for at in range(0, len(text), width))


TRACEBACK: Final = 'Traceback (most recent call last):\n  File "train.py", line 88, in <module>\n    loss.backward()\n'
FULL: Final = modern("1.50 GiB", "39.39 GiB", "512.00 MiB", "38.10 GiB", "120.00 MiB")
PIECES: Final = modern("2.00 GiB", "23.69 GiB", "900.00 MiB", "15.20 GiB", "6.90 GiB", gpu=1)
SERVER: Final = modern(
    "640.00 MiB", "47.53 GiB", "300.00 MiB", "20.40 GiB", "210.00 MiB", gpu=2,
    more="Process 90211 has 25.40 GiB memory in use. Including non-PyTorch memory, this process has 21.40 GiB memory in use. ",
)  # fmt: skip

TEXTS: Final = (
    # -- PyTorch's allocator, as it is and as it comes out of terminals and loggers
    ErrorText("full card", TRACEBACK + FULL, "pytorch", "", 1.5 * GIB, 0, never=("fragmented", "expandable_segments")),
    ErrorText("pieces", TRACEBACK + PIECES, "pytorch", "fragmentation", 2 * GIB, 1, says=("expandable_segments:True",)),
    ErrorText("pieces, cut after the numbers", PIECES.replace(HINT, ""), "pytorch", "fragmentation", 2 * GIB, 1),
    ErrorText("shared server", SERVER, "pytorch", "other_process", 640 * MIB, 2, (90211,), says=("90211", "25.4 GiB")),
    ErrorText("hard wrap 100", wrapped(SERVER, 100), "pytorch", "other_process", 640 * MIB, 2, (90211,)),
    ErrorText("hard wrap 60", wrapped(PIECES, 60), "pytorch", "fragmentation", 2 * GIB, 1),
    ErrorText("soft wrap", PIECES.replace(" of which", "\nof which").replace(" by PyTorch,", "\nby PyTorch,"), "pytorch", "fragmentation", 2 * GIB, 1),
    ErrorText("rank prefix, soft wrap", "\n".join(f"[rank3]: {line}" for line in SERVER.replace(" Process", "\nProcess").replace(" Of the", "\nOf the").split("\n")), "pytorch", "other_process", 640 * MIB, 2, (90211,)),
    ErrorText("time prefix, soft wrap", "2026-03-04 11:22:33,123 ERROR " + PIECES.replace(" is free. ", "\n2026-03-04 11:22:33,124 ERROR is free. "), "pytorch", "fragmentation", 2 * GIB, 1),
    ErrorText("ray prefix", f"(TrainWorker pid=8812, ip=10.0.0.4) {FULL}", "pytorch", "", 1.5 * GIB, 0),
    ErrorText("compose prefix", f"trainer-1  | {PIECES}\ntrainer-1 exited with code 1", "pytorch", "fragmentation", 2 * GIB, 1),
    ErrorText("colours with escapes", PIECES.replace("2.00", "\x1b[1;36m2.00\x1b[0m").replace("15.20", "\x1b[36m15.20\x1b[0m").replace("6.90", "\x1b[1m6.90\x1b[0m"), "pytorch", "fragmentation", 2 * GIB, 1),
    ErrorText("colours without escapes", FULL.replace("1.50", "[1;36m1.50[0m").replace("38.10", "[1;36m38.10[0m"), "pytorch", "", 1.5 * GIB, 0),
    ErrorText("no-break spaces", PIECES.replace(" GiB", "\xa0GiB").replace(" MiB", "\u202fMiB"), "pytorch", "fragmentation", 2 * GIB, 1),
    ErrorText("windows line ends", TRACEBACK.replace("\n", "\r\n") + PIECES + "\r\n", "pytorch", "fragmentation", 2 * GIB, 1),
    ErrorText("without its head", PIECES.partition("out of memory. ")[2], "pytorch", "fragmentation", 2 * GIB, 1),
    ErrorText("quoted in markdown", "> " + PIECES.replace(". GPU", ".\n> GPU").replace(". Of", ".\n> Of"), "pytorch", "fragmentation", 2 * GIB, 1),
    ErrorText("in a JSON log", '{"level":"error","msg":"' + PIECES + '"}', "pytorch", "fragmentation", 2 * GIB, 1),
    ErrorText("a tiny rest is no fragmentation", modern("256.00 MiB", "31.73 GiB", "90.00 MiB", "31.00 GiB", "300.00 MiB"), "pytorch", "", 256 * MIB, 0, never=("fragmented", "expandable")),
    ErrorText("more free than requested", modern("24.00 MiB", "15.77 GiB", "9.10 GiB", "5.90 GiB", "80.00 MiB"), "pytorch", "", 24 * MIB, 0, says=("more free memory than was requested",), never=("fragmented",)),
    ErrorText("graphs' pools", modern("3.00 GiB", "79.10 GiB", "700.00 MiB", "70.20 GiB, with 9.00 GiB allocated in private pools (e.g., CUDA Graphs)", "5.00 GiB").replace("CUDA Graphs) is allocated by PyTorch", "CUDA Graphs)").replace("70.20 GiB, with", "70.20 GiB is allocated by PyTorch, with"), "pytorch", "fragmentation", 3 * GIB, 0, says=("75.2 GiB",)),
    ErrorText("2.1 with its spelling", "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.00 GiB. GPU 0 has a total capacty of 21.99 GiB of which 800.00 MiB is free. Process 2204 has 20.70 GiB memory in use. Of the allocated memory 14.00 GiB is allocated by PyTorch, and 6.20 GiB is reserved by PyTorch but unallocated.", "pytorch", "fragmentation", 4 * GIB, 0, says=("expandable_segments:True",)),
    ErrorText("2.9 with its own variable", PIECES.replace("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"), "pytorch", "fragmentation", 2 * GIB, 1, says=("PYTORCH_ALLOC_CONF=expandable_segments:True",), never=("CUDA_ALLOC_CONF",)),
    ErrorText("1.13 pieces", old("1.00 GiB", "11.17 GiB", "6.10 GiB", "40.00 MiB", "10.60 GiB"), "pytorch", "fragmentation", GIB, 0, says=("max_split_size_mb",), never=("expandable",)),
    ErrorText("1.8 without a hint", old("1.00 GiB", "7.43 GiB", "6.90 GiB", "30.00 MiB", "7.00 GiB", hint=""), "pytorch", "", GIB, 0, never=("expandable", "fragmented")),
    ErrorText("2.0 exception name", old("2.00 GiB", "14.76 GiB", "7.00 GiB", "20.00 MiB", "13.90 GiB").replace("RuntimeError", "torch.cuda.OutOfMemoryError"), "pytorch", "fragmentation", 2 * GIB, 0, never=("expandable",)),
    ErrorText("1.2 with cached", "RuntimeError: CUDA out of memory. Tried to allocate 1.20 GiB (GPU 2; 10.91 GiB total capacity; 9.40 GiB already allocated; 410.00 MiB free; 60.00 MiB cached)", "pytorch", "", 1.2 * GIB, 2, says=("1.0 to 1.4",), never=("expandable",)),
    ErrorText("somebody else, old format", old("500.00 MiB", "15.90 GiB", "1.10 GiB", "120.00 MiB", "1.20 GiB"), "pytorch", "other_process", 500 * MIB, 0, says=("14.6 GiB",)),
    ErrorText("more than the card has", old("3.00 GiB", "6.00 GiB", "11.00 GiB", "0 bytes", "13.00 GiB"), "pytorch", "", 3 * GIB, 0, says=("more than the device's 6.00 GiB", "WSL")),
    ErrorText("HIP", modern("2.00 GiB", "63.98 GiB", "500.00 MiB", "40.00 GiB", "22.00 GiB").replace("CUDA out", "HIP out").replace("PYTORCH_CUDA", "PYTORCH_HIP"), "pytorch", "fragmentation", 2 * GIB, 0, says=("PYTORCH_HIP_ALLOC_CONF",), never=("CUDA_ALLOC",)),
    ErrorText("HIP, old", old("2.00 GiB", "15.98 GiB", "8.00 GiB", "100.00 MiB", "15.00 GiB", hint="").replace("CUDA out", "HIP out"), "pytorch", "fragmentation", 2 * GIB, 0, says=("PYTORCH_HIP_ALLOC_CONF=max_split",), never=("expandable",)),
    ErrorText("XPU", "torch.OutOfMemoryError: XPU out of memory. Tried to allocate 6.00 GiB. GPU 0 has a total capacity of 15.91 GiB. Of the allocated memory 12.00 GiB is allocated by PyTorch, and 800.00 MiB is reserved by PyTorch but unallocated. Please use `empty_cache` to release all unoccupied cached memory.", "pytorch", "", 6 * GIB, 0, never=("expandable", "CUDA_ALLOC")),
    ErrorText("NPU", "RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB (NPU 3; 60.97 GiB total capacity; 44.00 GiB already allocated; 44.10 GiB current active; 900.00 MiB free; 58.00 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.", "pytorch", "fragmentation", 2 * GIB, 3, never=("CUDA_ALLOC",)),
    ErrorText("MPS", "RuntimeError: MPS backend out of memory (MPS allocated: 16.20 GiB, other allocations: 1.10 GiB, max allowed: 18.13 GiB). Tried to allocate 1.50 GiB on private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for memory allocations (may cause system failure).", "mps", "limit", 1.5 * GIB, says=("17.3 GiB", "18.1 GiB"), never=("CUDA_ALLOC",)),
    ErrorText("fraction", "RuntimeError: CUDA out of memory. Allocation was preemptively rejected because it would exceed per_process_memory_fraction limit. Requested size: 3.00 GiB", "preemptive", "limit", 3 * GIB),
    ErrorText("pool of CUDA", "torch.OutOfMemoryError: Allocation on device 1 would exceed allowed memory. (out of memory)\nCurrently allocated     : 20.00 GiB\nRequested               : 4.00 GiB\nDevice limit            : 23.60 GiB\nFree (according to CUDA): 60.00 MiB\nPyTorch limit (set by user-supplied memory fraction)\n                        : 17179869184.00 GiB", "cudaMallocAsync", "", 4 * GIB, 1),
    ErrorText("ComfyUI", "!!! Exception during processing !!! Allocation on device \nTraceback (most recent call last):\ntorch.OutOfMemoryError: Allocation on device \n\nGot an OOM, unloading all loaded models.", "pytorch_bare", "", says=("too few numbers",)),
    ErrorText("bare", "RuntimeError: CUDA out of memory.\n", "pytorch_bare", ""),
    # -- libraries and drivers
    ErrorText("cublas", "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "cublas", "outside_pytorch", says=("cuBLAS",)),
    ErrorText("cublas not initialized", "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`", "cublas", "outside_pytorch", certain=False, says=("may not be memory",)),
    ErrorText("cudnn workspace", "RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED", "cudnn", "outside_pytorch"),
    ErrorText("cudnn internal", "RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR\nYou can try to repro this exception", "cudnn", "outside_pytorch", certain=False, says=("may not be memory",)),
    ErrorText("nccl", "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3356, unhandled cuda error\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 'out of memory'", "nccl", "outside_pytorch"),
    ErrorText("nccl peer access", "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 217 'peer access is not supported between these two devices'", "unknown", never=("memory ran out",)),
    ErrorText("cuda init", "RuntimeError: CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.", "cuda", "outside_pytorch"),
    ErrorText("driver api", "pycuda._driver.MemoryError: cuMemAlloc failed: CUDA_ERROR_OUT_OF_MEMORY", "cuda", "outside_pytorch"),
    ErrorText("torch 0.4", "THCudaCheck FAIL file=/pytorch/aten/src/THC/generic/THCStorage.cu line=58 error=2 : out of memory\nRuntimeError: cuda runtime error (2) : out of memory at /pytorch/aten/src/THC/generic/THCStorage.cu:58", "pytorch_bare", "", never=("does not use PyTorch",)),
    ErrorText("accelerate's plan", "ValueError: Some modules are dispatched on the CPU or the disk. Make sure you have enough GPU RAM to fit the quantized model.", "accelerate", "", says=("does not fit", "your own device_map", "max_memory")),
    ErrorText("rmm as Python's error", "MemoryError: std::bad_alloc: out_of_memory: CUDA error at: /opt/conda/include/rmm/mr/device/cuda_memory_resource.hpp", "cuda", "outside_pytorch", never=("host",)),
    ErrorText("opencv", "cv2.error: OpenCV(4.8.0) error: (-217:Gpu API call) out of memory in function 'allocate'", "cuda", "outside_pytorch"),
    ErrorText("a check of a CUDA program", "Error: sum.cu:41, code: 2, reason: out of memory", "cuda", "outside_pytorch"),
    ErrorText("a status of something else", "Worker 3 has left. code: 2, reason: out of memory", "unknown", never=("CUDA",)),
    ErrorText("onnxruntime's buffer", "Failed to allocate memory for requested buffer of size 4294967296", "onnxruntime", "", 4 * GIB, says=("ONNX Runtime",)),
    ErrorText("tensorrt's log", "[05/10/2026-12:00:00] [E] [virtualMemoryBuffer.cpp::resizePhysical::145] Error Code 2: OutOfMemory (Requested size was 8589934592 bytes.)", "tensorrt", "", 8 * GIB, says=("TensorRT",)),
    ErrorText("jax's allocator", "2026-05-01 12:00:01.1 W external/xla/xla/tsl/framework/bfc_allocator.cc:497] Allocator (GPU_0_bfc) ran out of memory trying to allocate 8.00GiB (rounded to 8589934592)requested by op", "jax", "", 8 * GIB, never=("TensorFlow",)),
    ErrorText("level zero", "RuntimeError: level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)", "xpu", "outside_pytorch", never=("CUDA_ALLOC",)),
    ErrorText("triton", "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 196608, Hardware limit: 101376. Reducing block sizes or `num_stages` may help.", "triton", "", says=("Triton", "not the reason")),
    ErrorText("vllm cache", "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.", "vllm", "", says=("vLLM", "gpu_memory_utilization")),
    ErrorText("vllm start", "ValueError: Free memory on device (10.2/23.6 GiB) on startup is less than desired GPU memory utilization (0.9, 21.24 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.", "vllm", "", says=("vLLM",)),
    # -- other frameworks
    ErrorText("jax", "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8589934592 bytes.", "jax", "", 8 * GIB, says=("not of PyTorch",), never=("PYTORCH_",)),
    ErrorText("tensorflow", "ResourceExhaustedError: OOM when allocating tensor with shape[64,512,14,14] and type float on /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc", "tensorflow", "", says=("not of PyTorch",), never=("PYTORCH_",)),
    # -- the host
    ErrorText("kernel log", "[81234.5] oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task=python3,pid=6120,uid=1000\n[81234.6] Out of memory: Killed process 6120 (python3) total-vm:141557760kB, anon-rss:62914560kB, file-rss:0kB", "kernel", "outside_pytorch", says=("6120", "60.0 GiB")),
    ErrorText("cgroup", "Memory cgroup out of memory: Killed process 311 (pt_data_worker) total-vm:20971520kB, anon-rss:8388608kB", "kernel", "outside_pytorch", says=("311", "8.00 GiB")),
    ErrorText("slurm", "slurmstepd: error: Detected 2 oom_kill events in StepId=778812.0. Some of the step tasks have been OOM Killed.\nsrun: error: gpu07: task 0: Out Of Memory", "slurm", "outside_pytorch", says=("Slurm", "--mem")),
    ErrorText("kubernetes", "    State:          Terminated\n      Reason:       OOMKilled\n      Exit Code:    137", "kubernetes", "outside_pytorch", says=("container",)),
    ErrorText("ray node", "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.\nMemory on the node (IP: 10.0.0.9, ID: ab12) where the task (task ID: ffff, name=train) was running was 243.10GB / 256.00GB (0.9496), which exceeds the memory usage threshold of 0.95.", "ray", "outside_pytorch"),
    ErrorText("torchrun -9", "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n  time      : 2026-05-01_10:00:00\n  rank      : 1 (local_rank: 1)\n  exitcode  : -9 (pid: 7123)\n  traceback : Signal 9 (SIGKILL) received by PID 7123", "killed", "outside_pytorch", certain=False, says=("may not be memory",)),
    ErrorText("bash killed", "step 120 loss 1.93\nrun.sh: line 14:  9120 Killed                  python train.py --workers 16", "killed", "outside_pytorch", certain=False),
    ErrorText("loader killed", "RuntimeError: DataLoader worker (pid 40122) is killed by signal: Killed. ", "worker_killed", "outside_pytorch"),
    ErrorText("bus error", "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).\nRuntimeError: DataLoader worker (pid 512) is killed by signal: Bus error.", "shared_memory", "outside_pytorch", says=("shm-size",)),
    ErrorText("shared file", "RuntimeError: unable to write to file </torch_4412_883920_0>: No space left on device (28)", "shared_memory", "outside_pytorch"),
    ErrorText("cpu allocator", "RuntimeError: [enforce fail at alloc_cpu.cpp:75] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 68719476736 bytes. Error code 12 (Cannot allocate memory)", "host", "outside_pytorch", 64 * GIB),
    ErrorText("posix_memalign", "RuntimeError: [enforce fail at CPUAllocator.cpp:56] posix_memalign(&data, gAlignment, nbytes) == 0. 12 vs 0", "host", "outside_pytorch"),
    ErrorText("numpy", "numpy.core._exceptions._ArrayMemoryError: Unable to allocate 29.8 GiB for an array with shape (4000000000,) and data type float64", "host", "outside_pytorch", 29.8 * GIB),
    ErrorText("plain MemoryError", TRACEBACK + "MemoryError\n", "host", "outside_pytorch"),
    # -- long logs
    ErrorText("the error that ended it", FULL + "\ncaught, retrying with half the batch\n" + "step ok\n" * 400 + TRACEBACK + PIECES + "\n" + "waiting for other ranks\n" * 300 + "Killed\n", "pytorch", "fragmentation", 2 * GIB, 1),
    ErrorText("error, then a mention of it", TRACEBACK + PIECES + "\n" + "saving state\n" * 200 + "Exiting: CUDA out of memory\n", "pytorch", "fragmentation", 2 * GIB, 1),
    ErrorText("error, then nccl of others", f"[rank0]: {PIECES}\n" + "x\n" * 900 + "[rank1]: NCCL WARN Cuda failure 'unspecified launch failure'\n", "pytorch", "fragmentation", 2 * GIB, 1),
    # -- no lack of memory
    ErrorText("disk full", "OSError: [Errno 28] No space left on device: 'checkpoints/step_900.pt'", "unknown"),
    ErrorText("disk full, torch.save", "RuntimeError: [enforce fail at inline_container.cc:664] . unexpected pos 64 vs 0\nunable to write to file /mnt/ckpt/model.pt: No space left on device", "unknown"),
    ErrorText("source with MemoryError", "  File \"cache.py\", line 9, in get\n    except MemoryError as error:\n    raise MemoryError(\"too large\")\nKeyError: 'tokens'", "unknown"),
    ErrorText("illegal access", "RuntimeError: CUDA error: an illegal memory access was encountered", "unknown"),
    ErrorText("invalid argument", "RuntimeError: CUDA error: invalid argument\nCUDA kernel errors might be asynchronously reported", "unknown"),
    ErrorText("device assert", "RuntimeError: CUDA error: device-side assert triggered", "unknown"),
    ErrorText("a hint about such errors", "INFO To avoid CUDA out of memory errors, lower --batch-size.\nIf you see CUDA out of memory, close other programs.", "unknown"),
    ErrorText("a source line that looks for such words", TRACEBACK + '    if "CUDA out of memory" in str(error) or "CUDA error: out of memory" in str(error):\nKeyError: 7', "unknown"),
    ErrorText("a warning about memory", "UserWarning: pin_memory argument is set as true but no accelerator is found, then device pinned memory won't be used.", "unknown"),
    ErrorText("a setting named", "INFO using PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; out_of_memory_retry=3", "unknown"),
    ErrorText("killed by the user", "KeyboardInterrupt\nTraining was killed by the user after 3 hours", "unknown"),
)  # fmt: skip
HELD_OUT: Final = tuple(one for one in TEXTS if one.held_out)
"""Texts that were held out while the rules were written."""
