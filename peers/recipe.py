"""How both sides train in the comparison of accuracies. Needs no PyTorch."""

import dataclasses
import math

SAMPLES = 50_000


@dataclasses.dataclass
class Recipe:
    """Batches, and learning rates that rise evenly in the warm-up and then fall with a cosine to 0; pad, crop, flip."""

    epochs: float = 8
    batch: int = 64
    lr: float = 0.05
    warmup_epochs: float = 1
    momentum: float = 0.9
    weight_decay: float = 5e-4

    @classmethod
    def add_options(cls, parser):
        group = parser.add_argument_group("recipe")
        for field in dataclasses.fields(cls):
            option = f"--{field.name.replace('_', '-')}"
            group.add_argument(option, type=field.type, default=field.default, help=f"({field.default:g})")

    @classmethod
    def of(cls, args):
        return cls(**{field.name: getattr(args, field.name) for field in dataclasses.fields(cls)})

    def options(self):
        """What both programs are told alike."""
        options = [[f"--{name.replace('_', '-')}", f"{value:g}"] for name, value in dataclasses.asdict(self).items()]
        return sum(options, [])

    def steps(self, epochs):
        return math.ceil(epochs * SAMPLES / self.batch - 1e-9)

    def rate(self, step):
        """The learning rate of a step, the first being 0."""
        warmup, total = self.steps(self.warmup_epochs), self.steps(self.epochs)
        if step < warmup:
            return self.lr * (step + 1) / warmup
        return self.lr * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(total - warmup, 1)))

    def ends_epoch(self, done):
        """Whether an epoch, or the training, ends with so many steps."""
        epochs = [math.floor(steps * self.batch / SAMPLES + 1e-9) for steps in (done - 1, done)]
        return epochs[1] > epochs[0] or done == self.steps(self.epochs)
