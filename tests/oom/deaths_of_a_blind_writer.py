"""Eight deaths of 2026-11-30, written by somebody who had not read the rules: those that were read for the fixes.

Cause, phase, line and remedy of each were written down before any had been run. The other eight are in
``deaths_of_a_blind_writer_unseen``. Before the fixes 2 were right, 5 partly and 1 wrong. Now 5 are right and 3 partly.

Five labels were wrong, and are corrected: the lines of the queue and of the keys and values, and three phases. Between two steps
the phase is data. A gradient that is made for the loss is a part of the forward, and so is an evaluation with gradients on.
"""

from __future__ import annotations

from deaths import Death

SEEN = [
    Death(
        # m = 16 maps of 64 channels: 16 MiB at 64 pixels, 64 at 128, 144 at 192. Before the last concatenation 6.5 m are
        # saved, the enlarged map is 2 m and the concatenation 3 m: 11.5 m = 184, 736 and 1,656 MiB. At 192: 936 + 288 =
        # 1,224 fit, + 432 do not.
        "a denoiser with skip connections, whose pictures become larger",
        "activations",
        """
        F = nn.functional
        def block(one, two, stride=1):
            return nn.Sequential(nn.Conv2d(one, two, 3, stride, 1), nn.SiLU())
        class UNet(nn.Module):
            def __init__(self):
                super().__init__()
                self.stem = block(3, 64)
                self.down1 = block(64, 128, 2)
                self.down2 = block(128, 256, 2)
                self.middle = block(256, 256)
                self.up2 = block(256 + 128, 128)
                self.up1 = block(128 + 64, 64)
                self.out = nn.Conv2d(64, 3, 3, padding=1)
            def forward(self, x):
                skip0 = self.stem(x)
                skip1 = self.down1(skip0)
                x = self.middle(self.down2(skip1))
                x = torch.cat([F.interpolate(x, scale_factor=2), skip1], 1)
                x = self.up2(x)
                x = torch.cat([F.interpolate(x, scale_factor=2), skip0], 1)  # asks
                return self.out(self.up1(x))
        net = UNet().cuda()
        optimizer = optimizer_of(net)
        parts = R.get("micro_batches", 1)
        for size in (64, 128, 192):
            size = min(size, R.get("length", size))
            for _ in range(3):
                for _ in range(parts):
                    pictures = torch.empty(16 // parts, 3, size, size, device="cuda")
                    noise = torch.empty_like(pictures)
                    F.mse_loss(net(pictures + noise), noise).backward()
                optimizer.step(); optimizer.zero_grad()
        """,
        line="# asks",
        phase="forward",
    ),
    Death(
        # a = 72 pictures with 64 channels of 64 x 64 = 72 MiB. A pass of the critic saves 16 a = 1,152, its backward needs
        # 18 a = 1,296. In each fourth step the gradient for the pictures is itself recorded: one more a for each of 8
        # layers, up to 24 a = 1,728. It ends at about the fourth layer from the end, within autograd.grad.
        "a penalty on the critic's slope in each fourth step only",
        "activations",
        """
        F = nn.functional
        class Critic(nn.Module):
            def __init__(self):
                super().__init__()
                layers = []
                for n in range(8):
                    layers += [nn.Conv2d(64 if n else 3, 64, 3, padding=1), nn.LeakyReLU(0.2)]
                self.body, self.head = nn.Sequential(*layers), nn.Linear(64, 1)
            def forward(self, x):
                return self.head(self.body(x).mean((2, 3)))
        maker = nn.Sequential(
            nn.Linear(128, 64 * 16 * 16), nn.Unflatten(1, (64, 16, 16)), nn.ReLU(), nn.ConvTranspose2d(64, 3, 8, 4, 2)
        ).cuda()
        critic = Critic().cuda()
        of_maker, of_critic = optimizer_of(maker), optimizer_of(critic)
        parts = R.get("micro_batches", 1)
        rows = 72 // parts
        for n in range(12):
            for _ in range(parts):
                real = torch.empty(rows, 3, 64, 64, device="cuda")
                with torch.no_grad():
                    fake = maker(torch.empty(rows, 128, device="cuda"))
                F.softplus(-critic(real)).mean().backward()
                F.softplus(critic(fake)).mean().backward()
                if n % 4 == 3:
                    real.requires_grad_()
                    (slope,) = torch.autograd.grad(critic(real).sum(), real, create_graph=True)  # asks
                    (5 * slope.square().sum((1, 2, 3)).mean()).backward()
                    del slope
            of_critic.step(); of_critic.zero_grad()
            for _ in range(parts):
                F.softplus(-critic(maker(torch.empty(rows, 128, device="cuda")))).mean().backward()
            of_maker.step(); of_maker.zero_grad(); of_critic.zero_grad()
        """,
        line="# asks",
        phase="forward",
    ),
    Death(
        # Weights 288 MiB, AdamW's state 576: 864 after each step, 4 x 288 + a few = about 1,220 within one. The checkpoint
        # holds as much once more: 864 + 864 = 1,728. map_location="cpu" would do.
        "a roll-back that reads the whole checkpoint onto the card",
        "weights",
        """
        import tempfile
        model = stack(18, 2048)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "last.pt")
            for n in range(6):
                if n == 3:
                    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
                step(model, optimizer, 256, 2048)
            # the loss became NaN
            last = torch.load(path, map_location="cuda")  # asks
            model.load_state_dict(last["model"])
            optimizer.load_state_dict(last["optimizer"])
            for n in range(3):
                step(model, optimizer, 256, 2048)
        """,
        line="# asks",
        phase="data",
        remedy=False,
    ),
    Death(
        # Two encoders of 96 MiB and a state of 192. With what the query saves, four keys, logits, log-softmax and their two
        # gradients of 64 each, backward needs about 816 MiB. Each step keeps 16 more although only the last four are read:
        # about 40 steps.
        "a queue of negatives that is read from its end and never cut",
        "leak",
        """
        import copy
        F = nn.functional
        encoder = stack(6, 2048)
        slow = copy.deepcopy(encoder).requires_grad_(False)
        optimizer = optimizer_of(encoder)
        queue = []
        for n in range(200):
            views = torch.empty(2048, 2048, device="cuda")
            with torch.no_grad():
                for one, two in zip(slow.parameters(), encoder.parameters()):
                    one.lerp_(two, 0.001)
                queue.append(slow(views))  # keeps
            if R.get("leak") is False:
                del queue[:-4]
            negatives = torch.cat(queue[-4:])
            loss = F.cross_entropy(encoder(views) @ negatives.T, torch.zeros(2048, dtype=torch.long, device="cuda"))
            loss.backward()
            optimizer.step(); optimizer.zero_grad()
            del negatives, loss
        """,
        line="# keeps",
        phase="backward",
    ),
    Death(
        # Weights and state are about 200 MiB. 128 texts keep 1 MiB for each token and layer, 4 MiB for each token: 64
        # tokens are 256 MiB, 512 would be 2,048. It ends near token 300, where one copy of a layer's keys is 150 MiB.
        "texts written by the model whose keys and values are kept",
        "activations",
        """
        class Layer(nn.Module):
            def __init__(self):
                super().__init__()
                self.into, self.out = nn.Linear(1024, 3072), nn.Linear(1024, 1024)
            def forward(self, x, kept=None):
                rows, length, _ = x.shape
                q, k, v = self.into(x).view(rows, length, 3, 16, 64).permute(2, 0, 3, 1, 4)
                if kept:
                    k = torch.cat([kept[0], k], 2)  # asks
                    v = torch.cat([kept[1], v], 2)  # asks
                y = (q @ k.transpose(-2, -1) / 8).softmax(-1) @ v  # asks
                return x + self.out(y.transpose(1, 2).reshape(rows, length, 1024)), (k, v)
        layers = nn.ModuleList(Layer() for _ in range(4)).cuda()
        optimizer = optimizer_of(layers)
        def write(length):
            layers.eval()
            with torch.no_grad():
                kept = [None] * len(layers)
                x = torch.empty(128, 1, 1024, device="cuda")
                for _ in range(length):
                    for n, layer in enumerate(layers):
                        x, kept[n] = layer(x, kept[n])
            layers.train()
        for epoch, length in enumerate((64, 64, 512)):
            for _ in range(4):
                x = torch.empty(16, 64, 1024, device="cuda")
                for layer in layers:
                    x, _ = layer(x)
                x.square().mean().backward()
                optimizer.step(); optimizer.zero_grad()
                del x, _
            write(min(length, R.get("length", length)))
        """,
        line="# asks",
        phase="eval",
    ),
    Death(
        # The body's weights are 480 MiB. Frozen they cost only that. Once they train: + 480 of gradients = 960 (and 60
        # saved, gone by then), and AdamW's state would be 960 more: 1,920. SGD stays at 960.
        "a body that is unfrozen after the head was trained",
        "optimizer",
        """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = stack(30, 2048).requires_grad_(False)
                self.head = nn.Linear(2048, 100, device="cuda")
            def forward(self, x):
                return self.head(self.body(x))
        model = Model()
        optimizer = optimizer_of(model)
        for n in range(8):
            if n == 4:
                model.body.requires_grad_(True)
            model(torch.empty(256, 2048, device="cuda")).square().mean().backward()
            optimizer.step()  # asks
            optimizer.zero_grad()
        """,
        line="# asks",
        phase="optimizer",
    ),
    Death(
        # One segment of 1,300 MiB is taken and let go, so that others on the card do not get it. Ten clips of 96 MiB and
        # ten prototypes of 12 lie in it by turns; the clips go, ten holes of 96 MiB and an end of 220 stay. 24,576 rows ask
        # for 96 MiB: fits. 81,920 rows ask for 320 MiB, with about 1,150 free in the segment and about 200 outside. Without
        # holes: 120 + 3 x 320 = 1,080 MiB.
        "memory taken in one piece at the start, and holes in it",
        "fragmentation",
        """
        net = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(inplace=True), nn.Linear(1024, 16)).cuda()
        optimizer = optimizer_of(net)
        occupied = megabytes(1300)
        del occupied
        clips, prototypes = [], []
        for _ in range(10):
            clips.append(torch.empty(24576, 1024, device="cuda"))
            prototypes.append(clips[-1].view(3072, 8, 1024).mean(1))
        del clips
        parts = R.get("micro_batches", 1)
        for n in range(8):
            rows = 24576 if n < 4 else 81920
            for _ in range(parts):
                x = torch.empty(rows // parts, 64, device="cuda")
                loss = net(x).square().mean()  # asks
                loss.backward()
                del x, loss
            optimizer.step(); optimizer.zero_grad()
        """,
        line="# asks",
        phase="forward",
    ),
    Death(
        # Weights and state are 144 MiB, a training batch saves 416. In the evaluation no_grad was forgotten: the sum holds
        # the graph of each view, about 450 MiB: the third or fourth of 8 views ends it.
        "the mean over eight views of a picture, with all of their graphs",
        "activations",
        """
        model = stack(12, 1024)
        optimizer = optimizer_of(model)
        parts = R.get("micro_batches", 1)
        def test():
            model.eval()
            for _ in range(parts):
                x = torch.empty(8192 // parts, 1024, device="cuda")
                total = 0
                for view in range(8):
                    total = total + model(x.roll(view, 1)).softmax(-1)  # asks
                right = (total.argmax(-1) == 0).sum()
                del total
            model.train()
        for epoch in range(3):
            for _ in range(4):
                step(model, optimizer, 8192, 1024)
            test()
        """,
        line="# asks",
        phase="forward",
    ),
]
FOUND_BESIDE = [
    Death(
        # A dense adjacency of 16,000 nodes is 977 MiB, and each layer needs all of it.
        "an adjacency matrix that each layer needs, and more layers after some steps",
        "activations",
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = nn.ModuleList(nn.Linear(512, 512) for _ in range(20))
            def forward(self, x, near, depth):
                for layer in self.layers[:depth]:
                    x = torch.relu(layer(near @ x))  # asks
                return x
        model = Net().cuda()
        optimizer = optimizer_of(model)
        near = torch.empty(16000, 16000, device="cuda")
        near = near.cpu() if R.get("data") == "host" else near
        for n in range(6):
            x = torch.empty(16000, 512, device="cuda")
            model(x, near.cuda(), 4 if n < 3 else 20).square().mean().backward()
            optimizer.step(); optimizer.zero_grad()
        """,
        line="# asks",
        remedy=False,
    ),
    Death(
        # Forty experts of 160 MiB follow one another. After the eighth, a device of 5.25 GiB was called enough.
        "experts of a zoo, moved to the card one after the other",
        "weights",
        """
        zoo = [nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(10)]) for _ in range(40)]
        model = stack(6, 2048)
        optimizer = optimizer_of(model)
        for _ in range(3):
            step(model, optimizer, 64, 2048)
        if R.get("beside") is not False:
            experts = [one.cuda().eval() for one in zoo]  # asks
        for _ in range(3):
            step(model, optimizer, 64, 2048)
        """,
        line="# asks",
        phase="data",
        remedy=False,
    ),
    Death(
        # 96 texts instead of 4 go through the body. A device of 2.5 GiB was called enough: all modules had run.
        "a decoder that is called with a list of more texts",
        "activations",
        """
        class Decoder(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = stack(4, 1024)
            def forward(self, texts, seen):
                total = 0
                for one in texts:
                    total = total + self.body(one).square().mean()  # asks
                return total * seen.mean()
        encoder, decoder = stack(6, 1024), Decoder()
        optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], foreach=False)
        for n in range(6):
            rows, texts = (4000, 4) if n < 4 else (8000, 200)
            seen = encoder(torch.empty(rows, 1, 1024, device="cuda"))
            decoder([torch.empty(rows // 8, 1024, device="cuda") for _ in range(texts)], seen).backward()
            optimizer.step(); optimizer.zero_grad()
        """,
        line="# asks",
        phase="forward",
        remedy=False,
    ),
    Death(
        # Weights are 192 MiB. Each optimizer keeps up to 384 MiB of state for the trunk and its head: four need 1,400. In one
        # of the first updates no more fits. None of the optimizers is superseded: they step in turn.
        "four tasks on one trunk, each with an optimizer of its own",
        "optimizer",
        """
        trunk = stack(11, 2048)
        heads = [stack(1, 2048) for _ in range(4)]
        optimizers = [torch.optim.AdamW([*trunk.parameters(), *head.parameters()], foreach=False) for head in heads]
        for n in range(4):
            for head, optimizer in zip(heads, optimizers):
                head(trunk(torch.empty(256, 2048, device="cuda"))).square().mean().backward()
                optimizer.step()  # asks
                optimizer.zero_grad()
        """,
        line="# asks",
        phase="optimizer",
        remedy=False,
    ),
]
"""What was found while the faults of the others were mended: two remedies that were called enough and were not; a wrong cause;
optimizers that step in turn, and were called a leak."""
