"""A Hugging Face Trainer with its own compute_loss that also puts the whole model output (logits, cache) of each step aside for a later report. Source: https://github.com/HelmholtzAI-Consultants-Munich/Quicksetup-ai/pull/26 - established that predictions and targets returned beside the loss stayed on the GPU during training though nothing needed them."""
EXPECTED = {"kind": "leak", "holder": ["step_outputs"], "growing": True}

import tempfile
import warnings

import torch
import torch.nn.functional as F
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from transformers.utils import logging as hf_logging

warnings.filterwarnings("ignore")
hf_logging.set_verbosity_error()


class RandomText(Dataset):
    def __init__(self, n, length, vocab):
        self.ids = torch.randint(0, vocab, (n, length), generator=torch.Generator().manual_seed(5))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "labels": self.ids[i]}


class FocalTrainer(Trainer):
    def __init__(self, *args, gamma=2.0, **kwargs):
        super().__init__(*args, **kwargs)
        self.gamma = gamma
        self.step_outputs = []

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        outputs = model(**inputs)  # <- here
        flat = outputs.logits[:, :-1].reshape(-1, outputs.logits.size(-1))
        ce = F.cross_entropy(flat, labels[:, 1:].reshape(-1), reduction="none")
        loss = ((1 - torch.exp(-ce)) ** self.gamma * ce).mean()
        self.step_outputs.append({"outputs": outputs, "labels": labels})  # <- here
        return (loss, outputs) if return_outputs else loss


def main():
    vocab = 1800
    config = GPT2Config(vocab_size=vocab, n_positions=64, n_embd=192, n_layer=3, n_head=4,
                        bos_token_id=0, eos_token_id=0)
    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(
            output_dir=out, max_steps=64, per_device_train_batch_size=8, learning_rate=3e-4,
            logging_steps=32, save_strategy="no", report_to=[], disable_tqdm=True,
            dataloader_num_workers=0, dataloader_pin_memory=False,
        )
        trainer = FocalTrainer(model=GPT2LMHeadModel(config), args=args, train_dataset=RandomText(600, 64, vocab))
        trainer.train()
        print("gathered", len(trainer.step_outputs), "steps")


if __name__ == "__main__":
    main()
