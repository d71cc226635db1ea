"""Trainings in processes of their own: processes.py spawn|fork|workers|twice"""

import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from leaving import leave


def train(workers=0, wrap=lambda model: model):
    torch.manual_seed(0)
    model = wrap(nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs, labels in DataLoader(TensorDataset(torch.randn(32, 16), torch.randint(4, (32,))), 8, num_workers=workers):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()


def rank(number, world, file):
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=number, world_size=world)
    train(wrap=DistributedDataParallel)
    leave()


def main():
    how = sys.argv[1]
    if how in ("spawn", "fork"):
        mp.start_processes(rank, (2, os.path.abspath("meeting")), 2, start_method=how)
    elif how == "workers":
        train(workers=2)
    elif how == "exit":
        train()
        sys.exit(7)
    elif how == "raise":
        train()
        raise ValueError("a planted failure")


if __name__ == "__main__":
    main()
