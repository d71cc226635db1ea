#!/usr/bin/env python3
"""What following costs: a step that is followed and one that is not, in turns, in the same processes.

    python adapters/overhead.py --workers 2 --rounds 20 --steps 10

Prints the median time of a step in both forms on rank 0, and the median ratio of neighbouring rounds with the range of
its middle half, by the clock and in processor time; under `same`, as much of two trainings that are both not followed: what
lies within that is not the follower's. Run it on a machine that does nothing else; where something does, the
fastest rounds of each say more. `--network linear --batch 1 --workers 1` is a step of next to nothing: what following costs
a step shows in microseconds. `--bare` leaves DDP away, with one worker. `--sample 10` measures every tenth step. `--device cuda` takes one GPU a worker, over NCCL.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time

ADAPTERS = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(ADAPTERS, "python", "src"), os.path.join(os.path.dirname(ADAPTERS), "examples")]

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from paceline import hooks
from paceline.follow import Follower
from pytorch_ddp import free_port, network


class Training:
    def __init__(self, args, device, follower=None):
        torch.manual_seed(0)
        net = network() if args.network == "convnet" else nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 10))
        self.model = net.to(device) if args.bare else DistributedDataParallel(net.to(device))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        images, labels = torch.randn(args.batch, 3, 32, 32), torch.randint(10, (args.batch,))
        self.data = [(images.to(device), labels.to(device))] * args.steps
        self.device, self.follower = device, follower

    def run(self):
        """Seconds a step, by the clock and of this process's cores."""
        followed = torch.autograd.backward
        if self.follower is None:
            torch.autograd.backward = getattr(followed, "__wrapped__", followed)
        hooks.listen(self.follower)
        loader = torch.utils.data.DataLoader(self.data, batch_size=None)
        self.settle()
        begin, cpu = time.perf_counter(), time.process_time()
        for images, labels in loader:
            self.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.model(images), labels)
            loss.backward()
            self.optimizer.step()
        self.settle()
        told = (time.perf_counter() - begin) / len(self.data), (time.process_time() - cpu) / len(self.data)
        hooks.listen(None)
        torch.autograd.backward = followed
        return told

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
    hooks.install(torch)
    follower = Follower(torch, {"out": folder, "sample": args.sample})
    # In this order: the follower looks for models, and must find its own alone.
    followed = Training(args, device, follower)
    followed.run()
    plain, again = Training(args, device), Training(args, device)
    if args.hook:
        again.model.register_comm_hook(None, allreduce_hook)
    plain.run(), again.run(), followed.run()
    times, same = [], []
    for number in range(args.rounds):
        order = [plain, followed, again] if number % 2 else [again, followed, plain]
        seconds = {each: each.run() for each in order}
        times.append((seconds[plain], seconds[followed]))
        same.append((seconds[plain], seconds[again]))
    if follower.off:
        sys.exit("the follower gave up")
    follower.close()
    dist.destroy_process_group()
    if rank == 0:
        about = {key: getattr(args, key) for key in ("device", "network", "workers", "batch", "rounds", "steps", "sample", "bare", "hook")}
        print(json.dumps({**about, "torch": torch.__version__, "wall": compare(times, 0), "cpu": compare(times, 1),
                          "same": compare(same, 0)}))


def compare(times, clock):
    pairs = [(plain[clock], followed[clock]) for plain, followed in times]
    ratios = sorted(followed / plain for plain, followed in pairs)
    quarter = len(ratios) // 4
    plain_ms, followed_ms = (1e3 * statistics.median(each) for each in zip(*pairs))
    middle = [round(ratio, 4) for ratio in (ratios[quarter], ratios[-1 - quarter])]
    fastest = [1e3 * min(each) for each in zip(*pairs)]
    costs = sorted(1e6 * (followed - plain) for plain, followed in pairs)
    cost = {"cost_us": round(statistics.median(costs), 1), "cost_us_middle_half": [round(costs[quarter], 1), round(costs[-1 - quarter], 1)]}
    return {**cost, "plain_ms": plain_ms, "followed_ms": followed_ms, "ratio": statistics.median(ratios), "middle_half": middle,
            "fastest_ms": fastest, "fastest_ratio": fastest[1] / fastest[0]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--network", choices=["convnet", "linear"], default="convnet")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=10, help="in each round (10)")
    parser.add_argument("--sample", type=int, default=1, metavar="N", help="measure every Nth step (1)")
    parser.add_argument("--bare", action="store_true", help="a model without DDP; with one worker")
    parser.add_argument("--hook", action="store_true", help="under `same`, one of the two has PyTorch's own communication hook in Python")
    args = parser.parse_args()
    if args.bare and args.hook:
        parser.error("--hook is for DDP")
    if args.bare and args.workers > 1:
        parser.error("--bare is for one worker")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(work, (free_port(), args, folder), args.workers)


if __name__ == "__main__":
    main()
