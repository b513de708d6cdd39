"""Generates the tables of RESULTS.md: categories against the truth, and promised savings against measured ones.

python tests/anatomy/table.py          # about three minutes on two cores; rewrites the part of the file between the marks
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
from observed import Observed, run

from vramscope_server.analysis.advice.all_rules import advise
from vramscope_server.analysis.advice.facts import StepFacts
from vramscope_server.analysis.ownership.amounts import allocated_at, peak_event
from vramscope_server.analysis.ownership.categories import CATEGORIES, UNKNOWN, categories_of

PAGE = Path(__file__).resolve().parent / "RESULTS.md"
MIB = 1 << 20
JUDGED = {
    "gpt2": "GPT-2 small (transformers), AdamW",
    "gpt2_checkpointed": "the same, blocks checkpointed",
    "gpt2_autocast": "6 layers, autocast bf16, 4 micro-batches, clipping",
    "resnet": "residual CNN of 18 layers, SGD, DataLoader",
    "t5": "T5 (transformers), AdamW",
    "lstm": "two-layer bidirectional LSTM, RMSprop",
    "gan": "GAN: two models, two optimizers",
    "reentrant": "reentrant checkpoints",
    "trainer": "transformers' Trainer, 2 micro-batches",
    "fsdp2": "FSDP2, one rank of two, 6 blocks",
    "ddp": "the same under DistributedDataParallel",
    "sam": "the same under SAM: copies of the weights",
    "lbfgs": "LBFGS with a history of six",
    "accumulated": "bf16, 3 micro-batches summed up in 32 bits, 32-bit weights",
    "offloaded": "saved tensors on the host (`save_on_cpu`)",
    "ema": "an average of the weights (`swa_utils`)",
    "lora": "frozen blocks, narrow matrices beside them",
    "compiled": "torch.compile, `aot_eager`",
    "momentum_queue": "contrastive, a momentum encoder and a queue",
    "recurrent_scores": "GRU, a sum over label sequences, two optimizers",
    "actor_and_world": "an actor in a learned world, two optimizers",
}
REMEDIES = [
    ("checkpointing", "gpt2", "gpt2_checkpointed"),
    ("checkpointing", "t5", "t5_checkpointed"),
    ("checkpointing", "resnet", "resnet_checkpointed"),
    ("loss_head", "gpt2", "gpt2_chunked"),
    ("foreach", "wide", "wide_loop"),
    ("late_clear", "zeros", "early_clear"),
    ("evaluation", "evaluation", "evaluation_no_grad"),
    ("optimizer_state", "wide_loop", "wide_eight_bit"),
    ("optimizer_state", "wide", "wide_eight_bit"),
    ("weight_copies", "wide_autocast", "wide_bfloat16"),
    ("kept_copies", "best_state", "best_state_on_the_host"),
]


def main() -> None:
    names = dict.fromkeys([*JUDGED, *(name for _, before, after in REMEDIES for name in (before, after))])
    with tempfile.TemporaryDirectory() as folder:
        observed = run(Path(folder), list(names))
    lines = [*_categories(observed), "", *_promises(observed)]
    text = PAGE.read_text()
    PAGE.write_text(
        re.sub(
            r"(<!-- table -->\n).*(<!-- /table -->)",
            lambda m: m[1] + "\n".join(lines) + "\n" + m[2],
            text,
            flags=re.DOTALL,
        )
    )
    print("\n".join(lines))


def _categories(observed: dict[str, Observed]) -> list[str]:
    lines = [
        "| training | peak, MiB | right at the peak | right over the window | unknown at the peak |",
        "|---|---|---|---|---|",
    ]
    for name, words in JUDGED.items():
        one = observed[name]
        lives, count = one.trace.lives, len(one.trace.events)
        codes = categories_of(one.trace)
        same = np.array(CATEGORIES)[codes] == np.array(one.truth)
        held = allocated_at(one.trace, peak_event(one.trace))
        size = lives.size_bytes[held]
        weight = lives.size_bytes * (np.minimum(lives.free_requested_event, count) - np.maximum(lives.alloc_event, 0))
        lines.append(
            f"| {words} | {one.peak_allocated_bytes / MIB:.0f} | {size[same[held]].sum() / size.sum():.2%} | "
            f"{weight[same].sum() / weight.sum():.2%} | {size[codes[held] == UNKNOWN].sum() / size.sum():.2%} |"
        )
    return lines


def _promises(observed: dict[str, Observed]) -> list[str]:
    lines = [
        "| rule | training | peak, MiB | promised | measured | error, of the peak |",
        "|---|---|---|---|---|---|",
    ]
    for rule, before, after in REMEDIES:
        one = observed[before]
        advice = next(advice for advice in advise(StepFacts(one.trace)) if advice.rule == rule)
        promised = advice.saves_bytes or 0
        measured = one.peak_allocated_bytes - observed[after].peak_allocated_bytes
        most = "up to " if advice.evidence.get("at_most") else ""
        lines.append(
            f"| `{rule}` | {before} | {one.peak_allocated_bytes / MIB:.0f} | {most}{promised / MIB:.1f} | {measured / MIB:.1f} | "
            f"{(promised - measured) / one.peak_allocated_bytes:+.2%} |"
        )
    return lines


if __name__ == "__main__":
    main()
