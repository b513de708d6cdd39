# ruff: noqa: E501 - lines of logs
"""One line in a log is an out-of-memory error of a kind, or none at all."""

from __future__ import annotations

import pytest

from vramscope.oom_diagnosis.diagnosis import diagnose
from vramscope.oom_diagnosis.evidence import facts_of_message
from vramscope.oom_diagnosis.message_backend import conf_of
from vramscope.oom_diagnosis.parse_message import parse

NO_ERROR = r"""
If the training was terminated by signal 9, give it more memory.
[ops] worker 3 stopped by signal 9 as requested (rolling restart)
[train] cuda:0 has 80.00 GiB of which 40.10 GiB is free.
INFO: Exit code: 0, 137 files copied
Killed 3 zombie processes in 2 s
torch.cuda.OutOfMemoryError is caught in trainer.py and the batch is skipped
DeprecationWarning: torch.cuda.OutOfMemoryError is deprecated, use torch.OutOfMemoryError
GradScaler: OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768
| N/A   41C    P0   62W / 300W |  78231MiB / 81920MiB |     99%      Default |
ooms: 0, retries: 3, status 137/200
returned 137 results
RuntimeError: CUDA error: device-side assert triggered
RuntimeError: CUDA error: no kernel image is available for execution on the device
RuntimeError: CUDA error: too many resources requested for launch
RuntimeError: CUDA error: unspecified launch failure
RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED
RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm(...)`
RuntimeError: [enforce fail at inline_container.cc:603] . unexpected pos
ImportError: libgomp.so: cannot allocate memory in static TLS block
wandb: ERROR Run killed: exceeded quota of storage
Process finished with exit code 1
exitcode  : 1 (pid: 7123)
exitcode  : -11 (pid: 7123)
exitcode  : -15 (pid: 7123)
slurmstepd: error: *** STEP 1.0 ON n1 CANCELLED AT 2025-01-01 DUE TO PREEMPTION ***
RuntimeError: DataLoader worker (pid 19) is killed by signal: Terminated.
RuntimeError: DataLoader worker (pid 19) is killed by signal: Aborted.
OSError: [Errno 28] No space left on device
OSError: [Errno 24] Too many open files
RuntimeError: unable to open shared memory object </torch_44> in read-write mode: No such file or directory (2)
NCCL WARN Call to posix_fallocate failed : Operation not permitted
NCCL INFO Channel 00/0 : 0[0] -> 1[1] via SHM/direct/direct
NCCL WARN Error: failed to bind
torch.distributed.DistBackendError: NCCL error ... ncclInvalidUsage: Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000
RuntimeError: NCCL communicator was aborted on rank 3.
ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.
ncclRemoteError: A call failed possibly due to a network error
[TRT] [I] [MemUsageChange] Init cuBLAS/cuBLASLt: CPU +0, GPU +8, now: CPU 3000, GPU 900 (MiB)
Test cases: test_out_of_memory PASSED
Setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid out of memory
jax.errors.TracerArrayConversionError: x
RESOURCE_EXHAUSTED: Received message larger than max (5MB vs 4MB)
grpc StatusCode.RESOURCE_EXHAUSTED details = "Received message larger than max"
tensorflow I Created device /job:localhost/replica:0/task:0/device:GPU:0 with 78200 MB memory
java.lang.OutOfMemoryError: Java heap space
JavaScript heap out of memory
FATAL ERROR: Ineffective mark-compacts near heap limit Allocation failed - JavaScript heap out of memory
ValueError: The checkpoint you are trying to load has model type `qwen`
torch.AcceleratorError: CUDA error: an illegal memory access was encountered
HIP error: invalid device function
Segmentation fault (core dumped)
Bus error (core dumped)
Aborted (core dumped)
AssertionError: Torch not compiled with CUDA enabled
UserWarning: expandable_segments not supported on this platform
psycopg2.errors.OutOfMemory: out of shared memory HINT: You might need to increase max_locks_per_transaction.
OperationalError: (1038, 'Out of sort memory, consider increasing server sort buffer size')
redis.exceptions.ResponseError: OOM command not allowed when used memory > 'maxmemory'.
opening checkpoint: Cannot allocate 5 shards
CUDA-MEMCHECK: 0 errors
GPU 0: out of memory check disabled
[rank0]: RuntimeError: The size of tensor a (64) must match
--oom-score-adj=-999
container exited with status 137000
status=137s
trainer exited with code 0
Exit status: 143
returned non-zero exit status 1.
exit code -9223372036854775808
Running out of memory? See docs/oom.md
We ran out of memory tests to run
MemoryErrors: 0
[TRT] [W] Requested amount of GPU memory (4294967296 bytes) could not be allocated. Skipping tactic 3.
[01/02/2026-10:00:00] [W] [TRT] Requested amount of GPU memory (4294967296 bytes) could not be allocated.
[TRT] [E] 2: Error Code 2: OutOfMemory (no further information) Skipping tactic 0 due to insufficient memory
COMPLETED=10 FAILED=0 OUT_OF_MEMORY=0 TIMEOUT=0
#SBATCH --mail-type=OUT_OF_MEMORY
rpc error: OUT_OF_MEMORY
12 rpc error: OUT_OF_MEMORY
States: OUT_OF_MEMORY: 0, TIMEOUT: 0
Status: 137 files processed
HTTP status: 137
status: 137%
loss exit: -9
return code 0, status=137 bytes
tests exited with status 137 out of 200
if exit_code == 137:
exit code: 137 means out of memory
"OOMKilled": null
OOMKilled: "false"
OOMKilled: no
OOMKilled      false
OOMKilled count: 0
pods_oomkilled_total{reason="OOMKilled"} 0
if reason == 'OOMKilled':
# no OOMKilled seen
[TensorRT] INFO: [MemUsageStats] Peak memory usage of TRT CPU/GPU memory allocators: CPU 13 MiB, GPU 512 MiB
[TRT] [W] Tactic Device request: 6500MB Available: 5000MB. Device memory is insufficient to use tactic.
[W] [TRT] Skipping tactic 4 due to insufficient memory on requested size of 6815744000 detected for tactic 0x0.
    with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
        if re.search("CUDA out of memory", str(error)):
    step.side_effect = RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB")
+            raise RuntimeError("CUDA out of memory. Tried to allocate too much")
    assert "CUDA error: out of memory" in printed
WARNING: KV cache pool is full. Retract requests. #retracted_reqs: 4, #new_token_ratio: 0.6
except ray.exceptions.ObjectStoreFullError:
the memory allocation of 2 GiB failed once and was repeated
ray.exceptions.OutOfDiskError: Local disk is full
sacct --state=OUT_OF_MEMORY --starttime 2026-01-01
squeue: State filter OUT_OF_MEMORY,TIMEOUT requested, no jobs found
WATCHED_STATES = {"FAILED", "OUT_OF_MEMORY", "TIMEOUT"}
job 812 finished: COMPLETED (no OUT_OF_MEMORY seen)
vk::Result::OUT_OF_MEMORY is handled by the renderer
slurm_jobs_total{state="OUT_OF_MEMORY"} 0
slurm_jobs{state="out_of_memory"} 0
137 tests passed, exit code 0
exit code 0 after 137 s
pytest exited with status 0 (137 passed)
port 137 is in use, status ok
loss=-9.0 status=ok
user 137 exited with a high score
subprocess exited with code 1370
Expected exit code 137, got 0
retry if exit code is 137 or 143
restartPolicy: OnFailure  # exit codes 137, 143
podFailurePolicy: onExitCodes: values: [137]
alert: KubePodOOMKilled expr: kube_pod_container_status_last_terminated_reason{reason="OOMKilled"} > 0
kubectl get events --field-selector reason=OOMKilling
{"OOMKilled":false,"Dead":false,"Pid":0,"ExitCode":0}
"State": {"Status": "running", "OOMKilled": false, "ExitCode": 0}
oom_score_adj set to -500
echo "set PYTORCH_CUDA_ALLOC_CONF if you see CUDA out of memory errors"
torch.cuda.memory_stats: num_ooms=0 num_alloc_retries=0
# CUDA out of memory? lower --batch-size
def handle_oom(error: torch.cuda.OutOfMemoryError) -> None:
XLA_PYTHON_CLIENT_MEM_FRACTION=.9 RESOURCE_EXHAUSTED retries: 0
INFO: cudaMallocAsync backend in use, allowed memory 70 GiB
except torch.cuda.OutOfMemoryError: continue
deepspeed info: DeepSpeed general environment: shared memory (/dev/shm) size .... 31.31 GB
"""
ERRORS = {
    "memory allocation of 8589934592 bytes failed": "host",
    "pyarrow.lib.ArrowMemoryError: malloc of size 2147483648 failed": "host",
    "OpenBLAS error: Memory allocation still failed after 10 retries, giving up.": "host",
    "RuntimeError: Decode out of memory. Try to lower your batch size.": "sglang",
    "ray.exceptions.ObjectStoreFullError: Failed to put object ffff in object store because it is full.": "ray_object_store",
    "srun: error: node12: task 3: Out Of Memory": "slurm",
    "slurmstepd: error: Detected 1 oom_kill event in StepId=812.0. Some of the step tasks have been OOM Killed.": "slurm",
    "JobId=812 JobName=train JobState=OUT_OF_MEMORY Reason=OutOfMemory": "slurm",
    "812          train-gpt+      gpu   research          8 OUT_OF_ME+    0:125": "slurm",
    "Final state: OUT_OF_MEMORY": "slurm",
    "    Last State:     Terminated Reason: OOMKilled": "kubernetes",
    '{"State":{"Status":"exited","OOMKilled":true,"ExitCode":137}}': "kubernetes",
    'message: "Pod train-0 failed: OOMKilled"': "kubernetes",
    "trainer-7d9f   0/2   OOMKilled   0   3m12s": "kubernetes",
    "torch.AcceleratorError: CUDA error: out of memory": "cuda",
    "RuntimeError: MPS backend out of memory (MPS allocated: 17.93 GiB, other allocations: 1.50 GiB, max allowed: 18.13 GiB). Tried to allocate 256.00 MiB on private pool.": "mps",
    "RuntimeError: Invalid buffer size: 20.00 GiB": "mps",
    "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 4,294,967,296 bytes.": "jax",
    "RuntimeError: MUSA out of memory. Tried to allocate 2.00 GiB (GPU 0; 47.9 GiB total capacity; 40.0 GiB already allocated; 1.0 GiB free; 41.0 GiB reserved in total by PyTorch)": "pytorch",
    "RuntimeError: cublas runtime error : resource allocation failed at /pytorch/aten/src/THC/THCGeneral.cpp:250": "cublas",
    "terminate called after throwing an instance of 'thrust::system::system_error'  what():  parallel_for failed: cudaErrorMemoryAllocation: out of memory": "cuda",
    "RuntimeError: CUDA failed with error out of memory": "cuda",
    "RuntimeError: CUDA error (2): out of memory": "cuda",
    "te/util/cuda_runtime.cpp:60 in function f: CUDA Error: out of memory": "cuda",
    'RuntimeError: NVML_SUCCESS == r INTERNAL ASSERT FAILED at "/pytorch/c10/cuda/CUDACachingAllocator.cpp":838, please report a bug': "pytorch_bare",
    "!!! Exception during processing !!! Allocation on device": "pytorch_bare",
    "hipErrorOutOfMemory: out of memory": "hip",
    "RuntimeError: [PTA] malloc failed: aclrtMallocAlign32 error code is 207001": "npu",
    "RuntimeError: DML allocator out of memory!": "dml",
    "RuntimeError: Not enough memory to handle 4096 prefill tokens. You need to decrease `--max-batch-prefill-tokens`": "tgi",
    "ggml-cuda.cu:7864: out of memory": "ggml",
    "[TRT] [E] 1: [defaultAllocator.cpp::allocate::20] Error Code 1: Cuda Runtime (out of memory)": "tensorrt",
    "RuntimeError: Attempting to reserve 12.61G at the bottom of memory. That was not possible.": "jax",
    "slurmstepd: error: Job 812 exceeded memory limit (66060288 > 65536000), being killed": "slurm",
    "State: OUT_OF_MEMORY (exit code 0)": "slurm",
    '"reason": "OutOfMemoryError: Container killed due to memory usage"': "kubernetes",
    "Warning  Evicted  kubelet  The node was low on resource: memory.": "kubernetes",
    'job 12.0 exceeds job hard limit "h_vmem" of queue (4096.0 > limit:4000.0)': "batch_system",
    "torch.cuda.OutOfMemoryError: Allocation on device 0 would exceed allowed memory.": "cudaMallocAsync",
    "[TRT] [E] 2: [virtualMemoryBuffer.cpp::resizePhysical::140] Error Code 2: OutOfMemory (no further information)": "tensorrt",
    "JobState=OUT_OF_MEMORY Reason=OutOfMemory Dependency=(null)": "slurm",
    "812.batch         batch   OUT_OF_ME+    0:125": "slurm",
    "812|train|OUT_OF_MEMORY|": "slurm",
    "812_3.extern  python  00:10:12  OUT_OF_MEMORY ": "slurm",
    "Slurm Job_id=812 Name=train Failed, Run time 00:10:00, OUT_OF_MEMORY": "slurm",
    '"state": {"current": ["OUT_OF_MEMORY"], "reason": "None"}': "slurm",
    "SLURM-job '812' failed, SLURM status is: 'OUT_OF_MEMORY'": "slurm",
    "      Reason:       OOMKilled": "kubernetes",
    '"reason": "OOMKilled",': "kubernetes",
    '"OOMKilled": true,': "kubernetes",
    "train-0   0/1     OOMKilled   2 (5m ago)   10m": "kubernetes",
    "Last State: Terminated (OOMKilled)": "kubernetes",
    "The container was OOMKilled.": "kubernetes",
    "Container trainer OOMKilled (exit code 137)": "kubernetes",
    'kube_pod_container_status_last_terminated_reason{pod="a",reason="OOMKilled"} 1': "kubernetes",
    "RuntimeError: Native API returns: -6 (PI_ERROR_OUT_OF_HOST_MEMORY)": "host",
}
BUS_ERROR = "RuntimeError: DataLoader worker (pid 512) is killed by signal: Bus error. "
UNCERTAIN = {
    "ERROR: Job failed: exit code 137": "killed",
    "##[error]Process completed with exit code 137.": "killed",
    "The command '/bin/sh -c python train.py' returned a non-zero code: 137": "killed",
    "torch.distributed.elastic.multiprocessing.api: [ERROR] failed (exitcode: -9) local_rank: 1 (pid: 812) of binary: /usr/bin/python": "killed",
    "error Command failed with exit code 137 (SIGKILL)": "killed",
    "main.service: Main process exited, code=killed, status=9/KILL": "killed",
    'container "trainer" terminated with exit code 137, reason "Error"': "killed",
    "task exited with return code -9": "killed",
    "Exited (137) 3 minutes ago": "killed",
    '"exitCode": 137': "killed",
    "make: *** [Makefile:3: train] Error 137": "killed",
    "Exited with exit code 137.": "killed",
    "exitcode  : -9 (pid: 71)": "killed",
    "subprocess returned non-zero exit status 137.": "killed",
    "train.service: Main process exited, code=exited, status=137/n/a": "killed",
    "train.service: Main process exited, code=killed, status=9/KILL": "killed",
    "ProcessExitedException: process 1 terminated with signal SIGKILL": "killed",
    "[ERROR] ['/usr/bin/python3'] exits with return code = -9": "killed",
    BUS_ERROR: "shared_memory",
    "run.sh: Zeile 14:  9120 Getötet                 python train.py": "killed",
    "run.sh: 行 14:  9120 已杀死               python train.py": "killed",
    "nvcc error   : 'cicc' died due to signal 9 (Kill signal)": "compiler_killed",
    "g++: fatal error: Killed signal terminated program cc1plus": "compiler_killed",
    "RuntimeError: GET was unable to find an engine to execute this computation": "cudnn",
}


@pytest.mark.parametrize("prefix", ["", "[rank0]: ", "12: "])
def test_a_source_line_of_a_traceback_is_no_error(prefix: str) -> None:
    """The last line of the traceback is one, also where the source line is missing."""
    frame, source, error = (
        '  File "a.py", line 3, in f',
        "    fail('CUDA out of memory')",
        "RuntimeError: CUDA out of memory",
    )
    with_source = "".join(f"{prefix}{line}\n" for line in (frame, source, "KeyError: 3"))
    assert parse(with_source).kind == "unknown"
    assert parse("".join(f"{prefix}{line}\n" for line in (frame, error))).kind == "pytorch_bare"


def test_an_error_of_a_library_after_a_failed_assertion_is_no_lack_of_memory() -> None:
    failed = "Loss.cu:242: nll_loss: block: [0,0,0], thread: [1,0,0] Assertion `t >= 0 && t < n_classes` failed.\n"
    error = "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`\n"
    assert parse(failed + error).kind == "unknown"
    assert parse(failed + "step\n" * 2000 + error).kind == "cublas"


def test_an_error_after_source_code_on_one_line_of_json_is_read() -> None:
    text = '{"exc": "Traceback:\\n    raise RuntimeError(text)\\nRuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB"}'
    assert parse(text).kind == "pytorch"


@pytest.mark.parametrize(
    "last", ["raise RuntimeError(text)", "raise error.with_traceback(frames)", "pytest.raises(Fault)"]
)
def test_an_error_after_a_complete_statement_on_its_line_is_read(last: str) -> None:
    """As a page or a table shows a traceback whose line ends were lost."""
    error = "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB"
    assert parse(f'Traceback (most recent call last): File "a.py", line 3, in f {last} {error}').kind == "pytorch"
    assert parse(f'E   raise RuntimeError(f"{{name(3)}}: {error}")').kind == "unknown"


def test_an_error_after_an_assertion_on_its_line_is_read() -> None:
    """Within the string of the assertion the same words are no error."""
    error = "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB"
    assert parse(f'{{"src": "x"}} assert "cuda" in str(device) {error}').kind == "pytorch"
    assert parse(f"assert 'cuda' in name, {error}").kind == "pytorch"
    assert parse(f'    assert "{error}" in str(raised)').kind == "unknown"
    assert parse(f"E   assert 'no' == '{error}'").kind == "unknown"


@pytest.mark.parametrize("line", NO_ERROR.strip().splitlines())
def test_a_line_that_is_no_error_is_not_taken_for_one(line: str) -> None:
    assert parse(f"epoch 1 loss 0.2\n{line}\nepoch 2\n").kind == "unknown"


@pytest.mark.parametrize(("line", "kind"), [*ERRORS.items(), *UNCERTAIN.items()])
def test_a_line_has_its_kind(line: str, kind: str) -> None:
    message = parse(f"epoch 1 loss 0.2\n{line}\n")
    assert (message.kind, message.certain, message.errors) == (kind, line in ERRORS, 1)


@pytest.mark.parametrize(("line", "hedged"), [("exit code: 137", "likely"), (BUS_ERROR, "may have run out")])
def test_the_headline_of_an_uncertain_text_is_no_claim(line: str, hedged: str) -> None:
    assert hedged in diagnose(facts_of_message(parse(line))).sentence.split(".")[0]


def test_a_warning_of_tensorrt_does_not_hide_the_error() -> None:
    error = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has"
    warning = "[TRT] [W] Requested amount of GPU memory (4294967296 bytes) could not be allocated. Skipping tactic 3."
    message = parse(f"{error}\n{'step' * 500}\n{warning}\n")
    assert (message.kind, message.errors) == ("pytorch", 1)


@pytest.mark.parametrize("asked", [",", ",,,", ""])
def test_a_size_without_digits_is_no_number(asked: str) -> None:
    """It must not raise either."""
    assert parse(f"RESOURCE_EXHAUSTED: Out of memory allocating {asked} bytes.").asked_bytes is None


def test_a_musa_build_has_its_own_setting() -> None:
    error = parse(
        "MUSA out of memory. Tried to allocate 2.00 GiB (GPU 0; 47.9 GiB total capacity; 40 GiB already allocated)"
    )
    assert conf_of(error.text, old=False) == "PYTORCH_MUSA_ALLOC_CONF=expandable_segments:True"
    assert (
        conf_of(error.text + " see PYTORCH_CUDA_ALLOC_CONF", old=True)
        == "PYTORCH_MUSA_ALLOC_CONF=max_split_size_mb:128"
    )
