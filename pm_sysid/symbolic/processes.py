"""Gaussian processes in state-space form: what an input or a parameter does that nobody recorded.

A process is a linear stochastic differential equation ``dl = A l dt + dW``, of whose states a combination is the value. It is
given by its *kind*, which fixes the number of states and how transition, noise and initial covariance follow from a few
scalars, and by the entries that stand for these scalars: numbers or variables of a model.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytensor.scalar.basic as psb
import pytensor.tensor as pt
from pytensor.graph.basic import Variable

from pm_sysid.arguments import number, shown, whole
from pm_sysid.symbolic.scalars import Scalar, add, as_variable, constant, dot, mul, sqrt, sub
from pm_sysid.symbolic.scales import not_negative

type Table = list[list[Scalar]]

#: Nodes of the Gauss-Legendre rule for noise integrals, exact to rounding up to ``LONG`` time constants; beyond, a process has
#: forgotten where it was, and the integral does not change.
NODES, LONG = 32, 25.0
#: Time constants after which a transition is zero: more would give zero times infinity.
LONGEST = 700.0
#: Share of a periodic process's variance that its harmonics hold at least.
LEAST_KEPT = 0.5


@dataclass(frozen=True)
class Kind(ABC):
    """Structure of a process: ``size`` states, and scalars of the names ``entries``."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Number of states."""

    @property
    def kicks(self) -> int:
        """Columns of :meth:`noise`."""
        return self.size

    @property
    @abstractmethod
    def entries(self) -> tuple[str, ...]:
        """Names of the scalars that the functions below take as ``p``."""

    @abstractmethod
    def value(self, p: Sequence[Scalar]) -> list[Scalar]:
        """Weight of each state in the value of the process."""

    @abstractmethod
    def drift(self, p: Sequence[Scalar]) -> Table:
        """Matrix A of the mean's rate of change."""

    @abstractmethod
    def transition(self, p: Sequence[Scalar], step: Scalar) -> Table:
        """``exp(A step)``."""

    @abstractmethod
    def noise(self, p: Sequence[Scalar], step: Scalar) -> Table:
        """Factor (size, any) of the covariance that a step adds."""

    @abstractmethod
    def initial(self, p: Sequence[Scalar]) -> Table:
        """Factor (size, size) of the covariance at the first sample."""


@dataclass(frozen=True)
class MaternKind(Kind):
    """Matern process of smoothness ``degree + 1/2``: ``(d/dt + rate)^(degree + 1)`` of it is white noise.

    States are the process and its derivatives in units of ``rate``, for a process of unit variance (Hartikainen and Sarkka
    2010).
    """

    degree: int

    @property
    def size(self) -> int:
        """The process and the derivatives it has."""
        return self.degree + 1

    @property
    def entries(self) -> tuple[str, ...]:
        """Standard deviation and rate."""
        return "scale", "rate"

    @property
    def companion(self) -> np.ndarray:
        """Drift for a rate of one."""
        A = np.eye(self.size, k=1)
        A[-1] = [-math.comb(self.size, i) for i in range(self.size)]
        return A

    @property
    def powers(self) -> list[np.ndarray]:
        """Coefficients of the polynomial ``exp(A s) exp(s)`` in s: ``A + 1`` is nilpotent."""
        nilpotent, found = self.companion + np.eye(self.size), [np.eye(self.size)]
        for k in range(1, self.size):
            found.append(found[-1] @ nilpotent / k)
        return found

    def stationary(self) -> tuple[np.ndarray, float]:
        """Covariance of the states, and the density of the white noise, at unit variance."""
        n, A = self.size, self.companion
        impulse = np.zeros((n, n))
        impulse[-1, -1] = 1.0
        system = np.kron(A, np.eye(n)) + np.kron(np.eye(n), A)
        covariance = np.linalg.solve(system, -impulse.ravel()).reshape(n, n)
        return covariance / covariance[0, 0], 1.0 / covariance[0, 0]

    def value(self, p: Sequence[Scalar]) -> list[Scalar]:
        """Only the first state."""
        return [p[0], *[0.0] * self.degree]

    def drift(self, p: Sequence[Scalar]) -> Table:
        """Companion matrix."""
        return [[mul(float(a), p[1]) for a in row] for row in self.companion]

    def transition(self, p: Sequence[Scalar], step: Scalar) -> Table:
        """A polynomial times an exponential."""
        s = psb.minimum(as_variable(mul(p[1], step)), constant(LONGEST))
        powers: list[Scalar] = [psb.exp(mul(-1.0, s))]
        for _ in range(self.degree):
            powers.append(mul(powers[-1], s))
        tables = self.powers
        return [[dot([float(t[i, j]) for t in tables], powers) for j in range(self.size)] for i in range(self.size)]

    def noise(self, p: Sequence[Scalar], step: Scalar) -> Table:
        """Root of ``q`` times the integral of the impulse response's products, by quadrature.

        The difference of two stationary covariances would cancel for steps that are short beside the time constant.
        """
        a = mul(p[1], step)
        if not self.degree:
            return [[sqrt(mul(-1.0, psb.expm1(mul(-2.0, a))))]]
        a = psb.minimum(as_variable(a), constant(LONG))
        x, w = np.polynomial.legendre.leggauss(NODES)
        density, n = self.stationary()[1], self.size
        weights: list[Scalar] = []
        response: Table = []
        for node, weight in zip((x + 1) / 2, w / 2, strict=True):
            s = mul(float(node), a)
            weights.append(mul(float(density * weight), a, psb.exp(mul(-2.0, s))))
            powers: list[Scalar] = [1.0]
            for _ in range(self.degree):
                powers.append(mul(powers[-1], s))
            response.append([dot([float(t[i, -1]) for t in self.powers], powers) for i in range(n)])
        Q = [
            [add(*(mul(b, r[i], r[j]) for b, r in zip(weights, response, strict=True))) for j in range(i + 1)] for i in range(n)
        ]
        return cholesky(Q)

    def initial(self, p: Sequence[Scalar]) -> Table:
        """Stationary."""
        return [[float(x) for x in row] for row in np.linalg.cholesky(self.stationary()[0])]


@dataclass(frozen=True)
class IntegratedKind(Kind):
    """A Wiener process integrated ``order`` times; states are it and its derivatives, in physical units."""

    order: int

    @property
    def size(self) -> int:
        """The process and its derivatives."""
        return self.order + 1

    @property
    def entries(self) -> tuple[str, ...]:
        """Intensity of the white noise, and standard deviations at the first sample."""
        return "scale", *(f"start_{i}" for i in range(self.size))

    def value(self, p: Sequence[Scalar]) -> list[Scalar]:
        """Only the first state."""
        return [1.0, *[0.0] * self.order]

    def drift(self, p: Sequence[Scalar]) -> Table:
        """Each state is the derivative of the one before."""
        return [[float(j == i + 1) for j in range(self.size)] for i in range(self.size)]

    def transition(self, p: Sequence[Scalar], step: Scalar) -> Table:
        """Taylor polynomials."""
        n = self.size
        return [[mul(1 / math.factorial(j - i), *[step] * (j - i)) if j >= i else 0.0 for j in range(n)] for i in range(n)]

    def noise(self, p: Sequence[Scalar], step: Scalar) -> Table:
        """Factor of ``h^(2q+1-i-j) / ((2q+1-i-j) (q-i)! (q-j)!)``, whose scaled form is a constant."""
        n, q = self.size, self.order
        shape = np.array([[1.0 / (2 * q + 1 - i - j) for j in range(n)] for i in range(n)])
        root, width = np.linalg.cholesky(shape), sqrt(step)
        return [
            [
                mul(float(root[i, j] / math.factorial(q - i)), p[0], width, *[step] * (q - i)) if j <= i else 0.0
                for j in range(n)
            ]
            for i in range(n)
        ]

    def initial(self, p: Sequence[Scalar]) -> Table:
        """Independent."""
        return [[p[1 + i] if i == j else 0.0 for j in range(self.size)] for i in range(self.size)]


@dataclass(frozen=True)
class PeriodicKind(Kind):
    """A constant and ``harmonics`` pairs of cosine and sine with random amplitudes of unit variance: resonators."""

    harmonics: int

    @property
    def size(self) -> int:
        """A constant and the pairs."""
        return 1 + 2 * self.harmonics

    @property
    def kicks(self) -> int:
        """No noise."""
        return 0

    @property
    def entries(self) -> tuple[str, ...]:
        """Angular frequency and standard deviation of each harmonic."""
        return "omega", *(f"weight_{j}" for j in range(self.harmonics + 1))

    def value(self, p: Sequence[Scalar]) -> list[Scalar]:
        """Sum of the constant and the first of each pair."""
        return [p[1], *(w for j in range(self.harmonics) for w in (p[2 + j], 0.0))]

    def _pairs(self, constant: Scalar, pair: Any) -> Table:
        table: Table = [[0.0] * self.size for _ in range(self.size)]
        table[0][0] = constant
        for j in range(1, self.harmonics + 1):
            a, b = pair(j)
            c = 2 * j - 1
            table[c][c], table[c][c + 1], table[c + 1][c], table[c + 1][c + 1] = a, mul(-1.0, b), b, a
        return table

    def drift(self, p: Sequence[Scalar]) -> Table:
        """Rotation of each pair."""
        return self._pairs(0.0, lambda j: (0.0, mul(float(j), p[0])))

    def transition(self, p: Sequence[Scalar], step: Scalar) -> Table:
        """Rotation of each pair."""
        angle = [as_variable(mul(float(j), p[0], step)) for j in range(self.harmonics + 1)]
        return self._pairs(1.0, lambda j: (psb.cos(angle[j]), psb.sin(angle[j])))

    def noise(self, p: Sequence[Scalar], step: Scalar) -> Table:
        """None."""
        return [[] for _ in range(self.size)]

    def initial(self, p: Sequence[Scalar]) -> Table:
        """Independent amplitudes."""
        return [[float(i == j) for j in range(self.size)] for i in range(self.size)]


def cholesky(matrix: Table) -> Table:
    """Lower triangular root of a positive definite matrix, of which the lower triangle is read."""
    n = len(matrix)
    root: Table = [[0.0] * n for _ in range(n)]
    for j in range(n):
        root[j][j] = sqrt(sub(matrix[j][j], dot(root[j][:j], root[j][:j])))
        for i in range(j + 1, n):
            root[i][j] = mul(sub(matrix[i][j], dot(root[i][:j], root[j][:j])), psb.reciprocal(root[j][j]))
    return root


# -- what a user gives ------------------------------------------------------------------------------------------------


class Process:
    """A prior for what is not recorded: one of :class:`Matern`, :class:`OU`, :class:`IntegratedWiener`, :class:`Periodic`."""

    #: Structure, and the values of the structure's entries: numbers or scalar variables.
    kind: Kind
    values: list[Any]
    _said: dict[str, Any]

    def __repr__(self) -> str:
        said = ", ".join(f"{k}={getattr(v, 'name', None) or v}" for k, v in self._said.items())
        return f"{type(self).__name__}({said})"


def _positive(who: str, name: str, value: Any, zero: bool = False) -> Any:
    """A positive number, or a scalar variable that has no value where it is negative."""
    if isinstance(value, Variable):
        if value.type.ndim:  # type: ignore[attr-defined]
            raise ValueError(
                f"{who}: {name} has {value.type.ndim} dimensions; give a scalar variable: all records share a process."  # type: ignore[attr-defined]
            )
        return not_negative(value)
    remedy = f"give a {'number that is not negative' if zero else 'positive number'} or a scalar PyMC variable"
    value = number(value, f"{who}: {name}", remedy)
    if value < 0 or (value == 0 and not zero):
        raise ValueError(f"{who}: {name} is {value!r}; {remedy}.")
    return value


class Matern(Process):
    r"""Stationary process with a Matern kernel, in state-space form.

    With :math:`a = \sqrt{2\nu}\,|\tau| / \ell` the covariance at the lag :math:`\tau` is :math:`s^2 e^{-a}` for
    :math:`\nu = 1/2`, :math:`s^2 (1 + a) e^{-a}` for 3/2 and :math:`s^2 (1 + a + a^2/3) e^{-a}` for 5/2.

    Parameters
    ----------
    nu : {0.5, 1.5, 2.5}
        Smoothness: the process has no derivative, one or two.
    scale : number or PyMC variable
        Standard deviation s, in the unit of the input.
    length : number or PyMC variable
        Length l in seconds over which the process changes.

    Raises
    ------
    ValueError, TypeError
        For another ``nu``, or numbers that are not positive.

    Notes
    -----
    Source: Hartikainen and Sarkka (2010), Kalman filtering and smoothing solutions to temporal Gaussian process regression
    models, Section 3.

    Examples
    --------
    >>> import pm_sysid as sid
    >>> sid.Matern(nu=1.5, scale=2.0, length=0.5)
    Matern(nu=1.5, scale=2.0, length=0.5)
    """

    def __init__(self, *, nu: float, scale: Any, length: Any) -> None:
        if isinstance(nu, bool) or not isinstance(nu, int | float | np.number) or nu not in (0.5, 1.5, 2.5):
            raise ValueError(f"Matern: nu is {shown(nu)}; give 0.5, 1.5 or 2.5.")
        self._said = {"nu": nu, "scale": scale, "length": length}
        scale, length = _positive("Matern", "scale", scale), _positive("Matern", "length", length)
        self.kind = MaternKind(round(nu - 0.5))
        self.values = [scale, math.sqrt(2 * nu) / length]


class OU(Process):
    r"""Ornstein-Uhlenbeck process: the covariance at the lag :math:`\tau` is :math:`s^2 e^{-|\tau| / \ell}`.

    It has no derivative; the velocity of a mass that it pushes has a kink at every instant. It is the Matern process with
    ``nu=0.5``.

    Parameters
    ----------
    scale : number or PyMC variable
        Standard deviation s, in the unit of the input.
    length : number or PyMC variable, optional
        Time constant l in seconds.
    rate : number or PyMC variable, optional
        Its reciprocal 1/l, in 1/s; give one of the two.

    Raises
    ------
    ValueError, TypeError
        If not exactly one of ``length`` and ``rate`` is given, or for numbers that are not positive.

    Examples
    --------
    >>> import pm_sysid as sid
    >>> sid.OU(scale=1.0, rate=2.0)
    OU(scale=1.0, rate=2.0)
    """

    def __init__(self, *, scale: Any, length: Any = None, rate: Any = None) -> None:
        if (length is None) == (rate is None):
            raise ValueError(
                f"OU: length is {shown(length)} and rate is {shown(rate)}; give one of the two, rate = 1 / length."
            )
        self._said = {"scale": scale} | ({"rate": rate} if length is None else {"length": length})
        scale = _positive("OU", "scale", scale)
        rate = _positive("OU", "rate", rate) if length is None else 1.0 / _positive("OU", "length", length)
        self.kind = MaternKind(0)
        self.values = [scale, rate]


class IntegratedWiener(Process):
    """A Wiener process, integrated ``order`` times: its derivative of this order is a random walk in continuous time.

    Parameters
    ----------
    order : int, default 1
        Number of integrations, 0 to 4. A process of order 0 is a random walk, one of order 1 a trend whose slope wanders.
    scale : number or PyMC variable
        Intensity: the derivative of order ``order`` moves by ``scale * sqrt(T)`` (standard deviation) in T seconds.
    start : number, PyMC variable or sequence, default 0
        Standard deviation of the value at the first sample; a sequence adds those of its derivatives. By default the
        process starts at zero.

    Raises
    ------
    ValueError, TypeError
        For an order that is none, more standard deviations than the process has derivatives, or negative ones.

    Examples
    --------
    >>> import pm_sysid as sid
    >>> sid.IntegratedWiener(order=1, scale=0.3)
    IntegratedWiener(order=1, scale=0.3, start=0.0)
    """

    def __init__(self, *, order: int = 1, scale: Any, start: Any = 0.0) -> None:
        if not whole(order, 0, 4):
            raise ValueError(f"IntegratedWiener: order is {shown(order)}; give an integer from 0 to 4.")
        self._said = {"order": order, "scale": scale, "start": start}
        entries = list(start) if isinstance(start, list | tuple | np.ndarray) and np.ndim(start) else [start]
        if len(entries) > order + 1:
            raise ValueError(
                f"IntegratedWiener: start has {len(entries)} entries; give at most {order + 1}, for the value and its "
                "derivatives."
            )
        found = [_positive("IntegratedWiener", "start", v, zero=True) for v in entries]
        self.kind = IntegratedKind(int(order))
        self.values = [_positive("IntegratedWiener", "scale", scale), *found, *[0.0] * (order + 1 - len(found))]


class RandomWalk(IntegratedWiener):
    """A random walk in continuous time (a Wiener process): how a parameter drifts from its value at the first sample.

    Parameters
    ----------
    scale : number or PyMC variable
        Intensity: the standard deviation of what it moves by in T seconds is ``scale * sqrt(T)``, in the parameter's unit.

    Raises
    ------
    ValueError, TypeError
        For a number that is not positive.

    Examples
    --------
    >>> import pm_sysid as sid
    >>> sid.RandomWalk(scale=0.1)
    RandomWalk(scale=0.1)
    """

    def __init__(self, *, scale: Any) -> None:
        super().__init__(order=0, scale=_positive("RandomWalk", "scale", scale))
        self._said = {"scale": scale}


class Periodic(Process):
    r"""Periodic process: the kernel :math:`s^2 \exp(-2 \sin^2(\pi\tau/T) / \ell^2)`, cut off after a number of harmonics.

    Parameters
    ----------
    scale : number or PyMC variable
        Standard deviation s, in the unit of the input.
    period : number or PyMC variable
        Period T in seconds.
    length : number or PyMC variable, default 1
        Dimensionless length l: how much of a period the process keeps its value for; small is rich in harmonics.
    harmonics : int, default 3
        Number of harmonics J, 1 to 20; the process has 2 J + 1 states. What the kernel has above them is left out.

    Raises
    ------
    ValueError, TypeError
        For a number of harmonics that is none, numbers that are not positive, or harmonics that leave out more than half of the
        variance.

    Notes
    -----
    The variances are :math:`s^2 e^{-1/\ell^2} I_0(\ell^{-2})` of the constant and
    :math:`2 s^2 e^{-1/\ell^2} I_j(\ell^{-2})` of harmonic j. Source: Solin and Sarkka (2014), Explicit link between periodic
    covariance functions and state space models, Eq. 27.

    Examples
    --------
    >>> import pm_sysid as sid
    >>> sid.Periodic(scale=1.0, period=2.0, harmonics=2).kind.size
    5
    """

    def __init__(self, *, scale: Any, period: Any, length: Any = 1.0, harmonics: int = 3) -> None:
        if not whole(harmonics, 1, 20):
            raise ValueError(f"Periodic: harmonics is {shown(harmonics)}; give an integer from 1 to 20.")
        self._said = {"scale": scale, "period": period, "length": length, "harmonics": harmonics}
        scale, period, length = (
            _positive("Periodic", n, v) for n, v in (("scale", scale), ("period", period), ("length", length))
        )
        self.kind = PeriodicKind(int(harmonics))
        weights = [_weight(j, length) for j in range(harmonics + 1)]
        if not isinstance(length, Variable) and (kept := sum(w**2 for w in weights)) < LEAST_KEPT:
            raise ValueError(
                f"Periodic: {harmonics} harmonics hold {kept:.0%} of the variance at length {length!r}; give more harmonics, "
                "up to 20, or a greater length."
            )
        self.values = [2 * math.pi / period, *(scale * w for w in weights)]


def _weight(j: int, length: Any) -> Any:
    """Standard deviation of harmonic j of a periodic kernel of unit variance."""
    factor = 2.0 if j else 1.0
    if isinstance(length, Variable):
        return pt.sqrt(factor * pt.ive(j, length**-2))  # type: ignore[operator]
    from scipy.special import ive

    # Of a length near zero, whose square is zero, no harmonic has any variance.
    return math.sqrt(factor * float(ive(j, (1 / length) ** 2))) if length > 1e-100 else 0.0
