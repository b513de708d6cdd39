"""What is gathered over an epoch and let go at its end: with graphs, as large tensors, as numbers; and what is never let go."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from truth import innocent, leaks

from .models import FLOAT_BYTES, loader, mlp

ROWS = 8
INPUTS = 32
FEATURES = ROWS * 64 * FLOAT_BYTES


def training(device: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = mlp(device, inputs=INPUTS, hidden=64)
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def batches(device: str, steps: int) -> Any:
    return loader(device, steps=steps, rows=ROWS, inputs=INPUTS)


def step_on(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


@leaks("growing", holder="losses", bytes_each=FLOAT_BYTES, epoch=30, nodes=True, advice=".item()")
def losses_cleared_each_epoch(device: str) -> None:
    model, optimizer = training(device)
    losses: list[Any] = []
    for _ in range(3):
        for x, y in batches(device, 30):
            loss = step_on(model, optimizer, x, y)
            losses.append(loss)  # <- leak; fix: losses.append(loss.item())
        print(sum(losses) / len(losses))
        losses.clear()


@leaks("growing", holder="losses", bytes_each=FLOAT_BYTES, epoch=100, nodes=True, advice=".item()")
def losses_begun_anew_each_epoch(device: str) -> None:
    model, optimizer = training(device)
    for _ in range(3):
        losses = []
        for x, y in batches(device, 100):
            loss = step_on(model, optimizer, x, y)
            losses.append(loss)  # <- leak; fix: losses.append(loss.item())
        print(sum(losses) / len(losses))


@leaks("growing", holder="losses", bytes_each=FLOAT_BYTES, epoch=400, nodes=True, advice=".item()")
def losses_deleted_each_epoch(device: str) -> None:
    model, optimizer = training(device)
    losses: list[Any] = []
    for _ in range(2):
        for x, y in batches(device, 400):
            loss = step_on(model, optimizer, x, y)
            losses.append(loss)  # <- leak; fix: losses.append(loss.item())
        print(sum(losses) / len(losses))
        del losses[:]


@leaks("growing", holder="total", epoch=30, nodes=True, advice=".item()")
def sum_begun_anew_each_epoch(device: str) -> None:
    """Its graph leads through an epoch's losses, and no further."""
    model, optimizer = training(device)
    for _ in range(4):
        total: Any = 0
        for x, y in batches(device, 30):
            loss = step_on(model, optimizer, x, y)
            total += loss  # <- leak; fix: total += loss.item()
        print(float(total) / 30)


@leaks("tensor-growth", holder="features", bytes_each=FEATURES, epoch=100)
def features_of_each_epoch(device: str) -> None:
    """Detached, and large: a hundred of them lie on the device until the epoch's end."""
    model, optimizer = training(device)
    features: list[torch.Tensor] = []
    for _ in range(3):
        for x, y in batches(device, 100):
            features.append(model[0](x).detach())  # <- leak; fix: features = [model[0](x).detach()]
            step_on(model, optimizer, x, y)
        print(torch.cat(features).std())
        features.clear()


@innocent("detached scalars, which go at the end of each epoch", settles_bytes=100 * 512)
def numbers_of_each_epoch(device: str) -> None:
    model, optimizer = training(device)
    losses: list[Any] = []
    for _ in range(3):
        for x, y in batches(device, 100):
            losses.append(step_on(model, optimizer, x, y).detach())
        print(torch.stack(losses).mean())
        losses = []


@innocent("features of thirty batches, an epoch: as a buffer of thirty", settles_bytes=30 * FEATURES)
def features_of_short_epochs(device: str) -> None:
    model, optimizer = training(device)
    features: list[torch.Tensor] = []
    for _ in range(4):
        for x, y in batches(device, 30):
            features.append(model[0](x).detach())
            step_on(model, optimizer, x, y)
        print(torch.cat(features).std())
        del features[:]


class Tracker:
    """Gathers what it is given until it is reset."""

    def __init__(self) -> None:
        self.values: list[Any] = []

    def add(self, value: Any) -> None:
        # fix here: value = float(value)
        self.values.append(value)  # <- leak of never_reset, reset_each_epoch, steps_without_a_loader

    def reset(self) -> None:
        self.values.clear()


@leaks("growing", holder="tracker.values", bytes_each=FLOAT_BYTES, nodes=True)
def never_reset(device: str) -> None:
    """It has the method for it: found when an epoch has gone by without it."""
    (model, optimizer), tracker = training(device), Tracker()
    for _ in range(2):
        for x, y in batches(device, 40):
            tracker.add(step_on(model, optimizer, x, y))
        print(sum(tracker.values) / len(tracker.values))


@leaks("growing", holder="tracker.values", bytes_each=FLOAT_BYTES, epoch=30, nodes=True)
def reset_each_epoch(device: str) -> None:
    (model, optimizer), tracker = training(device), Tracker()
    for _ in range(4):
        for x, y in batches(device, 30):
            tracker.add(step_on(model, optimizer, x, y))
        print(sum(tracker.values) / len(tracker.values))
        tracker.reset()


@leaks("growing", holder="tracker.values", bytes_each=FLOAT_BYTES, epoch=50, nodes=True)
def steps_without_a_loader(device: str) -> None:
    """Nobody says where an epoch ends; it is reset every fifty steps."""
    (model, optimizer), tracker = training(device), Tracker()
    y = torch.zeros(ROWS, dtype=torch.long, device=device)
    for step in range(1, 171):
        tracker.add(step_on(model, optimizer, torch.randn(ROWS, INPUTS, device=device), y))
        if step % 50 == 0:
            tracker.reset()


def an_epoch(model: nn.Module, optimizer: torch.optim.Optimizer, device: str) -> float:
    losses = []
    for x, y in batches(device, 30):
        loss = step_on(model, optimizer, x, y)
        losses.append(loss)  # <- leak of losses_of_a_function; fix: losses.append(loss.item())
    return float(sum(losses) / len(losses))


@leaks("growing", holder="losses", bytes_each=FLOAT_BYTES, epoch=30, nodes=True)
def losses_of_a_function(device: str) -> None:
    """A function for each epoch, whose list goes with it."""
    model, optimizer = training(device)
    for _ in range(4):
        an_epoch(model, optimizer, device)


@leaks("tensor-growth", holder="outputs", epoch=40, advice="keep less of it")
def outputs_of_each_validation(device: str) -> None:
    """Under no_grad, every twenty steps: no step sees them, and at a validation's end they are most of what there is."""
    model, optimizer = training(device)
    validation = batches(device, 40)
    for step, (x, y) in enumerate(batches(device, 60)):
        step_on(model, optimizer, x, y)
        if step % 20 == 19:
            model.eval()
            outputs = []
            with torch.no_grad():
                for x, _ in validation:
                    hidden = model[0](x).repeat(1, 8)
                    outputs.append(hidden + model(x).mean())  # <- leak; fix: outputs.append(hidden.std())
            model.train()


@innocent("outputs of a validation that take less than a step of the training does", settles_bytes=4 * 40 * FEATURES)
def outputs_of_small_validations(device: str) -> None:
    model, optimizer = training(device)
    validation = batches(device, 40)
    for step, (x, y) in enumerate(loader(device, steps=60, rows=80 * ROWS, inputs=INPUTS)):
        step_on(model, optimizer, x, y)
        if step % 20 == 19:
            model.eval()
            with torch.no_grad():
                outputs = [model[0](x).repeat(1, 4) for x, _ in validation]
            print(torch.cat([part[:, 0] for part in outputs]).mean())
            model.train()


class Validation:
    def __init__(self) -> None:
        self.outputs: list[torch.Tensor] = []

    def run(self, model: nn.Module, device: str) -> None:
        model.eval()
        # fix over: with torch.no_grad():
        for x, _ in batches(device, 20):
            self.outputs.append(model(x))  # <- leak of validations_with_graphs
        self.end()
        model.train()

    def end(self) -> None:
        print(torch.cat(self.outputs).mean())
        self.outputs.clear()


@leaks("growing-eval", holder="outputs", epoch=20, advice="no_grad")
def validations_with_graphs(device: str) -> None:
    """Cleared at the end of each validation; until then all its graphs are there."""
    (model, optimizer), validation = training(device), Validation()
    for _ in range(3):
        for x, y in batches(device, 30):
            step_on(model, optimizer, x, y)
        validation.run(model, device)


def fit(device: str, module: Any, steps: int, epochs: int) -> None:
    import lightning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = lightning.Trainer(
            max_epochs=epochs,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            accelerator="cpu" if device == "cpu" else "gpu",
            devices=1,
        )
        trainer.fit(module, batches("cpu", steps), batches("cpu", 5))


def module_of(keep: Any) -> Any:
    """``keep(loss)`` is what its list takes of each step."""
    import lightning

    class Net(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layers = mlp("cpu", inputs=INPUTS, hidden=64)
            self.training_step_outputs: list[Any] = []
            self.validation_step_outputs: list[Any] = []

        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            loss = F.cross_entropy(self.layers(batch[0]), batch[1])
            self.training_step_outputs.append(keep(loss))  # <- leak of lightning_losses_of_30, lightning_losses_of_100
            return loss

        def validation_step(self, batch: Any, number: int) -> None:
            self.validation_step_outputs.append(self.layers(batch[0]))

        def on_train_epoch_end(self) -> None:
            for part in (self.training_step_outputs, self.training_step_outputs[:5]):
                print(sum(part) / len(part))
            self.training_step_outputs.clear()

        def on_validation_epoch_end(self) -> None:
            self.validation_step_outputs.clear()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters())

    return Net()


@leaks("growing", holder="training_step_outputs", bytes_each=FLOAT_BYTES, epoch=30, nodes=True, frameworks=True)
def lightning_losses_of_30(device: str) -> None:
    module = module_of(lambda loss: loss)  # fix here: module = module_of(lambda loss: loss.item())
    fit(device, module, steps=30, epochs=4)


@leaks("growing", holder="training_step_outputs", bytes_each=FLOAT_BYTES, epoch=100, nodes=True, frameworks=True)
def lightning_losses_of_100(device: str) -> None:
    module = module_of(lambda loss: loss)  # fix here: module = module_of(lambda loss: loss.item())
    fit(device, module, steps=100, epochs=3)


@innocent(
    "the list of the manual way since Lightning 2, detached and cleared", settles_bytes=100 * 512, frameworks=True
)
def lightning_detached_losses(device: str) -> None:
    fit(device, module_of(lambda loss: loss.detach()), steps=100, epochs=3)
