"""ULMFiT-like fine-tuning in Lightning: the body starts frozen and one block more is unfrozen every 16 steps from the top, so gradients and AdamW moments for that block appear then; after the last block the usage stays level. Source: none, a common pattern (gradual unfreezing, https://arxiv.org/abs/1801.06146)."""
EXPECTED = {"kind": "innocent"}

import logging
import warnings

import torch
import torch.nn as nn
import lightning as L

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.up = nn.Linear(d, 2 * d)
        self.down = nn.Linear(2 * d, d)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Random(torch.utils.data.Dataset):
    def __len__(self):
        return 120

    def __getitem__(self, i):
        return i


class Classifier(L.LightningModule):
    def __init__(self, d=640, depth=6):
        super().__init__()
        self.blocks = nn.ModuleList(Block(d) for _ in range(depth))
        self.head = nn.Linear(d, 12)
        self.blocks.requires_grad_(False)
        self.d = d

    def training_step(self, batch, batch_idx):
        x = torch.randn(32, self.d, device=self.device)
        y = torch.randint(0, 12, (32,), device=self.device)
        for b in self.blocks:
            x = b(x)
        return nn.functional.cross_entropy(self.head(x), y)

    def configure_optimizers(self):
        # all of the parameters are handed over; those without a gradient are skipped and get no state
        return torch.optim.AdamW(self.parameters(), lr=1e-4)


class UnfreezeFromTheTop(L.Callback):
    def __init__(self, every):
        self.every = every

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        open_blocks = min(trainer.global_step // self.every, len(module.blocks))
        for b in list(module.blocks)[len(module.blocks) - open_blocks:]:
            b.requires_grad_(True)


if __name__ == "__main__":
    model = Classifier()
    trainer = L.Trainer(
        accelerator="gpu", devices=1, max_epochs=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[UnfreezeFromTheTop(16)],
    )
    trainer.fit(model, torch.utils.data.DataLoader(Random(), batch_size=1))
    print("steps", trainer.global_step, "trainable", sum(p.requires_grad for p in model.parameters()))
