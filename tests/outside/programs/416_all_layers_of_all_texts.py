"""Features of texts are extracted: the states of all layers of each batch go into a list on the device, to be written to one file at the end. The card is full before. Pattern: feature extraction."""
EXPECTED = {"kind": "oom", "memory": "2G", "cause": ["leak", "evaluation"], "holder": ["states"], "mentions": [["cpu", "host"]]}

# Weights 48 MiB; 12 x 8 x 128 x 1024 x 4 bytes = 48 MiB a batch.
import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self, width=1024, layers=12):
        super().__init__()
        self.embed = nn.Embedding(500, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, tokens):
        x, found = self.embed(tokens), []
        for layer in self.layers:
            x = torch.relu(layer(x))
            found.append(x)
        return found


encoder = Encoder().cuda().eval()
states = []
with torch.inference_mode():
    for batch in range(200):
        states.append(encoder(torch.zeros(8, 128, dtype=torch.long, device="cuda")))
torch.save([torch.stack(one).cpu() for one in states], "states.pt")
