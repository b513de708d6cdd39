"""Eight deaths of loops as research writes them: second derivatives, unrolled steps, own optimizers, threads.

Cause and remedy of each were written down before any had been run. A seed draws the half of which only the score was read.
"""

from __future__ import annotations

import random

from deaths import Death

RESEARCH_DEATHS = [
    Death(
        "a penalty on the slope of a critic, with more rows",
        "activations",
        """
        critic = stack(4, 1024)
        optimizer = optimizer_of(critic)
        for rows in (4000, 4000, 4000, 40000, 4000):
            parts = R.get("micro_batches", 1) if rows > 4000 else 1
            for _ in range(parts):
                mixed = torch.empty(rows // parts, 1024, device="cuda", requires_grad=True)
                slope = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)[0]
                ((slope.norm(dim=1) - 1) ** 2).mean().backward()  # asks
            optimizer.step(); optimizer.zero_grad()
        """,
    ),
    Death(
        "eighty unrolled steps of fast weights after two",
        "activations",
        """
        from torch.func import functional_call
        model = stack(2, 2048)
        optimizer = optimizer_of(model)
        parts = R.get("micro_batches", 1)
        for inner in (1, 1, 2, 2, 80):
            for _ in range(parts):
                weights = dict(model.named_parameters())
                x = torch.empty(256 // parts, 2048, device="cuda")
                for _ in range(inner):
                    loss = functional_call(model, weights, (x,)).square().mean()
                    slopes = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
                    weights = {name: one - 0.1 * slope for (name, one), slope in zip(weights.items(), slopes)}  # asks
                functional_call(model, weights, (x,)).square().mean().backward()
            optimizer.step(); optimizer.zero_grad()
        """,
        remedy=False,
    ),
    Death(
        "copies of the gradients for a histogram",
        "leak",
        """
        model = stack(6, 1024)
        optimizer = optimizer_of(model)
        histogram = {}
        for n in range(400):
            model(torch.empty(512, 1024, device="cuda")).square().mean().backward()
            if n % 3 == 0 and R.get("leak") is not False:
                histogram[n] = {name: one.grad.detach().clone() for name, one in model.named_parameters()}  # keeps
            optimizer.step(); optimizer.zero_grad()
        """,
        remedy=None,  # how much the step needs is known only if it was watched
    ),
    Death(
        "a validation that carries its state on with the graph",
        "leak",
        """
        class Reader(nn.Module):
            def __init__(self):
                super().__init__()
                self.cell, self.head = nn.GRUCell(512, 512), nn.Linear(512, 512)
            def forward(self, x, state):
                state = self.cell(x, state)
                return self.head(state), state
        model = Reader().cuda()
        optimizer = optimizer_of(model)
        for _ in range(4):
            state = torch.zeros(1024, 512, device="cuda")
            for _ in range(4):
                out, state = model(torch.empty(1024, 512, device="cuda"), state)
            out.square().mean().backward()
            optimizer.step(); optimizer.zero_grad()
        model.eval()
        state = torch.zeros(4096, 512, device="cuda")
        for _ in range(200):
            out, state = model(torch.empty(4096, 512, device="cuda"), state)  # keeps
            if R.get("leak") is False:
                state = state.detach()
        """,
    ),
    Death(
        "an own optimizer with weights in 32 bits beside those in 16",
        "optimizer",
        """
        class Mixed(torch.optim.Optimizer):
            def __init__(self, parameters):
                super().__init__(parameters, {})
            @torch.no_grad()
            def step(self):
                for group in self.param_groups:
                    for one in group["params"]:
                        state = self.state[one]
                        if not state:
                            state["master"] = one.float()  # asks
                            state["mean"] = torch.zeros_like(state["master"])
                            state["square"] = torch.zeros_like(state["master"])
                        slope = one.grad.float()
                        state["mean"].lerp_(slope, 0.1)
                        state["square"].lerp_(slope.square(), 0.01)
                        state["master"].addcdiv_(state["mean"], state["square"].sqrt().add_(1e-8), value=-0.001)
                        one.copy_(state["master"])
        model = stack(8, 4096).bfloat16()
        optimizer = torch.optim.SGD(model.parameters(), 0.01) if R.get("optimizer") else Mixed(model.parameters())
        for _ in range(3):
            model(torch.empty(64, 4096, device="cuda", dtype=torch.bfloat16)).square().mean().backward()
            optimizer.step(); optimizer.zero_grad()
        """,
        phase="optimizer",
    ),
    Death(
        "a limit that comes from the environment",
        "limit",
        """
        if R.get("limit") is False:
            torch.cuda.set_per_process_memory_fraction(1.0)
        model = stack(4, 1024)
        optimizer = optimizer_of(model)
        for rows in (4000, 4000, 4000, 40000, 4000):
            step(model, optimizer, rows, 1024)  # asks
        """,
        env={"PYTORCH_CUDA_ALLOC_CONF": "per_process_memory_fraction:0.4"},
    ),
    Death(
        "a perturbation of each sample on the card",
        "data",
        """
        model = stack(4, 1024)
        optimizer = optimizer_of(model)
        device = "cpu" if R.get("data") == "host" else "cuda"
        deltas = torch.zeros(240000, 1024, device=device)  # keeps
        parts = R.get("micro_batches", 1)
        for n in range(6):
            for part in range(parts):
                rows = slice((n * parts + part) * (20000 // parts), (n * parts + part + 1) * (20000 // parts))
                x = (torch.empty(20000 // parts, 1024, device="cuda") + deltas[rows].cuda()).requires_grad_()
                model(x).square().mean().backward()  # asks
                deltas[rows] += x.grad.sign().to(device)
            optimizer.step(); optimizer.zero_grad()
        """,
    ),
    Death(
        "an evaluation in a thread, with rows of its own",
        "activations",
        """
        from concurrent.futures import ThreadPoolExecutor
        model = stack(4, 1024)
        optimizer = optimizer_of(model)
        def evaluate():
            with torch.no_grad():
                for _ in range(3):
                    model(torch.empty(140000, 1024, device="cuda"))  # asks
        with ThreadPoolExecutor(1) as pool:
            for n in range(8):
                step(model, optimizer, 4000, 1024)
                if n == 4:
                    pool.submit(evaluate).result()
        """,
        line="# asks",
        remedy=False,
    ),
]
UNSEEN = frozenset(random.Random(20261129).sample([one.name for one in RESEARCH_DEATHS], 4))
"""Names of the deaths of which only the score was read."""
