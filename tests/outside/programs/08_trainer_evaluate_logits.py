"""Evaluation of a small language model with the transformers Trainer and compute_metrics: the training steps fit, but evaluate() keeps the logits of all batches on the GPU until the end and runs out of memory. Source: https://github.com/huggingface/transformers/issues/12878 (also /issues/15466) - established there: the logits of the evaluation steps are concatenated over the whole data set, samples x length x vocabulary floats."""
EXPECTED = {"kind": "oom", "memory": "3G", "cause": ["activations", "leak"],
            "holder": ["logits", "preds", "EvalLoopContainer", "tensors", "evaluation_loop"],
            "mentions": [["eval_accumulation_steps", "preprocess_logits", "prediction_loss_only", "argmax"]]}

# Arithmetic: one batch of logits is 2 x 512 x 30522 x 4 bytes = 119 MiB; a forward pass with
# loss needs about four of them (< 600 MiB) and fits. 32 batches = 3815 MiB kept > 3072 MiB,
# and concatenation needs old + new at the same time, so it dies after about 8 to 12 batches.
import tempfile

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

config = GPT2Config(
    vocab_size=30522, n_positions=512, n_embd=128, n_layer=2, n_head=2,
    use_cache=False, bos_token_id=0, eos_token_id=0,
)
model = GPT2LMHeadModel(config).cuda()

optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(3):
    ids = torch.randint(0, 30522, (2, 512), device="cuda")
    optimizer.zero_grad()
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    print("train step", step, loss.item())
del loss, ids
optimizer.zero_grad()


def compute_metrics(result):
    predictions, labels = result
    return {"accuracy": float((np.argmax(predictions, -1) == labels).mean())}


class ToyCorpus(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, i):
        ids = torch.full((512,), i, dtype=torch.long)
        return {"input_ids": ids, "labels": ids.clone()}


arguments = TrainingArguments(
    output_dir=tempfile.mkdtemp(), per_device_eval_batch_size=2,
    report_to="none", disable_tqdm=True,
)
trainer = Trainer(model=model, args=arguments, eval_dataset=ToyCorpus(), compute_metrics=compute_metrics)
print(trainer.evaluate())  # <- here
