"""A word-level language model with truncated back-propagation: the LSTM states are carried from batch to batch, always detached; it looks like the classic hidden-state leak but is the right way to do it. Source: https://github.com/yunjey/pytorch-tutorial/issues/90 - the question is about states = detach(states), which the linked PyTorch example uses so that the graph ends at the batch border."""
EXPECTED = {"kind": "innocent"}

import torch
import torch.nn as nn
from torch.nn.utils import clip_grad_norm_

device = torch.device("cuda")
vocab_size, embed_size, hidden_size, seq_length, batch_size = 4000, 128, 256, 12, 20


class RNNLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, embed_size)
        self.cells = nn.ModuleList([nn.LSTMCell(embed_size, hidden_size), nn.LSTMCell(hidden_size, hidden_size)])
        self.linear = nn.Linear(hidden_size, vocab_size)

    def forward(self, words, states):
        outputs = []
        for x in self.embed(words).unbind(1):
            new_states = []
            for cell, state in zip(self.cells, states):
                h, c = cell(x, state)
                new_states.append((h, c))
                x = h
            states = new_states
            outputs.append(x)
        return self.linear(torch.stack(outputs, 1)), states


def detach(states):
    return [(h.detach(), c.detach()) for h, c in states]


ids = torch.randint(0, vocab_size, (batch_size, 80 * seq_length + 1), device=device)
model = RNNLM().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
states = [(torch.zeros(batch_size, hidden_size, device=device),) * 2 for _ in range(2)]

for i in range(0, ids.size(1) - seq_length, seq_length):
    inputs, targets = ids[:, i:i + seq_length], ids[:, i + 1:i + 1 + seq_length]
    states = detach(states)
    outputs, states = model(inputs, states)
    loss = nn.functional.cross_entropy(outputs.reshape(-1, vocab_size), targets.reshape(-1))
    optimizer.zero_grad()
    loss.backward()
    clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    if (i // seq_length) % 20 == 0:
        print(f"step {i // seq_length} loss {loss.item():.3f}")
