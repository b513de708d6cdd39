# ruff: noqa: E501, RUF001 - a text as it is pasted
"""Thirty texts that went through an export, a quote or another tool, with the right answer of each, written down before any was tried.

Programs and numbers are made up. A seed draws the half of which only the score was read.
"""

from __future__ import annotations

import html
import json
import random
from typing import Final

from error_texts import GIB, MIB, OLD_HINT, TRACEBACK, ErrorText, modern, wrapped

PIECES: Final = modern(
    "1.88 GiB", "47.54 GiB", "640.19 MiB", "35.72 GiB", "9.61 GiB", gpu=3,
    more="Including non-PyTorch memory, this process has 46.89 GiB memory in use. ",
)  # fmt: skip
FULL: Final = modern("1.16 GiB", "39.39 GiB", "411.06 MiB", "37.80 GiB", "602.70 MiB", gpu=0)
ALL: Final = TRACEBACK + PIECES
BOXED: Final = "\n".join(f"│ {line:<76} │" for line in wrapped(PIECES, 76).split("\n"))
CELL: Final = html.escape("OutOfMemoryError: " + PIECES.partition(": ")[2])

EXPORTS: Final = (
    # -- quotes
    ErrorText(
        "quote and fence of an issue",
        "**Describe the bug**\nTraining dies after some hours.\n\n> ```\n"
        + "\n".join(f"> {line}" for line in ALL.split("\n"))
        + "\n> ```\n>\n> Originally posted by @ab in #812\n\nSame here, any news?\n",
        "pytorch",
        "fragmentation",
        1.88 * GIB,
        3,
        says=("expandable_segments:True",),
    ),
    ErrorText(
        "escaped quote of a chat, broken at its width",
        "\n".join(f"&gt; {line}" for line in wrapped(PIECES, 110).split("\n")) + "\nsomebody seen this?\n",
        "pytorch",
        "fragmentation",
        1.88 * GIB,
        3,
    ),
    ErrorText(
        "fence of a chat with colours",
        "```ansi\n\x1b[2;31mTraceback (most recent call last):\x1b[0m\n  ...\n\x1b[1;31mtorch.OutOfMemoryError\x1b[0m: \x1b[2;37m"
        + PIECES.partition(": ")[2]
        + "\x1b[0m\n```\n",
        "pytorch",
        "fragmentation",
        1.88 * GIB,
        3,
    ),
    # -- exports
    ErrorText(
        "CSV of a log search",
        '"Time","host","level","message"\n"2025-10-04T08:11:02Z","gpu-7","ERROR","'
        + ALL.replace('"', '""')
        + '"\n"2025-10-04T08:11:03Z","gpu-7","INFO","shutting down"\n',
        "pytorch",
        "fragmentation",
        1.88 * GIB,
        3,
    ),
    ErrorText(
        "tabs of a table of trials",
        "trial_id\tlr\tbatch\tstatus\terror\n0007\t3e-4\t64\tFAILED\t"
        + FULL.replace(".  See", ". See")
        + "\n0008\t1e-4\t32\tRUNNING\t\n",
        "pytorch",
        "",
        1.16 * GIB,
        0,
        never=("fragmented",),
    ),
    ErrorText(
        "HTML output in the JSON of a notebook",
        json.dumps(
            {
                "cells": [
                    {
                        "cell_type": "code",
                        "outputs": [
                            {
                                "output_type": "display_data",
                                "data": {
                                    "text/html": [
                                        '<pre><span class="ansi-red-fg">'
                                        + CELL.replace(":", "</span>:", 1)
                                        + "</pre>\n"
                                    ]
                                },
                            }
                        ],
                    }
                ],
                "nbformat": 4,
            },
            indent=1,
        ),
        "pytorch",
        "fragmentation",
        1.88 * GIB,
        3,
    ),
    ErrorText(
        "panel of rich",
        "╭─────────────────────────────── training failed ──────────────────────────────╮\n"
        + BOXED
        + "\n╰──────────────────────────────────────────────────────────────────────────────╯\n",
        "pytorch",
        "fragmentation",
        1.88 * GIB,
        3,
    ),
    ErrorText(
        "carriage returns that are shown",
        '  0%|          | 0/900 [00:00<?, ?it/s]^M  1%|          | 9/900 [00:04<06:40,  2.22it/s]^M  1%|          | 9/900 [00:05<08:15,  1.80it/s]^M\nTraceback (most recent call last):^M\n  File "train.py", line 3, in <module>^M\n'
        + PIECES
        + "^M\n",
        "pytorch",
        "fragmentation",
        1.88 * GIB,
        3,
    ),
    ErrorText(
        "source and error in one line of JSON",
        json.dumps({"src": 'assert "cuda" in str(device)', "exc": PIECES, "rank": 3}) + "\n",
        "pytorch",
        "fragmentation",
        1.88 * GIB,
        3,
    ),
    # -- schedulers, containers, several ranks
    ErrorText(
        "four ranks with an error each",
        "[rank1]: " + TRACEBACK.replace("\n", "\n[rank1]: ") + FULL.replace("GPU 0", "GPU 1") + "\n"
        "[rank0]:[E1004 08:11:32.1 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=311, OpType=ALLREDUCE) ran for 600000 milliseconds before timing out.\n"
        "[rank2]: torch.distributed.DistBackendError: [2] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by key '0', but store->get('0') got error: Connection reset by peer\n"
        "[rank3]: RuntimeError: NCCL communicator was aborted on rank 3. Original reason for failure was: watchdog timeout\n"
        "W1004 08:21:33.000 torch/distributed/elastic/multiprocessing/api.py:900] Sending process 411 closing signal SIGTERM\n",
        "pytorch",
        "",
        1.16 * GIB,
        1,
        never=("fragmented",),
    ),
    ErrorText(
        "parts of lines of a container's log",
        "2025-10-04T08:11:02.113456789Z stderr F Traceback (most recent call last):\n2025-10-04T08:11:02.113456790Z stderr F     loss.backward()\n2025-10-04T08:11:02.113456791Z stderr P "
        + PIECES[:140]
        + "\n2025-10-04T08:11:02.113456792Z stderr F "
        + PIECES[140:]
        + "\n",
        "pytorch",
        "fragmentation",
        1.88 * GIB,
        3,
    ),
    ErrorText(
        "journal of a service",
        "\n".join("Oct 04 08:11:02 gpu7 python[4411]: " + line for line in ALL.split("\n"))
        + "\nOct 04 08:11:04 gpu7 systemd[1]: train.service: Main process exited, code=exited, status=1/FAILURE\nOct 04 08:11:04 gpu7 systemd[1]: train.service: Failed with result 'exit-code'.\n",
        "pytorch",
        "fragmentation",
        1.88 * GIB,
        3,
    ),
    ErrorText(
        "caught on the GPU, ended by the memory of the job",
        "WARNING:train:skipping batch 77: "
        + FULL
        + "\n"
        + "step ok\n" * 200
        + "slurmstepd: error: Detected 1 oom_kill event in StepId=90211.0. Some of the step tasks have been OOM Killed.\nsrun: error: gpu-7: task 3: Out Of Memory\nsrun: Terminating StepId=90211.0\n",
        "slurm",
        "outside_pytorch",
        says=("--mem",),
        never=("fragmented",),
    ),
    ErrorText(
        "failure of a cloud job, escaped twice",
        'AzureMLCompute job failed\nExecutionFailed: [REDACTED]\n\texit_codes: 1\n\tAppinsights Reachable: Some(true)\n{"code":"ExecutionFailed","message":"'
        + json.dumps(json.dumps(ALL))[1:-1]
        + '"}\n',
        "pytorch",
        "fragmentation",
        1.88 * GIB,
        3,
    ),
    ErrorText(
        "pod that was evicted for its disk",
        "Status:           Failed\nReason:           Evicted\nMessage:          The node was low on resource: ephemeral-storage. Threshold quantity: 10737418240, available: 9311020Ki. Container trainer was using 81920Mi, request is 0, has larger consumption of ephemeral-storage.\n",
        "unknown",
    ),
    # -- Windows, other languages
    ErrorText(
        "German Windows, memory of the driver",
        "(venv) D:\\ki> python train.py\r\nTraceback (most recent call last):\r\n"
        + modern("1.25 GiB", "8.00 GiB", "0 bytes", "11.24 GiB", "388.50 MiB").replace("capacity", "capacty")
        + "\r\nDrücken Sie eine beliebige Taste . . .\r\n",
        "pytorch",
        "",
        1.25 * GIB,
        0,
        says=("the host's memory too (Windows, WSL)",),
        never=("fragmented", "expandable"),
    ),
    ErrorText(
        "French console with the message of 1.11",
        "Échec de l'entraînement :\nRuntimeError: CUDA out of memory. Tried to allocate 148.00 MiB (GPU 0; 6.00 GiB total capacity; 3.71 GiB already allocated; 0 bytes free; 4.42 GiB reserved in total by PyTorch)"
        + OLD_HINT
        + "\nAppuyez sur une touche pour continuer...\n",
        "pytorch",
        "fragmentation|",
        148 * MIB,
        0,
        never=("expandable",),
    ),
    ErrorText(
        "Spanish prompt, an array of the host",
        'C:\\Usuarios\\ana> python preparar.py\nTraceback (most recent call last):\n  File "preparar.py", line 12, in <module>\n    matriz = np.zeros((60000, 64000))\nnumpy.core._exceptions._ArrayMemoryError: Unable to allocate 28.6 GiB for an array with shape (60000, 64000) and data type float64\nPresione una tecla para continuar . . .\n',
        "host",
        "outside_pytorch",
        28.6 * GIB,
        never=("CUDA_ALLOC",),
    ),
    # -- other accelerators
    ErrorText(
        "HIP, and much of it idle",
        modern("2.50 GiB", "15.98 GiB", "1.20 GiB", "9.80 GiB", "4.41 GiB")
        .replace("CUDA out", "HIP out")
        .replace("CUDA_ALLOC", "HIP_ALLOC"),
        "pytorch",
        "fragmentation",
        2.5 * GIB,
        0,
        says=("PYTORCH_HIP_ALLOC_CONF",),
        never=("CUDA_ALLOC_CONF",),
    ),
    ErrorText(
        "XPU without the free memory",
        TRACEBACK
        + "torch.OutOfMemoryError: XPU out of memory. Tried to allocate 4.00 GiB. GPU 0 has a total capacity of 15.91 GiB. Of the allocated memory 12.10 GiB is allocated by PyTorch, and 210.00 MiB is reserved by PyTorch but unallocated. Please use `empty_cache` to release all unoccupied cached memory.\n",
        "pytorch",
        "",
        4 * GIB,
        0,
        never=("CUDA", "fragmented"),
    ),
    ErrorText(
        "buffer that MPS refuses, in a Japanese UI",
        "画像生成中にエラーが発生しました：RuntimeError：Invalid buffer size: 24.00 GiB\n詳細はログを確認してください。\n",
        "mps",
        "|limit|outside_pytorch",
        says=("MPS",),
        never=("CUDA",),
    ),
    ErrorText(
        "NPU under a Chinese launcher",
        "[ERROR] 2025-09-01 10:00:00 训练失败，设备 3：RuntimeError: NPU out of memory. Tried to allocate 1.20 GiB (NPU 3; 60.97 GiB total capacity; 57.20 GiB already allocated; 57.20 GiB current active; 310.11 MiB free; 59.80 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.\n",
        "pytorch",
        "",
        1.2 * GIB,
        3,
        never=("CUDA", "fragmented"),
    ),
    # -- serving
    ErrorText(
        "longest request of vLLM under its prefixes",
        "(EngineCore_DP0 pid=301) ERROR 10-04 08:11:02 [core.py:710] EngineCore failed to start.\n(EngineCore_DP0 pid=301) ERROR 10-04 08:11:02 [core.py:710] Traceback (most recent call last):\n(EngineCore_DP0 pid=301) ERROR 10-04 08:11:02 [core.py:710] ValueError: To serve at least one request with the models's max seq len (262144), (24.00 GiB KV cache is needed, which is larger than the available KV cache memory (10.55 GiB). Based on the available memory, the estimated maximum model length is 115216. Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine.\n(APIServer pid=200) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}\n",
        "vllm",
        "",
        says=("vLLM", "max_model_len"),
        never=("fragmented",),
    ),
    ErrorText(
        "graphs that SGLang captures",
        '[2025-10-04 08:11:02] Scheduler hit an exception: Traceback (most recent call last):\n  File "/sgl/model_executor/cuda_graph_runner.py", line 381, in __init__\nException: Capture cuda graph failed: CUDA out of memory. Tried to allocate 1.16 GiB. GPU 0 has a total capacity of 39.39 GiB of which 411.06 MiB is free. Of the allocated memory 37.80 GiB is allocated by PyTorch, with 1.10 GiB allocated in private pools (e.g., CUDA Graphs), and 302.70 MiB is reserved by PyTorch but unallocated.\nPossible solutions:\n1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)\n2. set --cuda-graph-max-bs to a smaller value (e.g., 16)\n',
        "pytorch",
        "",
        1.16 * GIB,
        0,
        never=("fragmented", "38.9 GiB"),
    ),
    ErrorText(
        "signal in the log of TGI's launcher",
        "2025-10-04T08:11:02.113Z ERROR shard-manager: text_generation_launcher: Shard complete standard error output:\nrank=0\n2025-10-04T08:11:02.114Z ERROR shard-manager: text_generation_launcher: Shard process was signaled to shutdown with signal 9 rank=0\n2025-10-04T08:11:02.200Z ERROR text_generation_launcher: Shard 0 failed to start\n",
        "killed",
        "outside_pytorch",
        certain=False,
        never=("CUDA_ALLOC",),
    ),
    ErrorText(
        "weights of llama.cpp under the prefix of ollama",
        'time=2025-10-04T08:11:02.113Z level=INFO source=server.go:630 msg="waiting for server to become available" status="llm server loading model"\nggml_backend_cuda_buffer_type_alloc_buffer: allocating 7605.33 MiB on device 0: cudaMalloc failed: out of memory\nllama_model_load: error loading model: unable to allocate CUDA0 buffer\npanic: unable to load model: /root/.ollama/models/blobs/sha256-6a\ntime=2025-10-04T08:11:04.000Z level=ERROR source=sched.go:489 msg="error loading llama server" error="llama runner process has terminated: cudaMalloc failed: out of memory"\n',
        "ggml",
        "outside_pytorch",
        7605.33 * MIB,
        never=("CUDA_ALLOC",),
    ),
    # -- other frameworks
    ErrorText(
        "JAX in the output of a cell",
        "JaxRuntimeError                           Traceback (most recent call last)\nCell In[7], line 3\n      1 for step in range(100):\n----> 3     state, loss = train_step(state, batch)\n\nJaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 34359738368 bytes.\n",
        "jax",
        "",
        32 * GIB,
        says=("not of PyTorch",),
        never=("PYTORCH_",),
    ),
    ErrorText(
        "TensorFlow on the host",
        "2025-10-04 08:11:02.113: W tensorflow/core/framework/op_kernel.cc:1839] OP_REQUIRES failed at conv_ops_impl.h:370 : RESOURCE_EXHAUSTED: OOM when allocating tensor with shape[64,2048,56,56] and type float on /job:localhost/replica:0/task:0/device:CPU:0 by allocator cpu\n",
        "tensorflow",
        "",
        says=("not of PyTorch",),
        never=("PYTORCH_", "of the GPU", "XLA"),
    ),
    # -- cut, and no error at all
    ErrorText(
        "middle of a message",
        "of which 512.00 MiB is free. Including non-PyTorch memory, this process has 22.90 GiB memory in use. Of the allocated memory 15.01 GiB is allocated by PyTorch, and 7.12 GiB is reserved by PyTorch but unallocated. If reser",
        "pytorch",
        "fragmentation|",
        never=("smaller batch",),
    ),
    ErrorText(
        "list of common errors in a guide",
        "## Common errors\n\n- If you see `CUDA out of memory`, lower `batch_size`, or enable gradient checkpointing.\n- `NCCL timeout`: raise `ddp_timeout`.\n- If the loader is slow, raise `num_workers`; if workers get killed, lower it.\n\nRun finished in 3:12:09, exit code 0.\n",
        "unknown",
    ),
)
UNSEEN_EXPORTS: Final = frozenset(random.Random(27112026).sample([one.name for one in EXPORTS], 15))
"""Names of the texts of which only the score was read."""
