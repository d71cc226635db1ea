"""A study's folder, for a log that nobody launched: what was run, and when each run began and ended."""

import contextlib
import json
import os
import sys
import time

from .clock import now
from .files import LAUNCHER, rank_file, read_lines, read_text, replace, to_text

SCHEMA = 2  # of study.json
PROGRAM = "paceline-python"


@contextlib.contextmanager
def locked(folder, seconds=5):
    """Locks a study folder while study.json is changed; continues without the lock if another process keeps it."""
    import fcntl

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
        study = {"schema": SCHEMA, "program": PROGRAM, "command": sys.argv, "machine": {}, "cases": []}
        if text is not None:
            study = json.loads(text)
            if study.get("schema") != SCHEMA or study.get("program") != PROGRAM:
                raise OSError(f"{path} is another program's study; use another folder")
        change(study)
        replace(path, json.dumps(study, indent=2) + "\n")


def enter_case(study, name, repeat, case, machine):
    """Puts a case into study.json, in place of the one that was in its folder."""
    planned = {"folder": name, "place": 0, "repeat": repeat, **case, "steps": 0}

    def enter(told):
        others = [each for each in told["cases"] if each["folder"] != name]
        places = {each["place"] for each in others}
        same = [each["place"] for each in others if all(each.get(key) == case[key] for key in case)]
        free = [each["place"] for each in told["cases"] if each["place"] not in places]
        place = (same + free + [len(places)])[0]
        told["cases"] = sorted(others + [{**planned, "place": place}], key=lambda each: each["place"])
        told["command"], told["machine"] = sys.argv, machine

    change_study(study, enter)


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


def finish(folder, since, patience=0.0, failed=None):
    """Ends a case: waits for its ranks, and writes when the run began and ended, by the first and last times of the ranks."""
    launcher = os.path.join(folder, LAUNCHER)
    header = next(read_lines(launcher))
    paths = {rank: os.path.join(folder, rank_file(rank)) for rank in range(header["case"]["workers"])}
    deadline = now() + int(patience * 1e9)
    while True:
        missing = [rank for rank, path in paths.items() if not is_done(path, since)]
        if not missing or now() >= deadline:
            break
        time.sleep(0.02)
    outcome, reason = "done", None
    if failed:
        outcome, reason = "failed", failed
    elif missing:
        names = ", ".join(map(str, missing))
        outcome, reason = "failed", f"rank {names} did not close its log: it failed, or close() is not called"
    lines = [header]
    for rank, path in paths.items():
        if rank not in missing:
            main, done = ends_of(path)
            lines.append({"spawn": {"rank": rank, "at": main}})
            lines.append({"reap": {"rank": rank, "at": now() if rank == 0 else done, "exit": {"code": 0}}})
    lines.append({"over": {"outcome": outcome, "reason": reason}})
    replace(launcher, to_text(lines))
    if 0 not in missing:
        steps = sum("step" in event for event in read_lines(paths[0]))
        study, name = os.path.split(os.path.abspath(folder))

        def note_steps(study):
            for planned in study["cases"]:
                if planned["folder"] == name:
                    planned["steps"] = steps

        change_study(study, note_steps)
