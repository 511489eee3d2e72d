"""Observations scaled to mean 0 and variance 1, by running statistics of the learned rows.

Input: the numbers of observations, and which rows count. Output: scaled numbers, to the torso, and
new statistics. The statistics are parameters that are not trained: they travel with the weights and
are saved in every checkpoint.
"""

import mindspore as ms
from mindspore import nn, ops

EPSILON = 1e-8  # added to the variance
LARGEST = 10.0  # scaled numbers are clamped to -10 ... 10 standard deviations


class Normalizer(nn.Cell):
    """``(x - mean) / sqrt(variance + EPSILON)``, clamped to -10 ... 10, for each of K numbers.

    Attributes:
        count: ``[]`` float32, number of rows counted so far. With 0 rows x stays as it is.
        mean: ``[K]`` float32.
        variance: ``[K]`` float32, of the population (divided by the count).

    Args:
        size: Number of numbers of an observation, K.
    """

    def __init__(self, size):
        super().__init__()
        self.count = _statistic(ops.zeros((), ms.float32), "count")
        self.mean = _statistic(ops.zeros((size,), ms.float32), "mean")
        self.variance = _statistic(ops.ones((size,), ms.float32), "variance")

    def construct(self, x):
        """``[N, K]`` float32 -> ``[N, K]`` float32."""
        scaled = (x - self.mean) * ops.rsqrt(self.variance + EPSILON)
        return ops.clamp(scaled, -LARGEST, LARGEST)

    def sums(self, x, weight):
        """What rows add to the statistics. Sums about the same centre can be added up.

        Args:
            x: ``[N, K]`` float32.
            weight: ``[N]`` float32, 1 for a row that counts, 0 for a row that does not.

        Returns:
            ``(rows [], centre [K], sum of x - centre [K], sum of (x - centre)^2 [K])``, float32.
            The centre is the mean so far, or the mean of these rows if there is none yet. Without a
            centre the squares of large numbers would cancel in float32.
        """
        weights, rows = ops.expand_dims(weight, -1), weight.sum()
        own = (weights * x).sum(0) / ops.maximum(rows, ms.Tensor(1.0, ms.float32))
        centre = ops.where(self.count > 0, self.mean, own)
        distance = x - centre
        squares = (weights * ops.square(distance)).sum(0)
        return rows, centre, (weights * distance).sum(0), squares

    def update(self, rows, centre, distances, squares):
        """Add rows to the statistics; without a new row they keep their bits.

        A number whose sums are not finite (1e20 squared) keeps its statistics.

        Args:
            rows: ``[]``, the first result of ``sums``.
            centre: ``[K]``, the second.
            distances: ``[K]``, the third.
            squares: ``[K]``, the fourth.

        Source:
            Chan, Golub, LeVeque 1983, Algorithms for computing the sample variance, eq. 2.1,
            where the sums of the second sample are about the mean of the first.
        """
        total = self.count + rows
        divisor = ops.maximum(total, ms.Tensor(1.0, ms.float32))
        mean = centre + distances / divisor
        spread = (self.variance * self.count + squares - distances * distances / divisor) / divisor
        new = ops.logical_and(rows > 0, ops.isfinite(spread + mean))
        spread = ops.maximum(spread, ms.Tensor(0.0, ms.float32))
        ops.assign(self.variance, ops.where(new, spread, self.variance))
        ops.assign(self.mean, ops.where(new, mean, self.mean))
        ops.assign(self.count, total)


class ObservationNormalizer(nn.Cell):
    """One ``Normalizer`` for the numbers of all parts of an observation.

    Args:
        sizes: Number of numbers of each part; 0 for a part that is not scaled (an image, a choice).
    """

    def __init__(self, sizes):
        super().__init__()
        self.sizes = tuple(sizes)
        self.all = Normalizer(sum(sizes))

    def construct(self, observation):
        """Scale ``[N, ...]``, or a tuple of such parts for a structured observation."""
        if not isinstance(observation, tuple):
            return self.all(self.numbers(observation)).reshape(observation.shape)
        numbers = self.all(self.numbers(observation))
        parts, begin = (), 0
        for i in range(len(self.sizes)):
            part, end = observation[i], begin + self.sizes[i]
            if self.sizes[i]:
                part = numbers[:, begin:end].reshape(part.shape)
            parts += (part,)
            begin = end
        return parts

    def update(self, observation, weight):
        """Add the rows whose weight ``[N]`` is 1 to the statistics, as of ``Normalizer``."""
        self.all.update(*self.all.sums(self.numbers(observation), weight))

    def numbers(self, observation):
        """``[N, K]`` float32, the numbers of all parts side by side."""
        if not isinstance(observation, tuple):
            return observation.reshape((-1, self.sizes[0])).astype(ms.float32)
        columns = ()
        for i in range(len(self.sizes)):
            if self.sizes[i]:
                columns += (observation[i].reshape((-1, self.sizes[i])).astype(ms.float32),)
        return ops.concat(columns, -1)


def _statistic(values, name):
    return ms.Parameter(values, name=name, requires_grad=False)
