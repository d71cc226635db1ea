#!/usr/bin/env python3
"""What the log costs: the example's step with and without it, in turns, on the same workers.

    PYTHONPATH=adapters/python python adapters/overhead.py --workers 2 --rounds 20 --steps 10

Prints the median time of a step in both forms on rank 0, and the median ratio of neighbouring rounds with the range of
its middle half, by the clock and in processor time. Run it on a machine that does nothing else; where something does, the
fastest rounds of each say more. `--network linear --batch 1 --workers 1` is a step of next to nothing: what the log costs
a step shows in microseconds. `--device cuda` takes one GPU a worker, over NCCL.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import paceline_log

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "examples"))
from pytorch_ddp import free_port, network


class Training:
    def __init__(self, args, device, log=None):
        torch.manual_seed(0)
        net = network() if args.network == "convnet" else nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 10))
        self.model = DistributedDataParallel(net.to(device))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.batch = torch.randn(args.batch, 3, 32, 32, device=device), torch.randint(10, (args.batch,), device=device)
        self.device, self.log = device, log
        if log:
            log.watch(self.model, self.optimizer)

    def run(self, steps):
        """Seconds a step, by the clock and of this process's cores."""
        batches = [self.batch] * steps
        followed = torch.autograd.backward
        if not self.log:
            torch.autograd.backward = getattr(followed, "__wrapped__", followed)
        self.settle()
        begin, cpu = time.perf_counter(), time.process_time()
        for images, labels in self.log.steps(batches) if self.log else batches:
            self.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.model(images), labels)
            loss.backward()
            self.optimizer.step()
            if self.log:
                self.log.result(loss)
        self.settle()
        torch.autograd.backward = followed
        return (time.perf_counter() - begin) / steps, (time.process_time() - cpu) / steps

    def settle(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        dist.barrier()


def work(rank, port, args, folder):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(args.workers), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    device = torch.device("cuda", rank) if args.device == "cuda" else torch.device("cpu")
    if args.device == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if args.device == "cuda" else "gloo", rank=rank, world_size=args.workers)
    with paceline_log.Log(folder, "convnet", batch=args.batch) as log:
        plain, logged = Training(args, device), Training(args, device, log)
        plain.run(3), logged.run(3)
        times = []
        for number in range(args.rounds):
            order = [plain, logged] if number % 2 else [logged, plain]
            seconds = {each: each.run(args.steps) for each in order}
            times.append((seconds[plain], seconds[logged]))
        dist.destroy_process_group()
    if rank == 0:
        about = {key: getattr(args, key) for key in ("device", "network", "workers", "batch", "rounds", "steps")}
        print(json.dumps({**about, "torch": torch.__version__, "wall": compare(times, 0), "cpu": compare(times, 1)}))


def compare(times, clock):
    pairs = [(plain[clock], logged[clock]) for plain, logged in times]
    ratios = sorted(logged / plain for plain, logged in pairs)
    quarter = len(ratios) // 4
    plain_ms, logged_ms = (1e3 * statistics.median(each) for each in zip(*pairs))
    middle = [round(ratio, 4) for ratio in (ratios[quarter], ratios[-1 - quarter])]
    fastest = [1e3 * min(each) for each in zip(*pairs)]
    costs = sorted(1e6 * (logged - plain) for plain, logged in pairs)
    cost = {"cost_us": round(statistics.median(costs), 1), "cost_us_middle_half": [round(costs[quarter], 1), round(costs[-1 - quarter], 1)]}
    return {**cost, "plain_ms": plain_ms, "logged_ms": logged_ms, "ratio": statistics.median(ratios), "middle_half": middle,
            "fastest_ms": fastest, "fastest_ratio": fastest[1] / fastest[0]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--network", choices=["convnet", "linear"], default="convnet")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=10, help="in each round (10)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(work, (free_port(), args, folder), args.workers)


if __name__ == "__main__":
    main()
