"""Paceline's networks in PyTorch, with Paceline's weights and pictures.

ResNet-50, MobileNetV2, VGG-19 and image compression are plain PyTorch (torch_train.py); the rest are Keras's and timm's own
(fixtures.py), on PyTorch all the same. A tensor of weights.safetensors has the name and the canonical layout that
fixtures/README.md writes down.
"""

import torch
from torch import nn

import torch_train
from runs import RECORD, SIDE, Failure, read_file

PLAIN = ("resnet50", "mobilenet_v2", "vgg_19", "image_compression")
KERAS = ("resnet_v2_101", "inception_v3", "inception_v4")

CLASSES = 10

# Of each channel over the training pictures, as in crates/train/src/data/cifar10.rs.
MEAN = torch.tensor([0.4914, 0.4822, 0.4465])
DEVIATION = torch.tensor([0.2470, 0.2435, 0.2616])


# ---- Networks ---------------------------------------------------------------------------------------------------------


def image_compression(height, width, classes):
    def block(convolution, filters):
        return [convolution, nn.BatchNorm2d(filters, eps=1e-3, momentum=0.01), nn.ReLU(inplace=True)]

    layers, inputs = [], 3
    for filters in [48, 96, 384, 768]:
        layers.append(torch_train.PadForStride2())
        layers += block(nn.Conv2d(inputs, filters, 3, stride=2), filters)
        inputs = filters
    for filters in [768, 384, 64, 32]:
        layers += block(nn.ConvTranspose2d(inputs, filters, 3, stride=2, padding=1, output_padding=1), filters)
        inputs = filters
    return nn.Sequential(*layers, nn.Conv2d(inputs, 3, 1))


def layer_names(network):
    """Paceline's names of the layers that have parameters, in the order of the PyTorch network's modules."""
    if network == "resnet50":
        names = ["conv1_conv", "conv1_bn"]
        for stage, blocks in zip((2, 3, 4, 5), (3, 4, 6, 3)):
            for block in range(1, blocks + 1):
                for i in (0, 1, 2, 3) if block == 1 else (1, 2, 3):  # 0 is the shortcut
                    names += [f"conv{stage}_block{block}_{i}_conv", f"conv{stage}_block{block}_{i}_bn"]
        return [*names, "predictions"]
    if network == "mobilenet_v2":
        names = ["Conv1", "bn_Conv1"]
        for block in ["expanded_conv"] + [f"block_{i}" for i in range(1, 17)]:
            for part in ("depthwise", "project") if block == "expanded_conv" else ("expand", "depthwise", "project"):
                names += [f"{block}_{part}", f"{block}_{part}_BN"]
        return [*names, "Conv_1", "Conv_1_bn", "predictions"]
    if network == "vgg_19":
        convolutions = [f"block{i}_conv{j}" for i, count in enumerate((2, 2, 4, 4, 4), 1) for j in range(1, count + 1)]
        return [*convolutions, "fc1", "fc2", "predictions"]
    coders = [f"{coder}{i}_{part}" for coder in ("encoder", "decoder") for i in (1, 2, 3, 4) for part in ("conv", "bn")]
    return [*coders, "picture"]


class Plain:
    """A network of plain PyTorch. Pictures are [n][c][h][w]."""

    def __init__(self, network, size=(SIDE, SIDE), any_size=False):
        if network == "vgg_19" and size != (SIDE, SIDE) and not any_size:  # its flattened map would be in another order
            raise Failure("vgg_19 is compared at 32x32 alone")
        build = {**torch_train.NETWORKS, "image_compression": image_compression}[network]
        self.model = build(*size, CLASSES)
        kinds = (nn.Conv2d, nn.ConvTranspose2d, nn.Linear, nn.BatchNorm2d)
        layers = [module for module in self.model.modules() if isinstance(module, kinds)]
        self.layers = dict(zip(layer_names(network), layers, strict=True))

    def trained(self, of=lambda parameter: parameter):
        """Each parameter, or what `of` finds for it, by Paceline's name and in Paceline's layout: views, to read and write."""
        views = {}
        for name, layer in self.layers.items():
            weight, bias = "kernel", "bias"
            if isinstance(layer, nn.BatchNorm2d):
                weight, bias = "gamma", "beta"
            value = of(layer.weight)
            # [out][in][h][w], transposed [in][out][h][w], dense [out][in]
            views[f"{name}/{weight}"] = value.permute(2, 3, 1, 0) if value.ndim == 4 else value.t()
            if layer.bias is not None:
                views[f"{name}/{bias}"] = of(layer.bias)
        return {name: view.detach() for name, view in views.items()}

    def tensors(self):
        """The parameters and the moving statistics, likewise."""
        norms = {name: layer for name, layer in self.layers.items() if isinstance(layer, nn.BatchNorm2d)}
        means = {f"{name}/moving_mean": layer.running_mean for name, layer in norms.items()}
        variances = {f"{name}/moving_variance": layer.running_var for name, layer in norms.items()}
        return {**self.trained(), **means, **variances}

    def forward(self, pictures, training):
        return self.model.train(training)(pictures)


class Library:
    """A network of Keras or timm, on PyTorch."""

    def __init__(self, network, size):
        try:
            import fixtures
        except SystemExit as missing:
            raise Failure(str(missing)) from None
        self.net = fixtures.build(network, *size, "float32")

    def tensors(self):
        tensors = self.net.trainable + self.net.moving
        return {tensor.name: tensor.value.detach().permute(tensor.order) for tensor in tensors}

    def forward(self, pictures, training):
        return self.net.forward(pictures.permute(0, 2, 3, 1), training)


def build(network, size):
    if network not in PLAIN + KERAS:
        raise Failure(f"no network '{network}'; there are {', '.join(PLAIN + KERAS)}")
    return Plain(network, size) if network in PLAIN else Library(network, size)


def fill(ours, theirs, path):
    """Copies each of a file's tensors into the one of the same name."""
    if theirs.keys() != ours.keys():
        apart = sorted(theirs.keys() ^ ours.keys())
        raise Failure(f"{path}: {len(apart)} tensors are on one side alone, such as {apart[0]}")
    for name, value in theirs.items():
        if value.shape != ours[name].shape:
            raise Failure(f"{path}: {name} is {list(value.shape)}, the network's is {list(ours[name].shape)}")
        ours[name].copy_(value)


def load(twin, path):
    """Puts the weights of a safetensors file into a network."""
    from safetensors.torch import load_file

    tensors = load_file(path)
    fill(twin.tensors(), tensors, path)
    return tensors


def load_momentum(twin, optimizer, path):
    """Puts the velocities of a checkpoint's state.safetensors into PyTorch's SGD."""
    from safetensors.torch import load_file

    prefix = "optimizer/momentum/"
    tensors = {name.removeprefix(prefix): value for name, value in load_file(path).items() if name.startswith(prefix)}
    for parameter in twin.model.parameters():
        optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    fill(twin.trained(of=lambda parameter: optimizer.state[parameter]["momentum_buffer"]), tensors, path)


class Statistics:
    """Running averages as Paceline keeps them, where PyTorch's are others in two ways: they are the mean of all batches until
    the momentum takes over (0.9 unless said), and variances are divided by n, not n - 1.

    The layers' own averages are made to hold the last batch alone, which is right in a CUDA graph too; what is averaged
    lies here."""

    def __init__(self, twin, batch, keep=0.9, size=(SIDE, SIDE)):
        self.layers = [layer for layer in twin.layers.values() if isinstance(layer, nn.BatchNorm2d)]
        self.least = 1 - keep  # PyTorch's is the part that is new
        counts = {}
        hooks = [
            layer.register_forward_hook(lambda layer, _, output: counts.update({layer: output.numel() // output.shape[1]}))
            for layer in self.layers
        ]
        with torch.no_grad():
            twin.forward(torch.zeros(batch, 3, *size, device=self.layers[0].weight.device), training=False)
        for hook in hooks:
            hook.remove()
        for layer in self.layers:
            layer.momentum = 1.0
        self.shares = [1.0 for _ in self.layers] + [1 - 1 / counts[layer] for layer in self.layers]
        self.averages = [torch.zeros_like(latest) for latest in self.latest()]

    def latest(self):
        return [layer.running_mean for layer in self.layers] + [layer.running_var for layer in self.layers]

    def update(self, step):
        """Takes in what the forward pass of a step, the first being 0, has seen."""
        torch._foreach_lerp_(self.averages, self.latest(), max(self.least, 1 / (step + 1)))

    def use(self):
        """Puts the averages where evaluation finds them, until the next forward pass in training."""
        for latest, average, share in zip(self.latest(), self.averages, self.shares):
            torch.mul(average, share, out=latest)


# ---- Data -------------------------------------------------------------------------------------------------------------


def read_cifar10(folder, files):
    """Pictures as bytes [n][c][h][w], and labels."""
    raw = b"".join(read_file(folder, name) for name in files)
    records = torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(-1, RECORD)
    return records[:, 1:].reshape(-1, 3, SIDE, SIDE), records[:, 0].long()


def normalise(pictures):
    """As torchvision's ToTensor and Normalize."""
    mean, deviation = (values.to(pictures.device).view(3, 1, 1) for values in (MEAN, DEVIATION))
    return (pictures.float() / 255 - mean) / deviation


def resize(pictures, size):
    """Bytes to bytes, by linear interpolation, for networks that read another size."""
    if pictures.shape[2:] == size:
        return pictures
    from PIL import Image

    height, width = size
    scaled = [Image.fromarray(p.permute(1, 2, 0).numpy()).resize((width, height), Image.BILINEAR) for p in pictures]
    raw = b"".join(picture.tobytes() for picture in scaled)
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(-1, height, width, 3).permute(0, 3, 1, 2)
