#!/usr/bin/env python3
"""A training step in PyTorch on one GPU, timed: the peer of `--engine cuda`.

Networks and step are those of torch_train.py: Keras's definitions, cross-entropy, SGD with momentum 0.9. In bf16 weights
stay in fp32 and products run under autocast, as in Paceline. cuDNN's algorithms are chosen by measuring.

    torch_gpu.py resnet50 --batch 64 --input 32x32 --precision bf16 --mode eager,graph,compile --steps 50

prints one JSON line a mode: `eager` as people run it, `graph` the whole step in a CUDA graph, `compile` the network through
torch.compile (--compile-mode), its step in a CUDA graph as well where that works; the note says where it does not.

With --serve (one mode) it builds, and compiles, and prints a line; for the first line on standard input it warms up and prints
what that took; for each further line it runs a round of --steps, and prints its time.
"""

import time

STARTED = time.perf_counter()

import argparse
import json
import statistics
import sys

import torch
import torch.nn.functional as F

import torch_train

IMPORTED = time.perf_counter() - STARTED


class Run:
    """A network and its step in one mode."""

    def __init__(self, args, mode):
        self.args, self.mode, self.note = args, mode, ""
        begun = time.perf_counter()
        torch.zeros(1, device="cuda")
        torch.cuda.reset_peak_memory_stats()
        torch.manual_seed(0)
        height, width = args.input
        model = torch_train.NETWORKS[args.network](height, width, args.classes).cuda().train()
        self.images = torch.randn(args.batch, 3, height, width, device="cuda")
        if args.layout == "nhwc":
            model = model.to(memory_format=torch.channels_last)
            self.images = self.images.contiguous(memory_format=torch.channels_last)
        self.labels = torch.randint(args.classes, (args.batch,), device="cuda")
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
        self.network = model
        self.step = self.plain_step
        if mode == "compile":
            self.network = torch.compile(model, mode=None if args.compile_mode == "default" else args.compile_mode)
            # Others may compile at the same time: algorithms are measured later, alone.
            torch.backends.cudnn.benchmark = False
            self.step()
            torch.cuda.synchronize()
        self.building = time.perf_counter() - begun

    def plain_step(self):
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=self.args.precision == "bf16"):
            loss = F.cross_entropy(self.network(self.images), self.labels)
        loss.backward()
        self.optimizer.step()
        return loss

    def warm(self):
        """Measures algorithms, records the graph, and says what the mode took to get going."""
        begun = time.perf_counter()
        torch.backends.cudnn.benchmark = True
        if self.mode != "eager":
            try:
                self.step = capture(self.step)
            except RuntimeError as error:
                if self.mode == "graph":
                    raise
                self.note = f"not in a graph: {str(error).splitlines()[0]}"
        self.step()
        torch.cuda.synchronize()
        first = IMPORTED + self.building + time.perf_counter() - begun
        for _ in range(8):
            self.step()
        torch.cuda.synchronize()
        return {
            "peer": f"torch {torch.__version__}",
            "mode": self.mode,
            "first_step_s": round(first, 2),
            "peak_mb": torch.cuda.max_memory_reserved() >> 20,
            "note": self.note,
        }

    def round(self):
        """Seconds of a step, and the last loss."""
        begun = time.perf_counter()
        for _ in range(self.args.steps):
            loss = self.step()
        torch.cuda.synchronize()
        return (time.perf_counter() - begun) / self.args.steps, loss.item()


def capture(step):
    """The step as one CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    # Backward remembers the stream that it first ran on: all of it is warmed up on one that can be captured.
    with torch.cuda.stream(stream):
        for _ in range(5):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()

    def replay():
        graph.replay()
        return loss

    return replay


def figures(args, seconds, loss):
    return {"images_per_s": round(args.batch / seconds), "step_ms": round(1e3 * seconds, 3), "loss": round(loss, 4)}


def say(**facts):
    print(json.dumps(facts), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", choices=sorted(torch_train.NETWORKS))
    parser.add_argument("--input", type=torch_train.size, default=(32, 32), metavar="HxW")
    parser.add_argument("--batch", type=torch_train.positive, default=64)
    parser.add_argument("--classes", type=torch_train.positive, default=10)
    parser.add_argument("--layout", choices=["nchw", "nhwc"], default="nhwc")
    parser.add_argument("--precision", choices=["fp32", "tf32", "bf16"], default="bf16")
    parser.add_argument("--mode", default="eager,graph,compile", help="a list of eager, graph and compile")
    parser.add_argument(
        "--compile-mode",
        choices=["default", "max-autotune-no-cudagraphs"],
        default="default",
        help="how hard torch.compile tries; the graph around the step is ours in both",
    )
    parser.add_argument("--steps", type=torch_train.positive, default=50)
    parser.add_argument("--rounds", type=torch_train.positive, default=3)
    parser.add_argument("--serve", action="store_true")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("torch_gpu.py: PyTorch finds no GPU")
    torch.backends.cuda.matmul.allow_tf32 = args.precision != "fp32"
    torch.backends.cudnn.allow_tf32 = args.precision != "fp32"
    what = {
        "network": args.network,
        "input": "x".join(map(str, args.input)),
        "batch": args.batch,
        "precision": args.precision,
        "layout": args.layout,
    }
    modes = args.mode.split(",")
    if args.serve:
        if len(modes) != 1:
            sys.exit("torch_gpu.py: --serve runs one mode")
        run = Run(args, modes[0])
        say(state="built", seconds=round(run.building, 1))
        if sys.stdin.readline():
            say(state="ready", **run.warm())
        for _ in sys.stdin:
            say(**figures(args, *run.round()))
        return
    for mode in modes:
        run = Run(args, mode)
        facts = run.warm()
        rounds = [run.round() for _ in range(args.rounds)]
        seconds = statistics.median(seconds for seconds, _ in rounds)
        say(**what, **facts, **figures(args, seconds, rounds[-1][1]))
        del run
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
