#!/usr/bin/env python3
"""A training step in PyTorch on one GPU, timed: the peer of `--engine cuda`.

Networks and step are those of torch_train.py: Keras's definitions, cross-entropy, SGD with momentum 0.9. In bf16 weights
stay in fp32 and products run under autocast, as in Paceline. cuDNN's algorithms are chosen by measuring.

    torch_gpu.py resnet50 --batch 64 --input 32x32 --precision bf16 --mode eager,graph,compile --steps 50

prints one JSON line a mode: `eager` as people run it, `graph` the whole step in a CUDA graph, `compile` the network through
torch.compile, its step in a CUDA graph as well where that works.
"""

import argparse
import json
import sys
import time

import torch
import torch.nn.functional as F

import torch_train


def build(args):
    torch.manual_seed(0)
    height, width = args.input
    model = torch_train.NETWORKS[args.network](height, width, args.classes).cuda().train()
    images = torch.randn(args.batch, 3, height, width, device="cuda")
    if args.layout == "nhwc":
        model = model.to(memory_format=torch.channels_last)
        images = images.contiguous(memory_format=torch.channels_last)
    labels = torch.randint(args.classes, (args.batch,), device="cuda")
    return model, images, labels


def make_step(args, compiled):
    model, images, labels = build(args)
    run = torch.compile(model) if compiled else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=args.precision == "bf16"):
            loss = F.cross_entropy(run(images), labels)
        loss.backward()
        optimizer.step()
        return loss

    return step


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


def measure(args, mode):
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    step = make_step(args, compiled=mode == "compile")
    note = ""
    if mode != "eager":
        try:
            step = capture(step)
        except RuntimeError as error:
            if mode == "graph":
                raise
            note = f"not in a graph: {error}"
    for _ in range(8):
        loss = step()
    torch.cuda.synchronize()
    warm = time.perf_counter() - started
    best = []
    for _ in range(args.rounds):
        begun = time.perf_counter()
        for _ in range(args.steps):
            loss = step()
        torch.cuda.synchronize()
        best.append((time.perf_counter() - begun) / args.steps)
    best.sort()
    seconds = best[len(best) // 2]
    return {
        "peer": f"torch {torch.__version__}",
        "mode": mode,
        "network": args.network,
        "input": "x".join(map(str, args.input)),
        "batch": args.batch,
        "precision": args.precision,
        "layout": args.layout,
        "images_per_s": round(args.batch / seconds),
        "step_ms": round(1e3 * seconds, 3),
        "loss": round(loss.item(), 4),
        "warm_s": round(warm, 1),
        "peak_mb": torch.cuda.max_memory_reserved() >> 20,
        "note": note,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", choices=sorted(torch_train.NETWORKS))
    parser.add_argument("--input", type=torch_train.size, default=(32, 32), metavar="HxW")
    parser.add_argument("--batch", type=torch_train.positive, default=64)
    parser.add_argument("--classes", type=torch_train.positive, default=10)
    parser.add_argument("--layout", choices=["nchw", "nhwc"], default="nhwc")
    parser.add_argument("--precision", choices=["fp32", "tf32", "bf16"], default="bf16")
    parser.add_argument("--mode", default="eager,graph,compile", help="a list of eager, graph and compile")
    parser.add_argument("--steps", type=torch_train.positive, default=50)
    parser.add_argument("--rounds", type=torch_train.positive, default=3)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("torch_gpu.py: PyTorch finds no GPU")
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = args.precision != "fp32"
    torch.backends.cudnn.allow_tf32 = args.precision != "fp32"
    for mode in args.mode.split(","):
        print(json.dumps(measure(args, mode)), flush=True)


if __name__ == "__main__":
    main()
