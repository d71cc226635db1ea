#!/usr/bin/env python3
"""Trains MobileNetV2 on CIFAR-10 in PyTorch with the recipe of accuracy.py, seed by seed, on a CPU or a GPU.

    torch_cifar10.py --data cifar10 --weights 'start/{seed}/weights.safetensors' --seeds 1,2 --device cuda

prints a JSON line after each epoch: seed, epoch, steps, mean loss of the epoch's steps, test loss, test accuracy. Each seed starts from the
weights that are named for it; order and augmentation are drawn from the seed by PyTorch. float32, no TF32. The pictures
stay on the device as bytes, and are cropped and flipped there, many steps at once. On a GPU forward and backward are one
CUDA graph; should it refuse, the program starts itself anew without.
"""

import argparse
import json
import os
import sys
import time

import torch
import torch.nn.functional as F

import runs
import twins
from recipe import SAMPLES, Recipe
from runs import Failure

NETWORK = "mobilenet_v2"
PAD = 4
PREPARED = 64  # steps whose pictures are made at once


class Pictures:
    """The training set on the device, padded with black, in a seed's order."""

    def __init__(self, data, device):
        pictures, labels = twins.read_cifar10(data, runs.TRAIN_FILES)
        self.padded, self.labels = F.pad(pictures, [PAD] * 4).to(device), labels.to(device)
        self.channels = torch.arange(3, device=device).view(1, 3, 1, 1)
        self.line = torch.arange(runs.SIDE, device=device)

    def start(self, seed, epochs):
        self.draw = torch.Generator(self.padded.device).manual_seed(seed)
        count, device = len(self.labels), self.padded.device
        orders = [torch.randperm(count, generator=self.draw, device=device) for _ in range(int(epochs) + 1)]
        self.order = torch.cat(orders)  # an endless stream, as Paceline's: a batch may reach into the next epoch

    def take(self, first, count):
        """Samples from a position of the stream on, each cropped and flipped at random."""
        index = self.order[first : first + count]
        down, across = (self.below(2 * PAD + 1, count).view(-1, 1) for _ in range(2))
        flipped = self.below(2, count).view(-1, 1).bool()
        rows = (down + self.line).view(-1, 1, runs.SIDE, 1)
        columns = (across + torch.where(flipped, self.line.flip(0), self.line)).view(-1, 1, 1, runs.SIDE)
        crops = self.padded[index.view(-1, 1, 1, 1), self.channels, rows, columns]
        return twins.normalise(crops), self.labels[index]

    def below(self, limit, count):
        return torch.randint(limit, (count,), generator=self.draw, device=self.padded.device)


class Trainer:
    """The network on its device, and one step of it."""

    def __init__(self, args, recipe):
        self.device, self.recipe = torch.device(args.device), recipe
        self.twin = twins.Plain(NETWORK)
        self.model = self.twin.model.to(self.device)
        self.statistics = twins.Statistics(self.twin, recipe.batch)
        self.images = torch.zeros(recipe.batch, 3, runs.SIDE, runs.SIDE, device=self.device)
        self.labels = torch.zeros(recipe.batch, dtype=torch.long, device=self.device)
        self.graph = None
        self.model.train()
        if args.graph == "yes" and self.device.type == "cuda":
            self.capture()

    def capture(self):
        """Records forward and backward once, after three rounds on another stream, as PyTorch's notes on graphs ask."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.differentiate()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        self.model.zero_grad(set_to_none=True)
        with torch.cuda.graph(graph):
            self.loss = self.differentiate()
        self.graph = graph

    def differentiate(self):
        self.model.zero_grad(set_to_none=True)
        loss = F.cross_entropy(self.model(self.images), self.labels)
        loss.backward()
        return loss.detach()

    def start(self, weights):
        twins.load(self.twin, weights)
        self.statistics.reset()
        recipe = self.recipe
        options = dict(lr=recipe.lr, momentum=recipe.momentum, weight_decay=recipe.weight_decay, fused=True)
        self.optimizer = torch.optim.SGD(self.model.parameters(), **options)
        self.model.train()

    def step(self, step, images, labels):
        """Trains on a batch; its loss, on the device."""
        self.images.copy_(images)
        self.labels.copy_(labels)
        if self.graph:
            self.graph.replay()
        else:
            self.loss = self.differentiate()
        self.optimizer.param_groups[0]["lr"] = self.recipe.rate(step)
        self.optimizer.step()
        return self.loss

    @torch.no_grad()
    def test(self, pictures, labels):
        loss, correct = 0.0, 0
        with self.statistics.divided_by_n():
            for part, answers in zip(pictures.split(1000), labels.split(1000)):
                output = self.twin.forward(twins.normalise(part), training=False)
                loss += F.cross_entropy(output, answers, reduction="sum").item()
                correct += (output.argmax(1) == answers).sum().item()
        self.model.train()
        return loss / len(labels), correct / len(labels)


def run_seed(trainer, pictures, tests, seed, args):
    recipe, began = trainer.recipe, time.monotonic()
    trainer.start(args.weights.replace("{seed}", str(seed)))
    pictures.start(seed, recipe.epochs)
    total, losses, counted = recipe.steps(recipe.epochs), torch.zeros((), device=trainer.device), 0
    for step in range(total):
        within = step % PREPARED
        if within == 0:
            ahead = min(PREPARED, total - step)
            prepared = zip(*(part.split(recipe.batch) for part in pictures.take(step * recipe.batch, ahead * recipe.batch)))
        losses += trainer.step(step, *next(prepared))
        counted += 1
        if recipe.ends_epoch(step + 1):
            test_loss, accuracy = trainer.test(*tests)
            point = {"seed": seed, "epoch": (step + 1) * recipe.batch / SAMPLES, "steps": step + 1}
            point |= {"train_loss": losses.item() / counted, "test_loss": test_loss, "test_accuracy": accuracy}
            print(json.dumps({**point, "seconds": time.monotonic() - began}), flush=True)
            losses.zero_()
            counted = 0


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="cifar10", metavar="DIR")
    parser.add_argument("--weights", required=True, metavar="FILE", help="where a seed starts; {seed} stands for its number")
    parser.add_argument("--seeds", required=True, help="1,2,3")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=1, help="of the CPU (1)")
    parser.add_argument("--graph", choices=["yes", "no"], default="yes", help="a CUDA graph, where the device is a GPU")
    Recipe.add_options(parser)
    return parser.parse_args()


def main():
    args = parse_args()
    torch.set_num_threads(args.threads)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    try:
        trainer = Trainer(args, Recipe.of(args))
    except RuntimeError as error:
        if args.graph == "no":
            raise
        print(f"torch_cifar10.py: no CUDA graph: {error}", file=sys.stderr, flush=True)
        os.execv(sys.executable, [sys.executable, *sys.argv, "--graph", "no"])
    pictures = Pictures(args.data, trainer.device)
    tests = [part.to(trainer.device) for part in twins.read_cifar10(args.data, runs.TEST_FILES)]
    for seed in args.seeds.split(","):
        run_seed(trainer, pictures, tests, int(seed), args)


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"torch_cifar10.py: {failure}")
