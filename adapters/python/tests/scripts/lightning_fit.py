"""Lightning's Trainer, with an evaluation and a checkpoint after each epoch."""

import os
import sys

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from leaving import leave
from weights import tell


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))

    def training_step(self, batch, index):
        inputs, labels = batch
        return nn.functional.cross_entropy(self.layers(inputs), labels)

    def validation_step(self, batch, index):
        self.log("loss", self.training_step(batch, index))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main():
    lightning.seed_everything(0)
    data = TensorDataset(torch.randn(64, 16), torch.randint(4, (64,)))
    callbacks = []
    if "--callback" in sys.argv:
        from paceline.lightning import Callback

        callbacks.append(Callback(os.environ["STUDY"], model="classifier"))
    trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", devices=int(os.environ.get("WORLD_SIZE", 1)), logger=False,
                                enable_progress_bar=False, enable_model_summary=False, default_root_dir=os.getcwd(),
                                callbacks=callbacks, use_distributed_sampler=True)
    model = Classifier()
    trainer.fit(model, DataLoader(data, 8), DataLoader(data, 16))
    tell(model)


if __name__ == "__main__":
    main()
    leave()
