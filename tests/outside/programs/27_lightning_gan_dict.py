"""A GAN as a LightningModule with manual optimisation that files its generator and discriminator loss maps into lists inside self.logging_dict at every batch; the tensors stay on the GPU and the lists only get longer. Source: https://github.com/Lightning-AI/pytorch-lightning/issues/8457 - the maintainer found the out-of-memory to come from the logging_dict lists that store tensors on the GPU."""
EXPECTED = {"kind": "leak", "holder": ["logging_dict"], "growing": True}

import logging
import warnings

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
import lightning as L


class PixelGAN(L.LightningModule):
    def __init__(self, zdim=64, pixels=4096):
        super().__init__()
        self.automatic_optimization = False
        self.zdim = zdim
        self.gen = nn.Sequential(nn.Linear(zdim, 256), nn.ReLU(), nn.Linear(256, pixels), nn.Tanh())
        self.disc = nn.Sequential(nn.Linear(pixels, 128), nn.LeakyReLU(0.2), nn.Linear(128, pixels))
        self.logging_dict = {"g_loss": [], "d_real": [], "d_fake": []}

    def training_step(self, batch, batch_idx):
        (real,) = batch
        opt_g, opt_d = self.optimizers()
        z = torch.randn(real.shape[0], self.zdim, device=self.device)
        fake = self.gen(z)

        g_map = F.softplus(-self.disc(fake))
        opt_g.zero_grad()
        self.manual_backward(g_map.mean())
        opt_g.step()

        d_real = F.softplus(-self.disc(real))
        d_fake = F.softplus(self.disc(fake.detach()))
        opt_d.zero_grad()
        self.manual_backward(d_real.mean() + d_fake.mean())
        opt_d.step()

        self.logging_dict["g_loss"].append(g_map.detach())  # <- here
        self.logging_dict["d_real"].append(d_real.detach())  # <- here
        self.logging_dict["d_fake"].append(d_fake.detach())  # <- here

    def configure_optimizers(self):
        return (
            torch.optim.Adam(self.gen.parameters(), lr=2e-4),
            torch.optim.Adam(self.disc.parameters(), lr=2e-4),
        )


data = DataLoader(TensorDataset(torch.zeros(30 * 64, 4096)), batch_size=64)
trainer = L.Trainer(
    accelerator="gpu", devices=1, max_epochs=2, logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
)
trainer.fit(PixelGAN(), data)
print("done")
