"""What tests compare trainings by."""

import hashlib
import os


def tell(model):
    """Prints the bits of the weights that rank 0 has, as one line."""
    if os.environ.get("RANK", "0") != "0":
        return
    digest = hashlib.sha256()
    for weights in model.parameters():
        local = weights.to_local() if hasattr(weights, "to_local") else weights
        digest.update(local.detach().numpy().tobytes())
    print("weights", digest.hexdigest(), flush=True)
