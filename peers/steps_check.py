#!/usr/bin/env python3
"""Trains in Paceline and in PyTorch from the same weights on the same batches and compares each step's loss; `peers/training
steps` calls this.

Paceline trains 200 steps on CIFAR-10 as it is (no augmentation): 50 of warm-up, 50 at the full rate, 50 at a tenth, 50 at a
hundredth. PyTorch gets the samples of each step from samples-0.txt, and does 50 steps twice:

- the first 50, from the weights that Paceline starts with. The first loss must agree to 1e-4. An untrained network is
  chaotic: what rounding does to the first gradient, each step multiplies, until two runs that add in different orders have
  only the statistics of their losses in common. So PyTorch runs twice, in NCHW and in NHWC, and Paceline must be no
  farther from PyTorch than twice what PyTorch is from itself, as root mean square over the steps.
- the last 50, from Paceline's checkpoint, weights and velocities. There the network is calmer and its steps are small, and
  each loss must agree to 5e-5.

Running statistics are compared apart from that, over 20 steps at rate 0, in which weights stay as they are: to 1e-4 of their norm.

docs/accuracy.md has the figures, and what mistakes these tolerances catch. Exit status: 0 all agree, 1 not, 2 bad usage.
"""

import argparse
import json
import math
import pathlib
import sys
import tempfile

import torch
import torch.nn.functional as F

import runs
import twins
from runs import Failure

FIRST_TOLERANCE = 1e-4
LATE_TOLERANCE = 5e-5
CHAOS_TOLERANCE = 2.0
STATISTICS_TOLERANCE = 1e-4

NETWORKS = ("resnet50", "mobilenet_v2")
STEPS = 200
COMPARED = 50
STILL = 20  # steps at rate 0
BATCH = 64
RECORDS = STEPS * BATCH // len(runs.TRAIN_FILES)  # of each file: every sample is used once
SEED = 1
LEARNING_RATE = 0.01
MOMENTUM = 0.9
WEIGHT_DECAY = 2e-2  # forty times the usual, so that it shows in 50 small steps
SHOWN = (1, 2, 5, 10, 20, 50)


def rate(step):
    """What `--warmup-epochs 0.25 --schedule step` makes of the learning rate."""
    if step < STEPS // 4:
        return LEARNING_RATE * (step + 1) / (STEPS // 4)
    done = step / STEPS
    return LEARNING_RATE * (1 if done < 0.5 else 0.1 if done < 0.75 else 0.01)


class Peer:
    """PyTorch, on the samples that Paceline used."""

    def __init__(self, network, data):
        self.network = network
        self.pictures, self.labels = twins.read_cifar10(data, runs.TRAIN_FILES)

    def images(self, samples, layout=torch.contiguous_format):
        return twins.normalise(self.pictures[samples]).contiguous(memory_format=layout)

    @torch.no_grad()
    def statistics(self, samples, start):
        """How far running statistics are from those of a run that learned nothing: variances of a layer in parts of their
        norm, means in parts of that of the standard deviations, since many are zero but for rounding."""
        twin = twins.Plain(self.network)
        theirs = twins.load(twin, start)
        statistics = twins.Statistics(twin, BATCH)
        for step, batch in enumerate(samples):
            twin.forward(self.images(batch), training=True)
            statistics.update(step)
        statistics.use()
        ours, apart = twin.tensors(), []
        for name, variance in theirs.items():
            if name.endswith("/moving_variance"):
                mean = name.replace("variance", "mean")
                apart.append((ours[name] - variance).norm() / variance.norm())
                apart.append((ours[mean] - theirs[mean]).norm() / variance.sqrt().norm())
        return float(max(apart))

    def losses(self, samples, first, weights, state=None, layout=torch.contiguous_format):
        """Of 50 steps from step `first` on."""
        twin = twins.Plain(self.network)
        twins.load(twin, weights)
        twin.model.to(memory_format=layout)
        optimizer = torch.optim.SGD(twin.model.parameters(), momentum=MOMENTUM, weight_decay=WEIGHT_DECAY, lr=0.0)
        if state:
            twins.load_momentum(twin, optimizer, state)
        losses = []
        for step in range(first, first + COMPARED):
            images, labels = self.images(samples[step], layout), self.labels[samples[step]]
            optimizer.param_groups[0]["lr"] = rate(step)
            optimizer.zero_grad()
            loss = F.cross_entropy(twin.forward(images, training=True), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses


def apart(losses, others):
    return [abs(a - b) / abs(b) for a, b in zip(losses, others, strict=True)]


def root_mean_square(values):
    return math.sqrt(sum(value * value for value in values) / len(values))


def describe(differences):
    return ", ".join(f"{step}: {max(differences[:step]):.0e}" for step in SHOWN)


def check(args, network, folder):
    """Trains and compares one network; what was measured, and whether all agrees."""
    data = runs.write_small_cifar10(args.data, folder / "data", RECORDS)
    common = dict(batch=BATCH, seed=SEED, augment="none", eval_every=0)
    # Nothing is learned at rate 0, so these weights are the ones before training.
    start = runs.train(args, network, data, folder / "start", steps=STILL, lr=0, log_samples=True, **common)
    learning = dict(lr=LEARNING_RATE, schedule="step", warmup_epochs=0.25, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)
    logging = dict(log_samples=True, checkpoint_every=COMPARED / STEPS)
    run = runs.train(args, network, data, folder / "run", steps=STEPS, **common, **learning, **logging)
    ours = [event["loss"] for event in run.events("step")]
    peer, samples = Peer(network, data), run.samples()

    moving = peer.statistics(start.samples(), start.weights)
    first = peer.losses(samples, 0, start.weights)
    other = peer.losses(samples, 0, start.weights, layout=torch.channels_last)
    late = STEPS - COMPARED
    checkpoint = run.folder / f"checkpoints/step-{late:08}"
    last = peer.losses(samples, late, checkpoint / "weights.safetensors", checkpoint / "state.safetensors")

    early, chaos, late = apart(ours[:COMPARED], first), apart(other, first), apart(ours[-COMPARED:], last)
    spread, own = root_mean_square(early), root_mean_square(chaos)
    verdicts = {
        f"running statistics {moving:.1e} apart at most (at most {STATISTICS_TOLERANCE:g})": moving <= STATISTICS_TOLERANCE,
        f"first loss {ours[0]:.7g} and {first[0]:.7g}, {early[0]:.1e} apart (at most {FIRST_TOLERANCE:g})":
            early[0] <= FIRST_TOLERANCE,
        f"first {COMPARED} losses {spread:.3f} apart, PyTorch from itself {own:.3f} (at most {CHAOS_TOLERANCE:g} times)":
            spread <= CHAOS_TOLERANCE * own,
        f"last {COMPARED} losses {max(late):.1e} apart at most (at most {LATE_TOLERANCE:g})":
            max(late) <= LATE_TOLERANCE,
    }
    print(f"{network}: loss {ours[0]:.3f} at step 1, {ours[COMPARED - 1]:.3f} at {COMPARED}, {ours[-1]:.3f} at {STEPS}")
    for text, agrees in verdicts.items():
        print(f"  {'agree' if agrees else 'DIFFER'}: {text}")
    print(f"  most apart up to step, first {COMPARED}, both:           {describe(early)}")
    print(f"  most apart up to step, first {COMPARED}, PyTorch itself: {describe(chaos)}")
    print(f"  most apart up to step, last {COMPARED}:                  {describe(late)}", flush=True)
    found = {"paceline": ours, "torch_first": first, "torch_first_nhwc": other, "torch_last": last}
    return found, all(verdicts.values())


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help=f"of {', '.join(NETWORKS)}; both unless said")
    parser.add_argument("--data", type=pathlib.Path, default="cifar10", metavar="DIR", help="CIFAR-10, binary version (cifar10)")
    parser.add_argument("--paceline", default=runs.PACELINE, help="the program")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="every loss")
    args = parser.parse_args()
    for network in args.networks:
        if network not in NETWORKS:
            parser.error(f"unknown network '{network}'; there are {', '.join(NETWORKS)}")
    return args


def main():
    args = parse_args()
    torch.set_num_threads(args.threads)
    agree, all_found = True, {}
    for network in args.networks or NETWORKS:
        with tempfile.TemporaryDirectory() as folder:
            all_found[network], agrees = check(args, network, pathlib.Path(folder))
        agree &= agrees
    if args.json:
        args.json.write_text(json.dumps(all_found) + "\n")
    sys.exit(not agree)


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"steps_check.py: {failure}")
