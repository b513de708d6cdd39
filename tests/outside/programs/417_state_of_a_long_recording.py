"""A recording is transcribed chunk by chunk, and the recurrent state goes from one to the next. Gradients are not switched off, so that the state has the graph of all chunks. Pattern: inference without no_grad()."""
EXPECTED = {"kind": "oom", "memory": "2G", "cause": ["leak", "evaluation"], "mentions": [["no_grad", "inference_mode"]]}

# Saved of a chunk: some tensors of 16 x 256 x 1024 x 4 bytes = 16 MiB.
import torch
from torch import nn


class Listener(nn.Module):
    def __init__(self, width=1024):
        super().__init__()
        self.read, self.mix, self.write = nn.Linear(80, width), nn.Linear(width, width), nn.Linear(width, 40)

    def forward(self, sound, state):
        x = torch.tanh(self.read(sound) + state)
        x = torch.tanh(self.mix(x))
        return self.write(x), x[:, -1:]


listener = Listener().cuda().eval()
state = torch.zeros(16, 1, 1024, device="cuda")
text = []
for chunk in range(400):
    scores, state = listener(torch.zeros(16, 256, 80, device="cuda"), state)
    text.append(scores.argmax(-1)[0].tolist())
print(len(text))
