"""A Lightning run with two averages: a callback makes an exponential average of the weights at step 30 and a stochastic weight average at step 70, both on the GPU, and both are updated in place and are judged at the end, so there are two single stairs. Source: https://github.com/Lightning-AI/pytorch-lightning/pull/5640 - the averaged model is one further copy of the weights, and the default place for it was discussed because of the GPU memory it takes."""
EXPECTED = {"kind": "innocent"}

import copy
import logging
import warnings

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, TensorDataset

warnings.simplefilter("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Averages(pl.Callback):
    def __init__(self, ema_from, swa_from, decay=0.98):
        self.ema_from, self.swa_from, self.decay = ema_from, swa_from, decay
        self.ema = None
        self.swa = None

    @torch.no_grad()
    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        n = trainer.global_step
        if self.ema is None and n >= self.ema_from:
            self.ema = copy.deepcopy(pl_module.body).requires_grad_(False)
        if self.swa is None and n >= self.swa_from:
            self.swa = AveragedModel(pl_module.body)
        if self.ema is not None:
            torch._foreach_lerp_(list(self.ema.parameters()), list(pl_module.body.parameters()), 1 - self.decay)
        if self.swa is not None and n % 5 == 0:
            self.swa.update_parameters(pl_module.body)

    @torch.no_grad()
    def on_train_end(self, trainer, pl_module):
        x, y = pl_module.draw(128)
        for name in ("ema", "swa"):
            print(name, F.cross_entropy(getattr(self, name)(x), y).item())


class Tabular(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(200, 700), nn.SiLU(), nn.LayerNorm(700), nn.Linear(700, 700), nn.SiLU(), nn.LayerNorm(700),
            nn.Linear(700, 700), nn.SiLU(), nn.Linear(700, 30),
        )

    def draw(self, n):
        x = torch.randn(n, 200, device=self.device)
        return x, x[:, :30].argmax(-1)

    def training_step(self, batch, batch_idx):
        x, y = self.draw(48)
        return F.cross_entropy(self.body(x), y, label_smoothing=0.1)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=6e-4)


averages = Averages(30, 70)
pl.Trainer(
    accelerator="gpu", devices=1, max_epochs=3, logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False, callbacks=[averages],
).fit(Tabular(), DataLoader(TensorDataset(torch.arange(50)), batch_size=1))
