"""A callback for Hugging Face's Trainer, for who prefers to say it in code:

    trainer = Trainer(model, arguments, callbacks=[paceline.transformers.Callback("runs")])

Under `paceline run` it does nothing: the process is followed already.
"""

from transformers import TrainerCallback

from . import training


class Callback(TrainerCallback):
    """Writes a run log into `folder`: one case for each model and number of workers."""

    def __init__(self, folder="paceline-runs", model=None, batch=None, patience=30.0):
        self.told = folder, model, batch, patience
        self.training = None

    def on_train_begin(self, args, state, control, **_):
        self.training = training.begin(*self.told)

    def on_train_end(self, args, state, control, **_):
        if self.training is not None:
            self.training.close()
