"""Trainings with the frameworks' loops, registered together with ``cases``."""

from __future__ import annotations

import contextlib
import os
from typing import Any
from unittest import mock

import torch
from cases import DEVICE, STEPS, Blocks, alone, case, eagerly, loop, plainly
from names import CHECKPOINTING, CHECKPOINTS_PARTLY, CHECKPOINTS_TO_HOST
from torch import nn
from torch.utils.checkpoint import checkpoint

ONE_RANK = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
"""Environment of a launcher with one process."""


def gpt2(**config: Any) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=64, n_head=2, vocab_size=100, n_positions=32, **config))


def hugging_face(model: Any = None, optimizers: Any = (None, None), **arguments: Any) -> Any:
    from accelerate.state import AcceleratorState
    from transformers import Trainer, TrainingArguments

    AcceleratorState._reset_state(True)  # else the settings of one Trainer are those of the next one
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
    """An adapter in place, like ``add_adapter``, which some releases of transformers refuse with any peft. It is so small that
    an 8-bit optimizer keeps 32-bit state."""
    from peft import LoraConfig, inject_adapter_in_model

    model = gpt2()
    inject_adapter_in_model(LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True), model)
    return hugging_face(model, optim="adamw_bnb_8bit")


@case
def hf_qlora() -> Any:
    """The usual QLoRA: a 4-bit base, adapters, checkpoints and a paged optimizer."""
    from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
    from transformers import BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    LlamaForCausalLM(LlamaConfig(vocab_size=100, max_position_embeddings=32, **sizes)).save_pretrained("base")
    narrow = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16)
    model = LlamaForCausalLM.from_pretrained("base", quantization_config=narrow, device_map={"": 0})
    model = prepare_model_for_kbit_training(model, gradient_checkpointing_kwargs={"use_reentrant": False})
    model = get_peft_model(model, LoraConfig(r=64, target_modules=["q_proj"], task_type="CAUSAL_LM"))
    return hugging_face(model, optim="paged_adamw_8bit", bf16=True)


@case
def hf_prefix_tuning() -> Any:
    """The first module with positional arguments gets the prefix, which is no batch."""
    from peft import PrefixTuningConfig, get_peft_model

    return hugging_face(get_peft_model(gpt2(), PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4)))


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
    """The model is put into eval mode: the Trainer's flag is on, but nothing is recomputed."""
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
    """An 8-bit optimizer, offload and compile are declared, but another optimizer is passed and nothing else happens."""
    model = gpt2()
    own = torch.optim.AdamW(model.parameters())
    with mock.patch.dict(os.environ):
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
def hf_galore_of_tied_weights() -> Any:
    """Requested without effect: the head's weights are those of the embedding, under another name."""
    return hugging_face(optim="galore_adamw", optim_target_modules=["lm_head"], optim_args="rank=4")


@case
def hf_eight_bit() -> Any:
    return hugging_face(optim="adamw_bnb_8bit")


if CHECKPOINTS_PARTLY:

    @case
    def hf_every_second_layer() -> Any:
        return hugging_face(**{CHECKPOINTING: True, f"{CHECKPOINTING}_kwargs": {"every_n_layers": 2}})

    @case
    def hf_checkpoints_on_the_host() -> Any:
        """The offloading hooks are around the checkpoint, not within it."""
        return hugging_face(**{CHECKPOINTING: True, f"{CHECKPOINTING}_kwargs": {"offload": True}})

    @case
    def hf_fsdp() -> Any:
        """FSDP2 with its own checkpoints and offload."""
        alone()
        by_block = {"version": 2, "transformer_layer_cls_to_wrap": ["GPT2Block"], "activation_checkpointing": True}
        with mock.patch.dict(os.environ, ONE_RANK):
            trainer, train = hugging_face(fsdp="full_shard auto_wrap offload", ddp_backend="gloo", fsdp_config=by_block)

        def train_as_rank() -> None:
            with mock.patch.dict(os.environ, ONE_RANK):
                train()

        return trainer, train_as_rank


@case
def hf_adalomo() -> Any:
    return hugging_face(optim="adalomo")


@case
def hf_adafactor() -> Any:
    return hugging_face(optim="adafactor")


@case
def hf_sgd_instead() -> Any:
    """Another optimizer than the setting is passed to the Trainer."""
    model = gpt2()
    return hugging_face(model, optimizers=(torch.optim.SGD(model.parameters(), 0.1), None), optim="adafactor")


@case
def hf_sgd_unasked() -> Any:
    """The setting is only a default of the Trainer."""
    model = gpt2()
    return hugging_face(model, optimizers=(torch.optim.SGD(model.parameters(), 0.1), None))


@case
def hf_eight_bit_by_torchao() -> Any:
    return eagerly(*hugging_face(optim="adamw_torch_8bit"))


@case
def hf_lion() -> Any:
    return hugging_face(optim="paged_lion_8bit")


@case
def hf_few_batches() -> Any:
    """Two batches per epoch, with accumulation over four."""
    return hugging_face(gradient_accumulation_steps=4, per_device_train_batch_size=32)


@case
def hf_remainder() -> Any:
    """Every second step is the last of an epoch, with half the micro-batches."""
    return hugging_face(gradient_accumulation_steps=4, per_device_train_batch_size=11)


@case
def hf_batch_size_found() -> Any:
    return hugging_face(auto_find_batch_size=True)


@case
def hf_tf32() -> Any:
    from transformers.utils import import_utils

    clear = getattr(import_utils.enable_tf32, "cache_clear", None)
    if clear is not None:  # it remembers that it was called, and does nothing the next time
        clear()
    return hugging_face(tf32=True)


@case
def hf_compiled() -> Any:
    with mock.patch.dict(os.environ):  # it tells Accelerate by the environment, and leaves that there
        return hugging_face(torch_compile=True, torch_compile_backend="aot_eager")


@case
def hf_scores_of_every_pair() -> Any:
    """Fused attention is requested, but disabled in PyTorch."""
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


def accelerated(kind: Any = torch.optim.AdamW, *, model_first: bool = False, **given: Any) -> Any:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState
    from torch.utils.data import DataLoader, TensorDataset

    AcceleratorState._reset_state(True)
    accelerator = Accelerator(**given)
    model = Blocks(plainly)
    data = DataLoader(TensorDataset(torch.zeros(96, 64)), batch_size=4)
    if model_first:
        model, data = accelerator.prepare(model, data)
        optimizer = accelerator.prepare(kind(model.parameters()))
    else:
        model, optimizer, data = accelerator.prepare(model, kind(model.parameters()), data)

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
    """Declared to the Accelerator, but neither accumulate() nor the prepared model is used."""
    accelerator, _ = accelerated(gradient_accumulation_steps=4, mixed_precision="bf16")
    return accelerator, loop(Blocks(plainly))[1]


@case
def accelerate_by_environment() -> Any:
    """Configuration through the environment of ``accelerate launch``."""
    fields = {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "2", "ACCELERATE_MIXED_PRECISION": "fp16"}
    with mock.patch.dict(os.environ, fields):
        return accelerated()


@case
def accelerate_another_dtype() -> Any:
    accelerator, _ = accelerated(mixed_precision="bf16")
    scaler = torch.amp.GradScaler(DEVICE)
    model = Blocks(plainly).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())

    def train() -> None:
        for _ in range(STEPS):
            with torch.autocast(DEVICE, torch.float16):
                loss = model(torch.zeros(8, 64, device=DEVICE)).float().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

    return accelerator, train


@case
def accelerate_adapter() -> Any:
    """Techniques applied to the model before it is prepared."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState
    from peft import LoraConfig, get_peft_model

    AcceleratorState._reset_state(True)
    accelerator = Accelerator(mixed_precision="bf16")
    model = gpt2()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.enable_input_require_grads()
    model = get_peft_model(model, LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True))
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    ids = torch.zeros(2, 16, dtype=torch.long, device=DEVICE)

    def train() -> None:
        for _ in range(STEPS):
            accelerator.backward(model(input_ids=ids, labels=ids).loss)
            optimizer.step()
            optimizer.zero_grad()

    return accelerator, train


@case
def accelerate_eight_bit() -> Any:
    from bitsandbytes.optim import AdamW8bit

    return accelerated(AdamW8bit)


def of_eight_bits() -> Any:
    from accelerate.utils import AORecipeKwargs

    return accelerated(mixed_precision="fp8", kwargs_handlers=[AORecipeKwargs()], model_first=True)


@case
def accelerate_fp8() -> Any:
    """torchao's float8, with autocast to bfloat16."""
    return of_eight_bits()


@case
def accelerate_fp8_unused() -> Any:
    """Not observed. Float8 of other libraries cannot be observed."""
    accelerator, _ = of_eight_bits()
    return accelerator, loop(Blocks(plainly))[1]


@case
def accelerate_compiled() -> Any:
    return accelerated(dynamo_backend="aot_eager")


@case
def accelerate_offloaded() -> Any:
    """A frozen body on the host. Its layers are moved to the device one by one, and the cache is emptied after each."""
    from accelerate import dispatch_model

    model = Blocks(plainly)
    model.blocks.requires_grad_(False)
    head = torch.device(DEVICE).index or 0
    model = dispatch_model(model, {"blocks": "cpu", "head": head}, main_device=head)
    optimizer = torch.optim.AdamW(model.head.parameters())

    def train() -> None:
        for _ in range(STEPS):
            model(torch.zeros(8, 64, device=DEVICE)).mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    return model, train


def divided(**plugin: Any) -> Any:
    """Accelerate's FSDP with one rank."""
    from accelerate import FullyShardedDataParallelPlugin

    alone()
    with mock.patch.dict(os.environ, ONE_RANK):
        by_block = {"auto_wrap_policy": "transformer_based_wrap", "transformer_cls_names_to_wrap": ["Sequential"]}
        model_first = plugin["fsdp_version"] == 1  # which makes other parameters of the model's
        return accelerated(fsdp_plugin=FullyShardedDataParallelPlugin(**by_block, **plugin), model_first=model_first)


@case
def accelerate_fsdp() -> Any:
    return divided(fsdp_version=1, activation_checkpointing=True)


@case
def accelerate_fsdp2() -> Any:
    return divided(fsdp_version=2)


@case
def accelerate_fsdp2_on_the_host() -> Any:
    return divided(fsdp_version=2, cpu_offload=True)


if CHECKPOINTS_TO_HOST:

    @case
    def accelerate_fsdp2_checkpoints_on_the_host() -> Any:
        return divided(fsdp_version=2, activation_checkpointing=True, activation_checkpointing_offload=True)


@case
def accelerate_fsdp_unused() -> Any:
    """Declared, but an unprepared model trains."""
    accelerator, _ = divided(fsdp_version=2)
    return accelerator, loop(Blocks(plainly))[1]


def lightning_fit(kind: Any = torch.optim.AdamW, **given: Any) -> Any:
    import lightning
    from torch.utils.data import DataLoader, TensorDataset

    class Net(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = given.pop("of", lambda model: model)(Blocks(given.pop("call", plainly)))

        def training_step(self, batch: Any, number: int) -> Any:
            with around():
                return self.model(batch[0]).square().mean()

        def configure_optimizers(self) -> Any:
            return kind(self.parameters())

    around = given.pop("around", contextlib.nullcontext)
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
def lightning_gan() -> Any:
    """Manual optimization: the critic steps three times per batch, with real and generated samples together."""
    import lightning
    from torch.utils.data import DataLoader, TensorDataset

    class Gan(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False
            self.generator, self.critic = (
                nn.Linear(16, 64),
                nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)),
            )

        def training_step(self, batch: Any, number: int) -> None:
            of_generator, of_critic = self.optimizers()
            noise = torch.zeros(len(batch[0]), 16, device=self.device)
            for _ in range(3):
                with torch.no_grad():
                    fake = self.generator(noise)
                of_critic.zero_grad()
                self.manual_backward(self.critic(torch.cat([batch[0], fake])).mean())
                of_critic.step()
            of_generator.zero_grad()
            self.manual_backward(self.critic(self.generator(noise)).mean())
            of_generator.step()

        def configure_optimizers(self) -> Any:
            return [torch.optim.Adam(self.generator.parameters()), torch.optim.Adam(self.critic.parameters())], []

    net, data = Gan(), DataLoader(TensorDataset(torch.zeros(32, 64)), batch_size=8)
    trainer = lightning.Trainer(
        max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        devices=1,
    )  # fmt: skip
    return trainer, lambda: trainer.fit(net, data)


@case
def lightning_adapter() -> Any:
    """Techniques inside a Lightning module."""
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=4, target_modules=r"blocks\.\d+\.0")
    return lightning_fit(of=lambda model: get_peft_model(model, config), around=torch.autograd.graph.save_on_cpu)


@case
def lightning_compiled() -> Any:
    return lightning_fit(of=lambda model: torch.compile(model, backend="aot_eager"))


@case
def lightning_ddp() -> Any:
    from lightning.pytorch.strategies import DDPStrategy

    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    return lightning_fit(strategy=DDPStrategy(process_group_backend="gloo"))


@case
def lightning_true_bf16() -> Any:
    return lightning_fit(precision="bf16-true")


@case
def lightning_fp16() -> Any:
    return lightning_fit(precision="16-mixed")


@case
def lightning_eight_bit() -> Any:
    from bitsandbytes.optim import AdamW8bit

    return lightning_fit(AdamW8bit)


@case
def lightning_schedule() -> Any:
    """Another number in each epoch: none is declared for all."""
    from lightning.pytorch.callbacks import GradientAccumulationScheduler

    return lightning_fit(callbacks=[GradientAccumulationScheduler({0: 8, 1: 4})], limit_train_batches=8)


@case
def lightning_fsdp() -> Any:
    from lightning.pytorch.strategies import FSDPStrategy

    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    blocks = {"auto_wrap_policy": {nn.Sequential}, "activation_checkpointing_policy": {nn.Sequential}}
    return lightning_fit(
        strategy=FSDPStrategy(process_group_backend="gloo", sharding_strategy="NO_SHARD", cpu_offload=True, **blocks)
    )
