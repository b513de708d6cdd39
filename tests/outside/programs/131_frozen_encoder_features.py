"""A small head is trained on top of a frozen ViT: the encoder's tokens for an image are computed at the first visit and kept on the GPU under the image's number, so memory rises through the whole first epoch of 50 steps, and the next two epochs only read. Source: https://github.com/VSainteuf/pastis-benchmark/issues/13 - the author explains that caching takes place in the first epoch, batch by batch, and that the next epochs are faster."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn
from transformers import ViTConfig, ViTModel

IMAGES, BATCH = 400, 8

cfg = ViTConfig(
    image_size=64, patch_size=8, hidden_size=192, num_hidden_layers=3, num_attention_heads=3, intermediate_size=512
)
encoder = ViTModel(cfg, add_pooling_layer=False).cuda().eval().requires_grad_(False)


class AttentivePool(nn.Module):
    def __init__(self, dim, classes):
        super().__init__()
        self.query = nn.Parameter(torch.randn(4, dim) * 0.02)
        self.attn = nn.MultiheadAttention(dim, 4, batch_first=True)
        self.out = nn.Linear(4 * dim, classes)

    def forward(self, tokens):
        q = self.query.expand(len(tokens), -1, -1)
        pooled, _ = self.attn(q, tokens, tokens, need_weights=False)
        return self.out(pooled.flatten(1))


def load_image(number):
    g = torch.Generator().manual_seed(number)
    return torch.rand(3, 64, 64, generator=g), number % 25


features = {}


def tokens_of(number, image):
    try:
        return features[number]
    except KeyError:
        with torch.no_grad():
            hidden = encoder(pixel_values=image[None].cuda()).last_hidden_state[0]
        features[number] = hidden
        return hidden


head = AttentivePool(192, 25).cuda()
opt = torch.optim.AdamW(head.parameters(), lr=1e-3, weight_decay=0.05)
ce = nn.CrossEntropyLoss()

for epoch in range(3):
    right = seen = 0
    for numbers in torch.randperm(IMAGES).split(BATCH):
        pairs = [(n, *load_image(n)) for n in numbers.tolist()]
        x = torch.stack([tokens_of(n, img) for n, img, _ in pairs])
        y = torch.tensor([label for _, _, label in pairs]).cuda()
        scores = head(x)
        loss = ce(scores, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        right += (scores.argmax(-1) == y).sum().item()
        seen += len(y)
    if encoder is not None:
        encoder = None                 # all images are in the dict now
    print(f"epoch {epoch + 1}: accuracy {right / seen:.3f}, images in memory {len(features)}")
