"""One-step-ahead predictors of sampled outputs: extended and unscented Kalman filters on Runge-Kutta steps.

Both carry the root of the state's covariance. A step adds the noise of parameters that walk at random, which moves the
states within the interval already. A sample first adds the process noise of the interval before it, then
conditions on the outputs one after the other, whatever the covariance of their noise and whichever of them are missing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

import pytensor.scalar.basic as psb
from pytensor.graph.basic import Variable

from pm_sysid.recurrence.forward_mode import inline, jvp
from pm_sysid.recurrence.op import Phase, Recurrence
from pm_sysid.steps.ek import FLOOR
from pm_sysid.steps.integrate import Method, run_recurrence
from pm_sysid.steps.square_root import Matrix, Vector, correct, triangularise
from pm_sysid.symbolic.scalars import Scalar, add, div, dot, mul, sqrt, sub, substitute, switch, symbol, symbols, untraced
from pm_sysid.symbolic.system import System

type Output = Literal["errors", "densities", "states"]


@dataclass(frozen=True)
class KalmanForm:
    """Shape of a predictor: what is known of its graph before any number is.

    ``sigma`` holds (alpha, beta, kappa) of sigma points, or None for linearisation. A noise root is diagonal unless
    ``full_process`` or ``full_noise``. ``certain``: neither a start nor a process has noise, so that there is no covariance
    to carry, and the predictor is the free run. ``method`` takes the steps between samples. ``drifting`` states are parameters
    that walk at random: their noise, of which the entry of the process is the standard deviation, acts throughout an interval.
    """

    sigma: tuple[float, float, float] | None = None
    full_process: bool = False
    full_noise: bool = False
    certain: bool = False
    method: Method = "rk4"
    drifting: tuple[int, ...] = ()


@dataclass(frozen=True)
class SigmaWeights:
    """Weights of the 2 n + 1 sigma points of the scaled unscented transform (Julier 2002; Wan and van der Merwe 2000)."""

    reach: float  # a point lies this many columns of the root from the mean
    mean: float  # of each point but the centre
    centre_mean: float
    centre_covariance: float

    @classmethod
    def of(cls, n: int, alpha: float, beta: float, kappa: float) -> SigmaWeights:
        """Weights for ``n`` states."""
        total = alpha**2 * (n + kappa)
        centre = 1.0 - n / total
        return cls(math.sqrt(total), 0.5 / total, centre, centre + 1.0 - alpha**2 + beta)

    @property
    def uses_centre(self) -> bool:
        """Whether the centre has a weight."""
        return self.centre_mean != 0.0 or self.centre_covariance != 0.0


def lower(entries: Sequence[Scalar], n: int, full: bool = True) -> Matrix:
    """Lower triangular matrix from its rows, or a diagonal one."""
    it = iter(entries)
    return [[next(it) if j == i or (full and j < i) else 0.0 for j in range(n)] for i in range(n)]


def n_entries(n: int, full: bool = True) -> int:
    """How many numbers :func:`lower` takes."""
    return n * (n + 1) // 2 if full else n


def compress(rows: Matrix) -> Matrix:
    """Lower triangular root of ``rows rows'``; of the tiny unit covariance where that is singular."""
    return triangularise([[FLOOR if i == j else 0.0 for j in range(len(rows))] for i in range(len(rows))], rows)


def downdate(root: Matrix, v: Vector) -> Matrix:
    """Root of ``root root' - v v'`` for a lower triangular root; not a number where that is no covariance.

    With ``f = root^-1 v`` it is ``root (I - f f' / (1 + sqrt(1 - f'f)))``.
    """
    f: Vector = []
    for i, row in enumerate(root):
        f.append(div(sub(v[i], dot(row[:i], f)), row[i]))
    factor = div(1.0, add(1.0, sqrt(sub(1.0, dot(f, f)))))
    return [[sub(x, mul(a, factor, b)) for x, b in zip(row, f, strict=True)] for row, a in zip(root, v, strict=True)]


def condition(
    x: Matrix, y: Matrix, errors: Vector, missing: Sequence[Variable]
) -> tuple[Vector, Matrix, list[tuple[Scalar, Scalar]]]:
    """Condition a joint Gaussian of states and outputs on the outputs, one after the other.

    Parameters
    ----------
    x, y
        Rows of the root of the joint covariance: of the states, and of the outputs with their noise.
    errors
        Measured minus expected outputs.
    missing
        Whether each is missing; its update is then left out.

    Returns
    -------
    shift
        What the means of the states gain.
    x
        Rows of the root of their covariance given the outputs.
    innovations
        Error of each output given those before it, and its variance.
    """
    n, rows, expected = len(x), [*x, *y], [0.0] * len(x) + [0.0] * len(y)
    shift: list[Scalar] = list(expected)
    innovations: list[tuple[Scalar, Scalar]] = []
    for error, lost in zip(errors, missing, strict=True):
        f = rows[n]
        variance = dot(f, f)
        innovation = switch(lost, 0.0, sub(error, shift[n]))
        innovations.append((innovation, variance))
        del rows[n], shift[n]
        gain, rows = correct(rows, f, switch(lost, 0.0, div(1.0, variance)), 0.0)
        shift = [add(a, mul(k, innovation)) for a, k in zip(shift, gain, strict=True)]
    return shift, rows, innovations


class KalmanSteps:
    """Scalar graphs of a predictor for one system and one form.

    Parameters are the system's, then the entries of the roots of the process and measurement noise. A start reads the state
    and the entries of the root of its covariance; a substep what the Runge-Kutta step reads, and where parameters walk the
    root of its length in typical intervals; a sample its time and inputs,
    the root of the length of the interval before it in typical intervals (zero at the first), and the measurements.
    """

    def __init__(self, system: System, form: KalmanForm) -> None:
        self.system, self.form = system, form
        self.n, self.m = len(system.states), len(system.g)
        self.width = 0 if form.certain else self.n
        self.q = symbols("q", 0 if form.certain else n_entries(self.n, form.full_process))
        self.r = symbols("r", n_entries(self.m, form.full_noise))
        self.params = [*system.p, *self.q, *self.r]
        rates = dict(zip(system.dx, system.f, strict=True))
        #: Expected outputs of a state.
        self.expected = substitute(system.g, rates)  # type: ignore[arg-type]

    # -- the carry ----------------------------------------------------------------------------------------------------

    @cached_property
    def weights(self) -> SigmaWeights | None:
        """Weights of the sigma points, if there are any."""
        return None if self.form.sigma is None or self.form.certain else SigmaWeights.of(self.n, *self.form.sigma)

    @property
    def n_carry(self) -> int:
        """Numbers carried between samples: state and root, or sigma points."""
        if self.weights is None:
            return self.n * (1 + self.width)
        return self.n * (2 * self.n + self.weights.uses_centre)

    def pack(self, mean: Vector, root: Matrix) -> list[Scalar]:
        """Carry of a mean and a lower triangular root."""
        if self.weights is None:
            return [*mean, *(a for row in root for a in row)]
        return [a for point in self.sigma_points(mean, root) for a in point]

    def sigma_points(self, mean: Vector, root: Matrix) -> Matrix:
        """Sigma points: both ways along each column of the root, then the centre if it has a weight."""
        assert self.weights is not None
        reach = self.weights.reach
        points = [
            [add(a, mul(s * reach, row[k])) for a, row in zip(mean, root, strict=True)] for s in (1, -1) for k in self.range
        ]
        return [*points, mean] if self.weights.uses_centre else points

    @property
    def range(self) -> range:
        """Indices of the states."""
        return range(self.n)

    def moments(self, points: Matrix) -> tuple[Vector, Matrix, Vector | None]:
        """Mean of transformed sigma points, rows of the root of their covariance, and what must be taken off it.

        The third is a vector v of ``rows rows' - v v'``, where the centre has a negative weight.
        """
        assert self.weights is not None
        w, n = self.weights, 2 * self.n
        means = [w.mean] * n + [w.centre_mean]
        mean = [add(*(mul(a, p[i]) for a, p in zip(means, points, strict=False))) for i in range(len(points[0]))]
        scale = [math.sqrt(w.mean)] * n + [math.sqrt(abs(w.centre_covariance))]
        rows = [[mul(c, sub(p[i], a)) for c, p in zip(scale, points, strict=False)] for i, a in enumerate(mean)]
        if w.centre_covariance >= 0:
            return mean, rows, None
        return mean, [row[:-1] for row in rows], [row[-1] for row in rows]

    # -- phases -------------------------------------------------------------------------------------------------------

    def start(self) -> Phase:
        """The state at the first sample, before it is measured."""
        x = self.system.x
        entries = symbols("root", 0 if self.form.certain else n_entries(self.n))
        root = lower(entries, self.n) if entries else [[] for _ in x]
        return Phase.build([], self.params, [*x, *entries], self.pack(list(x), root))

    def substep(self) -> Phase:
        """Take a step with the mean and, along its exact derivative, the columns of the root; or with points.

        Notes
        -----
        A walk moves by ``dw(s)`` at any time s of a step, and the state at its end by ``g(s) dw(s)``. With ``g`` linear from
        ``G``, the step's derivative by the walk, to the unit vector ``e`` of the walk itself, the integral of ``g g'`` is that
        of the columns ``(G + e) / 2`` and ``(G - e) / (2 sqrt(3))``.
        """
        x, p = self.system.x, self.system.p
        step = run_recurrence(self.system, self.form.method).substep
        inputs = symbols("input", step.n_inputs)
        carry: list[Variable] = [*x, *symbols("carry", self.n_carry - self.n)]
        states = [carry[i : i + self.n] for i in range(0, self.n_carry, self.n)]
        if self.weights is not None:
            moved = [inline(step.graph, [*point, *p, *inputs]) for point in states]
            if not self.form.drifting:
                return Phase.build(carry, self.params, inputs, [a for point in moved for a in point])
            mean, rows, off = self.moments(moved)
            centre, _, _ = self.moments(states)
            share, walked = self._walks(inputs, dict(zip(x, centre, strict=True)))
            root = compress([[*row, *more] for row, more in zip(rows, walked, strict=True)])
            root = root if off is None else compress(downdate(root, off))
            return Phase.build(carry, self.params, [*inputs, share], self.pack(mean, root))
        new = inline(step.graph, [*x, *p, *inputs])
        root = states[1:]  # row by row
        columns = [{s: row[k] for s, row in zip(x, root, strict=True)} for k in range(self.width)]
        rates = jvp(new, columns)  # type: ignore[arg-type]
        rows = [[rate[i] for rate in rates] for i in self.range]
        if self.form.drifting:
            share, walked = self._walks(inputs, {})
            rows = compress([[*row, *more] for row, more in zip(rows, walked, strict=True)])
            inputs = [*inputs, share]
        return Phase.build(carry, self.params, inputs, [*new, *(a for row in rows for a in row)])

    def _walks(self, inputs: Sequence[Variable], at: dict[Variable, Scalar]) -> tuple[Variable, Matrix]:
        """The root of a step's length in typical intervals, and rows of what walks add to the root, for states ``at``."""
        x, p, share = self.system.x, self.system.p, symbol("share")
        new = inline(run_recurrence(self.system, self.form.method).substep.graph, [*x, *p, *inputs])
        diagonal = lower(self.q, self.n, self.form.full_process)
        columns: list[list[Scalar]] = []
        for w, moved in zip(self.form.drifting, jvp(new, [{x[w]: 1.0} for w in self.form.drifting]), strict=True):
            size = mul(share, diagonal[w][w])
            moved = substitute(moved, at)
            columns.append([size if i == w else mul(0.5, size, g) for i, g in enumerate(moved)])
            columns.append([0.0 if i == w else mul(0.5 / math.sqrt(3.0), size, g) for i, g in enumerate(moved)])
        return share, [list(row) for row in zip(*columns, strict=True)]

    def sample(self, output: Output) -> Phase:
        """Add the process noise, predict the outputs, and condition on them.

        Parameters
        ----------
        output : {"errors", "densities", "states"}
            What the recurrence puts out: the error of each output's prediction from the samples before (zero where it is
            missing); the same given the outputs before it at the same sample, and then their variances; or the errors, their
            standard deviations, and means and standard deviations of the states given this sample too.
        """
        system, n, m = self.system, self.n, self.m
        carry: list[Variable] = [*system.x, *symbols("carry", self.n_carry - n)]
        states: Matrix = [list(carry[i : i + n]) for i in range(0, self.n_carry, n)]
        length, y = symbol("length"), symbols("y", m)
        process = [[mul(length, a) for a in row] for row in lower(self.q, n, self.form.full_process)] if self.q else []
        process = [[0.0] * n if i in self.form.drifting else row for i, row in enumerate(process)]  # added in the steps
        noise = lower(self.r, m, self.form.full_noise)
        missing = [psb.isnan(v) for v in y]

        if self.weights is None:
            mean, x_rows = states[0], [[*row, *extra] for row, extra in zip(states[1:], process, strict=True)]
            if self.form.certain:
                x_rows = [[] for _ in self.range]
            columns = [dict(zip(system.x, column, strict=True)) for column in zip(*x_rows, strict=True)]
            expected = self.expected
            seen = jvp(expected, columns)
            y_rows = [[s[j] for s in seen] for j in range(m)]
            excess = None
        else:
            mean, rows, off = self.moments(states)
            root = triangularise([[add(a, FLOOR * (i == j)) for j, a in enumerate(r)] for i, r in enumerate(process)], rows)
            root = root if off is None else compress(downdate(root, off))
            points = self.sigma_points(mean, root)
            seen = [substitute(self.expected, dict(zip(system.x, point, strict=True))) for point in points]
            expected, y_rows, off = self.moments(seen)
            scale = math.sqrt(self.weights.mean) * self.weights.reach
            x_rows = [[mul(s * scale, a) for s in (1, -1) for a in row] + [0.0] * (len(y_rows[0]) - 2 * n) for row in root]
            excess = None if off is None else [*[0.0] * n, *off]

        x_rows = [[*row, *[0.0] * m] for row in x_rows]
        y_rows = [[*row, *own] for row, own in zip(y_rows, noise, strict=True)]
        if excess is not None:
            joint = downdate(compress([*x_rows, *y_rows]), excess)
            x_rows, y_rows = joint[:n], joint[n:]
        errors = [sub(a, b) for a, b in zip(y, expected, strict=True)]
        shift, x_rows, innovations = condition(x_rows, y_rows, errors, missing)
        mean = [add(a, b) for a, b in zip(mean, shift, strict=True)]
        root = compress(x_rows) if self.width else [[] for _ in self.range]
        outputs: list[Scalar]
        if output == "densities":
            outputs = [e for e, _ in innovations] + [s for _, s in innovations]
        else:
            outputs = [switch(lost, 0.0, e) for lost, e in zip(missing, errors, strict=True)]
        if output == "states":
            outputs += [sqrt(dot(row, row)) for row in y_rows]
            outputs += [*mean, *(sqrt(dot(row, row)) if row else 0.0 for row in root)]
        inputs = [system.t, *system.u, length, *y]
        return Phase.build(carry, self.params, inputs, [*self.pack(mean, root), *outputs])


@lru_cache(maxsize=64)
@untraced()
def kalman_recurrence(system: System, form: KalmanForm, output: Output = "errors") -> Recurrence:
    """A predictor of a system as a recurrence; see :class:`KalmanSteps` for its inputs and outputs."""
    steps = KalmanSteps(system, form)
    name = "output error" if form.certain else "EKF" if form.sigma is None else "UKF"
    return Recurrence(
        steps.start(),
        steps.substep(),
        steps.sample(output),
        n_carry=steps.n_carry,
        n_params=len(steps.params),
        name=f"{name} {output}",
    )
