"""Where PyTorch is listened to: public hooks, and patches where there is none. Each calls the process's one listener, a follower
or a log; without one, it costs a look at a variable."""

import contextlib
import functools
import sys
import threading

from .sitecustomize import Waiter

listener = None
installed = False
has_compiled = False  # the script has asked for something to be compiled
before_backward = []  # functions to call, whether somebody listens or not: results depend on them


def listen(new):
    """Makes `new` the listener; the one before hears nothing more."""
    global listener
    listener = new


def install(torch):
    """Once a process; costs nothing until somebody listens."""
    global installed
    if installed:
        return
    installed = True
    wrap_backward(torch)
    wrap_loading(torch)
    wrap_updates(torch)
    wrap_checkpoints(torch)
    wrap_graphs(torch)
    wrap_compile(torch)
    from . import collectives, ddp

    ddp.wrap(torch)
    collectives.wrap(torch)


def compiling(torch):
    """Tells whether torch.compile is reading the code that asks: there, nothing must be measured, nor break its graph."""
    told = getattr(getattr(torch, "compiler", None), "is_compiling", None)
    return told or torch._dynamo.is_compiling


def wrap_compile(torch):
    compile = getattr(torch, "compile", None)
    if compile is None:
        return

    @functools.wraps(compile)
    def compiled(*args, **kwargs):
        global has_compiled
        has_compiled = True
        return compile(*args, **kwargs)

    torch.compile = compiled


class Hook:
    """A hook on a module. Copied or pickled with its module, it becomes one that does nothing and needs no Paceline."""

    def __init__(self):
        self.__name__ = self.__qualname__ = type(self).__qualname__  # DDP asks its hooks for both

    def __reduce__(self):
        return getattr, (contextlib.nullcontext(), "__exit__")


def wrap_backward(torch):
    """Hooks on tensors would cost thirty times as much."""
    backward, is_compiling = torch.autograd.backward, compiling(torch)

    @functools.wraps(backward)
    def followed(*args, **kwargs):
        to = listener
        for call in before_backward:
            call()
        # A backward within another, as of checkpointed layers, is part of it.
        if to is None or is_compiling() or to.in_backward or to.capturing:
            return backward(*args, **kwargs)
        to.backward_begins()
        try:
            return backward(*args, **kwargs)
        finally:
            to.backward_ended()

    torch.autograd.backward = followed


def wrap_loading(torch):
    from torch.utils.data import dataloader

    base = dataloader._BaseDataLoaderIter
    get = base.__next__

    @functools.wraps(get)
    def followed(self):
        to = listener
        if to is None or to.loading or threading.get_ident() != to.thread:
            return get(self)
        to.loading = True
        try:
            to.load_begins()
            try:
                batch = get(self)
            except StopIteration:
                to.ran_out()
                raise
            to.loaded(batch)
            return batch
        finally:
            to.loading = False

    base.__next__ = followed
    if "next" in vars(base):
        base.next = followed


def wrap_updates(torch):
    from torch.optim import optimizer as optimizers

    is_compiling = compiling(torch)

    def begins(optimizer, args, kwargs):
        if is_compiling():
            return
        if listener is not None:
            listener.update_begins(optimizer)

    def ended(optimizer, args, kwargs):
        if is_compiling():
            return
        if listener is not None:
            listener.update_ended(optimizer)

    optimizers.register_optimizer_step_pre_hook(begins)
    optimizers.register_optimizer_step_post_hook(ended)

    # A scaler leaves the optimizer out where a gradient is not finite: a step all the same.
    scaler = (torch.amp if hasattr(torch.amp, "GradScaler") else torch.cuda.amp).GradScaler
    step = scaler.step

    @functools.wraps(step)
    def scaled(self, optimizer, *args, **kwargs):
        to = listener
        if to is None or is_compiling():
            return step(self, optimizer, *args, **kwargs)
        to.update_begins(optimizer)
        try:
            return step(self, optimizer, *args, **kwargs)
        finally:
            to.update_ended(optimizer)

    scaler.step = scaled


def pausing(name, function):
    @functools.wraps(function)
    def followed(*args, **kwargs):
        to = listener
        if to is None or threading.get_ident() != to.thread:
            return function(*args, **kwargs)
        to.pause_begins(name)
        try:
            return function(*args, **kwargs)
        finally:
            to.pause_ended(name)

    followed.pauses = True
    return followed


SAVERS = {
    "torch.distributed.checkpoint.state_dict_saver": ("save", "save_state_dict"),
    "torch.distributed.checkpoint": ("save", "save_state_dict"),
    "safetensors.torch": ("save_file", "save_model"),
}


def wrap_checkpoints(torch):
    torch.save = torch.serialization.save = pausing("checkpoint", torch.save)
    for name in SAVERS:
        Waiter.wait(name, wrap_savers)


def wrap_savers(module):
    for name in SAVERS[module.__name__]:
        function = getattr(module, name, None)
        if function is not None and not getattr(function, "pauses", False):
            setattr(module, name, pausing("checkpoint", function))


def wrap_late():
    """Modules that were being imported, and not complete, when they should have been wrapped."""
    for name in SAVERS:
        if name in sys.modules:
            wrap_savers(sys.modules[name])


def wrap_graphs(torch):
    """A captured graph runs no hooks when it is replayed: what it holds was seen while it was captured."""
    graph = getattr(torch.cuda, "CUDAGraph", None)
    if graph is None or not hasattr(torch._C, "_CUDAGraph"):
        return
    begin, end, replay = graph.capture_begin, graph.capture_end, graph.replay

    @functools.wraps(begin)
    def capture_begin(self, *args, **kwargs):
        if listener is not None:
            listener.capture_begins(self)
        return begin(self, *args, **kwargs)

    @functools.wraps(end)
    def capture_end(self, *args, **kwargs):
        try:
            return end(self, *args, **kwargs)
        finally:
            if listener is not None:
                listener.capture_ended()

    @functools.wraps(replay)
    def replayed(self, *args, **kwargs):
        to = listener
        if to is None or to.capturing:
            return replay(self, *args, **kwargs)
        to.replay_begins(self)
        try:
            return replay(self, *args, **kwargs)
        finally:
            to.replay_ended(self)

    graph.capture_begin, graph.capture_end, graph.replay = capture_begin, capture_end, replayed
