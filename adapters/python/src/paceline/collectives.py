"""Exchanges that a script or a library calls by itself, as FSDP does: torch.distributed's functions, and waiting for them."""

import functools
import threading

from . import hooks

# Each, and which of its arguments holds the bytes that are moved.
FUNCTIONS = {
    "all_reduce": "tensor", "broadcast": "tensor", "reduce": "tensor", "all_gather": "tensor",
    "all_gather_into_tensor": "output_tensor", "all_gather_single": "output_tensor", "_all_gather_base": "output_tensor",
    "reduce_scatter": "output", "reduce_scatter_tensor": "input", "reduce_scatter_single": "input", "_reduce_scatter_base": "input",
    "all_to_all": "input_tensor_list", "all_to_all_single": "input", "gather": "tensor", "scatter": "tensor", "barrier": None,
    "all_reduce_coalesced": "tensors", "all_gather_coalesced": "input_tensor_list",
    "broadcast_object_list": None, "all_gather_object": None, "gather_object": None, "scatter_object_list": None,
    "monitored_barrier": None,
}
PLACES = {"input": 1, "input_tensor": 1, "input_tensor_list": 1, "tensor": 0, "output_tensor": 0, "output": 0, "tensors": 0}
GATHERS = ("all_gather", "gather")  # their first argument is the list of results


def wrap(torch):
    distributed = torch.distributed
    if not distributed.is_available():
        return
    from torch.distributed import distributed_c10d as c10d

    is_compiling = hooks.compiling(torch)
    for name, holds in FUNCTIONS.items():
        function = getattr(c10d, name, None)
        if function is None:
            continue
        timed = following(torch, name, function, holds, is_compiling)
        for module in (c10d, distributed):
            if getattr(module, name, None) is function:
                setattr(module, name, timed)
    wrap_wait(c10d, is_compiling)


def following(torch, name, function, holds, is_compiling):
    place = 1 if name in GATHERS else PLACES.get(holds)

    @functools.wraps(function)
    def timed(*args, **kwargs):
        to = hooks.listener
        # Within DDP's hook, or within another of these, it is part of that.
        if is_compiling() or to is None or to.exchanging or to.step is None or elsewhere(to):
            return function(*args, **kwargs)
        size = 0
        if holds is not None:
            held = kwargs[holds] if holds in kwargs else args[place] if place < len(args) else None
            size = bytes_of(held)
        exchange = to.collective_begins(size, bool(kwargs.get("async_op", False)))
        to.exchanging += 1
        try:
            work = function(*args, **kwargs)
        finally:
            to.exchanging -= 1
            to.collective_called(exchange)
        if work is None:
            to.end_exchange(exchange)
        else:
            to.collective_goes_on(exchange, work)
        return work

    return timed


def elsewhere(to):
    """In a thread that does not train; backward has threads of its own on a device."""
    return not to.in_backward and threading.get_ident() != to.thread


def bytes_of(held):
    if isinstance(held, (list, tuple)):
        return sum(map(bytes_of, held))
    return held.numel() * held.element_size() if hasattr(held, "element_size") else 0


def wrap_wait(c10d, is_compiling):
    """Waiting for a collective that was begun before."""
    wait = c10d.Work.wait

    @functools.wraps(wait)
    def timed(self, *args, **kwargs):
        to = hooks.listener
        if is_compiling() or to is None or to.exchanging or elsewhere(to):
            return wait(self, *args, **kwargs)
        exchange = to.wait_begins(self)
        try:
            return wait(self, *args, **kwargs)
        finally:
            to.wait_ended(exchange)

    c10d.Work.wait = timed
