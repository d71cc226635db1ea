#!/usr/bin/env python3
"""Writes fixtures/<network>.json: what implementations that are not ours compute for the networks of the zoo.

Keras 3's own applications on its PyTorch backend, timm for Inception v4, plain Keras layers for image compression. Weights
and images follow a rule that a test in any language can compute; fixtures/README.md writes it down.

    fixtures.py                  all networks
    fixtures.py resnet50 vgg_19  only these
    fixtures.py --check          compute, and compare with the files instead of writing them

Reference values are computed in float64 from float32 weights and images. The same is run in float32 to see how far rounding
alone carries each value.
"""

import argparse
import json
import os
import pathlib
import sys

os.environ["KERAS_BACKEND"] = "torch"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import keras
import numpy as np
import timm
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from keras.src import backend as keras_backend

FOLDER = pathlib.Path(__file__).resolve().parent / "fixtures"
STEPS = 5
MOMENTUM = 0.9
CLASSES = 10

# Input height and width; batch; learning rate; what batch norm's gamma and beta are spread around; the batch's number.
CASES = {
    "resnet50": dict(input=(64, 32), batch=8, lr=1e-5, gamma=1.0, beta=1.0, salt=0),
    "resnet_v2_101": dict(input=(64, 32), batch=8, lr=1e-5, gamma=1.0, beta=1.0, salt=0),
    "vgg_19": dict(input=(32, 64), batch=4, lr=1e-3, gamma=1.0, beta=0.0, salt=0),
    "inception_v3": dict(input=(107, 75), batch=8, lr=1e-5, gamma=1.0, beta=2.0, salt=0),
    "inception_v4": dict(input=(107, 75), batch=8, lr=1e-5, gamma=1.0, beta=2.0, salt=0),
    "mobilenet_v2": dict(input=(64, 32), batch=8, lr=1e-4, gamma=1.5, beta=3.0, salt=0),
    "image_compression": dict(input=(48, 32), batch=4, lr=1e-2, gamma=1.0, beta=1.0, salt=0),
}


# ---- The rule ---------------------------------------------------------------------------------------------------------


def fnv1a(text):
    """FNV-1a, 64 bits, of the text's UTF-8 bytes."""
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def noise(name, indices):
    """v(name, j) in [-1, 1) for each index j: SplitMix64's output number j from the seed fnv1a(name)."""
    with np.errstate(over="ignore"):
        z = np.uint64(fnv1a(name)) + (indices.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return 2.0 * ((z >> np.uint64(40)).astype(np.float64) / 2**24) - 1.0


def weights(case, name, dims, fan_in):
    """The float32 weights of a tensor in Paceline's canonical layout."""
    v = noise(name, np.arange(np.prod(dims))).reshape(dims)
    rules = {
        "kernel": lambda: v * np.sqrt(6.0 / fan_in),
        "bias": lambda: 0.05 * v,
        "gamma": lambda: case["gamma"] * (1.0 + 0.2 * v),
        "beta": lambda: case["beta"] + 0.1 * v,
    }
    return rules[name.rsplit("/", 1)[1]]().astype(np.float32)


def images(case):
    """The float32 batch [n][h][w][c]: fine noise plus noise in blocks of 8x8, so that samples differ on the whole too."""
    height, width = case["input"]
    n, h, w, c = np.indices((case["batch"], height, width, 3))
    fine = noise(f"images/{case['salt']}", ((n * height + h) * width + w) * 3 + c)
    rows, columns = -(-height // 8), -(-width // 8)
    coarse = noise(f"blocks/{case['salt']}", ((n * rows + h // 8) * columns + w // 8) * 3 + c)
    return (0.5 * (fine + coarse)).astype(np.float32)


def labels(batch):
    return (3 * np.arange(batch) + 1) % CLASSES


# ---- Float64 in Keras ----

keras_result_type = keras_backend.result_type


def result_type(*dtypes):
    """Keras's type promotion, but float64 stays float64: else its batch norm computes in float32 whatever it is given."""
    double = any(keras_backend.standardize_dtype(dtype) == "float64" for dtype in dtypes if dtype is not None)
    return "float64" if double else keras_result_type(*dtypes)


keras_backend.result_type = result_type


# ---- The networks -----------------------------------------------------------------------------------------------------


class Tensor:
    """A tensor of a network by its Paceline name, seen in the canonical layout."""

    def __init__(self, name, value, to_canonical=None, from_canonical=None, fan_in=None):
        identity = lambda array: array
        self.name, self.value, self.fan_in = name, value, fan_in
        self.to_canonical = to_canonical or identity
        self.from_canonical = from_canonical or identity

    def dims(self):
        return list(self.to_canonical(self.value.detach()).shape)

    def numpy(self, tensor):
        return self.to_canonical(tensor.detach()).double().contiguous().numpy()

    def set(self, array):
        with torch.no_grad():
            self.value.copy_(self.from_canonical(torch.from_numpy(array)))


class KerasNetwork:
    """A Keras model. Its layouts are the canonical ones, but for a depthwise kernel's [h][w][C][1]."""

    def __init__(self, model):
        self.model = model
        self.trainable, self.moving = [], []
        for layer in model.layers:
            for variable in layer.trainable_variables:
                self.trainable.append(self.tensor(layer, variable))
            for variable in layer.non_trainable_variables:
                if variable.name in ("moving_mean", "moving_variance"):
                    self.moving.append(Tensor(f"{layer.name}/{variable.name}", variable.value))
        names = {tensor.name for tensor in self.trainable}
        assert len(names) == len(self.trainable) == len(model.trainable_variables), "names are not unique"

    @staticmethod
    def tensor(layer, variable):
        name, value = f"{layer.name}/{variable.name}", variable.value
        if variable.name != "kernel":
            return Tensor(name, value)
        shape = list(value.shape)
        if isinstance(layer, keras.layers.DepthwiseConv2D):
            height, width, channels, multiplier = shape
            assert multiplier == 1
            swap = lambda t: t.permute(0, 1, 3, 2)
            return Tensor(name, value, swap, swap, fan_in=height * width)
        if isinstance(layer, keras.layers.Conv2DTranspose):
            return Tensor(name, value, fan_in=shape[0] * shape[1] * shape[3])
        return Tensor(name, value, fan_in=int(np.prod(shape[:-1])))

    def forward(self, batch, training):
        return self.model(batch, training=training)


class TimmNetwork:
    """A timm model: convolutions are [out][in][h][w], dense layers [out][in], images [n][c][h][w]."""

    KINDS = {"weight": "gamma", "bias": "beta", "running_mean": "moving_mean", "running_var": "moving_variance"}

    def __init__(self, model):
        self.model = model
        self.trainable, self.moving = [], []
        for path, module in model.named_modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                for kind, name in self.KINDS.items():
                    group = self.trainable if kind in ("weight", "bias") else self.moving
                    group.append(Tensor(f"{path}/{name}", getattr(module, kind)))
                continue
            if isinstance(module, torch.nn.Conv2d):
                to, back = (2, 3, 1, 0), (3, 2, 0, 1)
            elif isinstance(module, torch.nn.Linear):
                to, back = (1, 0), (1, 0)
            else:
                continue
            self.trainable.append(
                Tensor(
                    f"{path}/kernel",
                    module.weight,
                    lambda t, to=to: t.permute(to),
                    lambda t, back=back: t.permute(back),
                    fan_in=module.weight[0].numel(),
                )
            )
            if module.bias is not None:
                self.trainable.append(Tensor(f"{path}/bias", module.bias))
        assert len(self.trainable) == len(list(model.parameters())), "a parameter was missed"

    def forward(self, batch, training):
        return self.model.train(training)(batch.permute(0, 3, 1, 2))


class DoublingConv2DTranspose(keras.layers.Conv2DTranspose):
    """Keras's layer, with the window that Paceline, PyTorch users and the paper's code use: padding 1, output padding 1.

    Keras's own "same" crops only the last row and column here, which shifts the result by one pixel (see
    `check_transposed`)."""

    def call(self, inputs):
        kernel = self.kernel.value.permute(3, 2, 0, 1)
        result = F.conv_transpose2d(
            inputs.permute(0, 3, 1, 2), kernel, self.bias.value, stride=2, padding=1, output_padding=1
        )
        return result.permute(0, 2, 3, 1)


def check_transposed():
    """Whether Keras's "same" transposed convolution is the one above: says how the two differ."""
    layer = keras.layers.Conv2DTranspose(5, 3, strides=2, padding="same")
    x = torch.randn(2, 4, 6, 3, dtype=torch.get_default_dtype())
    keras_result = layer(x).detach()
    kernel = layer.kernel.value.detach().permute(3, 2, 0, 1).to(x.dtype)
    full = F.conv_transpose2d(x.permute(0, 3, 1, 2), kernel, stride=2).permute(0, 2, 3, 1)
    windows = {"padding 1, output padding 1": full[:, 1:, 1:], "first row and column kept, last cut": full[:, :-1, :-1]}
    for words, result in windows.items():
        if result.shape == keras_result.shape and torch.allclose(result, keras_result, atol=1e-5):
            return words
    return "neither"


def image_compression(height, width):
    layers = keras.layers
    x = picture = keras.Input((height, width, 3))

    for i, filters in enumerate([48, 96, 384, 768], start=1):
        x = layers.Conv2D(filters, 3, strides=2, padding="same", name=f"encoder{i}_conv")(x)
        x = layers.ReLU()(layers.BatchNormalization(name=f"encoder{i}_bn")(x))
    for i, filters in enumerate([768, 384, 64, 32], start=1):
        x = DoublingConv2DTranspose(filters, 3, strides=2, padding="same", name=f"decoder{i}_conv")(x)
        x = layers.ReLU()(layers.BatchNormalization(name=f"decoder{i}_bn")(x))
    return keras.Model(picture, layers.Conv2D(3, 1, name="picture")(x))


def build(network, height, width, dtype):
    keras.utils.clear_session()  # automatic names start anew: conv2d, conv2d_1, ...
    keras.config.set_floatx(dtype)
    torch.set_default_dtype(getattr(torch, dtype))
    if network == "inception_v4":
        model = timm.create_model("inception_v4", pretrained=False, num_classes=CLASSES, drop_rate=0.0)
        return TimmNetwork(model)
    if network == "image_compression":
        return KerasNetwork(image_compression(height, width))
    application = {
        "resnet50": keras.applications.ResNet50,
        "resnet_v2_101": keras.applications.ResNet101V2,
        "vgg_19": keras.applications.VGG19,
        "inception_v3": keras.applications.InceptionV3,
        "mobilenet_v2": keras.applications.MobileNetV2,
    }[network]
    options = dict(weights=None, input_shape=(height, width, 3), classes=CLASSES, classifier_activation=None)
    return KerasNetwork(application(**options))


# ---- The run ----------------------------------------------------------------------------------------------------------


def prepare(network, case, dtype):
    """The network with the rule's weights."""
    net = build(network, *case["input"], dtype)
    torch_dtype = getattr(torch, dtype)
    for tensor in net.trainable:
        tensor.set(weights(case, tensor.name, tensor.dims(), tensor.fan_in))
        assert tensor.value.dtype == torch_dtype, tensor.name
    for tensor in net.moving:
        expected = 0.0 if tensor.name.endswith("mean") else 1.0
        assert (tensor.value == expected).all(), tensor.name
    return net


def train(network, case, dtype):
    """Five steps from the rule's weights; everything a fixture records, as float64 numpy."""
    net = prepare(network, case, dtype)
    torch_dtype = getattr(torch, dtype)
    batch = torch.from_numpy(images(case)).to(torch_dtype)
    targets = torch.from_numpy(labels(case["batch"]))

    def loss_of(output):
        if network == "image_compression":
            return F.mse_loss(output, batch)
        return F.cross_entropy(output, targets)

    parameters = [tensor.value for tensor in net.trainable]
    optimizer = torch.optim.SGD(parameters, lr=case["lr"], momentum=MOMENTUM)
    result = {"net": net, "losses": []}
    for step in range(STEPS):
        optimizer.zero_grad()
        output = net.forward(batch, training=True)
        assert output.dtype == torch_dtype
        loss = loss_of(output)
        loss.backward()
        if step == 0:
            result["output"] = output.detach().double().numpy()
            result["gradients"] = [tensor.numpy(tensor.value.grad) for tensor in net.trainable]
            result["moving"] = [tensor.numpy(tensor.value).copy() for tensor in net.moving]
        result["losses"].append(loss.item())
        optimizer.step()
    with torch.no_grad():
        output = net.forward(batch, training=False)
        result["eval_loss"] = loss_of(output).item()
        result["eval_output"] = output.double().numpy()
    return result


def digits(value, count=10):
    """The value with so many significant digits."""
    return float(f"{float(value):.{count - 1}e}")


def norm(array):
    return float(np.sqrt(np.sum(np.square(array))))


def relative(value, reference):
    return abs(value - reference) / abs(reference)


def some_outputs(output):
    """Sample 0: all values of a classifier's output, twelve of a picture, as [flat index, value]."""
    flat = output.reshape(-1)
    count = output[0].size
    step = 1 if count <= 16 else count // 12
    return [[i, digits(flat[i])] for i in range(0, count, step)][:16]


def fixture(network, case):
    reference = train(network, case, "float64")
    single = train(network, case, "float32")
    net = reference["net"]
    height, width = case["input"]
    norms = [norm(g) for g in reference["gradients"]]
    largest = max(norms)

    gradients = []
    worst = 0.0
    for tensor, g, g32, n in zip(net.trainable, reference["gradients"], single["gradients"], norms):
        zero = n < 1e-12 * largest  # rounding alone: zero in exact arithmetic
        entry = {"name": tensor.name, "dims": tensor.dims()}
        if tensor.fan_in:
            entry["fan_in"] = tensor.fan_in
        entry["norm"] = 0.0 if zero else digits(n)
        entry["first"] = [0.0 if zero else digits(value) for value in g.reshape(-1)[:2]]
        if zero or relative(norm(g32), n) > 1e-4:
            entry["float32_norm"] = digits(norm(g32), 2)
        if not zero:
            worst = max(worst, norm(g32 - g) / n)
        gradients.append(entry)

    # Moving statistics of the first, a middle and the last batch norm.
    layers = len(net.moving) // 2
    chosen = sorted({0, layers // 2, layers - 1}) if layers else []
    moving = []
    for index in [2 * layer + kind for layer in chosen for kind in (0, 1)]:
        values = reference["moving"][index]
        first = [digits(value) for value in values.reshape(-1)[:2]]
        moving.append({"name": net.moving[index].name, "norm": digits(norm(values)), "first": first})

    batch = images(case).astype(np.float64)
    all_weights = [weights(case, t.name, t.dims(), t.fan_in).astype(np.float64) for t in net.trainable]
    library = f"timm {timm.__version__}" if network == "inception_v4" else f"keras {keras.__version__}"
    fixture = {
        "network": network,
        "library": f"{library}, torch {torch.__version__.split('+')[0]}",
        "input": [height, width, 3],
        "batch": case["batch"],
        "classes": CLASSES,
        "lr": case["lr"],
        "momentum": MOMENTUM,
        "parameters": int(sum(w.size for w in all_weights)),
        "rule": {
            "images_norm": digits(norm(batch)),
            "images_first": [digits(value) for value in batch.reshape(-1)[:4]],
            "weights_norm": digits(np.sqrt(sum(norm(w) ** 2 for w in all_weights))),
            "weights_first": [digits(value) for value in all_weights[0].reshape(-1)[:4]],
        },
        "loss": digits(reference["losses"][0]),
        "output_norm": digits(norm(reference["output"])),
        "output": some_outputs(reference["output"]),
        "losses": [digits(loss) for loss in reference["losses"]],
        "eval_loss": digits(reference["eval_loss"]),
        "eval_output_norm": digits(norm(reference["eval_output"])),
        "moving": moving,
        "gradients": gradients,
    }
    fixture["summary"] = summary(reference, single, norms, worst)
    return fixture


def summary(reference, single, norms, worst):
    largest = max(norms)
    pairs = list(zip(reference["gradients"], single["gradients"], norms))
    return dict(
        loss=relative(single["losses"][0], reference["losses"][0]),
        loss5=relative(single["losses"][-1], reference["losses"][-1]),
        eval=relative(single["eval_loss"], reference["eval_loss"]),
        out=norm(single["output"] - reference["output"]) / norm(reference["output"]),
        gmax=largest,
        gmin=min(n for n in norms if n > 1e-12 * largest),
        vec=worst,
        nrm=max(relative(norm(h), n) for g, h, n in pairs if n > 1e-12 * largest),
        zero=max([norm(h) for g, h, n in pairs if n <= 1e-12 * largest] + [0.0]),
        first=max(np.abs(h - g).reshape(-1)[:2].max() / (n / np.sqrt(g.size)) for g, h, n in pairs if n > 1e-12 * largest),
    )


# ---- How safe a batch is ----------------------------------------------------------------------------------------------


class Kinks(TorchDispatchMode):
    """Keeps the inputs of every ReLU (with the values at which it bends) and of every max pooling, in order."""

    aten = torch.ops.aten
    BENDS = {aten.relu.default: (0.0,), aten.relu_.default: (0.0,)}

    def __init__(self):
        super().__init__()
        self.relus, self.pools, self.seen = [], [], set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        aten = torch.ops.aten
        self.seen.add(str(function))
        if function in (aten.relu.default, aten.relu_.default):
            self.relus.append((args[0].detach().clone(), (0.0,)))
        elif function in (aten.hardtanh.default, aten.hardtanh_.default, aten.clamp.default):
            self.relus.append((args[0].detach().clone(), tuple(args[1:3])))
        elif function == aten.max_pool2d_with_indices.default:
            self.pools.append((args[0].detach().clone(), args[1], args[2], args[3] if len(args) > 3 else 0))
        return function(*args, **(kwargs or {}))


def margin(network, case, nets):
    """How many float32 rounding errors (root mean square, layer by layer) the value nearest to a bend is away from it."""
    kinks = []
    for dtype, net in nets.items():
        with torch.no_grad(), Kinks() as found:
            net.forward(torch.from_numpy(images(case)).to(getattr(torch, dtype)), training=True)
        kinks.append(found)
    double, single = kinks
    out = []
    for (x, bends), (x32, _) in zip(double.relus, single.relus):
        error = (x32.double() - x).square().mean().sqrt()
        for bend in bends:
            out.append(((x - bend).abs().min() / error).item())
    pools = []
    for (x, kernel, stride, padding), (x32, *_) in zip(double.pools, single.pools):
        if kernel == [1, 1]:
            continue
        error = (x32.double() - x).square().mean().sqrt()
        padded = F.pad(x, (padding[1],) * 2 + (padding[0],) * 2, value=-1e9) if padding else x
        windows = padded.unfold(2, kernel[0], stride[0]).unfold(3, kernel[1], stride[1]).flatten(4)
        top = windows.topk(2, dim=-1).values
        gap = top[..., 0] - top[..., 1]
        pools.append((gap[top[..., 0] > 0].min() / error).item() if True else 0)
    return min(out), min(pools + [99]), double.seen, [float(f"{o:.2g}") for o in out]

if __name__ == "__main__":
    torch.set_num_threads(1)
    print(check_transposed())
