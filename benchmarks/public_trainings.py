"""Dry-runs public trainings as a user would, and shows which have an answer that can be trusted.

    python benchmarks/public_trainings.py FOLDER [--only WORD]     runs them; FOLDER has clones of the repositories
    python benchmarks/public_trainings.py --table                  writes the table into docs/accuracy.md

The programs are unchanged. Data that they would download is replaced by generated data of the same form. The result names
packages that a program needs and that are missing.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
RESULTS: Final = Path(__file__).parent / "results" / "public_trainings.json"
DOCS: Final = ROOT / "docs" / "accuracy.md"
BEGIN, END = "<!-- benchmarks/public_trainings.py --table -->", "<!-- end -->"
CARD: Final = "l4"
LONGEST_SECONDS: Final = 170
EXAMPLES: Final = ("pytorch/examples", "77f55b912142e11fcfdf5b530231fb9c52f181e8")
MINGPT: Final = ("karpathy/minGPT", "37baab71b9abea1b76ab957409a1cc2fbfba8a26")
NANOGPT: Final = ("karpathy/nanoGPT", "3adf61e154c3fe3fca428ad6bc3818b27a3b8291")
MAKEMORE: Final = ("karpathy/makemore", "988aa59e4d8fefa526d06f3b453ad116258398d4")
GCN: Final = ("tkipf/pygcn", "1600b5b748b3976413d1e307540ccc62605b4d6d")
GAT: Final = ("Diego999/pyGAT", "3664f2dc90cbf971564c0bf186dc794f12446d0c")
X_TRANSFORMERS: Final = ("lucidrains/x-transformers", "9252ed7838021ee61e6c5be0930b3a9a88efdf06")
MEGABYTE: Final = ("lucidrains/MEGABYTE-pytorch", "21eec73ae6e9268ad5b77be3c5dd5cbd7daeaa4d")
PERFORMER: Final = ("lucidrains/performer-pytorch", "fc8b78441b1e27eb5d9b01fc738a8772cee07127")
CLEANRL: Final = ("vwxyzjn/cleanrl", "fe8d8a03c41a7ef5b523e2e354bd01c363e786bb")


@dataclass(frozen=True)
class Training:
    """A training of a public repository."""

    repository: tuple[str, str]
    """Name and commit."""
    folder: str
    command: str
    options: str = ""
    """Options of ``vramscope dryrun``."""
    launcher: str = ""
    """Command before the script; Python if empty."""
    data: Callable[[Path], None] | None = None
    """Makes the data up in the folder."""

    @property
    def key(self) -> str:
        return " ".join(filter(None, [self.repository[0], self.folder, self.options, self.command]))


def words(folder: Path) -> None:
    """Text for the word language model."""
    place = folder / "data" / "wikitext-2"
    place.mkdir(parents=True, exist_ok=True)
    for name in ("train", "valid", "test"):
        lines = (" ".join(f"word{(row * 37 + at) % 9000}" for at in range(40)) for row in range(4000))
        (place / f"{name}.txt").write_text("\n".join(lines))


def characters(folder: Path) -> None:
    """Tokens for nanoGPT, and a text for minGPT."""
    import numpy as np

    for data in ("shakespeare_char", "openwebtext"):
        place = folder / "data" / data
        place.mkdir(parents=True, exist_ok=True)
        for name in ("train", "val"):
            (np.arange(400_000) % 65).astype(np.uint16).tofile(place / f"{name}.bin")
    (folder / "data" / "shakespeare_char" / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": 65}))


def text(folder: Path) -> None:
    (folder / "input.txt").write_text("".join(chr(32 + at % 90) for at in range(200_000)))


def digits(folder: Path) -> None:
    """MNIST in the files that torchvision reads, where the examples look for it."""
    import torch

    for place in (folder.parent / "data", folder / "data", folder.parent / "data" / "MNIST"):
        raw = place / "MNIST" / "raw"
        raw.mkdir(parents=True, exist_ok=True)
        for name, count in (("train", 6000), ("t10k", 1000)):
            images = torch.zeros(count, 28, 28, dtype=torch.uint8).numpy().tobytes()
            head = b"".join(value.to_bytes(4, "big") for value in (2051, count, 28, 28))
            (raw / f"{name}-images-idx3-ubyte").write_bytes(head + images)
            labels = bytes(at % 10 for at in range(count))
            head = b"".join(value.to_bytes(4, "big") for value in (2049, count))
            (raw / f"{name}-labels-idx1-ubyte").write_bytes(head + labels)


def bytes_of_text(folder: Path) -> None:
    """Text of 95 MB, compressed as the enwik8 of several repositories."""
    (folder / "data").mkdir(exist_ok=True)
    line = bytes(97 + at % 23 for at in range(9500))
    with gzip.open(folder / "data" / "enwik8.gz", "wb", compresslevel=1) as file:
        for _ in range(10_000):
            file.write(line)


def citations(folder: Path) -> None:
    """Graph of papers and their words, of the size of Cora."""
    place = next(one for one in (folder / "data", folder.parent / "data") if one.is_dir()) / "cora"
    place.mkdir(exist_ok=True)
    rows = (
        "\t".join(
            [str(paper), *(str(int((paper * 7 + word * 3) % 79 == 0)) for word in range(1433)), f"class{paper % 7}"]
        )
        for paper in range(2708)
    )
    (place / "cora.content").write_text("\n".join(rows) + "\n")
    pairs = (f"{at % 2708}\t{(at * 31 + 1) % 2708}" for at in range(5429))
    (place / "cora.cites").write_text("\n".join(pairs) + "\n")


TRAININGS: Final[Sequence[Training]] = (
    *(
        Training(EXAMPLES, "imagenet", f"main.py --dummy -a {name} -b 32 --workers 0")
        for name in ("resnet18", "resnet50", "vgg16", "mobilenet_v2", "densenet121", "vit_b_16")
    ),
    Training(EXAMPLES, "dcgan", "main.py --dataset fake --workers 0 --niter 1 --accel"),
    *(
        Training(EXAMPLES, "word_language_model", f"main.py --model {name} --epochs 1 --accel", data=words)
        for name in ("LSTM", "GRU", "RNN_TANH", "Transformer")
    ),
    Training(EXAMPLES, "mnist", "main.py --epochs 1", data=digits),
    Training(EXAMPLES, "vae", "main.py --epochs 1", data=digits),
    Training(EXAMPLES, "mnist_rnn", "main.py --epochs 1 --accel", data=digits),
    Training(EXAMPLES, "siamese_network", "main.py --epochs 1", data=digits),
    Training(EXAMPLES, "mnist_forward_forward", "main.py --epochs 4", data=digits),
    Training(EXAMPLES, "distributed/ddp-tutorial-series", "single_gpu.py 2 1"),
    Training(
        EXAMPLES, "distributed/ddp-tutorial-series", "multigpu_torchrun.py 2 1", launcher="torchrun --nproc-per-node 2"
    ),
    Training(EXAMPLES, "distributed/FSDP2", "example.py", options="--ranks 4"),
    Training(EXAMPLES, "distributed/tensor_parallelism", "fsdp_tp_example.py", options="--ranks 4"),
    Training(MINGPT, "projects/adder", "adder.py"),
    Training(MINGPT, "projects/chargpt", "chargpt.py --model.model_type=gpt2", data=text),
    Training(NANOGPT, ".", "train.py config/train_shakespeare_char.py --compile=False", data=characters),
    Training(
        NANOGPT,
        ".",
        "train.py config/train_gpt2.py --wandb_log=False --compile=False --gradient_accumulation_steps=2",
        data=characters,
    ),
    *(
        Training(MAKEMORE, ".", f"makemore.py -i names.txt --device cuda --type {name}")
        for name in ("transformer", "rnn", "gru", "bow")
    ),
    Training(GCN, "pygcn", "train.py", data=citations),
    Training(GAT, ".", "train.py", data=citations),
    *(Training(X_TRANSFORMERS, ".", f"train_{name}.py") for name in ("copy", "parity")),
    *(
        Training(X_TRANSFORMERS, ".", f"train_{name}.py", data=bytes_of_text)
        for name in (
            "enwik8",
            "length_extrapolate",
            "gpt_vae",
            "belief_state",
            "xl_enwik8",
            "entropy_tokenizer",
            "free",
        )
    ),
    Training(MEGABYTE, ".", "train.py", data=bytes_of_text),
    Training(PERFORMER, "examples/enwik8_simple", "train.py", data=bytes_of_text),
    Training(CLEANRL, ".", "cleanrl/ppo.py --total-timesteps 3000"),
    *(
        Training(CLEANRL, ".", f"cleanrl/{name}.py --total-timesteps 12000 --learning-starts 500")
        for name in ("dqn", "c51")
    ),
)


def run(training: Training, clones: Path) -> dict[str, Any]:
    """Dry-run a training, and return the answer as far as the table needs it."""
    folder = clones / training.repository[0].partition("/")[2] / training.folder
    if training.data is not None:
        training.data(folder)
    command = [sys.executable, "-m", "vramscope_server", "dryrun", "--json", "--card", CARD, *training.options.split()]
    launcher = [sys.executable]
    if training.launcher:
        launcher = [str(Path(sys.executable).parent / "torchrun"), *training.launcher.split()[1:]]
    command += ["--timeout", str(LONGEST_SECONDS), "--", *launcher, *training.command.split()]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("EMULATED_GPU_")}
    roots = [
        environment.get("PYTHONPATH"),
        clones / "minGPT",
        folder.parent,
        clones / training.repository[0].partition("/")[2],
    ]
    environment["PYTHONPATH"] = os.pathsep.join(str(one) for one in roots if one)
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if not done.stdout.startswith("{"):
        return {"answer": "no answer", "reasons": done.stderr.strip().splitlines()[-1:]}
    found = json.loads(done.stdout)
    kept = ("answer", "reasons", "assumptions", "steps", "peak_allocated_bytes", "peak_reserved_bytes")
    result = {name: found[name] for name in (*kept, "peak_allocated_high_bytes")}
    if found["answer"] == "not trustworthy":
        faults = [line.strip() for line in done.stderr.splitlines() if "Error" in line]
        result["error"] = faults[-1] if faults else ""
    return result


def table(results: dict[str, Any]) -> str:
    """Format the results, with their numbers first."""
    found = [(training, results[training.key]) for training in TRAININGS if training.key in results]
    answered = sum(result["answer"] in ("fits", "does not fit", "too close to say") for _, result in found)
    lines = [f"{answered} of {len(found)} have an answer.", ""]
    lines += ["| training | answer | peak allocated | assumed, or why not |", "|---|---|---|---|"]
    for training, result in found:
        texts = result["reasons"] or result.get("assumptions", [])
        shown = "; ".join([*texts[:2], *([f"and {len(texts) - 2} more"] if len(texts) > 2 else [])])
        if result.get("error") and result["error"][:40] not in shown:
            shown += f" ({result['error'][:110]})"
        launched = " ".join(filter(None, [training.options, training.launcher, training.command]))
        cells = [f"{training.repository[0].partition('/')[2]}/{training.folder} `{launched}`", result["answer"]]
        lines.append(f"| {' | '.join([*cells, _peak(result), shown.replace('|', '/')])} |")
    return "\n".join(lines)


def _peak(result: dict[str, Any]) -> str:
    low, high = result.get("peak_allocated_bytes"), result.get("peak_allocated_high_bytes")
    if low is None:
        return ""
    return f"{low / 2**30:.2f} GiB" if high is None else f"{low / 2**30:.2f} to {high / 2**30:.2f} GiB"


def write_table() -> None:
    before, _, rest = DOCS.read_text().partition(BEGIN)
    made = table(json.loads(RESULTS.read_text()))
    DOCS.write_text(f"{before}{BEGIN}\n{made}\n{END}{rest.partition(END)[2]}")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("clones", nargs="?", type=Path, help="folder with clones of the repositories")
    options.add_argument("--only", default="", help="run the trainings with this word in their command")
    options.add_argument("--table", action="store_true", help="write the table into docs/accuracy.md")
    chosen = options.parse_args()
    if chosen.table or chosen.clones is None:
        write_table()
        return
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for training in TRAININGS:
        if chosen.only in training.key:
            results[training.key] = run(training, chosen.clones.resolve())
            print(training.key, results[training.key], flush=True)
            RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
