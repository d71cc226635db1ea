#!/usr/bin/env python3
"""The follower against PyTorch's own profiler on the same steps of the same run:

    python adapters/profiled.py            # two workers, DDP over gloo
    python adapters/profiled.py --workers 1

torch.profiler records the run while it is followed. From its trace: a step lasts from one `Optimizer.step` to the next; communication that nothing hides
is the time from DDP's handing over its only bucket (dividing the gradients by the number of workers, then the collective) to the end of backward, and
that in which DDP sends buffers before the model's first operator; computation is forward and backward (what the script marks with record_function), less that. Handing over lies within the profiler's span of the
last gradient, so the end of that span does not tell where computation ends. Prints both and their ratio for each, rank 0, and ends with status 1
if one is off by more than 5 %, or by more than 0.5 % of the step.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile

ADAPTERS = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(ADAPTERS, "python", "src"), os.path.join(os.path.dirname(ADAPTERS), "examples")]

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, record_function

from paceline import hooks
from paceline.files import read_lines
from paceline.follow import Follower
from pytorch_ddp import free_port, network

WARM = 5


def work(rank, port, args, folder):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", rank=rank, world_size=args.workers)
    model = DistributedDataParallel(network(args.wide), bucket_cap_mb=1024)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = [(torch.randn(args.batch, 3, 32, 32), torch.randint(10, (args.batch,)))] * args.steps
    hooks.install(torch)
    follower = Follower(torch, {"out": folder})
    hooks.listen(follower)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for images, labels in batches:
            with record_function("told.forward"):
                loss = nn.functional.cross_entropy(model(images), labels)
            with record_function("told.backward"):
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    follower.close()
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        path = os.path.join(folder, "trace.json")
        profiler.export_chrome_trace(path)
        with open(path) as file:
            traced = from_trace(json.load(file)["traceEvents"])
        compare(from_log(os.path.join(folder, "rank-0.jsonl")), traced)


def middle(times):
    return statistics.median(times[WARM:])


def from_trace(events):
    """Milliseconds of a step, by the profiler."""
    spans = sorted(((e["ts"], e["ts"] + e["dur"], e["name"]) for e in events if e.get("ph") == "X"), key=lambda span: span[0])
    named = lambda name: [span for span in spans if span[2] == name]
    updates = [span for span in spans if span[2].startswith("Optimizer.step#")]
    forward, backward = named("told.forward"), named("told.backward")
    exchanges, divisions, sent = named("c10d::allreduce_"), named("aten::mul_"), named("c10d::broadcast_")
    exposed = []
    for (called, returned, _), (begin, end, _) in zip(forward, backward):
        inner = [span for span in spans if called < span[0] and span[1] <= returned and not span[2].startswith("DistributedDataParallel")]
        first = next(span[0] for span in inner if span[2] == "aten::conv2d")
        buffers = first - inner[0][0] if any(called <= span[0] < first for span in sent) else 0
        handed = min((span[0] for span in exchanges if begin <= span[0] <= end), default=end)
        divided = [span[0] for span in divisions if begin <= span[0] and span[1] <= handed]
        exposed.append(end - max(divided, default=handed) + buffers)
    steps = [0] + [later[1] - earlier[1] for earlier, later in zip(updates, updates[1:])]
    compute = [f[1] - f[0] + b[1] - b[0] - wait for f, b, wait in zip(forward, backward, exposed)]
    return {"step": middle(steps) / 1e3, "computation": middle(compute) / 1e3, "exposed": middle(exposed) / 1e3}


def from_log(path):
    steps = [event["step"] for event in read_lines(path) if "step" in event]
    phases = lambda *names: [sum(step["phases"].get(name, 0) for name in names) / 1e6 for step in steps]
    return {"step": middle([(step["end"] - step["begin"]) / 1e6 for step in steps]), "computation": middle(phases("forward", "backward")),
            "exposed": middle(phases("comm_wait", "comm_cpu"))}


def compare(told, traced):
    good = True
    for name in told:
        ratio = told[name] / traced[name] if traced[name] else float("nan")
        near = abs(told[name] - traced[name]) <= 0.05 * max(traced[name], 0.1 * traced["step"])
        good &= near
        print(f"{'ok  ' if near else 'FAIL'} {name}: {told[name]:.3f} ms followed, {traced[name]:.3f} ms profiled, ratio {ratio:.3f}", flush=True)
    if not good:
        sys.exit(1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--wide", type=int, default=2000, help="width of the layer with most of the weights: 8 MB a 500")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(work, (free_port(), args, folder), args.workers)


if __name__ == "__main__":
    main()
