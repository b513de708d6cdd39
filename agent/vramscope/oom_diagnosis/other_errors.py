"""Sentences for errors that their kind alone explains: of the host, of other software, of libraries."""

from __future__ import annotations

from typing import Final

HEADLINES: Final = {
    "worker_killed": "A DataLoader worker was killed. Linux does that when the host's memory runs out.",
    "shared_memory": "The host's shared memory (/dev/shm) ran out. DataLoader workers pass batches through it.",
    "nccl_shared_memory": "The host's shared memory (/dev/shm) ran out. NCCL passes data between the ranks of a host through it.",
    "kernel": "The host's memory ran out, not the GPU's: Linux ended a process.",
    "slurm": "The memory of the Slurm job ran out on the host, not the GPU's.",
    "kubernetes": "The memory of the container or of its node ran out on the host, not the GPU's.",
    "ray": "The memory of the Ray node ran out on the host, not the GPU's.",
    "ray_object_store": "Ray's object store is full. It is in the host's shared memory, not on the GPU.",
    "batch_system": "The memory limit of the batch job was exceeded on the host, not on the GPU.",
    "triton": "A Triton kernel needs more on-chip memory than this GPU has. Device memory is not the reason.",
    "vllm": "vLLM has too little device memory for what it allocates at its start.",
    "mps": "Metal could not provide memory. Apple GPUs share the memory of the whole system.",
    "sglang": "SGLang has too little device memory for its weights and its KV cache.",
    "tgi": "Text Generation Inference has too little device memory for what it allocates at its start.",
    "accelerate": "The model does not fit into the device memory that Accelerate may use, or your own device_map names the CPU.",
    "torch_xla": "XLA's own allocator ran out of memory. PyTorch/XLA does not use PyTorch's caching allocator.",
    "onnxruntime": "This is an error of ONNX Runtime, not of PyTorch: its own allocator ran out of memory.",
    "tensorrt": "This is an error of TensorRT, not of PyTorch: it could not get device memory.",
    "xpu_block": "The request is larger than the 4 GB that this platform gives in one block. The device may have more memory free.",
    "jax": "This is an error of JAX (XLA), not of PyTorch: its own allocator ran out of memory.",
    "paddle": "This is an error of PaddlePaddle, not of PyTorch: its own allocator ran out of memory.",
    "tensorflow": "This is an error of TensorFlow, not of PyTorch: its own allocator ran out of memory.",
}
"""What happened, by kind."""
UNCERTAIN_HEADLINES: Final = {
    "compiler_killed": "A compiler was most likely killed (SIGKILL). Linux does that when the host's memory runs out.",
    "killed": "A process was most likely killed (SIGKILL). Linux does that when the host's memory runs out.",
    "worker_killed": "A DataLoader worker ended unexpectedly. Linux kills processes when the host's memory runs out.",
    "shared_memory": "The host's shared memory (/dev/shm) may have run out. DataLoader workers pass batches through it.",
}
"""The same where the text is used for other errors too."""

FIRST_AID: Final = {
    "kernel": "Keep less in the process: fewer DataLoader workers, a smaller prefetch_factor, data that is read in parts.",
    "slurm": "Request more memory (--mem or --mem-per-cpu), or use fewer DataLoader workers.",
    "kubernetes": "Raise the container's memory limit (in Kubernetes resources.limits.memory, in Docker --memory), "
    "or use fewer DataLoader workers.",
    "ray": "Run fewer tasks on a node (num_cpus), or request memory for each task (memory=).",
    "ray_object_store": "Keep fewer object references (ray memory lists them), or raise object_store_memory in ray.init.",
    "batch_system": "Request more memory for the job, or use fewer DataLoader workers.",
    "killed": "Look for the reason in the kernel's log (dmesg). If it is memory, use fewer DataLoader workers.",
    "compiler_killed": "Compile with fewer jobs at once (MAX_JOBS=4), or install a package that is built already.",
    "nccl_shared_memory": "Enlarge /dev/shm (docker run --shm-size=8g or --ipc=host).",
    "shared_memory": "Enlarge /dev/shm (docker run --shm-size=8g or --ipc=host), or use fewer DataLoader workers.",
    "triton": "Use smaller blocks or fewer pipeline stages in the kernel (BLOCK_*, num_stages).",
    "vllm": "Lower max_model_len or max_num_seqs, or end what else uses the GPU. If only the KV cache does not fit, raise "
    "gpu_memory_utilization; otherwise lower it.",
    "sglang": "Lower --max-running-requests or --context-length. If only the KV cache does not fit, raise "
    "--mem-fraction-static.",
    "tgi": "Lower --max-batch-prefill-tokens, --max-input-tokens or --max-total-tokens.",
    "accelerate": "End what else uses the GPU, load weights of fewer bits, or permit modules on the CPU "
    "(llm_int8_enable_fp32_cpu_offload=True). If max_memory is set, it may be too low.",
    "npu": "Use a smaller batch, or leave more device memory free.",
    "dml": "Use a smaller batch, or end what else uses the GPU.",
    "torch_xla": "Use a smaller batch or gradient checkpointing. The settings of PyTorch's caching allocator have no effect.",
    "onnxruntime": "Use a smaller batch, raise gpu_mem_limit if it is set, or end what else uses the GPU. PyTorch's settings have "
    "no effect.",
    "tensorrt": "Use a smaller batch or workspace, or end what else uses the GPU. PyTorch's settings have no effect.",
    "ggml": "Put fewer layers on the GPU (-ngl), or use a smaller context (-c). PyTorch's settings have no effect.",
    "cuda": "Look for other processes on the device (nvidia-smi). If PyTorch itself has reserved nearly all of it, leave memory "
    "for the library, for example with set_per_process_memory_fraction(0.9).",
    "cupy": "Free CuPy's pool (cupy.get_default_memory_pool().free_all_blocks()), or leave it memory with "
    "set_per_process_memory_fraction(0.9) in PyTorch.",
    "hpu": "Use a smaller batch. Settings of PyTorch's CUDA allocator have no effect.",
    "jax": "Use a smaller batch, or set XLA_PYTHON_CLIENT_MEM_FRACTION on a GPU. PyTorch's settings have no effect.",
    "paddle": "Use a smaller batch, or end what else uses the GPU. PyTorch's settings have no effect.",
    "tensorflow": "Use a smaller batch, or tf.config.experimental.set_memory_growth. PyTorch's settings have no effect.",
    "mps": "Use a smaller batch. PYTORCH_MPS_HIGH_WATERMARK_RATIO raises the limit, but the whole system may stall.",
    "xpu_block": "Make the tensor on the line that failed smaller: a smaller batch, shorter inputs, or parts one after the other.",
    "xpu": "Use a smaller batch, or leave more device memory free.",
}
"""What to try first, by kind."""
