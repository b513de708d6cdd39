"""A head is trained on a frozen DistilBERT; the encoding function has a list as default argument into which it appends every hidden state, so the list lives as long as the function. Source: https://github.com/huggingface/transformers/issues/24315 - established that memory accumulated with every batch at hidden_states_list.append(hidden_states)."""
EXPECTED = {"kind": "leak", "holder": ["hidden_states_list", "encode", "__defaults__"], "growing": True}

import torch
import torch.nn as nn
from transformers import DistilBertConfig, DistilBertModel

device = torch.device("cuda")
torch.manual_seed(1)

config = DistilBertConfig(vocab_size=5000, max_position_embeddings=128, dim=256, hidden_dim=512, n_layers=3, n_heads=4)
bert = DistilBertModel(config).to(device).eval()
for p in bert.parameters():
    p.requires_grad = False


def encode(ids, mask, hidden_states_list=[]):
    with torch.no_grad():
        states = bert(input_ids=ids, attention_mask=mask).last_hidden_state  # <- here
    hidden_states_list.append(states)  # <- here
    # the caller may ask for several segments in one go; the last ones are its own
    return hidden_states_list[-1]


class SpanHead(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.local = nn.ModuleList(nn.Conv1d(dim, dim, 5, padding=2) for _ in range(3))
        self.out = nn.Linear(dim, 2)

    def forward(self, states):
        h = states.transpose(1, 2)
        for conv in self.local:
            h = h + torch.relu(conv(h))
        return self.out(h.transpose(1, 2))


head = SpanHead(config.dim).to(device)
optimizer = torch.optim.Adam(head.parameters(), lr=1e-3)

for step in range(1, 81):
    ids = torch.randint(1, 5000, (16, 96)).to(device)
    mask = torch.ones_like(ids)
    start = torch.randint(0, 90, (16,)).to(device)
    end = start + 4

    scores = head(encode(ids, mask))
    loss = (nn.functional.cross_entropy(scores[..., 0], start) + nn.functional.cross_entropy(scores[..., 1], end)) / 2
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(head.parameters(), 1.0)
    optimizer.step()
    if step % 20 == 0:
        print(f"[{step}] loss={loss.item():.4f}")
