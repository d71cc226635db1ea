"""The files of a run log: whole lines, whole files."""

import contextlib
import errno
import fcntl
import json
import os
import sys

FORMAT, VERSION = "paceline-log", 5
LAUNCHER = "launcher.jsonl"


def warn(text):
    print(f"paceline: {text}", file=sys.stderr, flush=True)


def rank_file(rank):
    return f"rank-{rank}.jsonl"


class Lines:
    """A log being written: whole lines in one write, so that a killed process leaves only whole lines."""

    def __init__(self, path, flags=os.O_TRUNC):
        self.path, self.held = path, []
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | flags, 0o666)

    def head(self, header):
        """Writes the header in front of the lines that are held."""
        self.held.insert(0, to_line({"format": FORMAT, "version": VERSION, **header}))
        self.flush()

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


def claim(out, rank, world):
    """A rank's file of its own: in `out`, or in `out/2`, `out/3`, ... if an earlier training of the command was there."""
    number = 1
    while True:
        folder = out if number == 1 else os.path.join(out, str(number))
        os.makedirs(folder, exist_ok=True)
        if world in worlds(folder):
            try:
                return Lines(os.path.join(folder, rank_file(rank)), os.O_EXCL)
            except OSError as error:
                if error.errno != errno.EEXIST:
                    raise
        number += 1


class worlds:
    """The numbers of ranks that the logs in a folder may belong to: any, until one of them has its header."""

    def __init__(self, folder):
        self.known = set()
        for name in os.listdir(folder):
            if name.startswith("rank-"):
                with contextlib.suppress(OSError, ValueError, StopIteration):
                    self.known.add(next(read_lines(os.path.join(folder, name))).get("world"))

    def __contains__(self, world):
        return not self.known or self.known == {world}


def to_line(event):
    return json.dumps(event, separators=(",", ":"), allow_nan=False) + "\n"


def to_text(events):
    return "".join(map(to_line, events))


def read_text(path):
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return None


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
