"""How a script leaves its process group.

As long as something refers to the group its threads run on, and a process that ends before they do may end by an abort (PyTorch 2.15, gloo).
Functions that are imported while there is a group keep it as a default, and an optimizer's first step imports such.
"""

import gc

import torch._dynamo  # before there is a group
import torch.distributed as dist


def leave():
    """To be called when nothing refers to models and optimizers any more."""
    gc.collect()
    if dist.is_initialized():
        dist.destroy_process_group()
