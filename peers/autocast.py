#!/usr/bin/env python3
"""Writes fixtures/autocast.json: how far PyTorch's autocast to bf16 on the CPU is from float64, for the networks of the zoo.

    autocast.py                  all networks
    autocast.py resnet50         only these; the others' entries stay
    autocast.py --check          compute, and compare with the file instead of writing it

Weights, images and labels follow the rule of fixtures/README.md. ResNet-50, MobileNetV2, VGG-19 and image compression are plain
PyTorch (torch_train.py, twins.py), Inception v4 is timm's, so all values between their layers are bf16 as in Paceline. Keras's own
batch norms give float32 under autocast: its networks (ResNet v2 101, Inception v3) round about half as many values.

Each entry has three distances of one forward and backward pass, relative to float64: of the loss, of the output, and of all gradients
as one vector.
"""

import argparse
import contextlib
import json
import sys

import fixtures
import numpy as np
import torch
import torch.nn.functional as F
import twins

FILE = fixtures.FOLDER / "autocast.json"


def prepare_plain(network, case, dtype):
    """The plain network with the rule's weights, and its forward pass from and to [n][h][w][c]."""
    height, width = case["input"]
    twin = twins.Plain(network, (height, width), any_size=True)
    twin.model.to(dtype)
    entries = json.loads((fixtures.FOLDER / f"{network}.json").read_text())["gradients"]
    for entry in entries:
        values = torch.from_numpy(fixtures.weights(case, entry["name"], entry["dims"], entry.get("fan_in")))
        ours = twin.trained()[entry["name"]]
        if entry["name"] == "fc1/kernel":  # of a map that PyTorch flattens channel by channel
            map_of = (height // 32, width // 32, 512)
            values = values.reshape(*map_of, -1).permute(2, 0, 1, 3).reshape(values.shape)
        ours.copy_(values.reshape(ours.shape))
    assert len(entries) == len(list(twin.model.parameters())), f"{network}: a parameter was missed"

    def forward(batch):
        output = twin.forward(batch.permute(0, 3, 1, 2), training=True)
        return output.permute(0, 2, 3, 1) if output.ndim == 4 else output

    return forward, list(twin.model.parameters())


def prepare_library(network, case, dtype):
    net = fixtures.prepare(network, case, str(dtype).removeprefix("torch."))
    return lambda batch: net.forward(batch, training=True), [tensor.value for tensor in net.trainable]


def step(network, case, dtype, mode):
    """Loss, output and all gradients of one pass, as float64."""
    torch.set_default_dtype(torch.float32)
    prepare = prepare_plain if network in twins.PLAIN else prepare_library
    forward, parameters = prepare(network, case, dtype)
    batch = torch.from_numpy(fixtures.images(case)).to(dtype)
    targets = torch.from_numpy(fixtures.labels(case))
    with mode:
        output = forward(batch)
        loss = F.mse_loss(output, batch) if network == "image_compression" else F.cross_entropy(output, targets)
    loss.backward()
    gradients = torch.cat([parameter.grad.double().reshape(-1) for parameter in parameters])
    return loss.item(), output.detach().double().numpy(), gradients.numpy()


def distance(own, other):
    return float(np.linalg.norm(np.asarray(own - other).reshape(-1)) / np.linalg.norm(np.asarray(other).reshape(-1)))


def measure(network):
    case = fixtures.CASES[network]
    exact = step(network, case, torch.float64, contextlib.nullcontext())
    reference = json.loads((fixtures.FOLDER / f"{network}.json").read_text())["loss"]
    if abs(exact[0] - reference) > 1e-6 * abs(reference):
        sys.exit(f"{network}: the loss in float64 is {exact[0]}, its fixture has {reference}")
    rough = step(network, case, torch.float32, torch.autocast("cpu", torch.bfloat16))
    return {what: fixtures.digits(distance(a, b), 3) for what, a, b in zip(("loss", "output", "gradients"), rough, exact)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", help=f"of {', '.join(fixtures.CASES)}; all if none is given")
    parser.add_argument("--check", action="store_true", help="compare with the file instead of writing it")
    options = parser.parse_args()
    unknown = [name for name in options.networks if name not in fixtures.CASES]
    if unknown:
        parser.error(f"no network '{unknown[0]}'; there are {', '.join(fixtures.CASES)}")
    entries = json.loads(FILE.read_text())["networks"] if FILE.exists() else {}
    apart = []
    for network in options.networks or fixtures.CASES:
        entry = measure(network)
        print(f"{network}: {entry}", flush=True)
        # Other processors add in another order; a distance is itself a sum of rounding errors. That of one loss is a matter of luck.
        known = entries.get(network)
        if options.check and not all(0.7 < entry[what] / known[what] < 1.4 for what in ("output", "gradients")):
            apart.append(f"{network}: the file has {known}")
        entries[network] = entry
    if apart:
        sys.exit("\n".join(apart))
    if not options.check:
        rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(entries[name])}" for name in fixtures.CASES if name in entries)
        library = f"torch {torch.__version__.split('+')[0]}, timm {fixtures.timm.__version__}, keras {fixtures.keras.__version__}"
        FILE.write_text(f'{{\n "library": {json.dumps(library)},\n "networks": {{\n{rows}\n }}\n}}\n')


if __name__ == "__main__":
    main()
