"""Trainings by the frameworks' own loops, and what they were told; registered beside those of ``cases``."""

from __future__ import annotations

from typing import Any

import torch
from cases import DEVICE, STEPS, Blocks, case, loop, plainly
from names import CHECKPOINTING
from torch.utils.checkpoint import checkpoint


def gpt2(**config: Any) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=64, n_head=2, vocab_size=100, n_positions=32, **config))


def hugging_face(model: Any = None, optimizers: Any = (None, None), **arguments: Any) -> Any:
    from transformers import Trainer, TrainingArguments

    ids = torch.zeros(16, dtype=torch.long)
    data = [{"input_ids": ids, "labels": ids} for _ in range(64)]
    given = TrainingArguments(
        output_dir="out", max_steps=STEPS, save_strategy="no", report_to=[], disable_tqdm=True, logging_strategy="no",
        **{"per_device_train_batch_size": 2, **arguments},
    )  # fmt: skip
    trainer = Trainer(model=model or gpt2(), args=given, train_dataset=data, optimizers=optimizers)
    return trainer, trainer.train


@case
def hf_plain() -> Any:
    return hugging_face(optim="adamw_torch")


@case
def hf_with_an_adapter() -> Any:
    """In place, as the model's own ``add_adapter`` does; which some releases of transformers refuse, whatever peft is there."""
    from peft import LoraConfig, inject_adapter_in_model

    model = gpt2()
    inject_adapter_in_model(LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True), model)
    return hugging_face(model, optim="adamw_torch")


@case
def hf_all() -> Any:
    return hugging_face(
        gradient_accumulation_steps=4,
        bf16=True,
        optim="adamw_torch_fused",
        torch_empty_cache_steps=1,
        **{CHECKPOINTING: True},
    )


@case
def hf_reentrant() -> Any:
    return hugging_face(fp16=True, **{CHECKPOINTING: True, f"{CHECKPOINTING}_kwargs": {"use_reentrant": True}})


@case
def hf_in_eval_mode() -> Any:
    """Something puts the model in eval mode: the Trainer's flag is on, and nothing is recomputed."""
    from transformers import TrainerCallback

    class Evaluating(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
            model.eval()
            model.train = lambda mode=True: model

    trainer, train = hugging_face(**{CHECKPOINTING: True})
    trainer.add_callback(Evaluating())
    return trainer, train


@case
def hf_eager() -> Any:
    return hugging_face(gpt2(attn_implementation="eager"))


@case
def hf_optimizer_of_ones_own() -> Any:
    """The Trainer was told of an 8-bit optimizer and given another; what it was to keep on the host stays; nothing is compiled."""
    model = gpt2()
    own = torch.optim.AdamW(model.parameters())
    trainer, train = hugging_face(
        model,
        optimizers=(own, None),
        optim="adamw_bnb_8bit",
        torch_compile=True,
        **{f"{CHECKPOINTING}_kwargs": {"offload": True}},
    )

    def disabled() -> None:
        with torch._dynamo.config.patch(disable=True):
            train()

    return trainer, disabled


@case
def hf_eight_bit() -> Any:
    return hugging_face(optim="adamw_bnb_8bit")


@case
def hf_scores_of_every_pair() -> Any:
    """Asked for fused attention, and PyTorch is told to compute it the long way."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    trainer, train = hugging_face()

    def by_hand() -> None:
        with sdpa_kernel(SDPBackend.MATH):
            train()

    return trainer, by_hand


@case
def hf_without_attention() -> Any:
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(embedding_size=8, hidden_sizes=[8], depths=[1], num_labels=2)
    model = ResNetForImageClassification(config).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())

    def train() -> None:
        for _ in range(STEPS):
            model(torch.zeros(8, 3, 16, 16, device=DEVICE)).logits.mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    return model, train


@case
def hf_enabled_in_a_plain_loop() -> Any:
    model = gpt2().to(DEVICE)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    optimizer = torch.optim.AdamW(model.parameters())
    ids = torch.zeros(2, 16, dtype=torch.long, device=DEVICE)

    def train() -> None:
        for _ in range(STEPS):
            model(input_ids=ids, labels=ids).loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    return model, train


def accelerated(**given: Any) -> Any:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState
    from torch.utils.data import DataLoader, TensorDataset

    AcceleratorState._reset_state(True)
    accelerator = Accelerator(**given)
    model = Blocks(plainly)
    data = DataLoader(TensorDataset(torch.zeros(96, 64)), batch_size=4)
    model, optimizer, data = accelerator.prepare(model, torch.optim.AdamW(model.parameters()), data)

    def train() -> None:
        for (batch,) in data:
            with accelerator.accumulate(model):
                accelerator.backward(model(batch).square().mean())
                optimizer.step()
                optimizer.zero_grad()

    return accelerator, train


@case
def accelerate_plain() -> Any:
    return accelerated()


@case
def accelerate_all() -> Any:
    return accelerated(gradient_accumulation_steps=4, mixed_precision="bf16")


@case
def accelerate_unused() -> Any:
    """Declared to the Accelerator, and then neither accumulate() nor its prepared model is used."""
    accelerator, _ = accelerated(gradient_accumulation_steps=4, mixed_precision="bf16")
    return accelerator, loop(Blocks(plainly))[1]


def lightning_fit(**given: Any) -> Any:
    import lightning
    from torch.utils.data import DataLoader, TensorDataset

    class Net(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Blocks(given.pop("call", plainly))

        def training_step(self, batch: Any, number: int) -> Any:
            return self.model(batch[0]).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters())

    net = Net()
    data = DataLoader(TensorDataset(torch.zeros(96, 64)), batch_size=4)
    trainer = lightning.Trainer(
        max_steps=STEPS, logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        devices=1, **given,
    )  # fmt: skip
    return trainer, lambda: trainer.fit(net, data)


@case
def lightning_plain() -> Any:
    return lightning_fit()


@case
def lightning_all() -> Any:
    return lightning_fit(
        accumulate_grad_batches=4,
        precision="bf16-mixed",
        call=lambda block, x: checkpoint(block, x, use_reentrant=False),
    )


@case
def lightning_ddp() -> Any:
    from lightning.pytorch.strategies import DDPStrategy

    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    return lightning_fit(strategy=DDPStrategy(process_group_backend="gloo"))


@case
def lightning_true_bf16() -> Any:
    return lightning_fit(precision="bf16-true")
