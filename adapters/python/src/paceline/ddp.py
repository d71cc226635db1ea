"""The exchange of DistributedDataParallel: its buckets by a communication hook, its buffers by a patch."""

import functools
import weakref

from . import hooks

followed = weakref.WeakKeyDictionary()  # models and their hooks
sizes = weakref.WeakKeyDictionary()  # bytes of their buffers: going through a model takes longer than all else


def wrap(torch):
    from torch.nn.parallel import DistributedDataParallel as ddp

    register, send = ddp.register_comm_hook, getattr(ddp, "_sync_buffers", None)

    @functools.wraps(register)
    def registered(self, state, hook):
        """A hook of the script's own is kept, and timed."""
        ours = followed.get(self)
        if ours is not None and ours.own is None:
            # Ours is there already, and DDP takes one alone: from now on it calls the script's.
            self._check_comm_hook(hook)
            ours.own, ours.state = hook, state
            self._comm_hooks.append((hook, state))
            return
        if ours is not None:
            return register(self, state, hook)
        ours = Buckets(torch, self, hook, state)
        self._check_comm_hook(hook)
        ours.__qualname__ = hook.__qualname__
        place_hook(self, register, ours)
        self._comm_hooks.append((hook, state))

    ddp.register_comm_hook = registered  # with the original behind __wrapped__

    if send is not None:

        @functools.wraps(send)
        def timed(self):
            """Rank 0's buffers (batch norm's averages) go to all ranks before forward: an exchange too."""
            to = hooks.listener
            if to is None:
                return send(self)
            size = sizes.get(self)
            if size is None:
                size = sizes[self] = sum(each.numel() * each.element_size() for each in self.module.buffers())
            exchange = to.begin_exchange(size, "comm_wait")
            to.exchanging += 1
            try:
                return send(self)
            finally:
                to.exchanging -= 1
                to.end_exchange(exchange)
                to.hand_back(exchange, "forward")

        ddp._sync_buffers = timed


def place_hook(model, register, ours):
    try:
        register(model, None, ours)
    finally:
        # The list is for DDP's own use and is pickled with the model: what stands there is the script's.
        model._comm_hooks[:] = [each for each in model._comm_hooks if each[0] is not ours]
    followed[model] = ours
    if ours.model is not None:
        hooks.before_backward.append(ours.backward_begins)


def follow(torch, model):
    """Times the buckets of a model that has no hook of its own. Returns why not, if not."""
    if model in followed:
        return None
    if model._join_config.enable:
        return "DDP's join is in use: its exchanges are not followed"
    if getattr(model, "_use_python_reducer", False):
        return "DDP's buckets are compiled: its exchanges are not followed"
    if any(getattr(module, "sparse", False) for module in model.modules()):
        return "gradients are sparse: DDP's exchanges are not followed"
    try:
        kind = torch.nn.parallel.DistributedDataParallel
        place_hook(model, kind.register_comm_hook.__wrapped__, Buckets(torch, model))
    except RuntimeError:
        return "DDP has a communication hook of its own, built in: its exchanges are not followed"
    return None


class Buckets(hooks.Hook):
    """A communication hook that times the script's own, or one that does what DDP does by itself, to the bit."""

    def __init__(self, torch, model, own=None, state=None):
        super().__init__()
        self.torch, self.own, self.state = torch, own, state
        self.group = model.process_group
        self.world = self.group.size()
        self.views = getattr(model, "gradient_as_bucket_view", False)
        self.model = weakref.ref(model) if self.views and self.world & (self.world - 1) else None
        self.kept = {}  # where gradients lay before backward
        distributed = torch.distributed
        self.options = distributed.AllreduceOptions()
        self.options.reduceOp = distributed.ReduceOp.SUM
        if hasattr(self.options, "asyncOp"):
            self.options.asyncOp = True

    def backward_begins(self):
        """DDP divides a gradient that lies in its bucket already, and multiplies one that it copies there: not the same
        bits unless the number of ranks is a power of two."""
        model = self.model()
        if model is not None and self.own is None:
            self.kept = {id(each): each.grad.data_ptr() for each in model.parameters() if each.grad is not None}

    def average(self, bucket, buffer):
        """Begins what DDP does without a hook."""
        if self.world > 1:
            kept = self.kept
            if not kept:
                buffer.mul_(1.0 / self.world)
            else:
                for parameter, gradient in zip(bucket.parameters(), bucket.gradients()):
                    if kept.get(id(parameter)) == gradient.data_ptr():
                        gradient.div_(self.world)
                    else:
                        gradient.mul_(1.0 / self.world)
        return self.group.allreduce([buffer], self.options).get_future()

    def __call__(self, _, bucket):
        to, own = hooks.listener, self.own
        buffer, exchange = bucket.buffer(), None
        if to is not None:
            exchange = to.begin_exchange(buffer.numel() * buffer.element_size(), "comm_cpu")
            to.exchanging += 1
        try:
            future = self.average(bucket, buffer) if own is None else own(self.state, bucket)
        finally:
            if to is not None:
                to.exchanging -= 1
        if own is None:

            def ended(future):
                """DDP asks for a tensor, and the exchange has a list of one."""
                if exchange is not None:
                    to.end_exchange(exchange)
                return future.value()[0]

            future = future.then(ended)
        elif exchange is not None:
            # Behind what DDP waits for, which goes on without waiting for this.
            future.add_done_callback(lambda _: to.end_exchange(exchange))
        if exchange is not None:
            # Buckets go out in order: behind the last, no gradient is left to compute.
            to.hand_back(exchange, "comm_wait" if bucket.is_last() else "backward")
        return future
