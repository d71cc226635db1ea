#!/usr/bin/env python3
"""Writes fixtures/<network>.json: what implementations that are not ours compute for the networks of the zoo.

Keras 3's own applications on its PyTorch backend, timm for Inception v4, plain Keras layers for image compression. Weights
and images follow a rule that a test in any language can compute; fixtures/README.md writes it down.

    fixtures.py                  all networks
    fixtures.py resnet50 vgg_19  only these
    fixtures.py --check          compute, and compare with the files instead of writing them
    fixtures.py --search 200     of so many batches, find the one farthest from where rounding changes a gradient

Reference values are computed in float64 from float32 weights and images. The same is run in float32 to see how far rounding
alone carries each value.
"""

import argparse
import json
import multiprocessing
import os
import pathlib
import sys
from concurrent.futures import ProcessPoolExecutor

os.environ["KERAS_BACKEND"] = "torch"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

try:
    import keras
    import numpy as np
    import timm
    import torch
    import torch.nn.functional as F
    from keras.src.backend.common import dtypes as keras_dtypes
    from torch.utils._python_dispatch import TorchDispatchMode
except ImportError as error:
    sys.exit(f"fixtures.py: {error}; it needs `pip install torch keras timm numpy`")

FOLDER = pathlib.Path(__file__).resolve().parent / "fixtures"
STEPS = 5
MOMENTUM = 0.9
CLASSES = 10

# Input height and width; batch; learning rate; what batch norm's gamma and beta are spread around; which batch (--search).
#
# Sides differ, so that height and width taken for one another show. Maps end at 2x1 or 1x2, so batch norm sees 8 values or
# more per channel. Beta is positive because networks at beta 0 are chaotic before training: each layer would amplify
# rounding until float32 and float64 have little to do with each other. MobileNetV2's ReLU6 is cut on both sides.
CASES = {
    "resnet50": dict(input=(64, 32), batch=8, lr=1e-5, gamma=1.0, beta=1.0, salt=122),
    "resnet_v2_101": dict(input=(64, 32), batch=8, lr=3e-5, gamma=1.0, beta=2.0, salt=48),
    "vgg_19": dict(input=(32, 64), batch=2, lr=2e-4, gamma=1.0, beta=0.0, salt=79),
    "inception_v3": dict(input=(107, 75), batch=4, lr=1e-5, gamma=1.0, beta=2.0, salt=110),
    "inception_v4": dict(input=(107, 75), batch=4, lr=1e-5, gamma=1.0, beta=2.0, salt=9),
    "mobilenet_v2": dict(input=(64, 32), batch=8, lr=1e-4, gamma=1.25, beta=3.0, salt=146),
    "image_compression": dict(input=(48, 32), batch=4, lr=3e-3, gamma=1.0, beta=1.0, salt=13),
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
    kind = name.rsplit("/", 1)[1]
    if kind == "kernel":
        values = v * np.sqrt(6.0 / fan_in)
    elif kind == "bias":
        values = 0.05 * v
    elif kind == "gamma":
        values = case["gamma"] * (1.0 + 0.2 * v)
    elif kind == "beta":
        values = case["beta"] + 0.1 * v
    else:
        raise ValueError(f"no rule for {name}")
    return values.astype(np.float32)


def images(case):
    """The float32 batch [n][h][w][c]: fine noise plus noise in blocks of 8x8, so that samples differ on the whole too."""
    height, width = case["input"]
    n, h, w, c = np.indices((case["batch"], height, width, 3))
    fine = noise(f"images/{case['salt']}", ((n * height + h) * width + w) * 3 + c)
    rows, columns = -(-height // 8), -(-width // 8)
    coarse = noise(f"blocks/{case['salt']}", ((n * rows + h // 8) * columns + w // 8) * 3 + c)
    return (0.5 * (fine + coarse)).astype(np.float32)


def labels(case):
    return (3 * np.arange(case["batch"]) + 1) % CLASSES


# ---- Float64 in Keras -------------------------------------------------------------------------------------------------

# On every backend but TensorFlow, Keras's type promotion ends with float64 replaced by float32, as in JAX. Matrix products,
# sums of residual branches, means and batch norm all ask it and would compute in float32. This table decides it.
keras_dtypes.BIT64_TO_BIT32_DTYPE["float64"] = "float64"


class OnlyDtype(TorchDispatchMode):
    """Fails at the first operation, forward or backward, that gives a floating-point tensor of another type."""

    def __init__(self, dtype):
        super().__init__()
        self.dtype = dtype

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for value in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                assert value.dtype == self.dtype, f"{function} gives {value.dtype} where all should be {self.dtype}"
        return result


# ---- The networks -----------------------------------------------------------------------------------------------------


class Tensor:
    """A network's tensor by its Paceline name. `order` permutes the library's dimensions into the canonical ones."""

    def __init__(self, name, value, order=None, fan_in=None):
        self.name, self.value, self.fan_in = name, value, fan_in
        self.order = order or list(range(value.ndim))

    def dims(self):
        return [self.value.shape[axis] for axis in self.order]

    def canonical(self, tensor):
        return tensor.detach().permute(self.order).double().contiguous().numpy().copy()

    def set(self, array):
        back = [self.order.index(axis) for axis in range(len(self.order))]
        with torch.no_grad():
            self.value.copy_(torch.from_numpy(array).permute(back))


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
        name, value, shape = f"{layer.name}/{variable.name}", variable.value, list(variable.shape)
        if variable.name != "kernel":
            return Tensor(name, value)
        if isinstance(layer, keras.layers.DepthwiseConv2D):
            assert shape[3] == 1
            return Tensor(name, value, order=[0, 1, 3, 2], fan_in=shape[0] * shape[1])
        if isinstance(layer, keras.layers.Conv2DTranspose):  # [h][w][out][in]
            return Tensor(name, value, fan_in=shape[0] * shape[1] * shape[3])
        return Tensor(name, value, fan_in=int(np.prod(shape[:-1])))

    def forward(self, batch, training):
        return self.model(batch, training=training)


class TimmNetwork:
    """A timm model: convolutions are [out][in][h][w], dense layers [out][in], images [n][c][h][w]."""

    def __init__(self, model):
        self.model = model
        self.trainable, self.moving = [], []
        for path, module in model.named_modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                self.trainable.append(Tensor(f"{path}/gamma", module.weight))
                self.trainable.append(Tensor(f"{path}/beta", module.bias))
                self.moving.append(Tensor(f"{path}/moving_mean", module.running_mean))
                self.moving.append(Tensor(f"{path}/moving_variance", module.running_var))
            elif isinstance(module, (torch.nn.Conv2d, torch.nn.Linear)):
                order = [2, 3, 1, 0] if isinstance(module, torch.nn.Conv2d) else [1, 0]
                self.trainable.append(Tensor(f"{path}/kernel", module.weight, order, fan_in=module.weight[0].numel()))
                if module.bias is not None:
                    self.trainable.append(Tensor(f"{path}/bias", module.bias))
        assert len(self.trainable) == len(list(model.parameters())), "a parameter was missed"

    def forward(self, batch, training):
        return self.model.train(training)(batch.permute(0, 3, 1, 2))


class DoublingConv2DTranspose(keras.layers.Conv2DTranspose):
    """Keras's layer with PyTorch's padding 1 and output padding 1, which is what Paceline computes.

    Keras's own "same" keeps the first row and column of the full result and cuts the last; this one keeps the last and cuts
    the first. The two differ by a shift of one pixel. `check_transposed` holds both to that."""

    def call(self, inputs):
        kernel = self.kernel.value.permute(3, 2, 0, 1)
        options = dict(stride=2, padding=1, output_padding=1)
        return F.conv_transpose2d(inputs.permute(0, 3, 1, 2), kernel, self.bias.value, **options).permute(0, 2, 3, 1)


def check_transposed():
    """Both layers against windows of the full result of a transposed convolution."""
    build_dtype("float64")
    options = dict(strides=2, padding="same", kernel_initializer="random_normal")
    own, keras_own = DoublingConv2DTranspose(5, 3, **options), keras.layers.Conv2DTranspose(5, 3, **options)
    x = torch.randn(2, 4, 6, 3)
    for layer, rows in ((own, slice(1, None)), (keras_own, slice(None, -1))):
        result = layer(x).detach()
        kernel = layer.kernel.value.detach().permute(3, 2, 0, 1)
        full = F.conv_transpose2d(x.permute(0, 3, 1, 2), kernel, stride=2).permute(0, 2, 3, 1)
        assert torch.allclose(result, full[:, rows, rows]), f"{type(layer).__name__} is not what its description says"


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


def build_dtype(dtype):
    keras.utils.clear_session()  # automatic names start anew: conv2d, conv2d_1, ...
    keras.config.set_floatx(dtype)
    torch.set_default_dtype(getattr(torch, dtype))


def build(network, height, width, dtype):
    build_dtype(dtype)
    if network == "inception_v4":
        return TimmNetwork(timm.create_model("inception_v4", pretrained=False, num_classes=CLASSES, drop_rate=0.0))
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
    for tensor in net.trainable:
        tensor.set(weights(case, tensor.name, tensor.dims(), tensor.fan_in))
        assert tensor.value.dtype == getattr(torch, dtype), tensor.name
    for tensor in net.moving:
        expected = 0.0 if tensor.name.endswith("mean") else 1.0
        assert (tensor.value == expected).all(), tensor.name
    return net


def train(network, case, dtype):
    """Five steps from the rule's weights; everything a fixture records, as float64 numpy."""
    net = prepare(network, case, dtype)
    batch = torch.from_numpy(images(case)).to(getattr(torch, dtype))
    targets = torch.from_numpy(labels(case))

    def loss_of(output):
        return F.mse_loss(output, batch) if network == "image_compression" else F.cross_entropy(output, targets)

    optimizer = torch.optim.SGD([tensor.value for tensor in net.trainable], lr=case["lr"], momentum=MOMENTUM)
    result = {"net": net, "losses": []}
    for step in range(STEPS):
        optimizer.zero_grad()
        with OnlyDtype(batch.dtype):
            output = net.forward(batch, training=True)
            loss = loss_of(output)
            loss.backward()
        if step == 0:
            result["output"] = output.detach().double().numpy()
            result["gradients"] = [tensor.canonical(tensor.value.grad) for tensor in net.trainable]
            result["moving"] = [tensor.canonical(tensor.value) for tensor in net.moving]
        result["losses"].append(loss.item())
        optimizer.step()
    with torch.no_grad(), OnlyDtype(batch.dtype):
        output = net.forward(batch, training=False)
        loss = loss_of(output)
    result["eval_loss"] = loss.item()
    result["eval_output"] = output.double().numpy()
    return result


# ---- The fixture ------------------------------------------------------------------------------------------------------


def digits(value, count=10):
    """The value with so many significant digits."""
    return float(f"{float(value):.{count - 1}e}")


def norm(array):
    return float(np.sqrt(np.sum(np.square(array, dtype=np.float64))))


def first(array, count, zero=0.0):
    """The first values; below `zero` they are rounding alone."""
    return [digits(value) if abs(value) > zero else 0.0 for value in array.reshape(-1)[:count]]


def relative(value, reference):
    return abs(value - reference) / abs(reference)


def some_outputs(output):
    """Of sample 0, all values of a classifier's output or twelve of a picture, as [flat index, value]."""
    count = output[0].size
    step = 1 if count <= 16 else count // 12
    return [[i, digits(output.reshape(-1)[i])] for i in range(0, step * min(count, 12), step)]


def describe_gradients(reference, single):
    """An entry for each trainable tensor, and how far float32 is from float64."""
    tensors = reference["net"].trainable
    zero = 1e-12 * max(norm(g) for g in reference["gradients"])
    entries = []
    apart = dict(gradient_norm=0.0, gradient_value=0.0, zero_gradient_norm=0.0)
    for tensor, g, g32 in zip(tensors, reference["gradients"], single["gradients"]):
        entry = {"name": tensor.name, "dims": tensor.dims()}
        if tensor.fan_in:
            entry["fan_in"] = tensor.fan_in
        if norm(g) < zero:  # zero in exact arithmetic, such as that of a bias in front of batch norm
            entry.update(norm=0.0, first=[0.0] * min(g.size, 2), float32_norm=digits(norm(g32), 2))
            apart["zero_gradient_norm"] = max(apart["zero_gradient_norm"], norm(g32))
        else:
            entry.update(norm=digits(norm(g)), first=first(g, 2, zero))
            if relative(norm(g32), norm(g)) > 1e-4:
                entry["float32_norm"] = digits(norm(g32), 6)
            off = np.abs(g32 - g).reshape(-1)[:2].max() / (norm(g) / np.sqrt(g.size))
            apart["gradient_norm"] = max(apart["gradient_norm"], relative(norm(g32), norm(g)))
            apart["gradient_value"] = max(apart["gradient_value"], off)
        entries.append(entry)
    return entries, apart


def describe_moving(reference):
    """The moving statistics of the first, the middle and the last batch norm."""
    tensors, values = reference["net"].moving, reference["moving"]
    layers = len(tensors) // 2
    chosen = sorted({0, layers // 2, layers - 1}) if layers else []
    indices = [2 * layer + statistic for layer in chosen for statistic in (0, 1)]
    return [{"name": tensors[i].name, "norm": digits(norm(values[i])), "first": first(values[i], 2)} for i in indices]


def fixture(network, case):
    reference, single = train(network, case, "float64"), train(network, case, "float32")
    gradients, apart = describe_gradients(reference, single)
    apart = {
        "loss": relative(single["losses"][0], reference["losses"][0]),
        "output": norm(single["output"] - reference["output"]) / norm(reference["output"]),
        **apart,
        "moving_norm": max([relative(norm(b), norm(a)) for a, b in zip(reference["moving"], single["moving"])], default=0.0),
        "last_loss": relative(single["losses"][-1], reference["losses"][-1]),
        "eval_loss": relative(single["eval_loss"], reference["eval_loss"]),
    }
    tensors = reference["net"].trainable
    all_weights = [weights(case, t.name, t.dims(), t.fan_in) for t in tensors]
    library = f"timm {timm.__version__}" if network == "inception_v4" else f"keras {keras.__version__}"
    return {
        "network": network,
        "library": f"{library}, torch {torch.__version__.split('+')[0]}",
        "input": [*case["input"], 3],
        "batch": case["batch"],
        "classes": CLASSES,
        "lr": case["lr"],
        "momentum": MOMENTUM,
        "rule": {"gamma": case["gamma"], "beta": case["beta"], "salt": case["salt"]},
        "rule_check": {
            "images_norm": digits(norm(images(case))),
            "images_first": first(images(case), 4),
            "weights_of": tensors[0].name,
            "weights_first": first(all_weights[0], 4),
            "weights_norm": digits(np.sqrt(sum(norm(w) ** 2 for w in all_weights))),
        },
        "parameters": sum(w.size for w in all_weights),
        "loss": digits(reference["losses"][0]),
        "output_norm": digits(norm(reference["output"])),
        "output": some_outputs(reference["output"]),
        "losses": [digits(loss) for loss in reference["losses"]],
        "eval_loss": digits(reference["eval_loss"]),
        "eval_output_norm": digits(norm(reference["eval_output"])),
        "gradient_atol": digits(2e-7 * max(entry["norm"] for entry in gradients), 2),
        "float32": {name: digits(value, 2) for name, value in apart.items()},
        "moving": describe_moving(reference),
        "gradients": gradients,
    }


def to_text(content):
    """JSON with one line for each field, and for each tensor."""
    lines = []
    for key, value in content.items():
        text = json.dumps(value)
        if isinstance(value, list) and value and isinstance(value[0], dict):
            text = "[\n" + ",\n".join("  " + json.dumps(entry) for entry in value) + "\n ]"
        lines.append(f' "{key}": {text}')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def differences(new, old, path=""):
    """Where two fixtures differ by more than rounding; how float32 fared, and with which version, may differ."""
    if isinstance(new, dict) and isinstance(old, dict):
        for key in sorted(new.keys() | old.keys()):
            if not key.startswith("float32") and key != "library":
                yield from differences(new.get(key), old.get(key), f"{path}.{key}")
    elif isinstance(new, list) and isinstance(old, list) and len(new) == len(old):
        for i, (a, b) in enumerate(zip(new, old)):
            yield from differences(a, b, f"{path}[{i}]")
    elif isinstance(new, float) and isinstance(old, (int, float)):
        if abs(new - old) > 1e-7 * abs(old) + 1e-9:
            yield f"{path}: {new} is not {old}"
    elif new != old:
        yield f"{path}: {new} is not {old}"


# ---- How far a batch is from where rounding changes a gradient --------------------------------------------------------


class Bends(TorchDispatchMode):
    """Keeps the inputs of every ReLU, with the values at which it bends, and of every max pooling, in order."""

    def __init__(self):
        super().__init__()
        self.relus, self.pools = [], []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        aten = torch.ops.aten
        if function in (aten.relu.default, aten.relu_.default):
            self.relus.append((args[0].clone(), [0.0]))
        elif function in (aten.hardtanh.default, aten.hardtanh_.default):
            self.relus.append((args[0].clone(), args[1:3]))
        elif function == aten.max_pool2d_with_indices.default:
            assert len(args) < 4 or not any(args[3]), "padding is not expected here"
            self.pools.append((args[0].clone(), args[1], args[2]))
        return function(*args, **(kwargs or {}))


def margin(case, nets):
    """The least distance of a value from a bend of its ReLU, and of a maximum from the runner-up in its window, counted in
    rounding errors: the root mean square of float32 less float64 in that layer."""
    found = []
    for dtype, net in nets.items():
        with torch.no_grad(), Bends() as bends:
            net.forward(torch.from_numpy(images(case)).to(getattr(torch, dtype)), training=True)
        found.append(bends)
    exact, single = found
    least = float("inf")

    def narrow(distances, x, x32):
        nonlocal least
        error = (x32.double() - x).square().mean().sqrt()
        least = min(least, (distances.min() / error).item())

    for (x, bends), (x32, _) in zip(exact.relus, single.relus):
        for bend in bends:
            narrow((x - bend).abs(), x, x32)
    for (x, kernel, stride), (x32, *_) in zip(exact.pools, single.pools):
        if kernel == [1, 1]:
            continue
        windows = x.unfold(2, kernel[0], stride[0]).unfold(3, kernel[1], stride[1]).flatten(4)
        top, second = windows.topk(2, dim=-1).values.unbind(-1)
        narrow((top - second)[top != 0], x, x32)  # where all are zero, no gradient passes
    return least


def search(network, case, count):
    nets = {dtype: prepare(network, case, dtype) for dtype in ("float64", "float32")}
    ranked = sorted(((margin({**case, "salt": salt}, nets), salt) for salt in range(count)), reverse=True)
    print(f"{network}: " + ", ".join(f"salt {salt} is {value:.1f} errors away" for value, salt in ranked[:4]), flush=True)


# ---- The command ------------------------------------------------------------------------------------------------------


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help=f"of {', '.join(CASES)}")
    parser.add_argument("--check", action="store_true", help="compare with the files instead of writing them")
    parser.add_argument("--search", type=int, metavar="N", help="rank N batches by their distance from bends")
    args = parser.parse_args()
    for network in args.networks:
        if network not in CASES:
            parser.error(f"unknown network '{network}'; there are {', '.join(CASES)}")
    return args


def compute(network, check):
    """Computes a network's fixture and compares or writes it; whether it agrees, and what to print."""
    torch.set_num_threads(1)
    content = fixture(network, CASES[network])
    assert np.isfinite(content["losses"] + [content["eval_loss"]]).all(), network
    path = FOLDER / f"{network}.json"
    if check:
        found = list(differences(content, json.loads(path.read_text())))
        lines = [f"{network}: {'same' if not found else f'{len(found)} values differ'}", *found[:5]]
        return not found, "\n  ".join(lines)
    path.write_text(to_text(content))
    losses = " ".join(f"{loss:.4f}" for loss in content["losses"])
    text = f"{network}: losses {losses}, evaluation {content['eval_loss']:.4f}, {path.stat().st_size} bytes"
    return True, f"{text}\n  float32 is apart by {content['float32']}"


def main():
    args = parse_args()
    torch.set_num_threads(1)
    networks = args.networks or list(CASES)
    if args.search:
        for network in networks:
            search(network, CASES[network], args.search)
        return
    check_transposed()
    processes = min(len(os.sched_getaffinity(0)), len(networks))
    agree = True
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        for agrees, text in pool.map(compute, networks, [args.check] * len(networks)):
            agree &= agrees
            print(text, flush=True)
    sys.exit(not agree)


if __name__ == "__main__":
    main()
