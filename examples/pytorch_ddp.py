#!/usr/bin/env python3
"""A small convolutional network under PyTorch's DistributedDataParallel, as one writes it without Paceline in mind.

    paceline run --workers-sweep 1,2 --out runs/ddp -- torchrun --nproc-per-node 1 examples/pytorch_ddp.py

The report has both cases, their speed-up, and where the time of each rank went. CPU workers talk over gloo on this machine
(`--device cuda`: one GPU each, over NCCL). Without torchrun, `--workers 2` starts two.

`--sleep-rank 1 --sleep-ms 30` makes one rank late in every step: the report names it. The other options plant other causes.
"""

import argparse
import functools
import os
import socket
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset, default_collate
from torch.utils.data.distributed import DistributedSampler


def network(wide=256):
    def block(inputs, outputs):
        return [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]

    return nn.Sequential(
        *block(3, 32), *block(32, 32), nn.MaxPool2d(2),
        *block(32, 64), *block(64, 64), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * 8 * 8, wide), nn.ReLU(), nn.Linear(wide, 10),
    )


def pictures(count):
    """Noise, and on top of it one of ten patterns: something that can be learnt."""
    random = torch.Generator().manual_seed(0)
    patterns = torch.randn(10, 3, 32, 32, generator=random)
    labels = torch.randint(10, (count,), generator=random)
    return TensorDataset(torch.randn(count, 3, 32, 32, generator=random) + patterns[labels], labels)


def collected(seconds, samples):
    time.sleep(seconds)
    return default_collate(samples)


def save(model, more):
    with tempfile.TemporaryFile() as file:
        torch.save({"model": model.state_dict(), "more": more}, file)


def evaluate(model, data, device):
    model.eval()
    with torch.no_grad():
        images, labels = (tensor[:256].to(device) for tensor in data.tensors)
        right = (model(images).argmax(1) == labels).float().mean().item()
    model.train()
    return right


def train(args):
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    device = torch.device("cpu")
    if args.device == "cuda":
        device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    backend = args.backend or ("nccl" if args.device == "cuda" else "gloo")
    dist.init_process_group(backend, rank=rank, world_size=world)
    data = pictures(args.steps_per_epoch * args.batch * world)
    sampler = DistributedSampler(data, num_replicas=world, rank=rank)
    collate = functools.partial(collected, args.load_ms / 1e3)
    loader = DataLoader(data, args.batch, sampler=sampler, num_workers=args.loader_workers, collate_fn=collate)
    model = network(args.wide).to(device)
    if world > 1:
        model = DistributedDataParallel(model, bucket_cap_mb=1024 if args.one_bucket else 25)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    more = torch.ones(args.save_mb * 250_000)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for number, (images, labels) in enumerate(loader):
            if rank == args.sleep_rank:
                time.sleep(args.sleep_ms / 1e3)
            images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
            optimizer.zero_grad()
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
            if args.save_every and number % args.save_every == args.save_every - 1:
                save(model, more)
        right = evaluate(model, data, device)
        if rank == 0:
            print(f"epoch {epoch}: loss {loss.item():.3f}, {100 * right:.0f} % right", flush=True)
            torch.save(model.state_dict(), os.devnull)

    dist.destroy_process_group()


def spawned(rank, port, args):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(args.workers), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    train(args)


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2, help="worker processes, unless torchrun starts them (2)")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--backend", choices=["gloo", "nccl"], default=None, help="gloo on CPUs, nccl on GPUs, unless given")
    parser.add_argument("--batch", type=int, default=64, help="pictures a step of each worker (64)")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--steps-per-epoch", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1, help="threads of each worker (1)")
    parser.add_argument("--loader-workers", type=int, default=0, help="processes of each loader (0)")
    parser.add_argument("--sleep-rank", type=int, default=None, help="a rank that sleeps in every step")
    parser.add_argument("--sleep-ms", type=float, default=30.0)
    parser.add_argument("--load-ms", type=float, default=0.0, help="that the loader takes for each batch on top")
    parser.add_argument("--wide", type=int, default=256, help="width of the layer with most of the weights (256)")
    parser.add_argument("--one-bucket", action="store_true", help="exchange all gradients at once, behind backward")
    parser.add_argument("--save-every", type=int, default=0, metavar="N", help="a checkpoint every N steps")
    parser.add_argument("--save-mb", type=int, default=0, help="its size beside the weights")
    args = parser.parse_args()
    if "RANK" in os.environ:  # torchrun's
        return train(args)
    mp.spawn(spawned, (free_port(), args), args.workers)


if __name__ == "__main__":
    main()
