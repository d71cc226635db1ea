#!/usr/bin/env python3
"""Checks a study's event files: what TensorBoard reads in them is what the run logs hold.

    python peers/tensorboard_check.py STUDY

Every rank's log must have one event file, and every event file a log. Prints a line for each failure, and 'N passed,
N failed'; exit status 1 if anything failed or there was nothing to check.
"""

import json
import math
import sys
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

MOST = 1000
ORIGIN_S = 946_684_800  # where a log does not say when its clock began


def read_origin(log: Path) -> float:
    """The date of a log's clock at 0, in seconds: the launcher wrote down both clocks."""
    header = json.loads((log.parent / "launcher.jsonl").read_bytes().split(b"\n")[0])
    started = header.get("started")
    return (started["unix"] - started["at"]) * 1e-9 if started else ORIGIN_S


def read_steps(log: Path) -> list[dict]:
    """The steps of a run log; a torn last line is left out."""
    lines = log.read_bytes().split(b"\n")[:-1]
    events = [json.loads(line) for line in lines]
    return [event["step"] for event in events if isinstance(event.get("step"), dict)]


def expect_points(steps: list[dict], origin: float) -> dict[str, list[tuple[int, float, float]]]:
    """What the log says an event file holds: for each tag its points, as step, wall time and value."""
    for step in steps:
        whole = step["end"] - step["begin"]
        known = sum(time for phase, time in step["phases"].items() if phase != "other")
        step["phases"]["other"] = whole - known
    phases = {phase for step in steps for phase, time in step["phases"].items() if time != 0}
    every = max(1, math.ceil(len(steps) / MOST))
    points: dict[str, list[tuple[int, float, float]]] = {}
    for first in range(0, len(steps), every):
        chunk = steps[first : first + every]
        last = chunk[-1]
        seconds = sum(step["end"] - step["begin"] for step in chunk) * 1e-9
        values = {"step_ms": 1e3 * seconds / len(chunk)}
        examples = sum(step["examples"] for step in chunk)
        if seconds > 0 and examples > 0:  # a member that came late to a step may have had nothing to do
            values["examples_per_s"] = examples / seconds
        losses = [step["loss"] for step in chunk if step["loss"] is not None]
        if losses:
            values["loss"] = losses[-1]
        for phase in phases:
            values[f"phase/{phase}_ms"] = sum(step["phases"].get(phase, 0) for step in chunk) * 1e-6 / len(chunk)
        for tag, value in values.items():
            point = (last["step"], origin + last["end"] * 1e-9, value)
            points.setdefault(tag, []).append(point)
    return points


def read_points(folder: Path) -> dict[str, list[tuple[int, float, float]]]:
    """What TensorBoard reads in the event files of a folder."""
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    return {
        tag: [(event.step, event.wall_time, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def host_of(log: Path) -> str:
    """What the name of a member of the first host ends with, where there are other hosts."""
    return "-of-host-0" if any(log.parent.glob("host-*")) else ""


def check_rank(log: Path, folder: Path):
    """Yields the name of each check, and what is wrong or nothing."""
    expected = expect_points(read_steps(log), read_origin(log))
    is_first = not log.parent.name.startswith("host-")
    nearly, moments = (1e-6, 1e-6) if is_first else (1e-3, math.inf)
    files = list(folder.glob("events.out.tfevents.*"))
    yield "one file", None if len(files) == 1 else f"{len(files)} event files"
    found = read_points(folder) if files else {}
    yield "tags", None if found.keys() == expected.keys() else f"{sorted(found)} instead of {sorted(expected)}"
    for tag in sorted(found.keys() & expected.keys()):
        got, want = found[tag], expected[tag]
        if len(got) != len(want):
            yield tag, f"{len(got)} points instead of {len(want)}"
            continue
        wrong = None
        for (step, time, value), (want_step, want_time, want_value) in zip(got, want):
            # Values are stored in 32 bits.
            close = math.isclose(value, want_value, rel_tol=nearly, abs_tol=1e-9)
            if step != want_step or abs(time - want_time) > moments or not close:
                wrong = f"step {step} at {time}: {value} instead of step {want_step} at {want_time}: {want_value}"
                break
        yield tag, wrong


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    study = Path(sys.argv[1])
    logs = {(log.parent.name, log.stem + host_of(log)): log for log in sorted([*study.glob("*/rank-*.jsonl"), *study.glob("*/member-*.jsonl")])}
    # Of other hosts, whose clocks differ from the first one's, and run faster or slower than that: times are compared roughly.
    logs |= {(log.parent.parent.name, f"{log.stem}-of-{log.parent.name}"): log for log in sorted(study.glob("*/host-*/member-*.jsonl"))}
    folders = {(folder.parent.name, folder.name): folder for folder in sorted([*study.glob("tensorboard/*/rank-*"), *study.glob("tensorboard/*/member-*")])}
    passed, failed = 0, 0
    for key in sorted(logs.keys() | folders.keys()):
        if key not in logs or key not in folders:
            checks = [("both sides", "no log" if key not in logs else "no event file")]
        else:
            checks = check_rank(logs[key], folders[key])
        for name, wrong in checks:
            passed, failed = passed + (wrong is None), failed + (wrong is not None)
            if wrong is not None:
                print(f"{'/'.join(key)}, {name}: {wrong}")
    print(f"{passed} passed, {failed} failed")
    return 0 if passed > 0 and failed == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
