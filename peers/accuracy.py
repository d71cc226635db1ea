#!/usr/bin/env python3
"""Trains one network from several seeds in Paceline and in PyTorch, with one recipe, and compares test accuracies; `peers/training
accuracy` calls this.

For each seed both start from the same weights: those that Paceline draws. Orders and augmentation are drawn by each for
itself. Paceline runs several seeds at a time on the CPU while PyTorch goes through them on --device, float32 (no TF32), in a CUDA
graph where there is a GPU. Exit status: 0 the 95 % interval of the mean difference holds 0, 1 not, 2 bad usage.
"""

import argparse
import json
import math
import pathlib
import statistics
import subprocess
import sys
import threading
import time

import torch
import torch.nn.functional as F

import runs
import twins
from processes import tied
from runs import Failure

MOMENTUM = 0.9
WEIGHT_DECAY = 5e-4
PAD = 4
# Two-sided 95 % of Student's t by degrees of freedom.
T95 = [math.nan, 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131]


class Recipe:
    def __init__(self, options, samples):
        self.batch, self.rate = options.batch, options.lr
        self.steps = math.ceil(options.epochs * samples / self.batch)
        self.warmup = math.ceil(options.warmup_epochs * samples / self.batch)
        self.per_epoch = samples / self.batch

    def learning_rate(self, step):
        """--schedule cosine --warmup-epochs, as Paceline has them."""
        if step < self.warmup:
            return self.rate * (step + 1) / self.warmup
        done = (step - self.warmup) / max(self.steps - self.warmup, 1)
        return self.rate * 0.5 * (1 + math.cos(math.pi * done))

    def ends_epoch(self, done):
        """Whether a step completes an epoch, or the run."""
        return done == self.steps or math.floor(done / self.per_epoch) > math.floor((done - 1) / self.per_epoch)


class Step:
    """One step of PyTorch: crop and flip, forward, backward, update. On a GPU it is captured once and replayed."""

    def __init__(self, twin, padded, labels, batch, device):
        self.model, self.padded, self.labels = twin.model.train(), padded, labels
        self.parameters = list(twin.model.parameters())
        self.velocity = [torch.zeros_like(p) for p in self.parameters]
        self.batch, self.device = batch, device
        self.index = torch.zeros(batch, dtype=torch.long, device=device)
        self.corner = torch.zeros(2, batch, dtype=torch.long, device=device)
        self.flip = torch.zeros(batch, dtype=torch.bool, device=device)
        self.rate = torch.zeros((), device=device)
        self.side = torch.arange(runs.SIDE, device=device)
        self.loss = torch.zeros((), device=device)
        self.mean, self.deviation = (v.to(device).view(3, 1, 1) for v in (twins.MEAN, twins.DEVIATION))
        self.channels = torch.arange(3, device=device)[None, :, None, None]
        self.graph = self.capture() if device.type == "cuda" else None

    def pictures(self):
        rows = self.corner[0][:, None] + self.side
        columns = self.corner[1][:, None] + torch.where(self.flip[:, None], self.side.flip(0), self.side)
        at = (self.index[:, None, None, None], self.channels, rows[:, None, :, None], columns[:, None, None, :])
        return (self.padded[at].float() / 255 - self.mean) / self.deviation

    def run(self):
        loss = F.cross_entropy(self.model(self.pictures()), self.labels[self.index])
        gradients = torch.autograd.grad(loss, self.parameters)
        with torch.no_grad():
            gradients = torch._foreach_add(gradients, self.parameters, alpha=WEIGHT_DECAY)
            torch._foreach_mul_(self.velocity, MOMENTUM)
            torch._foreach_add_(self.velocity, gradients)
            torch._foreach_sub_(self.parameters, torch._foreach_mul(self.velocity, self.rate))
        self.loss.copy_(loss.detach())

    def capture(self):
        state = [t.detach().clone() for t in self.state()]
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                self.run()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.run()
        with torch.no_grad():
            for tensor, was in zip(self.state(), state):
                tensor.copy_(was)
        return graph

    def state(self):
        return [*self.parameters, *self.velocity, *self.model.buffers()]

    def __call__(self, index, rate, draws):
        self.index.copy_(index)
        self.corner.copy_(torch.randint(0, 2 * PAD + 1, (2, self.batch), generator=draws))
        self.flip.copy_(torch.rand(self.batch, generator=draws) < 0.5)
        self.rate.fill_(rate)
        self.graph.replay() if self.graph else self.run()


def load_weights(twin, path):
    """As twins.load, without the safetensors package."""
    raw = pathlib.Path(path).read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header, data = json.loads(raw[8 : 8 + length]), bytearray(raw[8 + length :])
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            tensors[name] = torch.frombuffer(data[begin:end], dtype=torch.float32).reshape(entry["shape"])
    with torch.no_grad():
        twins.fill(twin.tensors(), tensors, path)


def train_pytorch(options, recipe, weights, seed):
    device = torch.device(options.device)
    twin = twins.Plain(options.network)
    load_weights(twin, weights)
    twin.model.to(device)
    moving = twins.Statistics(twin, options.batch, keep=options.bn_momentum)
    pictures, labels = (t.to(device) for t in options.train)
    padded = F.pad(pictures, (PAD, PAD, PAD, PAD))
    step = Step(twin, padded, labels, options.batch, device)
    draws = torch.Generator().manual_seed(seed)
    order, curve = torch.empty(0, dtype=torch.long), []
    for done in range(1, recipe.steps + 1):
        if len(order) < options.batch:
            order = torch.cat([order, torch.randperm(len(labels), generator=draws)])
        index, order = order[: options.batch], order[options.batch :]
        step(index, recipe.learning_rate(done - 1), draws)
        moving.update(done - 1)
        if recipe.ends_epoch(done):
            moving.use()
            curve.append({"epoch": done / recipe.per_epoch, **test(twin, options.test, device)})
    return curve


@torch.no_grad()
def test(twin, data, device):
    twin.model.eval()
    pictures, labels = (t.to(device) for t in data)
    loss, correct = 0.0, 0
    for first in range(0, len(labels), 1000):
        output = twin.model(twins.normalise(pictures[first : first + 1000]))
        wanted = labels[first : first + 1000]
        loss += F.cross_entropy(output, wanted, reduction="sum").item()
        correct += (output.argmax(1) == wanted).sum().item()
    twin.model.train()
    return {"loss": loss / len(labels), "accuracy": correct / len(labels)}


def run_paceline(options, seeds, **settings):
    """Trains the seeds, some at a time; the runs, by seed."""
    done, waiting, running = {}, list(seeds), []
    while waiting or running:
        while waiting and len(running) < options.parallel:
            seed = waiting.pop(0)
            out = options.out / f"{settings.get('label', 'paceline')}-{seed}"
            said = {k: v for k, v in settings.items() if k != "label"}
            settled = dict(seed=seed, batch=options.batch, pin="no", checkpoint_every=0, bn_momentum=options.bn_momentum)
            command = runs.train_command(options, options.network, options.data, out, **settled, **said)
            child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, preexec_fn=tied())
            running.append((seed, out, child))
        time.sleep(0.2)
        for entry in [entry for entry in running if entry[2].poll() is not None]:
            running.remove(entry)
            seed, out, child = entry
            if child.returncode != 0:
                raise Failure(f"seed {seed}: {child.stderr.read().strip()}")
            done[seed] = runs.Run(out)
    return done


def paceline_curve(run, recipe):
    return [
        {"epoch": e["steps"] / recipe.per_epoch, "loss": e["loss"], "accuracy": e["correct"] / e["examples"]}
        for e in run.events("evaluated")
    ]


def compare(options):
    options.paceline = options.paceline.resolve()
    options.out.mkdir(parents=True, exist_ok=True)
    options.train = twins.read_cifar10(options.data, runs.TRAIN_FILES)
    options.test = twins.read_cifar10(options.data, runs.TEST_FILES)
    recipe = Recipe(options, len(options.train[1]))
    seeds = list(range(1, options.seeds + 1))
    begun = time.monotonic()
    starts = run_paceline(options, seeds, label="start", steps=1, lr=0, eval_every=0)
    print(f"drawn weights of {len(seeds)} seeds: {time.monotonic() - begun:.0f} s", flush=True)
    results = {"recipe": {k: v for k, v in vars(options).items() if isinstance(v, (int, float, str))}, "seeds": {}}
    ours, errors = {}, []

    def train_paceline():
        try:
            ours.update(run_paceline(options, seeds, epochs=options.epochs, lr=options.lr, schedule="cosine",
                                     warmup_epochs=options.warmup_epochs, weight_decay=WEIGHT_DECAY))
        except Failure as failure:
            errors.append(failure)
        print(f"Paceline is done after {time.monotonic() - begun:.0f} s", flush=True)

    thread = threading.Thread(target=train_paceline)
    thread.start()
    for seed in seeds:
        curve = train_pytorch(options, recipe, starts[seed].weights, seed)
        results["seeds"][seed] = {"pytorch": curve}
        print(f"PyTorch, seed {seed}: {100 * curve[-1]['accuracy']:.2f} % after {time.monotonic() - begun:.0f} s", flush=True)
    thread.join()
    if errors:
        raise errors[0]
    for seed in seeds:
        results["seeds"][seed]["paceline"] = paceline_curve(ours[seed], recipe)
    return results


def report(results):
    """Prints the table; whether the interval of the mean difference holds 0."""
    rows = [(seed, r["paceline"][-1]["accuracy"], r["pytorch"][-1]["accuracy"]) for seed, r in results["seeds"].items()]
    print(f"{'seed':>4}  {'Paceline %':>10}  {'PyTorch %':>9}  {'difference':>10}")
    for seed, ours, theirs in rows:
        print(f"{seed:>4}  {100 * ours:10.2f}  {100 * theirs:9.2f}  {100 * (ours - theirs):+10.2f}")
    differences = [100 * (ours - theirs) for _, ours, theirs in rows]
    mean = statistics.mean(differences)
    half = T95[len(rows) - 1] * statistics.stdev(differences) / math.sqrt(len(rows))
    means = [100 * statistics.mean(column) for column in list(zip(*rows))[1:]]
    print(f"mean  {means[0]:10.2f}  {means[1]:9.2f}  {mean:+10.2f} (95 % interval {mean - half:+.2f} .. {mean + half:+.2f})")
    results["difference"] = {"mean": mean, "lo": mean - half, "hi": mean + half}
    return mean - half <= 0 <= mean + half


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="cifar10", help="CIFAR-10, binary version (cifar10)")
    parser.add_argument("--paceline", type=pathlib.Path, default=runs.PACELINE, help="the program")
    parser.add_argument("--network", default="mobilenet_v2", choices=["mobilenet_v2", "resnet50"])
    parser.add_argument("--seeds", type=int, default=5, help="how many (5)")
    parser.add_argument("--epochs", type=float, default=8)
    parser.add_argument("--warmup-epochs", type=float, default=1)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--bn-momentum", type=float, default=0.9, metavar="PART", help="of old running statistics that stays (0.9)")
    parser.add_argument("--threads", type=int, default=1, help="of each Paceline run (1)")
    parser.add_argument("--parallel", type=int, default=2, help="Paceline runs at a time (2)")
    parser.add_argument("--device", default="cpu", help="PyTorch's (cpu)")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("accuracy"), help="folder for runs and accuracy.json")
    options = parser.parse_args()
    if not 2 <= options.seeds < len(T95):
        parser.error(f"--seeds is 2 to {len(T95) - 1}")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    try:
        results = compare(options)
    except Failure as failure:
        sys.exit(f"accuracy: {failure}")
    holds = report(results)
    (options.out / "accuracy.json").write_text(json.dumps(results, indent=1))
    sys.exit(0 if holds else 1)


if __name__ == "__main__":
    main()
