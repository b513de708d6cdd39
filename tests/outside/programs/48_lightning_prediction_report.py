"""Lightning training with a callback that gathers the outputs of every training batch for a report at the end of the fit; it is never emptied between epochs. Source: https://github.com/ashleve/lightning-hydra-template/issues/458 - the reporter traced a supposed leak to the accumulation of every training batch's result until the end of the epoch."""
EXPECTED = {"kind": "leak", "holder": ["collected", "PredictionReport"], "growing": True}

import logging
import warnings

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class PredictionReport(Callback):
    def __init__(self):
        self.collected = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.collected.append((trainer.current_epoch, outputs["reconstruction"]))  # <- here

    def on_train_end(self, trainer, pl_module):
        last = [r for e, r in self.collected if e == trainer.max_epochs - 1]
        print("report over", sum(len(r) for r in last), "samples of the last epoch")


class SpectrumAutoencoder(L.LightningModule):
    def __init__(self, bins=2048, code=64):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(bins, 512), nn.ELU(), nn.Linear(512, code))
        self.decoder = nn.Sequential(nn.Linear(code, 512), nn.ELU(), nn.Linear(512, bins))

    def training_step(self, batch, batch_idx):
        (x,) = batch
        reconstruction = self.decoder(self.encoder(x))
        loss = nn.functional.mse_loss(reconstruction, x)
        return {"loss": loss, "reconstruction": reconstruction}  # <- here

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main():
    L.seed_everything(11, verbose=False)
    spectra = torch.randn(1536, 2048)
    loader = DataLoader(TensorDataset(spectra), batch_size=96, shuffle=True)
    trainer = L.Trainer(
        max_epochs=6, accelerator="gpu", devices=1, logger=False, callbacks=[PredictionReport()],
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )
    trainer.fit(SpectrumAutoencoder(), loader)


if __name__ == "__main__":
    main()
