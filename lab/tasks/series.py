"""Seasonal time series as tokens: a synthetic one, and weekly CO2 as a real one.

Targets are real numbers.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from lab import trace
from lab.tasks.task import Marks, Task

WEEKS = 52


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


@dataclass(frozen=True)
class WeeklyCO2(Task):
    """Change of CO2 over the next quarter, from earlier changes over a quarter (unit: sd).

    changes  .3  .5  .2  -.4      tokens are the changes in `levels` steps, week by week
    targets   .   .  1.1  .9      the change `ahead` weeks later; NaN before the window spans a year

    The first part of the record is for training, the last for `validation`.
    """

    length: int = 128
    ahead: int = 13  # weeks
    levels: int = 32
    held_out: float = 0.25
    d_out = 1
    holds_out = "the last years of the record"

    @property
    def vocabulary(self):
        return self.levels

    def marks(self):
        return Marks(chance=0.0)

    @property
    def _parts(self):
        ppm = weekly_co2()
        change = ppm[self.ahead :] - ppm[: -self.ahead]
        cut = int(len(change) * (1 - self.held_out))
        change = (change - change[:cut].mean()) / change[:cut].std()
        return change[:cut].float(), change[cut:].float()

    def batch(self, generator, size):
        part = self._parts[0]
        last = len(part) - self.length - self.ahead
        return self._windows(part, torch.randint(last + 1, (size,), generator=generator))

    def validation(self, size=None, seed=0):
        """Every fourth window of the held-out years, or `size` of these drawn with replacement."""
        part = self._parts[1]
        starts = torch.arange(0, len(part) - self.length - self.ahead + 1, 4)
        if size is not None:
            starts = starts[
                torch.randint(len(starts), (size,), generator=torch.Generator().manual_seed(seed))
            ]
        return self._windows(part, starts)

    def _windows(self, part, starts):
        at = starts[:, None] + torch.arange(self.length)
        targets = part[at + self.ahead].clone()
        targets[:, : WEEKS - self.ahead] = torch.nan
        return to_bins(part[at], self.levels), targets


@trace.cache
def weekly_co2():
    """Weekly CO2 at Mauna Loa, March 1958 to December 2001, in ppm; gaps are interpolated linearly.

    Keeling & Whorf 2004, Carbon Dioxide Information Analysis Center; public domain.
    """
    lines = Path(__file__).with_name("co2_weekly.txt").read_text("utf-8").splitlines()[1:]
    ppm = np.array([float(line or "nan") for line in lines])
    at = np.arange(len(lines))
    known = ~np.isnan(ppm)
    return torch.from_numpy(np.interp(at, at[known], ppm[known]))


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
