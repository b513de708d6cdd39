"""Twelve deaths of 2026-11-29 with the cause of each and a remedy that survives, written down before any of them had been run.

A hash of the name draws the half: faults were mended against those that are not ``is_unseen``. ``python tests/oom/table.py`` with
words runs them.
"""

from __future__ import annotations

import hashlib

from deaths import Death
from held_out import GPT


def is_unseen(death: Death) -> bool:
    """Whether only the score of this death was read."""
    return hashlib.sha256(death.name.encode()).digest()[0] % 2 == 1


CUSTOM_LOOP_DEATHS = [
    Death(
        "a state that the optimizer makes when it is built",
        "optimizer",
        """
        model = stack(10, 4096)
        optimizer = optimizer_of(model) if R.get("optimizer") else torch.optim.Adagrad(model.parameters())
        for _ in range(3):
            step(model, optimizer, 64, 4096)  # asks
        """,
        phase="backward",
    ),
    Death(
        "a validation loop that keeps all of its scores",
        "leak",
        """
        model = nn.Sequential(stack(2, 1024), nn.Linear(1024, 20000).cuda())
        optimizer = optimizer_of(model)
        for _ in range(3):
            step(model, optimizer, 64, 1024)
        model.eval()
        scores = []
        with torch.no_grad():
            for _ in range(60):
                out = model(torch.empty(512, 1024, device="cuda"))
                scores.append(out if R.get("leak") is not False else out.argmax(-1))  # keeps
        """,
        line="# keeps",
        phase="eval",
        remedy=False,
    ),
    Death(
        "log-probabilities by logsumexp and gather",
        "activations",
        """
        model = nn.Sequential(nn.Embedding(30000, 256), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 30000)).cuda()
        optimizer = optimizer_of(model)
        parts = R.get("micro_batches", 1)
        for _ in range(3):
            for _ in range(parts):
                ids = torch.zeros(16 // parts, 256, dtype=torch.long, device="cuda")
                logits = model(ids)
                chosen = logits.gather(-1, ids[..., None])[..., 0] - logits.logsumexp(-1)
                (-(chosen.exp() * chosen.detach()).mean()).backward()  # asks
            optimizer.step(); optimizer.zero_grad()
        """,
    ),
    Death(
        "one checkpoint around the whole model",
        "activations",
        """
        from torch.utils.checkpoint import checkpoint
        model = stack(8, 1024)
        optimizer = optimizer_of(model)
        parts = R.get("micro_batches", 1)
        for _ in range(3):
            for _ in range(parts):
                x = torch.empty(40000 // parts, 1024, device="cuda", requires_grad=True)
                checkpoint(model, x, use_reentrant=False).square().mean().backward()  # asks
            optimizer.step(); optimizer.zero_grad()
        """,
        phase="backward",
        remedy=False,
    ),
    Death(
        "an average of the weights in a dict, made in the third step",
        "weights",
        """
        model = stack(7, 4096)
        optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
        average = {}
        for n in range(6):
            step(model, optimizer, 64, 4096)
            if n == 2 and R.get("beside") is not False:
                for name, one in model.state_dict().items():
                    average[name] = one.clone()  # asks
        """,
    ),
    Death(
        "a generator and a critic, each with Adam",
        "optimizer",
        """
        generator, critic = stack(4, 4096), stack(4, 4096)
        optimizers = [optimizer_of(generator), optimizer_of(critic)]
        for _ in range(3):
            made = generator(torch.empty(32, 4096, device="cuda"))
            critic(made.detach()).mean().backward()
            optimizers[1].step(); optimizers[1].zero_grad()
            critic(generator(torch.empty(32, 4096, device="cuda"))).mean().backward()
            optimizers[0].step(); optimizers[0].zero_grad()  # asks
        """,
        phase="optimizer",
    ),
    Death(
        "a forward hook that collects outputs with their graphs",
        "leak",
        """
        model = stack(6, 1024)
        seen = []
        if R.get("leak") is not False:
            model[3].register_forward_hook(lambda module, given, out: seen.append(out))  # keeps
        optimizer = optimizer_of(model)
        for _ in range(60):
            step(model, optimizer, 6000, 1024)
        """,
        line="# keeps",
    ),
    Death(
        "one document is eight times as long as the others",
        "activations",
        GPT
        + """
        model = gpt(n_layer=6, n_embd=512, n_head=8, vocab_size=8000, n_positions=4096).cuda()
        optimizer = optimizer_of(model)
        parts = R.get("micro_batches", 1)
        for length in (256, 256, 384, 320, 2560, 256):
            length = min(length, R.get("length", length))
            split = parts if length > 384 else 1
            for _ in range(split):
                ids = torch.zeros(4 // min(split, 4), length, dtype=torch.long, device="cuda")
                model(input_ids=ids, labels=ids).loss.backward()  # asks
            optimizer.step(); optimizer.zero_grad()
        """,
    ),
    Death(
        "lengths that grow a little in each step, and notes of each",
        "fragmentation",
        """
        notes = []
        for n in range(13):
            whole = megabytes(60 + 4 * n)
            del whole
            part = megabytes(57 + 4 * n)
            notes.append(megabytes(3))
            del part
        last = megabytes(700)  # asks
        """,
        remedy=False,
    ),
    Death(
        "a running mean of losses that keeps every graph",
        "leak",
        """
        model = stack(6, 1024)
        optimizer = optimizer_of(model)
        mean = torch.zeros((), device="cuda")
        for _ in range(30):
            loss = model(torch.empty(6000, 1024, device="cuda")).square().mean()
            mean = 0.9 * mean + 0.1 * (loss if R.get("leak") is not False else loss.detach())  # keeps
            loss.backward(retain_graph=True)
            optimizer.step(); optimizer.zero_grad()
        """,
        line="",
    ),
    Death(
        "one-hot labels of very many classes",
        "activations",
        """
        model = nn.Sequential(stack(2, 512), nn.Linear(512, 50000).cuda())
        optimizer = optimizer_of(model)
        parts = R.get("micro_batches", 1)
        for rows in (256, 256, 256, 3072, 256):
            split = parts if rows > 256 else 1
            for _ in range(split):
                labels = torch.zeros(rows // split, dtype=torch.long, device="cuda")
                aims = nn.functional.one_hot(labels, 50000)  # asks
                (model(torch.empty(rows // split, 512, device="cuda")).softmax(-1) - aims).square().mean().backward()
            optimizer.step(); optimizer.zero_grad()
        """,
        remedy=False,
    ),
    Death(
        "a second device that has no room for its half",
        "activations",
        """
        first = stack(2, 1024)
        second = nn.Sequential(*[nn.Sequential(nn.Linear(1024, 1024), nn.ReLU()) for _ in range(8)]).to("cuda:1")
        optimizer = optimizer_of(nn.ModuleList([first, second]))
        parts = R.get("micro_batches", 1)
        for _ in range(3):
            for _ in range(parts):
                x = first(torch.empty(40000 // parts, 1024, device="cuda:0"))
                second(x.to("cuda:1")).square().mean().backward()  # asks
            optimizer.step(); optimizer.zero_grad()
        """,
        env={"EMULATED_GPU_DEVICES": "2"},
    ),
]
