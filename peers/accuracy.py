#!/usr/bin/env python3
"""Trains MobileNetV2 on CIFAR-10 from several seeds in Paceline and in PyTorch with one recipe, and compares test accuracies;
`peers/training accuracy` calls this.

A seed's two trainings start from the same weights (Paceline's) and have batch, rates, momentum, weight decay and kind of augmentation
in common; each side draws order and augmentation itself. Paceline runs --parallel seeds at a time, each on --threads cores of its
own; PyTorch runs beside it, on --device, in --torch-processes that share the seeds out. When --budget-s is over, what still
runs is ended and left out.

    accuracy.py --data cifar10 --seeds 1,2,3,4,5 --epochs 8 --device cuda --parallel 5 --json accuracy.json
    accuracy.py --again accuracy.json             the table of an earlier run

Prints Markdown: each seed's last test accuracies, their mean difference, and its 95 % interval by Student's t over the seeds. Exit
status: 0 zero lies in the interval, 1 not, or fewer than two seeds were done, 2 bad usage.
"""

import argparse
import dataclasses
import json
import math
import os
import pathlib
import platform
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import runs
from processes import allowed_cores, tied
from recipe import SAMPLES, Recipe
from runs import Failure

NETWORK = "mobilenet_v2"
PEERS = pathlib.Path(__file__).resolve().parent
START_RECORDS = 20  # of each file, for the step that shows the weights before training

# 97.5 % quantiles of Student's t with 1, 2, ... degrees of freedom.
STUDENT = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131]
STUDENT += [2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042]


# ---- Running ----------------------------------------------------------------------------------------------------------


class Children:
    """Processes that are ended together."""

    def __init__(self):
        self.lock, self.processes, self.ended = threading.Lock(), [], False

    def start(self, command, cores, log, **streams):
        tie = tied()

        def prepare():
            tie()
            if hasattr(os, "sched_setaffinity"):
                os.sched_setaffinity(0, cores)

        with self.lock:
            if self.ended:
                return None
            process = subprocess.Popen(command, stderr=log, preexec_fn=prepare, text=True, **streams)
            self.processes.append(process)
            return process

    def end(self):
        with self.lock:
            self.ended = True
            for process in self.processes:
                process.terminate()


class Comparison:
    """Both sides' trainings, under way."""

    def __init__(self, args, folder):
        self.args, self.folder, self.recipe = args, folder, Recipe.of(args)
        self.children, self.points, self.failures = Children(), [], []
        cores = allowed_cores()
        beside = args.torch_processes * args.torch_threads
        self.cores = cores[: max(len(cores) - beside, 1)]
        self.torch_cores = cores[-beside:]

    def run(self):
        self.start_weights()
        threads = [threading.Thread(target=self.run_torch, args=(i,)) for i in range(self.args.torch_processes)]
        waiting = queue.Queue()
        for seed in self.args.seeds:
            waiting.put(seed)
        threads += [threading.Thread(target=self.run_paceline, args=(i, waiting)) for i in range(self.args.parallel)]
        for thread in threads:
            thread.start()
        self.watch(threads)
        for thread in threads:
            thread.join()

    def watch(self, threads):
        """Tells how far both are, until all is done or time is up."""
        told = 0.0
        while any(thread.is_alive() for thread in threads):
            spent = time.monotonic() - BEGAN
            if spent > self.args.budget_s:
                print(f"accuracy.py: {self.args.budget_s:g} s are over", file=sys.stderr, flush=True)
                self.children.end()
                return
            if spent > told + 30:
                told = spent
                far = [f"{side} {len(points)} tests" for side, points in self.curves().items()]
                print(f"{spent:.0f} s: {', '.join(far)}", file=sys.stderr, flush=True)
            time.sleep(0.5)

    def start_weights(self):
        """At rate 0 nothing is learned: these are the weights before training."""
        data = runs.write_small_cifar10(self.args.data, self.folder / "few", START_RECORDS)
        for seed in self.args.seeds:
            settings = dict(steps=1, batch=START_RECORDS, lr=0, seed=seed, eval_every=0)
            runs.train(self.args, NETWORK, data, self.folder / f"start/{seed}", **settings)

    def run_paceline(self, slot, waiting):
        threads = self.args.threads
        own = [self.cores[(slot * threads + i) % len(self.cores)] for i in range(threads)]
        while True:
            try:
                seed = waiting.get_nowait()
            except queue.Empty:
                return
            out = self.folder / f"paceline/{seed}"
            command = runs.train_command(self.args, NETWORK, self.args.data, out, seed=seed, checkpoint_every=0)
            command += [*self.recipe.options(), "--schedule", "cosine", "--augment", "standard", "--label-smoothing", "0"]
            with open(self.folder / f"paceline-{seed}.txt", "w") as log:
                process = self.children.start(command, own, log, stdout=log)
                self.wait(process, f"Paceline, seed {seed}", log)

    def run_torch(self, number):
        seeds = self.args.seeds[number :: self.args.torch_processes]
        threads = self.args.torch_threads
        own = self.torch_cores[number * threads : (number + 1) * threads]
        if not seeds:
            return
        command = [sys.executable, str(PEERS / "torch_cifar10.py"), "--data", str(self.args.data), *self.recipe.options()]
        command += ["--weights", str(self.folder / "start/{seed}/weights.safetensors"), "--device", self.args.device]
        command += ["--seeds", ",".join(map(str, seeds)), "--threads", str(threads), "--graph", self.args.graph]
        with open(self.folder / f"torch-{number}.txt", "w") as log:
            process = self.children.start(command, own, log, stdout=subprocess.PIPE)
            for line in process.stdout if process else []:
                self.points.append(json.loads(line))
            self.wait(process, f"PyTorch, seeds {seeds}", log)

    def wait(self, process, what, log):
        if process and process.wait() != 0 and not self.children.ended:
            said = pathlib.Path(log.name).read_text().strip()[-2000:]
            self.failures.append(f"{what} ended with status {process.returncode}:\n{said}")
            print(f"accuracy.py: {self.failures[-1]}", file=sys.stderr, flush=True)

    def curves(self):
        """What each side's tests found so far, seed by seed."""
        found = {"paceline": [], "torch": list(self.points)}
        for seed in self.args.seeds:
            run = runs.Run(self.folder / f"paceline/{seed}")
            if list(run.folder.glob("*/rank-0.jsonl")):
                found["paceline"] += paceline_points(run, seed, self.recipe)
        return found


def paceline_points(run, seed, recipe):
    steps = list(run.events("step"))
    points, from_step = [], 0
    for test in run.events("evaluated"):
        losses = [step["loss"] for step in steps[from_step : test["steps"]] if step["loss"] is not None]
        from_step = test["steps"]
        points.append(
            {
                "seed": seed,
                "epoch": test["steps"] * recipe.batch / SAMPLES,
                "steps": test["steps"],
                "train_loss": statistics.fmean(losses) if losses else None,
                "test_loss": test["loss"],
                "test_accuracy": test["correct"] / test["examples"],
                "seconds": (test["at"] - steps[0]["begin"]) / 1e9,
            }
        )
    return points


# ---- Comparing --------------------------------------------------------------------------------------------------------


def interval(values):
    """Mean and half of the 95 % interval."""
    half = STUDENT[min(len(values) - 1, len(STUDENT)) - 1] * statistics.stdev(values) / math.sqrt(len(values))
    return statistics.fmean(values), half


def finals(result):
    """Each seed's last accuracies in percent, where both sides came to the end."""
    last = Recipe(**result["recipe"])
    last = last.steps(last.epochs)
    sides = [
        {point["seed"]: 100 * point["test_accuracy"] for point in result[side] if point["steps"] == last}
        for side in ("paceline", "torch")
    ]
    return {seed: (sides[0][seed], sides[1][seed]) for seed in result["seeds"] if all(seed in side for side in sides)}


def render(result):
    """The table, as Markdown, and whether zero lies in the interval."""
    done = finals(result)
    lines = ["| seed | Paceline | PyTorch | difference |", "| ---: | ---: | ---: | ---: |"]
    lines += [f"| {seed} | {ours:.2f} | {theirs:.2f} | {ours - theirs:+.2f} |" for seed, (ours, theirs) in done.items()]
    left_out = [str(seed) for seed in result["seeds"] if seed not in done]
    inside = False
    if len(done) > 1:
        ours, theirs = zip(*done.values())
        mean, half = interval([a - b for a, b in done.values()])
        inside = abs(mean) <= half
        lines.append(f"| mean | {statistics.fmean(ours):.2f} | {statistics.fmean(theirs):.2f} | {mean:+.2f} |")
        lines.append(f"| standard deviation | {statistics.stdev(ours):.2f} | {statistics.stdev(theirs):.2f} | |")
        lines += ["", f"Test accuracy in percent after {result['recipe']['epochs']:g} epochs. Difference {mean:+.2f}, 95 % interval"]
        lines[-1] += f" {mean - half:+.2f} to {mean + half:+.2f} over {len(done)} seeds: zero lies {'in' if inside else 'OUT'}side."
    if left_out:
        lines += ["", f"Not done on both sides: seed {', '.join(left_out)}."]
    return "\n".join(lines), inside


# ---- The command ------------------------------------------------------------------------------------------------------

BEGAN = time.monotonic()


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=pathlib.Path, default="cifar10", metavar="DIR", help="CIFAR-10, binary version (cifar10)")
    parser.add_argument("--paceline", default=runs.PACELINE, help="the program")
    parser.add_argument("--seeds", default="1,2,3,4,5", help="(1,2,3,4,5)")
    parser.add_argument("--parallel", type=int, default=1, metavar="P", help="seeds that Paceline trains at a time (1)")
    parser.add_argument("--threads", type=int, default=1, help="of each of them (1)")
    parser.add_argument("--device", default="cpu", help="PyTorch's: cpu or cuda (cpu)")
    parser.add_argument("--torch-processes", type=int, default=1, metavar="N", help="(1)")
    parser.add_argument("--torch-threads", type=int, default=1, metavar="N", help="of each of them (1)")
    parser.add_argument("--graph", choices=["yes", "no"], default="yes", help="PyTorch's step as a CUDA graph (yes)")
    parser.add_argument("--budget-s", type=float, default=math.inf, metavar="S", help="end after so long")
    parser.add_argument("--work", type=pathlib.Path, metavar="DIR", help="keep the trainings here")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="all curves, for accuracy_plot.py")
    parser.add_argument("--again", type=pathlib.Path, metavar="FILE", help="only print the table of this")
    Recipe.add_options(parser)
    args = parser.parse_args()
    args.seeds = [int(seed) for seed in args.seeds.split(",")]
    args.data = pathlib.Path(args.data).resolve()
    return args


def machine():
    """What it ran on, where Linux tells."""
    names = [line.split(":", 1)[1].strip() for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line]
    return {"cpu": names[0] if names else platform.machine(), "cores": len(allowed_cores())}


def measure(args, folder):
    comparison = Comparison(args, folder)
    comparison.run()
    settings = {name: getattr(args, name) for name in ("parallel", "threads", "device", "torch_processes", "torch_threads")}
    result = {"network": NETWORK, "recipe": dataclasses.asdict(comparison.recipe), "seeds": args.seeds, "settings": settings}
    return {**result, "machine": machine(), "seconds": time.monotonic() - BEGAN, **comparison.curves()}, comparison.failures


def main():
    args = parse_args()
    failures = []
    if args.again:
        result = json.loads(args.again.read_text())
    elif args.work:
        try:
            args.work.mkdir(parents=True)
        except FileExistsError:
            raise Failure(f"{args.work} is there already") from None
        result, failures = measure(args, args.work.resolve())
    else:
        with tempfile.TemporaryDirectory() as folder:
            result, failures = measure(args, pathlib.Path(folder))
    if args.json:
        args.json.write_text(json.dumps(result) + "\n")
    table, inside = render(result)
    print(table)
    sys.exit(bool(failures) or not inside)


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"accuracy.py: {failure}")
