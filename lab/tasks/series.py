"""A seasonal time series as tokens.

Targets are real numbers.
"""

from dataclasses import dataclass

import torch

from lab.tasks.task import Marks, Task


@dataclass(frozen=True)
class Seasonal(Task):
    """The next value of a noisy periodic pattern, drawn per sequence.

    period 4    values   .3  -1   2   0  .4  -.9  1.8       tokens are the values in `levels` steps
                targets   .   .   .  .4 -.9  1.8            from the second period on; NaN before
    """

    period: int = 16
    noise: float = 0.3
    levels: int = 32
    length: int = 64
    d_out = 1

    @property
    def vocabulary(self):
        return self.levels

    def marks(self):
        """The ceiling is that of the Bayes estimate from k noisy periods and the patterns' prior.

        The quantisation of the tokens is ignored.
        """
        seen = [(t + 1) // self.period for t in range(self.period - 1, self.length)]
        noise = self.noise**2
        error = sum(noise + noise / (noise + k) for k in seen) / len(seen)
        return Marks(chance=0.0, ceiling=1 - error / (1 + noise))

    def batch(self, generator, size):
        drawn = self.annotated(generator, size)
        return drawn["tokens"], drawn["targets"]

    def annotated(self, generator, size):
        """Batch with gold labels {tokens, targets, source: (b, t)}.

        source is the position after the same phase one period ago, -1 in the first period.
        """
        at = torch.arange(self.length + 1)
        value = torch.randn(size, self.period, generator=generator)[:, at % self.period]
        value = value + self.noise * torch.randn(value.shape, generator=generator)
        source = (at[:-1] + 1 - self.period).clamp(min=-1).expand(size, -1)
        return {
            "tokens": to_bins(value[:, :-1], self.levels),
            "targets": value[:, 1:].where(source >= 0, torch.nan),
            "source": source,
        }


def to_bins(values, levels):
    """Tokens 0..levels-1 in equal steps from -3 to 3; values beyond fall into the outer bins."""
    return ((values + 3) / 6 * levels).long().clamp(0, levels - 1)


def squared_error(model, inputs, targets):
    """Mean squared error of a model with one output, ignoring NaN targets; a training loss."""
    forecast = model(inputs).squeeze(-1)
    has_answer = ~targets.isnan()
    return (forecast[has_answer] - targets[has_answer]).square().mean()


def explained(forecast, targets):
    """Share of the variance of the targets explained by the forecast; NaN targets are ignored."""
    has_answer = ~targets.isnan()
    forecast, targets = forecast[has_answer], targets[has_answer]
    return (1 - (forecast - targets).square().mean() / targets.var(correction=0)).item()
