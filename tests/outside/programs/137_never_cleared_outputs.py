"""After the move to Lightning 2 a module collects what each training step returns in its own list; at the end of an epoch it makes a mean of the losses, but the list is not cleared, and each entry has the images and the predictions too. Source: https://github.com/microsoft/hi-ml/pull/293 - the dictionary of step results had the input images in it, so that a whole data set was gathered in GPU memory; those tensors were taken out."""
EXPECTED = {
    "kind": "leak",
    "holder": ["step_results", "training_step_outputs", "results"],
    "growing": True,
}

import logging
import warnings

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
import lightning as L

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Slides(Dataset):
    """Bags of small tiles with one label for each bag."""

    def __len__(self):
        return 40

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        return torch.rand(24, 3, 32, 32, generator=g), i % 2


class DeepMIL(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.tile = nn.Sequential(
            nn.Conv2d(3, 24, 5, stride=2), nn.ReLU(), nn.Conv2d(24, 48, 3, stride=2), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        )
        self.attend = nn.Sequential(nn.Linear(48, 32), nn.Tanh(), nn.Linear(32, 1))
        self.out = nn.Linear(48, 1)
        self.step_results = []

    def shared_step(self, batch):
        bag, label = batch
        emb = self.tile(bag.flatten(0, 1)).view(*bag.shape[:2], -1)
        w = self.attend(emb).softmax(1)
        logit = self.out((w * emb).sum(1)).squeeze(-1)
        loss = nn.functional.binary_cross_entropy_with_logits(logit, label.float())
        return {"loss": loss, "image": bag, "prob": logit.sigmoid(), "attention": w, "label": label}

    def training_step(self, batch, batch_idx):
        results = self.shared_step(batch)
        self.step_results.append({k: v.detach() for k, v in results.items()})  # <- here
        return results["loss"]

    def on_train_epoch_end(self):
        mean = torch.stack([r["loss"] for r in self.step_results[-20:]]).mean()
        print(f"epoch {self.current_epoch}: loss {mean.item():.4f}")

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=2e-3)


trainer = L.Trainer(
    max_epochs=6, accelerator="gpu", devices=1, logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False,
)
trainer.fit(DeepMIL(), DataLoader(Slides(), batch_size=2, shuffle=True))
