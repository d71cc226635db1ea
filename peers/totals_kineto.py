#!/usr/bin/env python3
"""Totals of PyTorch profiler traces, counted with nothing but Python's own json: what Paceline's reader is held to.

    totals_kineto.py trace.json.gz ...

Prints one JSON line a file: for each kind of work how often, how long in nanoseconds, and how many bytes, where the trace
says so; steps; rank and world. The whole file is loaded, so it wants some ten times its size in memory.
"""

import gzip
import json
import math
import pathlib
import sys
from decimal import ROUND_HALF_UP, Decimal

COPIES = {"HtoD": "copy_in", "DtoH": "copy_out"}
ELEMENT_BYTES = {"Float": 4, "Half": 2, "BFloat16": 2, "Long": 8, "Int": 4, "Double": 8, "Byte": 1, "Char": 1}
INPUT_BYTES = {"float": 4, "c10::Half": 2, "c10::BFloat16": 2, "long": 8, "long int": 8, "int": 4, "double": 8}
INPUT_BYTES |= {"unsigned char": 1, "signed char": 1, "bool": 1}
CALLS = {"cuda_runtime", "cuda_driver"}
RANGES = {"user_annotation", "gpu_user_annotation", "cuda_sync", "overhead"}


def load(path):
    data = pathlib.Path(path).read_bytes()
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    return json.loads(data, parse_float=Decimal)


def nanos(micros):
    return int((Decimal(micros) * 1000).to_integral_value(ROUND_HALF_UP))


def kind_of(event):
    """The kind of work, as Paceline calls it; None for what is not work."""
    category, name = event.get("cat"), event["name"]
    if category == "kernel":
        return "collective" if name.startswith("nccl") else "compute"
    if category == "gpu_memcpy":
        return COPIES.get(name.split()[1], "copy_device")
    if category == "gpu_memset":
        return "fill"
    if category == "cpu_op":
        return "operator"
    if category in CALLS:
        return "call"
    if category == "user_annotation" and name.startswith("gloo:"):
        return "collective"
    return "range" if category in RANGES else None


def bytes_of(event, kind):
    args = event.get("args", {})
    if kind in ("copy_in", "copy_out", "copy_device", "fill"):
        return args.get("bytes")
    if kind != "collective":
        return None
    if "In msg nelems" in args:
        return args["In msg nelems"] * ELEMENT_BYTES[args["dtype"]]
    if "Input Dims" in args:
        sizes = [INPUT_BYTES.get(name) for name in args["Input type"]]
        return sum(math.prod(dims) * size for dims, size in zip(args["Input Dims"], sizes) if size)
    return None


def totals(path):
    trace = load(path)
    kinds = {}
    steps = {}
    for event in trace["traceEvents"]:
        if event.get("ph") != "X" or (kind := kind_of(event)) is None:
            continue
        total = kinds.setdefault(kind, {"count": 0, "nanos": 0, "bytes": 0})
        total["count"] += 1
        total["nanos"] += nanos(event["dur"])
        total["bytes"] += bytes_of(event, kind) or 0
        if event["name"].startswith("ProfilerStep#") and event["cat"] == "user_annotation":
            steps[int(event["name"].split("#")[1])] = nanos(event["dur"])
    info = trace.get("distributedInfo", {})
    return {
        "file": pathlib.Path(path).name,
        "rank": info.get("rank"),
        "world": info.get("world_size"),
        "steps": {"count": len(steps), "nanos": sum(steps.values())},
        "kinds": dict(sorted(kinds.items())),
    }


def main():
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    for path in sys.argv[1:]:
        print(json.dumps(totals(path)))


if __name__ == "__main__":
    main()
