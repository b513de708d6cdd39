"""Eight deaths of 2026-11-30, written by somebody who had not read the rules: those of which only the score was read.

Cause, phase, line and remedy of each were written down before any had been run. Before the fixes 3 were right, 1 partly and 4
wrong; after them 3 were right, 2 partly and 3 wrong. Then three scripts were read. Two could not follow the remedy that was called
enough: to keep the average, or the data, on the host. Now they do, and the note on the data, that none is enough, is corrected.
The third, the search for flat minima, showed a fault that is mended. The other scripts are still unread: a label may be wrong.
"""

from __future__ import annotations

from deaths import Death

UNSEEN = [
    Death(
        # Weights and state are 192 MiB. The table of tokens, experts and places has 2 N^2 entries. 4,096 tokens: 32 MiB of
        # bool and twice 128 MiB. 10,240 tokens: 200 of bool, 800 of weights = 1,192 in all, and 800 more for the second
        # table do not fit.
        "a mixture of experts that sends tokens by a dense table, and longer texts",
        "activations",
        """
        class Mixture(nn.Module):
            def __init__(self, width=512, hidden=2048, experts=8):
                super().__init__()
                self.router = nn.Linear(width, experts)
                self.up = nn.Parameter(torch.empty(experts, width, hidden))
                self.down = nn.Parameter(torch.empty(experts, hidden, width))
            def forward(self, x):
                gates = self.router(x).softmax(-1)
                places = 2 * len(x) // gates.shape[1]
                order = gates.detach().cumsum(0).unsqueeze(-1)
                chosen = order == torch.arange(places, device="cuda")
                combine = gates.unsqueeze(-1) * chosen
                dispatch = chosen.float()  # asks
                inputs = torch.einsum("nec,nd->ecd", dispatch, x)
                found = torch.relu(inputs @ self.up) @ self.down
                return torch.einsum("nec,ecd->nd", combine, found)
        model = Mixture().cuda()
        optimizer = optimizer_of(model)
        parts = R.get("micro_batches", 1)
        for n in range(8):
            tokens = 4096 if n < 4 else 10240
            tokens = min(tokens, R.get("length", tokens))
            for _ in range(parts):
                model(torch.empty(tokens // parts, 512, device="cuda")).square().mean().backward()
            optimizer.step(); optimizer.zero_grad()
        """,
        line="# asks",
        phase="forward",
    ),
    Death(
        # Weights 320 MiB and AdamW's state 640: 960 after each step, 1,280 and a few within one. The average of the weights
        # begins in step 5: 1,280 after it, and the next gradients would be 320 more. With SGD: 3 x 320 = 960.
        "an average of the weights that begins after the warm-up",
        "weights",
        """
        import copy
        model = stack(20, 2048)
        if R.get("optimizer") == "SGD":
            optimizer = torch.optim.SGD(model.parameters(), 0.01)
        else:
            optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        average = None
        for n in range(10):
            loss = model(torch.empty(256, 2048, device="cuda")).square().mean()
            loss.backward()  # asks
            optimizer.step(); optimizer.zero_grad()
            if n == 4 and R.get("beside") is not False:
                average = copy.deepcopy(model).requires_grad_(False)
            elif average is not None:
                with torch.no_grad():
                    for one, two in zip(average.parameters(), model.parameters()):
                        one.lerp_(two, 0.01)
        """,
        line="# asks",
        phase="backward",
    ),
    Death(
        # Weights, state and the 16-bit copy are 343 MiB. 16 x 64 tokens: logits 98 MiB in 16 bits, 196 in 32 bits, 196 of
        # log-softmax. 16 x 256 tokens: 393 + 786 + 786; with the first two it is at 1,522, so one of the two large ones
        # fails in the loss.
        "16-bit logits of 50,304 words that the loss makes 32-bit",
        "activations",
        """
        F = nn.functional
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.words, self.body = nn.Embedding(50304, 512), stack(4, 512)
            def forward(self, tokens):
                return F.linear(self.body(self.words(tokens)), self.words.weight)
        model = Model().cuda()
        optimizer = optimizer_of(model)
        parts = R.get("micro_batches", 1)
        for n in range(8):
            length = 64 if n < 4 else 256
            length = min(length, R.get("length", length))
            for _ in range(parts):
                tokens = torch.zeros(16 // parts, length, dtype=torch.long, device="cuda")
                with torch.autocast("cuda", torch.bfloat16):
                    logits = model(tokens)
                    loss = F.cross_entropy(logits.flatten(0, 1), tokens.flatten())  # asks
                loss.backward()
                del logits, loss
            optimizer.step(); optimizer.zero_grad()
        """,
        line="# asks",
        phase="forward",
    ),
    Death(
        # Weights and state are 576 MiB. Of 13,200 rows a block keeps 52 MiB (its input). Six inputs, the output, its
        # gradient and one block made again (206 + 206) are 1,400 in all, and fit; the first gradient within that block is
        # 206 more: 1,606.
        "checkpointed blocks, one of which is too large with its gradients",
        "activations",
        """
        from torch.utils.checkpoint import checkpoint
        with torch.device("cuda"):
            blocks = nn.ModuleList(
                nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)) for _ in range(6)
            )
        optimizer = optimizer_of(blocks)
        parts = R.get("micro_batches", 1)
        for n in range(8):
            rows = 3000 if n < 4 else 13200
            for _ in range(parts):
                x = torch.empty(rows // parts, 1024, device="cuda", requires_grad=True)
                for block in blocks:
                    x = checkpoint(block, x, use_reentrant=False)
                loss = x.square().mean()
                loss.backward()  # asks
                del x, loss
            optimizer.step(); optimizer.zero_grad()
        """,
        line="# asks",
        phase="backward",
    ),
    Death(
        # Weights 96 MiB. Each stage makes a new AdamW, state 192 MiB; its schedule holds it, and all schedules are kept for
        # a chart. In stage 6: 96 + 6 x 192 + 96 + 96 = 1,440 fit. In stage 7: 96 + 6 x 192 + 96 + 192 = 1,536 do not.
        "schedules of earlier stages that hold their optimizers",
        "leak",
        """
        model = stack(6, 2048)
        schedules = []
        for stage in range(12):
            optimizer = optimizer_of(model)
            if R.get("leak") is False:
                schedules.clear()
            schedules.append(torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5))  # keeps
            for _ in range(5):
                model(torch.empty(256, 2048, device="cuda")).square().mean().backward()
                optimizer.step()  # asks
                optimizer.zero_grad()
                schedules[-1].step()
        """,
        line="# asks",
        phase="optimizer",
    ),
    Death(
        # Six pictures of 640 x 960: 792 MiB are saved, backward needs about 1,200. One portrait among them: all are padded
        # to 960 x 960, 1,188 are saved, forward ends at 1,300 and fits; backward needs two gradients of 338 beside 1,076:
        # about 1,750.
        "one upright picture among the others, so that all are padded to a square",
        "activations",
        """
        def layer(one, two, stride):
            return nn.Sequential(nn.Conv2d(one, two, 3, stride, 1), nn.ReLU(inplace=True))
        model = nn.Sequential(
            layer(3, 32, 2), layer(32, 64, 1), layer(64, 128, 2), layer(128, 256, 1), nn.Conv2d(256, 85, 1)
        ).cuda()
        optimizer = optimizer_of(model)
        parts = R.get("micro_batches", 1)
        def batch(sizes):
            height, width = max(h for h, _ in sizes), max(w for _, w in sizes)
            padded = torch.zeros(len(sizes), 3, height, width)
            return padded.to("cuda")
        sizes = [(640, 960)] * 41
        sizes.insert(27, (960, 640))
        for n in range(7):
            mine = sizes[6 * n : 6 * n + 6]
            some = max(1, len(mine) // parts)
            for first in range(0, len(mine), some):
                loss = model(batch(mine[first : first + some])).square().mean()
                loss.backward()  # asks
                del loss
            optimizer.step(); optimizer.zero_grad()
        """,
        line="# asks",
        phase="backward",
    ),
    Death(
        # A part of the data is 800 MiB, weights and state 72. The next part is put on the card while the name still holds
        # the last one: 72 + 800 + 800. To delete the name first is enough.
        "the next part of the data beside the last one",
        "data",
        """
        model = stack(6, 1024)
        optimizer = optimizer_of(model)
        def read(number):
            return torch.empty(800 * 256, 1024)
        for number in range(4):
            shard = read(number).to("cpu" if R.get("data") == "host" else "cuda")  # asks
            for rows in shard.split(20480):
                model(rows[:2048].cuda()).square().mean().backward()
                optimizer.step(); optimizer.zero_grad()
            del rows
        """,
        line="# asks",
        phase="data",
    ),
    Death(
        # Weights 272 MiB: with gradients, state and the square roots that AdamW makes for all at once 5 x 272 = 1,360. From
        # step 6 on the climb is kept until the update: 6 x 272 = 1,632. With foreach=False: 5 x 272 and a few = about
        # 1,420.
        "a search for flat minima that begins late and keeps its climb",
        "optimizer",
        """
        model = stack(17, 2048)
        optimizer = optimizer_of(model)
        params = list(model.parameters())
        x = torch.empty(256, 2048, device="cuda")
        for n in range(10):
            model(x).square().mean().backward()
            climb = None
            if n >= 5:
                with torch.no_grad():
                    climb = torch._foreach_mul([p.grad for p in params], 0.05)
                    torch._foreach_add_(params, climb)
                optimizer.zero_grad()
                model(x).square().mean().backward()
                with torch.no_grad():
                    torch._foreach_sub_(params, climb)
            optimizer.step()  # asks
            optimizer.zero_grad()
        """,
        line="# asks",
        phase="optimizer",
    ),
]
