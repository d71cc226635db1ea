#!/usr/bin/env python3
"""How Paceline and PyTorch DDP scale with workers of one thread, measured in turns; `peers/scaling` prepares both.

For each network and each number of workers, N, one DDP world (torch_ddp.py, gloo) is started and kept for all rounds; it
sleeps while another contender runs. In a round each contender times its steps once: `paceline bench` with each --update, a
new process every time, and DDP. The one that begins changes from round to round. What slows the machine for a while slows
all of a round, so ratios are taken round by round. One worker has nothing to exchange: there Paceline runs once a round.
Then both all-reduce ResNet-50's gradients between two processes.

The table is Markdown, on standard output; progress goes to standard error. Ctrl-C, SIGTERM and the end of --budget-s print
the table of what is there. Exit status: 0 done, 1 something failed or was left out, 2 bad usage.
"""

import argparse
import json
import os
import pathlib
import platform
import select
import signal
import subprocess
import sys
import tempfile
import time

from processes import allowed_cores, tied
from scaling_table import UPDATES, read_records, render

PEERS = pathlib.Path(__file__).resolve().parent
ROOT = PEERS.parent

PACELINE_WARMUP = 2  # steps that Paceline's report leaves out of its rate
DDP_WARMUP = 3  # DDP orders its buckets anew after the first
STEPS = {"mobilenet_v2": 40, "other": 12}  # its steps are short
DDP_STEPS = {"mobilenet_v2": 20, "other": 8}
ALLREDUCE_NETWORK, ALLREDUCE_WORKERS, ALLREDUCE_BYTES = "resnet50", 2, 4 * 23_555_082  # its gradients
ALLREDUCE_TIMES = 20


BEGAN = time.monotonic()


class Failure(Exception):
    pass


class OutOfTime(Exception):
    pass


# ---- Contenders: each runs a round and returns its rates, and all that it reported ------------------------------------


class Paceline:
    def __init__(self, network, workers, update, options):
        self.command = [str(options.paceline), "bench", network, "--workers", str(workers), "--threads", "1"]
        self.command += ["--batch", str(options.batch), "--input", options.input, "--classes", "10", "--update", update]
        self.command += ["--steps", str(options.steps(network) + PACELINE_WARMUP), "--json"]
        self.limit_s = options.limit_s

    def run(self):
        with tempfile.TemporaryDirectory(prefix="paceline-scaling-") as folder:
            output = run_program(self.command + ["--out", os.path.join(folder, "study")], self.limit_s)
        case = json.loads(output)["cases"][0]
        if case["status"] != "done":
            raise Failure(f"{' '.join(self.command)}: the case is {case['status']}: {case['reason']}")
        return {"median": case["images_per_s"]["median"], "mean": case["images_per_s"]["mean"]}, case

    def close(self):
        pass


class Ddp:
    """A torch_ddp.py that waits for rounds, started by the first one."""

    def __init__(self, network, workers, layout, options):
        self.command = [options.python, str(PEERS / "torch_ddp.py"), "--network", network, "--workers", str(workers)]
        self.command += ["--batch", str(options.batch), "--input", options.input, "--layout", layout]
        self.command += ["--warmup", str(DDP_WARMUP), "--flush-denormals", "--serve"]
        self.steps = options.ddp_steps(network)
        self.limit_s = options.limit_s
        self.process = None
        self.busy = False  # from a request to its answer

    def start(self):
        self.busy = True
        self.errors = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True, preexec_fn=tied()
        )
        if self.read() != "ready":
            raise Failure(f"PyTorch did not get ready: {' '.join(self.command)}")
        self.busy = False

    def read(self):
        ready, _, _ = select.select([self.process.stdout], [], [], self.limit_s)
        if not ready:
            self.process.kill()
            raise Failure(f"no answer in {self.limit_s} s: {' '.join(self.command)}")
        line = self.process.stdout.readline()
        if not line:
            status = self.process.wait()
            self.errors.seek(0)
            said = self.errors.read().decode(errors="replace").strip()
            raise Failure(f"{' '.join(self.command)} ended with status {status}:\n{said}")
        return line.strip()

    def ask(self, command):
        if self.process is None:
            self.start()
        self.busy = True
        try:
            self.process.stdin.write(command + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # read() says why
        answer = json.loads(self.read())
        self.busy = False
        return answer

    def run(self):
        report = self.ask(f"run {self.steps}")
        return {"median": report["images_per_s"], "mean": report["images_per_s_mean"]}, report

    def close(self):
        """Ends it: at once when it is in the middle of something, which is when that failed or was interrupted."""
        if self.process is None:
            return
        if self.busy:
            self.process.kill()
        try:
            self.process.communicate(timeout=10)  # the end of its input is its end
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
        self.errors.close()


def run_program(command, limit_s):
    """Standard output of a program that must succeed."""
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=tied()
    )
    try:
        output, errors = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        raise Failure(f"{' '.join(command)} took more than {limit_s} s") from None
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    if process.returncode != 0:
        raise Failure(f"{' '.join(command)} ended with status {process.returncode}:\n{errors.strip()}")
    return output


# ---- Measuring --------------------------------------------------------------------------------------------------------


class Study:
    """All records so far: dictionaries that also go, line by line, to a file."""

    def __init__(self, options):
        self.options = options
        self.records = []
        self.file = options.out.open("w") if options.out else None

    def add(self, kind, **values):
        record = {"kind": kind, "elapsed_s": round(self.elapsed(), 3), **values}
        self.records.append(record)
        if self.file:
            self.file.write(json.dumps(record) + "\n")
            self.file.flush()
        return record

    def close(self):
        if self.file:
            self.file.close()

    def elapsed(self):
        return time.monotonic() - BEGAN

    def say(self, text):
        print(f"scaling: {self.elapsed():6.1f} s  {text}", file=sys.stderr, flush=True)

    def check_budget(self):
        if self.options.budget_s is not None and self.elapsed() >= self.options.budget_s:
            raise OutOfTime

    def fail(self, what, failure):
        self.say(f"{what}: failed: {failure}")
        self.add("failure", what=what, reason=str(failure))

    def run(self):
        """Everything that was asked for; stops early, in order, when the time is up."""
        options = self.options
        self.add("machine", **machine(), **asked(options), torch=options.torch)
        try:
            for network in options.networks:
                for workers in options.workers:
                    self.case(network, workers)
            self.allreduce()
        except OutOfTime:
            self.say(f"{options.budget_s} s are over: what is missing is left out")
            self.add("stopped", reason=f"--budget-s {options.budget_s}")
        except KeyboardInterrupt:
            self.say("interrupted")
            self.add("stopped", reason="interrupted")

    def case(self, network, workers):
        options = self.options
        updates = options.updates if workers > 1 else options.updates[:1]
        contenders = {update: Paceline(network, workers, update, options) for update in updates}
        layouts = [] if options.no_ddp else options.ddp_layouts
        contenders.update({f"ddp {layout}": Ddp(network, workers, layout, options) for layout in layouts})
        names = list(contenders)
        try:
            for number in range(options.rounds):
                for name in list(names):
                    self.check_budget()
                    what = f"{network}, {workers} worker(s), round {number + 1} of {options.rounds}, {name}"
                    try:
                        rate, report = contenders[name].run()
                    except Failure as failure:
                        self.fail(what, failure)
                        names.remove(name)
                        continue
                    self.say(f"{what}: {rate[options.rate]:.1f} images/s")
                    self.add(
                        "run", network=network, workers=workers, round=number, contender=name, images_per_s=rate, report=report
                    )
                names = names[1:] + names[:1]  # another one goes first in the next round
            if (network, workers) == (ALLREDUCE_NETWORK, ALLREDUCE_WORKERS):
                for name in names:
                    if name.startswith("ddp "):
                        self.gloo_allreduce(contenders[name])
                        break
        finally:
            for contender in contenders.values():
                contender.close()

    def gloo_allreduce(self, world):
        self.check_budget()
        try:
            report = world.ask(f"allreduce {ALLREDUCE_TIMES}")
        except Failure as failure:
            self.fail("gloo's all-reduce", failure)
            return
        self.say(f"gloo: all-reduce of {report['allreduce_bytes'] / 1e6:.1f} MB: {1e3 * report['median_s']:.1f} ms")
        self.add("gloo-allreduce", report=report)

    def allreduce(self):
        """Paceline's own all-reduce, where the program has that command and the machine the cores."""
        program = str(self.options.paceline)
        if len(allowed_cores()) < ALLREDUCE_WORKERS:
            return
        try:
            run_program([program, "allreduce", "--help"], self.options.limit_s)
        except Failure:
            self.say("this paceline has no `allreduce`: left out")
            return
        self.check_budget()
        command = [program, "allreduce", "--workers", str(ALLREDUCE_WORKERS), "--sizes", str(ALLREDUCE_BYTES)]
        try:
            output = run_program(command, self.options.limit_s)
        except Failure as failure:
            self.fail("paceline allreduce", failure)
            return
        self.say("paceline allreduce: done")
        self.add("paceline-allreduce", command=" ".join(["paceline"] + command[1:]), output=output)


def machine():
    """What the numbers were measured on."""
    model = platform.processor() or platform.machine()
    try:
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    except OSError:
        pass
    return {"cpu": model, "cores": len(allowed_cores()), "date": time.strftime("%Y-%m-%d", time.gmtime())}


def asked(options):
    """What was asked for, network by network."""
    return {
        "batch": options.batch,
        "input": options.input,
        "steps": {network: options.steps(network) for network in options.networks},
        "ddp_steps": None if options.no_ddp else {network: options.ddp_steps(network) for network in options.networks},
    }


# ---- The command line -------------------------------------------------------------------------------------------------


def positive(text):
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"'{text}' is not a positive number")
    return int(text)


def names(text):
    return list(dict.fromkeys(name for name in text.split(",") if name))


def counts(text):
    return list(dict.fromkeys(positive(part) for part in text.split(",")))


class Steps:
    """Steps by network. `12` sets all of them, `resnet50=12,mobilenet_v2=40` some."""

    def __init__(self, defaults):
        self.counts = defaults

    def parse(self, text):
        if "=" not in text:
            return Steps({"other": positive(text)})
        pairs = [part.partition("=") for part in text.split(",")]
        return Steps({**self.counts, **{network: positive(count) for network, _, count in pairs}})

    def __call__(self, network):
        return self.counts.get(network, self.counts["other"])


def powers_of_two(most):
    return [1 << k for k in range(most.bit_length()) if 1 << k < most] + [most]


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    steps, ddp_steps = Steps(STEPS), Steps(DDP_STEPS)
    add("--networks", type=names, default=["resnet50", "mobilenet_v2"], metavar="A,B", help="(resnet50,mobilenet_v2)")
    add("--workers", type=counts, default=powers_of_two(len(allowed_cores())), metavar="N,M",
        help="numbers of workers, measured in this order (1,2,4,... up to the cores)")
    add("--rounds", type=positive, default=3, help="rounds a case (3)")
    add("--steps", type=steps.parse, default=steps, metavar="K",
        help="Paceline's timed steps a round: a number, or NETWORK=K,NETWORK=K (12, mobilenet_v2 40)")
    add("--ddp-steps", type=ddp_steps.parse, default=ddp_steps, metavar="K", help="the same of DDP (8, mobilenet_v2 20)")
    add("--batch", type=positive, default=64, help="images a step of each worker (64)")
    add("--input", default="32x32", metavar="HxW", help="image size (32x32)")
    add("--updates", type=names, default=UPDATES, metavar="A,B", help=f"({','.join(UPDATES)}); one worker runs the first")
    add("--ddp-layouts", type=names, default=["nhwc"], metavar="A,B",
        help="PyTorch's layouts (nhwc); with nchw,nhwc the table has the faster one of each case")
    add("--no-ddp", action="store_true", help="Paceline alone")
    add("--rate", choices=["median", "mean"], default="median", help="which rate of a run the table shows (median)")
    add("--budget-s", type=positive, metavar="SECONDS", help="start nothing more after so many seconds")
    add("--limit-s", type=positive, default=300, metavar="SECONDS", help="a single run that takes longer has failed (300)")
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    add("--paceline", type=pathlib.Path, default=target / "release" / "paceline", help="the program to run")
    add("--python", default=sys.executable, help="the interpreter that has PyTorch (the one that runs this)")
    add("--out", type=pathlib.Path, metavar="FILE", help="also write every result here as it comes, a JSON line each")
    add("--table", type=pathlib.Path, nargs="+", metavar="FILE", help="measure nothing: the table of such files")
    options = parser.parse_args()
    if not options.table:
        check(parser, options)
    return options


def check(parser, options):
    """Ends the program with an error where a run could not work."""
    for name, given, known in [
        ("--updates", options.updates, UPDATES), ("--ddp-layouts", options.ddp_layouts, ["nchw", "nhwc"]),
    ]:
        wrong = [each for each in given if each not in known]
        if wrong or not given:
            parser.error(f"{name}: unknown '{','.join(wrong)}'; there are {', '.join(known)}")
    if not options.networks:
        parser.error("--networks: name at least one")
    options.paceline = options.paceline.absolute()
    if not os.access(options.paceline, os.X_OK):
        parser.error(f"{options.paceline} is not there; build it with `cargo build --release`, or name it with --paceline")
    options.torch = None
    if not options.no_ddp:
        code = "import torch, torch.distributed as d; assert d.is_gloo_available(); print(torch.__version__)"
        try:
            options.torch = run_program([options.python, "-c", code], options.limit_s).strip()
        except (Failure, OSError) as failure:
            reason = str(failure).strip().splitlines()[-1]
            parser.error(f"{options.python} has no PyTorch with gloo ({reason}); name another with --python, or use --no-ddp")
    if options.out:
        try:
            options.out.open("a").close()
        except OSError as error:
            parser.error(f"--out: {error}")
    most = max(options.workers)
    if most > len(allowed_cores()):
        print(f"scaling: {most} workers share {len(allowed_cores())} core(s): not what scaling means", file=sys.stderr)


def main():
    options = parse_args()
    if options.table:
        try:
            print(render(read_records(options.table), options.rate))
        except (ValueError, OSError) as failure:
            sys.exit(f"scaling: {failure}")
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    study = Study(options)
    study.run()
    study.close()
    print(render(study.records, options.rate))
    if any(record["kind"] in ("failure", "stopped") for record in study.records):
        sys.exit(1)


if __name__ == "__main__":
    main()
