"""Twelve deaths of methods from papers, written on 2026-11-30 by somebody who had not read the rules.

Cause, phase, line and remedy of each were written down before any had been run. Of every second one only the score was read. Of
the first half 4 were right and 2 partly, and all are right now. Of the second half 2 were right, 1 partly and 3 wrong, before and
after. Two labels were wrong, and are corrected: of the clips, and of the outputs of all layers, which do not survive their first
step.
"""

from __future__ import annotations

from deaths import Death

PAPER_DEATHS = [
    Death(
        # At 1,024 pixels each of six layers saves 256 MiB. There is one picture: no batch to divide.
        "a picture that takes on a style, in larger and larger sizes",
        "activations",
        """
        channels = [3, 64, 64, 64, 64, 64, 64]
        with torch.device("cuda"):
            layers = nn.ModuleList(
                nn.Sequential(nn.Conv2d(one, two, 3, padding=1), nn.ReLU()) for one, two in zip(channels, channels[1:])
            ).requires_grad_(False)
        def grams(picture):
            for layer in layers:
                picture = layer(picture)  # asks
                flat = picture.flatten(2)[0]
                yield flat @ flat.T
        for size in (128, 256, 512, 1024):
            size = min(size, R.get("length", size))
            with torch.no_grad():
                wanted = list(grams(torch.empty(1, 3, size, size, device="cuda")))
            picture = torch.empty(1, 3, size, size, device="cuda", requires_grad=True)
            optimizer = torch.optim.Adam([picture], foreach=False)
            for _ in range(6):
                sum((one - two).square().mean() for one, two in zip(grams(picture), wanted)).backward()
                optimizer.step(); optimizer.zero_grad()
        """,
        line="# asks",
        phase="forward",
        remedy=None,
    ),
    Death(
        # 8,000 rows: 12 layers of the teacher are 750 MiB, and what the student's losses save as much again.
        "a student that imitates every layer of its teacher, and more rows",
        "activations",
        """
        class Layers(nn.Module):
            def __init__(self, count, width):
                super().__init__()
                self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(count))
            def forward(self, x):
                found = []
                for layer in self.layers:
                    x = torch.relu(layer(x))  # asks
                    found.append(x)
                return found
        with torch.device("cuda"):
            teacher, student = Layers(12, 2048).eval().requires_grad_(False), Layers(6, 1024)
            bridges = nn.ModuleList(nn.Linear(1024, 2048) for _ in range(6))
        optimizer = optimizer_of(nn.ModuleList([student, bridges]))
        parts = R.get("micro_batches", 1)
        for n in range(6):
            rows = 2000 if n < 3 else 8000
            for _ in range(parts):
                x = torch.empty(rows // parts, 2048, device="cuda")
                with torch.no_grad():
                    wanted = teacher(x)
                found = student(x[:, :1024])
                loss = 0
                for bridge, one, two in zip(bridges, found, wanted[1::2]):
                    loss = loss + (bridge(one) - two).square().mean()  # asks
                loss.backward()
                del found, wanted, loss
            optimizer.step(); optimizer.zero_grad()
        """,
        line="# asks",
        phase="forward",
    ),
    Death(
        # 4,000 points have fitted in three steps: 8 micro-batches of 4,000 are known to fit.
        "second derivatives of a network at very many points",
        "activations",
        """
        net = nn.Sequential(
            nn.Linear(3, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 1)
        ).cuda()
        optimizer = optimizer_of(net)
        parts = R.get("micro_batches", 1)
        def residual(points):
            u = net(points)  # asks
            (slope,) = torch.autograd.grad(u.sum(), points, create_graph=True)  # asks
            bend = 0
            for axis in range(3):
                (row,) = torch.autograd.grad(slope[:, axis].sum(), points, create_graph=True)  # asks
                bend = bend + row[:, axis]
            return bend - u[:, 0]
        for n in range(6):
            rows = 4000 if n < 3 else 32000
            for _ in range(parts):
                points = torch.empty(rows // parts, 3, device="cuda", requires_grad=True)
                residual(points).square().mean().backward()
            optimizer.step(); optimizer.zero_grad()
        """,
        line="# asks",
        phase="forward",
    ),
    Death(
        # 14 MiB in each step; the bound of 2,000 would be 27 GiB. The host is the place for it.
        "a replay memory on the card whose bound is far away",
        "leak",
        """
        import collections
        net = nn.Sequential(nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Flatten(), nn.Linear(5184, 6))
        net = net.cuda()
        optimizer = optimizer_of(net)
        memory = collections.deque(maxlen=2000)
        for n in range(200):
            frames = torch.empty(128, 4, 84, 84, device="cuda")
            memory.append(frames.cpu() if R.get("leak") is False else frames)  # keeps
            if len(memory) < 4:
                continue
            batch = torch.cat([memory[0][:32], memory[len(memory) // 2][:32]]).cuda()
            net(batch).square().mean().backward()
            optimizer.step(); optimizer.zero_grad()
        """,
        line="# keeps",
    ),
    Death(
        # The gradients are sparse, the two moments are not: 610 MiB of tables want 1,220 MiB.
        "embedding tables with sparse gradients, and their Adam",
        "optimizer",
        """
        class Ranker(nn.Module):
            def __init__(self):
                super().__init__()
                self.tables = nn.ModuleList(nn.EmbeddingBag(500000, 64, mode="sum", sparse=True) for _ in range(5))
                self.top = nn.Sequential(nn.Linear(320, 256), nn.ReLU(), nn.Linear(256, 1))
            def forward(self, ids):
                return self.top(torch.cat([table(one) for table, one in zip(self.tables, ids)], 1))
        with torch.device("cuda"):
            model = Ranker()
        dense = optimizer_of(model.top)
        tables = list(model.tables.parameters())
        sparse = torch.optim.SGD(tables, 0.01) if R.get("optimizer") == "SGD" else torch.optim.SparseAdam(tables)
        parts = R.get("micro_batches", 1)
        for _ in range(4):
            for _ in range(parts):
                ids = torch.zeros(5, 4096 // parts, 10, dtype=torch.long, device="cuda")
                model(ids).square().mean().backward()
            dense.step(); dense.zero_grad()
            sparse.step()  # asks
            sparse.zero_grad()
        """,
        line="# asks",
        phase="optimizer",
    ),
    Death(
        # Nine members are 576 MiB, their momentum as much, and torch.func stacks another 576 MiB.
        "the weights of an ensemble, stacked beside its members",
        "weights",
        """
        members = [stack(4, 2048) for _ in range(9)]
        optimizers = [torch.optim.SGD(one.parameters(), 0.01, momentum=0.9) for one in members]
        for _ in range(3):
            for member, optimizer in zip(members, optimizers):
                step(member, optimizer, 64, 2048)
        if R.get("copy") == "host" or R.get("beside") is False:
            members = [member.cpu() for member in members]
        weights, buffers = torch.func.stack_module_state(members)  # asks
        """,
        line="# asks",
        phase="other",
        remedy=None,
    ),
    Death(
        # The frames of all clips are one batch for the backbone. 8 clips of 48 frames are 384 pictures. The label said forward: its
        # 1,231 MiB fit, and the first gradients do not.
        "clips whose frames are pictures of one batch, and a longer clip",
        "activations",
        """
        class Clips(nn.Module):
            def __init__(self):
                super().__init__()
                self.eyes = nn.Sequential(
                    nn.Conv2d(3, 32, 3, 1, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1)
                )
                self.time, self.head = nn.GRU(64, 64, batch_first=True), nn.Linear(64, 10)
            def forward(self, clips):
                seen = self.eyes(clips.flatten(0, 1)).flatten(1)
                return self.head(self.time(seen.unflatten(0, clips.shape[:2]))[0][:, -1])
        model = Clips().cuda()
        optimizer = optimizer_of(model)
        parts = R.get("micro_batches", 1)
        for n in range(8):
            frames = min(48, R.get("length", 48)) if n == 5 else 8
            for _ in range(parts):
                model(torch.empty(8 // parts, frames, 3, 112, 112, device="cuda")).square().mean().backward()  # asks
            optimizer.step(); optimizer.zero_grad()
        """,
        line="# asks",
        phase="backward",
    ),
    Death(
        # Each layer gathers 20 neighbours of each point: 8 x 4,096 x 20 x 128 is 320 MiB.
        "edges to the nearest points of a cloud, and denser clouds",
        "activations",
        """
        class Edges(nn.Module):
            def __init__(self, width):
                super().__init__()
                self.mix = nn.Linear(2 * width, 64)
            def forward(self, points):
                with torch.no_grad():
                    near = torch.cdist(points, points).topk(20, largest=False).indices  # asks
                cloud = torch.arange(len(points), device="cuda")[:, None, None]
                beside = points[cloud, near]  # asks
                pairs = torch.cat([beside, points[:, :, None].expand_as(beside)], -1)  # asks
                return torch.relu(self.mix(pairs)).amax(2)  # asks
        with torch.device("cuda"):
            model = nn.Sequential(Edges(3), Edges(64), Edges(64))
        optimizer = optimizer_of(model)
        parts = R.get("micro_batches", 1)
        for n in range(7):
            points = min(4096, R.get("length", 4096)) if n == 4 else 1024
            for _ in range(parts):
                model(torch.empty(8 // parts, points, 3, device="cuda")).square().mean().backward()
            optimizer.step(); optimizer.zero_grad()
        """,
        line="# asks",
        phase="forward",
    ),
    Death(
        # Nearly every batch has another length, and each length its own padded buffer of 6 to 31 MiB.
        "a padded buffer for each length that was seen",
        "leak",
        """
        class Padded:
            def __init__(self):
                self.buffers = {}
            def __call__(self, length):
                shape = (64, length, 256)
                if shape in self.buffers:
                    return self.buffers[shape]
                made = torch.zeros(shape, device="cuda")
                if R.get("leak") is not False:
                    self.buffers[shape] = made  # keeps
                return made
        padded, model = Padded(), stack(2, 256)
        optimizer = optimizer_of(model)
        for n in range(200):
            model(padded(100 + n * 37 % 400)).square().mean().backward()
            optimizer.step(); optimizer.zero_grad()
        """,
        line="# keeps",
    ),
    Death(
        # The pictures of 100 steps of denoising, 24 MiB each, for a film of them.
        "pictures of each step of denoising, kept for a film",
        "leak",
        """
        with torch.device("cuda"):
            model = nn.Sequential(nn.Conv2d(3, 8, 3, 1, 1), nn.SiLU(), nn.Conv2d(8, 3, 3, 1, 1))
        optimizer = optimizer_of(model)
        for _ in range(8):
            model(torch.empty(8, 3, 256, 256, device="cuda")).square().mean().backward()
            optimizer.step(); optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            x, film = torch.empty(32, 3, 256, 256, device="cuda"), []
            for _ in range(100):
                with_text, without = model(torch.cat([x, x])).chunk(2)
                x = x - 0.1 * (without + 3 * (with_text - without))
                film.append(x.cpu() if R.get("leak") is False else x)  # keeps
        """,
        line="# keeps",
    ),
    Death(
        # 12 x 1,024 outputs by as many inputs is 576 MiB; the cotangents and what each layer gives are as much.
        "a Jacobian of all outputs by all inputs",
        "activations",
        """
        model = stack(3, 1024)
        optimizer = optimizer_of(model)
        for n in range(6):
            step(model, optimizer, 256, 1024)
            if n == 3:
                rows = 12 // R.get("micro_batches", 1)
                slopes = torch.func.jacrev(model)(torch.empty(rows, 1024, device="cuda"))  # asks
                score = slopes.square().mean().item()
                del slopes
        """,
        line="# asks",
        remedy=None,
    ),
    Death(
        # The label said leak: the list of the last step's layers would live until the next forward has ended. But the gradients of
        # all outputs do not fit in the first backward.
        "outputs of all layers, and a loss on each",
        "activations",
        """
        model = stack(8, 2048)
        optimizer = optimizer_of(model)
        def outputs(x):
            found = []
            for layer in model:
                x = layer(x)
                found.append(x)
            return found
        parts = R.get("micro_batches", 1)
        for _ in range(5):
            for _ in range(parts):
                hidden = outputs(torch.empty(10000 // parts, 2048, device="cuda"))
                sum(one.square().mean() for one in hidden).backward()  # asks
                if R.get("leak") is False:
                    del hidden
            optimizer.step(); optimizer.zero_grad()
        """,
        line="# asks",
        phase="backward",
    ),
]
UNSEEN = frozenset(death.name for death in PAPER_DEATHS[1::2])
"""Names of the deaths of which only the score was read."""
FOUND_BESIDE = [
    Death(
        # At the peak of 500 rows, few gradients are there yet. Without a part of its activations, a device of 3.75 GiB was enough.
        "twenty times as many rows, where gradients come as activations go",
        "activations",
        """
        model = stack(8, 2048)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for n in range(6):
            rows, parts = (500, 1) if n < 4 else (10000, R.get("micro_batches", 1))
            for _ in range(parts):
                model(torch.empty(rows // parts, 4, 2048, device="cuda")).square().mean().backward()  # asks
            optimizer.step(); optimizer.zero_grad()
        """,
        line="# asks",
        phase="forward",
    ),
    Death(
        # Each caption is twice as long, too. Scaled with the pictures, a device of 5.25 GiB and few micro-batches seemed enough.
        "more pictures, whose captions are longer as well",
        "activations",
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.look, self.words = nn.Conv2d(3, 8, 3, 2, 1), nn.Embedding(1000, 512)
                self.read = nn.Sequential(*[nn.Sequential(nn.Linear(512, 512), nn.ReLU()) for _ in range(4)])
            def forward(self, pictures, words):
                return self.look(pictures).mean() + self.read(self.words(words)).square().mean()  # asks
        model = Net().cuda()
        optimizer = optimizer_of(model)
        for n in range(6):
            rows, length, parts = (64, 1000, 1) if n < 4 else (160, 2000, R.get("micro_batches", 1))
            for _ in range(parts):
                words = torch.zeros(rows // parts, length, dtype=torch.long, device="cuda")
                model(torch.empty(rows // parts, 3, 64, 64, device="cuda"), words).backward()
            optimizer.step(); optimizer.zero_grad()
        """,
        line="# asks",
        phase="forward",
        remedy=False,
    ),
    Death(
        # 12 passes of 6,000 rows keep 300 MiB, and 36 passes of as many rows 860 MiB.
        "a block that is run more often, with more rows",
        "activations",
        """
        class Refined(nn.Module):
            def __init__(self):
                super().__init__()
                self.again, self.rest = stack(1, 1024), stack(14, 2048)
            def forward(self, x, times):
                for _ in range(times):
                    x = self.again(x)  # asks
                return self.rest(x.mean(0).repeat(1, 2))
        model = Refined().cuda()
        optimizer = optimizer_of(model)
        for n in range(6):
            rows, times, parts = (6000, 12, 1) if n < 4 else (12000, 36, R.get("micro_batches", 1))
            for _ in range(parts):
                model(torch.empty(rows // parts, 1, 1024, device="cuda"), times).square().mean().backward()
            optimizer.step(); optimizer.zero_grad()
        """,
        line="# asks",
        phase="forward",
        remedy=False,
    ),
]
"""Wrong promises that were found while the faults of the others were mended: a remedy was called enough, and was not."""
