"""Trains on the engines that clusters run; `peers/engines` prepares all.

Each part is a module `engines_PART.py` beside this one, with `install(bench)`, which gets what the part needs and is quick where it is
there, and `play(bench)`, which runs its scenes and tells the bench what held.
"""

import argparse
import functools
import hashlib
import importlib
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import traceback
import zlib
from random import Random

PEERS = pathlib.Path(__file__).resolve().parent
ORDER = ["mpi", "slurm", "etcd", "gloo", "kubernetes"]
QUICK = ["mpi", "etcd", "kubernetes"]
STEPS = 40
PATIENCE_S = 120


class Failure(Exception):
    """A scene cannot go on."""


class Bench:
    """What the parts share: the program, the one job whose weights are compared, and what was found."""

    def __init__(self, program, scratch, options):
        self.program, self.scratch, self.quick, self.soak = program, scratch, options.quick, options.soak
        images = scratch / "images"
        if not images.exists():
            write_images(images)
        self.job = ["train", "mobilenet_v2", "--data", f"images:{images}", "--input", "32x32", "--global-batch", "16", "--shards", "4"]
        self.job += ["--threads", "1", "--seed", "7", "--lr", "0.001", "--steps", str(STEPS), "--eval-every", "0", "--checkpoint-every", "0"]
        self.rows, self.passed, self.failed = [], 0, []

    @functools.cache
    def reference(self):
        """SHA-256 of the job's weights on one host with one worker."""
        out = self.scratch / "reference"
        command = [self.program, *self.job, "--workers", "1", "--out", out]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, env=plain_environment())
        if done.returncode:
            raise Failure(f"the training on one host failed:\n{done.stdout}{done.stderr}")
        return self.weights(out)

    def weights(self, folder):
        """SHA-256 of the weights in a training's folder, or why there are none."""
        try:
            return hashlib.sha256((pathlib.Path(folder) / "weights.safetensors").read_bytes()).hexdigest()
        except OSError as error:
            return str(error)

    def check(self, what, held, detail=""):
        """Counts what held or did not, and goes on; whether it held."""
        if held:
            self.passed += 1
        else:
            self.failed.append(what)
        print(f"{'ok    ' if held else 'FAILED'} {what}" + (f"\n{detail}" if detail and not held else ""), flush=True)
        return bool(held)

    def row(self, engine, hosts, fault, outcome, seconds=None, same=None):
        """Adds a line to the table: `same` tells whether the weights are those of one host."""
        bits = {True: "yes", False: "**no**", None: "-"}[same]
        self.rows.append([engine, hosts, fault, outcome, "-" if seconds is None else f"{seconds:.1f}", bits])

    def print_rows(self):
        heads = ["engine", "hosts", "fault", "outcome", "seconds", "same weights"]
        for row in [heads, ["---", "---", "---", "---", "---:", "---"], *self.rows]:
            print("| " + " | ".join(map(str, row)) + " |")


def write_images(folder):
    """A few small images of noise: the test of a training on them takes no time."""
    random = Random(7)
    for part, count in [("train", 32), ("val", 2)]:
        for number in range(4 * count):
            path = folder / part / f"class-{number % 4}" / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            # Each line begins with the number of its filter: none.
            rows = b"".join(b"\0" + random.randbytes(3 * 32) for _ in range(32))
            chunks = [(b"IHDR", struct.pack(">IIBBBBB", 32, 32, 8, 2, 0, 0, 0)), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
            packed = (struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks)
            path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(packed))


def plain_environment(**more):
    """The environment without what mpirun, srun or a cluster may have put into it."""
    foreign = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "HYDRA_", "MPI_", "MPIR_", "I_MPI_", "SLURM_", "PACELINE_")
    return {name: value for name, value in os.environ.items() if not name.startswith(foreign)} | more


def install_apt(*packages):
    """Installs packages of the system; quick where all of them are there."""
    states = subprocess.run(["dpkg-query", "-W", "-f", "${Status}\n", *packages], capture_output=True, text=True)
    if states.stdout.splitlines().count("install ok installed") == len(packages):
        return
    apt = ([] if os.getuid() == 0 else ["sudo", "-n"]) + ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-q"]
    apt += ["-o", "DPkg::Lock::Timeout=300"]
    run_or_fail([*apt, "update"])
    run_or_fail([*apt, "install", "-y", "--no-install-recommends", *packages])


def install_pip(name, *packages):
    """Installs packages into `peers/.venv-NAME`, unless exactly these are there; the folder."""
    folder = PEERS / f".venv-{name}"
    mark, wanted = folder / "installed", "\n".join(packages)
    if not (mark.exists() and mark.read_text() == wanted):
        run_or_fail([sys.executable, "-m", "venv", folder])
        run_or_fail([folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-compile", *packages])
        mark.write_text(wanted)
    return folder


def run_or_fail(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise Failure(f"{' '.join(map(str, command))}: exit status {done.returncode}\n{done.stdout[-2000:]}")


def parts_here():
    there = {path.stem.removeprefix("engines_") for path in PEERS.glob("engines_*.py")}
    return [part for part in ORDER if part in there] + sorted(there - set(ORDER))


def main():
    there = parts_here()
    parser = argparse.ArgumentParser(prog="peers/engines")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--install", action="store_true")
    parser.add_argument("--soak", type=int, default=0, metavar="KILLS")
    parser.add_argument("--keep", type=pathlib.Path)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(there))
    options = parser.parse_args()
    if unknown := [part for part in options.parts if part not in there]:
        parser.error(f"no part is called {unknown[0]}; there are {', '.join(there)}")
    if options.soak and options.parts != ["etcd"]:
        parser.error("--soak KILLS is for one part: etcd")
    parts = options.parts or [part for part in there if part in QUICK or not options.quick]
    modules = {part: importlib.import_module(f"engines_{part}") for part in parts}

    scratch = options.keep or pathlib.Path(tempfile.mkdtemp(prefix="engines-"))
    scratch.mkdir(parents=True, exist_ok=True)
    scratch = scratch.resolve()
    program = pathlib.Path(os.environ.get("PACELINE", PEERS.parent / "target/release/paceline")).resolve()
    try:
        bench = Bench(program, scratch, options)
        for part, module in modules.items():
            begin = time.monotonic()
            print(f"\n{part}: {'installing' if options.install else 'begins'}", flush=True)
            try:
                module.install(bench)
                if not options.install:
                    module.play(bench)
            except Exception as error:
                detail = str(error) if isinstance(error, Failure) else traceback.format_exc()
                bench.check(f"{part}: {'installation' if options.install else 'to its end'}", False, detail)
            print(f"{part}: {time.monotonic() - begin:.0f} s", flush=True)
    finally:
        if options.keep is None:
            shutil.rmtree(scratch, ignore_errors=True)
    if options.install:
        return 1 if bench.failed else 0
    print()
    bench.print_rows()
    print()
    for what in bench.failed:
        print(f"failed: {what}")
    print(f"{bench.passed} passed, {len(bench.failed)} failed")
    return 0 if bench.passed and not bench.failed else 1


if __name__ == "__main__":
    # The parts import this module by its name, and must see the same classes.
    import engines

    sys.exit(engines.main())
