"""Sentences for errors that their kind alone explains: of the host, of other software, of libraries."""

from __future__ import annotations

from typing import Final

HEADLINES: Final = {
    "worker_killed": "A DataLoader worker was killed. Linux does that when the host's memory runs out.",
    "shared_memory": "The host's shared memory (/dev/shm) ran out. DataLoader workers pass batches through it.",
    "kernel": "The host's memory ran out, not the GPU's: Linux ended a process.",
    "slurm": "The memory of the Slurm job ran out on the host, not the GPU's.",
    "kubernetes": "The memory of the container ran out on the host, not the GPU's.",
    "ray": "The memory of the Ray node ran out on the host, not the GPU's.",
    "batch_system": "The memory limit of the batch job was exceeded on the host, not on the GPU.",
    "killed": "The process was killed (SIGKILL). Linux does that when the host's memory runs out.",
    "triton": "A Triton kernel needs more on-chip shared memory than this GPU has. Device memory is not the reason.",
    "vllm": "vLLM has too little device memory for what it allocates at its start.",
    "jax": "This is an error of JAX (XLA), not of PyTorch: its own allocator ran out of memory.",
    "paddle": "This is an error of PaddlePaddle, not of PyTorch: its own allocator ran out of memory.",
    "tensorflow": "This is an error of TensorFlow, not of PyTorch: its own allocator ran out of memory.",
}
"""What happened, by kind."""

FIRST_AID: Final = {
    "kernel": "Keep less in the process: fewer DataLoader workers, a smaller prefetch_factor, data that is read in parts.",
    "slurm": "Request more memory (--mem or --mem-per-cpu), or use fewer DataLoader workers.",
    "kubernetes": "Raise the container's memory limit (resources.limits.memory), or use fewer DataLoader workers.",
    "ray": "Run fewer tasks on a node (num_cpus), or request memory for each task (memory=).",
    "batch_system": "Request more memory for the job, or use fewer DataLoader workers.",
    "killed": "Look for the reason in the kernel's log (dmesg). If it is memory, use fewer DataLoader workers.",
    "shared_memory": "Enlarge /dev/shm (docker run --shm-size=8g or --ipc=host), or use fewer DataLoader workers.",
    "triton": "Use smaller blocks or fewer pipeline stages in the kernel (BLOCK_*, num_stages).",
    "vllm": "Lower max_model_len or max_num_seqs, or end what else uses the GPU. If only the KV cache does not fit, raise "
    "gpu_memory_utilization; otherwise lower it.",
    "jax": "Set XLA_PYTHON_CLIENT_MEM_FRACTION, or a smaller batch. PyTorch's settings have no effect.",
    "paddle": "Use a smaller batch, or end what else uses the GPU. PyTorch's settings have no effect.",
    "tensorflow": "Use a smaller batch, or tf.config.experimental.set_memory_growth. PyTorch's settings have no effect.",
    "mps": "Use a smaller batch. PYTORCH_MPS_HIGH_WATERMARK_RATIO raises the limit, but the whole system may stall.",
    "xpu": "Use a smaller batch, or leave more device memory free.",
}
"""What to try first, by kind."""
