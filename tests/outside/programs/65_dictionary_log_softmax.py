"""A small convolutional language model with an unpruned dictionary of half a million words dies in log_softmax: one score per word of the dictionary, for every token of the batch. Source: https://github.com/facebookresearch/fairseq/issues/50 - the log_softmax ran out of memory because the dictionary held over 500,000 entries; the maintainers advise to cut it (thresholds, BPE) or to use an adaptive softmax."""
EXPECTED = {"kind": "oom", "memory": "6G", "cause": ["activations"],
            "mentions": [["vocab", "dictionary", "logits", "softmax", "classes"],
                         ["adaptive", "chunk", "batch", "smaller", "fewer", "shorter", "bpe", "reduce", "lower"]]}

# Arithmetic: weights: tied embedding 500,000 x 256 x 4 = 488 MiB, convolutions 8 MiB; usable 6144 - 430 = 5714 MiB.
# A batch holds 50 sentences x 30 tokens = 1500 tokens. Scores: 1500 x 500,000 x 4 bytes = 2861 MiB.
# log_softmax wants as much again: 496 + 2 x 2861 = 6218 MiB > 5714 MiB: dies in the first forward.
import torch
import torch.nn as nn
import torch.nn.functional as F

DICT_SIZE = 500_000
EMBED = 256
SENTENCES, LENGTH = 50, 30


class ConvLM(nn.Module):
    def __init__(self, words, dim):
        super().__init__()
        self.embed_tokens = nn.Embedding(words, dim)
        self.convs = nn.ModuleList(nn.Conv1d(dim, 2 * dim, 4) for _ in range(4))

    def forward(self, prev_tokens):
        hidden = self.embed_tokens(prev_tokens).transpose(1, 2)
        for conv in self.convs:
            hidden = hidden + F.glu(conv(F.pad(hidden, (3, 0))), dim=1)
        return F.linear(hidden.transpose(1, 2), self.embed_tokens.weight)  # <- here


class TokenLoss(nn.Module):
    def get_lprobs(self, scores):
        return F.log_softmax(scores, dim=-1)  # <- here

    def forward(self, model, sample):
        scores = model(sample["prev"])
        lprobs = self.get_lprobs(scores)
        return F.nll_loss(lprobs.view(-1, lprobs.size(-1)), sample["target"].view(-1))


def make_sample():
    tokens = torch.randint(0, DICT_SIZE, (SENTENCES, LENGTH + 1))
    return {"prev": tokens[:, :-1].contiguous().cuda(), "target": tokens[:, 1:].contiguous().cuda()}


with torch.device("cuda"):
    model = ConvLM(DICT_SIZE, EMBED)
criterion = TokenLoss()
opt = torch.optim.SGD(model.parameters(), lr=0.25)
for update in range(25):
    opt.zero_grad()
    loss = criterion(model, make_sample())
    loss.backward()
    opt.step()
    print(f"update {update} loss {loss.item():.3f}")
