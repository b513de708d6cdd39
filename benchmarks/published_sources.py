"""Pages with memory figures of real cards."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Source:
    """A page with figures of a real card."""

    key: str
    url: str
    card: str
    """Card that the source names."""
    emulated: str
    """Key of the emulated card."""
    torch: str
    """Version that the source names."""
    note: str = ""


MINGPT = Source("minGPT", "https://github.com/karpathy/minGPT/pull/106", "not named", "a100-40", "not named (2023-01)")
RECIPE = Source(
    "AMP recipe",
    "https://pytorch.org/tutorials/recipes/recipes/amp_recipe.html",
    "Tesla T4",
    "t4",
    "1.11",
    "The recipe's output on a T4 is from a README whose address is not known here.",
)
TRAINER = Source(
    "Trainer on one GPU",
    "https://github.com/huggingface/transformers/blob/0016acf7ef421c7fe8eff7945de52c71896c3b01/docs/source/en/perf_train_gpu_one.mdx",
    "Tesla V100-SXM2-16GB",
    "v100-16",
    "not named (2022-01)",
)
ZERO = Source(
    "ZeRO recipe",
    "https://github.com/pytorch/tutorials/blob/01c63024aba938019e52ff7755eb9138065a59df/recipes_source/zero_redundancy_optimizer.rst",
    "not named",
    "a100-40",
    "1.8",
)
FCN = Source(
    "mmsegmentation, FCN",
    "https://github.com/open-mmlab/mmsegmentation/blob/02e04cc213fa7fe5313258e27fcca6c8d4ef8e23/configs/fcn/README.md",
    "V100",
    "v100-32",
    "not named (2020-06)",
)
PSPNET = Source(
    "mmsegmentation, PSPNet",
    "https://github.com/open-mmlab/mmsegmentation/tree/main/configs/pspnet",
    "V100",
    "v100-32",
    "not named (2020-06)",
)
PSPNET_TRIALS = Source(
    "mmsegmentation, issue 1215",
    "https://github.com/open-mmlab/mmsegmentation/issues/1215",
    "not named",
    "v100-32",
    "not named",
    "The address was not checked.",
)
BOOK = Source(
    "Efficient PyTorch, chapter 7",
    "https://github.com/ailzhang/EfficientPyTorch/tree/5d1bdcf677b1653ab8ce80fae538de38b23ed102/chapter_07_memory",
    "not named (24 GB)",
    "3090",
    "not named (2024)",
)
SPEED = Source(
    "LLMs from scratch, training speed",
    "https://github.com/rasbt/LLMs-from-scratch/blob/06361583d01a650412400ce01cf2be9efaec3b99/ch05/10_llm-training-speed/README.md",
    "A100",
    "a100-80",
    "2.6.0",
)
LOADING = Source(
    "LLMs from scratch, loading",
    "https://github.com/rasbt/LLMs-from-scratch/blob/08362fd29002603a327103d4e16734d55535085c/ch05/08_memory_efficient_weight_loading/memory-efficient-state-dict.ipynb",
    "not named",
    "a100-40",
    "2.4.1",
)
LIGER = Source(
    "Liger-Kernel, baselines (A100)",
    "https://github.com/linkedin/Liger-Kernel/blob/ead96b618e5c67bddc6a6e9bcb99bfe6b5ab661c/benchmark/data/all_benchmark_data.csv",
    "NVIDIA A100-SXM4-80GB",
    "a100-80",
    "not named (2024)",
)
LIGER_H100 = Source(
    "Liger-Kernel, baselines (H100, RTX 4090)",
    LIGER.url,
    "NVIDIA H100, RTX 4090",
    "h100",
    "not named (2024 to 2026)",
)
CCE = Source(
    "Cut Cross-Entropy",
    "https://github.com/apple/ml-cross-entropy/blob/18e76ada05706ad9bc672804a35a940a07a21a13/README.md",
    "A100 SXM4",
    "a100-80",
    "2.4.1",
)
XFORMERS = Source(
    "xFormers, forward",
    "https://github.com/facebookresearch/xformers/pull/267",
    "not named",
    "v100-32",
    "not named (2022-04)",
)
XFORMERS_BACKWARD = Source(
    "xFormers, backward",
    "https://github.com/facebookresearch/xformers/pull/281",
    "not named",
    "v100-32",
    "not named (2022-04)",
)
OCTOCODER = Source(
    "Optimizing LLMs (Transformers)",
    "https://github.com/huggingface/transformers/blob/008f5c8c29be84d4721dc6d1e0fcd72300580be4/docs/source/en/llm_tutorial_optimization.md",
    "A100 40 GB",
    "a100-40",
    "not named (2023)",
)
TORCHAO = Source(
    "torchao, optimizers",
    "https://github.com/pytorch/ao/blob/072500abcfbdec15a429eb53160c63fb92534b85/torchao/optim/README.md",
    "RTX 4070 Ti SUPER",
    "4070ti-super",
    "not named (2024)",
)
HOMEWORK = Source(
    "Checkpointing notebook",
    "https://github.com/vinitvyas09/optimizers/blob/751688ebc8f3a6087a61d623f809a0d0ca4745f5/hw2_activation_checkpointing.ipynb",
    "NVIDIA A100-SXM4-40GB",
    "a100-40",
    "2.9.0",
)
MEGATRON = Source(
    "Megatron-LM, issue 965",
    "https://github.com/NVIDIA/Megatron-LM/issues/965",
    "A100 80GB",
    "a100-80",
    "not named (2024-08)",
)
FORUM = Source(
    "PyTorch forum, 185903",
    "https://discuss.pytorch.org/t/why-does-backward-require-3x-the-memory-of-forward/185903",
    "not named",
    "3090",
    "not named (2023)",
)
REDDIT = Source(
    "r/pytorch, gradient memory",
    "https://www.reddit.com/r/pytorch/comments/16enzqw/understanding_memory_usage_for_gradient/",
    "not named",
    "3090",
    "not named (2023-09)",
)
MLAB = Source("MLAB exercises", "https://github.com/tamera-lanham/mlab", "not named", "a100-40", "not named")
