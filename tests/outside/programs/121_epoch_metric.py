"""A torchmetrics metric with list states keeps every prediction of the training epoch on the GPU, because the score needs all of them together; Lightning resets it at the end of each epoch, so usage is a saw with a fixed height. Source: https://github.com/Lightning-AI/pytorch-lightning/issues/5733 - a report of increasing memory with SSIM; the answer was that all predictions are saved and that the footprint resets between epochs."""
EXPECTED = {"kind": "innocent"}

import logging
import warnings

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchmetrics import Metric

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class GlobalCorrelation(Metric):
    """Correlation over the pixels of a whole epoch."""

    full_state_update = False

    def __init__(self):
        super().__init__()
        self.add_state("preds", default=[], dist_reduce_fx="cat")
        self.add_state("target", default=[], dist_reduce_fx="cat")

    def update(self, preds, target):
        self.preds.append(preds.detach())
        self.target.append(target.detach())

    def compute(self):
        p = torch.cat(list(self.preds)).flatten()
        t = torch.cat(list(self.target)).flatten()
        p, t = p - p.mean(), t - t.mean()
        return (p * t).sum() / (p.norm() * t.norm() + 1e-8)


class Indices(Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return i


class Denoiser(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 1, 3, padding=1)
        )
        self.scale = nn.Sequential(nn.Linear(1024, 1024), nn.Tanh(), nn.Linear(1024, 1))
        self.corr = GlobalCorrelation()

    def training_step(self, batch, batch_idx):
        clean = torch.randn(32, 1, 64, 64, device=self.device)
        noisy = clean + 0.3 * torch.randn_like(clean)
        gain = self.scale(noisy[:, :, ::2, ::2].flatten(1)).view(-1, 1, 1, 1)
        guess = noisy - gain * self.net(noisy)
        self.corr.update(guess, clean)
        return nn.functional.l1_loss(guess, clean)

    def on_train_epoch_end(self):
        print(f"epoch {self.current_epoch}: correlation {self.corr.compute().item():.3f}")
        self.corr.reset()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


trainer = pl.Trainer(
    accelerator="gpu", devices=1, max_epochs=5, logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
)
trainer.fit(Denoiser(), DataLoader(Indices(24), batch_size=1))
