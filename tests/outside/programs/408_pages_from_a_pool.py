"""A language model is served: the keys and values of all requests lie in one pool of pages. A request takes pages as it gets longer and gives them back at its end. Pattern: paged caches."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn

PAGES, TOKENS, WIDTH = 64, 8, 256


class Pool:
    def __init__(self):
        self.memory = torch.zeros(PAGES, TOKENS, 2, WIDTH, device="cuda")
        self.free = list(range(PAGES))

    def take(self):
        return self.free.pop()


class Request:
    def __init__(self, length):
        self.length, self.pages, self.done = length, [], 0


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.kv, self.head = nn.Embedding(300, WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, 300)

    def forward(self, token, request, pool):
        h = self.embed(token)
        if request.done % TOKENS == 0:
            request.pages.append(pool.take())
        pool.memory[request.pages[-1], request.done % TOKENS] = self.kv(h).view(2, WIDTH)
        keys, values = pool.memory[request.pages].flatten(0, 1).unbind(1)
        return self.head((h @ keys.T).softmax(-1) @ values)


pool, model = Pool(), Decoder().cuda().eval()
waiting, running, answered = [Request(10 + 7 * (n % 5)) for n in range(24)], [], 0
with torch.inference_mode():
    while waiting or running:
        while waiting and len(running) < 6:
            running.append(waiting.pop())
        for request in list(running):
            model(torch.zeros(1, dtype=torch.long, device="cuda"), request, pool)
            request.done += 1
            if request.done == request.length:
                pool.free += request.pages
                running.remove(request)
                answered += 1
print(answered)
