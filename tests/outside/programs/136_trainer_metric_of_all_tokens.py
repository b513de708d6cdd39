"""A token classifier in the Hugging Face Trainer is evaluated every 30 steps, and the logits of the whole evaluation set are gathered on the GPU until compute_metrics has been called; then they go, so usage is a saw whose teeth have equal height. Source: https://github.com/huggingface/transformers/issues/12878 - a report that the Trainer accumulates logits; the answer was that a metric usually cannot be computed batch by batch."""
EXPECTED = {"kind": "innocent"}

import tempfile
import warnings

import numpy as np
import torch
from transformers import DistilBertConfig, DistilBertForTokenClassification, Trainer, TrainingArguments

warnings.filterwarnings("ignore")
N_TAGS, WIDTH = 180, 64


class Sentences(torch.utils.data.Dataset):
    def __init__(self, n, offset):
        self.n, self.offset = n, offset

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.offset + i)
        ids = torch.randint(5, 2000, (WIDTH,), generator=g)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids % N_TAGS}


def macro_f1(p):
    guess = np.argmax(p.predictions, -1).ravel()
    gold = p.label_ids.ravel()
    hit = np.bincount(gold[guess == gold], minlength=N_TAGS)
    denom = np.bincount(gold, minlength=N_TAGS) + np.bincount(guess, minlength=N_TAGS)
    return {"macro_f1": float(np.mean(2 * hit / np.maximum(denom, 1)))}


def main():
    model = DistilBertForTokenClassification(DistilBertConfig(
        vocab_size=2000, dim=160, n_layers=2, n_heads=4, hidden_dim=400, num_labels=N_TAGS, max_position_embeddings=96,
    ))
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            output_dir=folder, max_steps=150, per_device_train_batch_size=8, per_device_eval_batch_size=16,
            eval_strategy="steps", eval_steps=30, save_strategy="no", logging_strategy="no", report_to=[],
            disable_tqdm=True, learning_rate=1e-3, dataloader_pin_memory=False,
        )
        trainer = Trainer(
            model=model, args=args, train_dataset=Sentences(1200, 0), eval_dataset=Sentences(320, 10 ** 6),
            compute_metrics=macro_f1,
        )
        trainer.train()
        print([round(h["eval_macro_f1"], 4) for h in trainer.state.log_history if "eval_macro_f1" in h])


if __name__ == "__main__":
    main()
