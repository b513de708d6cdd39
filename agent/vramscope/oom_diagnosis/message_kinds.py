"""Kinds of errors that a text can have, and the words by which each is found."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

KINDS: Final = {
    "pytorch": "PyTorch's caching allocator could not get memory",
    "pytorch_bare": "PyTorch ran out of memory; the text has none of its numbers",
    "preemptive": "PyTorch refused before trying: the request exceeds the memory fraction",
    "cudaMallocAsync": "CUDA's own pool (backend:cudaMallocAsync) could not get memory",
    "mps": "PyTorch's allocator for Apple GPUs (MPS) reached its limit",
    "cuda": "a CUDA call outside PyTorch's allocator ran out of memory",
    "cublas": "cuBLAS could not get its workspace",
    "cudnn": "cuDNN could not get memory",
    "cusolver": "cuSOLVER could not get memory",
    "cusparse": "cuSPARSE could not get memory",
    "cufft": "cuFFT could not get memory",
    "nccl": "NCCL reports a CUDA error",
    "bitsandbytes": "bitsandbytes could not get memory",
    "xpu": "Intel's driver (SYCL, Level Zero) could not get memory",
    "triton": "a Triton kernel needs more on-chip memory than the GPU has",
    "vllm": "vLLM could not reserve its memory",
    "jax": "JAX (XLA) ran out of memory",
    "tensorflow": "TensorFlow ran out of memory",
    "paddle": "PaddlePaddle ran out of memory",
    "host": "the host's memory ran out, not the GPU's",
    "worker_killed": "a DataLoader worker was killed, as Linux does when the host's memory runs out",
    "shared_memory": "the host's shared memory (/dev/shm) ran out",
    "kernel": "Linux ended a process because the host's memory ran out",
    "slurm": "Slurm ended a process because the job's memory ran out",
    "kubernetes": "Kubernetes ended the container because its memory ran out",
    "ray": "Ray ended a task because the node's memory ran out",
    "batch_system": "a batch system (LSF, PBS, HTCondor) ended the job because its memory ran out",
    "killed": "a process was killed (SIGKILL), as Linux does when the host's memory runs out",
    "unknown": "no known out-of-memory error",
}
"""Description of each kind."""

OUTSIDE_PYTORCH: Final = frozenset(
    {"cuda", "cublas", "cudnn", "cusolver", "cusparse", "cufft", "nccl", "bitsandbytes", "xpu"}
)
ON_HOST: Final = frozenset(
    {"host", "worker_killed", "shared_memory", "kernel", "slurm", "kubernetes", "ray", "batch_system", "killed"}
)
OTHER_SOFTWARE: Final = frozenset({"triton", "vllm", "jax", "tensorflow", "paddle"})
"""Errors that are not of PyTorch's allocator, and of which the text alone is known."""
IN_TEXTS_ONLY: Final = (
    OTHER_SOFTWARE | (ON_HOST - {"host", "worker_killed", "shared_memory"}) | {"pytorch_bare", "mps", "xpu"}
)
"""Kinds that are found in a pasted text, and never taken for an error of the training that the agent observes."""


class Beginning(NamedTuple):
    """Words that begin an error of a kind."""

    kind: str
    words: re.Pattern[str]
    certain: bool = True
    """False: the same words are used for other errors too."""
    proof: str = ""
    """Words that must follow for the kind to be certain."""
    unless: re.Pattern[str] | None = None
    """Words soon after it that name another reason: then it is no lack of memory."""


_DEVICE: Final = r"(?:CUDA|HIP|XPU|NPU|MLU|MUSA)"
_SIZE: Final = r"\d[\d.]{0,20}\s{0,4}(?:bytes|[KMGT]iB)"
_STATES: Final = r"""(?:^[ \t]{0,40}|(?<=[\]:|>("'=-])|(?<=[\]:|>("'=-] )|(?<=Error ))"""
"""What stands before words that report an error. Within a sentence the same words may be a hint."""
LOOKS_FOR: Final = re.compile(r"""[^"'\n]{0,100}["'] {0,3}(?:not )?in\b""")
"""What follows such words in a source line that looks for them in an error, as tracebacks show it."""
_TABLE: Final[tuple[tuple[str, str, bool], ...]] = (
    ("preemptive", _DEVICE + r" out of memory\. Allocation was preemptively rejected", True),
    ("pytorch", rf"{_DEVICE} out of memory\.\s{{0,40}}Tried to allocate"
     rf"|Tried to allocate\s{{1,40}}{_SIZE}\.?\s{{1,40}}\(?(?:GPU|NPU|XPU|MLU) \d", True),
    ("cudaMallocAsync", r"Allocation on device \d{1,4} would exceed allowed memory", True),
    ("mps", r"MPS backend out of memory", True),
    ("vllm", r"No available memory for the cache blocks|is less than desired GPU memory utilization"
     r"|gpu_memory_utilization` when initializing the engine"
     r"|KV cache is needed, which is larger than the available KV cache memory"
     r"|larger than the maximum number of tokens that can be stored in KV cache", True),
    ("pytorch_bare", rf"{_STATES}{_DEVICE} out of memory\b(?! errors?\b)|OutOfMemoryError: Allocation on device", True),
    ("cublas", r"(?:CUBLAS|HIPBLAS)_STATUS_ALLOC_FAILED|rocblas_status_memory_error", True),
    ("cudnn", r"CUDNN_STATUS_(?:ALLOC_FAILED|INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED)|miopenStatusAllocFailed", True),
    ("cusolver", r"(?:CU|HIP)SOLVER_STATUS_ALLOC_FAILED", True),
    ("cusparse", r"CUSPARSE_STATUS_(?:ALLOC_FAILED|INSUFFICIENT_RESOURCES)|insufficient resources when calling `cusparse", True),
    ("cufft", r"CUFFT_ALLOC_FAILED", True),
    ("bitsandbytes", r"Error out of memory at line \d{1,6} in file [^\n]{0,300}", True),
    ("xpu", r"(?:UR_RESULT|ZE_RESULT)_ERROR_OUT_OF_DEVICE_MEMORY|(?:PI|UR_RESULT)_ERROR_OUT_OF_RESOURCES", True),
    ("triton", r"OutOfResources: out of resource|out of resource: [^\n,]{1,200}?,? Required:? ?\d", True),
    ("jax", r"RESOURCE_EXHAUSTED: (?!OOM when)(?=[^\n]{0,200}(?:[Mm]emory|MEMORY|[Aa]llocat))", True),
    ("paddle", r"Out of memory error on GPU \d{1,4}\. Cannot allocate", True),
    ("tensorflow", r"OOM when allocating tensor|ResourceExhaustedError: (?=[^\n]{0,200}(?:[Mm]emory|[Aa]llocat))"
     r"|Allocator \(GPU_\d{1,3}_bfc\) ran out of memory", True),
    ("nccl", r"ncclUnhandledCudaError|unhandled cuda error|NCCL WARN Cuda failure|RCCL error", True),
    ("worker_killed", r"DataLoader worker \(pid\(?s?\)?:? ?[\d, ]{1,200}\) (?:is killed by signal: Killed|exited unexpectedly)",
     True),
    ("shared_memory", r"workers? (?:are|is) out of shared memory|insufficient shared memory \(shm\)"
     r"|unable to (?:mmap|open shared memory|write to file|resize file|allocate shared memory)[^\n]{0,120}"
     r"(?:</?torch_|/dev/shm)(?=[^\n]{0,120}(?:No space left|Cannot allocate memory))", True),
    ("ray", r"node running low on memory|ray\.exceptions\.OutOfMemoryError", True),
    ("slurm", r"oom[-_]kill event|Exceeded (?:job|step) memory limit|cgroup out-of-memory handler", True),
    ("kubernetes", r"\bOOMKilled\b(?![\"']?\s{0,3}[:=]\s{0,3}(?:[Ff]alse|0))", True),
    ("batch_system", r"TERM_MEMLIMIT\b|PBS: job killed: \w{0,6}mem \d{1,20}\w{0,2} exceeded limit"
     r"|[Mm]emory usage exceeded request_memory|Job has gone over (?:cgroup )?memory limit", True),
    ("kernel", r"killed by the OOM killer|Failed with result 'oom-kill'|systemd-oomd\[\d{1,9}\]: Killed [^\n]{1,400}? due to memory"
     r"|earlyoom\[\d{1,9}\]: sending SIG(?:TERM|KILL) to process|Out of memory: Kill(?:ed)? process"
     r"|[Mm]emory cgroup out of memory|oom-kill:constraint|invoked oom-killer"
     r"|oom_reaper: reaped process", True),
    ("cuda", r"(?:CUDA|HIP|CUDA driver) error: out of memory|cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY"
     r"|hipErrorOutOfMemory|cuda runtime error \(2\) ?: out of memory", True),
    ("host", r"DefaultCPUAllocator: (?:can't allocate|not enough) memory|Unable to allocate [^\n]{1,60} for an array"
     r"|\$ Torch: not enough memory|posix_memalign\([^\n]{1,60} == 0\. 12 vs 0|Caught MemoryError in"
     r"|crashed after using all available RAM|notebook tried to allocate more memory than is available"
     r"|Cannot allocate memory|std::bad_alloc|\[WinError (?:8|14|1455)\]", True),
    ("host", r"(?<![\w(.])(?=[A-Za-z_])(?<!except )(?<!raise )(?:\w{1,40}\.){0,6}_?(?:Array)?MemoryError(?=: *\S| *$)", True),
    ("cublas", r"CUBLAS_STATUS_NOT_INITIALIZED", False),
    ("cusolver", r"CUSOLVER_STATUS_(?:NOT_INITIALIZED|INTERNAL_ERROR)[^\n]{0,20}when calling `\w{1,40}Create\(", False),
    ("cudnn", r"CUDNN_STATUS_NOT_INITIALIZED|CUDNN_STATUS_INTERNAL_ERROR\b(?!_)", False),
    ("killed", r"^[ \t]{0,40}(?:\S{1,40}: line \d{1,9}: +\d{1,9} )?Killed\b(?! by)"
     r"|^[ \t]{0,40}(?:zsh: killed +(?!by )\S|fish: [^\n]{1,300} terminated by signal SIGKILL)|died with <Signals\.SIGKILL: 9>"
     r"|[Cc]ommand terminated by signal 9\b|interrupted by signal 9: ?SIGKILL|exitcode ?: -9\b|Signal 9 \(SIGKILL\)"
     r"|exit(?:ed)?(?: with)? (?:code|status):? 137\b", False),
)  # fmt: skip
"""Kind, words and whether they are certain; the most specific first."""
_PROOFS: Final = {"nccl": "out of memory", "worker_killed": "Killed"}
_OTHER_REASONS: Final = {
    "nccl": re.compile(r"Cuda failure \d{0,5} ?'(?!out of memory)"),
    "tensorflow": re.compile(r"this is not a failure"),
}

BEGINNINGS: Final = tuple(
    Beginning(kind, re.compile(words, re.MULTILINE), certain, _PROOFS.get(kind, ""), _OTHER_REASONS.get(kind))
    for kind, words, certain in _TABLE
)
OWN_WORDS: Final = frozenset({"preemptive", "pytorch", "cudaMallocAsync", "mps"})
"""Kinds whose words occur once in each error."""
