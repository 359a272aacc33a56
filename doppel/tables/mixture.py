"""A mixture of products: the model that is fitted to noisy marginals, and that rows are drawn from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor, nn

from doppel.tables.marginals import MODEL_SEED, Clique, Floats, Measurement, Whole

#: The rate falls to this share of itself within a fit.
_LAST_RATE = 0.1


class Mixture(nn.Module):
    """p(row) = Σₖ wₖ Πⱼ pₖⱼ(value of column j): K components, in each of which the columns are independent.

    A marginal of two columns is one product of small matrices, so a fit takes a second. (Private-PGM, with which AIM
    was written, is the exact maximum-entropy model, whose size grows with the pairs that are measured.)

    It sees noisy marginals and public things alone, so all that it does is post-processing.

    Args:
        sizes: Values of each column.
        num_components: K.
        seed: Public seed of the start.
    """

    def __init__(self, sizes: Sequence[int], num_components: int = 200, seed: int = MODEL_SEED) -> None:
        super().__init__()
        self.sizes = tuple(sizes)
        generator = torch.Generator().manual_seed(seed)
        start = torch.randn(num_components, sum(sizes), generator=generator)
        self.weights = nn.Parameter(torch.zeros(num_components))
        self.columns = nn.ParameterList(nn.Parameter(part.clone()) for part in start.split(list(sizes), dim=1))
        self._optimizer = torch.optim.Adam(self.parameters(), betas=(0.9, 0.99))

    def start_from(self, measurements: Sequence[Measurement]) -> None:
        """Let the columns start at their measured shares, each component a little apart from them.

        A column of which nothing was measured has all its values equally often.
        """
        with torch.no_grad():
            for place in set(range(len(self.sizes))) - {measured.clique[0] for measured in measurements}:
                self.columns[place].zero_()
            for measured in measurements:
                counts = np.clip(measured.counts, 0.5, None)
                self.columns[measured.clique[0]] += torch.from_numpy(np.log(counts / counts.sum())).float()

    def fit(self, measurements: Sequence[Measurement], num_units: int, steps: int = 100, rate: float = 0.05) -> None:
        """Fit least squares to all measured counts, each weighted by 1/σ², from where the last fit ended.

        Args:
            measurements: Marginals of one or two columns.
            num_units: N, which is public: what the counts of a marginal add up to.
            steps: Steps of Adam.
            rate: Its first learning rate, which falls to a tenth.
        """
        wanted = [
            (measured.clique, torch.from_numpy(measured.counts / num_units).float(), (num_units / measured.sigma) ** 2)
            for measured in measurements
        ]
        for step in range(steps if wanted else 0):
            for group in self._optimizer.param_groups:
                group["lr"] = rate * (1 - (1 - _LAST_RATE) * step / steps)
            weights, columns = self._probabilities()
            apart = (precision * (_joint(weights, columns, c) - y).square().sum() for c, y, precision in wanted)
            self._optimizer.zero_grad()
            torch.stack(list(apart)).sum().backward()
            self._optimizer.step()

    @torch.no_grad()
    def shares(self, cliques: Sequence[Clique]) -> list[Floats]:
        """Return probabilities of marginals of one or two columns, each of the shape of their sizes."""
        weights, columns = self._probabilities()
        return [_joint(weights, columns, clique).double().numpy() for clique in cliques]

    @torch.no_grad()
    def draw(self, num_rows: int, seed: int = 1, given: Mapping[int, int] = MappingProxyType({})) -> Whole:
        """Draw rows as indices of values, int64 [rows, columns], in random order.

        Of the components, and of the values of each column within one, so many are drawn as are expected, up to one
        (systematic sampling): so the rows keep the shares of the model better than independent draws would.

        Args:
            num_rows: How many.
            seed: Public seed of the rows.
            given: Values that all rows have, by the place of their column: the others are drawn given these.
        """
        generator = np.random.default_rng(seed)
        weights, columns = self._probabilities()
        for place, value in given.items():
            weights = weights * columns[place][:, value]
            columns[place] = torch.zeros_like(columns[place])
            columns[place][:, value] = 1.0
        rows = np.empty((num_rows, len(self.sizes)), dtype=np.int64)
        component = _systematic(weights.double().numpy(), num_rows, generator)
        for k, first, count in zip(*np.unique(component, return_index=True, return_counts=True), strict=True):
            for place, column in enumerate(columns):
                values = _systematic(column[k].double().numpy(), count, generator)
                rows[first : first + count, place] = generator.permutation(values)
        return generator.permutation(rows)

    def _probabilities(self) -> tuple[Tensor, list[Tensor]]:
        """Weights of the components [K], and of each column the probabilities of its values in each [K, size]."""
        return self.weights.softmax(0), [column.softmax(1) for column in self.columns]


def _joint(weights: Tensor, columns: Sequence[Tensor], clique: Clique) -> Tensor:
    first, *rest = (columns[place] for place in clique)
    return (weights[:, None] * first).T @ rest[0] if rest else weights @ first


def _systematic(probabilities: Floats, num: int, generator: np.random.Generator) -> Whole:
    """Places in rising order, each as often as expected, rounded up or down at random without bias."""
    ends = np.cumsum(probabilities / probabilities.sum())
    points = (np.arange(num) + generator.random()) / num
    return np.minimum(np.searchsorted(ends, points, side="right"), len(ends) - 1)
