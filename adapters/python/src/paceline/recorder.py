"""Keeps the time of a rank: marks while it trains, lines of its log when their moments are known."""

import functools
import math
import threading
import time
from collections import deque

from . import scheduling
from .clock import CAUGHT_UP, CudaClock, HostClock, now
from .files import to_line, warn
from .machine import peak_resident
from .step import COMPUTING, PAUSES, Exchange, starved, step_line, tile, under_way

MANY, SELDOM = 32, 1_000_000_000  # steps that are written together, and the time after which fewer are


def guarded(method):
    """Training must survive measuring: a method that fails ends the log with one warning and does nothing afterwards."""

    @functools.wraps(method)
    def call(self, *args):
        if not self.off:
            try:
                return method(self, *args)
            except Exception as error:
                self.give_up(error)

    return call


class Recorder:
    """Where the time of this rank goes. `step` is what time goes to now; between steps it may have ended already."""

    def __init__(self):
        self.off, self.closed, self.rank = False, False, 0
        self.clock = HostClock()
        self.stamp = self.clock.stamp
        self.processor = time.thread_time_ns  # or None: marks do not tell processor time
        self.lines, self.scheduler = None, None
        self.step, self.waiting, self.written_at, self.many = None, deque(), now(), MANY
        self.named, self.current = [], None  # phases that somebody named, and the one that time goes to now
        self.in_backward, self.updating, self.capturing = False, None, None
        self.thread = threading.get_ident()
        self.batch = None
        self.told, self.notes = set(), []  # texts of notes, and those that are not written yet
        self.untold = set()  # phases that cannot be told

    def give_up(self, error):
        self.off = True
        where = f"{self.lines.path}: " if self.lines else ""
        warn(f"rank {self.rank} goes on without a log: {where}{type(error).__name__}: {error}")

    def note(self, text, untold=()):
        """What could not be told, once."""
        if text in self.told or self.off:
            return
        self.told.add(text)
        self.untold.update(untold)
        self.notes.append({"note": {"at": now(), "text": text, **({"untold": list(untold)} if untold else {})}})

    def use_device(self, torch, parameters):
        """The device keeps the time if the parameters are there."""
        if not isinstance(self.clock, CudaClock) and any(parameter.is_cuda for parameter in parameters):
            self.clock, self.processor = CudaClock(torch), None
            self.stamp = self.clock.stamp

    # -- Marks

    def mark(self, phase):
        """Starts a phase. A step that is not sampled has pauses alone."""
        before, self.current = self.current, phase
        step = self.step
        if step is None or not (step.sampled or phase in PAUSES or before in PAUSES):
            return None
        stamp, processor = self.stamp(), self.processor
        step.marks.append((phase, stamp, processor and processor()))
        return stamp

    def auto(self, phase):
        if not self.named and self.current != phase:
            self.mark(phase)

    def pausing(self):
        return self.current in PAUSES or bool(self.named) and any(phase in PAUSES for phase in self.named)

    def is_open(self):
        """Whether something measured now belongs to a step."""
        return self.step is not None and self.step.end is None and self.step.sampled and self.capturing is None

    @guarded
    def begin_exchange(self, size, phase):
        if not self.is_open() or self.pausing():
            return None
        exchange = Exchange(size, phase, self.mark(phase) if phase else self.stamp())
        self.step.exchanges.append(exchange)
        return exchange

    @guarded
    def hand_back(self, exchange, phase):
        """The caller goes on; the exchange may be under way."""
        if exchange is not None:
            exchange.handed = self.mark(self.named[-1] if self.named else phase) if exchange.phase else exchange.begun

    @guarded
    def end_exchange(self, exchange):
        if exchange is not None and exchange.ended is None:
            exchange.ended = self.stamp()

    # -- Writing

    def finish(self, step):
        """A step whose end is set."""
        self.waiting.append(step)
        # Many at a time: what is written seldom costs little. A device has passed most of them by then.
        if len(self.waiting) >= self.many or now() - self.written_at > SELDOM:
            self.write_known()

    def write_known(self):
        """The steps whose times are known by now."""
        known = []
        while self.waiting and self.clock.is_known(self.waiting[0].end):
            known.append(self.waiting.popleft())
        self.write_steps(known)

    def write_steps(self, steps):
        """Writes finished steps, all at once."""
        self.lines.held += map(to_line, self.notes)
        self.notes.clear()
        losses = iter(self.clock.numbers([loss for step in steps for loss in step.losses]))
        for step in steps:
            step.losses = [next(losses) for _ in step.losses]
            self.lines.held.append(step_line(self.record(step)))
        self.lines.flush()
        self.written_at = now()
        if self.scheduler is not None:
            self.scheduler.alone = self.is_alone()

    def is_alone(self):
        """Whether no thread but the one that trains computes."""
        return False

    written = None  # where the last step that was written ended

    def record(self, step):
        if not step.sampled and len(step.marks) == 1:
            return self.record_end(step)
        exchanges = [each for each in step.exchanges if each.ended is not None and each.handed is not None]
        names = [mark[0] for mark in step.marks]
        stamps = [mark[1] for mark in step.marks]
        stamps.append(step.end)
        count = len(stamps)
        for each in exchanges:
            stamps += (each.begun, each.handed, each.ended)
        told = self.clock.moments(stamps, count - 1)
        lags = self.clock.lags
        # Marks only go up, and the first is where the step before ended, to the nanosecond.
        moments, reached = told[:count], self.written or 0
        for place, moment in enumerate(moments):
            if moment > reached:
                reached = moment
            else:
                moments[place] = reached
        if self.written is not None:
            moments[0] = self.written
        self.written = reached
        arrivals = []
        for each in exchanges:
            begun, handed, ended = told[count:count + 3]
            count += 3
            cpu = max(0, handed - begun) if each.phase == "comm_cpu" else 0
            arrivals.append((begun, max(begun, ended), each.bytes, cpu))
        arrivals.sort()
        phases, waits = tile(names, moments, arrivals)
        record = self.outline(step, moments[0], reached)
        if not step.sampled:
            record["phases"] = {phase: time for phase, time in phases.items() if phase in PAUSES}
            return record
        record["phases"] = phases
        if arrivals:
            record["comm_busy"], record["overlapped"] = under_way(names, moments, arrivals)
            record["arrivals"], record["waits"] = arrivals, waits
        if lags is None:
            after = step.counters_after
            if after and step.counters:
                cpus = [mark[2] for mark in step.marks]
                cpus.append(after[3])
                record["scheduling"] = scheduling.told(names, moments, cpus, phases, step.counters, after)
        elif not COMPUTING.isdisjoint(phases):
            record["starved"] = starved(names, moments, lags, CAUGHT_UP)
        return record

    def record_end(self, step):
        """Of a step that was not measured, when it ended."""
        begin = self.written
        told = self.clock.moments([step.marks[0][1], step.end], 1)
        self.written = max(told[1], begin or 0)
        return self.outline(step, told[0] if begin is None else begin, self.written)

    def outline(self, step, begin, end):
        losses, examples = step.losses, step.told_examples()
        loss = sum(losses) / len(losses) if losses else None
        record = {
            "step": step.number, "begin": begin, "end": end, "phases": {},
            "examples": self.batch or 0 if examples is None else examples,
            "loss": loss if loss is not None and math.isfinite(loss) else None,
        }
        if not step.sampled:
            record["sampled"] = False
        return record

    def counters(self):
        """The system's counters for this thread. They also say whether marks had better tell processor time."""
        if self.scheduler is None:
            return None
        read = self.scheduler.read()
        self.processor = time.thread_time_ns if self.scheduler.close_steps else None
        return read

    @guarded
    def write_rest(self):
        """All finished steps; waits for the device."""
        steps, self.waiting = list(self.waiting), deque()
        if steps:
            self.clock.settle(steps[-1].end)
        self.write_steps(steps)

    @guarded
    def write_done(self):
        device = None
        if isinstance(self.clock, CudaClock):
            device = self.clock.torch.cuda.max_memory_allocated()
        self.lines.append({"done": {"at": now(), "peak_resident": peak_resident(), "peak_device": device}})
