"""Eight deaths of 2026-11-30 that look usual, written by somebody who had not read the rules: those that were read for the fixes.

The true cause, the line to blame and the remedy of each were written down before any had been run. The other eight are in
``deaths_of_usual_training_unseen``. Before the fixes 3 were right, 3 partly and 2 wrong. Now 6
are right and 2 partly.

One label is corrected: vectors of the curvature are the program's data, and no leak.
"""

from __future__ import annotations

from deaths import Death

USUAL = [
    Death(
        # Truth: one gradient per sample (80 x 16 MiB). Blame: the multiplication by the scale (4th copy of 320). Remedy: fewer
        # samples at once.
        "private training: a gradient for each sample of a Poisson batch",
        "activations",
        """
        from torch.func import functional_call, grad, vmap
        net = stack(4, 1024)
        optimizer = optimizer_of(net)
        def loss_of(params, x, y):
            return nn.functional.mse_loss(functional_call(net, params, (x[None],)), y[None])
        per_sample = vmap(grad(loss_of), in_dims=(None, 0, 0))
        def add_clipped(x, y):
            grads = per_sample({name: p.detach() for name, p in net.named_parameters()}, x, y)
            norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()]).norm(dim=0)
            scale = (1 / (norms + 1e-6)).clamp(max=1)
            for name, p in net.named_parameters():
                g = grads[name]
                clipped = (g * scale.view(-1, *[1] * (g.dim() - 1))).sum(0)  # asks
                p.grad = clipped if p.grad is None else p.grad + clipped
        parts = R.get("micro_batches", 1)
        for rows in (40, 44, 36, 80):
            for _ in range(parts):
                x = torch.empty(rows // parts, 1024, device="cuda")
                add_clipped(x, torch.empty_like(x))
            optimizer.step(); optimizer.zero_grad()
        """,
        line="# asks",
        remedy=None,
    ),
    Death(
        # Truth: state of the third Adam (actor). Blame: actor_optimizer.step(). Remedy: optimizer with less state.
        "soft actor critic: five networks and three Adams",
        "optimizer",
        """
        import copy
        actor, critic1, critic2 = (stack(7, 2048) for _ in range(3))
        target1, target2 = (copy.deepcopy(c).requires_grad_(False) for c in (critic1, critic2))
        optimizer1, optimizer2, actor_optimizer = (optimizer_of(net) for net in (critic1, critic2, actor))
        for _ in range(3):
            state = torch.empty(256, 2048, device="cuda")
            with torch.no_grad():
                goal = torch.min(target1(actor(state)), target2(actor(state)))
            for critic, optimizer in ((critic1, optimizer1), (critic2, optimizer2)):
                optimizer.zero_grad()
                (critic(state) - goal).square().mean().backward()
                optimizer.step()
            actor_optimizer.zero_grad()
            action = actor(state)
            (-torch.min(critic1(action), critic2(action)).mean()).backward()
            actor_optimizer.step()  # asks
            with torch.no_grad():
                for target, critic in ((target1, critic1), (target2, critic2)):
                    for t, c in zip(target.parameters(), critic.parameters()):
                        t.lerp_(c, 0.005)
        """,
        line="# asks",
        phase="optimizer",
        tried=False,
    ),
    Death(
        # Truth: a whole picture at once in validation (no_grad). Blame: net(picture). Remedy: tiles / smaller picture.
        "crops in training, whole pictures in validation",
        "activations",
        """
        net = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(),
                            nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 2, 1)).cuda()
        optimizer = optimizer_of(net)
        for epoch in range(2):
            net.train()
            for _ in range(5):
                crops = torch.empty(8, 3, 128, 128, device="cuda")
                net(crops).square().mean().backward()
                optimizer.step(); optimizer.zero_grad()
            net.eval()
            with torch.no_grad():
                for size in (1000, 1200, 1800):
                    size = min(size, R.get("length", size))
                    picture = torch.empty(1, 3, size, size, device="cuda")
                    guess = net(picture).argmax(1)  # asks
        """,
        line="# asks",
        remedy=None,
    ),
    Death(
        # Truth: graph of the teacher (844 MiB) is recorded without need. Blame: teacher(x) with grad. Remedy: no_grad (or smaller
        # batch).
        "a teacher in eval mode whose graph is recorded",
        "activations",
        """
        teacher, student = stack(6, 1024).eval(), stack(3, 1024)
        optimizer = optimizer_of(student)
        parts = R.get("micro_batches", 1)
        for rows in (8000, 8000, 36000):
            for _ in range(parts):
                x = torch.empty(rows // parts, 1024, device="cuda")
                with torch.set_grad_enabled(R.get("leak", True)):
                    goal = teacher(x)
                nn.functional.mse_loss(student(x), goal.detach()).backward()  # asks
            optimizer.step(); optimizer.zero_grad()
        """,
        line="# asks",
        phase="forward",
    ),
    Death(
        # Truth: features of all batches are cached on the card. Blame: cache[i] = .... Remedy: keep the cache on the host.
        "features of a frozen encoder, cached during the first epoch",
        "leak",
        """
        encoder, head = stack(2, 1024).requires_grad_(False), nn.Linear(1024, 10).cuda()
        optimizer = optimizer_of(head)
        cache = {}
        for epoch in range(2):
            for index in range(60):
                if index not in cache:
                    with torch.no_grad():
                        features = encoder(torch.empty(8192, 1024, device="cuda"))  # asks
                    cache[index] = features.cpu() if R.get("leak") is False else features  # asks
                head(cache[index].cuda()).square().mean().backward()  # asks
                optimizer.step(); optimizer.zero_grad()
        """,
        line="# asks",
    ),
    Death(
        # Truth: batch-all triplets: batch^3. Blame: the subtraction plus margin. Remedy: mining / smaller batch (another loss).
        "all triplets of a batch",
        "activations",
        """
        net = stack(2, 512)
        optimizer = optimizer_of(net)
        parts = R.get("micro_batches", 1)
        def batch_all(embeddings):
            distance = torch.cdist(embeddings, embeddings)
            triplets = distance[:, :, None] - distance[:, None, :] + 0.2  # asks
            return triplets.relu().mean()  # asks
        for _ in range(3):
            for _ in range(parts):
                batch_all(net(torch.empty(640 // parts, 512, device="cuda"))).backward()
            optimizer.step(); optimizer.zero_grad()
        """,
        line="# asks",
        phase="forward",
        remedy=None,
    ),
    Death(
        # Truth: gradients (448 MiB) of the encoder, frozen since, stay. Blame: requires_grad_(False) without zero_grad. Remedy: set
        # them to None (or fewer rows).
        "a frozen encoder that kept its gradients of the first phase",
        "weights",
        """
        encoder, head = stack(28, 2048), stack(4, 2048)
        first = torch.optim.SGD(encoder.parameters(), 0.01)
        for _ in range(4):
            first.zero_grad()
            encoder(torch.empty(1024, 2048, device="cuda")).square().mean().backward()
            first.step()
        del first
        encoder.requires_grad_(False)
        if R.get("beside") is False:
            encoder.zero_grad()
        second = optimizer_of(head)
        parts = R.get("micro_batches", 1)
        for _ in range(4):
            second.zero_grad()
            for _ in range(parts):
                head(encoder(torch.empty(6144 // parts, 2048, device="cuda"))).square().mean().backward()  # asks
            second.step()
        """,
        line="# asks",
        phase="backward",
    ),
    Death(
        # Truth: eigenvectors of the Hessian, each as large as the model. Blame: the list. Remedy: keep them on the host.
        "eigenvectors of the curvature, each as large as the model",
        "data",
        """
        net = stack(6, 2048)
        optimizer = optimizer_of(net)
        parameters = list(net.parameters())
        def top(count):
            loss = net(torch.empty(128, 2048, device="cuda")).square().mean()
            slopes = torch.autograd.grad(loss, parameters, create_graph=True)
            vectors = []
            for _ in range(count):
                v = [torch.randn_like(p) for p in parameters]  # asks
                for _ in range(3):
                    v = torch.autograd.grad(slopes, parameters, v, retain_graph=True)  # asks
                    for one in vectors:
                        dot = sum((a * b.cuda()).sum() for a, b in zip(v, one))  # asks
                        v = [a - dot * b.cuda() for a, b in zip(v, one)]  # asks
                vectors.append([a.cpu() for a in v] if R.get("data") == "host" else v)
            return vectors
        for index in range(6):
            step(net, optimizer, 256, 2048)
            if index == 3:
                top(12)
        """,
        line="# asks",
        remedy=None,
    ),
]

FOUND_BESIDE_USUAL = [
    Death(
        # The step has ended when the last of three optimizers has stepped.
        "buffers made after a training with several optimizers",
        "data",
        """
        nets = [stack(2, 1024) for _ in range(3)]
        optimizers = [optimizer_of(net) for net in nets]
        for _ in range(4):
            for net, optimizer in zip(nets, optimizers):
                net(torch.empty(256, 1024, device="cuda")).square().mean().backward()
                optimizer.step(); optimizer.zero_grad()
        buffer = torch.zeros(500 * MIB // 4).cuda()
        more = torch.zeros(1000 * MIB // 4).cuda()  # asks
        """,
        line="# asks",
        phase="other",
        remedy=None,
        tried=False,
    ),
    Death(
        "one buffer that is too large, made after a training with several optimizers",
        "data",
        """
        nets = [stack(2, 1024) for _ in range(3)]
        optimizers = [optimizer_of(net) for net in nets]
        for _ in range(4):
            for net, optimizer in zip(nets, optimizers):
                net(torch.empty(256, 1024, device="cuda")).square().mean().backward()
                optimizer.step(); optimizer.zero_grad()
        more = torch.zeros(1600 * MIB // 4).cuda()  # asks
        """,
        line="# asks",
        phase="other",
        remedy=False,
    ),
    Death(
        # The loss keeps the graph of its batch, which had no backward, until the next one has been computed.
        "the loss of a batch that was skipped",
        "leak",
        """
        net = stack(6, 1024)
        optimizer = optimizer_of(net)
        sizes = [20000, 24000, 18000, 28000, 22000]
        for n in range(40):
            loss = net(torch.empty(sizes[n % 5], 1024, device="cuda")).square().mean()  # asks
            if n == 33:
                if R.get("leak") is False: del loss
                continue
            loss.backward()
            optimizer.step(); optimizer.zero_grad()
        """,
        line="# asks",
        phase="forward",
    ),
]
"""Written while the rules were being mended."""
