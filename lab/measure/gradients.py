"""Gradients: which inputs an output depends on."""

import torch


def leak(from_embeddings, embeddings):
    """Norm of the gradient of every output with respect to every input, (t, t') in float64.

    from_embeddings: a function from embeddings (b, n, m) to outputs (b, n, c) that treats the rows
    of a batch separately. embeddings: (n, m), one sequence. Entry (t, t') is the Frobenius norm of
    d outputs_t / d embeddings_t', of shape (c, m): exactly 0 if output t cannot depend on input t',
    whatever the weights. Uses a batch of c sequences. Raises ValueError unless there is one output
    per input position.
    """
    start = embeddings.detach()[None]
    with torch.no_grad():
        shape = from_embeddings(start).shape
    if len(shape) != 3 or shape[:2] != start.shape[:2]:
        raise ValueError(
            f"one sequence must give outputs (1, {start.shape[1]}, c), got {tuple(shape)}"
        )
    copies = start.repeat(shape[2], 1, 1).requires_grad_()  # (c, n, m), one copy per class
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
    """The largest entry (t, t') with input t' later than output t: 0 for a causal model."""
    return matrix.triu(1).max().item()
