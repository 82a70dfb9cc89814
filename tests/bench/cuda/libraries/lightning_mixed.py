"""expects: nothing. Lightning's Trainer, 16-mixed on a GPU."""

import lightning as L
import torch
from bits import DEVICE, done
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 3))
        self.losses: list[torch.Tensor] = []

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        loss = nn.functional.cross_entropy(self.body(batch[0]), batch[1])
        self.log("loss", loss)
        self.losses.append(loss.detach())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


model = Classifier()
loader = DataLoader(TensorDataset(torch.randn(64, 20), torch.randint(3, (64,))), batch_size=16)
L.Trainer(
    max_epochs=2,
    accelerator="gpu" if DEVICE == "cuda" else "cpu",
    devices=1,
    precision="16-mixed" if DEVICE == "cuda" else "32-true",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
).fit(model, loader)
done([one.cpu() for one in model.losses], model.cpu())
