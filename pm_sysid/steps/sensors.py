"""How outputs are measured beyond Gaussian noise of its own for each: limits, outliers, noise that depends, covariance.

Whatever a measurement says of the output ``z``, of which the filter expects ``N(m, P)``, enters through the density ``Z(m)`` of
what was seen: the moments of z given it are ``m + P (log Z)'`` and ``P + P^2 (log Z)''``. They are exact; that the posterior is
taken for Gaussian again is the approximation (moment matching: the Gaussian that is nearest in Kullback-Leibler divergence).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytensor.scalar.basic as psb
from pytensor.graph.basic import Variable

from pm_sysid.steps.normal_tail import normal_tail
from pm_sysid.symbolic.processes import cholesky
from pm_sysid.symbolic.scalars import Scalar, add, as_variable, constant, div, dot, mul, sqrt, sub, substitute, switch

type Limits = tuple[float | None, float | None]

#: Normal distributions of different scales in place of a t distribution, and their distance: steps of the logarithm of the
#: precision, in units of its standard deviation, from ``HIGHEST`` such units above the middle on down.
NODES, STEP, HIGHEST = 16, 1.3, 3.0
#: Further ones for values that are far out, and how many of them have more precision than such a value is likely to have. The
#: log-density is right to 0.01 however far out a value is, where the output is known as well as the noise allows.
FARTHER, ABOVE = 7, 2.0
#: Squared scales from the middle beyond which precisions are not followed, so that all numbers are finite.
FARTHEST = 1e200


@dataclass(frozen=True, eq=False)
class Rule:
    """Standard deviation of the noise by the output ``y`` and further ``entries``, as a scalar expression."""

    y: Variable
    entries: tuple[Variable, ...]
    std: Scalar

    def at(self, y: Scalar, entries: Sequence[Scalar]) -> Scalar:
        """Standard deviation at an output."""
        return substitute([self.std], {self.y: y, **dict(zip(self.entries, entries, strict=True))})[0]


@dataclass(frozen=True)
class Sensor:
    """One output: its limits, whether its noise has the tails of a t distribution, and how it depends on the output."""

    limits: Limits = (None, None)
    heavy: bool = False
    rule: Rule | None = None

    @property
    def plain(self) -> bool:
        """Whether what is seen is Gaussian given the output."""
        return self.limits == (None, None) and not self.heavy

    @property
    def n_entries(self) -> int:
        """Numbers it needs besides its standard deviation: degrees of freedom; entries of the rule."""
        return int(self.heavy) + (len(self.rule.entries) if self.rule else 0)


@dataclass(frozen=True)
class Sensors:
    """All outputs: one :class:`Sensor` each (none: all are plain), and whether their noise is correlated.

    The noise of a filter is a vector: standard deviations (n_y,), then the entries of each sensor, then those of the
    covariance's lower triangle, row by row.
    """

    outputs: tuple[Sensor, ...] = ()
    correlated: bool = False

    def of(self, output: int) -> Sensor:
        """Sensor of an output."""
        return self.outputs[output] if self.outputs else Sensor()

    def n_entries(self, n_y: int) -> int:
        """Numbers besides the standard deviations."""
        return sum(s.n_entries for s in self.outputs) + (n_y * (n_y + 1) // 2 if self.correlated else 0)

    def entries(self, noise: Sequence[Scalar], n_y: int) -> tuple[list[list[Scalar]], list[Scalar]]:
        """Entries of each sensor, and those of the covariance, out of the noise vector."""
        rest, own = list(noise[n_y:]), []
        for sensor in self.outputs or (Sensor(),) * n_y:
            own.append(rest[: sensor.n_entries])
            rest = rest[sensor.n_entries :]
        return own, rest

    @property
    def plain(self) -> bool:
        """Whether all that is seen is Gaussian given the outputs."""
        return all(s.plain for s in self.outputs)

    @property
    def gaussian(self) -> bool:
        """Whether outputs and what is seen of them are Gaussian together, where the outputs are."""
        return self.plain and not any(s.rule for s in self.outputs)

    @property
    def heavy(self) -> tuple[int, ...]:
        """Outputs whose draws need a second random number."""
        return tuple(j for j, s in enumerate(self.outputs) if s.heavy)

    @property
    def limited(self) -> bool:
        """Whether an output has a limit."""
        return any(s.limits != (None, None) for s in self.outputs)

    def clipped(self, y: np.ndarray) -> np.ndarray:
        """Outputs (..., n_y) as the sensors would show them."""
        return np.clip(y, *self.bounds()) if self.limited else y

    def censored(self, y: np.ndarray) -> np.ndarray:
        """Which measurements (..., n_y) are at a limit or beyond."""
        if not self.limited:
            return np.zeros(y.shape, dtype=bool)
        lower, upper = self.bounds()
        found: np.ndarray = (y <= lower) | (y >= upper)
        return found

    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper limit of each output; infinite where it has none."""
        pairs = [s.limits for s in self.outputs]
        lower = np.array([-np.inf if low is None else low for low, _ in pairs])
        return lower, np.array([np.inf if high is None else high for _, high in pairs])


#: Gaussian noise of each output alone.
PLAIN = Sensors()


class Reading(NamedTuple):
    """What a measurement says of an output with the moments N(m, P).

    ``log`` density of it; ``pull``, the derivative of ``log`` by m; ``weight``, minus the second one; ``rest`` = 1 - weight P,
    the share of the variance that is left.
    """

    log: Scalar
    pull: Scalar
    weight: Scalar
    rest: Scalar


#: What a missing sample says.
NOTHING = Reading(0.0, 0.0, 0.0, 1.0)


def gaussian(gap: Scalar, spread: Scalar, noise: Scalar) -> Reading:
    """A value ``gap`` above the mean, with variances of output and noise."""
    total = add(spread, noise)
    pull = div(gap, total)
    log = mul(-0.5, add(psb.log(as_variable(mul(2.0 * math.pi, total))), mul(gap, pull)))
    return Reading(log, pull, div(1.0, total), div(noise, total))


def beyond(gap: Scalar, sign: Scalar, spread: Scalar, noise: Scalar) -> Reading:
    """No more than that the value is at least (``sign`` 1) or at most (-1) a limit that is ``gap`` above the mean."""
    total = add(spread, noise)
    root = sqrt(total)
    tail = normal_tail(mul(-1.0, sign, div(gap, root)))
    rest = div(add(noise, mul(spread, tail.left)), total)
    return Reading(tail.log, mul(sign, div(tail.hazard, root)), div(tail.known, total), rest)


def mixture(log_weights: Sequence[Scalar], parts: Sequence[Reading], spread: Scalar) -> Reading:
    """One of several readings, with probabilities: its first two moments."""
    logs = [as_variable(add(w, part.log)) for w, part in zip(log_weights, parts, strict=True)]
    largest = logs[0]
    for other in logs[1:]:
        largest = psb.maximum(largest, other)
    shares: list[Scalar] = [psb.exp(as_variable(sub(log, largest))) for log in logs]
    total = add(*shares)
    shares = [div(share, total) for share in shares]
    pull = dot(shares, [part.pull for part in parts])
    apart = [sub(part.pull, pull) for part in parts]
    between = dot(shares, [mul(d, d) for d in apart])
    return Reading(
        add(largest, psb.log(as_variable(total))),
        pull,
        sub(dot(shares, [part.weight for part in parts]), between),
        add(dot(shares, [part.rest for part in parts]), mul(spread, between)),
    )


def chosen(condition: Variable, yes: Reading, no: Reading) -> Reading:
    """One of two readings."""
    return Reading(*(switch(condition, a, b) for a, b in zip(yes, no, strict=True)))


def student_t(nu: Scalar) -> tuple[list[Scalar], list[Scalar]]:
    """Log-weights and factors of the variance of the normal distributions that make a t distribution of scale one.

    Its precision has a Gamma distribution of mean one. The integral over the logarithm of the precision is by the trapezoidal
    rule, which converges exponentially for such an integrand. With few degrees of freedom a part of it lies below the last
    precision, which weights leave to :func:`farther`: of small precisions the Gamma distribution is a power.
    """
    wide = sqrt(div(2.0, nu))
    top = psb.log1p(as_variable(add(mul(HIGHEST, wide), mul(0.5 * HIGHEST**2, wide, wide))))
    logs = [sub(top, mul(float(k), _step(nu))) for k in range(NODES)]
    factors = [psb.exp(as_variable(mul(-1.0, x))) for x in logs]
    weights = [_unscaled(nu, x, f) for x, f in zip(logs, factors, strict=True)]
    largest = as_variable(weights[0])
    for w in weights[1:]:
        largest = psb.maximum(largest, as_variable(w))
    total = psb.log(as_variable(add(*(psb.exp(as_variable(sub(w, largest))) for w in weights))))
    half, edge = div(nu, 2.0), sub(logs[-1], mul(0.5, _step(nu)))
    power = mul(half, add(psb.log(as_variable(half)), edge, mul(-1.0, psb.exp(as_variable(edge)))))
    below = psb.exp(as_variable(sub(power, _log_gamma(add(half, 1.0)))))
    there = psb.log1p(as_variable(mul(-1.0, below)))
    return [sub(add(w, there), add(largest, total)) for w in weights], factors


def farther(nu: Scalar, square: Scalar, log_weight: Scalar, factor: Scalar) -> tuple[list[Scalar], list[Scalar]]:
    """More of what :func:`student_t` returns, for a value with the ``square`` of its distance from the middle, in scales.

    The last normal distribution is given. The precision that is likely given the value, ``(nu + 1) / (nu + square)``, may lie
    far beyond it, where only distributions around that one count.
    """
    last, apart = mul(-1.0, psb.log(as_variable(factor))), _step(nu)
    square = psb.minimum(as_variable(square), constant(FARTHEST))
    likely = psb.log(as_variable(div(add(nu, 1.0), add(nu, square))))
    first = psb.minimum(as_variable(sub(last, apart)), as_variable(add(likely, mul(ABOVE, apart))))
    logs = [sub(first, mul(float(k), apart)) for k in range(FARTHER)]
    factors = [psb.exp(as_variable(mul(-1.0, x))) for x in logs]
    scaled = sub(log_weight, _unscaled(nu, last, factor))
    return [add(scaled, _unscaled(nu, x, f)) for x, f in zip(logs, factors, strict=True)], factors


def _log_gamma(a: Scalar) -> Scalar:
    """Logarithm of the Gamma function of a positive number, right to 1e-9: Stirling's series eight steps on."""
    up = add(a, 8.0)
    below = psb.log(as_variable(mul(*(add(a, float(k)) for k in range(8)))))
    series = sub(div(1 / 12, up), div(1 / 360, mul(up, up, up)))
    return sub(add(mul(sub(up, 0.5), psb.log(as_variable(up))), mul(-1.0, up), 0.5 * math.log(2 * math.pi), series), below)


def _step(nu: Scalar) -> Scalar:
    """Distance of the logarithms of two precisions."""
    return mul(STEP, sqrt(div(2.0, add(nu, 1.0))))


def _unscaled(nu: Scalar, log_precision: Scalar, factor: Scalar) -> Scalar:
    """Logarithm of the density of a logarithm of the precision, up to a constant."""
    return mul(div(nu, 2.0), sub(log_precision, div(1.0, factor)))


class Seen:
    """A sensor that is not plain, at one sample: expected output, its variance ``spread``, and the variance of the noise."""

    def __init__(self, sensor: Sensor, mean: Scalar, spread: Scalar, noise: Scalar, entries: Sequence[Scalar]) -> None:
        self.sensor, self.mean, self.spread, self.noise = sensor, mean, spread, noise
        #: Degrees of freedom, and log-weights and noise variances of the normal distributions of a t distribution.
        self.nu: Scalar = entries[0] if sensor.heavy else math.inf
        self.log_weights, self.noises = [0.0], [noise]  # type: list[Scalar], list[Scalar]
        if sensor.heavy:
            self.log_weights, self.factors = student_t(self.nu)
            self.noises = [mul(noise, f) for f in self.factors]

    def reading(self, y: Scalar) -> Reading:
        """What the value ``y`` says."""
        gap = sub(y, self.mean)
        found = self._one(gap, lambda noise: gaussian(gap, self.spread, noise))
        if self.sensor.limits == (None, None):
            return found
        at, sign, limit = self.censored(y), *self._side(y)
        to_limit = sub(limit, self.mean)
        return chosen(at, self._one(to_limit, lambda noise: beyond(to_limit, sign, self.spread, noise)), found)

    def _one(self, gap: Scalar, part: Callable[[Scalar], Reading]) -> Reading:
        """What a value ``gap`` from the mean says, by what it says for each variance of the noise."""
        if not self.sensor.heavy:
            return part(self.noise)
        square = div(mul(gap, gap), self.noise)
        log_weights, factors = farther(self.nu, square, self.log_weights[-1], self.factors[-1])
        noises = [*self.noises, *(mul(self.noise, f) for f in factors)]
        return mixture([*self.log_weights, *log_weights], [part(noise) for noise in noises], self.spread)

    def _side(self, y: Scalar) -> tuple[Scalar, Scalar]:
        """The limit that a censored value is at: 1 and the upper, or -1 and the lower."""
        lower, upper = self.sensor.limits
        if lower is None or upper is None:
            return (1.0, upper) if upper is not None else (-1.0, lower)  # type: ignore[return-value]
        high = psb.ge(as_variable(y), constant(upper))
        return switch(high, 1.0, -1.0), switch(high, upper, lower)

    def censored(self, y: Scalar) -> Variable:
        """Whether a value is at a limit or beyond."""
        lower, upper = self.sensor.limits
        tests = [psb.le(as_variable(y), constant(lower))] if lower is not None else []
        tests += [psb.ge(as_variable(y), constant(upper))] if upper is not None else []
        return tests[0] if len(tests) == 1 else psb.or_(*tests)

    def drawn(self, normal: Scalar, second: Scalar) -> Scalar:
        """A value from standard normal numbers, the second of which picks the scale."""
        total = add(self.spread, self.noises[0])
        if self.sensor.heavy:
            place = psb.exp(as_variable(normal_tail(second).log))
            passed: Scalar = 0.0
            for w, noise in zip(self.log_weights[:-1], self.noises[1:], strict=True):
                passed = add(passed, psb.exp(as_variable(w)))
                total = switch(psb.gt(place, as_variable(passed)), add(self.spread, noise), total)
        y = as_variable(add(self.mean, mul(normal, sqrt(total))))
        lower, upper = self.sensor.limits
        y = y if lower is None else psb.maximum(y, constant(lower))
        return y if upper is None else psb.minimum(y, constant(upper))

    @property
    def deviation(self) -> Scalar:
        """Standard deviation of a value that no limit cuts off."""
        return sqrt(dot([psb.exp(as_variable(w)) for w in self.log_weights], [add(self.spread, n) for n in self.noises]))

    def log_tail(self, y: Scalar) -> Scalar:
        """Log-probability of a value that is farther from the mean on the side of ``y``."""
        gap = mul(-1.0, psb.abs(as_variable(sub(y, self.mean))))

        def tail(noise: Scalar) -> Reading:
            return Reading(normal_tail(div(gap, sqrt(add(self.spread, noise)))).log, 0.0, 0.0, 0.0)

        return self._one(gap, tail).log


def log_density(sensors: Sensors, outputs: Sequence[Scalar], noise: Sequence[Scalar], y: Sequence[Variable]) -> Scalar:
    """Log-density of measurements (NaN where missing) of outputs that are known; minus infinity where it is no number."""
    n_y, missing = len(outputs), [psb.isnan(v) for v in y]
    own, covariance = sensors.entries(noise, n_y)
    values = [switch(gone, m, v) for gone, m, v in zip(missing, outputs, y, strict=True)]
    logs: list[Scalar] = []
    if sensors.correlated:
        scaled: list[Scalar] = []  # errors of combinations of the outputs, which are independent of each other
        for row, mean, value in zip(decorrelating(covariance, n_y, missing), outputs, values, strict=True):
            j = len(scaled)
            scaled.append(div(sub(sub(value, mean), dot(row[:j], scaled)), row[j]))
            logs.append(sub(gaussian(scaled[j], 0.0, 1.0).log, psb.log(as_variable(row[j]))))
    else:
        for j, (mean, value) in enumerate(zip(outputs, values, strict=True)):
            sensor, std = sensors.of(j), noise[j]
            if sensor.rule is not None:
                std = sensor.rule.at(mean, own[j][int(sensor.heavy) :])
            variance = mul(std, std)
            at = Seen(sensor, mean, 0.0, variance, own[j])
            logs.append((gaussian(sub(value, mean), 0.0, variance) if sensor.plain else at.reading(value)).log)
    total = as_variable(add(*(switch(gone, 0.0, log) for gone, log in zip(missing, logs, strict=True))))
    return switch(psb.isnan(total), -math.inf, total)


def decorrelating(covariance: Sequence[Scalar], n: int, missing: Sequence[Variable] | None) -> list[list[Scalar]]:
    """Cholesky factor of the noise covariance, given by its lower triangle, in which missing outputs are independent."""
    rows = [list(covariance[i * (i + 1) // 2 : (i + 1) * (i + 2) // 2]) + [0.0] * (n - 1 - i) for i in range(n)]
    if missing is not None:
        for i in range(n):
            for j in range(i):
                rows[i][j] = switch(psb.or_(missing[i], missing[j]), 0.0, rows[i][j])
    return cholesky(rows)
