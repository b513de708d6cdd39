"""An asynchronous service batches requests. Each answer is put into a future, and the dictionary of futures is only read, never emptied. 256 KiB a request. Pattern: request queues of inference servers."""
EXPECTED = {"kind": "leak", "holder": ["futures", "waiting", "Batcher", "batcher"], "growing": True, "bytes_per_step": 262_144, "raises_peak": True}

import asyncio

import torch
from torch import nn


class Batcher:
    def __init__(self, model):
        self.model, self.queue, self.waiting = model, asyncio.Queue(), {}

    async def ask(self, number, x):
        self.waiting[number] = asyncio.get_running_loop().create_future()  # <- here
        await self.queue.put((number, x))
        return await self.waiting[number]

    async def work(self):
        while True:
            number, x = await self.queue.get()
            with torch.inference_mode():
                self.waiting[number].set_result(self.model(x))


async def main():
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 1024)).cuda().eval()
    batcher = Batcher(model)
    worker = asyncio.create_task(batcher.work())
    for number in range(150):
        answer = await batcher.ask(number, torch.randn(64, 256, device="cuda"))
        assert answer.shape == (64, 1024)
    worker.cancel()


asyncio.run(main())
