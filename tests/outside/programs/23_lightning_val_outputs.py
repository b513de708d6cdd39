"""A LightningModule that collects its validation outputs in a list of its own, as has been necessary since the epoch-end hooks went, and clears the list at the end of every validation; memory goes up during each validation and down again. Source: https://github.com/Lightning-AI/pytorch-lightning/pull/16520 - the pull request removed the memory-retaining hooks in favour of self.validation_step_outputs, which the user appends to and clears."""
EXPECTED = {"kind": "innocent"}

import logging
import warnings

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
import lightning as L


class Regressor(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 2048))
        self.validation_step_outputs = []

    def training_step(self, batch, batch_idx):
        (x,) = batch
        return self.net(x).pow(2).mean()

    def validation_step(self, batch, batch_idx):
        (x,) = batch
        self.validation_step_outputs.append(self.net(x))

    def on_validation_epoch_end(self):
        spread = torch.cat(self.validation_step_outputs).std().item()
        self.validation_step_outputs.clear()
        print("spread", spread)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


train_data = DataLoader(TensorDataset(torch.zeros(20 * 64, 512)), batch_size=64)
val_data = DataLoader(TensorDataset(torch.zeros(12 * 64, 512)), batch_size=64)
trainer = L.Trainer(
    accelerator="gpu", devices=1, max_epochs=4, logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
)
trainer.fit(Regressor(), train_data, val_data)
