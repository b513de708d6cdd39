"""While a loss was debugged it was wrapped in a spy of unittest.mock, which stayed: a mock notes the arguments of every call. 64 KiB of outputs and their graph a step. Pattern: mocks that record calls."""
EXPECTED = {"kind": "leak", "holder": ["criterion", "call_args_list", "mock_calls", "Mock"], "growing": True}

from unittest import mock

import torch
from torch import nn

criterion = mock.Mock(wraps=nn.functional.mse_loss)  # <- here


def train(model, steps):
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        x = torch.randn(256, 32, device="cuda")
        loss = criterion(model(x), x.repeat(1, 2))  # <- here
        loss.backward()
        opt.step()
        opt.zero_grad()


train(nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 64)).cuda(), 80)
