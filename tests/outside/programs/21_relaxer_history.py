"""A structure relaxation with a hand-written limited-memory quasi-Newton step; the step history is cut to ten entries, yet memory grows with every iteration because positions require grad and the concatenated history carries its whole graph along. Source: https://github.com/TorchSim/torch-sim/pull/559 - the pull request traced the linear growth to state.s_history = torch.cat(...) without detach, every past history staying alive through grad_fn."""
EXPECTED = {"kind": "leak", "holder": ["s_history", "y_history", "positions", "state"], "growing": True}

from dataclasses import dataclass

import torch
from torch import nn

DEVICE = "cuda"
N_ATOMS, KEEP, ITERATIONS = 20_000, 10, 60


@dataclass
class RelaxState:
    positions: torch.Tensor
    s_history: torch.Tensor
    y_history: torch.Tensor


class PairlessPotential(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, 1))
        for p in self.parameters():
            p.requires_grad_(False)

    def forward(self, pos):
        return self.net(pos).sum()


def energy_forces(potential, pos):
    energy = potential(pos)
    (grad,) = torch.autograd.grad(energy, pos)
    return energy.detach(), -grad


def two_loop(forces, s_hist, y_hist):
    q = forces
    stack = []
    for i in reversed(range(s_hist.shape[0])):
        s, y = s_hist[i], y_hist[i]
        alpha = (s * q).sum() / ((s * y).sum() + 1.0)
        q = q - alpha * y
        stack.append((alpha, s, y))
    for alpha, s, y in reversed(stack):
        beta = (y * q).sum() / ((s * y).sum() + 1.0)
        q = q + (alpha - beta) * s
    return 0.01 * q


def relax(potential, correction, opt):
    state = RelaxState(
        positions=torch.randn(N_ATOMS, 3, device=DEVICE).requires_grad_(True),
        s_history=torch.zeros(0, N_ATOMS, 3, device=DEVICE),
        y_history=torch.zeros(0, N_ATOMS, 3, device=DEVICE),
    )
    _, forces = energy_forces(potential, state.positions)
    for it in range(ITERATIONS):
        new_positions = state.positions + two_loop(forces, state.s_history, state.y_history)
        _, new_forces = energy_forces(potential, new_positions)
        s_new = new_positions - state.positions
        y_new = forces - new_forces
        state.s_history = torch.cat([state.s_history, s_new.unsqueeze(0)])[-KEEP:]  # <- here
        state.y_history = torch.cat([state.y_history, y_new.unsqueeze(0)])[-KEEP:]
        state.positions = new_positions  # <- here
        forces = new_forces

        # a small correction net is refitted on the (detached) geometry
        loss = correction(state.positions.detach()).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return state.positions.detach().cpu()


potential = PairlessPotential().to(DEVICE)
correction = nn.Linear(3, 1).to(DEVICE)
final = relax(potential, correction, torch.optim.Adam(correction.parameters(), lr=1e-3))
print("relaxed", tuple(final.shape))
