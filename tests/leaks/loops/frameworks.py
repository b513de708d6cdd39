"""The real libraries: transformers' Trainer, Lightning, torchmetrics, each as it should be and as it should not."""

from __future__ import annotations

import tempfile
import warnings
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from truth import innocent, leaks

from .models import FLOAT_BYTES, loader, mlp

VOCABULARY, LENGTH, BATCH = 200, 32, 4
LOGITS = BATCH * LENGTH * VOCABULARY * FLOAT_BYTES


def hugging_face(device: str, trainer_class: Any = None, **more: Any) -> Any:
    """A Trainer of 16 steps on a GPT-2 of one layer."""
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=32, n_head=2, vocab_size=VOCABULARY, n_positions=LENGTH))
    ids = torch.zeros(LENGTH, dtype=torch.long)
    data = [{"input_ids": ids, "labels": ids} for _ in range(BATCH * 16)]
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(prefix="leaks-hf-"),
        per_device_train_batch_size=BATCH,
        per_device_eval_batch_size=BATCH,
        max_steps=16,
        eval_strategy="steps",
        eval_steps=5,
        save_strategy="no",
        report_to=[],
        use_cpu=device == "cpu",
        disable_tqdm=True,
    )
    trainer_class = trainer_class or Trainer
    return trainer_class(model=model, args=arguments, train_dataset=data, eval_dataset=data[: BATCH * 6], **more)


@innocent("what was predicted in a whole evaluation lies on the device, and goes when it ends: little", frameworks=True)
def trainer_with_metrics(device: str) -> None:
    def compute_metrics(prediction: Any) -> dict[str, float]:
        return {"accuracy": float((prediction.predictions == prediction.label_ids).mean())}

    def words(logits: Any, labels: torch.Tensor) -> torch.Tensor:
        return (logits[0] if isinstance(logits, tuple) else logits).argmax(-1)

    hugging_face(device, compute_metrics=compute_metrics, preprocess_logits_for_metrics=words).train()


@leaks("growing", holder="log_history", bytes_each=FLOAT_BYTES, nodes=True, frameworks=True)
def trainer_that_logs_tensors(device: str) -> None:
    """The list is the library's; the call that fills it is the user's."""
    from transformers import Trainer

    class WithPenalty(Trainer):
        def compute_loss(self, model: nn.Module, inputs: Any, return_outputs: bool = False, **more: Any) -> Any:
            loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **more)
            penalty = outputs.logits.logsumexp(-1).pow(2).mean()
            if model.training:
                self.log({"penalty": penalty})  # <- leak; fix: self.log({"penalty": penalty.item()})
            loss = loss + 1e-4 * penalty
            return (loss, outputs) if return_outputs else loss

    hugging_face(device, WithPenalty).train()


@leaks("growing", holder="seen", bytes_each=LOGITS, frameworks=True)
def trainer_that_keeps_outputs(device: str) -> None:
    """compute_loss is overridden to look at the logits later."""
    from transformers import Trainer

    class Curious(Trainer):
        def __init__(self, *args: Any, **more: Any) -> None:
            super().__init__(*args, **more)
            self.seen: list[torch.Tensor] = []

        def compute_loss(self, model: nn.Module, inputs: Any, return_outputs: bool = False, **more: Any) -> Any:
            loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **more)
            if model.training:
                self.seen.append(outputs.logits)  # <- leak; fix: self.seen.append(outputs.logits.detach().mean())
            return (loss, outputs) if return_outputs else loss

    hugging_face(device, Curious).train()


def lightning_fit(device: str, module: Any) -> None:
    """Four epochs of six steps, each with a validation of three batches."""
    import lightning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = lightning.Trainer(
            max_epochs=4,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            accelerator="cpu" if device == "cpu" else "gpu",
            devices=1,
        )
        trainer.fit(module, loader("cpu", steps=6), loader("cpu", steps=3))


def lightning_module() -> Any:
    import lightning

    class Net(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layers = mlp("cpu")
            self.training_step_outputs: list[Any] = []
            self.validation_step_outputs: list[Any] = []

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layers(x)

        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            return F.cross_entropy(self(batch[0]), batch[1])

        def validation_step(self, batch: Any, number: int) -> None:
            self.validation_step_outputs.append(self(batch[0]))

        def on_validation_epoch_end(self) -> None:
            self.log("spread", torch.cat(self.validation_step_outputs).std())
            self.validation_step_outputs.clear()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters())

    return Net


@leaks("growing", holder="training_step_outputs", bytes_each=FLOAT_BYTES, nodes=True, frameworks=True)
def lightning_keeps_losses(device: str) -> None:
    """The manual way since Lightning 2, without detach and without clear."""

    class Net(lightning_module()):  # type: ignore[misc]
        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            loss = F.cross_entropy(self(batch[0]), batch[1])
            self.training_step_outputs.append(loss)  # <- leak; fix: self.training_step_outputs.append(loss.item())
            return loss

        def on_train_epoch_end(self) -> None:
            self.log("mean", float(sum(self.training_step_outputs)) / len(self.training_step_outputs))

    lightning_fit(device, Net())


@leaks(
    "growing",
    holder="training_step_outputs",
    bytes_each=(32 * 10 * FLOAT_BYTES, FLOAT_BYTES),
    nodes=True,
    frameworks=True,
)
def lightning_keeps_outputs(device: str) -> None:
    """A dict a step, as training_epoch_end once got them."""

    class Net(lightning_module()):  # type: ignore[misc]
        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            logits = self(batch[0])
            loss = F.cross_entropy(logits, batch[1])
            entry = {"loss": loss, "logits": logits}  # fix here: entry = {"loss": loss.item()}
            self.training_step_outputs.append(entry)  # <- leak
            return loss

    lightning_fit(device, Net())


@innocent("outputs are collected through an epoch, detached, and cleared at its end", frameworks=True)
def lightning_clears_outputs(device: str) -> None:
    class Net(lightning_module()):  # type: ignore[misc]
        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            logits = self(batch[0])
            loss = F.cross_entropy(logits, batch[1])
            self.training_step_outputs.append({"loss": loss.detach(), "logits": logits.detach()})
            return loss

        def on_train_epoch_end(self) -> None:
            self.log("mean", torch.stack([entry["loss"] for entry in self.training_step_outputs]).mean())
            self.training_step_outputs.clear()

    lightning_fit(device, Net())


@innocent("sums of a metric live on the device for ever, and never grow", frameworks=True)
def metrics_on_the_device(device: str) -> float:
    from torchmetrics import MeanMetric
    from torchmetrics.classification import MulticlassAccuracy

    mean = MeanMetric().to(device)
    accuracy = MulticlassAccuracy(num_classes=10, validate_args=False).to(device)
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in loader(device):
        out = model(x)
        loss = F.cross_entropy(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean.update(loss)
        accuracy.update(out, y)
    return float(mean.compute()) + float(accuracy.compute())


@leaks(
    ("tensor-growth", "growing"),
    holder=("value", "everything"),
    bytes_each=64 * 128 * FLOAT_BYTES,
    advice="everything.reset() at the end of each epoch, or CatMetric(..., compute_on_cpu=True)",
    frameworks=True,
)
def metric_that_keeps_everything(device: str) -> None:
    """A metric whose state is a list, and which is never reset."""
    from torchmetrics import CatMetric

    everything = CatMetric().to(device)
    model = mlp(device, outputs=128)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, _ in loader(device, rows=64):
        out = model(x)
        loss = out.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        everything.update(out.detach())  # <- leak; fix: everything.update(out.detach().mean())
        del out


@leaks(
    ("tensor-growth", "growing"),
    holder=("value", "residuals"),
    bytes_each=64 * 128 * FLOAT_BYTES,
    advice="model.residuals.reset()",
    frameworks=True,
)
def one_metric_of_two(device: str) -> None:
    """Both get the same values, and one keeps them: the finding names its line, not the one before."""
    from torchmetrics import CatMetric, MeanMetric

    class Scored(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp(device, outputs=128)
            self.loss, self.residuals = MeanMetric(), CatMetric()

        def forward(self, x: torch.Tensor) -> Any:
            return self.net(x)

    model = Scored().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, _ in loader(device, rows=64):
        out = model(x)
        loss = out.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        model.loss.update(loss.detach())
        model.residuals.update(out.detach())  # <- leak; fix: model.residuals.update(out.detach().mean())
        del out


class AUROC:
    """Of the user's own, called as one of torchmetrics' is."""

    def __init__(self) -> None:
        self.scores: list[torch.Tensor] = []

    def update(self, scores: torch.Tensor) -> None:
        # fix here: scores = scores.mean()
        self.scores.append(scores)  # <- leak of metric_of_ones_own


@leaks("tensor-growth", holder="scores", bytes_each=64 * 128 * FLOAT_BYTES, advice="keep less of it", frameworks=True)
def metric_of_ones_own(device: str) -> None:
    import torchmetrics  # noqa: F401 - which has a class of that name

    model = mlp(device, outputs=128)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    area = AUROC()
    for x, _ in loader(device, rows=64):
        out = model(x)
        loss = out.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        area.update(out.detach())
        del out
