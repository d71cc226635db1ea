"""A callback for Lightning, for who prefers to say it in code:

    trainer = lightning.Trainer(callbacks=[paceline.lightning.Callback("runs")])

Under `paceline run` it does nothing: the process is followed already.
"""

try:
    from lightning.pytorch import Callback as Base
except ImportError:
    from pytorch_lightning import Callback as Base

from . import training


class Callback(Base):
    """Writes a run log into `folder`: one case for each model and number of workers."""

    def __init__(self, folder="paceline-runs", model=None, batch=None, patience=30.0):
        super().__init__()
        self.told = folder, model, batch, patience
        self.training = None

    def on_train_start(self, trainer, module):
        self.training = training.begin(*self.told)

    def on_train_end(self, trainer, module):
        if self.training is not None:
            self.training.close()

    def on_exception(self, trainer, module, error):
        if self.training is not None:
            self.training.failed = True
            self.training.close()
