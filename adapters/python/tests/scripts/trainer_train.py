"""Hugging Face's Trainer, with accumulation, an evaluation and a checkpoint."""

import os
import sys

import torch
from torch import nn
from transformers import Trainer, TrainingArguments
from leaving import leave
from weights import tell


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))

    def forward(self, inputs, labels=None):
        logits = self.layers(inputs)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def main():
    torch.manual_seed(0)
    data = [{"inputs": torch.randn(16), "labels": torch.tensor(number % 4)} for number in range(96)]
    options = TrainingArguments(
        output_dir="checkpoints", per_device_train_batch_size=4, gradient_accumulation_steps=2, num_train_epochs=1,
        eval_strategy="steps", eval_steps=3, save_strategy="steps", save_steps=3, report_to=[], use_cpu=True, disable_tqdm=True,
        remove_unused_columns=False, label_names=["labels"])
    callbacks = []
    if "--callback" in sys.argv:
        from paceline.transformers import Callback

        callbacks.append(Callback(os.environ["STUDY"], model="classifier"))
    model = Classifier()
    Trainer(model, options, train_dataset=data, eval_dataset=data[:16], callbacks=callbacks).train()
    tell(model)


if __name__ == "__main__":
    main()
    leave()
