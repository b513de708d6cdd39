# ruff: noqa: E501 - a text as it is pasted
"""Forty full logs with the right answer of each, written down before any was tried. Programs and numbers are made up.

A seed draws the half of which only the score was read.
"""

from __future__ import annotations

import random
from typing import Final

from error_texts import GIB, MIB, TRACEBACK, ErrorText, modern, old, wrapped

OWN: Final = "Including non-PyTorch memory, this process has {} memory in use. "
HINT_2_9: Final = (
    " If reserved but unallocated memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True to avoid "
    "fragmentation.  See documentation for Memory Management  (https://docs.pytorch.org/docs/stable/notes/cuda.html"
    "#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)"
)
FULL: Final = modern("2.32 GiB", "79.10 GiB", "1.09 GiB", "76.41 GiB", "1.02 GiB", more=OWN.format("77.99 GiB"))
PIECES: Final = modern(
    "1.75 GiB", "79.33 GiB", "1.02 GiB", "66.11 GiB", "11.47 GiB", gpu=5, more=OWN.format("78.29 GiB"), hint=HINT_2_9
)
STEPS: Final = "".join(
    f"{{'loss': {2.9 - n / 50:.4f}, 'grad_norm': {1.3 + n / 90:.3f}, 'learning_rate': 1.9e-05, 'epoch': {n / 100:.2f}}}\n"
    for n in range(60)
)
WANDB: Final = "wandb: \nwandb: 🚀 View run sft-7b at: https://wandb.ai/lab/sft/runs/k2j1\nwandb: Find logs at: wandb/run-20250806_101112-k2j1/logs\n"
TRAINER: Final = (
    'Traceback (most recent call last):\n  File "/w/sft.py", line 141, in <module>\n    trainer.train()\n'
    '  File "/opt/conda/lib/python3.11/site-packages/transformers/trainer.py", line 2240, in train\n    return inner_training_loop(\n'
    '           ^^^^^^^^^^^^^^^^^^^^\n  File "/opt/conda/lib/python3.11/site-packages/transformers/trainer.py", line 3745, in training_step\n'
    "    self.accelerator.backward(loss, **kwargs)\n"
)
ASSERTS: Final = "".join(
    f"../aten/src/ATen/native/cuda/Indexing.cu:1141: indexSelectLargeIndex: block: [{n},0,0], thread: [64,0,0] Assertion `srcIndex < srcSelectDimSize` failed.\n"
    for n in range(9)
)
SUMMARY: Final = (
    "E0806 10:11:13.201000 811 site-packages/torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: {code}) local_rank: {rank} (pid: 83{rank}) of binary: /opt/conda/bin/python\n"
    'Traceback (most recent call last):\n  File "/opt/conda/bin/torchrun", line 8, in <module>\n    sys.exit(main())\n'
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n============================================================\ntrain.py FAILED\n"
    "------------------------------------------------------------\nFailures:\n  <NO_OTHER_FAILURES>\n------------------------------------------------------------\n"
    "Root Cause (first observed failure):\n[0]:\n  time      : 2025-08-06_10:11:13\n  host      : n12\n  rank      : {rank} (local_rank: {rank})\n  exitcode  : {code} (pid: 83{rank})\n"
    "  error_file: <N/A>\n  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html\n============================================================\n"
)
MMENGINE: Final = "".join(
    f"2023/05/11 20:1{n % 10}:08 - mmengine - INFO - Epoch(train)  [1][{50 * n:>4}/7330]  lr: 1.9820e-03  eta: 1 day, 2:00:01  time: 0.5301  data_time: 0.0129  memory: 89{n:02}  loss: 1.3211\n"
    for n in range(1, 30)
)
POD: Final = (
    "Name:             train-7f9c-x2b\nNamespace:        ml\nNode:             gpu-3/10.0.3.9\nStatus:           {status}\nContainers:\n  trainer:\n"
    "    Image:         registry.lab/train:1.9\n    Command:\n      torchrun\n      --nproc-per-node=4\n      train.py\n{state}    Limits:\n      memory:          64Gi\n"
    "      nvidia.com/gpu:  4\n    Requests:\n      memory:          64Gi\n    Environment:\n      PYTORCH_CUDA_ALLOC_CONF:  expandable_segments:True\nConditions:\n  Type              Status\n  Ready             False\n{events}"
)

FULL_LOGS: Final = (
    # -- PyTorch's allocator
    ErrorText(
        "trainer with its bar and the summary of wandb",
        STEPS + "\r  3%|▎         | 60/2000 [01:44<56:02,  1.73s/it]" + TRAINER + FULL + "\n" + WANDB + "\r  3%|▎         | 60/2000 [01:45<57:02,  1.76s/it]\n",
        "pytorch", "", 2.32 * GIB, 0, never=("fragmented", "Other processes"),
    ),
    ErrorText(
        "one rank is short, and the watchdogs of the others end them",
        "".join(f"[rank5]: {line}\n" for line in (TRACEBACK + PIECES).split("\n"))
        + "".join(
            f"[rank{rank}]:[E806 10:41:1{rank}.33 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=911, OpType=_ALLGATHER_BASE, NumelIn=4194304, NumelOut=33554432, Timeout(ms)=600000) ran for 600071 milliseconds before timing out.\n"
            f"[rank{rank}]:[E806 10:41:1{rank}.33 ProcessGroupNCCL.cpp:684] To avoid data inconsistency, we are taking the entire process down.\n"
            for rank in (0, 1, 2, 3)
        )
        + "terminate called after throwing an instance of 'c10::DistBackendError'\n" + SUMMARY.format(code=-6, rank=0),
        "pytorch", "fragmentation", 1.75 * GIB, 5, says=("PYTORCH_ALLOC_CONF=expandable_segments:True",), never=("NCCL",),
    ),
    ErrorText(
        "numbers in the HTML that rich writes into a notebook",
        "<pre style=\"white-space:pre;overflow-x:auto;font-family:Menlo,'DejaVu Sans Mono',monospace\"><span style=\"color: #ff0000; font-weight: bold\">OutOfMemoryError: </span>CUDA out of memory. Tried to allocate <span style=\"color: #008080; font-weight: bold\">1.91</span> GiB. GPU <span style=\"color: #008080; font-weight: bold\">0</span> has a total capacity of <span style=\"color: #008080; font-weight: bold\">22.03</span> GiB of which <span style=\"color: #008080; font-weight: bold\">402.19</span> MiB is \nfree. Of the allocated memory <span style=\"color: #008080; font-weight: bold\">16.60</span> GiB is allocated by PyTorch, and <span style=\"color: #008080; font-weight: bold\">4.77</span> GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large\n</pre>\n",
        "pytorch", "fragmentation", 1.91 * GIB, 0, says=("4.77 GiB",),
    ),
    ErrorText(
        "queue of ComfyUI on CUDA's pool",
        "got prompt\nmodel weight dtype torch.bfloat16, manual cast: None\nmodel_type FLUX\nRequested to load FluxClipModel_\nloaded completely 9.5367431640625e+25 4777.53759765625 True\nRequested to load Flux\nloaded partially 9021.3 9020.9 0\n  0%|          | 0/20 [00:02<?, ?it/s]\n!!! Exception during processing !!! Allocation on device 0 would exceed allowed memory. (out of memory)\nCurrently allocated     : 10.78 GiB\nRequested               : 1.88 GiB\nDevice limit            : 12.00 GiB\nFree (according to CUDA): 0 bytes\nPyTorch limit (set by user-supplied memory fraction)\n                        : 17179869184.00 GiB\nTraceback (most recent call last):\n  File \"D:\\ComfyUI\\execution.py\", line 349, in execute\n    output_data, output_ui, has_subgraph = get_output_data(obj, input_data_all)\ntorch.OutOfMemoryError: Allocation on device 0 would exceed allowed memory. (out of memory)\nCurrently allocated     : 10.78 GiB\nRequested               : 1.88 GiB\nDevice limit            : 12.00 GiB\nFree (according to CUDA): 0 bytes\nPyTorch limit (set by user-supplied memory fraction)\n                        : 17179869184.00 GiB\n\nGot an OOM, unloading all loaded models.\nPrompt executed in 12.50 seconds\n",
        "cudaMallocAsync", "", 1.88 * GIB, 0, never=("fragmented", "expandable", "17,179"),
    ),
    ErrorText(
        "stars of a web UI before each line",
        "Loading weights [6ce0161689] from C:\\sd\\models\\v1-5.safetensors\nApplying attention optimization: Doggettx... done.\n*** Error completing request\n*** Arguments: ('task(8qk)', 'a castle', '', [], 20, 'DPM++ 2M', 1, 1, 7, 1024, 1024, True) {}\n    Traceback (most recent call last):\n      File \"C:\\sd\\modules\\call_queue.py\", line 57, in f\n        res = list(func(*args, **kwargs))\n    " + old("1.00 GiB", "8.00 GiB", "6.53 GiB", "0 bytes", "7.22 GiB").replace("RuntimeError", "torch.cuda.OutOfMemoryError") + "\n\n---\nTime taken: 9.1 sec.\n",
        "pytorch", "", GIB, 0, never=("expandable", "fragmented"),
    ),
    ErrorText(
        "replica of DataParallel",
        MMENGINE.replace("mmengine", "root") + TRACEBACK + "RuntimeError: Caught RuntimeError in replica 2 on device 2.\nOriginal Traceback (most recent call last):\n  File \"/opt/torch/nn/parallel/parallel_apply.py\", line 64, in _worker\n    output = module(*input, **kwargs)\n" + old("1.10 GiB", "10.76 GiB", "8.11 GiB", "301.44 MiB", "9.62 GiB", gpu=2, hint="") + "\n",
        "pytorch", "fragmentation|", 1.1 * GIB, 2, never=("expandable",),
    ),
    ErrorText(
        "first state of the optimizer in DeepSpeed, after its notes on memory",
        "[2025-04-11 07:39:51,118] [INFO] [utils.py:782:see_memory_usage] Before initializing optimizer states\n[2025-04-11 07:39:51,119] [INFO] [utils.py:783:see_memory_usage] MA 29.92 GB         Max_MA 33.66 GB         CA 33.90 GB         Max_CA 34 GB \n[2025-04-11 07:39:51,120] [INFO] [utils.py:790:see_memory_usage] CPU Virtual Memory:  used = 60.11 GB, percent = 11.9%\n[rank2]: Traceback (most recent call last):\n[rank2]:   File \"/opt/deepspeed/runtime/zero/stage_1_and_2.py\", line 695, in initialize_optimizer_states\n[rank2]:     self.optimizer.step()\n[rank2]: " + modern("7.48 GiB", "39.38 GiB", "4.71 GiB", "29.95 GiB", "3.95 GiB", gpu=2, more=OWN.format("34.66 GiB")) + "\n[2025-04-11 07:40:02,118] [INFO] [launch.py:319:sigkill_handler] Killing subprocess 4211\n[2025-04-11 07:40:02,240] [ERROR] [launch.py:325:sigkill_handler] ['/usr/bin/python3', '-u', 'train.py', '--local_rank=3'] exits with return code = 1\n",
        "pytorch", "fragmentation", 7.48 * GIB, 2, never=("killed",),
    ),
    ErrorText(
        "Megatron under srun -l, with its memory reports",
        "".join(f" 0:  iteration {n:>8}/  500000 | consumed samples: {n * 512:>12} | elapsed time per iteration (ms): 5512.1 | global batch size:   512 | lm loss: 9.1{n}E+00 | number of skipped iterations:   0 |\n" for n in range(1, 9))
        + " 0: [Rank 0] (after 2 iterations) memory (MB) | allocated: 35221.2 | max allocated: 61920.0 | reserved: 65010.0 | max reserved: 65010.0\n13: [rank13]: Traceback (most recent call last):\n13: [rank13]:   File \"/w/Megatron-LM/megatron/core/tensor_parallel/layers.py\", line 441, in backward\n 2: WARNING: one or more ranks are slow\n13: [rank13]: " + PIECES + "\nsrun: error: n7: task 13: Exited with exit code 1\nsrun: Terminating StepId=99012.0\nslurmstepd: error: *** STEP 99012.0 ON n6 CANCELLED AT 2025-08-06T10:12:00 ***\nsrun: error: n6: tasks 0-7: Terminated\n",
        "pytorch", "fragmentation", 1.75 * GIB, 5, says=("PYTORCH_ALLOC_CONF=expandable_segments:True",),
    ),
    ErrorText(
        "Lightning beside a notebook that still runs",
        "  | Name  | Type | Params\n--------------------------------\n0 | model | UNet | 31.0 M\n--------------------------------\n31.0 M    Trainable params\n0         Non-trainable params\nEpoch 0:  12%|█▏        | 50/417 [00:45<05:33,  1.10it/s, v_num=3, train_loss=2.310]Traceback (most recent call last):\n  File \"fit.py\", line 30, in <module>\n    trainer.fit(model, data)\ntorch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.20 GiB. GPU 1 has a total capacty of 23.68 GiB of which 611.00 MiB is free. Process 10233 has 12.01 GiB memory in use. Including non-PyTorch memory, this process has 11.05 GiB memory in use. Of the allocated memory 10.40 GiB is allocated by PyTorch, and 201.33 MiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting max_split_size_mb to avoid fragmentation.  See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF\nEpoch 0:  12%|█▏        | 50/417 [00:46<05:38,  1.08it/s, v_num=3, train_loss=2.310]\n",
        "pytorch", "other_process", 1.2 * GIB, 1, (10233,), says=("10233", "12.0 GiB"), never=("fragmented",),
    ),
    ErrorText(
        "mmdetection on a full card",
        MMENGINE + TRACEBACK + old("98.00 MiB", "10.76 GiB", "9.71 GiB", "41.44 MiB", "10.01 GiB") + "\n",
        "pytorch", "", 98 * MIB, 0, never=("expandable", "fragmented"),
    ),
    ErrorText(
        "allocator of ROCm between warnings of MIOpen",
        "".join(f"MIOpen(HIP): Warning [IsEnoughWorkspace] [GetSolutionsFallback WTI] Solver <ConvWinograd{n}>, workspace required: {n * 1024}, provided ptr: 0x0 size: 0\n" for n in range(1, 12))
        + "[rank2]: Traceback (most recent call last):\n[rank2]:   File \"/w/train.py\", line 71, in <module>\n[rank2]: " + modern("7.55 GiB", "191.98 GiB", "1.60 GiB", "150.02 GiB", "39.11 GiB", gpu=2).replace("CUDA out", "HIP out").replace("PYTORCH_CUDA", "PYTORCH_HIP") + "\nMIOpen(HIP): Warning [IsEnoughWorkspace] Solver <GemmFwdRest>, workspace required: 20971520, provided ptr: 0 size: 0\n",
        "pytorch", "fragmentation", 7.55 * GIB, 2, says=("PYTORCH_HIP_ALLOC_CONF=expandable_segments:True",), never=("CUDA_ALLOC",),
    ),
    ErrorText(
        "runner of GitHub with its times and groups",
        "".join(f"2025-05-07T11:22:33.12345{n:02}Z {line}\n" for n, line in enumerate(["##[group]Run python train.py --smoke", "python train.py --smoke", "shell: /usr/bin/bash -e {0}", "##[endgroup]", *(TRACEBACK + modern("512.00 MiB", "14.56 GiB", "220.62 MiB", "13.90 GiB", "301.12 MiB", more=OWN.format("14.34 GiB"))).split("\n"), "##[error]Process completed with exit code 1."])),
        "pytorch", "", 512 * MIB, 0, never=("fragmented", "killed"),
    ),
    ErrorText(
        "PowerShell wraps what it takes for an error",
        "python : Traceback (most recent call last):\r\nAt line:1 char:1\r\n+ python train.py 2>&1 | tee log.txt\r\n+ ~~~~~~~~~~~~~~~~~~~~\r\n    + CategoryInfo          : NotSpecified: (Traceback (most recent call last)::String) [], RemoteException\r\n    + FullyQualifiedErrorId : NativeCommandError\r\n \r\n  File \"C:\\w\\train.py\", line 12, in <module>\r\n    out = model(batch)\r\n" + wrapped(modern("1.25 GiB", "15.99 GiB", "0 bytes", "22.40 GiB", "511.20 MiB"), 120).replace("\n", "\r\n") + "\r\n",
        "pytorch", "", 1.25 * GIB, 0, says=("Windows", "22.9 GiB"), never=("fragmented", "30.1 B"),
    ),
    ErrorText(
        "shards of TGI as JSON, in a container",
        '{"timestamp":"2025-02-01T09:10:11.120Z","level":"INFO","fields":{"message":"Using prefill chunking = True"},"target":"text_generation_launcher"}\n{"timestamp":"2025-02-01T09:10:31.420Z","level":"ERROR","fields":{"message":"Server error: CUDA out of memory. Tried to allocate 3.56 GiB. GPU 0 has a total capacity of 21.99 GiB of which 1.12 GiB is free. Process 61822 has 20.86 GiB memory in use. Of the allocated memory 19.40 GiB is allocated by PyTorch, and 1.10 GiB is reserved by PyTorch but unallocated."},"target":"text_generation_router_v3::client","span":{"id":1,"name":"warmup"}}\n{"timestamp":"2025-02-01T09:10:31.520Z","level":"ERROR","fields":{"message":"Webserver Crashed"},"target":"text_generation_launcher"}\n',
        "pytorch", "", 3.56 * GIB, 0, never=("Other processes", "End the other", "fragmented"),
    ),
    ErrorText(
        "task of Ray that failed on the GPU",
        "2025-06-01 10:00:12,400\tERROR tune_controller.py:1331 -- Trial task failed for trial TorchTrainer_1f2e_00000\nTraceback (most recent call last):\n  File \"/opt/ray/air/execution/_internal/event_manager.py\", line 110, in resolve_future\n    result = ray.get(future)\nray.exceptions.RayTaskError(OutOfMemoryError): \x1b[36mray::_Inner.train()\x1b[39m (pid=18233, ip=10.0.0.5, actor_id=0fa1, repr=TorchTrainer)\n  File \"/w/loop.py\", line 55, in train_loop_per_worker\n    loss.backward()\n" + FULL + "\n(raylet) WARNING: 4 PYTHON worker processes have been started on node: 77ab\n",
        "pytorch", "", 2.32 * GIB, 0, never=("Ray node", "fragmented"),
    ),
    ErrorText(
        "limit that a fraction sets, in a log of FSDP",
        "INFO fsdp | set_per_process_memory_fraction(0.4)\n" + "".join(f"[rank1]: {line}\n" for line in (TRACEBACK + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 79.15 GiB of which 46.02 GiB is free. 31.66 GiB allowed; Including non-PyTorch memory, this process has 32.60 GiB memory in use. Of the allocated memory 30.51 GiB is allocated by PyTorch, and 620.11 MiB is reserved by PyTorch but unallocated." + HINT_2_9).split("\n")),
        "pytorch", "limit", 2 * GIB, 1, says=("31.7 GiB",), never=("fragmented", "Other processes"),
    ),
    ErrorText(
        "quota of a multi-process service",
        "+ export CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=20G\n+ python serve.py\n" + TRACEBACK + modern("1.00 GiB", "79.15 GiB", "41.20 GiB", "18.10 GiB", "902.00 MiB", more="Process 771 has 17.30 GiB memory in use. " + OWN.format("20.00 GiB")) + "\n",
        "pytorch", "", GIB, 0, says=("more free memory than was requested", "CUDA MPS", "nvidia-smi"), never=("fragmented", "Apple", "Metal"),
    ),
    ErrorText(
        "attempts of Inductor, then the training runs out of memory",
        "Runtime error during autotuning: \nNo valid triton configs. OutOfMemoryError: out of resource: triton_mm Required: 163840 Hardware limit:101376 Reducing block sizes or `num_stages` may help.. \nIgnoring this choice.\nAUTOTUNE mm(4096x4096, 4096x4096)\n  triton_mm_14 0.8182 ms 100.0%\n  mm 0.9011 ms 90.8%\nSingleProcess AUTOTUNE benchmarking takes 3.1 seconds and 2.2 seconds precompiling for 20 choices\n" + STEPS + TRACEBACK + FULL + "\n",
        "pytorch", "", 2.32 * GIB, 0, never=("Triton", "fragmented"),
    ),
    # -- other accelerators
    ErrorText(
        "pipeline of diffusers on a Mac",
        "Loading pipeline components...: 100%|██████████| 7/7 [00:04<00:00,  1.52it/s]\n  4%|▍         | 2/50 [00:21<08:21, 10.44s/it]\nTraceback (most recent call last):\n  File \"/Users/a/paint.py\", line 14, in <module>\nRuntimeError: MPS backend out of memory (MPS allocated: 16.42 GB, other allocations: 961.05 MB, max allowed: 18.13 GB). Tried to allocate 1.20 GB on private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for memory allocations (may cause system failure).\n/opt/homebrew/lib/python3.11/multiprocessing/resource_tracker.py:224: UserWarning: resource_tracker: There appear to be 1 leaked semaphore objects to clean up at shutdown\n",
        "mps", "limit", 1.2 * GIB, says=("17.4 GiB", "18.1 GiB"), never=("CUDA",),
    ),
    ErrorText(
        "lost device of Intel's driver",
        STEPS + TRACEBACK + "RuntimeError: level_zero backend failed with error: 20 (UR_RESULT_ERROR_DEVICE_LOST)\n",
        "unknown",
    ),
    ErrorText(
        "watermark that MPS refuses",
        TRACEBACK + "RuntimeError: invalid low watermark ratio 1.4\n",
        "unknown",
    ),
    # -- libraries and serving
    ErrorText(
        "failed assertions before the handle of cuBLAS",
        STEPS + ASSERTS + TRACEBACK + "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`\n",
        "unknown", never=("cuBLAS could not",),
    ),
    ErrorText(
        "weights that DeepSpeed pins on the host",
        "".join(f"[rank0]: {line}\n" for line in ["Traceback (most recent call last):", '  File "/opt/deepspeed/runtime/zero/stage3.py", line 312, in __init__', "    self._configure_tensor_swapping(offload_optimizer_config, aio_config)", '  File "/opt/deepspeed/accelerator/cuda_accelerator.py", line 290, in pin_memory', "    return tensor.pin_memory()", "           ^^^^^^^^^^^^^^^^^^^", "RuntimeError: CUDA error: out of memory", "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.", "For debugging consider passing CUDA_LAUNCH_BLOCKING=1"]),
        "pinned|cuda|host", "outside_pytorch", says=("pinned",),
    ),
    ErrorText(
        "cache of llama.cpp's context",
        "load_tensors: offloaded 33/33 layers to GPU\nload_tensors:        CUDA0 model buffer size =  4685.30 MiB\n.......................................................\nllama_context: n_ctx_per_seq (131072) > n_ctx_train (8192)\nggml_backend_cuda_buffer_type_alloc_buffer: allocating 16384.00 MiB on device 0: cudaMalloc failed: out of memory\nalloc_tensor_range: failed to allocate CUDA0 buffer of size 17179869184\nllama_init_from_model: failed to initialize the context: failed to allocate buffer for kv cache\ncommon_init_from_params: failed to create context with model 'm.gguf'\nmain: exiting due to model loading error\n",
        "ggml", "outside_pytorch", 16 * GIB, says=("-c",), never=("CUDA_ALLOC",),
    ),
    ErrorText(
        "prefill of SGLang finds no tokens",
        "[2025-10-10 12:00:00 TP0] max_total_num_tokens=41022, chunked_prefill_size=8192\n[2025-10-10 12:03:11 TP0] Prefill out of memory. Try to lower your batch size.\nTry to allocate 8192 tokens.\nAvailable tokens: 4211\n[2025-10-10 12:03:11 TP0] Scheduler hit an exception: Traceback (most recent call last):\n  File \"/sgl/managers/scheduler.py\", line 2301, in run_scheduler_process\nRuntimeError: Prefill out of memory. Try to lower your batch size.\nTry to allocate 8192 tokens.\nAvailable tokens: 4211\n",
        "sglang", "", says=("SGLang",), never=("at its start",),
    ),
    ErrorText(
        "vLLM puts requests back",
        "".join(f"WARNING 02-01 10:0{n}:11 scheduler.py:1057] Sequence group {n} is preempted by PreemptionMode.RECOMPUTE mode because there is not enough KV cache space. This can affect the end-to-end performance. Increase gpu_memory_utilization or tensor_parallel_size to provide more KV cache memory. total_num_cumulative_preemption={n}\n" for n in range(1, 8))
        + "INFO:     127.0.0.1:51522 - \"POST /v1/completions HTTP/1.1\" 200 OK\n",
        "unknown",
    ),
    ErrorText(
        "trees of XGBoost on a card",
        "[0]\tvalid-rmse:0.9123\n" + TRACEBACK + "xgboost.core.XGBoostError: [12:00:01] /workspace/src/c_api/../data/../common/device_helpers.cuh:431: Memory allocation error on worker 0: std::bad_alloc: cudaErrorMemoryAllocation: out of memory\n- Free memory: 125829120\n- Requested memory: 9986445312\n\nStack trace:\n  [bt] (0) /opt/xgboost/lib/libxgboost.so(+0x1d8a4) [0x7f]\n",
        "cuda|xgboost", "outside_pytorch", never=("host's memory ran out",),
    ),
    ErrorText(
        "debug output of XLA behind a JAX error",
        "2025-01-05 08:00:00.123456: W external/xla/xla/hlo/transforms/simplifiers/hlo_rematerialization.cc:3022] Can't reduce memory use below 11.02GiB (11832610816 bytes) by rematerialization; only reduced to 24.10GiB (25877178777 bytes)\nTraceback (most recent call last):\n  File \"/w/pretrain.py\", line 80, in <module>\njax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 25769803776 bytes.\nBufferAssignment OOM Debugging.\nBufferAssignment stats:\n             parameter allocation:    1.25GiB\n              preallocated temp allocation:   22.00GiB\nPeak buffers:\n\tBuffer 1:\n\t\tSize: 2.00GiB\n--------------------\nFor simplicity, JAX has removed its internal frames from the traceback of the following exception. Set JAX_TRACEBACK_FILTERING=off to include these.\n",
        "jax", "", 24 * GIB, says=("not of PyTorch",), never=("PYTORCH_", "fragmented"),
    ),
    # -- the host
    ErrorText(
        "loader in a pod with little shared memory",
        "+ df -h /dev/shm\nshm              64M   64M     0 100% /dev/shm\nEpoch 1:   0%|          | 0/811 [00:00<?, ?it/s]ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).\n\x07ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).\n" + TRACEBACK + "RuntimeError: DataLoader worker (pid 231) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory. Please try to raise your shared memory limit.\n\nThe above exception was the direct cause of the following exception:\n\nTraceback (most recent call last):\nRuntimeError: DataLoader worker (pid(s) 231) exited unexpectedly\n",
        "shared_memory", "outside_pytorch", says=("shm-size", "231"), never=("Linux does that",),
    ),
    ErrorText(
        "report of the kernel on a cgroup",
        "[81234.501] python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=985\n[81234.502] CPU: 11 PID: 41301 Comm: python3 Tainted: P           OE     5.15.0-101-generic\n[81234.520] memory: usage 33554432kB, limit 33554432kB, failcnt 91822\n[81234.522] Memory cgroup stats for /kubepods/burstable/pod1f:\n[81234.523] anon 33285996544\n[81234.530] Tasks state (memory values in pages):\n[81234.531] [  pid  ]   uid  tgid total_vm      rss pgtables_bytes swapents oom_score_adj name\n[81234.532] [  41234]     0 41234 21231234  7340032 62914560        0           985 python3\n[81234.533] [  41301]     0 41301  9231234   917504 10485760        0           985 pt_data_worker\n[81234.540] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=cri,mems_allowed=0-1,oom_memcg=/kubepods/burstable/pod1f,task_memcg=/kubepods/burstable/pod1f/a,task=python3,pid=41234,uid=0\n[81234.541] Memory cgroup out of memory: Killed process 41234 (python3) total-vm:84924936kB, anon-rss:29360128kB, file-rss:102400kB, shmem-rss:0kB, UID:0 pgtables:61440kB oom_score_adj:985\n[81235.102] nvidia-uvm: Loaded the UVM driver, major device number 510.\n",
        "kernel", "outside_pytorch", says=("41234", "28.0 GiB"), never=("41301",),
    ),
    ErrorText(
        "description of a pod whose container started again",
        POD.format(status="Running", state="    State:          Running\n      Started:      Wed, 06 Aug 2025 10:11:12 +0000\n    Last State:     Terminated\n      Reason:       OOMKilled\n      Exit Code:    137\n      Started:      Wed, 06 Aug 2025 09:50:00 +0000\n    Ready:          True\n    Restart Count:  3\n", events="Events:\n  Type     Reason   Age  From     Message\n  Warning  BackOff  2m   kubelet  Back-off restarting failed container trainer\n"),
        "kubernetes", "outside_pytorch", says=("container",), never=("CUDA_ALLOC",),
    ),
    ErrorText(
        "store of Ray's objects is full",
        "(pid=771) loading shards\nTraceback (most recent call last):\n  File \"/w/prepare.py\", line 31, in <module>\n    refs = [ray.put(part) for part in parts]\nray.exceptions.ObjectStoreFullError: Failed to put object 00ffff in object store because it is full. Object size is 2147483714 bytes.\nThe local object store is full of objects that are still in scope and cannot be evicted. Tip: Use the `ray memory` command to list active objects in the cluster.\n",
        "ray|shared_memory|ray_object_store", "outside_pytorch", never=("CUDA_ALLOC",),
    ),
    ErrorText(
        "Rust and Arrow in the preparation of data",
        "Map (num_proc=16):  43%|████▎     | 430211/1000000 [02:11<02:51, 3320.11 examples/s]\nmemory allocation of 8589934592 bytes failed\nAborted (core dumped)\n",
        "host", "outside_pytorch", 8 * GIB, never=("CUDA_ALLOC",),
    ),
    ErrorText(
        "compiler of a kernel library is killed",
        "Building wheel for flash-attn (setup.py): started\n[41/73] /usr/local/cuda/bin/nvcc --generate-dependencies-with-compile flash_bwd_hdim128_bf16_sm90.cu\nnvcc error   : 'cicc' died due to signal 9 (Kill signal)\nc++: fatal error: Killed signal terminated program cc1plus\ncompilation terminated.\nninja: build stopped: subcommand failed.\nRuntimeError: Error compiling objects for extension\n",
        "killed|host|compiler_killed", "outside_pytorch", certain=False, never=("CUDA_ALLOC",),
    ),
    # -- no out-of-memory error
    ErrorText(
        "disk is full while Trainer saves, after lines about memory",
        "max_memory_allocated 78.20 GiB of 79.10 GiB (98.9 %), close to out of memory\n" + STEPS + TRACEBACK + "safetensors_rust.SafetensorError: Error while serializing: IoError(Os { code: 28, kind: StorageFull, message: \"No space left on device\" })\n" + WANDB,
        "unknown",
    ),
    ErrorText(
        "ultralytics lowers its batch and goes on",
        "      Epoch    GPU_mem   box_loss   cls_loss   dfl_loss  Instances       Size\n      1/100      23.1G      1.212      2.113      1.401        311        640:   1%|          | 2/924\nWARNING ⚠️ CUDA out of memory with batch=64. Reducing to batch=32 and retrying (1/3).\n      1/100      11.9G      1.212      2.113      1.401        160        640: 100%|██████████| 1848/1848\n100 epochs completed in 2.110 hours.\nOptimizer stripped from runs/detect/train/weights/best.pt, 6.2MB\n",
        "unknown|pytorch_bare", "", never=("fragmented",),
    ),
    ErrorText(
        "server of Redis refuses a command",
        STEPS + TRACEBACK + "redis.exceptions.OutOfMemoryError: command not allowed when used memory > 'maxmemory'.\n",
        "unknown", never=("PyTorch ran out", "GPU"),
    ),
    ErrorText(
        "detectron2 moves inputs to the host, then diverges",
        "[05/11 20:11:08 d2.utils.events]:  eta: 1 day  iter: 19  total_loss: 4.1  lr: 0.0002  max_mem: 10211M\n[05/11 20:11:09 d2.utils.memory]: Attempting to copy inputs of <function pairwise_iou at 0x7f> to CPU due to CUDA OOM\n[05/11 20:12:09 d2.engine.train_loop]: Exception during training:\n" + TRACEBACK + "FloatingPointError: Loss became infinite or NaN at iteration=41!\n",
        "unknown",
    ),
    ErrorText(
        "summary of torchrun without a reason",
        STEPS + SUMMARY.format(code=1, rank=2),
        "unknown",
    ),
    ErrorText(
        "tests of an error handler",
        "tests/test_retry.py::test_retries_after_oom PASSED                          [ 33%]\ntests/test_retry.py::test_gives_up FAILED                                   [ 66%]\n\n    def test_gives_up(step):\n        with pytest.raises(torch.OutOfMemoryError, match=\"CUDA out of memory\"):\n>           retry(step, times=2)\nE           Failed: DID NOT RAISE <class 'torch.OutOfMemoryError'>\n\n----------------------------- Captured log call ------------------------------\nINFO     retry:retry.py:20 after `CUDA out of memory` the batch is halved\n=========================== short test summary info ============================\nFAILED tests/test_retry.py::test_gives_up - Failed: DID NOT RAISE <class 'torch.OutOfMemoryError'>\n",
        "unknown",
    ),
)  # fmt: skip
UNSEEN: Final = frozenset(random.Random(20261129).sample(sorted(one.name for one in FULL_LOGS), 20))
"""Names of the logs of which only the score was read."""
