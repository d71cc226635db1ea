#!/usr/bin/env python3
"""Follows small trainings on a GPU and checks what the log says of them:

    python adapters/gpu_check.py

A plain loop, torch.compile, a CUDA graph of the whole step, a device that waits for the host (kernels of microseconds) and one that does
not, and what following costs, in pairs. Needs PyTorch with CUDA and one GPU; ends with status 1 if something does not hold.
"""

import json
import os
import statistics
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "python", "src"))

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline import hooks
from paceline.files import read_lines
from paceline.follow import Follower

failures = []


def check(what, holds, seen):
    if not holds:
        failures.append(what)
    print(f"{'ok  ' if holds else 'FAIL'} {what} ({seen})", flush=True)


def layers(width, depth):
    return nn.Sequential(*[layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())])


class Setup:
    def __init__(self, width, depth, batch, count):
        torch.manual_seed(0)
        self.model = layers(width, depth).cuda()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, foreach=depth < 50)
        data = torch.randn(batch * count, width, pin_memory=True)
        self.loader = DataLoader(TensorDataset(data), batch)

    def train(self, call=None):
        for inputs, in self.loader:
            self.optimizer.zero_grad()
            (call or self.model)(inputs.cuda(non_blocking=True)).square().mean().backward()
            self.optimizer.step()


def followed(train):
    """The steps of a training that is followed, by their log."""
    with tempfile.TemporaryDirectory() as out:
        hooks.install(torch)
        follower = Follower(torch, {"out": out})
        hooks.listen(follower)
        train()
        torch.cuda.synchronize()
        off = follower.off
        follower.close()
        hooks.listen(None)
        follower.roots.release()
        if off or not os.path.exists(os.path.join(out, "rank-0.jsonl")):
            return None, None
        header, *events = read_lines(os.path.join(out, "rank-0.jsonl"))
    return header, [event["step"] for event in events if "step" in event]


def phases_of(steps):
    """Median time of each phase in ms, over all steps but the first few."""
    steady = steps[3:]
    names = {name for step in steady for name in step["phases"]}
    told = {name: statistics.median(step["phases"].get(name, 0) for step in steady) / 1e6 for name in sorted(names)}
    told["step"] = statistics.median(step["end"] - step["begin"] for step in steady) / 1e6
    told["starved"] = statistics.median(step.get("starved", 0) for step in steady) / 1e6
    return {name: round(value, 3) for name, value in told.items()}


def check_loop(name, train, count, *phases):
    header, steps = followed(train)
    if not steps:
        check(f"{name}: it is followed", False, "no log")
        return None
    check(f"{name}: {count} steps", len(steps) == count, len(steps))
    told = phases_of(steps)
    check(f"{name}: its phases", all(phase in told for phase in phases), told)
    over = [step["step"] for step in steps if sum(step["phases"].values()) > step["end"] - step["begin"]]
    check(f"{name}: phases fit into their steps", not over, over)
    return told


def check_starved():
    few = Setup(64, 100, 8, 30)
    told = check_loop("tiny kernels", few.train, 30, "forward", "backward", "update")
    if told:
        work = told["forward"] + told["backward"] + told["update"]
        check("tiny kernels: the device waits for the host", told["starved"] > 0.5 * work, told)
    large = Setup(8192, 8, 8192, 12)
    told = check_loop("large kernels", large.train, 12, "forward", "backward", "update")
    if told:
        work = told["forward"] + told["backward"] + told["update"]
        check("large kernels: it does not", told["starved"] < 0.1 * work, told)


def check_events():
    """The phases against a stopwatch that synchronises, in a training of its own; it also sees the way to the device and back."""
    setup = Setup(8192, 8, 8192, 12)
    told = check_loop("plain loop", setup.train, 12, "forward", "backward", "update")
    parts = {"forward": [], "backward": [], "update": []}

    def lap(begin):
        torch.cuda.synchronize()
        return (time.perf_counter() - begin) * 1e3

    for inputs, in setup.loader:
        inputs = inputs.cuda()
        setup.optimizer.zero_grad()
        for phase in parts:
            torch.cuda.synchronize()
            begin = time.perf_counter()
            if phase == "forward":
                loss = setup.model(inputs).square().mean()
            elif phase == "backward":
                loss.backward()
            else:
                setup.optimizer.step()
            parts[phase].append(lap(begin))
    for phase, times in parts.items():
        watch = statistics.median(times[3:])
        near = told and abs(told[phase] - watch) < 0.05 * watch + 0.3
        check(f"plain loop: {phase} is what a stopwatch says", near, f"{told and told[phase]} ms, {watch:.3f} ms")


def check_compiled():
    for mode in ("default", "reduce-overhead"):
        setup = Setup(1024, 8, 1024, 20)
        torch._dynamo.utils.counters.clear()
        compiled = torch.compile(setup.model, fullgraph=True, mode=mode)
        check_loop(f"torch.compile {mode}", lambda: setup.train(compiled), 20, "forward", "backward", "update")
        counters = torch._dynamo.utils.counters
        check(f"torch.compile {mode}: one graph, no break", not counters["graph_break"] and counters["stats"]["unique_graphs"] == 1,
              dict(counters["stats"]))


def check_graph():
    setup = Setup(2048, 8, 2048, 20)
    fixed = torch.zeros(2048, 2048, device="cuda")

    def step():
        setup.optimizer.zero_grad(set_to_none=True)
        setup.model(fixed).square().mean().backward()
        setup.optimizer.step()

    def train():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        for inputs, in setup.loader:
            fixed.copy_(inputs)
            graph.replay()

    check_loop("CUDA graph", train, 23, "compute")


def check_cost():
    """Three trainings in turns: followed, not, and not once more, which tells what two that are the same differ by. Their batches are the same and
    there before: a loader that collects rows takes most of a step, and another time from one training to the next."""
    for name, width, depth, batch in (("5 ms", 2048, 12, 4096), ("10 ms", 4096, 8, 4096), ("70 ms", 8192, 12, 8192)):
        with tempfile.TemporaryDirectory() as out:
            hooks.install(torch)
            follower = Follower(torch, {"out": out})
            batches = DataLoader([torch.randn(batch, width, pin_memory=True)] * 20, None)
            trainings = {}
            for kind, listener in (("followed", follower), ("plain", None), ("again", None)):
                setup = Setup(width, depth, 1, 1)
                trainings[kind] = setup, listener
                hooks.listen(listener)
                train_on(setup, batches)  # the follower looks for models, and must find its own alone
                hooks.listen(None)
            times = {kind: [] for kind in trainings}
            for number in range(8 if width > 4096 else 20):
                order = list(trainings.items())
                for kind, (setup, listener) in order if number % 2 else order[::-1]:
                    hooks.listen(listener)
                    torch.cuda.synchronize()
                    begin = time.perf_counter()
                    train_on(setup, batches)
                    torch.cuda.synchronize()
                    times[kind].append((time.perf_counter() - begin) / 20)
                    hooks.listen(None)
            check(f"cost at {name}: still followed", not follower.off, follower.off)
            follower.close()
            follower.roots.release()
        plain = statistics.median(times["plain"])
        cost, same = (statistics.median(a - b for a, b in zip(times[kind], times["plain"])) for kind in ("followed", "again"))
        print(f"     cost at {name}: step {1e3 * plain:.3f} ms, {1e6 * cost:+.1f} us a step ({100 * cost / plain:+.2f} %), "
              f"two that are not followed differ by {1e6 * same:+.1f} us", flush=True)


def train_on(setup, batches):
    for inputs in batches:
        setup.optimizer.zero_grad()
        setup.model(inputs.cuda(non_blocking=True)).square().mean().backward()
        setup.optimizer.step()


def main():
    if not torch.cuda.is_available():
        sys.exit("gpu_check.py: PyTorch sees no GPU here")
    print(json.dumps({"torch": torch.__version__, "device": torch.cuda.get_device_name()}))
    torch.backends.cuda.matmul.allow_tf32 = True
    check_events()
    check_compiled()
    check_graph()
    check_starved()
    check_cost()
    print(f"{len(failures)} failed: {', '.join(failures)}" if failures else "all hold")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
