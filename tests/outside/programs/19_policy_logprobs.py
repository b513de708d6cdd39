"""Policy-gradient fine-tuning of a toy model with a very large vocabulary: short episodes train, the first long one dies while the log-probabilities over the whole vocabulary are made in float32 for every position. Source: https://github.com/THUDM/slime/issues/2253 - established there: full-vocabulary fp32 logits over the whole packed sequence are materialised, peak memory scaling with sequence length x vocabulary (also https://github.com/OpenRLHF/OpenRLHF/pull/718)."""
EXPECTED = {"kind": "oom", "memory": "4G", "cause": ["activations"],
            "mentions": [["vocab", "log_softmax", "log-prob", "logprob", "logits", "chunk", "logsumexp"]]}

# Arithmetic: T = 4096 tokens, V = 131072. bf16 logits: T*V*2 = 1 GiB; .float(): 2 GiB more;
# log_softmax: another 2 GiB -> 5 GiB + 128 MiB weights > 4096 MiB. The episodes of 128 tokens
# need 1/32 of that and fit.
import torch
import torch.nn as nn

VOCAB, DIM = 131072, 256


class ToyPolicy(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, DIM, device="cuda", dtype=torch.bfloat16)
        self.mix = nn.Linear(DIM, DIM, device="cuda", dtype=torch.bfloat16)
        self.lm_head = nn.Linear(DIM, VOCAB, bias=False, device="cuda", dtype=torch.bfloat16)

    def forward(self, ids):
        return self.lm_head(torch.tanh(self.mix(self.tok(ids))))


def token_logprobs(logits, ids):
    logp = torch.log_softmax(logits.float(), dim=-1)
    return logp[:-1].gather(-1, ids[1:, None]).squeeze(-1)


policy = ToyPolicy()
opt = torch.optim.SGD(policy.parameters(), lr=1e-5)
episode_lengths = [128, 128, 96, 128, 4096, 128]
for n, length in enumerate(episode_lengths):
    ids = torch.zeros(length, dtype=torch.long, device="cuda")
    advantage = torch.randn(length - 1, device="cuda")
    loss = -(token_logprobs(policy(ids), ids) * advantage).mean()
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    print("episode", n, "length", length, "loss", loss.item())
