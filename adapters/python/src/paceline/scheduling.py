"""What the system did to the threads of this process: how long they were ready to run and had no core."""

import os
import threading
import time

from .clock import now

SELDOM = 50_000_000  # ns between two looks at the other threads, which cost microseconds each
# Where the rest of the waiting for a core was, behind computation: as Paceline's own workers book it.
UNMEASURED = ("comm_wait", "load", "eval", "checkpoint", "update")
MEASURED = ("forward", "backward", "compute", "update")


class Scheduler:
    """Watches the thread that made it, and the others of its process that compute. To be read on that thread."""

    def __init__(self):
        self.main = self._open(threading.get_native_id())
        self.others, self.looked = {}, 0
        self.worst = 0  # what the computing thread that waited longest has waited in all

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
        """Counters to take the difference of: waiting of this thread, of the worst of the others, processor time of the process."""
        if self.main is None:
            return None
        ran, waited = self._read(self.main)
        if now() - self.looked > SELDOM:
            self._look(ran)
        return waited, self.worst, time.process_time_ns()

    def _look(self, ran):
        self.looked = now()
        own = ran - self.others.get("own", ran)
        self.others["own"] = ran
        longest = 0
        me = str(threading.get_native_id())
        seen = set()
        for name in os.listdir("/proc/self/task"):
            if name == me:
                continue
            seen.add(name)
            known = self.others.get(name)
            if known is None:
                file = self._open(name)
                if file is not None:
                    self.others[name] = file, 0, None
                continue
            file, before, waited_before = known
            try:
                other, waited = self._read(file)
            except (OSError, ValueError):
                continue
            self.others[name] = file, other, waited
            # One that hardly computes holds nobody up: a pool that sleeps, a watchdog.
            if waited_before is not None and 4 * (other - before) > own:
                longest = max(longest, waited - waited_before)
        for name in set(self.others) - seen - {"own"}:
            os.close(self.others.pop(name)[0])
        self.worst += longest

    def close(self):
        for name in set(self.others) - {"own"}:
            os.close(self.others.pop(name)[0])
        if self.main is not None:
            os.close(self.main)


def told(marks, end, end_cpu, phases, before, after):
    """A step's scheduling: marks are (phase, moment, processor time)."""
    queued, worst, process = (later - earlier for later, earlier in zip(after, before))
    gaps, other = {}, end - marks[0][1] - sum(phases.values())
    for place, (phase, moment, cpu) in enumerate(marks):
        until, until_cpu = (marks[place + 1][1:]) if place + 1 < len(marks) else (end, end_cpu)
        if phase in MEASURED and cpu is not None and until_cpu is not None:
            gaps[phase] = gaps.get(phase, 0) + max(0, until - moment - (until_cpu - cpu))
    off_core = {}
    # A thread that computes lacks on its own clock what it waited for a core, or for another thread that did.
    left = max(queued, worst)
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
    scheduling = {"process_cpu": process, "queued": queued, "off_core": off_core}
    cpu = marks[0][2]
    if cpu is not None and end_cpu is not None:
        scheduling = {"cpu": end_cpu - cpu, **scheduling}
    return scheduling
