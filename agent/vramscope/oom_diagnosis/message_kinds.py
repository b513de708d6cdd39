"""Kinds of errors that a text can have, and the words by which each is found."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

KINDS: Final = {
    "pytorch": "PyTorch's caching allocator could not get memory",
    "pytorch_bare": "PyTorch ran out of memory; the text has none of its numbers",
    "preemptive": "PyTorch refused before trying: the request exceeds the memory fraction",
    "cudaMallocAsync": "CUDA's own pool (backend:cudaMallocAsync) could not get memory",
    "mps": "Metal could not provide memory of an Apple GPU (PyTorch's MPS uses Metal)",
    "cuda": "a CUDA call outside PyTorch's allocator ran out of memory",
    "hip": "a HIP call outside PyTorch's allocator ran out of memory",
    "pinned": "CUDA could not pin memory of the host",
    "cupy": "CuPy's allocator could not get memory",
    "cublas": "cuBLAS could not get its workspace",
    "hipblas": "hipBLAS (rocBLAS) could not get memory",
    "miopen": "MIOpen could not get memory",
    "cudnn": "cuDNN could not get memory",
    "cusolver": "cuSOLVER could not get memory",
    "cusparse": "cuSPARSE could not get memory",
    "cufft": "cuFFT could not get memory",
    "nccl": "NCCL reports a CUDA error",
    "bitsandbytes": "bitsandbytes could not get memory",
    "xpu": "Intel's driver (SYCL, Level Zero) could not get memory",
    "xpu_block": "the request is larger than any block of this GPU's allocator",
    "npu": "Ascend's driver (CANN) could not get memory",
    "dml": "DirectML (torch-directml) could not get memory",
    "hpu": "PyTorch's allocator for Gaudi (HPU) could not get memory",
    "triton": "a Triton kernel needs more on-chip memory than the GPU has",
    "vllm": "vLLM could not reserve its memory",
    "sglang": "SGLang could not reserve its memory",
    "tgi": "Text Generation Inference could not reserve its memory",
    "accelerate": "Accelerate left modules of the model off the device",
    "jax": "JAX (XLA) ran out of memory",
    "torch_xla": "XLA's allocator (PyTorch/XLA) ran out of memory",
    "onnxruntime": "ONNX Runtime ran out of memory",
    "tensorrt": "TensorRT could not get memory",
    "ggml": "llama.cpp (ggml) could not get memory",
    "tensorflow": "TensorFlow ran out of memory",
    "paddle": "PaddlePaddle ran out of memory",
    "host": "the host's memory ran out, not the GPU's",
    "worker_killed": "a DataLoader worker was killed, as Linux does when the host's memory runs out",
    "shared_memory": "the host's shared memory (/dev/shm) ran out",
    "nccl_shared_memory": "the host's shared memory (/dev/shm) ran out for NCCL",
    "kernel": "Linux ended a process because the host's memory ran out",
    "slurm": "Slurm ended a process because the job's memory ran out",
    "kubernetes": "a container was ended because its memory ran out",
    "ray": "Ray ended a task because the node's memory ran out",
    "ray_object_store": "Ray's object store, in the host's shared memory, is full",
    "batch_system": "a batch system (LSF, PBS, HTCondor, SGE) ended the job because its memory ran out",
    "killed": "a process ended as after SIGKILL, which Linux sends when the host's memory runs out",
    "compiler_killed": "a compiler ended as after SIGKILL, which Linux sends when the host's memory runs out",
    "unknown": "no known out-of-memory error",
}
"""Description of each kind."""

OUTSIDE_PYTORCH: Final = frozenset(
    {
        "cuda", "hip", "pinned", "cupy", "cublas", "hipblas", "miopen", "cudnn", "cusolver", "cusparse", "cufft", "nccl",
        "bitsandbytes", "xpu", "npu", "dml", "ggml",
    }
)  # fmt: skip
OF_LIBRARIES: Final = frozenset({"cublas", "hipblas", "cudnn", "cusolver", "cusparse", "cufft"})
"""Errors of libraries that any earlier failure of CUDA can cause."""
ON_HOST: Final = frozenset(
    {
        "host", "worker_killed", "shared_memory", "nccl_shared_memory", "kernel", "slurm", "kubernetes", "ray",
        "ray_object_store", "batch_system", "killed", "compiler_killed",
    }
)  # fmt: skip
OTHER_SOFTWARE: Final = frozenset(
    {
        "triton", "vllm", "sglang", "tgi", "accelerate", "jax", "torch_xla", "tensorflow", "paddle", "onnxruntime", "tensorrt",
        "xpu_block",
    }
)  # fmt: skip
"""Errors that are not of PyTorch's allocator, and of which the text alone is known."""
IN_TEXTS_ONLY: Final = (
    OTHER_SOFTWARE
    | (ON_HOST - {"host", "worker_killed", "shared_memory"})
    | {"pytorch_bare", "mps", "xpu", "npu", "dml", "hpu", "cupy", "ggml"}
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
    needs: str = ""
    """Part of each such text. Where it is missing, a costly search is not made."""


_DEVICE: Final = r"(?:CUDA|HIP|XPU|NPU|MLU|MUSA)"
_SIZE: Final = r"\d[\d.]{0,20}\s{0,4}(?:bytes|[KMGT]iB)"
_WITHOUT_HEAD: Final = (
    r"\A(?![^\n]{0,200}ried to allocate)(?=[\s\S]{0,1000}?(?:non-PyTorch memory|(?:reserved|in total|allocated) by PyTorch))"
    r"[^\n]{0,100}?"
    rf"(?:\bof which {_SIZE} is free\.|{_SIZE} already allocated; {_SIZE} free|Of the allocated memory {_SIZE} is allocated by)"
)
"""A text that begins within a message: people copy its last lines. Other programs print free memory in similar words."""
_STATES: Final = r"""(?:^[ \t]{0,40}|(?<=[\]:|>("'=-])|(?<=[\]:|>("'=-] )|(?<=Error ))"""
"""What stands before words that report an error. Within a sentence the same words may be a hint."""
LOOKS_FOR: Final = re.compile(r"""[^"'\n]{0,100}["'] {0,3}(?:not )?in\b""")
"""What follows such words in a source line that looks for them in an error, as tracebacks show it."""
_JOB_ENDED: Final = (
    r"(?:(?<![-\w])(?:[Jj]ob)?[Ss]tate|\b(?i:slurm) status)(?: is)?[\"']?\s{0,20}[:=]?\s{0,20}"
    r"(?:\{?[\"']current[\"']: ?)?[\"'\[]{0,3}"
    r"OUT_OF_ME(?:MORY\b|[MOR]{0,3}\+)(?![\"']?\s{0,3}[:=]|[\"'][^\n}]{0,300}\} (?:0\b|[<>=!]))"
    r"|\bOUT_OF_ME(?:MORY|[MOR]{0,3}\+)[ |]{1,20}\d{1,3}:\d{1,3}\b"
    r"|^[ \t]{0,20}\d{1,12}(?:_\d{1,6})?(?:\.\w{1,20})?[ |][^\n=]{0,200}(?<!:)[ |]OUT_OF_ME(?:MORY|[MOR]{0,3}\+)(?=[ |]|$)"
    r"|\bJob_id=\d{1,12} [^\n]{0,300}, OUT_OF_MEMORY\b"
)
"""The state of a Slurm job: in words, in a table of sacct, in the subject of a mail. The name of the state alone is none."""
_EXIT_CODE: Final = (
    r"(?i:\b(?:exit|return)(?:[ _-]?(?:code|status|value)(?: (?:is|was|of))?"
    r"|(?:ed|s)? with(?: an?)?(?: non-?zero)?(?: (?:code|status))?|ed an? non-?zero code)"
    r"[\"']?\s{0,20}[:=]?\s{0,20}[\"'\[(]?(?:137|-9))"
    r"(?=[\"'\])}]{0,3}(?:[ \t]{0,40}$|[.,;:](?:\s(?!got|but)|$)|\s{1,3}[(|\-]|\\|\s{2}|\s{0,3}[}\]]))"
)
"""The exit code of a process, at the end of what is said. Numbers in other places are counts."""
_OOM_KILLED: Final = (
    r"(?i:reason|state|status|error|terminated|failed)[\"']?\s{0,20}[:=]\s{0,20}[\"']?OOMKilled"
    r"(?![\"']?\s{0,20}[:=]|[\"'][^\n}]{0,300}\} (?:0\b|[<>=!]))(?=[\"']?(?:[ \t]{0,40}$|[.,;)}\]]|\s{2}|\s\())"
    r"|\bOOMKilled[\"']?\s{0,20}[:=]?\s{0,20}[\"']?[Tt]rue\b"
    r"|\d/\d{1,3}\s{1,20}(?:Init:)?OOMKilled\b|(?:was|been|got) OOMKilled\b|\(OOMKilled\)|\[OOMKilled\]"
    r"|^[ \t]{0,40}OOMKilled[ \t]{0,40}$|\bOOMKilled[^\n\w]{1,5}(?i:exit(?:ed)? (?:with )?code|with exit code)[: ]{1,3}137\b"
)
"""A container that ran out of memory. The word alone is the name of a field, of a counter or in a program."""
_KILLED_IN_OTHER_LANGUAGES: Final = "Getötet|Processus arrêté|Terminado \\(killed\\)|Ucciso|Убито|已杀死|強制終了"
"""How shells report SIGKILL in German, French, Spanish, Italian, Russian, Chinese and Japanese."""
_UNIT_ENDED: Final = r"\bcode=exited, status=137\b|\bcode=killed, (?:status|signal)=9/KILL\b"
"""How systemd reports the end of a process."""
_TENSORRT: Final = (
    r"(?<!\[[WIV]\] )\[TRT\](?! \[[WIV]\])[^\n]{0,200}"
    r"(?:OutOfMemory|out of memory|Requested amount of GPU memory \(\d{1,20} bytes\) could not be allocated)"
    r"|\[E\] [^\n]{0,200}Error Code 2: OutOfMemory"
)
"""Its warnings are harmless: it tries another way."""
_OLD_ALLOCATOR: Final = (
    r"cuda runtime error \(2\) ?: out of memory at \S{1,200}\bTHC(?:Storage|CachingAllocator)\."
    r"|THCudaCheck FAIL file=\S{1,200}\bTHC(?:Storage|CachingAllocator)\.\w{1,3} line=\d{1,5} error=2 : out of memory"
)
"""Files of PyTorch's own allocator before version 1.0."""
_TABLE: Final[tuple[tuple[str, str, bool], ...]] = (
    ("xpu_block", r"platform can NOT allocate memory block with size larger than 4 ?GB", True),
    ("preemptive", _DEVICE + r" out of memory\. Allocation was preemptively rejected", True),
    ("pytorch", rf"{_DEVICE} out of memory\.\s{{0,40}}(?:\w{{1,40}} )?[Tt]ried to allocate"
     rf"|Tried to allocate\s{{1,40}}{_SIZE}\.?\s{{1,40}}\(?(?:GPU|NPU|XPU|MLU) \d|{_WITHOUT_HEAD}", True),
    ("cudaMallocAsync", r"Allocation on device \d{1,4} would exceed allowed memory", True),
    ("mps", r"MPS backend out of memory|Invalid buffer size: \d[\d.]{0,20} ?[KMGT]i?B"
     r"|Insufficient Memory \(\d{1,8}:kIOGPUCommandBufferCallbackErrorOutOfMemory\)", True),
    ("vllm", r"No available memory for the cache blocks|is less than desired GPU memory utilization"
     r"|gpu_memory_utilization` when initializing the engine"
     r"|KV cache is needed, which is larger than the available KV cache memory"
     r"|larger than the maximum number of tokens that can be stored in KV cache", True),
    ("pytorch_bare", rf"{_STATES}{_DEVICE} out of memory\b(?! errors?\b)"
     rf"|OutOfMemoryError: Allocation on device(?! \d{{1,4}} would exceed)"
     r"|!!! Exception during processing !!! Allocation on device|^Got an OOM, unloading all loaded models"
     r"|NVML_SUCCESS == [^\n]{1,80} INTERNAL ASSERT FAILED at [^\n]{1,80}CUDACachingAllocator|" + _OLD_ALLOCATOR, True),
    ("sglang", r"Not enough memory\. Please try to (?:in|de)crease --mem-fraction-static"
     r"|(?:Prefill|Decode) out of memory\. Try to lower your batch size", True),
    ("tgi", r"Not enough memory to handle \d{1,9} prefill tokens", True),
    ("accelerate", r"Some modules are dispatched on the CPU or the disk\. Make sure you have enough GPU RAM", True),
    ("npu", r"EL0004: Failed to allocate memory|aclrtMalloc\w{0,20} error code is 207001"
     r"|error code is 207001[^\n]{0,100}aclrtMalloc", True),
    ("dml", r"DML allocator out of memory|There is not enough GPU video memory available", True),
    ("hpu", r"MODULE:PT_DEVMEM Allocation failed for size", True),
    ("cublas", r"CUBLAS_STATUS_ALLOC_FAILED|cublas runtime error : resource allocation failed", True),
    ("hipblas", r"HIPBLAS_STATUS_ALLOC_FAILED|rocblas_status_memory_error", True),
    ("miopen", r"miopenStatusAllocFailed", True),
    ("cupy", r"cupy[\w.]{0,40}\.OutOfMemoryError", True),
    ("ggml", r"ggml_\w{1,60}: allocating [^\n]{1,100}: (?:cuda|hip)Malloc failed"
     r"|ggml_\w{1,60}: failed to allocate [^\n]{0,60}buffer"
     r"|failed to allocate buffer for kv cache"
     r"|ggml-cuda\.cu:\d{1,6}: out of memory"
     r"|unable to allocate (?:CUDA|ROCm|Metal|Vulkan)\w{0,10} buffer", True),
    ("onnxruntime", r"onnxruntime::BFCArena::AllocateRawInternal|onnxruntime[^\n]{0,300}CUDA failure 2: out of memory"
     r"|CUDA failure 2: out of memory(?=[^\n]{0,200}onnxruntime)|Failed to allocate memory for requested buffer of size \d", True),
    ("tensorrt", _TENSORRT, True),
    ("cudnn", r"CUDNN_STATUS_(?:ALLOC_FAILED|INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED)", True),
    ("cusolver", r"(?:CU|HIP)SOLVER_STATUS_ALLOC_FAILED", True),
    ("cusparse", r"CUSPARSE_STATUS_(?:ALLOC_FAILED|INSUFFICIENT_RESOURCES)|insufficient resources when calling `cusparse", True),
    ("cufft", r"CUFFT_ALLOC_FAILED", True),
    ("bitsandbytes", r"Error:? (?:CUDA )?out of memory at line \d{1,6} in file [^\n]{0,300}", True),
    ("xpu", r"(?:UR_RESULT|ZE_RESULT)_ERROR_OUT_OF_DEVICE_MEMORY|(?:PI|UR_RESULT)_ERROR_OUT_OF_RESOURCES", True),
    ("triton", r"OutOfResources: out of resource|out of resource: [^\n,]{1,200}?,? Required:? ?\d", True),
    ("jax", r"RESOURCE_EXHAUSTED: (?!OOM when)(?=[^\n]{0,200}(?:[Mm]emory|MEMORY|[Aa]llocat))"
     r"|XlaRuntimeError: \w{1,30}: Failed to allocate \d|Attempting to reserve [\d.]{1,10}[MG] at the bottom of memory"
     r"|\bexternal/xla/[^\n]{1,80}bfc_allocator\.cc:\d{1,5}\] Allocator \(\w{1,20}\) ran out of memory", True),
    ("paddle", r"Out of memory error on GPU \d{1,4}\. Cannot allocate", True),
    ("tensorflow", r"OOM when allocating tensor|ResourceExhaustedError: (?=[^\n]{0,200}(?:[Mm]emory|[Aa]llocat))"
     r"|Allocator \(GPU_\d{1,3}_bfc\) ran out of memory", True),
    ("nccl", r"ncclUnhandledCudaError|unhandled cuda error|NCCL WARN Cuda failure|RCCL error", True),
    ("worker_killed", r"DataLoader worker \(pid\(?s?\)?:? ?[\d, ]{1,200}\) (?:is killed by signal: Killed|exited unexpectedly)",
     True),
    ("shared_memory", r"workers? (?:are|is) out of shared memory|insufficient shared memory \(shm\)"
     r"|unable to (?:mmap|open shared memory|write to file|resize file|allocate shared memory)[^\n]{0,120}"
     r"(?:</?torch_|/dev/shm)(?=[^\n]{0,120}(?:No space left|Cannot allocate memory))", True),
    ("shared_memory", r"is killed by signal: Bus error", False),
    ("shared_memory", r"unable to allocate shared memory\(shm\) for file </?torch_", False),
    ("nccl_shared_memory", r"NCCL WARN (?:Error while creating shared memory segment|Error: failed to extend) /dev/shm"
     r"|NCCL WARN Call to (?:posix_fallocate|ftruncate) failed ?: No space left on device"
     r"|Error while creating shared memory segment /dev/shm/nccl-\S{1,40} \(size \d", True),
    ("ray", r"node running low on memory|ray\.exceptions\.OutOfMemoryError"
     r"|[1-9]\d{0,6} Workers \(tasks / actors\) killed due to memory pressure", True),
    ("ray_object_store", r"ObjectStoreFullError: (?=\S)", True),
    ("slurm", r"oom[-_]kill event|Exceeded (?:job|step) memory limit"
     r"|slurmstepd: error: (?:Job|Step) [\d.]{1,20} exceeded memory limit|cgroup out-of-memory handler"
     r"|error: [^\n]{0,80}: Out Of Memory$", True),
    ("slurm", _JOB_ENDED, True),
    ("kubernetes", _OOM_KILLED, True),
    ("kubernetes", r"Container killed due to memory usage"
     r"|Container killed by YARN for exceeding (?:physical |virtual )?memory limits"
     r"|ran out-of-memory and exited with a non-zero status of 137|Memory limit of \d{1,9} Mi?B exceeded with"
     r"|node was low on resource: memory\b", True),
    ("batch_system", r"TERM_MEMLIMIT\b|PBS: job killed: \w{0,6}mem \d{1,20}\w{0,2} exceeded limit"
     r"|[Mm]emory usage exceeded request_memory|Job has gone over (?:cgroup )?memory limit"
     r"|exceeds job (?:hard|soft) limit .h?_?(?:vmem|rss)", True),
    ("kernel", r"killed by the OOM killer|Failed with result 'oom-kill'|systemd-oomd\[\d{1,9}\]: Killed [^\n]{1,400}? due to memory"
     r"|earlyoom\[\d{1,9}\]: sending SIG(?:TERM|KILL) to process|Out of memory: Kill(?:ed)? process"
     r"|[Mm]emory cgroup out of memory|oom-kill:constraint|invoked oom-killer"
     r"|System OOM encountered, victim process: \S"
     r"|oom_reaper: reaped process", True),
    ("cuda", r"(?:CUDA|Cuda)(?: driver| runtime)? (?:[Ee]rror|[Ff]ailure)(?:[:=]? (?:code )?\(?2\)?)?(?:: | \()'?out of memory"
     r"|cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY|cuda(?:Malloc|HostAlloc)\w{0,20}[^\n\w]{1,3}[\w ]{0,30}: ?out of memory"
     r"|cudaMalloc error out of memory|CUDA failed with error out of memory|Triton Error \[CUDA\]: out of memory"
     r"|initialization with error: (?:\w{1,60}\(?\)?\. Error \d{1,3}: )?out of memory"
     r"|cuda runtime error \(2\) ?: out of memory|error=2 : out of memory"
     r"|\(-217:Gpu API call\) out of memory|\.(?:cuh?|cpp):\d{1,6}[,.]\s{0,3}code: ?2, reason: out of memory"
     r"|\bOutOfGPUMemoryError: Out of GPU memory|^(?:RuntimeError: )?Workspace can't be allocated, no enough memory"
     r"|RMM failure at|rmm::(?:bad_alloc|out_of_memory)|(?:MemoryError: )?std::bad_alloc: [^\n]{0,40}CUDA error at", True),
    ("hip", r"(?:HIP|hip)(?: runtime)? error: out of memory|hipErrorOutOfMemory|Triton Error \[HIP\]: out of memory", True),
    ("hip", r"HSA_STATUS_ERROR_OUT_OF_RESOURCES", False),
    ("host", r"DefaultCPUAllocator: (?:can't allocate|not enough) memory|Unable to allocate [^\n]{1,60} for an array"
     r"|\$ Torch: not enough memory|posix_memalign\([^\n]{1,60} == 0\. 12 vs 0|Caught MemoryError in"
     r"|crashed after using all available RAM|notebook tried to allocate more memory than is available"
     r"|Cannot allocate memory|std::bad_alloc(?!: [^\n]{0,40}CUDA error at)|^memory allocation of \d{1,20} bytes failed"
     r"|ArrowMemoryError: (?:re|m)alloc of size \d|OpenBLAS error: Memory allocation still failed"
     r"|(?:PI|UR_RESULT|ZE_RESULT)_ERROR_OUT_OF_HOST_MEMORY|\[WinError (?:8|14|1455)\]", True),
    ("host", r"(?<![\w(.])(?=[A-Za-z_])(?<!except )(?<!raise )"
     r"(?:\w{1,40}\.){0,6}_?(?:Array)?MemoryError(?=: *\S| *$)(?!: std::bad_alloc: [^\n]{0,40}CUDA error at)", True),
    ("cublas", r"CUBLAS_STATUS_NOT_INITIALIZED", False),
    ("cusolver", r"CUSOLVER_STATUS_(?:NOT_INITIALIZED|INTERNAL_ERROR)[^\n]{0,20}when calling `\w{1,40}Create\(", False),
    ("hipblas", r"HIPBLAS_STATUS_NOT_INITIALIZED", False),
    ("cudnn", r"Unable to find a valid cuDNN algorithm|(?:GET|FIND) was unable to find an engine to execute", False),
    ("pytorch_bare", r"No executable batch size found, reached zero", False),
    ("cudnn", r"CUDNN_STATUS_NOT_INITIALIZED|CUDNN_STATUS_INTERNAL_ERROR\b(?!_)", False),
    ("killed", r"^[ \t]{0,40}(?:\S{1,40}: line \d{1,9}: +\d{1,9} )?Killed(?= *$| {2,}\S| *\()"
     r"|^[ \t]{0,40}(?:zsh: killed +(?!by )\S|fish: [^\n]{1,300} terminated by signal SIGKILL)|died with <Signals\.SIGKILL: 9>"
     r"|(?:[Cc]ommand terminated|shut ?down|terminated|exited|ended|stopped) (?:with|by|on|due to) signal:? 9"
     r"(?=(?: rank=\d{1,6})?[ \t.)\]]{0,4}$)"
     r"|interrupted by signal 9: ?SIGKILL|exitcode ?: -9\b|Signal 9 \(SIGKILL\)"
     rf"|{_EXIT_CODE}"
     r"|was sent SIGKILL! Perhaps out of memory|\b[Ee]xited \(137\)"
     r"|make(?:\[\d{1,3}\])?: \*\*\* \[[^\n]{1,200}\] (?:Killed|Error 137)"
     r"|terminated with signal SIGKILL|\bsignal: killed\b|exited on signal 9 \(Killed\)|killed by SIGKILL by OOM killer"
     r"|exit codes of the workers are \{[^\n}]{0,200}SIGKILL", False),
    ("killed", _UNIT_ENDED, False),
    ("killed", rf"(?:: \w{{1,12}} \d{{1,9}}: +\d{{1,9}} |^[ \t]{{0,40}})(?:{_KILLED_IN_OTHER_LANGUAGES})(?= *$| {{2,}}\S)", False),
    ("compiler_killed", r"Killed signal terminated program \w|: '\w{1,20}' died due to signal 9\b", False),
)  # fmt: skip
"""Kind, words and whether they are certain; the most specific first."""
_PROOFS: Final = {"nccl": "out of memory", "worker_killed": "Killed"}
_NEEDS: Final = {_JOB_ENDED: "OUT_OF_ME", _OOM_KILLED: "OOMKilled", _UNIT_ENDED: "code="}
_OTHER_REASONS: Final = {
    "nccl": re.compile(r"Cuda failure \d{0,5} ?'(?!out of memory)"),
    "tensorflow": re.compile(r"this is not a failure"),
    "tensorrt": re.compile(r"[Ss]kipping tactic"),
}

BEGINNINGS: Final = tuple(
    Beginning(
        kind,
        re.compile(words, re.MULTILINE),
        certain,
        _PROOFS.get(kind, ""),
        _OTHER_REASONS.get(kind),
        _NEEDS.get(words, ""),
    )
    for kind, words, certain in _TABLE
)
OWN_WORDS: Final = frozenset({"preemptive", "pytorch", "cudaMallocAsync", "mps"})
"""Kinds whose words occur once in each error."""
