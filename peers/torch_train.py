#!/usr/bin/env python3
"""One training step in PyTorch, timed: the peer that `paceline bench` is measured against.

The networks are Keras's definitions, as in Paceline: ResNet-50 with the stride of a stage in its first 1x1 and biases in
its convolutions, MobileNetV2 with asymmetric padding in front of stride 2, VGG-19 with a flattened map into 4096, 4096,
classes. A step is forward, cross-entropy, backward and SGD with momentum 0.9, on one fixed batch in memory.

    torch_train.py resnet50 --batch 64 --input 32x32 --threads 1 --layout nhwc --steps 10

prints one JSON line. With --serve it builds and warms up, prints `ready`, and then runs one round of steps for each line
on standard input (a number of steps, or an empty line for --steps), printing one JSON line a round, until end of file.
"""

import argparse
import json
import resource
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn


def peak_memory_bytes():
    """Largest resident size of this process so far (Linux counts it in KiB, macOS in bytes)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


# ---- ResNet-50 (He et al. 2015), Keras's ------------------------------------------------------------------------------


class Bottleneck(nn.Module):
    def __init__(self, inputs, width, stride, shortcut):
        super().__init__()
        self.shortcut = conv_bn(inputs, 4 * width, 1, stride) if shortcut else None
        self.reduce = conv_bn(inputs, width, 1, stride)
        self.spatial = conv_bn(width, width, 3)
        self.expand = conv_bn(width, 4 * width, 1)

    def forward(self, x):
        y = F.relu(self.reduce(x), inplace=True)
        y = F.relu(self.spatial(y), inplace=True)
        y = self.expand(y)
        y += x if self.shortcut is None else self.shortcut(x)
        return F.relu(y, inplace=True)


def conv_bn(inputs, outputs, kernel, stride=1):
    """Convolution with bias, padded to keep the map's size, and batch norm. Keras's momentum .99 is PyTorch's .01."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2),
        nn.BatchNorm2d(outputs, eps=1.001e-5, momentum=0.01),
    )


def resnet50(height, width, classes):
    blocks = []
    inputs = 64
    for channels, count, stride in [(64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)]:
        for i in range(count):
            blocks.append(Bottleneck(inputs, channels, stride if i == 0 else 1, shortcut=i == 0))
            inputs = 4 * channels
    return nn.Sequential(
        conv_bn(3, 64, 7, stride=2),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, stride=2, padding=1),  # after ReLU the same as Keras's maximum over padded zeros
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(inputs, classes),
    )


# ---- MobileNetV2 (Sandler et al. 2018), Keras's -----------------------------------------------------------------------


class PadForStride2(nn.Module):
    """What a 3x3 window of stride 2 needs: one row and column at the end, and at the start only if the side is odd."""

    def forward(self, x):
        top, left = x.shape[2] % 2, x.shape[3] % 2
        return F.pad(x, (left, 1, top, 1))


def mobile_conv(inputs, outputs, kernel, stride=1, groups=1, relu=True):
    layers = [PadForStride2()] if stride == 2 else []
    padding = 0 if stride == 2 else kernel // 2
    layers.append(nn.Conv2d(inputs, outputs, kernel, stride, padding, groups=groups, bias=False))
    layers.append(nn.BatchNorm2d(outputs, eps=1e-3, momentum=0.001))
    if relu:
        layers.append(nn.ReLU6(inplace=True))
    return nn.Sequential(*layers)


class InvertedResidual(nn.Module):
    def __init__(self, inputs, outputs, stride, expansion):
        super().__init__()
        hidden = inputs * expansion
        self.body = nn.Sequential(
            mobile_conv(inputs, hidden, 1) if expansion > 1 else nn.Identity(),
            mobile_conv(hidden, hidden, 3, stride, groups=hidden),
            mobile_conv(hidden, outputs, 1, relu=False),
        )
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x):
        return x + self.body(x) if self.residual else self.body(x)


def mobilenet_v2(height, width, classes):
    blocks = []
    inputs = 32
    for expansion, outputs, count, stride in [
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    ]:
        for i in range(count):
            blocks.append(InvertedResidual(inputs, outputs, stride if i == 0 else 1, expansion))
            inputs = outputs
    return nn.Sequential(
        mobile_conv(3, 32, 3, stride=2),
        *blocks,
        mobile_conv(inputs, 1280, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(1280, classes),
    )


# ---- VGG-19 (Simonyan and Zisserman 2014), Keras's --------------------------------------------------------------------


def vgg_19(height, width, classes):
    layers = []
    inputs = 3
    for channels, count in [(64, 2), (128, 2), (256, 4), (512, 4), (512, 4)]:
        for _ in range(count):
            layers += [nn.Conv2d(inputs, channels, 3, padding=1), nn.ReLU(inplace=True)]
            inputs = channels
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(
        *layers,
        nn.Flatten(),
        nn.Linear(inputs * (height // 32) * (width // 32), 4096),
        nn.ReLU(inplace=True),
        nn.Linear(4096, 4096),
        nn.ReLU(inplace=True),
        nn.Linear(4096, classes),
    )


NETWORKS = {"resnet50": resnet50, "mobilenet_v2": mobilenet_v2, "vgg_19": vgg_19}

# Trainable parameters with 10 classes, as Keras counts them (VGG-19: at 32x32).
EXPECTED_PARAMS = {"resnet50": 23_555_082, "mobilenet_v2": 2_236_682, "vgg_19": 38_947_914}


# ---- The step ---------------------------------------------------------------------------------------------------------


class Training:
    """A network, its optimizer and one fixed batch."""

    def __init__(self, args):
        torch.manual_seed(0)
        height, width = args.input
        memory_format = torch.channels_last if args.layout == "nhwc" else torch.contiguous_format
        self.model = NETWORKS[args.network](height, width, args.classes).to(memory_format=memory_format).train()
        self.params = sum(p.numel() for p in self.model.parameters())
        images = torch.randn(args.batch, 3, height, width)
        self.images = images.contiguous(memory_format=memory_format)
        self.labels = torch.randint(args.classes, (args.batch,))
        self.autocast = torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.precision == "bf16")
        options = {args.optimizer: True} if args.optimizer != "loop" else {"foreach": False}
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9, **options)
        if args.compile:
            self.model = torch.compile(self.model)

    def step(self):
        self.optimizer.zero_grad()
        with self.autocast:
            loss = F.cross_entropy(self.model(self.images), self.labels)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def run(self, steps):
        """Seconds of each of `steps` steps, and the last loss."""
        seconds, loss = [], float("nan")
        for _ in range(steps):
            start = time.perf_counter()
            loss = self.step()
            seconds.append(time.perf_counter() - start)
        return seconds, loss


def report(args, training, seconds, loss, extra):
    return {
        "network": args.network,
        "input": "x".join(map(str, args.input)),
        "layout": args.layout,
        "precision": args.precision,
        "compiled": args.compile,
        "batch": args.batch,
        "threads": args.threads,
        "classes": args.classes,
        "params": training.params,
        "images_per_s": args.batch / statistics.median(seconds),
        "images_per_s_mean": args.batch * len(seconds) / sum(seconds),
        "seconds": seconds,
        "loss": loss,
        "peak_memory_bytes": peak_memory_bytes(),
        **extra,
    }


def size(text):
    try:
        height, width = (int(side) for side in text.lower().split("x"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not HxW, such as 32x32") from None
    if height < 32 or width < 32:
        raise argparse.ArgumentTypeError(f"{text}: these networks need 32x32 or more")
    return height, width


def positive(text):
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"'{text}' is not a positive number")
    return int(text)


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", choices=sorted(NETWORKS))
    parser.add_argument("--input", type=size, default=(32, 32), metavar="HxW", help="image size (32x32)")
    parser.add_argument("--batch", type=positive, default=64)
    parser.add_argument("--classes", type=positive, default=10)
    parser.add_argument("--threads", type=positive, default=1)
    parser.add_argument("--layout", choices=["nchw", "nhwc"], default="nchw", help="nhwc is PyTorch's channels_last")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32", help="bf16 is autocast to bfloat16")
    parser.add_argument("--compile", action="store_true", help="run the network through torch.compile")
    parser.add_argument("--steps", type=positive, default=10, help="timed steps (10)")
    parser.add_argument("--warmup", type=int, default=2, help="steps before them (2)")
    parser.add_argument("--optimizer", choices=["fused", "foreach", "loop"], default="fused", help="form of SGD's update")
    parser.add_argument("--flush-denormals", action="store_true", help="let the CPU treat denormals as zero")
    parser.add_argument("--serve", action="store_true", help="run a round for each line on standard input")
    parser.add_argument("--json", action="store_true", help="one JSON line, which is what is printed anyway")
    return parser.parse_args()


def main():
    args = parse_args()
    import_memory = peak_memory_bytes()
    torch.set_num_threads(args.threads)
    if args.flush_denormals:
        torch.set_flush_denormal(True)

    training = Training(args)
    expected = EXPECTED_PARAMS[args.network]
    comparable = args.classes == 10 and (args.network != "vgg_19" or args.input == (32, 32))
    if comparable and training.params != expected:
        sys.exit(f"torch_train.py: {args.network} has {training.params} parameters, Keras's has {expected}")
    training.run(args.warmup)
    extra = {
        "import_memory_bytes": import_memory,  # of the peak, what the interpreter and the library take by themselves
        "optimizer": args.optimizer,
        "torch": torch.__version__,
    }

    if not args.serve:
        print(json.dumps(report(args, training, *training.run(args.steps), extra)))
        return
    print("ready", flush=True)
    for line in sys.stdin:
        text = line.strip()
        if text and (not text.isdigit() or int(text) == 0):
            sys.exit(f"torch_train.py: expected a number of steps on standard input, got '{text}'")
        seconds, loss = training.run(int(text) if text else args.steps)
        print(json.dumps(report(args, training, seconds, loss, extra)), flush=True)


if __name__ == "__main__":
    main()
