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
from .step import COMPUTING, PAUSES, Exchange, busy, overlapped, starved, step_line, tile

MANY, SELDOM = 32, 1_000_000_000  # steps that are written together, and the time after which fewer are


def guarded(method):
    """Training must survive measuring: a method that fails ends the log with one warning and does nothing afterwards."""

    @functools.wraps(method)
    def call(self, *args, **kwargs):
        if not self.off:
            try:
                return method(self, *args, **kwargs)
            except Exception as error:
                self.give_up(error)

    return call


class Recorder:
    """Where the time of this rank goes. `step` is what time goes to now; between steps it may have ended already."""

    def __init__(self):
        self.off, self.closed, self.rank = False, False, 0
        self.clock, self.processor = HostClock(), time.thread_time_ns
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
            self.clock, self.processor = CudaClock(torch), lambda: None

    # -- Marks

    def mark(self, phase):
        """Starts a phase. A step that is not sampled has pauses alone."""
        before, self.current = self.current, phase
        step = self.step
        if step is None or not (step.sampled or phase in PAUSES or before in PAUSES):
            return None
        stamp = self.clock.stamp()
        step.marks.append((phase, stamp, self.processor()))
        return stamp

    def auto(self, phase):
        if not self.named and self.current != phase:
            self.mark(phase)

    def pausing(self):
        return self.current in PAUSES or bool(self.named and any(phase in PAUSES for phase in self.named))

    def is_open(self):
        """Whether something measured now belongs to a step."""
        return self.step is not None and self.step.end is None and self.step.sampled and self.capturing is None

    @guarded
    def begin_exchange(self, size, phase):
        if not self.is_open() or self.pausing():
            return None
        exchange = Exchange(size, phase, self.mark(phase) if phase else self.clock.stamp())
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
            exchange.ended = self.clock.stamp()

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

    written = None  # where the last step that was written ended

    def record(self, step):
        exchanges = [each for each in step.exchanges if each.ended is not None and each.handed is not None]
        stamps = [stamp for _, stamp, _ in step.marks]
        stamps.append(step.end)
        count = len(stamps)
        for each in exchanges:
            stamps += (each.begun, each.handed, each.ended)
        stamps.append(step.end)
        told = self.clock.moments(stamps)
        lags = self.clock.lags
        moments = iter(told)
        # Marks only go up, and the first is where the step before ended, to the nanosecond.
        marks, reached = [], self.written or 0
        for phase, _, _ in step.marks:
            moment = next(moments)
            if moment > reached:
                reached = moment
            marks.append((phase, reached))
        if self.written is not None:
            marks[0] = (marks[0][0], self.written)
        self.written = end = max(next(moments), reached)
        arrivals = []
        for each in exchanges:
            begun, handed, ended = next(moments), next(moments), next(moments)
            cpu = max(0, handed - begun) if each.phase == "comm_cpu" else 0
            arrivals.append({"bytes": each.bytes, "begun": begun, "ended": max(begun, ended), "cpu": cpu})
        arrivals.sort(key=lambda arrival: arrival["begun"])
        phases, waits = tile(marks, end, arrivals)
        losses = step.losses
        loss = sum(losses) / len(losses) if losses else None
        examples = step.told_examples()
        record = {
            "step": step.number, "begin": marks[0][1], "end": end, "phases": phases,
            "examples": self.batch or 0 if examples is None else examples,
            "loss": loss if loss is not None and math.isfinite(loss) else None,
        }
        if not step.sampled:
            record["phases"] = {phase: time for phase, time in phases.items() if phase in PAUSES}
            record["sampled"] = False
            return record
        if arrivals:
            both = overlapped(arrivals, marks, end)
            record.update(comm_busy=busy(arrivals), overlapped=both, arrivals=arrivals, waits=waits)
        if step.counters and step.counters_after and lags is None:
            after, end_cpu = step.counters_after
            timed = [(phase, moment, cpu) for (phase, moment), (_, _, cpu) in zip(marks, step.marks)]
            record["scheduling"] = scheduling.told(timed, end, end_cpu, phases, step.counters[0], after)
        if lags is not None and any(phase in COMPUTING for phase in phases):
            record["starved"] = starved(marks, end, lags[:count], CAUGHT_UP)
        return record

    def counters(self):
        """The system's counters for this thread, and its processor time."""
        if self.scheduler is None:
            return None
        read = self.scheduler.read()
        return read and (read, self.processor())

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
