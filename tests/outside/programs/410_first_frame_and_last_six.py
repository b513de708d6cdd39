"""An object is followed through a video. The memory has the features of the first frame and of the last six, under the frame's number; older ones are deleted. Masks go to the host. Pattern: video segmentation."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn


class Tracker(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.encode, self.mask = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(2 * width, 1, 1)

    def forward(self, frame, memory):
        now = self.encode(frame)
        past = torch.stack([*memory.values()]).mean(0) if memory else torch.zeros_like(now)
        return now, self.mask(torch.cat([now, past], 1))


class Session:
    def __init__(self, tracker):
        self.tracker, self.memory, self.masks = tracker, {}, {}

    @torch.inference_mode()
    def add(self, number, frame):
        features, mask = self.tracker(frame, self.memory)
        self.memory[number] = features
        for old in [one for one in self.memory if 0 < one <= number - 6]:
            del self.memory[old]
        self.masks[number] = (mask > 0).cpu()


session = Session(Tracker().cuda().eval())
for number in range(150):
    session.add(number, torch.zeros(1, 3, 64, 64, device="cuda"))
print(len(session.masks), len(session.memory))
