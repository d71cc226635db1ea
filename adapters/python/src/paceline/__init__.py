"""Tells Paceline where the time of a PyTorch training goes.

`paceline run -- COMMAND` follows a script without a change to it. Who prefers to say it in code uses `Log`:

    log = paceline.Log("runs", model="resnet50")            # in every rank, once RANK and WORLD_SIZE are known
    log.watch(model, optimizer)                             # the DDP model (or a plain one), before the first step
    for images, labels in log.steps(loader):                # one pass of the loop is one step
        loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()
        log.result(loss)
    log.close()

Then `paceline report runs`. Whatever fails in measuring prints one warning, and training goes on.
"""

from .log import Log

__version__ = "0.1.0"
__all__ = ["Log", "__version__"]
