"""Follows a process that trains with PyTorch, without a change to its script.

A training step ends with the last optimizer's step of a cycle. Whether an optimizer's step was the last of its cycle shows only
later: when an optimizer steps that has stepped in the cycle before, a new one has begun, where the loading for it began. So there
are two steps at a time: `ended`, whose optimizer has stepped and which evaluations and checkpoints still extend, and `step`, to
which time goes now; the same one until something follows that may belong to the next.
"""

import atexit
import contextlib
import json
import os
import sys
import threading
import weakref
from collections import deque

from . import ddp, hooks
from .clock import now
from .files import claim
from .listener import Listener
from .machine import host, place, process_start
from .recorder import MANY, guarded
from .roots import Roots
from .scheduling import Scheduler
from .step import Step, count_examples

FIRST = 3  # steps that are written together at first: the header says how large their batches are
LOOKS = 3  # batches that are a reason to look for models, before anything is trained
DEEPEST = 6  # levels of modules to enter
PRECISIONS = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float64": "fp64"}


def start(torch):
    """Follows this process as PACELINE_RUN says, unless its script does it by itself."""
    order = json.loads(os.environ["PACELINE_RUN"])
    hooks.install(torch)
    hooks.listen(Follower(torch, order))
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_begin_again)


def _begin_again():
    """A forked process is nobody's rank until it trains."""
    old = hooks.listener
    if isinstance(old, Follower):
        new = Follower(old.torch, old.order)
        new.roots = old.roots
        hooks.listen(new)
        with contextlib.suppress(OSError):
            if old.lines is not None:
                old.lines.close()


def parameters_of(optimizers):
    groups = [group for optimizer in optimizers for group in getattr(optimizer, "param_groups", ())]
    return [parameter for group in groups for parameter in group["params"]]


class Follower(Listener):
    def __init__(self, torch, order):
        super().__init__(torch)
        self.order = order
        self.every = max(1, int(order.get("sample") or 1))
        self.ended = None
        self.number = 0
        self.cycle = 1  # optimizers that step in a step
        self.pending = deque(maxlen=64)  # rows of batches that were loaded and not worked on yet
        self.roots, self.looks = Roots(torch), 0
        self.started, self.opened, self.headed = False, False, False
        self.many = FIRST
        self.heard = False  # a root's forward in this step
        self.quiet = 0  # steps in a row without one
        self.until = None  # end of an evaluation's last forward
        self.batches = []
        self.optimizers = weakref.WeakSet()
        self.precision, self.input = None, None
        self.failed = False

    # -- Where steps begin

    def open_step(self, stamp=None, phase=None):
        """A step that may begin here, or where that stamp was taken; time goes to it from now on, in this phase."""
        if stamp is None:
            stamp = self.stamp()
        ended = self.ended
        number = ended.number + 1 if ended is not None else self.number if self.opened else 0
        if self.scheduler is None and not self.on_device:
            self.scheduler = Scheduler(self.is_alone())
        sampled = self.every == 1 or number % self.every == 0
        if ended is not None and len(ended.optimizers) < self.cycle:
            sampled = ended.sampled  # another optimizer of the same cycle comes first
        counters = None
        if self.scheduler is not None and (sampled or ended is not None and ended.sampled):
            counters = self.counters()
            if ended is not None:
                ended.counters_after = counters
        step = Step(number, stamp, counters and counters[3], phase)
        step.sampled, step.counters = sampled, counters
        self.step, self.current, self.until = step, phase, None
        return step

    def in_tail(self):
        return self.step is self.ended

    def fold(self, phase):
        """What seemed to be a next step belongs to the one before: as `phase`, or as what it is."""
        later, before = self.step, self.ended
        self.step = before
        if before is None:
            return
        begin = later.marks[0]
        if phase is None:
            before.marks += later.marks
            before.exchanges += later.exchanges
        else:
            before.marks.append((phase, *begin[1:]))
            self.current = phase

    def work(self):
        """Training goes on: whatever is loaded or computed now is a training step's."""
        if self.in_tail():
            # No loading was seen: the step begins where the one before ended.
            if self.ended is None or self.current is not None:
                self.open_step()
            else:
                self.open_step(self.ended.marks[-1][1])
        self.step.worked = True

    @guarded
    def load_begins(self):
        if self.capturing or self.named:
            return
        if not self.started and self.looks < LOOKS:
            self.looks += 1
            self.roots.find(early=True)
        step = self.step
        if step is None or step is self.ended:
            self.open_step(None, "load")
        elif not step.worked and (step.tested or self.ended is None):
            # Only loaded and tested since then: an evaluation, or before all training.
            self.fold("eval")
            self.open_step(None, "load")
        else:
            self.auto("load")

    @guarded
    def loaded(self, batch):
        if self.step is None or self.capturing or self.named:
            return
        rows = count_examples(batch)
        self.pending.append(rows)
        if rows is not None:
            self.step.loaded = (self.step.loaded or 0) + rows
        if self.current == "load":
            self.mark(None)

    @guarded
    def ran_out(self):
        step = self.step
        if step is None or self.capturing or self.named or self.in_tail():
            return
        if step.worked or step.tested or step.loaded is not None:
            self.auto(None)
            return
        was = self.ended.marks[-1][0] if self.ended is not None else None
        self.auto(None)
        self.fold("eval" if was == "eval" else None)
        if self.step is not None and was == "eval":
            self.until = self.stamp()

    # -- What is computed

    @guarded
    def forward_begins(self, module, args, kwargs):
        if self.named or self.capturing or self.in_backward or threading.get_ident() != self.thread:
            return  # in backward: of checkpointed layers
        self.heard = True
        if not self.torch.is_grad_enabled():
            if not module.training:
                self.evaluate()
                return
            if self.step is not None and not self.in_tail() and not self.step.worked:
                self.step.tested = True
            if self.step is not None and not self.in_tail():
                self.take(args or kwargs)
                self.begin_forward()
            return
        if self.step is None and not self.started:
            self.open_step()
        self.work()
        self.take(args or kwargs)
        if self.step.loaded is None and self.step.counted is None and self.current != "forward":
            rows = count_examples(args or kwargs)
            if rows is not None:
                self.step.rows = (self.step.rows or 0) + rows
        if self.precision is None:
            self.look_at(args or kwargs)
        if self.current != "forward":
            self.begin_forward()

    def take(self, given):
        """One of the batches that were loaded is worked on: the first, or the first of that size if some were loaded ahead."""
        if self.pending:
            rows = self.pending[0]
            if len(self.pending) > 1:
                rows = count_examples(given)
                rows = rows if rows in self.pending else self.pending[0]
            self.pending.remove(rows)
            if rows is not None:
                self.step.counted = (self.step.counted or 0) + rows

    def evaluate(self):
        if self.pending:
            self.pending.pop()  # behind what was loaded ahead for training
        if self.step is None:
            return
        if not self.in_tail() and not self.step.worked:
            self.fold("eval")
            if self.step is None:
                return
        self.auto("eval")

    @guarded
    def forward_ended(self, module):
        if self.current == "eval" and not self.named:
            self.until = self.stamp()
            if not self.in_tail():  # in the middle of a step
                self.auto(None)
            return
        if self.current == "forward" and not self.torch.is_grad_enabled() and self.is_open():
            self.auto("update" if self.updating is not None else None)

    @guarded
    def backward_begins(self):
        if self.named or self.capturing:
            return
        if not self.started:
            self.begin_training()
        if self.step is None:
            self.open_step()
        self.work()
        self.begin_backward()

    @guarded
    def update_begins(self, optimizer):
        if self.capturing is not None:
            self.capturing.__dict__.setdefault("_paceline", set()).add(id(optimizer))
            return
        self.begin_update(optimizer, {id(optimizer)}, "update")

    def begin_update(self, optimizer, keys, phase):
        if self.updating is not None or self.named:
            return
        if not self.started:
            self.begin_training()
        if self.ended is not None:
            if keys & self.ended.optimizers:
                self.complete()
            elif not self.in_tail():
                self.ended.add(self.step)
                self.step = self.ended
        if self.step is None:
            self.open_step()
        if not self.opened:
            self.become_rank(optimizer)
        if optimizer not in self.optimizers:
            self.meet(optimizer)
        self.updating = optimizer
        self.step.worked = True
        self.step.optimizers |= keys
        self.auto(phase)

    def complete(self):
        """An optimizer steps again: the step before is over, and ended where the one that is under way began."""
        if self.in_tail():
            self.work()
        before, self.ended = self.ended, None
        before.end = self.step.marks[0][1]
        self.number = before.number + 1
        self.cycle = len(before.optimizers)
        self.finish(before)

    @guarded
    def update_ended(self, optimizer):
        if self.updating is optimizer and self.updating is not None:
            self.updating = self.current = None
            processor, step = self.processor, self.step
            step.marks.append((None, self.stamp(), processor and processor()))
            self.ended = step
            if self.heard:
                self.heard, self.quiet = False, 0
            else:
                self.listen_closer()

    def listen_closer(self):
        """A step without a forward, though the model is known: it is not called as a whole."""
        if self.quiet < DEEPEST:
            self.quiet += 1
            if self.quiet > 1:
                self.roots.descend()

    # -- Captured graphs

    @guarded
    def replay_begins(self, graph):
        keys = graph.__dict__.get("_paceline")
        if keys and self.current not in ("forward", "backward"):
            self.begin_update(graph, keys, "compute")
        else:
            super().replay_begins(graph)

    @guarded
    def replay_ended(self, graph):
        if self.updating is graph:
            self.update_ended(graph)
        else:
            super().replay_ended(graph)

    # -- A process becomes a rank

    def begin_training(self):
        """The first backward or update: models and their wrappers are there."""
        self.started = True
        hooks.wrap_late()
        self.thread = threading.get_ident()
        self.roots.find()
        self.follow_exchanges()
        parameters = [each for root in self.roots.modules for each in root.parameters()]
        self.use_device(self.torch, parameters)
        if self.on_device:
            self.stream = self.torch.cuda.current_stream()
            self.step = self.scheduler = None  # of the host's clock

    def follow_exchanges(self):
        kind = self.torch.nn.parallel.DistributedDataParallel
        models = [each for root in self.roots.modules for each in root.modules() if isinstance(each, kind)]
        for model in models:
            why = ddp.follow(self.torch, model)
            if why is not None:
                self.note(why, ["comm_wait", "comm_cpu"])

    def meet(self, optimizer):
        """Looks for the models that this optimizer trains, now that it is known."""
        self.optimizers.add(optimizer)
        trained = parameters_of(self.optimizers)
        if trained:
            self.roots.find(trained)
            self.follow_exchanges()

    def become_rank(self, optimizer):
        self.opened = True
        trained = parameters_of([optimizer])
        self.rank, self.world = place(self.torch)
        self.lines = self.claim()
        self.main = max(process_start(), int(self.order.get("spawn") or 0))
        self.sharded = any(hasattr(each, "device_mesh") for each in trained)
        if self.sharded and self.on_device:
            self.note("FSDP on a GPU: how long computation waited for exchanges is not told", ["comm_wait"])
        self.pid, self.written_at = os.getpid(), now()
        atexit.register(self.close)
        self.hook_excepthook()
        from multiprocessing import util

        # Processes that multiprocessing forks leave without atexit.
        util.Finalize(None, self.close, exitpriority=0)

    def claim(self):
        return claim(self.order["out"], self.rank, self.world)

    def look_at(self, given):
        """Precision and shape of what the model computes on."""
        torch, device = self.torch, "cuda" if self.on_device else "cpu"
        dtype = next((p.dtype for root in self.roots.modules for p in root.parameters()), None)
        try:
            if torch.is_autocast_enabled(device):
                dtype = torch.get_autocast_dtype(device)
        except TypeError:  # before PyTorch 2.4
            if torch.is_autocast_enabled():
                dtype = torch.get_autocast_gpu_dtype()
        name = str(dtype).rpartition(".")[2]
        self.precision = PRECISIONS.get(name, name)
        first = given
        while isinstance(first, (list, tuple)) and first:
            first = first[0]
        shape = getattr(first, "shape", None)
        if shape is not None and len(shape) == 4:
            self.input = f"{shape[2]}x{shape[3]}"

    # -- Writing

    def finish(self, step):
        self.count(step)
        super().finish(step)

    def count(self, step):
        if len(self.batches) < FIRST:
            self.batches.append(step.told_examples())

    def write_steps(self, steps):
        if self.lines is None:
            return
        if not self.headed:
            self.headed, self.many = True, MANY
            self.lines.head(self.header())
            self.lines.append({"main": {"at": self.main, "pid": self.pid}})
        super().write_steps(steps)

    def header(self):
        batches = {rows for rows in self.batches if rows}
        batch = self.order.get("batch") or (batches.pop() if len(batches) == 1 else None)
        settings = {"device": "cuda" if self.on_device else "cpu"}
        case = {
            "model": self.model(), "engine": "pytorch", "layout": None,
            "precision": self.precision, "update": "sharded" if self.sharded else "allreduce", "scaling": "weak",
            "workers": self.world, "batch_per_worker": batch, "threads": self.torch.get_num_threads(), "input": self.input,
            "classes": None, "global_batch": None, "settings": settings,
        }
        untold = sorted(self.untold)
        return {"rank": self.rank, "world": self.world, "host": host(), "case": case, "untold": untold}

    def model(self):
        return self.order.get("model") or "+".join(self.roots.names) or "model"

    def hook_excepthook(self):
        before = sys.excepthook

        def told(kind, error, trace):
            self.failed = True
            before(kind, error, trace)

        sys.excepthook = told

    def close(self):
        """The process ends: in good order, unless an exception ends it."""
        if self.closed or not self.opened or self.pid != os.getpid():
            return
        self.closed = True
        if hooks.listener is self:
            hooks.listen(None)
        kind, error, _ = sys.exc_info()
        self.failed |= kind is not None and not (kind is SystemExit and error.code in (None, 0))
        self.end_last()
        self.write_rest()
        if not self.failed:
            self.write_done()
        if self.lines is not None:
            self.lines.close()

    @guarded
    def end_last(self):
        """The last step that an optimizer ended; what came behind it is none."""
        last = self.ended
        if last is None:
            return
        last.end = last.marks[-1][1]
        if last.marks[-1][0] == "eval":
            # It lasted until its last forward ended, or until something else was loaded.
            last.end = self.step.marks[0][1] if not self.in_tail() else self.until or last.end
        last.counters_after = last.counters_after or (self.counters() if last.sampled else None)
        self.count(last)
        self.waiting.append(last)
