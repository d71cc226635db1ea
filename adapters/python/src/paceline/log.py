"""The log of a script that says itself where its steps are."""

import atexit
import contextlib
import json
import os
import re
import sys
import threading
import time
import weakref

from . import ddp, hooks
from .clock import now
from .files import LAUNCHER, Lines, claim, rank_file
from .listener import Listener
from .machine import host, machine, place, process_start
from .recorder import guarded
from .roots import Roots
from .scheduling import Scheduler
from .step import PAUSES, PHASES, Step, count_examples
from .study import enter_case, finish


class Log(Listener):
    """The run log of this rank. `folder` is the study folder, with one subfolder for each model and number of workers; under
    `paceline run`, the log goes where the command's logs go.

    What a case is (`batch` a worker or `global_batch`, `threads`, `input`, `settings`, ...) sets cases of a study apart;
    the report compares those that differ in workers alone. `repeat` 2, 3, ... adds runs of the same case.
    """

    def __init__(self, folder=None, model="model", *, rank=None, world=None, name=None, repeat=1, batch=None,
                 global_batch=None, threads=None, input=None, classes=None, layout=None, precision=None,
                 update="allreduce", settings=None, patience=30.0):
        super().__init__(sys.modules.get("torch"))
        found = place()
        self.rank = found[0] if rank is None else rank
        self.world = found[1] if world is None else world
        if not 0 <= self.rank < self.world:
            raise ValueError(f"rank {self.rank} of {self.world}")
        self.patience, self.batch = patience, batch
        self.launcher, self.number, self.roots = None, 0, None
        self.opened = time.time()
        torch = self.torch
        case = {
            "model": model, "engine": "pytorch" if torch else None, "layout": layout, "precision": precision,
            "update": update, "scaling": "strong" if global_batch else "weak", "workers": self.world,
            "batch_per_worker": global_batch // self.world if global_batch else batch,
            "threads": threads or (torch.get_num_threads() if torch else None),
            "input": input, "classes": classes, "global_batch": global_batch,
            "settings": {key: str(value) for key, value in (settings or {}).items()},
        }
        name = name or f"{model}-{self.world}"
        name = re.sub(r"[^\w.-]+", "_", name if repeat == 1 else f"{name}-repeat-{repeat}").lstrip(".") or "case"
        _logs.add(self)
        try:
            order = os.environ.get("PACELINE_RUN")
            if order:
                self._join(json.loads(order), case)
            else:
                self._open(folder or "paceline-runs", name, repeat, case)
            self.scheduler = Scheduler(self.is_alone())
        except Exception as error:
            self.give_up(error)

    def _join(self, order, case):
        """Writes into the folder of a command that `paceline run` started, instead of its follower."""
        hooks.listen(None)
        self.lines = claim(order["out"], self.rank, self.world)
        self._head(case, max(process_start(), int(order.get("spawn") or 0)))

    def _open(self, study, name, repeat, case):
        self.folder = os.path.join(study, name)
        os.makedirs(self.folder, exist_ok=True)
        main = process_start()
        if self.rank == 0:
            engine = f"PyTorch {self.torch.__version__}" if self.torch else None
            enter_case(study, name, repeat, case, machine(engine))
            self.launcher = Lines(os.path.join(self.folder, LAUNCHER))
            self.launcher.head({"case": case})
            self.launcher.hold()
            self.launcher.append({"spawn": {"rank": 0, "at": main}})
        self.lines = Lines(os.path.join(self.folder, rank_file(self.rank)))
        self._head(case, main)

    def _head(self, case, main):
        self.lines.head({"rank": self.rank, "world": self.world, "host": host(), "case": case})
        self.lines.append({"main": {"at": main, "pid": os.getpid()}})

    # -- What hooks see

    def watch(self, model, optimizer=None, hook=None, state=None):
        """Measures forward, backward, the exchange of a DDP model, the update, and checkpoints. `hook` and `state` are a
        communication hook of the script's own, which `model.register_comm_hook` takes as well. Returns the model."""
        self._follow(model)
        if hook is not None:
            model.register_comm_hook(state, hook)
        elif hasattr(model, "register_comm_hook") and not self.off:
            why = ddp.follow(self.torch, model)
            if why is not None:
                self.note(why, ["comm_wait", "comm_cpu"])
        return model

    @guarded
    def _follow(self, model):
        self.torch = sys.modules.get("torch")
        self.thread = threading.get_ident()
        if self.step is None:
            self.use_device(self.torch, model.parameters())
            if self.on_device:
                self.stream = self.torch.cuda.current_stream()
        hooks.install(self.torch)
        hooks.listen(self)
        if self.roots is None:
            self.roots = Roots(self.torch)
        self.roots.attach([*self.roots.modules, model])

    # -- What the script says

    def steps(self, batches):
        """Yields the batches; from one to the next is a step."""
        if self.step is None:
            iterator, asked = iter(batches), None
        else:
            asked = self._rest()
            iterator = iter(batches)
        try:
            while True:
                asked = asked or self._rest()
                try:
                    batch = next(iterator)
                except StopIteration:
                    self._ran_out(asked)
                    return
                self._begin(asked, batch)
                asked = None
                yield batch
        finally:
            self._rest()

    @guarded
    def _rest(self):
        """The step is over, unless a pause follows. Tells when, by the clock and in processor time."""
        stamp = self.stamp(), self.processor and self.processor()
        if self.step is not None and self.step.end is None:
            self.step.end = stamp[0]
            self.step.counters_after = self.counters()
        self.current = None
        return stamp

    @guarded
    def _ran_out(self, asked):
        if self.step is not None:
            self.step.marks += [(None, self.step.end, asked[1]), ("load", *asked)]
            self.step.end = self.stamp()

    @guarded
    def _begin(self, asked, batch):
        loaded = self.stamp()
        before = self.step
        self.step = Step(self.number, before.end if before else asked[0], asked[1])
        self.step.counters = (before and before.counters_after) or self.counters()
        self.step.marks += [("load", *asked), (None, loaded, self.processor and self.processor())]
        self.step.counted = count_examples(batch)
        self.number += 1
        self.in_backward = False
        if before:
            self.finish(before)

    def result(self, loss=None, examples=None):
        """The result of the step or of one of its passes: mean loss, and number of examples if not one per row of the batch."""
        self._result(loss, examples)

    @guarded
    def _result(self, loss, examples):
        step = self.step
        if step is None or step.end is not None:
            return
        if examples is not None:
            step.examples = (step.examples or 0) + int(examples)
        if getattr(loss, "is_cuda", False):
            # Kept as it is, and read when the step is known to have ended.
            loss = loss.detach() if loss.dim() == 0 else loss.detach().mean()
        elif loss is not None:
            loss = loss.item() if hasattr(loss, "item") else float(loss)
        if loss is not None:
            step.losses.append(loss)

    @contextlib.contextmanager
    def phase(self, name):
        """Counts a block as a phase, whatever hooks see in it. `eval` and `checkpoint` may also be between steps, where they
        belong to the previous step."""
        if name not in PHASES:
            raise ValueError(f"'{name}' is none of the phases {', '.join(PHASES)}")
        self.pause_begins(name)
        try:
            yield
        finally:
            self.pause_ended(name)

    def between(self):
        return self.step is not None and self.step.end is not None

    def enter(self, name):
        if self.between() and name in PAUSES:
            self.step.marks.append((None, self.step.end, None))
        if not self.between() or name in PAUSES:
            self.mark(name)

    def leave(self, before):
        if self.between():
            if self.current in PAUSES:
                self.step.end = self.stamp()
                self.step.counters_after = self.counters()
            self.current = None
        else:
            super().leave(before)

    # -- The end

    def close(self, failed=None):
        """Ends the log; `failed` says why training failed, if it did. Rank 0 waits up to `patience` seconds for the logs of
        the others, then writes when the run began and ended."""
        if self.closed:
            return
        self.closed = True
        if hooks.listener is self:
            hooks.listen(None)
        if self.roots is not None:
            self.roots.release()
        self._end_last()
        self.write_rest()
        if failed is None:
            self.write_done()
        if self.launcher is not None:
            self._finish(failed)
        for file in filter(None, [self.lines, self.launcher]):
            file.close()
        self.off = True

    @guarded
    def _end_last(self):
        if self.step is not None and self.step.end is not None:
            self.waiting.append(self.step)
        self.step = None

    @guarded
    def _finish(self, failed):
        finish(self.folder, self.opened, 0 if failed else self.patience, failed)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, _):
        self.close(failed=None if kind is None else f"rank {self.rank}: {kind.__name__}: {error}")


_logs = weakref.WeakSet()


def _stay_silent():
    """A forked process, such as a worker of a data loader, is not a rank."""
    for log in _logs:
        log.off = log.closed = True


def _leave_unclosed():
    for log in list(_logs):
        log.close(failed=f"rank {log.rank} did not close its log: it failed, or close() is not called")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_stay_silent)
atexit.register(_leave_unclosed)
