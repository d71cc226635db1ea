#!/usr/bin/env python3
"""Loads weights that Paceline wrote into PyTorch's networks and compares what both make of them; `peers/training weights` calls this.

For each network, Paceline trains for an epoch of a few pictures of CIFAR-10 and writes a checkpoint, does one more step, and
tests the network on other pictures. safetensors.torch reads the checkpoint's weights and the last ones, and every tensor
goes into the PyTorch network by its name. PyTorch's loss with the checkpoint, in training mode, on the samples of the step
after it must be that step's loss; its test of the last weights must be Paceline's test. Or, with --run, a training on
CIFAR-10 that is there: its weights and its last test.

    weights_check.py --data cifar10                      all networks
    weights_check.py --data cifar10 resnet50             one
    weights_check.py --data cifar10 --run study-1        a training's folder

Losses must agree to 1e-5 of their value (5e-4 where pictures are resized), and right answers but for one in a thousand, where two classes are all but level.
Exit status: 0 all agree, 1 not, 2 bad usage.
"""

import argparse
import pathlib
import sys
import tempfile

import torch
import torch.nn.functional as F

import runs
import twins
from runs import Failure

LOSS_TOLERANCE = 1e-5
RESIZED_TOLERANCE = 5e-4  # Pillow and Paceline resize with differently rounded weights
ANSWERS_TOLERANCE = 1e-3

RECORDS = 160  # of each file: 800 to train on, 160 to test with
BATCH = 32
STEPS = 5 * RECORDS // BATCH + 1
LEARNING_RATE = 0.01
INPUT = {"inception_v3": (75, 75), "inception_v4": (75, 75)}  # the least that they take


class Comparison:
    """One number of both sides."""

    def __init__(self, what, ours, theirs, tolerance):
        self.apart = abs(theirs - ours) / abs(ours)
        self.agrees = self.apart <= tolerance
        verdict = "" if self.agrees else f" DIFFER: more than {tolerance:g}"
        self.text = f"{what} {ours:.7g} and {theirs:.7g} ({self.apart:.1e} apart){verdict}"


def loss_of(network, output, images, labels):
    return (F.mse_loss(output, images) if network == "image_compression" else F.cross_entropy(output, labels)).item()


def loss_tolerance(size):
    return LOSS_TOLERANCE if size == (runs.SIDE, runs.SIDE) else RESIZED_TOLERANCE


def load(run, weights):
    network, size = run.network()
    twin = twins.build(network, size)
    return network, size, twin, twins.load(twin, weights)


@torch.no_grad()
def check_step(run, data):
    """The step after the first checkpoint."""
    checkpoint = sorted(run.folder.glob("checkpoints/step-*"))[0]
    step = int(checkpoint.name.removeprefix("step-"))
    network, size, twin, _ = load(run, checkpoint / "weights.safetensors")
    pictures, labels = twins.read_cifar10(data, runs.TRAIN_FILES)
    samples = run.samples()[step]
    images = twins.normalise(twins.resize(pictures[samples], size))
    loss = loss_of(network, twin.forward(images, training=True), images, labels[samples])
    ours = next(event for event in run.events("step") if event["step"] == step)
    return Comparison(f"step {step + 1}", ours["loss"], loss, loss_tolerance(size))


@torch.no_grad()
def check_test(run, data):
    """The last test; the line's beginning, loss, right answers."""
    network, size, twin, tensors = load(run, run.weights)
    pictures, labels = twins.read_cifar10(data, runs.TEST_FILES)
    *_, ours = run.events("evaluated")
    if ours["examples"] != len(labels):
        raise Failure(f"{run.folder} was tested on {ours['examples']} pictures, {data} has {len(labels)}")
    loss, correct = 0.0, 0
    for part, answers in zip(pictures.split(100), labels.split(100)):
        images = twins.normalise(twins.resize(part, size))
        output = twin.forward(images, training=False)
        loss += loss_of(network, output, images, answers) * len(part) / len(labels)
        correct += (output.argmax(1) == answers).sum().item() if output.ndim == 2 else 0
    comparisons = [Comparison("test loss", ours["loss"], loss, loss_tolerance(size))]
    if ours.get("correct") is not None:
        comparison = Comparison("right", ours["correct"], correct, ANSWERS_TOLERANCE * len(labels) / ours["correct"])
        comparisons.append(comparison)
    values = sum(tensor.numel() for tensor in tensors.values())
    return f"{network}: {len(tensors)} tensors, {values} values", comparisons


def report(run, data, *more):
    """A line for people; whether all agrees."""
    begin, comparisons = check_test(run, data)
    comparisons = [*more, *comparisons]
    print(f"{begin}; {'; '.join(comparison.text for comparison in comparisons)}", flush=True)
    return all(comparison.agrees for comparison in comparisons)


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help="all unless said")
    parser.add_argument("--data", type=pathlib.Path, default="cifar10", metavar="DIR", help="CIFAR-10, binary version (cifar10)")
    parser.add_argument("--run", type=pathlib.Path, metavar="RUN", help="a training's folder, instead of training here")
    parser.add_argument("--paceline", default=runs.PACELINE, help="the program")
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


def main():
    args = parse_args()
    torch.set_num_threads(args.threads)
    if args.run:
        sys.exit(not report(runs.Run(args.run), args.data))
    agree = True
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        data = runs.write_small_cifar10(args.data, folder / "data", RECORDS)
        for network in args.networks or twins.PLAIN + twins.KERAS:
            height, width = INPUT.get(network, (runs.SIDE, runs.SIDE))
            settings = dict(steps=STEPS, batch=BATCH, lr=LEARNING_RATE, input=f"{height}x{width}", augment="none")
            run = runs.train(args, network, data, folder / network, log_samples=True, eval_every=0, **settings)
            agree &= report(run, data, check_step(run, data))
    sys.exit(not agree)


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"weights_check.py: {failure}")
