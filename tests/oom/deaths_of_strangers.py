"""Sixteen deaths of 2026-11-30 of kinds that public reports describe, written by somebody who had not read the rules.

Cause, phase, line and remedy of each were written down before any had been run. Hashes of the names draw the half of which only the
score was read.
"""

from __future__ import annotations

import hashlib

from deaths import Death

STRANGERS_DEATHS = [
    Death(
        # 4 pictures, 4 heads, 4,096 places: 1 GiB for the scores, and 1 GiB for their softmax. Only smaller pictures, fewer of
        # them, or attention that does not write its scores help: nothing that the training's own rows would change.
        "attention of a UNet on pictures of twice the size in validation",
        "activations",
        """
        class Attention(nn.Module):
            def __init__(self, width):
                super().__init__()
                self.all, self.out = nn.Conv2d(width, 3 * width, 1), nn.Conv2d(width, width, 1)
            def forward(self, x):
                q, k, v = self.all(x).flatten(2).unflatten(1, (3, 4, -1)).unbind(1)
                scores = (q.transpose(-1, -2) @ k / 4).softmax(-1)  # asks
                return x + self.out((v @ scores.transpose(-1, -2)).flatten(1, 2).unflatten(-1, x.shape[2:]))
        class UNet(nn.Module):
            def __init__(self):
                super().__init__()
                self.down, self.up = nn.Conv2d(4, 64, 3, 2, 1), nn.ConvTranspose2d(64, 4, 2, 2)
                self.middle = nn.Sequential(nn.Conv2d(64, 64, 3, 1, 1), nn.SiLU(), Attention(64))
            def forward(self, x):
                return self.up(self.middle(self.down(x)))
        model = UNet().cuda()
        optimizer = optimizer_of(model)
        for n in range(8):
            model.train()
            model(torch.empty(4, 4, 64, 64, device="cuda")).square().mean().backward()
            optimizer.step(); optimizer.zero_grad()
            if n % 4 == 3:
                model.eval()
                with torch.no_grad():
                    model(torch.empty(4, 4, 128, 128, device="cuda"))
        """,
        line="# asks",
        phase="eval",
        remedy=False,
    ),
    Death(
        # The targets are matched without a graph, between forward and backward. Chunks of the boxes, or the host, help.
        "overlaps of all anchors with the boxes of one crowded picture",
        "activations",
        """
        backbone = nn.Sequential(nn.Conv2d(3, 32, 3, 4, 1), nn.ReLU(), nn.Conv2d(32, 5, 3, 4, 1)).cuda()
        optimizer = optimizer_of(backbone)
        anchors = torch.empty(160000, 4, device="cuda")
        def overlaps(one, other):
            low = torch.maximum(one[:, None, :2], other[:, :2])
            high = torch.minimum(one[:, None, 2:], other[:, 2:])  # asks
            return (high - low).clamp_(min=0).prod(2)
        for crowd in (12, 30, 8, 20, 700, 9):
            found = backbone(torch.empty(2, 3, 640, 640, device="cuda"))
            with torch.no_grad():
                best = overlaps(anchors, torch.empty(crowd, 4, device="cuda")).amax(1)
            (found.square().mean() * best.mean()).backward()
            optimizer.step(); optimizer.zero_grad()
        """,
        line="# asks",
        phase="forward",
        remedy=False,
    ),
    Death(
        # Each step of the cell keeps its gates: 5 tensors of rows x width.
        "a recurrent cell whose window grows with the curriculum",
        "activations",
        """
        cell, head = nn.GRUCell(256, 512).cuda(), nn.Linear(512, 256).cuda()
        optimizer = optimizer_of(nn.ModuleList([cell, head]))
        for length in (16, 16, 16, 256, 16):
            length = min(length, R.get("length", length))
            parts = R.get("micro_batches", 1)
            for _ in range(parts):
                text = torch.empty(1024 // parts, length, 256, device="cuda")
                state, loss = torch.zeros(1024 // parts, 512, device="cuda"), 0
                for n in range(length):
                    state = cell(text[:, n], state)  # asks
                    loss = loss + head(state).square().mean()
                loss.backward()
            optimizer.step(); optimizer.zero_grad()
        """,
        line="# asks",
        phase="forward",
    ),
    Death(
        # The places of each expert are as many as the busiest one gets: 8 x 20,000 x 512 is 312 MiB, its hidden layer 1.2 GiB.
        "experts padded to the busiest one, and a step that sends all tokens to it",
        "activations",
        """
        class Experts(nn.Module):
            def __init__(self):
                super().__init__()
                self.up = nn.Parameter(torch.empty(8, 512, 2048))
                self.down = nn.Parameter(torch.empty(8, 2048, 512))
            def forward(self, tokens, busiest):
                places = tokens.new_zeros(8, busiest, 512)
                places[:, : tokens.shape[0] // 8] = tokens[: tokens.shape[0] // 8 * 8].view(8, -1, 512)
                hidden = torch.relu(torch.bmm(places, self.up))  # asks
                return torch.bmm(hidden, self.down)
        words, experts = nn.Embedding(1000, 512).cuda(), Experts().cuda()
        optimizer = optimizer_of(nn.ModuleList([words, experts]))
        parts = R.get("micro_batches", 1)
        for share in (0.15, 0.14, 0.16, 1.0, 0.15):
            for _ in range(parts):
                ids = torch.zeros(20000 // parts, dtype=torch.long, device="cuda")
                experts(words(ids), int(20000 // parts * share)).square().mean().backward()
            optimizer.step(); optimizer.zero_grad()
        """,
        line="# asks",
        phase="forward",
    ),
    Death(
        # 15,000 x 15,000 is 858 MiB. The gradient of the dense matrix is not needed; the product of two hops is.
        "an adjacency matrix made dense, and one large graph",
        "activations",
        """
        class Hops(nn.Module):
            def __init__(self):
                super().__init__()
                self.one, self.two = nn.Linear(64, 64), nn.Linear(64, 64)
            def forward(self, x, edges):
                ones = torch.ones(edges.shape[1], device="cuda")
                near = torch.sparse_coo_tensor(edges, ones, (len(x), len(x)), check_invariants=False).to_dense()
                return self.two((near @ near) @ torch.relu(self.one(x)))  # asks
        model = Hops().cuda()
        optimizer = optimizer_of(model)
        parts = R.get("micro_batches", 1)
        for nodes in (2000, 1500, 2500, 15000, 2000):
            for _ in range(parts):
                edges = torch.zeros(2, nodes // parts * 4, dtype=torch.long, device="cuda")
                model(torch.empty(nodes // parts, 64, device="cuda"), edges).square().mean().backward()
            optimizer.step(); optimizer.zero_grad()
        """,
        line="# asks",
        phase="forward",
    ),
    Death(
        # torchmetrics keeps the scores of each update until compute() where no thresholds are given.
        "a metric that keeps the scores of the whole epoch on the card",
        "leak",
        """
        import torchmetrics
        model = nn.Sequential(stack(2, 512), nn.Linear(512, 2000).cuda())
        optimizer = optimizer_of(model)
        metric = torchmetrics.AUROC(task="multiclass", num_classes=2000, validate_args=False).cuda()
        for _ in range(100):
            out = model(torch.empty(2048, 512, device="cuda"))
            out.square().mean().backward()
            optimizer.step(); optimizer.zero_grad()
            metric.update(out.detach(), torch.zeros(2048, dtype=torch.long, device="cuda"))  # keeps
            if R.get("leak") is False:
                metric.reset()
        """,
        line="# keeps",
    ),
    Death(
        # Each Adam has a state of twice the weights; the list of restarts keeps all of them.
        "an optimizer of each warm restart, kept in a list",
        "leak",
        """
        model = stack(5, 2048)
        restarts = []
        for n in range(60):
            if n % 4 == 0:
                optimizer = torch.optim.Adam(model.parameters())
                if R.get("leak") is not False:
                    restarts.append(optimizer)  # keeps
            step(model, optimizer, 64, 2048)
        """,
    ),
    Death(
        # Weights and buckets are 576 MiB each, and the gradients have no room. gradient_as_bucket_view=True is the remedy.
        "buckets of DistributedDataParallel beside the gradients",
        "weights",
        """
        import torch.distributed as dist
        dist.init_process_group("gloo", init_method="file://" + os.path.abspath("store-" + os.environ["RUN"]), rank=0, world_size=1)
        model = nn.parallel.DistributedDataParallel(stack(9, 4096), gradient_as_bucket_view=R.get("buckets") == "views")
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for _ in range(3):
            model(torch.empty(32, 4096, device="cuda")).square().mean().backward()  # asks
            optimizer.step(); optimizer.zero_grad()
        """,
        phase="backward",
    ),
    Death(
        # 256 rows x 32,000 words x 4 bytes is 31 MiB for each word that is sampled, kept for the divergence from the reference.
        "log-probabilities over all words, kept for each sampled word",
        "leak",
        """
        words, cell, head = nn.Embedding(32000, 256).cuda(), nn.GRUCell(256, 256).cuda(), nn.Linear(256, 32000).cuda()
        policy = nn.ModuleList([words, cell, head])
        optimizer = optimizer_of(policy)
        def rollout(length):
            kept, ids = [], torch.zeros(256, dtype=torch.long, device="cuda")
            state = torch.zeros(256, 256, device="cuda")
            with torch.no_grad():
                for _ in range(length):
                    state = cell(words(ids), state)
                    chances = head(state).log_softmax(-1)
                    kept.append(chances if R.get("leak") is not False else chances[:, :1].clone())  # keeps
                    ids = torch.zeros(256, dtype=torch.long, device="cuda")
            return torch.stack([one[:, 0] for one in kept])
        for n in range(4):
            policy.eval()
            chances = rollout(12 if n < 3 else 80)
            policy.train()
            (head(cell(words(torch.zeros(256, dtype=torch.long, device="cuda")))).square().mean() * chances.mean()).backward()
            optimizer.step(); optimizer.zero_grad()
        """,
        phase="eval",
        remedy=False,
    ),
    Death(
        # Sorting gives values and positions of 8 bytes for each pixel and class.
        "errors of all pixels and classes, sorted for the loss",
        "activations",
        """
        model = nn.Sequential(nn.Conv2d(3, 32, 3, 8, 1), nn.ReLU(), nn.Conv2d(32, 19, 1)).cuda()
        optimizer = optimizer_of(model)
        def lovasz(chances, labels):
            errors = (nn.functional.one_hot(labels.flatten(), 19).to(torch.uint8) - chances.movedim(1, -1).flatten(0, -2)).abs()
            return errors.sort(0, descending=True).values.mean()  # asks
        parts = R.get("micro_batches", 1)
        for _ in range(3):
            for _ in range(parts):
                out = model(torch.empty(8 // parts, 3, 512, 512, device="cuda"))
                out = nn.functional.interpolate(out, scale_factor=8.0, mode="bilinear")
                lovasz(out.softmax(1), torch.zeros(8 // parts, 512, 512, dtype=torch.long, device="cuda")).backward()
            optimizer.step(); optimizer.zero_grad()
        """,
        phase="forward",
    ),
    Death(
        # The statistics of a dimension of 14,000 are a matrix of 748 MiB, and the product that is added to it is another.
        "statistics of both dimensions, and an embedding of many words",
        "optimizer",
        """
        class Both(torch.optim.Optimizer):
            def __init__(self, parameters):
                super().__init__(parameters, {})
            @torch.no_grad()
            def step(self):
                for group in self.param_groups:
                    for one in group["params"]:
                        state, slope = self.state[one], one.grad.flatten(1) if one.ndim > 1 else one.grad[:, None]
                        if not state:
                            state["left"] = torch.zeros(len(slope), len(slope), device="cuda")
                            state["right"] = torch.zeros(slope.shape[1], slope.shape[1], device="cuda")
                        state["left"] += slope @ slope.T  # asks
                        state["right"] += slope.T @ slope
                        one.sub_(one.grad, alpha=0.001)
        model = nn.Sequential(nn.Embedding(14000, 512), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 14)).cuda()
        optimizer = torch.optim.SGD(model.parameters(), 0.01) if R.get("optimizer") else Both(model.parameters())
        for _ in range(3):
            model(torch.zeros(32, 64, dtype=torch.long, device="cuda")).square().mean().backward()
            optimizer.step(); optimizer.zero_grad()
        """,
        line="# asks",
        phase="optimizer",
    ),
    Death(
        # 16 matrices of 64 MiB; the merged ones are as large as the model.
        "adapters merged into copies of the weights before saving",
        "weights",
        """
        class Adapted(nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = nn.Parameter(torch.empty(4096, 4096), requires_grad=False)
                self.a, self.b = nn.Parameter(torch.empty(8, 4096)), nn.Parameter(torch.empty(4096, 8))
            def forward(self, x):
                return torch.relu(x @ self.weight.T + x @ self.a.T @ self.b.T)
        with torch.device("cuda"):
            model = nn.Sequential(*[Adapted() for _ in range(16)])
        optimizer = optimizer_of(nn.ParameterList([one for one in model.parameters() if one.requires_grad]))
        for _ in range(4):
            step(model, optimizer, 256, 4096)
        merged = {}
        with torch.no_grad():
            for n, layer in enumerate(model):
                whole = layer.weight + layer.b @ layer.a  # asks
                away = R.get("beside") is False or R.get("copy") == "host"
                merged[f"{n}.weight"] = whole.cpu() if away else whole
        """,
        line="# asks",
    ),
    Death(
        # The float32 weight of each layer is saved for backward: 20 x 64 MiB, whatever the batch. Recomputing it is the remedy.
        "weights in 8 bits, and their float copies saved for backward",
        "activations",
        """
        class Small(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("low", torch.empty(4096, 4096, dtype=torch.int8))
                self.scale, self.bias = nn.Parameter(torch.empty(4096, 1)), nn.Parameter(torch.empty(4096))
            def forward(self, x):
                return torch.relu(nn.functional.linear(x, self.low.float() * self.scale, self.bias))  # asks
        with torch.device("cuda"):
            model = nn.Sequential(*[Small() for _ in range(20)])
        optimizer = optimizer_of(model)
        for _ in range(3):
            step(model, optimizer, 64, 4096)
        """,
        line="# asks",
        phase="forward",
        remedy=False,
    ),
    Death(
        # 7,000 frames of 4 x 84 x 84 bytes are 188 MiB, and 754 MiB as float32, twice.
        "frames of a whole rollout, made float inside the model",
        "activations",
        """
        class Policy(nn.Module):
            def __init__(self):
                super().__init__()
                self.eyes = nn.Sequential(nn.Conv2d(4, 16, 8, 4), nn.ReLU(), nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.Flatten())
                self.head = nn.LazyLinear(7)
            def forward(self, frames):
                return self.head(self.eyes(frames.float() / 255.0))  # asks
        policy = Policy().cuda()
        policy(torch.zeros(1, 4, 84, 84, dtype=torch.uint8, device="cuda"))
        optimizer = optimizer_of(policy)
        rollout = torch.zeros(7000, 4, 84, 84, dtype=torch.uint8, device="cuda")
        for n in range(6):
            rows = 256 if n < 4 else 7000
            parts = R.get("micro_batches", 1) if n >= 4 else 1
            for part in range(parts):
                policy(rollout[part * rows // parts : (part + 1) * rows // parts]).square().mean().backward()
            optimizer.step(); optimizer.zero_grad()
        """,
        phase="forward",
    ),
    Death(
        # Weights, Adam's state and the snapshot of both fit; a second snapshot is made before the first is freed.
        "a snapshot of model and optimizer, replaced by the next one",
        "weights",
        """
        import copy
        model = stack(11, 2048)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        for n in range(12):
            step(model, optimizer, 64, 2048)
            if n % 4 == 3:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                if R.get("beside") is False or R.get("copy") == "host":
                    state = {"model": {name: one.cpu() for name, one in model.state_dict().items()}}
                good = copy.deepcopy(state)  # asks
        """,
        line="# asks",
    ),
    Death(
        # Weights and gradients are 832 MiB, and both moments are 832 MiB more. One parameter at a time is the remedy.
        "moments kept on the host, and brought to the card all at once",
        "optimizer",
        """
        model = stack(26, 2048)
        optimizer = torch.optim.SGD(model.parameters(), 0.01) if R.get("optimizer") else None
        host = [(torch.zeros(one.shape), torch.zeros(one.shape)) for one in model.parameters()]
        for _ in range(3):
            model(torch.empty(64, 2048, device="cuda")).square().mean().backward()
            if optimizer is not None:
                optimizer.step(); optimizer.zero_grad()
                continue
            with torch.no_grad():
                here = [(mean.cuda(), square.cuda()) for mean, square in host]  # asks
                for one, (mean, square) in zip(model.parameters(), here):
                    mean.lerp_(one.grad, 0.1); square.lerp_(one.grad.square(), 0.01)
                    one.addcdiv_(mean, square.sqrt().add_(1e-8), value=-0.001)
                    one.grad = None
                host = [(mean.cpu(), square.cpu()) for mean, square in here]
        """,
        line="# asks",
        phase="other",
        remedy=False,
    ),
]
FOUND_BESIDE = [
    Death(
        # Half of the rows, a quarter of the similarities. Scaled in proportion, half of the rows seemed enough.
        "similarities of all rows as the last part of the model, and more rows",
        "activations",
        """
        class Pairs(nn.Module):
            def forward(self, x):
                return (x @ x.T).softmax(-1).diagonal().sum()  # asks
        model = nn.Sequential(stack(2, 1024), Pairs())
        optimizer = optimizer_of(model)
        parts = R.get("micro_batches", 1)
        for n in range(6):
            rows = 4000 if n < 3 else 20000
            for _ in range(parts):
                model(torch.empty(rows // parts, 1024, device="cuda")).backward()
            optimizer.step(); optimizer.zero_grad()
        """,
        line="# asks",
        phase="forward",
    ),
    Death(
        # What the backward still needs is 64 MiB more than the copies of the weights, which no batch makes smaller.
        "weights in 8 bits, and a backward beside their float copies",
        "activations",
        """
        class Small(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("low", torch.empty(4096, 4096, dtype=torch.int8))
                self.scale, self.bias = nn.Parameter(torch.empty(4096, 1)), nn.Parameter(torch.empty(4096))
            def forward(self, x):
                return torch.relu(nn.functional.linear(x, self.low.float() * self.scale, self.bias))
        with torch.device("cuda"):
            model = nn.Sequential(*[Small() for _ in range(10)])
        optimizer = optimizer_of(model)
        for _ in range(3):
            step(model, optimizer, 300, 4096)
        """,
        phase="backward",
    ),
]
"""Wrong promises that were found while the faults of the others were mended: a remedy was called enough, and was not."""
_BY_HASH = sorted(STRANGERS_DEATHS, key=lambda death: hashlib.sha256(death.name.encode()).digest())
UNSEEN = frozenset(death.name for death in _BY_HASH[: len(_BY_HASH) // 2])
"""Names of the deaths that were opened only after their score had been read."""
