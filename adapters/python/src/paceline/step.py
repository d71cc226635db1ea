"""A step: its marks while it lasts, and its line once its moments are known."""

COMPUTING = ("forward", "backward", "compute", "update")
PHASES = (
    "load", "copy_in", "forward", "backward", "compute", "copy_out", "comm_wait", "comm_cpu", "update", "idle", "eval",
    "checkpoint",
)
PAUSES = ("eval", "checkpoint")  # may follow a step's end, and hide what hooks see


class Exchange:
    __slots__ = ("bytes", "phase", "begun", "handed", "ended")

    def __init__(self, size, phase, begun):
        self.bytes, self.phase, self.begun, self.handed, self.ended = size, phase, begun, None, None


class Step:
    """Marks are (phase, stamp, processor time of the thread, or None): a phase lasts from its mark to the next."""

    __slots__ = ("number", "marks", "end", "exchanges", "examples", "loaded", "counted", "rows", "losses", "optimizers",
                 "worked", "tested", "sampled", "counters", "counters_after")

    def __init__(self, number, begin, cpu=None):
        self.number, self.marks, self.end = number, [(None, begin, cpu)], None
        self.exchanges, self.losses = [], []
        self.examples = None  # as the script says
        self.counted = None  # rows of the batches that it worked on
        self.loaded = None  # rows of the batches that were loaded in it
        self.rows = None  # rows that its model was given
        self.optimizers = set()
        self.worked, self.tested, self.sampled = False, False, True
        self.counters, self.counters_after = None, None

    def add(self, later):
        """What came later was part of this step."""
        self.marks += later.marks
        self.exchanges += later.exchanges
        self.losses += later.losses
        for name in ("examples", "counted", "loaded", "rows"):
            mine, more = getattr(self, name), getattr(later, name)
            setattr(self, name, more if mine is None else mine + (more or 0))
        self.optimizers |= later.optimizers
        self.worked |= later.worked
        self.sampled &= later.sampled

    def told_examples(self):
        return next((n for n in (self.examples, self.counted, self.loaded, self.rows) if n is not None), None)


def count_examples(batch):
    """Length of the first tensor in a batch."""
    while True:
        shape = getattr(batch, "shape", None)
        if shape is not None:
            return int(shape[0]) if len(shape) else None
        if hasattr(batch, "values") and hasattr(batch, "keys") and len(batch):
            batch = next(iter(batch.values()))
        elif isinstance(batch, (list, tuple)) and batch:
            batch = batch[0]
        else:
            return None


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


def overlapped(exchanges, marks, end):
    """Time in which at least one exchange was under way and the rank computed."""
    ends = [moment for _, moment in marks[1:]] + [end]
    computing = [(begin, until) for (phase, begin), until in zip(marks, ends) if phase in COMPUTING]
    total = reached = 0
    for exchange in sorted(exchanges, key=lambda e: e["begun"]):
        total += overlap(computing, max(exchange["begun"], reached), exchange["ended"])
        reached = max(reached, exchange["ended"])
    return total


def overlap(stretches, begin, end):
    return sum(max(0, min(end, until) - max(begin, since)) for since, until in stretches)


def starved(marks, end, lags, caught_up):
    """Time of computing in which the device kept up with the host: it had finished what it was given at the begin and at the
    end of a phase, or all but a twentieth of the phase, so that the host's launches set the pace, not the device. `lags` is how far
    it was behind at each mark, and at the end."""
    total = 0
    for place, (phase, begin) in enumerate(marks):
        length = (marks[place + 1][1] if place + 1 < len(marks) else end) - begin
        if phase in COMPUTING and max(lags[place:place + 2]) < max(caught_up, length // 20):
            total += length
    return total


def step_line(record):
    """The line of a step, which contains only numbers; several times faster than a general JSON writer."""
    examples, loss = record["examples"], record["loss"]
    line = (f'{{"step":{{"step":{record["step"]},"begin":{record["begin"]},"end":{record["end"]},'
            f'"phases":{{{numbers(record["phases"])}}},"examples":{0 if examples is None else examples},'
            f'"loss":{"null" if loss is None else repr(loss)}')
    arrivals = record.get("arrivals")
    if arrivals:
        told = ",".join([f'{{"bytes":{e["bytes"]},"begun":{e["begun"]},"ended":{e["ended"]},"cpu":{e["cpu"]}}}' for e in arrivals])
        waits = ",".join([f"[{since},{until}]" for since, until in record["waits"]])
        line += f',"comm_busy":{record["comm_busy"]},"overlapped":{record["overlapped"]},"arrivals":[{told}],"waits":[{waits}]'
    scheduling = record.get("scheduling")
    if scheduling:
        line += f',"scheduling":{{{numbers(scheduling)}}}'
    if "starved" in record:
        line += f',"starved":{record["starved"]}'
    if not record.get("sampled", True):
        line += ',"sampled":false'
    return line + "}}\n"


def numbers(told):
    return ",".join([f'"{name}":{{{numbers(value)}}}' if isinstance(value, dict) else f'"{name}":{value}'
                     for name, value in told.items()])
