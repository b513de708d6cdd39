"""A server of a language model, without a training: each request opens a session with its own keys and values. Clients go away without closing theirs, and nobody removes old ones. 64 KiB a session. Pattern: caches by session."""
EXPECTED = {"kind": "leak", "holder": ["sessions", "Server", "Session"], "growing": True}

import torch
from torch import nn


class Session:
    def __init__(self):
        self.keys = self.values = None

    def extend(self, keys, values):
        self.keys = keys if self.keys is None else torch.cat([self.keys, keys], 1)
        self.values = values if self.values is None else torch.cat([self.values, values], 1)
        return self.keys, self.values


class Decoder(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.embed = nn.Embedding(500, width)
        self.qkv = nn.Linear(width, 3 * width)
        self.head = nn.Linear(width, 500)

    def forward(self, tokens, session):
        q, k, v = self.qkv(self.embed(tokens)).chunk(3, -1)
        k, v = session.extend(k, v)
        return self.head(nn.functional.scaled_dot_product_attention(q, k, v))[:, -1]


class Server:
    def __init__(self, model):
        self.model = model
        self.sessions = {}

    @torch.inference_mode()
    def answer(self, client, prompt, length):
        session = self.sessions.setdefault(client, Session())  # <- here
        token = self.model(prompt, session).argmax(-1, keepdim=True)
        for _ in range(length):
            token = self.model(token, session).argmax(-1, keepdim=True)
        return token


server = Server(Decoder().cuda().eval())
for request in range(120):
    prompt = torch.zeros(1, 48, dtype=torch.long, device="cuda")
    server.answer(f"client {request}", prompt, 16)
