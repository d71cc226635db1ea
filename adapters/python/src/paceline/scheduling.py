"""What the system did to the threads of this process: how long they were ready to run and had no core."""

import os
import threading
import time

from .clock import now

SELDOM = 50_000_000  # ns between two looks at the other threads, which cost microseconds each
DEAR = 500  # so many times as long as a look took, until the next
RARELY = 2_000_000_000  # ns between two looks for new threads
LONG = 20_000_000  # ns: of a step so long, all marks tell the processor's time: it costs nothing there
CROWDED = 100  # a hundredth of the time without a core, and the marks of the next steps tell it too
CLOSE = 32
# Where the rest of the waiting for a core was, behind computation: as Paceline's own workers book it.
UNMEASURED = ("comm_wait", "load", "eval", "checkpoint", "update")
MEASURED = ("forward", "backward", "compute", "update")


class Scheduler:
    """Watches the thread that made it, and the others of its process that compute, unless there are none. To be read on that
    thread."""

    def __init__(self, alone=False):
        self.main = self._open(threading.get_native_id())
        self.alone = alone
        self.others, self.next_look, self.next_search = {}, 0, 0
        self.own = None
        self.worst = 0  # what the computing thread that waited longest has waited in all
        self.before, self.close_steps = None, CLOSE

    @staticmethod
    def _open(thread):
        try:
            return os.open(f"/proc/self/task/{thread}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None

    @staticmethod
    def _read(file):
        """Time on a core and time that it waited for one."""
        ran, waited, _ = os.pread(file, 96, 0).split()
        return int(ran), int(waited)

    def read(self):
        """Counters to take the difference of: waiting of this thread, of the worst of the others, processor time of the process and
        of this thread."""
        if self.main is None:
            return None
        ran, waited, _ = os.pread(self.main, 96, 0).split()
        waited, moment = int(waited), now()
        if not self.alone and moment > self.next_look:
            self._look(int(ran), moment)
        before, self.before = self.before, (moment, waited, self.worst)
        if before is not None:
            length = moment - before[0]
            if length > LONG or CROWDED * max(waited - before[1], self.worst - before[2]) > length:
                self.close_steps = CLOSE
            elif self.close_steps:
                self.close_steps -= 1
        return waited, self.worst, time.process_time_ns(), time.thread_time_ns()

    def _look(self, ran, moment):
        own = 0 if self.own is None else ran - self.own
        self.own = ran
        if moment > self.next_search:
            self.next_search = moment + RARELY
            self._search()
        longest = 0
        for name, (file, before, waited_before) in list(self.others.items()):
            try:
                other, waited = self._read(file)
            except (OSError, ValueError):
                os.close(self.others.pop(name)[0])
                continue
            self.others[name] = file, other, waited
            # One that hardly computes holds nobody up: a pool that sleeps, a watchdog.
            if before is not None and 4 * (other - before) > own:
                longest = max(longest, waited - waited_before)
        self.worst += longest
        ended = now()
        self.next_look = moment + max(SELDOM, DEAR * (ended - moment))

    def _search(self):
        me = str(threading.get_native_id())
        for name in os.listdir("/proc/self/task"):
            if name != me and name not in self.others:
                file = self._open(name)
                if file is not None:
                    self.others[name] = file, None, None

    def close(self):
        for file, _, _ in self.others.values():
            os.close(file)
        self.others = {}
        if self.main is not None:
            os.close(self.main)
            self.main = None


def told(names, moments, cpus, phases, before, after):
    """A step's scheduling: processor time of its thread and of the process, waiting for a core, and in which phases that was. `cpus` is
    the thread's processor time at each moment; None where it was not asked for."""
    queued, process, cpu = after[0] - before[0], after[2] - before[2], after[3] - before[3]
    # A thread that computes lacks on its own clock what it waited for a core, or for another thread that did.
    left = max(queued, after[1] - before[1])
    if left <= 0:
        return cpu, process, queued, {}
    gaps = {}
    for place, phase in enumerate(names):
        if phase in MEASURED:
            if cpus[place] is None or cpus[place + 1] is None:
                return cpu, process, queued, by_length(queued, phases, moments[-1] - moments[0])
            gap = moments[place + 1] - moments[place] - (cpus[place + 1] - cpus[place])
            if gap > 0:
                gaps[phase] = gaps.get(phase, 0) + gap
    other = moments[-1] - moments[0] - sum(phases.values())
    off_core = {}
    for phase in MEASURED:
        take = min(left, gaps.get(phase, 0), phases.get(phase, 0))
        if take > 0:
            off_core[phase] = take
            left -= take
    left = min(left, max(0, queued - sum(off_core.values())))
    for phase in UNMEASURED[:1] + ("other",) + UNMEASURED[1:]:
        room = other if phase == "other" else phases.get(phase, 0) - off_core.get(phase, 0)
        take = min(left, room)
        if take > 0:
            off_core[phase] = off_core.get(phase, 0) + take
            left -= take
    return cpu, process, queued, off_core


def by_length(queued, phases, length):
    """The little that was waited in a step whose marks do not tell where."""
    if length <= 0:
        return {}
    queued = min(queued, length)
    parts = {**phases, "other": length - sum(phases.values())}
    return {phase: queued * time // length for phase, time in parts.items() if queued * time >= length}
