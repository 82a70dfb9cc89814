"""Train from a stream of captions and clips which several workers load."""

import itertools
from collections import Counter

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class VideoCaptionDataset(torch.utils.data.IterableDataset):
    def __init__(self, n=96):
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self._data = [
            {"index": i, "caption": torch.randint(0, 30, (6,), generator=generator), "video": torch.randn(12, generator=generator)}
            for i in range(n)
        ]
        self._sample_index = 0

    def _get_data_iter(self):
        return iter(self._data[self._sample_index :])

    def __iter__(self):
        for sample in self._get_data_iter():
            self._sample_index += 1
            yield sample
        self._sample_index = 0


class IterableDatasetPreprocessingWrapper(torch.utils.data.IterableDataset):
    def __init__(self, dataset, id_token=0):
        super().__init__()
        self.dataset = dataset
        self.id_token = id_token

    def __iter__(self):
        worker_info = torch.utils.data.get_worker_info()
        samples = iter(self.dataset)
        if worker_info is not None:
            samples = itertools.islice(samples, worker_info.id, None, worker_info.num_workers)
        for sample in samples:
            caption = torch.cat([torch.tensor([self.id_token]), sample["caption"]])
            yield {"index": sample["index"], "caption": caption, "video": sample["video"].clamp(-3, 3)}


class Transformer(nn.Module):
    def __init__(self, vocab=30, dim=32):
        super().__init__()
        self.embed = nn.EmbeddingBag(vocab, dim)
        self.net = nn.Sequential(nn.Linear(dim + 12, 64), nn.SiLU(), nn.Linear(64, 12))

    def forward(self, noisy, caption):
        return self.net(torch.cat([noisy, self.embed(caption)], dim=1))


dataset = IterableDatasetPreprocessingWrapper(VideoCaptionDataset())
dataloader = torch.utils.data.DataLoader(dataset, batch_size=16, num_workers=2)
model = Transformer()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
step = 0
for epoch in range(2):
    seen = Counter()
    for batch in dataloader:
        noise = torch.randn_like(batch["video"])
        sigma = torch.rand(len(noise), 1)
        pred = model((1 - sigma) * batch["video"] + sigma * noise, batch["caption"])
        loss = F.mse_loss(pred, noise - batch["video"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.update(batch["index"].tolist())
        step += 1
    print(f"epoch {epoch}: {step} steps, loss {loss.item():.4f}, samples {sum(seen.values())}, different ones {len(seen)}")
