"""A language-model-like script, all at module level, resumes from a checkpoint mapped to the GPU; it trains from scratch on this card, but after resuming it dies in the first backward pass, because the global name checkpoint still holds a second copy of the weights. Source: https://github.com/karpathy/nanoGPT/pull/236 - established there: the checkpoint takes up memory after load_state_dict; setting it to None (or loading to the CPU) solves it."""
EXPECTED = {"kind": "oom", "memory": "6G", "cause": ["leak"], "holder": ["checkpoint"], "growing": False,
            "mentions": [["checkpoint"]]}

# Arithmetic: W = 13 layers x 100 MiB = 1300 MiB. checkpoint = weights + 2 Adam moments = 3 W; the
# optimizer takes the moment tensors over without copying. With the model: 4 W = 5200 MiB (fits,
# usable >= 5644). Backward adds gradients: 5 W = 6500 MiB > 6144: dies. Without the kept copy it
# would be 4 W = 5200 MiB plus 2 x 100 MiB for the (foreach=False) update: fits.
import torch
import torch.nn as nn

width, n_layer, device = 5120, 13, "cuda"
init_from = "resume"


def read_checkpoint():
    """Stands for torch.load('ckpt.pt', map_location=device)."""
    names = [f"{i}.weight" for i in range(n_layer)]
    new = lambda: torch.zeros(width, width, device=device)
    return {
        "model": {name: new() for name in names},
        "moments": {i: {"step": torch.tensor(2000.0), "exp_avg": new(), "exp_avg_sq": new()} for i in range(n_layer)},
        "iter_num": 2000,
    }


iter_num = 0
if init_from == "resume":
    checkpoint = read_checkpoint()  # <- here
    iter_num = checkpoint["iter_num"]

model = nn.Sequential(*[nn.Linear(width, width, bias=False, device=device) for _ in range(n_layer)])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)

if init_from == "resume":
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict({"state": checkpoint["moments"], "param_groups": optimizer.state_dict()["param_groups"]})
print("resumed at", iter_num, "with", torch.cuda.memory_allocated() >> 20, "MiB")

for it in range(iter_num, iter_num + 40):
    x = torch.randn(4, width, device=device)
    loss = model(x).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    print(it, loss.item())
