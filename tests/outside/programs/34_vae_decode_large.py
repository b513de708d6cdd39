"""The decoder of an image autoencoder is trained on small latents; then a large picture is decoded in one piece, and the full-resolution feature maps of the last upsampling stage do not fit, even without gradients. Source: https://github.com/xdit-project/xDiT/issues/71 - the thread established that the UpSample of the VAE decoder runs out of memory on large pictures because the intermediate activation (channels x height x width) is too big, and asks for decoding in patches (same situation: https://github.com/invoke-ai/InvokeAI/issues/2672)."""
EXPECTED = {"kind": "oom", "memory": "4G", "cause": ["activations"],
            "mentions": [["tile", "tiling", "resolution", "image size", "smaller", "half", "bfloat16", "float16", "patch"]]}

# Arithmetic for a 384x384 latent (x8): stage 3 has 64 channels at 3072x3072 floats = 2304 MiB per
# tensor. Input of the stage 576 MiB + upsampled 2304 MiB = 2880 MiB fits, the convolution's output
# wants another 2304 MiB -> 5184 MiB > 4096 MiB. Training: 16x16 latents -> 128x128, batch 4, is tiny.
import torch
from torch import nn
import torch.nn.functional as F


class UpStage(nn.Module):
    def __init__(self, ch):
        super().__init__()
        self.conv = nn.Conv2d(ch, ch, 3, padding=1)

    def forward(self, x):
        x = F.interpolate(x, scale_factor=2.0, mode="nearest")
        return F.silu(self.conv(x))


class Decoder(nn.Module):
    def __init__(self, z=4, ch=64):
        super().__init__()
        self.conv_in = nn.Conv2d(z, ch, 1)
        self.up = nn.ModuleList([UpStage(ch) for _ in range(3)])
        self.conv_out = nn.Conv2d(ch, 3, 1)

    def forward(self, z):
        h = self.conv_in(z)
        for stage in self.up:
            h = stage(h)
        return self.conv_out(h)


decoder = Decoder().cuda()
opt = torch.optim.Adam(decoder.parameters(), lr=1e-4)
for step in range(10):
    latents = torch.randn(4, 4, 16, 16, device="cuda")
    picture = torch.rand(4, 3, 128, 128, device="cuda")
    loss = F.mse_loss(decoder(latents), picture)
    opt.zero_grad()
    loss.backward()
    opt.step()
print("trained", loss.item())

with torch.inference_mode():
    for side in (64, 384):
        image = decoder(torch.randn(1, 4, side, side, device="cuda"))
        print("decoded", tuple(image.shape), image.mean().item())
