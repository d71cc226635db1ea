"""DDP as users write it: gradient accumulation with no_sync. Prints the sum of the weights' bits."""

import argparse
import contextlib
import hashlib
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from leaving import leave

parser = argparse.ArgumentParser()
parser.add_argument("--hook", choices=["early", "late"])
parser.add_argument("--again", action="store_true", help="a second training, with gradients that stay in their buckets")
parser.add_argument("--crash", type=int)
parser.add_argument("--fork", type=int, metavar="N", help="start so many ranks, without a launcher")
args = parser.parse_args()

def train(views=False):
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 10))
    model = DistributedDataParallel(model, bucket_cap_mb=0.02, gradient_as_bucket_view=views)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(48 * world, 64), torch.randint(10, (48 * world,)))
    loader = DataLoader(data, 4, sampler=DistributedSampler(data, world, rank, shuffle=False))
    called = 0

    def halved(state, bucket):
        """A hook that shows in the weights, and counts."""
        nonlocal called
        called += 1
        future = dist.all_reduce(bucket.buffer().div_(2 * world), async_op=True).get_future()
        return future.then(lambda future: future.value()[0])

    if args.hook == "early":
        model.register_comm_hook(None, halved)
    accumulate = 3
    for number, (inputs, labels) in enumerate(loader):
        last = number % accumulate == accumulate - 1
        with contextlib.nullcontext() if last else model.no_sync():
            nn.functional.cross_entropy(model(inputs), labels).backward()
        if args.hook == "late" and number == 0:
            model.register_comm_hook(None, halved)
        if last:
            optimizer.step()
            optimizer.zero_grad(set_to_none=not views)
            if args.crash == number // accumulate and rank == 1:
                raise RuntimeError("a planted failure")
    weights = torch.cat([each.detach().flatten() for each in model.parameters()])
    if rank == 0:
        print(hashlib.sha256(weights.numpy().tobytes()).hexdigest(), called > 0)
    if args.again and not views:
        train(views=True)

def forked(rank, world):
    dist.init_process_group("gloo", init_method=f"file://{os.path.abspath('meeting')}", rank=rank, world_size=world)
    train()
    leave()

if args.fork:
    if os.path.exists("meeting"):
        os.remove("meeting")
    mp.start_processes(forked, (args.fork,), args.fork, start_method="fork")
else:
    dist.init_process_group("gloo")
    train()
    leave()
