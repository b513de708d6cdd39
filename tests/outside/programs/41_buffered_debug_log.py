"""A language model whose debug messages are buffered by logging.handlers.MemoryHandler; the message arguments are tensors with their graph (the token entropies), and every buffered record keeps them until the flush at exit. Source: https://github.com/wandb/wandb/issues/354 - established that logging the tensors themselves leaks and that logging .item() does not."""
EXPECTED = {"kind": "leak", "holder": ["MemoryHandler", "LogRecord", "buffer"], "growing": True}

import logging
import logging.handlers
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

console = logging.StreamHandler(sys.stdout)
console.setLevel(logging.INFO)
buffered = logging.handlers.MemoryHandler(capacity=100_000, flushLevel=logging.CRITICAL, target=console)
log = logging.getLogger("lm")
log.setLevel(logging.DEBUG)
log.addHandler(buffered)

VOCAB, CONTEXT, DIM = 2048, 64, 256


class TinyLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, DIM)
        self.pos = nn.Parameter(torch.zeros(CONTEXT, DIM))
        layer = nn.TransformerEncoderLayer(DIM, 4, 2 * DIM, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(DIM, VOCAB)

    def forward(self, ids):
        mask = torch.full((CONTEXT, CONTEXT), float("-inf"), device=ids.device).triu(1)
        return self.head(self.blocks(self.tok(ids) + self.pos, mask=mask))


def token_entropy(logits):
    logp = F.log_softmax(logits, dim=-1)
    return -(logp.exp() * logp).sum(-1)  # <- here


def run(steps=70):
    lm = TinyLM().cuda()
    opt = torch.optim.Adam(lm.parameters(), lr=3e-4)
    for step in range(steps):
        ids = torch.randint(0, VOCAB, (8, CONTEXT + 1)).cuda()
        logits = lm(ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        log.debug("step %d: entropy per token %s", step, token_entropy(logits))  # <- here
        if step % 35 == 34:
            log.info("step %d done", step + 1)


run()
