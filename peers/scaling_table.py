"""The table of what scaling.py measured. It only shows: rates come from the runs, ratios from rates of the same round.

A record is a dictionary, a line of --out, with a `kind`: machine, run, gloo-allreduce, paceline-allreduce, failure, stopped.
"""

import json
import statistics

UPDATES = ["allreduce", "sharded", "independent"]
HEADS = ["network", "workers", "DDP images/s", "ours allreduce", "ours sharded", "ours independent", "ours/DDP"]
HEADS += ["allreduce/independent", "sharded/independent", "speed-up ours", "speed-up DDP"]


class Rates:
    """Images/s by network, workers, contender and round."""

    def __init__(self, records, rate):
        self.rounds = {}
        self.torch = None
        for record in records:
            if record["kind"] == "run":
                key = (record["network"], record["workers"], record["contender"])
                self.rounds.setdefault(key, {})[record["round"]] = record["images_per_s"][rate]
                self.torch = record["report"].get("torch", self.torch)

    def cases(self):
        networks = list(dict.fromkeys(network for network, _, _ in self.rounds))  # in their order
        return sorted({key[:2] for key in self.rounds}, key=lambda case: (networks.index(case[0]), case[1]))

    def of(self, network, workers, contender):
        return self.rounds.get((network, workers, contender), {})

    def better_layout(self, network, workers):
        """DDP's contender that is faster here; None where it did not run."""
        found = [key[2] for key in self.rounds if key[:2] == (network, workers) and key[2].startswith("ddp ")]
        return max(found, key=lambda name: statistics.median(self.of(network, workers, name).values()), default=None)

    def layouts(self):
        return {contender for _, _, contender in self.rounds if contender.startswith("ddp ")}


def spread(values, digits):
    """Median, and the extremes where there are several values."""
    values = list(values)
    if not values:
        return "-"
    text = f"{statistics.median(values):.{digits}f}"
    return text if len(values) == 1 else f"{text} ({min(values):.{digits}f}..{max(values):.{digits}f})"


def quotient(above, below):
    """Ratios of the rounds that both have."""
    return spread([above[number] / below[number] for number in above if number in below], 3)


def speed_up(rounds, base):
    """Ratio of medians: one worker and many run at different times, so there are no rounds to pair."""
    return f"{statistics.median(rounds.values()) / statistics.median(base.values()):.2f}" if rounds and base else "-"


def render(records, rate):
    rates = Rates(records, rate)
    lines = [HEADS, ["---"] + ["---:"] * (len(HEADS) - 1)]
    for network, workers in rates.cases():
        ours = {update: rates.of(network, workers, update) for update in UPDATES}
        layout = rates.better_layout(network, workers)
        ddp = rates.of(network, workers, layout)
        cell = spread(ddp.values(), 1)
        if ddp and len(rates.layouts()) > 1:
            cell += f" {layout.split()[1]}"
        lines.append(
            [network, str(workers), cell]
            + [spread(ours[update].values(), 1) for update in UPDATES]
            + [quotient(ours["allreduce"], ddp)]
            + [quotient(ours[update], ours["independent"]) for update in ("allreduce", "sharded")]
            + [speed_up(ours["allreduce"], rates.of(network, 1, "allreduce"))]
            + [speed_up(ddp, rates.of(network, 1, rates.better_layout(network, 1)))]
        )
    text = ["| " + " | ".join(line) + " |" for line in lines] + [""]
    text += footnotes(records, rates, rate)
    return "\n".join(text)


def footnotes(records, rates, rate):
    text = []
    for record in records:
        if record["kind"] == "machine":
            steps = ", ".join(f"{network} {count}" for network, count in record["steps"].items())
            if record["ddp_steps"]:
                steps += "; DDP: " + ", ".join(f"{network} {count}" for network, count in record["ddp_steps"].items())
            text.append(
                f"{record['cpu']}, {record['cores']} cores, {record['date']}. Batch {record['batch']} a worker, "
                f"{record['input']}, one thread a worker. Timed steps a round: {steps}."
            )
    rounds = [len(each) for each in rates.rounds.values()]
    if rounds:
        count = str(max(rounds)) if min(rounds) == max(rounds) else f"{min(rounds)} to {max(rounds)}"
        peer = ""
        if rates.torch:
            layouts = " and ".join(sorted(layout.split()[1] for layout in rates.layouts()))
            peer = f" DDP: PyTorch {rates.torch}, gloo, {layouts}."
        text.append(
            f"Images/s of all workers ({rate} of the steps): median of {count} round(s), (least..most). Ratios round by "
            f"round; ours/DDP: `allreduce`. Speed-up: over one worker, `allreduce` for ours.{peer}"
        )
    for record in records:
        if record["kind"] == "gloo-allreduce":
            report = record["report"]
            text.append(
                f"gloo, all-reduce of {report['allreduce_bytes'] / 1e6:.1f} MB between {report['workers']} processes: median "
                f"{1e3 * report['median_s']:.1f} ms, least {1e3 * min(report['seconds']):.1f} ms."
            )
    for record in records:
        if record["kind"] == "failure":
            text.append(f"Failed: {record['what']}: {record['reason'].strip().splitlines()[-1]}")
        elif record["kind"] == "stopped":
            text.append(f"Stopped after {record['elapsed_s']:.0f} s: {record['reason']}. What is missing was not measured.")
    for record in records:
        if record["kind"] == "paceline-allreduce":
            text += ["", f"`{record['command']}`:", "", "```", record["output"].rstrip(), "```"]
    return text


def read_records(paths):
    """Records of earlier runs, as one: the rounds of each file are rounds of their own."""
    records = []
    for path in paths:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            try:
                record = json.loads(line)
                record["kind"]
            except (ValueError, TypeError, KeyError):
                raise ValueError(f"{path}, line {number}: this is not what --out writes") from None
            if record["kind"] == "run":
                record["round"] = (str(path), record["round"])
            records.append(record)
    return records
