#!/usr/bin/env python3
"""The step of torch_train.py under PyTorch's DistributedDataParallel over gloo: the peer of `paceline bench --workers N`.

    torch_ddp.py --network resnet50 --workers 2 --batch 64 --input 32x32 --layout nhwc --steps 10

N processes of one thread, each on a core of its own (the first N that this process may use, as Paceline chooses them; no
pinning where there are fewer), talk over the loopback device alone. Each trains on its own fixed batch in memory, SGD with
momentum 0.9. Batch norm takes its statistics from the worker's own batch; the running averages are rank 0's, which DDP sends
to all before each pass (broadcast_buffers, its default). One worker is the plain network, without DDP around it.

Prints one JSON line: the rate of all workers together, from rank 0's median step (images_per_s) and from the time between a
barrier before the timed steps and one after them (images_per_s_mean), rank 0's seconds of every step, and peak memory.

With --serve it builds and warms up, prints `ready`, and then prints one JSON line for each line on standard input, until
end of file: `run K` does K timed steps, `allreduce K` times K all-reduces of as many numbers as the network has parameters.
No worker outlives the process that started it.
"""

import os

# Before torch is imported: with one thread the process can be forked, and every worker has torch as soon as it exists.
os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"

import argparse
import datetime
import json
import multiprocessing
import multiprocessing.connection
import signal
import socket
import statistics
import sys
import time
import traceback

import torch
import torch.distributed as dist

from processes import allowed_cores, die_with_parent
from torch_train import EXPECTED_PARAMS, NETWORKS, Training, peak_memory_bytes, positive, size

LOOPBACK = "127.0.0.1"
GRACE_S = 1  # what the other workers get to say why they failed, once one has
PATIENCE = datetime.timedelta(hours=12)  # of a collective; a dead worker is noticed at once by other means


class Failure(Exception):
    pass


# ---- A worker ---------------------------------------------------------------------------------------------------------


def work(rank, args, parent, pipe):
    """What a worker process does: obeys the commands that come through the pipe, and answers each."""
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the launcher's to handle
    try:
        obey(Worker(rank, args, port=pipe.recv()), pipe)
    except Exception:
        pipe.send({"error": traceback.format_exc()})
        sys.exit(1)


def obey(worker, pipe):
    pipe.send({})
    while True:
        command, count = pipe.recv()
        if command == "stop":
            break
        pipe.send(getattr(worker, command)(count))
    dist.destroy_process_group()


class Worker:
    def __init__(self, rank, args, port):
        cores = allowed_cores()
        if args.workers <= len(cores) and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, {cores[rank]})
        torch.set_num_threads(1)
        if args.flush_denormals:
            torch.set_flush_denormal(True)
        store = dist.TCPStore(LOOPBACK, port, is_master=False)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=args.workers, timeout=PATIENCE)

        self.training = Training(args)
        torch.manual_seed(1 + rank)
        self.training.images.normal_()
        self.training.labels.random_(args.classes)
        if args.workers > 1:
            views = args.gradients == "views"
            wrapped = torch.nn.parallel.DistributedDataParallel(self.training.model, gradient_as_bucket_view=views)
            self.training.model = wrapped
        self.training.run(args.warmup)

    def run(self, steps):
        dist.barrier()
        start = time.perf_counter()
        seconds, loss = self.training.run(steps)
        dist.barrier()
        return {
            "params": self.training.params,
            "seconds": seconds,
            "block_s": time.perf_counter() - start,
            "loss": loss,
            "peak_memory_bytes": peak_memory_bytes(),
        }

    def allreduce(self, times):
        numbers = torch.ones(self.training.params)
        dist.all_reduce(numbers)
        seconds = []
        for _ in range(times):
            dist.barrier()
            start = time.perf_counter()
            dist.all_reduce(numbers)
            seconds.append(time.perf_counter() - start)
            numbers.fill_(1)
        return {"bytes": 4 * numbers.numel(), "seconds": seconds}


# ---- The launcher -----------------------------------------------------------------------------------------------------


class World:
    """The workers, ready and waiting for commands."""

    def __init__(self, args):
        if "GLOO_SOCKET_IFNAME" not in os.environ:
            names = [name for _, name in socket.if_nameindex() if name in ("lo", "lo0")]
            if not names:
                raise Failure("there is no loopback device lo; name one in GLOO_SOCKET_IFNAME")
            os.environ["GLOO_SOCKET_IFNAME"] = names[0]
        self.pipes, self.processes = [], []
        context = multiprocessing.get_context("fork")
        for rank in range(args.workers):
            ours, theirs = context.Pipe()
            process = context.Process(target=work, args=(rank, args, os.getpid(), theirs), daemon=True)
            process.start()
            theirs.close()  # so that the end of the worker is the end of the pipe
            self.pipes.append(ours)
            self.processes.append(process)
        # Only now, because it starts threads. Port 0: any free one.
        self.store = dist.TCPStore(LOOPBACK, 0, is_master=True, wait_for_workers=False)
        self.tell(self.store.port)
        self.replies()

    def tell(self, message):
        for pipe in self.pipes:
            try:
                pipe.send(message)
            except OSError:
                pass  # that worker is gone; replies() says how

    def replies(self):
        """One reply of every rank. A worker that ends instead ends this process."""
        replies, failures, deaths, deadline = {}, [], [], None
        waiting = {pipe: rank for rank, pipe in enumerate(self.pipes)}
        while waiting:
            left = None if deadline is None else deadline - time.monotonic()
            ready = multiprocessing.connection.wait(waiting, left)
            if not ready:
                break
            for pipe in ready:
                rank = waiting.pop(pipe)
                try:
                    replies[rank] = pipe.recv()
                except EOFError:
                    process = self.processes[rank]
                    process.join()
                    code = process.exitcode
                    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with status {code}"
                    deaths.append(f"rank {rank} {how}")
                    continue
                if "error" in replies[rank]:
                    failures.append(f"rank {rank} failed:\n{replies[rank]['error'].strip()}")
            if (failures or deaths) and deadline is None:
                deadline = time.monotonic() + GRACE_S
        if failures or deaths:
            raise Failure("\n".join(failures + deaths))  # last, because it is why the others failed
        return [replies[rank] for rank in range(len(self.pipes))]

    def command(self, name, count):
        self.tell((name, count))
        return self.replies()

    def close(self):
        self.tell(("stop", 0))
        for process in self.processes:
            process.join()


def about(args):
    return {
        "network": args.network,
        "input": "x".join(map(str, args.input)),
        "layout": args.layout,
        "precision": args.precision,
        "workers": args.workers,
        "batch": args.batch,
        "classes": args.classes,
        "threads": 1,
        "pinned": hasattr(os, "sched_setaffinity") and args.workers <= len(allowed_cores()),
        "backend": "gloo",
        "gradients": args.gradients if args.workers > 1 else None,
        "optimizer": args.optimizer,
        "torch": torch.__version__,
    }


def run(world, args, steps):
    ranks = world.command("run", steps)
    expected = EXPECTED_PARAMS[args.network]
    comparable = args.classes == 10 and (args.network != "vgg_19" or args.input == (32, 32))
    if comparable and ranks[0]["params"] != expected:
        raise Failure(f"{args.network} has {ranks[0]['params']} parameters, Keras's has {expected}")
    memory = [reply["peak_memory_bytes"] for reply in ranks]
    seconds, block_s = ranks[0]["seconds"], ranks[0]["block_s"]
    images = args.workers * args.batch
    return {
        **about(args),
        "params": ranks[0]["params"],
        "images_per_s": images / statistics.median(seconds),
        "images_per_s_mean": images * steps / block_s,
        "seconds": seconds,
        "block_s": block_s,
        "loss": ranks[0]["loss"],
        "peak_memory_bytes": {"per_worker": max(memory), "total": sum(memory)},
    }


def allreduce(world, args, times):
    """An all-reduce lasts until its slowest rank has it."""
    ranks = world.command("allreduce", times)
    seconds = [max(each) for each in zip(*(reply["seconds"] for reply in ranks))]
    return {**about(args), "allreduce_bytes": ranks[0]["bytes"], "median_s": statistics.median(seconds), "seconds": seconds}


def serve(world, args):
    print("ready", flush=True)
    commands = {"run": run, "allreduce": allreduce}
    for line in sys.stdin:
        words = line.split()
        if len(words) != 2 or words[0] not in commands or not words[1].isdigit() or int(words[1]) == 0:
            raise Failure(f"expected `run K` or `allreduce K` on standard input, got '{line.strip()}'")
        print(json.dumps(commands[words[0]](world, args, int(words[1]))), flush=True)


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", choices=sorted(NETWORKS), required=True)
    parser.add_argument("--workers", type=positive, default=2, metavar="N", help="worker processes (2)")
    parser.add_argument("--batch", type=positive, default=64, help="images a step of each worker (64)")
    parser.add_argument("--input", type=size, default=(32, 32), metavar="HxW", help="image size (32x32)")
    parser.add_argument("--classes", type=positive, default=10)
    parser.add_argument("--layout", choices=["nchw", "nhwc"], default="nhwc", help="nhwc is PyTorch's channels_last (nhwc)")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32", help="bf16 is autocast to bfloat16 (fp32)")
    parser.set_defaults(compile=False)  # which torch_train.py's step also knows
    parser.add_argument("--steps", type=positive, default=10, help="timed steps (10)")
    parser.add_argument("--warmup", type=int, default=2, help="steps before them (2)")
    parser.add_argument("--optimizer", choices=["fused", "foreach", "loop"], default="fused", help="form of SGD's update")
    parser.add_argument(
        "--gradients", choices=["views", "copies"], default="views",
        help="whether gradients live in DDP's buckets or are copied in and out, which is its default (views)",
    )
    parser.add_argument("--flush-denormals", action="store_true", help="let the CPU treat denormals as zero")
    parser.add_argument("--serve", action="store_true", help="obey commands on standard input")
    parser.add_argument("--json", action="store_true", help="one JSON line, which is what is printed anyway")
    args = parser.parse_args()
    if not dist.is_available() or not dist.is_gloo_available():
        parser.error(f"PyTorch {torch.__version__} here was built without gloo")
    if args.workers > len(allowed_cores()):
        print(f"torch_ddp.py: {args.workers} workers share {len(allowed_cores())} core(s)", file=sys.stderr)
    return args


def main():
    args = parse_args()
    try:
        world = World(args)
        if args.serve:
            serve(world, args)
        else:
            print(json.dumps(run(world, args, args.steps)))
        world.close()
    except Failure as failure:
        sys.exit(f"torch_ddp.py: {failure}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
