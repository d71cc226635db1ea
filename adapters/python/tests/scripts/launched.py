"""A training under a launcher that does not set RANK: launched.py accelerate | mpi"""

import os
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from leaving import leave

ROWS = 16


def parts(steps):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    data = TensorDataset(torch.randn(steps * ROWS, 64), torch.randint(10, (steps * ROWS,)))
    return model, torch.optim.SGD(model.parameters(), lr=0.01), DataLoader(data, ROWS)


def under_accelerate(steps):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model, optimizer, loader = accelerator.prepare(*parts(steps * accelerator.num_processes))
    for inputs, labels in loader:
        optimizer.zero_grad()
        accelerator.backward(nn.functional.cross_entropy(model(inputs), labels))
        optimizer.step()


def under_mpi(steps):
    import torch.distributed as dist

    # One of Open MPI's, one of those that speak PMI.
    rank = int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"])
    world = int(os.environ.get("OMPI_COMM_WORLD_SIZE") or os.environ["PMI_SIZE"])
    dist.init_process_group("gloo", rank=rank, world_size=world)
    model, optimizer, loader = parts(steps)
    model = nn.parallel.DistributedDataParallel(model)
    for inputs, labels in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()


if __name__ == "__main__":
    {"accelerate": under_accelerate, "mpi": under_mpi}[sys.argv[1]](20)
    leave()
