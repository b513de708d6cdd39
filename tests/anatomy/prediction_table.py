"""Generates the table of RESULTS.md that compares predictions for other plans with trainings that ran with them.

python tests/anatomy/prediction_table.py     # about two minutes on two cores; rewrites the part of the file between the marks
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

from observed import Observed, run

from vramscope_server.analysis.advice.facts import StepFacts
from vramscope_server.analysis.techniques.plan import TrainingPlan
from vramscope_server.analysis.techniques.predict import predict

PAGE = Path(__file__).resolve().parent / "RESULTS.md"
MIB = 1 << 20
MODELS = {
    "roberta": "RoBERTa of [techniques.md](techniques.md), 64 rows of 128 words",
    "gpt2": "GPT-2 small, 8 rows of 512",
    "llama": "Llama of 9 layers, width 1024, 8 rows of 512",
    "vit": "ViT base, 32 images",
    "encoder": "six of PyTorch's encoder layers, width 1024, 16 rows of 64",
    "resnet": "residual CNN of 18 layers, 32 images of 128 x 128",
    "unet": "U-Net, 16 images of 96 x 96",
}
WAYS = {
    "+4": TrainingPlan(4),
    "+checkpointing": TrainingPlan(1, True),
    "+8bit": TrainingPlan(optimizer_8bit=True),
    "+4+checkpointing": TrainingPlan(4, True),
    "+4+8bit": TrainingPlan(4, optimizer_8bit=True),
    "+checkpointing+8bit": TrainingPlan(1, True, True),
    "+4+checkpointing+8bit": TrainingPlan(4, True, True),
}
HEADS = (
    "as it is",
    "accumulation 4",
    "checkpointing",
    "8-bit state",
    "4, checkpointing",
    "4, 8-bit",
    "checkpointing, 8-bit",
    "all",
)


def main() -> None:
    names = [f"{model}{recipe}" for model in MODELS for recipe in ("+as", *WAYS)]
    with tempfile.TemporaryDirectory() as folder:
        observed = run(Path(folder), names)
    head = [f"| training, peak in MiB | {' | '.join(HEADS)} |", f"|{'---|' * (len(HEADS) + 1)}"]
    made = "\n".join([*head, *(row(observed, model) for model in MODELS)])
    text = PAGE.read_text()
    PAGE.write_text(
        re.sub(r"(<!-- ways -->\n).*(<!-- /ways -->)", lambda m: f"{m[1]}{made}\n{m[2]}", text, flags=re.DOTALL)
    )
    print(made)


def row(observed: dict[str, Observed], model: str) -> str:
    """Measured peak, and the error of the prediction relative to the recorded peak."""
    before = observed[f"{model}+as"]
    cells = [MODELS[model], f"{before.peak_allocated_bytes / MIB:,.0f}"]
    rows = predict(StepFacts(before.trace), list(WAYS.values())).rows[1:]
    for recipe, predicted in zip(WAYS, rows, strict=True):
        came = observed[f"{model}{recipe}"].peak_allocated_bytes
        error = "not told"
        if predicted.peak_allocated_bytes is not None:
            error = f"{(predicted.peak_allocated_bytes - came) / before.peak_allocated_bytes:+.1%}"
        cells.append(f"{came / MIB:,.0f} ({error})")
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
