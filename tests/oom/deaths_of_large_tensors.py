"""Sixteen deaths of 2026-11-29 by one large tensor, or by many that pile up: attention, embeddings, masks, views, queues.

Cause, line and remedy of each were written down before any had been run. A seed draws the half of which only the score was read.
"""

from __future__ import annotations

import random

from deaths import Death

LARGE_TENSOR_DEATHS = [
    Death(
        "attention by two matrix products, and a long text",
        "activations",
        """
        class Attention(nn.Module):
            def __init__(self):
                super().__init__()
                self.all, self.out, self.drop = nn.Linear(256, 768), nn.Linear(256, 256), nn.Dropout(0.1)
            def forward(self, x):
                q, k, v = (part.unflatten(-1, (4, 64)).transpose(1, 2) for part in self.all(x).chunk(3, -1))
                weights = self.drop((q @ k.transpose(-1, -2) / 8).softmax(-1))  # asks
                return x + self.out((weights @ v).transpose(1, 2).flatten(2))
        model = nn.Sequential(Attention(), Attention(), Attention()).cuda()
        optimizer = optimizer_of(model)
        for length in (256, 256, 256, 1536, 256):
            length = min(length, R.get("length", length))
            parts = R.get("micro_batches", 1) if length > 256 else 1
            for _ in range(parts):
                model(torch.empty(8 // parts, length, 256, device="cuda")).square().mean().backward()
            optimizer.step(); optimizer.zero_grad()
        """,
        line="# asks",
        phase="forward",
    ),
    Death(
        "tied logits by einsum, with words that are masked",
        "activations",
        """
        words, body = nn.Embedding(50000, 128).cuda(), stack(2, 128)
        optimizer = optimizer_of(nn.ModuleList([words, body]))
        banned = torch.zeros(50000, dtype=torch.bool, device="cuda")
        parts = R.get("micro_batches", 1)
        for _ in range(3):
            for _ in range(parts):
                ids = torch.zeros(16 // parts, 192, dtype=torch.long, device="cuda")
                logits = torch.einsum("btd,vd->btv", body(words(ids)), words.weight)
                logits = torch.where(banned, float("-inf"), logits)
                chances = logits.log_softmax(-1)
                nn.functional.nll_loss(chances.flatten(0, 1), ids.flatten()).backward()
            optimizer.step(); optimizer.zero_grad()
        """,
    ),
    Death(
        "a bank of features that torch.cat extends in each step",
        "leak",
        """
        model = stack(4, 1024)
        optimizer = optimizer_of(model)
        bank = torch.empty(0, 1024, device="cuda")
        for _ in range(160):
            out = model(torch.empty(2000, 1024, device="cuda"))
            out.square().mean().backward()
            optimizer.step(); optimizer.zero_grad()
            bank = out.detach() if R.get("leak") is False else torch.cat([bank, out.detach()])  # keeps
        """,
        line="# keeps",
    ),
    Death(
        "keys and values of a decoder that torch.cat makes longer",
        "activations",
        """
        class Layer(nn.Module):
            def __init__(self):
                super().__init__()
                self.all = nn.Linear(512, 1536)
            def forward(self, x, past):
                q, k, v = self.all(x).chunk(3, -1)
                if past is not None:
                    k, v = torch.cat([past[0], k], 1), torch.cat([past[1], v], 1)  # asks
                return x + (q @ k.transpose(1, 2)).softmax(-1) @ v, (k, v)  # asks
        layers = nn.ModuleList(Layer() for _ in range(8)).cuda().eval()
        past = [None] * 8
        with torch.no_grad():
            x = torch.zeros(64, 1, 512, device="cuda")
            for _ in range(1000):
                for n, layer in enumerate(layers):
                    x, past[n] = layer(x, past[n])
        """,
        line="# asks",
        remedy=False,
    ),
    Death(
        "a dense gradient of a large embedding",
        "weights",
        """
        model = nn.Sequential(nn.Embedding(3_200_000, 64), nn.Linear(64, 64)).cuda()
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for _ in range(3):
            model(torch.zeros(256, 8, dtype=torch.long, device="cuda")).square().mean().backward()  # asks
            optimizer.step(); optimizer.zero_grad()
        """,
        phase="backward",
    ),
    Death(
        "weights of each improvement, kept for a later average",
        "leak",
        """
        model = stack(4, 1024)
        optimizer = optimizer_of(model)
        best = {}
        for n in range(150):
            step(model, optimizer, 4000, 1024)
            if R.get("leak") is False:
                best.clear()
            best[n] = {name: one.detach().clone() for name, one in model.state_dict().items()}  # keeps
        """,
        line="",
    ),
    Death(
        "all gradients in one vector for their norm",
        "weights",
        """
        model = stack(5, 4096)
        optimizer = optimizer_of(model) if R.get("optimizer") else torch.optim.AdamW(model.parameters(), fused=True)
        for _ in range(4):
            model(torch.empty(64, 4096, device="cuda")).square().mean().backward()
            norm = torch.cat([one.grad.flatten() for one in model.parameters()]).norm()  # asks
            optimizer.step(); optimizer.zero_grad()
        """,
        line="# asks",
    ),
    Death(
        "differences of all pairs of rows",
        "activations",
        """
        model = stack(2, 64)
        optimizer = optimizer_of(model)
        for rows in (512, 512, 512, 2048, 512):
            out = model(torch.empty(rows, 64, device="cuda"))
            apart = (out[:, None] - out[None]).square().sum(-1)  # asks
            (1 / (1 + apart)).mean().backward()
            optimizer.step(); optimizer.zero_grad()
        """,
        line="# asks",
        remedy=False,
    ),
    Death(
        "one volume that is larger than the others",
        "activations",
        """
        model = nn.Sequential(nn.Conv3d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv3d(16, 16, 3, padding=1), nn.ReLU(),
            nn.Conv3d(16, 16, 3, padding=1), nn.ReLU(), nn.Conv3d(16, 2, 1)).cuda()
        optimizer = optimizer_of(model)
        for side in (64, 64, 64, 176, 64):
            model(torch.empty(1, 1, side, side, side, device="cuda")).square().mean().backward()  # asks
            optimizer.step(); optimizer.zero_grad()
        """,
        phase="backward",
    ),
    Death(
        "gradients in 32 bits beside those in 16",
        "weights",
        """
        model = stack(12, 4096).bfloat16()
        if R.get("beside") is not False:
            for one in model.parameters():
                where = "cpu" if R.get("data") == "host" else "cuda"
                one.main_grad = torch.zeros_like(one, dtype=torch.float32, device=where, requires_grad=False)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for _ in range(3):
            for _ in range(2):
                model(torch.empty(64, 4096, device="cuda", dtype=torch.bfloat16)).square().mean().backward()  # asks
                for one in model.parameters():
                    if hasattr(one, "main_grad"):
                        one.main_grad.add_(one.grad.to(one.main_grad.device))
                        one.grad = None
            optimizer.step(); optimizer.zero_grad()
        """,
        phase="backward",
    ),
    Death(
        "a graph with twenty times as many edges",
        "activations",
        """
        class Messages(nn.Module):
            def __init__(self):
                super().__init__()
                self.message = nn.Sequential(nn.Linear(256, 256), nn.ReLU())
            def forward(self, x, source, target):
                return x.index_add(0, target, self.message(x[source]))  # asks
        layers = nn.ModuleList([Messages(), Messages()]).cuda()
        optimizer = optimizer_of(layers)
        for edges in (40_000, 40_000, 40_000, 800_000, 40_000):
            x = torch.empty(20_000, 256, device="cuda")
            ends = torch.zeros(2, edges, dtype=torch.long, device="cuda")
            for layer in layers:
                x = layer(x, *ends)
            x.square().mean().backward()
            optimizer.step(); optimizer.zero_grad()
        """,
        line="# asks",
        phase="forward",
        remedy=False,
    ),
    Death(
        "twenty-four views of each picture instead of two",
        "activations",
        """
        model = nn.Sequential(nn.Conv2d(3, 16, 7, 8), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 28 * 28, 64)).cuda()
        optimizer = optimizer_of(model)
        for views in (2, 2, 2, 24, 2):
            pictures = torch.empty(64, 3, 224, 224, device="cuda")
            batch = torch.cat([(pictures * 0.9).flip(-1) for _ in range(views)])  # asks
            model(batch).square().mean().backward()
            optimizer.step(); optimizer.zero_grad()
        """,
        line="# asks",
        remedy=False,
    ),
    Death(
        "negatives from a queue, and more rows",
        "activations",
        """
        encoder = stack(3, 128)
        optimizer = optimizer_of(encoder)
        queue = torch.empty(65536, 128, device="cuda")
        for rows in (200, 200, 200, 3000, 200):
            parts = R.get("micro_batches", 1) if rows > 200 else 1
            for _ in range(parts):
                query = encoder(torch.empty(rows // parts, 128, device="cuda"))
                key = query.detach()
                logits = torch.cat([(query * key).sum(1, keepdim=True), query @ queue.T], 1)  # asks
                aims = torch.zeros(len(logits), dtype=torch.long, device="cuda")
                nn.functional.cross_entropy(logits / 0.07, aims).backward()
            optimizer.step(); optimizer.zero_grad()
        """,
        line="# asks",
        remedy=False,  # the request is outside of a module: how much the rest needs is not known
    ),
    Death(
        "a bias of attention for each text and head",
        "activations",
        """
        class Attention(nn.Module):
            def __init__(self):
                super().__init__()
                self.all, self.slope = nn.Linear(512, 1536), nn.Parameter(torch.zeros(8, 1, 1))
            def forward(self, x, padded):
                q, k, v = (part.unflatten(-1, (8, 64)).transpose(1, 2) for part in self.all(x).chunk(3, -1))
                place = torch.arange(x.shape[1], device=x.device)
                bias = (self.slope * (place[None] - place[:, None])).masked_fill(padded[:, None, None], float("-inf"))
                return x + nn.functional.scaled_dot_product_attention(q, k, v, bias).transpose(1, 2).flatten(2)
        layers = nn.ModuleList([Attention(), Attention()]).cuda()
        optimizer = optimizer_of(layers)
        for length in (256, 256, 256, 1536, 256):
            length = min(length, R.get("length", length))
            parts = R.get("micro_batches", 1) if length > 256 else 1
            for _ in range(parts):
                x = torch.empty(8 // parts, length, 512, device="cuda")
                padded = torch.zeros(8 // parts, length, dtype=torch.bool, device="cuda")
                for layer in layers:
                    x = layer(x, padded)
                x.square().mean().backward()
            optimizer.step(); optimizer.zero_grad()
        """,
    ),
    Death(
        "a teacher that keeps its graph",
        "activations",
        """
        student, teacher = stack(4, 1024), stack(20, 1024)
        optimizer = optimizer_of(student)
        parts = R.get("micro_batches", 1)
        for _ in range(3):
            for _ in range(parts):
                x = torch.empty(12000 // parts, 1024, device="cuda")
                (student(x) - teacher(x)).square().mean().backward()  # asks
            optimizer.step(); optimizer.zero_grad()
        """,
        line="# asks",
        phase="backward",
    ),
    Death(
        "eight batches that wait on the card",
        "data",
        """
        from collections import deque
        model = stack(3, 1024)
        optimizer = optimizer_of(model)
        waiting = deque()
        device = "cpu" if R.get("data") == "host" else "cuda"
        parts = R.get("micro_batches", 1)
        for _ in range(4):
            while len(waiting) < 8:
                waiting.append(torch.empty(40000, 1024, device=device))  # keeps
            for part in waiting.popleft().chunk(parts):
                model(part.cuda()).square().mean().backward()  # asks
            optimizer.step(); optimizer.zero_grad()
        """,
    ),
]
UNSEEN = frozenset(random.Random(271129).sample([one.name for one in LARGE_TENSOR_DEATHS], 8))
"""Names of the deaths of which only the score was read."""
