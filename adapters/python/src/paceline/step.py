"""A step: its marks while it lasts, and its line once its moments are known."""

COMPUTING = frozenset(("forward", "backward", "compute", "update"))
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
    """Marks are (phase, stamp, processor time of the thread, or None): a phase lasts from its mark to the next. Counters are the
    system's at its begin and at its end."""

    __slots__ = ("number", "marks", "end", "exchanges", "examples", "loaded", "counted", "rows", "losses", "optimizers",
                 "worked", "tested", "sampled", "counters", "counters_after")

    def __init__(self, number, begin, cpu=None, phase=None):
        self.number, self.marks, self.end = number, [(phase, begin, cpu)], None
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
        if isinstance(batch, (list, tuple)):
            if not batch:
                return None
            batch = batch[0]
            continue
        shape = getattr(batch, "shape", None)
        if shape is not None:
            return int(shape[0]) if len(shape) else None
        if not (hasattr(batch, "values") and hasattr(batch, "keys") and len(batch)):
            return None
        batch = next(iter(batch.values()))


# The functions below are called for every step, and take what they need in its plainest form: `names` are the phases of the marks,
# `moments` where each begins and, one more, where the last ends; an arrival is (begun, ended, bytes, cpu), and they are in order.


def tile(names, moments, arrivals):
    """Time of a step by phase, and when it waited for exchanges; None is no phase.

    A wait is over when the last exchange is; what follows, up to the next mark, is copying its result.
    """
    phases, waits = {}, []
    place = known = ended = 0
    begin = moments[0]
    for phase in names:
        place += 1
        until = moments[place]
        if phase is not None and until > begin:
            if phase == "comm_wait":
                while known < len(arrivals) and arrivals[known][0] <= until:
                    ended = max(ended, arrivals[known][1])
                    known += 1
                over = min(max(ended, begin), until) if known else until
                if until > over:
                    phases["comm_cpu"] = phases.get("comm_cpu", 0) + until - over
                if over > begin:
                    phases[phase] = phases.get(phase, 0) + over - begin
                    waits.append((begin, over))
            else:
                phases[phase] = phases.get(phase, 0) + until - begin
        begin = until
    return phases, waits


def under_way(names, moments, arrivals):
    """Time in which at least one exchange was under way, and how much of it the rank computed."""
    busy = hidden = reached = place = 0
    for begun, ended, _, _ in arrivals:
        if begun < reached:
            begun = reached
        if ended <= begun:
            continue
        busy += ended - begun
        reached = ended
        while place < len(names) and moments[place + 1] <= begun:
            place += 1
        while place < len(names) and moments[place] < ended:
            if names[place] in COMPUTING:
                hidden += min(ended, moments[place + 1]) - max(begun, moments[place])
            if moments[place + 1] > ended:
                break
            place += 1
    return busy, hidden


def starved(names, moments, lags, caught_up):
    """Time of computing in which the device kept up with the host: it had finished what it was given at the begin and at the
    end of a phase, or all but a twentieth of the phase, so that the host's launches set the pace, not the device. `lags` is how far
    it was behind at each moment."""
    total = 0
    for place, phase in enumerate(names):
        if phase in COMPUTING:
            length = moments[place + 1] - moments[place]
            if max(lags[place], lags[place + 1]) < max(caught_up, length // 20):
                total += length
    return total


def step_line(record):
    """The line of a step, which contains only numbers; several times faster than a general JSON writer."""
    examples, loss, arrivals = record["examples"], record["loss"], record.get("arrivals")
    line = (f'{{"step":{{"step":{record["step"]},"begin":{record["begin"]},"end":{record["end"]},'
            f'"phases":{{{numbers(record["phases"])}}},"examples":{0 if examples is None else examples},'
            f'"loss":{"null" if loss is None else repr(loss)}')
    if arrivals:
        told = ",".join([f'{{"bytes":{size},"begun":{begun},"ended":{ended},"cpu":{cpu}}}' for begun, ended, size, cpu in arrivals])
        waits = ",".join([f"[{since},{until}]" for since, until in record["waits"]])
        line += f',"comm_busy":{record["comm_busy"]},"overlapped":{record["overlapped"]},"arrivals":[{told}],"waits":[{waits}]'
    scheduling = record.get("scheduling")
    if scheduling:
        cpu, process, queued, off_core = scheduling
        line += f',"scheduling":{{"cpu":{cpu},"process_cpu":{process},"queued":{queued},"off_core":{{{numbers(off_core)}}}}}'
    if "starved" in record:
        line += f',"starved":{record["starved"]}'
    if not record.get("sampled", True):
        line += ',"sampled":false'
    return line + "}}\n"


def numbers(told):
    return ",".join([f'"{name}":{value}' for name, value in told.items()])
