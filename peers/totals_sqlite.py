#!/usr/bin/env python3
"""Totals of an nvprof or Nsight Systems SQLite file, counted in SQL: what the reader's totals are checked against.

usage: totals_sqlite.py FILE...

Prints one JSON object for each file: count and summed nanoseconds of kernels, fills, calls and ranges, and the same with
bytes for copies by kind. Standard library only; nothing is written.
"""

import json
import sqlite3
import sys
from pathlib import Path

COPIES = {1: "in", 3: "in", 11: "in", 2: "out", 4: "out", 12: "out", 10: "peer"}
TIMED = "end IS NOT NULL AND end >= start"


def totals(path):
    database = sqlite3.connect(f"{Path(path).resolve().as_uri()}?mode=ro&immutable=1", uri=True)
    tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}

    def count(wanted, what="COUNT(*), COALESCE(SUM(end - start), 0)", condition=TIMED):
        sums = [0] * len(what.split(", COALESCE"))
        for table in wanted:
            if table in tables:
                row = database.execute(f"SELECT {what} FROM {table} WHERE {condition}").fetchone()
                sums = [a + b for a, b in zip(sums, row)]
        return sums

    kind = "CUPTI_ACTIVITY_KIND_"
    copies = {}
    for table in (kind + "MEMCPY", kind + "MEMCPY2"):
        if table in tables:
            query = f"SELECT copyKind, COUNT(*), SUM(end - start), SUM(bytes) FROM {table} WHERE {TIMED} GROUP BY copyKind"
            for number, *sums in database.execute(query):
                known = copies.setdefault(COPIES.get(number, "device"), [0, 0, 0])
                copies[COPIES.get(number, "device")] = [a + b for a, b in zip(known, sums)]
    result = {
        "file": Path(path).name,
        "kernels": count([kind + "KERNEL", kind + "CONCURRENT_KERNEL"]),
        "fills": count([kind + "MEMSET"]),
        "calls": count([kind + "RUNTIME", kind + "DRIVER"]),
        "copies": copies,
    }
    if "NVTX_EVENTS" in tables:
        mpi = "SELECT domainId FROM NVTX_EVENTS WHERE eventType = 75 AND text = 'MPI'"
        ranges = f"{TIMED} AND eventType IN (59, 60) AND domainId"
        result["ranges"] = count(["NVTX_EVENTS"], condition=f"{ranges} NOT IN ({mpi})")
        result["mpi"] = count(["NVTX_EVENTS"], condition=f"{ranges} IN ({mpi})")
    for table in ("COLLECTIVES", "P2P", "START_WAIT", "OTHER"):
        result[f"mpi_{table.lower()}"] = count([f"MPI_{table}_EVENTS"])
    if kind + "MARKER" in tables:
        query = f"""SELECT COUNT(*), COALESCE(SUM(b.timestamp - a.timestamp), 0) FROM {kind}MARKER a
                    JOIN {kind}MARKER b ON a.id = b.id AND a.flags & 2 AND b.flags & 4"""
        result["ranges"] = list(database.execute(query).fetchone())
    return result


def main():
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    for path in sys.argv[1:]:
        print(json.dumps(totals(path)))


if __name__ == "__main__":
    main()
