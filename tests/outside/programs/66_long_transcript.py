"""A transducer trains for some twenty batches until one batch holds an utterance with an absurdly long transcript; everything is padded to it, and the joint lattice of frames x labels x vocabulary does not fit. Source: https://github.com/k2-fsa/icefall/issues/521 - the OOM in RNN-T training came from the data: the text of some utterances was far too long and memory rose suddenly."""
EXPECTED = {"kind": "oom", "memory": "6G", "cause": ["activations"],
            "mentions": [["length", "long", "outlier", "text", "transcript", "label", "joiner", "lattice", "shape", "batch", "pad"]]}

# Arithmetic: 8 utterances x 200 frames x (labels + 1). Usual labels: at most 60, so hidden 8 x 200 x 61 x 256 x 4 = 95 MiB and
# scores 8 x 200 x 61 x 500 x 4 = 186 MiB; with the backward pass under 1 GiB. The long transcript has 700 labels:
# tanh 1095 MiB and its contiguous copy for the linear layer 1095 MiB, scores 2139 MiB, log_softmax 2139 MiB more
# = 6.3 GiB > 6144 - 430 = 5714 MiB.
import random

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

VOCAB = 500
random.seed(7)


class Joiner(nn.Module):
    def __init__(self, dim=256):
        super().__init__()
        self.out = nn.Linear(dim, VOCAB)

    def forward(self, am, lm):
        lattice = torch.tanh(am.unsqueeze(2) + lm.unsqueeze(1))  # <- here
        return self.out(lattice)  # <- here


class Transducer(nn.Module):
    def __init__(self, dim=256):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv1d(80, dim, 5, padding=2), nn.ReLU(), nn.Conv1d(dim, dim, 5, padding=2))
        self.embed = nn.Embedding(VOCAB, dim)
        self.predictor = nn.Conv1d(dim, dim, 2)  # stateless: sees the last two labels
        self.joiner = Joiner(dim)

    def forward(self, feats, labels):
        am = self.encoder(feats.transpose(1, 2)).transpose(1, 2)
        history = self.embed(nn.functional.pad(labels, (2, 0)))
        lm = self.predictor(history.transpose(1, 2)).transpose(1, 2)
        return self.joiner(am, lm).log_softmax(-1)  # <- here


def lattice_loss(logp, labels):
    blank = logp[..., 0].mean()
    index = labels[:, None, :, None].expand(-1, logp.size(1), -1, 1)
    emit = logp[:, :, :-1].gather(-1, index).mean()
    return -(blank + emit)


def manifest():
    cuts = [random.randint(15, 60) for _ in range(8 * 40)]
    cuts[8 * 22 + 5] = 700  # a whole chapter pasted into one segment
    return cuts


model = Transducer().cuda()
opt = torch.optim.Adam(model.parameters(), lr=5e-4)
cuts = manifest()
for i in range(0, len(cuts), 8):
    texts = [torch.randint(1, VOCAB, (n,)) for n in cuts[i:i + 8]]
    labels = pad_sequence(texts, batch_first=True).cuda()
    feats = torch.randn(8, 200, 80, device="cuda")
    loss = lattice_loss(model(feats, labels), labels)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print("batch", i // 8, "loss", loss.item())
