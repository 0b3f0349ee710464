"""Gradients: what of the input an output depends on, and how large they arrive at each parameter."""

import pandas as pd
import torch


def leak(from_embeddings, embeddings):
    """Norm of the gradient of every output with respect to every input, (t, t') in float64.

    from_embeddings: a function of embeddings (b, n, m) that returns outputs (b, n, c), the rows of
    a batch apart. embeddings: (n, m), one sequence. Entry (t, t') is the Frobenius norm of d
    outputs_t / d embeddings_t', of size (c, m): exactly 0 if output t cannot depend on input t',
    whatever the weights. Needs c sequences at a time. ValueError where outputs and inputs do not
    pair position by position.
    """
    start = embeddings.detach()[None]
    with torch.no_grad():
        shape = from_embeddings(start).shape
    if len(shape) != 3 or shape[:2] != start.shape[:2]:
        raise ValueError(
            f"outputs (1, {start.shape[1]}, c) are wanted from one sequence, got {tuple(shape)}"
        )
    copies = start.repeat(shape[2], 1, 1).requires_grad_()  # (c, n, m): copy i answers for class i
    with torch.enable_grad():
        own = from_embeddings(copies).diagonal(dim1=0, dim2=2)  # (n, c)
        rows = [
            torch.autograd.grad(own[t].sum(), copies, retain_graph=True)[0].cpu()
            for t in range(shape[1])
        ]
    return torch.stack(
        [torch.linalg.vector_norm(row, dim=(0, 2), dtype=torch.float64) for row in rows]
    )


def future(matrix):
    """The largest entry at an input later than the output, of a (t, t') matrix: 0 for a causal
    model.
    """
    return matrix.triu(1).max().item()


def gradient_norms(model) -> pd.DataFrame:
    """One row per parameter: parameter (its name), layer, norm (Euclidean) and rms (norm / √size)
    of its gradient.

    `layer` is the first whole number in the dotted name, missing where there is none; norm and rms
    are missing for a parameter that the loss does not reach. RuntimeError if no parameter has a
    gradient.
    """
    if all(parameter.grad is None for parameter in model.parameters()):
        raise RuntimeError(
            "no parameter has a gradient: call backward() on a loss of this model first"
        )
    rows = []
    for name, parameter in model.named_parameters():
        layer = next((int(part) for part in name.split(".") if part.isdecimal()), pd.NA)
        norm = float("nan")
        if parameter.grad is not None:
            wide = torch.promote_types(parameter.grad.dtype, torch.float32)
            norm = torch.linalg.vector_norm(parameter.grad.detach(), dtype=wide).item()
        rows.append((name, layer, norm, norm / parameter.numel() ** 0.5))
    return pd.DataFrame(rows, columns=["parameter", "layer", "norm", "rms"]).astype(
        {"layer": "Int64"}
    )
