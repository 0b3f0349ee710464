"""Linear probes: fitted on the first half of the rows, scored on the second."""

import torch
import torch.nn.functional as F


def probe_accuracy(features, labels, *, ridge=1e-2):
    """Accuracy of a linear probe on held-out rows: features (n, m), labels (n,) in 0..c-1.

    The probe is the regression of `held_out` on one-hot labels.
    """
    labels = labels.cpu()
    found = held_out(features, F.one_hot(labels, int(labels.max()) + 1), ridge=ridge)
    return (found.argmax(1) == labels[-len(found) :]).double().mean().item()


def held_out(features, targets, *, ridge):
    """Predictions for the second half of the rows by a ridge regression on the first half.

    features (n, m), targets (n,) or (n, w). The regression is solved in closed form. Features are
    standardised, so `ridge` is the penalty per row in units of their variance.
    """
    features, targets = (torch.as_tensor(x).cpu().double() for x in (features, targets))
    half = len(features) // 2
    mean = features[:half].mean(0)
    spread = features[:half].std(0) + 1e-9
    ones = torch.ones(len(features), 1, dtype=torch.float64)
    x = torch.cat([(features - mean) / spread, ones], 1)
    eye = torch.eye(x.shape[1], dtype=torch.float64)
    fit = x[:half]
    return x[half:] @ torch.linalg.solve(fit.T @ fit + ridge * half * eye, fit.T @ targets[:half])
