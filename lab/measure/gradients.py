"""Gradients after a backward pass, parameter by parameter (chapter §1.5.3, §1.5.5)."""

import pandas as pd
import torch


def gradient_norms(model) -> pd.DataFrame:
    """One row per parameter: parameter (its name), layer, norm (Euclidean) and rms (norm / √size) of its gradient.

    `layer` is the first whole number in the dotted name, missing where there is none; norm and rms are missing for a
    parameter that the loss does not reach. RuntimeError if no parameter has a gradient.
    """
    if all(parameter.grad is None for parameter in model.parameters()):
        raise RuntimeError("no parameter has a gradient: call backward() on a loss of this model first")
    rows = []
    for name, parameter in model.named_parameters():
        layer = next((int(part) for part in name.split(".") if part.isdecimal()), pd.NA)
        norm = float("nan")
        if parameter.grad is not None:
            wide = torch.promote_types(parameter.grad.dtype, torch.float32)
            norm = torch.linalg.vector_norm(parameter.grad.detach(), dtype=wide).item()
        rows.append((name, layer, norm, norm / parameter.numel() ** 0.5))
    return pd.DataFrame(rows, columns=["parameter", "layer", "norm", "rms"]).astype({"layer": "Int64"})
