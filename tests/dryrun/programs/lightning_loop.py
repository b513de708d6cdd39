"""A Lightning module. HAND names the changes that are made in the code."""

import os

import lightning
import torch
from by_hand import optimizer_class  # beside this file
from torch import nn
from torch.utils.checkpoint import checkpoint

HAND = os.environ.get("HAND", "").split(",")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layers(x)


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.head = nn.ModuleList(Block() for _ in range(4)), nn.Linear(256, 10)

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        (x,) = batch
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if "checkpointing" in HAND else block(x)
        return self.head(x).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        options = {"fused": True} if "fused_optimizer" in HAND else {}
        return optimizer_class("Adam")(self.parameters(), **options)


accumulated = "accumulation" in HAND
rows = torch.utils.data.TensorDataset(torch.zeros(8192, 256))
loader = torch.utils.data.DataLoader(rows, batch_size=512 if accumulated else 1024, shuffle=True)
trainer = lightning.Trainer(
    max_steps=int(os.environ.get("STEPS", "100")),
    max_epochs=100,
    accelerator="gpu",
    devices=1,
    precision="bf16-mixed" if "bf16_autocast" in HAND else "32-true",
    accumulate_grad_batches=2 if accumulated else 1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Module(), loader)
print(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
