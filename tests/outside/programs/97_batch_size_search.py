"""A trainer that first searches for the batch size with trial steps and then trains: the trials run with an AdamW of their own, whose wrapper stays in the trainer after the search, so that two moments per weight sit on the device for the rest of the run beside those in use. Source: https://github.com/Lightning-AI/pytorch-lightning/issues/6570 - established that after the batch size finder the state of the AdamW of the trials was not freed because the trainer still held it in _lightning_optimizers; with plain SGD nothing was left over."""
EXPECTED = {"kind": "leak", "holder": ["_wrapped_optimizers", "OptimizerWrapper"], "growing": False}

import torch
import torch.nn as nn
import torch.nn.functional as F


class OptimizerWrapper:
    def __init__(self, optimizer):
        self.optimizer = optimizer
        self.calls = 0

    def step(self, loss):
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()  # <- here
        self.calls += 1


class Trainer:
    def __init__(self, model, lr=1e-4):
        self.model = model.cuda()
        self.lr = lr
        self.batch_size = 8
        self._wrapped_optimizers = None
        self.optimizers = []

    def configure_optimizer(self):
        return torch.optim.AdamW(self.model.parameters(), lr=self.lr)

    def batch(self, size):
        ids = torch.randint(0, 8000, (size, 32), device="cuda")
        return ids, torch.randint(0, 5, (size,), device="cuda")

    def loss(self, size):
        ids, labels = self.batch(size)
        return F.cross_entropy(self.model(ids), labels)

    def scale_batch_size(self, trials=4, steps_per_trial=3):
        saved = {k: v.cpu() for k, v in self.model.state_dict().items()}
        self._wrapped_optimizers = [OptimizerWrapper(self.configure_optimizer())]  # <- here
        size = self.batch_size
        for _ in range(trials):
            try:
                for _ in range(steps_per_trial):
                    self._wrapped_optimizers[0].step(self.loss(size))
            except torch.cuda.OutOfMemoryError:
                size //= 2
                break
            size *= 2
        self.model.load_state_dict(saved)
        self.model.zero_grad(set_to_none=True)
        self.batch_size = size
        print("batch size", size)

    def fit(self, steps):
        self.optimizers = [self.configure_optimizer()]
        optimizer, = self.optimizers
        for step in range(steps):
            loss = self.loss(self.batch_size)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 30 == 29:
                print("step", step + 1, "loss", loss.item())


class Classifier(nn.Module):
    def __init__(self, dim=512):
        super().__init__()
        self.tokens = nn.Embedding(8000, dim)
        self.body = nn.ModuleList(nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim)) for _ in range(5))
        self.cls = nn.Linear(dim, 5)

    def forward(self, ids):
        h = self.tokens(ids).mean(1)
        for block in self.body:
            h = h + block(h)
        return self.cls(h)


if __name__ == "__main__":
    trainer = Trainer(Classifier())
    trainer.scale_batch_size()
    trainer.fit(90)
