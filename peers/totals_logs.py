#!/usr/bin/env python3
"""Counts what the sample logs hold, without Paceline: its tests hold these numbers as constants.

    totals_logs.py FOLDER        the folder with tensorboard/ and horovod/ in it

Only the standard library. Event files are decoded byte by byte; checksums are not looked at. A Horovod timeline is read as
JSON, with its end mended where it is missing.
"""

import collections
import json
import pathlib
import struct
import sys


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def fields(data):
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        form = key & 7
        if form == 0:
            value, at = varint(data, at)
        else:
            size = {1: 8, 5: 4}.get(form)
            if form == 2:
                size, at = varint(data, at)
            value, at = data[at : at + size], at + size
        yield key >> 3, value


def count_events(path):
    data = path.read_bytes()
    found = collections.defaultdict(lambda: [0, 0, 0.0])
    at = 0
    while at < len(data):
        (size,) = struct.unpack_from("<Q", data, at)
        event = list(fields(data[at + 12 : at + 12 + size]))
        at += 16 + size
        step = dict(event).get(2, 0)
        for summary in (value for number, value in event if number == 5):
            for value in (dict(fields(value)) for number, value in fields(summary) if number == 1):
                if 2 in value:
                    entry = found[value[1].decode()]
                    entry[0] += 1
                    entry[1] += step
                    entry[2] += struct.unpack("<f", value[2])[0]
    for tag, (points, steps, values) in sorted(found.items()):
        print(f'("{path.parent.name}", "{path.name}", "{tag}", {points}, {steps}, {values!r}),')


def count_timeline(path):
    text = path.read_text().rstrip().rstrip(",")
    events = json.loads(text if text.endswith("]") else text + "]")
    tensors = {event["pid"] for event in events if "pid" in event}
    arrivals = [event for event in events if event["ph"] == "X"]
    by_rank = collections.Counter(event["name"] for event in arrivals)
    negotiating = [event for event in events if event["ph"] == "B" and event["name"].startswith("NEGOTIATE_")]
    ends = [event for event in events if event["ph"] == "E"]
    cycles = [event for event in events if event.get("name") == "CYCLE_START"]
    first = collections.defaultdict(lambda: float("inf"))
    for event in arrivals:
        first[event["pid"]] = min(first[event["pid"]], event["ts"])
    late = collections.Counter()
    for event in arrivals:
        late[event["name"]] += event["ts"] - first[event["pid"]]
    print(f"{path.name}: {len(events)} events, {len(tensors)} tensors, {len(negotiating)} negotiations begun, {len(ends)} ends,")
    print(f"  {len(cycles)} cycles, arrivals by rank {dict(sorted(by_rank.items()))},")
    print(f"  microseconds after the first by rank {dict(sorted(late.items()))}")


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__.strip())
    root = pathlib.Path(sys.argv[1])
    for path in sorted(root.glob("tensorboard/*/events.out.tfevents.*")):
        count_events(path)
    for path in sorted(root.glob("horovod/*.json")):
        count_timeline(path)


if __name__ == "__main__":
    main()
