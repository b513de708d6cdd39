"""A tiny GPT-2 is trained and every ten steps a preview text is generated with a growing key-value cache; memory is higher in those steps and climbs token by token inside them, then it is back. Source: https://github.com/open-mmlab/mmskeleton/issues/94 - the maintainer established that the higher memory every tenth epoch comes from the extra batch that is evaluated then."""
EXPECTED = {"kind": "innocent"}

import torch
from transformers import GPT2Config, GPT2LMHeadModel

config = GPT2Config(
    vocab_size=2000, n_positions=256, n_embd=128, n_layer=4, n_head=4,
    bos_token_id=0, eos_token_id=0,
)
model = GPT2LMHeadModel(config).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)


def next_tokens(batch, n_new):
    """Generator: yields one column of tokens after the other, with a KV cache."""
    past, token = None, torch.zeros(batch, 1, dtype=torch.long, device="cuda")
    for _ in range(n_new):
        out = model(input_ids=token, past_key_values=past, use_cache=True)
        past = out.past_key_values
        token = out.logits[:, -1:].argmax(-1)
        yield token


def preview(batch=16, n_new=32):
    model.eval()
    with torch.no_grad():
        columns = [t.cpu() for t in next_tokens(batch, n_new)]
    model.train()
    return torch.cat(columns, dim=1)


for step in range(1, 61):
    ids = torch.randint(0, 2000, (8, 128), device="cuda")
    loss = model(input_ids=ids, labels=ids, use_cache=False).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 10 == 0:
        print(step, loss.item(), preview().shape)
