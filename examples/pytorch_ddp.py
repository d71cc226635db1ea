#!/usr/bin/env python3
"""A small convolutional network under PyTorch's DistributedDataParallel, with a run log that Paceline reads.

    pip install torch ./adapters/python
    python examples/pytorch_ddp.py --workers 1 --out runs/ddp
    python examples/pytorch_ddp.py --workers 2 --out runs/ddp
    paceline report runs/ddp

Two CPU workers talk over gloo on this machine (`--device cuda`: one GPU each, over NCCL). The report has both cases, their speed-ups, and where the time of each
rank went. Under torchrun it does the same; with the adapter as its launcher, start and end are timed too:

    python -m paceline_log run --out runs/ddp -- torchrun --nproc-per-node 2 examples/pytorch_ddp.py

`--sleep-rank 1 --sleep-ms 30` makes one rank late in every step: the report names it.
The lines that are there for the log end in `# log`.
"""

import argparse
import os
import socket
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import paceline_log  # log


def network():
    def block(inputs, outputs):
        return [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]

    return nn.Sequential(
        *block(3, 32), *block(32, 32), nn.MaxPool2d(2),
        *block(32, 64), *block(64, 64), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * 8 * 8, 256), nn.ReLU(), nn.Linear(256, 10),
    )


def pictures(count):
    """Noise, and on top of it one of ten patterns: something that can be learnt."""
    random = torch.Generator().manual_seed(0)
    patterns = torch.randn(10, 3, 32, 32, generator=random)
    labels = torch.randint(10, (count,), generator=random)
    return TensorDataset(torch.randn(count, 3, 32, 32, generator=random) + patterns[labels], labels)


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
    log = paceline_log.Log(args.out, model="convnet", batch=args.batch, input="32x32", classes=10)  # log
    device = torch.device("cpu")
    if args.device == "cuda":
        device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    backend = args.backend or ("nccl" if args.device == "cuda" else "gloo")
    dist.init_process_group(backend, rank=rank, world_size=world)
    data = pictures(args.steps_per_epoch * args.batch * world)
    sampler = DistributedSampler(data, num_replicas=world, rank=rank)
    loader = DataLoader(data, args.batch, sampler=sampler, num_workers=args.loader_workers)
    model = network().to(device)
    if world > 1:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    log.watch(model, optimizer)  # log

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for images, labels in log.steps(loader):  # log
            if rank == args.sleep_rank:
                time.sleep(args.sleep_ms / 1e3)
            with log.phase("copy_in"):  # log
                images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
            optimizer.zero_grad()
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
            log.result(loss)  # log
        with log.phase("eval"):  # log
            right = evaluate(model, data, device)
        if rank == 0:
            print(f"epoch {epoch}: loss {loss.item():.3f}, {100 * right:.0f} % right", flush=True)
            with log.phase("checkpoint"):  # log
                torch.save(model.state_dict(), os.devnull)

    dist.destroy_process_group()
    log.close()  # log


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
    parser.add_argument("--out", default=None, metavar="DIR", help="the study's folder")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--backend", choices=["gloo", "nccl"], default=None, help="gloo on CPUs, nccl on GPUs, unless given")
    parser.add_argument("--batch", type=int, default=64, help="pictures a step of each worker (64)")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--steps-per-epoch", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1, help="threads of each worker (1)")
    parser.add_argument("--loader-workers", type=int, default=0, help="processes of each loader (0)")
    parser.add_argument("--sleep-rank", type=int, default=None, help="a rank that sleeps in every step")
    parser.add_argument("--sleep-ms", type=float, default=30.0)
    args = parser.parse_args()
    if "RANK" in os.environ:  # torchrun's
        return train(args)
    mp.spawn(spawned, (free_port(), args), args.workers)


if __name__ == "__main__":
    main()
