"""Writes Paceline's run log from a PyTorch training script, so that `paceline report` can say where the time went.

    log = paceline_log.Log("runs", model="resnet50")        # in every rank, once RANK and WORLD_SIZE are known
    log.watch(model, optimizer)                             # the DDP model (or a plain one), before the first step
    for images, labels in log.steps(loader):                # one pass of the loop is one step
        loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()
        log.result(loss)
    log.close()

Then `paceline report runs`. Run the script with one worker and with several into the same folder, and the report has the
speed-ups and their causes. `with log.phase("eval"):` (or any other phase) marks what hooks cannot see.

    python -m paceline_log run --out runs -- torchrun --nproc-per-node 2 train.py     # also times the start and the end
    python -m paceline_log merge runs/resnet50-2                                      # splits the waits of a killed run

One file without dependencies: copy it, or `pip install ./adapters/python`. Python 3.9 and PyTorch 2.0 or later. If
logging fails, training continues: it prints one warning and stops logging. docs/run-log.md describes the format and how
each phase is measured.
"""

import argparse
import atexit
import contextlib
import fcntl
import functools
import json
import math
import os
import platform
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import weakref
from collections import deque

__version__ = "0.1.0"

FORMAT, VERSION = "paceline-log", 1
SCHEMA = 2  # of study.json
PHASES = (
    "load", "copy_in", "forward", "backward", "compute", "copy_out", "comm_wait", "comm_cpu", "update", "idle", "eval",
    "checkpoint",
)
MANY, SELDOM = 32, 1_000_000_000  # steps that are written together, and the time after which fewer are
PAUSES = ("eval", "checkpoint")  # may follow a step's end, and hide what hooks see
LAUNCHER = "launcher.jsonl"
ENV_OUT, ENV_SPAWN, ENV_CASES = "PACELINE_LOG_OUT", "PACELINE_LOG_SPAWN", "PACELINE_LOG_CASES"

now = time.monotonic_ns  # CLOCK_MONOTONIC, which all processes of a host share


def warn(text):
    print(f"paceline_log: {text}", file=sys.stderr, flush=True)


def rank_file(rank):
    return f"rank-{rank}.jsonl"


# ---- The machine ------------------------------------------------------------------------------------------------------


def read_text(path):
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return None


def process_start():
    """Start time of this process on the monotonic clock, or the current time if unknown (resolution on Linux: 10 ms)."""
    try:
        with open("/proc/self/stat") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])  # since boot, the name before it may hold anything
        since_boot = ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
        asleep = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - now()  # the monotonic clock stops with the machine
        return max(0, min(since_boot - asleep, now()))
    except (OSError, ValueError, IndexError, AttributeError):
        return now()


def host():
    """An identifier common to all processes with the same monotonic clock."""
    return (read_text("/proc/sys/kernel/random/boot_id") or platform.node()).strip()


def peak_resident():
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def machine(engine):
    cpu = re.search(r"^model name\s*:\s*(.+)$", read_text("/proc/cpuinfo") or "", re.MULTILINE)
    memory = re.search(r"^MemTotal:\s*(\d+) kB", read_text("/proc/meminfo") or "", re.MULTILINE)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "cpu": cpu.group(1) if cpu else None,
        "cores": cores,
        "memory": int(memory.group(1)) * 1024 if memory else None,
        "kernel": platform.release() or None,
        "engine": engine,
    }


# ---- Files ------------------------------------------------------------------------------------------------------------


class Lines:
    """A log being written: whole lines in one write, so that a killed process leaves only whole lines."""

    def __init__(self, path, header):
        self.path, self.held = path, []
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o666)
        self.append({"format": FORMAT, "version": VERSION, **header})

    def append(self, event):
        self.held.append(to_line(event))
        self.flush()

    def flush(self):
        lines = "".join(self.held).encode()
        self.held.clear()
        written = os.write(self.file, lines) if lines else 0
        if written != len(lines):
            raise OSError(f"only {written} of {len(lines)} bytes found room")

    def hold(self):
        """Locks the file until it is closed or the process ends: so a reader knows that the run is under way."""
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(self.file, fcntl.LOCK_EX)

    def close(self):
        os.close(self.file)


def to_line(event):
    return json.dumps(event, separators=(",", ":"), allow_nan=False) + "\n"


def to_text(events):
    return "".join(map(to_line, events))


def read_lines(path):
    """The complete lines of a log as objects, the header first; a truncated last line is skipped."""
    with open(path, "rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield json.loads(line)


def replace(path, text):
    """Writes a file completely or not at all."""
    draft = f"{path}.{os.getpid()}.draft"
    try:
        with open(draft, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.remove(draft)
        raise


@contextlib.contextmanager
def locked(folder, seconds=5):
    """Locks a study folder while study.json is changed; continues without the lock if another process keeps it."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        deadline = now() + seconds * 1_000_000_000
        while now() < deadline:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                time.sleep(0.05)
        yield
    finally:
        os.close(descriptor)


def change_study(folder, change):
    """Reads or creates study.json, applies `change`, and writes it."""
    path = os.path.join(folder, "study.json")
    with locked(folder):
        text = read_text(path)
        program = f"paceline_log {__version__}"
        study = {"schema": SCHEMA, "program": program, "command": sys.argv, "machine": {}, "cases": []}
        if text is not None:
            study = json.loads(text)
            if study.get("schema") != SCHEMA or not study.get("program", "").startswith("paceline_log"):
                raise OSError(f"{path} is no study of this adapter's; use another folder")
        change(study)
        replace(path, json.dumps(study, indent=2) + "\n")


# ---- A step, once its moments are known ----------------------------------------------------------------------------------


def tile(marks, end, exchanges):
    """Time of a step by phase, and when it waited for exchanges.

    A mark is (phase, moment): from there to the next one; None is no phase. A wait is over when the last exchange is;
    what follows, up to the next mark, is copying its result.
    """
    phases, waits = {}, []
    place, last = 0, len(marks) - 1
    for phase, begin in marks:
        until = marks[place + 1][1] if place < last else end
        place += 1
        if phase == "comm_wait":
            ended = max((e["ended"] for e in exchanges if e["begun"] <= until), default=until)
            ended = min(max(ended, begin), until)
            phases["comm_cpu"] = phases.get("comm_cpu", 0) + until - ended
            until = ended
            waits.append([begin, until])
        if phase is not None:
            phases[phase] = phases.get(phase, 0) + until - begin
    return {phase: time for phase, time in phases.items() if time > 0}, [wait for wait in waits if wait[1] > wait[0]]


def busy(exchanges):
    """Time in which at least one exchange was under way."""
    if len(exchanges) == 1:
        return exchanges[0]["ended"] - exchanges[0]["begun"]
    total = reached = 0
    for exchange in sorted(exchanges, key=lambda e: e["begun"]):
        total += max(0, exchange["ended"] - max(exchange["begun"], reached))
        reached = max(reached, exchange["ended"])
    return total


COMPUTING = ("forward", "backward", "compute", "update")


def overlapped(exchanges, marks, end):
    """Time in which at least one exchange was under way and the rank computed."""
    ends = [moment for _, moment in marks[1:]] + [end]
    computing = [(begin, until) for (phase, begin), until in zip(marks, ends) if phase in COMPUTING]
    total = reached = 0
    for exchange in sorted(exchanges, key=lambda e: e["begun"]):
        total += overlap(computing, max(exchange["begun"], reached), exchange["ended"])
        reached = max(reached, exchange["ended"])
    return total


def overlap(waits, begin, end):
    return sum(max(0, min(end, until) - max(begin, since)) for since, until in waits)


def split(arrivals, waits, last):
    """Buckets of a step. Waiting counts for the first unfinished exchange: until the last rank arrived (`last`: time and
    rank for each exchange) as waiting for that rank, from then on as moving bytes."""
    buckets, reached = [], 0
    for arrival, (last_arrival, last_rank) in zip(arrivals, last):
        reached = max(reached, arrival["begun"])
        late = overlap(waits, reached, last_arrival)
        reached = max(reached, last_arrival)
        transfer = overlap(waits, reached, arrival["ended"])
        reached = max(reached, arrival["ended"])
        buckets.append({
            "bytes": arrival["bytes"],
            "begun": arrival["begun"],
            "last_arrival": last_arrival,
            "last_rank": last_rank,
            "ended": arrival["ended"],
            "waited_late": late,
            "waited_transfer": transfer,
            "cpu": arrival["cpu"],
            "moved": 2 * arrival["bytes"],  # at least once in and once out; more is not known
        })
    return buckets


def step_line(record):
    """The line of a step, which contains only numbers; several times faster than a general JSON writer."""
    phases = ",".join([f'"{phase}":{time}' for phase, time in record["phases"].items()])
    loss = record["loss"]
    line = (f'{{"step":{{"step":{record["step"]},"begin":{record["begin"]},"end":{record["end"]},"phases":{{{phases}}},'
            f'"examples":{record["examples"]},"loss":{"null" if loss is None else repr(loss)}')
    arrivals = record.get("arrivals")
    if arrivals:
        told = ",".join([f'{{"bytes":{e["bytes"]},"begun":{e["begun"]},"ended":{e["ended"]},"cpu":{e["cpu"]}}}' for e in arrivals])
        waits = ",".join([f"[{since},{until}]" for since, until in record["waits"]])
        line += f',"comm_busy":{record["comm_busy"]},"overlapped":{record["overlapped"]},"arrivals":[{told}],"waits":[{waits}]'
    return line + "}}\n"


# ---- Once all ranks are done ---------------------------------------------------------------------------------------------


def shift(value, by):
    """A rank's event with its times on another clock."""
    if isinstance(value, list):
        return [shift(each, by) if isinstance(each, (dict, list)) else each + by for each in value]
    moments = ("at", "begin", "end", "begun", "ended", "last_arrival")
    nested = ("main", "compiled", "step", "done", "arrivals", "waits", "buckets")
    moved = {key: value[key] + by for key in moments if isinstance(value.get(key), int)}
    moved.update({key: shift(value[key], by) for key in nested if isinstance(value.get(key), (dict, list))})
    return {**value, **moved}


def exchanges_by_step(events):
    steps = (event["step"] for event in events if "step" in event)
    return {step["step"]: step.get("arrivals") or [] for step in steps}


def clock_offsets(hosts, exchanges):
    """Offsets from each rank's clock to that of rank 0: an exchange ends on all ranks at the same time."""
    differences = {}
    for rank, name in hosts.items():
        if name != hosts[0]:
            for step, own in exchanges[rank].items():
                pairs = zip(exchanges[0].get(step, []), own)
                differences.setdefault(name, []).extend(first["ended"] - each["ended"] for first, each in pairs)
    if any(not found for found in differences.values()):
        raise ValueError("ranks on several hosts without a common exchange to set their clocks by")
    by_host = {name: round(statistics.median(found)) for name, found in differences.items()}
    return {rank: by_host.get(name, 0) for rank, name in hosts.items()}


def merge(folder):
    """Converts all ranks to the clock of rank 0, compares when they arrived at each exchange, and rewrites their logs with
    what each waited for. A log that is already merged is not changed."""
    world = next(read_lines(os.path.join(folder, LAUNCHER)))["case"]["workers"]
    paths = {rank: os.path.join(folder, rank_file(rank)) for rank in range(world)}
    exchanges = {rank: exchanges_by_step(read_lines(path)) for rank, path in paths.items()}
    hosts = {rank: next(read_lines(path)).get("host") for rank, path in paths.items()}
    offsets = clock_offsets(hosts, exchanges)
    last = {}
    for step, own in exchanges[0].items():
        others = [exchanges[rank].get(step, []) for rank in range(world)]
        if all(len(other) == len(own) for other in others):
            arrived = lambda i: max((other[i]["begun"] + offsets[rank], rank) for rank, other in enumerate(others))
            last[step] = [arrived(i) for i in range(len(own))]
    for rank, path in paths.items():
        lines = list(read_lines(path))
        if offsets[rank]:
            lines = [{**lines[0], "host": hosts[0]}] + [shift(event, offsets[rank]) for event in lines[1:]]
        for event in lines[1:]:
            step = event.get("step", {})
            if step.get("arrivals") and step["step"] in last:
                step["buckets"] = split(step.pop("arrivals"), step.pop("waits", []), last[step["step"]])
                step["late_rank"] = sum(bucket["waited_late"] for bucket in step["buckets"])
        replace(path, to_text(lines))


def is_done(path, since):
    """Whether a rank has closed its log in this run, which began at `since`: by the age and the last line of the file."""
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_mtime < since - 2:  # a rank of another host may have another time
                return False
            file.seek(max(0, os.fstat(file.fileno()).st_size - 4096))
            last = file.read().splitlines(keepends=True)[-1:]
    except OSError:
        return False
    return bool(last) and last[0].startswith(b'{"done"') and last[0].endswith(b"\n")


def ends_of(path):
    """Begin and end of a finished rank."""
    events = {key: event for line in read_lines(path) for key, event in line.items() if key in ("main", "done")}
    return events["main"]["at"], events["done"]["at"]


def finish(folder, since, patience=0.0, failed=None, process=None):
    """Ends a case: waits for its ranks, merges their logs, and writes when the run began and ended. `process` is what the
    launcher saw (spawn, reap, exit status, interrupted); without a launcher, the first and last times of the ranks count."""
    launcher = os.path.join(folder, LAUNCHER)
    header = next(read_lines(launcher))
    paths = {rank: os.path.join(folder, rank_file(rank)) for rank in range(header["case"]["workers"])}
    deadline = now() + int(patience * 1e9)
    while True:
        missing = [rank for rank, path in paths.items() if not is_done(path, since)]
        if not missing or now() >= deadline:
            break
        time.sleep(0.02)
    spawn, reap, status, interrupted = process or (None, None, 0, False)
    outcome, reason = "done", None
    if interrupted:
        outcome, reason = "interrupted", "the command was interrupted"
    elif status != 0:
        how = f"was ended by signal {-status}" if status < 0 else f"ended with exit code {status}"
        outcome, reason = "failed", f"the command {how}"
    elif failed:
        outcome, reason = "failed", failed
    elif missing:
        names = ", ".join(map(str, missing))
        outcome, reason = "failed", f"rank {names} did not close its log: it failed, or close() is not called"
    if not missing:
        try:
            merge(folder)
        except (OSError, ValueError, KeyError) as error:
            warn(f"cannot compare the ranks' logs in {folder}: {error}")
    exit_status = {"signal": -status} if status < 0 else {"code": status}
    lines = [header]
    ranks = {rank: ends_of(path) for rank, path in paths.items() if rank not in missing}
    for rank, (main, done) in ranks.items():
        lines.append({"spawn": {"rank": rank, "at": main if spawn is None else spawn}})
        end = now() if rank == 0 and reap is None else done
        lines.append({"reap": {"rank": rank, "at": reap or end, "exit": exit_status}})
    if process and not ranks:
        lines += [{"spawn": {"rank": 0, "at": spawn}}, {"reap": {"rank": 0, "at": reap, "exit": exit_status}}]
    lines.append({"over": {"outcome": outcome, "reason": reason}})
    replace(launcher, to_text(lines))
    if 0 in ranks:
        steps = sum("step" in event for event in read_lines(os.path.join(folder, rank_file(0))))
        study, name = os.path.split(os.path.abspath(folder))

        def note_steps(study):
            for planned in study["cases"]:
                if planned["folder"] == name:
                    planned["steps"] = steps

        change_study(study, note_steps)


# ---- Clocks: a stamp is taken at once, its moment may be known only later ------------------------------------------------


class HostClock:
    stamp = staticmethod(now)

    def is_known(self, stamp):
        return True

    def settle(self, stamp):
        pass

    def moments(self, stamps):
        return stamps

    def numbers(self, losses):
        return losses


class CudaClock:
    """Times at which the device's current stream reaches a point, on the host's clock. Nothing waits for the device: events
    are read after the device has passed them, and reused."""

    def __init__(self, torch):
        self.torch, self.free = torch, []
        self.event = functools.partial(torch.cuda.Event, enable_timing=True)
        self.side = torch.cuda.Stream()
        torch.cuda.synchronize()
        self.anchor, self.anchored = self.stamp()
        self.anchor.synchronize()

    def stamp(self):
        event = self.free.pop() if self.free else self.event()
        asked = now()
        event.record()
        return event, asked

    def is_known(self, stamp):
        return stamp[0].query()

    def settle(self, stamp):
        """Waits until the device has reached this point, so that earlier events can be read."""
        stamp[0].synchronize()

    def elapsed(self, event):
        try:
            return self.anchor.elapsed_time(event)
        except RuntimeError:  # on a stream of its own, and a moment behind the step's end
            event.synchronize()
            return self.anchor.elapsed_time(event)

    def moments(self, stamps):
        """The last of the stamps becomes the anchor: milliseconds since it are exact as a 32-bit float."""
        stamps[-1][0].synchronize()  # returns at once for a step that is known to have ended
        anchored = self.anchored
        raw = [anchored + round(self.elapsed(event) * 1e6) for event, _ in stamps]
        # The two clocks drift, but the device is never ahead of the call, nor behind the answer.
        drift = max(0, max(asked - moment for (_, asked), moment in zip(stamps, raw)))
        drift -= max(0, max(raw) + drift - now())
        if drift:
            raw = [moment + drift for moment in raw]
        last = stamps[-1][0]
        # A stamp may stand for the end of one mark and the begin of the next: each event is free once.
        self.free.extend({id(event): event for event, _ in stamps if event is not last}.values())
        self.anchor, self.anchored = last, raw[-1]
        return raw

    def numbers(self, losses):
        """Losses that the device has computed, read together without interrupting its work."""
        if not losses:
            return losses
        with self.torch.cuda.stream(self.side):
            return self.torch.stack([self.torch.as_tensor(loss, device="cuda").float() for loss in losses]).tolist()


# ---- The log of a rank ---------------------------------------------------------------------------------------------------


class Exchange:
    __slots__ = ("bytes", "phase", "begun", "handed", "ended")

    def __init__(self, size, phase, begun):
        self.bytes, self.phase, self.begun, self.handed, self.ended = size, phase, begun, None, None


class Step:
    __slots__ = ("number", "marks", "end", "exchanges", "examples", "counted", "losses")

    def __init__(self, number, begin):
        self.number, self.marks, self.end = number, [(None, begin)], None
        self.exchanges, self.examples, self.counted, self.losses = [], None, None, []


def count_examples(batch):
    """Length of the first tensor in a batch."""
    while isinstance(batch, (list, tuple, dict)) and batch:
        batch = next(iter(batch.values())) if isinstance(batch, dict) else batch[0]
    shape = getattr(batch, "shape", None)
    return int(shape[0]) if shape else None


def follow_backward(torch):
    """Informs the logs of this process when backward begins and ends. Hooks on tensors would cost thirty times as much."""
    backward = torch.autograd.backward
    if getattr(backward, "followed", False):
        return

    @functools.wraps(backward)
    def followed(*args, **kwargs):
        # A backward within another, as of checkpointed layers, is part of it.
        logs = [log for log in _followed if not log.in_backward]
        for log in logs:
            log._backward_begins()
        try:
            return backward(*args, **kwargs)
        finally:
            for log in logs:
                log._backward_ended()

    followed.followed = True
    torch.autograd.backward = followed


def guarded(method):
    """Training must survive logging errors: a method that fails ends the log with one warning and does nothing afterwards."""

    @functools.wraps(method)
    def call(self, *args, **kwargs):
        if not self.off:
            try:
                return method(self, *args, **kwargs)
            except Exception as error:
                self._give_up(error)

    return call


class Log:
    """The run log of this rank. `folder` is the study folder, with one subfolder for each model and number of workers.

    What a case is (`batch` a worker or `global_batch`, `threads`, `input`, `settings`, ...) sets cases of a study apart;
    the report compares those that differ in workers alone. `repeat` 2, 3, ... adds runs of the same case.
    """

    def __init__(self, folder=None, model="model", *, rank=None, world=None, name=None, repeat=1, batch=None,
                 global_batch=None, threads=None, input=None, classes=None, layout=None, precision=None,
                 update="allreduce", settings=None, patience=30.0):
        self.off, self.closed = False, False
        self.rank = int(os.environ.get("RANK", 0)) if rank is None else rank
        self.world = int(os.environ.get("WORLD_SIZE", 1)) if world is None else world
        if not 0 <= self.rank < self.world:
            raise ValueError(f"rank {self.rank} of {self.world}")
        self.patience, self.batch = patience, batch
        self.clock, self.launched = HostClock(), ENV_CASES in os.environ
        self.lines, self.launcher = None, None
        self.step, self.waiting, self.number, self.written_at = None, deque(), 0, now()
        self.named, self.current = [], None  # phases that the script named, and the one that time goes to now
        self.in_backward = False
        self.opened = time.time()
        self.torch = sys.modules.get("torch")
        case = {
            "model": model, "engine": "pytorch" if self.torch else None, "layout": layout, "precision": precision,
            "update": update, "scaling": "strong" if global_batch else "weak", "workers": self.world,
            "batch_per_worker": global_batch // self.world if global_batch else batch,
            "threads": threads or (self.torch.get_num_threads() if self.torch else None),
            "input": input, "classes": classes, "global_batch": global_batch,
            "settings": {key: str(value) for key, value in (settings or {}).items()},
        }
        name = name or f"{model}-{self.world}"
        name = re.sub(r"[^\w.-]+", "_", name if repeat == 1 else f"{name}-repeat-{repeat}").lstrip(".") or "case"
        _logs.add(self)
        try:
            self._open(folder or os.environ.get(ENV_OUT) or "paceline-runs", name, repeat, case)
        except Exception as error:
            self._give_up(error)

    def _open(self, study, name, repeat, case):
        self.folder = os.path.join(study, name)
        os.makedirs(self.folder, exist_ok=True)
        # To the clock tick it may seem to have begun before it was started.
        main = max(process_start(), int(os.environ.get(ENV_SPAWN, 0)))
        if self.rank == 0:
            engine = f"PyTorch {self.torch.__version__}" if self.torch else None
            planned = {"folder": name, "place": 0, "repeat": repeat, **case, "steps": 0}

            def enter(study):
                others = [each for each in study["cases"] if each["folder"] != name]
                places = {each["place"] for each in others}
                same = [each["place"] for each in others if all(each.get(key) == case[key] for key in case)]
                free = [each["place"] for each in study["cases"] if each["place"] not in places]
                place = (same + free + [len(places)])[0]
                study["cases"] = sorted(others + [{**planned, "place": place}], key=lambda each: each["place"])
                study["command"], study["machine"] = sys.argv, machine(engine)

            change_study(study, enter)
            self.launcher = Lines(os.path.join(self.folder, LAUNCHER), {"case": case})
            self.launcher.hold()
            self.launcher.append({"spawn": {"rank": 0, "at": main}})
            if self.launched:
                with open(os.environ[ENV_CASES], "a") as file:
                    file.write(os.path.abspath(self.folder) + "\n")
        header = {"rank": self.rank, "world": self.world, "host": host()}
        self.lines = Lines(os.path.join(self.folder, rank_file(self.rank)), header)
        self.lines.append({"main": {"at": main, "pid": os.getpid()}})

    def _give_up(self, error):
        self.off = True
        where = self.lines.path if self.lines else "the log"
        warn(f"rank {self.rank} goes on without a log: {where}: {error or type(error).__name__}")

    # -- What hooks see

    def watch(self, model, optimizer=None, hook=None, state=None):
        """Measures forward, backward, the exchange of a DDP model, and the update. `hook` and `state` are the script's own
        communication hook, because DDP accepts only one. Returns the model."""
        self._follow(model, optimizer)
        if hook is not None:
            model.register_comm_hook(state, hook if self.off else self._comm_hook(model, hook))
        elif hasattr(model, "register_comm_hook") and not self.off:
            try:
                model.register_comm_hook(None, self._comm_hook(model, None))
            except RuntimeError as error:
                warn(f"communication is not followed; hand a hook of your own to watch(): {error}")
        return model

    @guarded
    def _follow(self, model, optimizer):
        self.torch = sys.modules.get("torch")
        if self.step is None and any(parameter.is_cuda for parameter in model.parameters()):
            self.clock = CudaClock(self.torch)
        follow_backward(self.torch)
        if self not in _followed:
            _followed.append(self)
        model.register_forward_pre_hook(lambda *_: self._auto("forward"))
        model.register_forward_hook(self._forward_ended)
        if optimizer is not None:
            optimizer.register_step_pre_hook(lambda *_: self._auto("update"))
            optimizer.register_step_post_hook(lambda *_: self._auto(None))
        if hasattr(model, "_sync_buffers"):
            self._watch_buffers(model)

    def _watch_buffers(self, model):
        """DDP sends rank 0's buffers (batch norm's averages) to all ranks before forward: an exchange too."""
        send, size = model._sync_buffers, sum(each.numel() * each.element_size() for each in model.buffers())

        def timed():
            exchange = self._begin_exchange(size, "comm_wait")
            send()
            self._end_exchange(exchange)
            self._hand_back(exchange, "forward")

        model._sync_buffers = timed

    def _comm_hook(self, model, hook):
        if hook is None:
            distributed, group, world = self.torch.distributed, model.process_group, model.process_group.size()
            # DDP divides while it copies into the bucket; behind it, that is a pass of its own unless NCCL does it.
            divides = distributed.get_backend(group) == "nccl"
            operation = distributed.ReduceOp.AVG if divides else distributed.ReduceOp.SUM

            options = distributed.AllreduceOptions()
            options.reduceOp = operation
            if hasattr(options, "asyncOp"):
                options.asyncOp = True

            def hook(_, bucket):  # what DDP does by itself, without the checks of the public call
                buffer = bucket.buffer() if divides or world == 1 else bucket.buffer().div_(world)
                return group.allreduce([buffer], options).get_future()

            value = lambda future: future.value()[0]
        else:
            value = lambda future: future.value()

        def timed(state, bucket):
            buffer = bucket.buffer()
            exchange = self._begin_exchange(buffer.numel() * buffer.element_size(), "comm_cpu")

            def ended(future):
                self._end_exchange(exchange)
                return value(future)

            future = hook(state, bucket).then(ended)
            # Buckets go out in order: behind the last, no gradient is left to compute.
            self._hand_back(exchange, "comm_wait" if bucket.is_last() else "backward")
            return future

        return timed

    @guarded
    def _begin_exchange(self, size, phase):
        if self.step is None or self.step.end is not None or self._pausing():
            return None
        exchange = Exchange(size, phase, self._mark(phase))
        self.step.exchanges.append(exchange)
        return exchange

    @guarded
    def _hand_back(self, exchange, phase):
        if exchange is not None:
            exchange.handed = self._mark(self.named[-1] if self.named else phase)

    @guarded
    def _end_exchange(self, exchange):
        if exchange is not None:
            exchange.ended = self.clock.stamp()

    @guarded
    def _forward_ended(self, *_):
        # With gradients, forward goes on until backward begins: it holds the loss function.
        if not self.torch.is_grad_enabled():
            self._auto(None)

    @guarded
    def _backward_begins(self):
        if not self.in_backward and self.step is not None and self.step.end is None and not self._pausing():
            self.in_backward = True
            self._auto("backward")

    @guarded
    def _backward_ended(self):
        if self.in_backward:
            self.in_backward = False
            self._mark(self.named[-1] if self.named else None)

    @guarded
    def _auto(self, phase):
        if not self.named and self.current != phase:
            self._mark(phase)

    def _pausing(self):
        return any(phase in PAUSES for phase in self.named)

    def _mark(self, phase):
        """Starts a phase; between steps only pauses count."""
        self.current = phase
        stamp = self.clock.stamp()
        if self.step is not None and (self.step.end is None or phase in PAUSES):
            self.step.marks.append((phase, stamp))
        return stamp

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
        """The step is over, unless a pause follows."""
        stamp = self.clock.stamp()
        if self.step is not None and self.step.end is None:
            self.step.end = stamp
        self.current = None
        return stamp

    @guarded
    def _ran_out(self, asked):
        if self.step is not None:
            self.step.marks += [(None, self.step.end), ("load", asked)]
            self.step.end = self.clock.stamp()

    @guarded
    def _begin(self, asked, batch):
        loaded = self.clock.stamp()
        before = self.step
        self.step = Step(self.number, before.end if before else asked)
        self.step.marks += [("load", asked), (None, loaded)]
        self.step.counted = count_examples(batch)
        self.number += 1
        self.in_backward = False
        if before:
            self.waiting.append(before)
            # Many at a time: what is written seldom costs little. A device has passed most of them by then.
            if len(self.waiting) >= MANY or now() - self.written_at > SELDOM:
                self._write_known()

    def _write_known(self):
        """The steps whose times are known by now."""
        known = []
        while self.waiting and self.clock.is_known(self.waiting[0].end):
            known.append(self.waiting.popleft())
        self._write_steps(known)

    @guarded
    def result(self, loss=None, examples=None):
        """The result of the step or of one of its passes: mean loss, and number of examples if not one per row of the batch."""
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
        self._enter(name)
        try:
            yield
        finally:
            self._leave(name)

    @guarded
    def _enter(self, name):
        if self.step is not None and self.step.end is not None and name in PAUSES:
            self.step.marks.append((None, self.step.end))
        self._mark(name)
        self.named.append(name)

    @guarded
    def _leave(self, name):
        self.named.pop()
        between = self.step is not None and self.step.end is not None
        if between and name in PAUSES and not self.named:
            self.step.end = self.clock.stamp()
        else:
            self._mark(self.named[-1] if self.named else None)

    # -- Writing

    def _write_steps(self, steps):
        """Writes finished steps, all at once."""
        losses = iter(self.clock.numbers([loss for step in steps for loss in step.losses]))
        for step in steps:
            step.losses = [next(losses) for _ in step.losses]
            self.lines.held.append(step_line(self._record(step)))
        self.lines.flush()
        self.written_at = now()

    def _record(self, step):
        exchanges = [each for each in step.exchanges if each.ended is not None and each.handed is not None]
        stamps = [stamp for _, stamp in step.marks]
        for each in exchanges:
            stamps += (each.begun, each.handed, each.ended)
        stamps.append(step.end)
        moments = iter(self.clock.moments(stamps))
        # Marks only go up, and the first is where the step before ended, to the nanosecond.
        marks, reached = [], self._written or 0
        for phase, _ in step.marks:
            moment = next(moments)
            if moment > reached:
                reached = moment
            marks.append((phase, reached))
        if self._written is not None:
            marks[0] = (marks[0][0], self._written)
        arrivals = []
        for each in exchanges:
            begun, handed, ended = next(moments), next(moments), next(moments)
            cpu = max(0, handed - begun) if each.phase == "comm_cpu" else 0
            arrivals.append({"bytes": each.bytes, "begun": begun, "ended": max(begun, ended), "cpu": cpu})
        self._written = end = max(next(moments), reached)
        phases, waits = tile(marks, end, arrivals)
        losses = step.losses
        loss = sum(losses) / len(losses) if losses else None
        examples = next((n for n in (step.examples, step.counted, self.batch) if n is not None), 0)
        record = {
            "step": step.number, "begin": marks[0][1], "end": end, "phases": phases, "examples": examples,
            "loss": loss if loss is not None and math.isfinite(loss) else None,
        }
        if arrivals:
            both = overlapped(arrivals, marks, end)
            record.update(comm_busy=busy(arrivals), overlapped=both, arrivals=arrivals, waits=waits)
        return record

    _written = None

    @guarded
    def _write_all(self):
        """All finished steps; waits for the device."""
        if self.step is not None and self.step.end is not None:
            self.waiting.append(self.step)
        self.step = None
        steps, self.waiting = list(self.waiting), deque()
        if steps:
            self.clock.settle(steps[-1].end)
        self._write_steps(steps)

    @guarded
    def _write_done(self):
        cuda = isinstance(self.clock, CudaClock)
        device = self.torch.cuda.max_memory_allocated() if cuda else None
        self.lines.append({"done": {"at": now(), "peak_resident": peak_resident(), "peak_device": device}})

    @guarded
    def _finish(self, failed):
        finish(self.folder, self.opened, 0 if failed else self.patience, failed)

    def close(self, failed=None):
        """Ends the log; `failed` says why training failed, if it did. Rank 0 waits up to `patience` seconds for the logs of
        the others, then compares and completes them all."""
        if self.closed:
            return
        self.closed = True
        if self in _followed:
            _followed.remove(self)
        self._write_all()
        if failed is None:
            self._write_done()
        if self.rank == 0 and not self.launched:
            self._finish(failed)
        for file in filter(None, [self.lines, self.launcher]):
            file.close()
        self.off = True

    def __enter__(self):
        return self

    def __exit__(self, kind, error, _):
        self.close(failed=None if kind is None else f"rank {self.rank}: {kind.__name__}: {error}")


_logs = weakref.WeakSet()
_followed = []  # logs that watch a model


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


# ---- The command line ----------------------------------------------------------------------------------------------------


def run(out, command):
    """Runs a command as its launcher: the run lasts from its start to its end. Returns its exit status."""
    with tempfile.TemporaryDirectory() as scratch:
        began = time.time()
        cases = os.path.join(scratch, "cases")
        environment = {**os.environ, ENV_CASES: cases}
        if out:
            environment[ENV_OUT] = os.path.abspath(out)
        # The script may lie anywhere, and this file need not be installed.
        beside = os.path.dirname(os.path.abspath(__file__))
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), beside]))
        interrupted = False
        spawn = now()
        try:
            process = subprocess.Popen(command, env={**environment, ENV_SPAWN: str(spawn)})
        except OSError as error:
            warn(f"cannot run {command[0]}: {error.strerror}")
            return 127
        while True:
            try:
                status = process.wait()
                break
            except KeyboardInterrupt:
                interrupted = True  # the command had the signal too; it decides when to end
        reap = now()
        interrupted = interrupted or status in (-signal.SIGINT, 128 + signal.SIGINT)
        folders = dict.fromkeys((read_text(cases) or "").splitlines())
        if not folders:
            warn("the command wrote no run log")
        for folder in folders:
            try:
                finish(folder, began, process=(spawn, reap, status, interrupted))
            except (OSError, ValueError, KeyError, StopIteration) as error:
                warn(f"cannot complete {folder}: {error}")
    return status if status >= 0 else 128 - status


def main():
    parser = argparse.ArgumentParser(prog="paceline_log", description="Run logs for Paceline from PyTorch scripts.")
    commands = parser.add_subparsers(dest="action", required=True)
    runner = commands.add_parser("run", help="run a command and time its start and its end")
    runner.add_argument("--out", metavar="DIR", help="the study's folder, for scripts that name none")
    runner.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="for example torchrun and its arguments")
    merger = commands.add_parser("merge", help="compare the ranks' logs of a case and split their waits")
    merger.add_argument("folder", help="the case's folder")
    args = parser.parse_args()
    if args.action == "merge":
        try:
            merge(args.folder)
        except (OSError, ValueError, KeyError, StopIteration) as error:
            sys.exit(f"paceline_log: cannot merge {args.folder}: {error}")
        return
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        parser.error("name the command to run behind --")
    sys.exit(run(args.out, command))


if __name__ == "__main__":
    main()
