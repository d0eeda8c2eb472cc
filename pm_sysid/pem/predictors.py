"""What predicts the next sample: extended and unscented Kalman filters, and the probabilistic ODE filter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np

from pm_sysid.arguments import among, number, shown
from pm_sysid.solve.checks import spread_numbers
from pm_sysid.solve.noise import check_plain_noise
from pm_sysid.solve.options import EK1, Solver
from pm_sysid.solve.run_substeps import checked_method
from pm_sysid.solve.substeps import checked_substeps
from pm_sysid.symbolic.names import Names
from pm_sysid.symbolic.processes import Process, RandomWalk
from pm_sysid.symbolic.system import System

#: A standard deviation that is found by maximum likelihood.
ESTIMATE = "estimate"


class Noise(NamedTuple):
    """Root of a noise covariance: lower triangular entries if ``full``, else one for each channel.

    An entry is a number, the name of a leaf of ``p_guess``, or :data:`ESTIMATE`.
    """

    entries: tuple[float | str, ...]
    full: bool = False

    def followed_by(self, entries: Sequence[float | str]) -> Noise:
        """The same with further channels, independent of the others."""
        if not self.full:
            return Noise((*self.entries, *entries))
        n = int(np.sqrt(2 * len(self.entries)))
        rows = [self.entries]
        rows += [(*[0.0] * (n + i), entry) for i, entry in enumerate(entries)]
        return Noise(tuple(e for row in rows for e in row), full=True)

    def channel(self, i: int) -> int | None:
        """The channel whose standard deviation is entry ``i``, if it is one: alone in its row."""
        if not self.full:
            return i
        row = int((np.sqrt(8 * i + 1) - 1) / 2)
        first = row * (row + 1) // 2
        return row if i == first + row and all(e == 0.0 for e in self.entries[first:i]) else None

    @property
    def zero(self) -> bool:
        """Whether there is no such noise."""
        return all(e == 0.0 for e in self.entries)

    @property
    def names(self) -> list[str]:
        """Leaves of ``p_guess`` that are standard deviations."""
        return [e for e in self.entries if isinstance(e, str) and e != ESTIMATE]


def read_noise(what: str, value: Any, channels: Sequence[str], *, positive: bool) -> Noise:
    """Root of a covariance as a user gives it; see :class:`ExtendedKalman`.

    Raises
    ------
    TypeError, ValueError
        If it is no covariance of these channels.
    """
    n = len(channels)
    check_plain_noise(value, what, "give a covariance or standard deviations, and mark outliers as missing (NaN)")
    if isinstance(value, str):
        if value != ESTIMATE:
            raise ValueError(f"{what} is {value!r}; give 'estimate', a covariance, or a dict of standard deviations.")
        return Noise((ESTIMATE,) * n)
    if isinstance(value, Mapping):
        return _by_name(what, value, channels, positive)
    try:
        real = np.asarray(value).dtype.kind in "biuf"
        if not real:
            raise TypeError("no real numbers")
        matrix = np.asarray(value, dtype=float)
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(
            f"{what} is {type(value).__name__}; give a number, a matrix, a dict by channel, or 'estimate'."
        ) from error
    if matrix.ndim == 0:
        matrix = float(matrix) * np.eye(n)
    if matrix.shape != (n, n):
        raise ValueError(
            f"{what} has the shape {matrix.shape}; give a covariance of the shape {(n, n)} for {tuple(channels)}, or a dict of "
            "standard deviations by name."
        )
    if not np.all(np.isfinite(matrix)) or not np.allclose(matrix, matrix.T, rtol=1e-9, atol=0.0):
        raise ValueError(f"{what} must be finite and symmetric, but is {matrix.tolist()}.")
    return _root(what, matrix, positive)


def read_walks(system: System, varying: Any, predictor: Predictor, interval: float) -> dict[str, float | str]:
    """What each parameter that drifts by a random walk moves by in ``interval`` seconds, as an entry of a :class:`Noise`.

    Raises
    ------
    TypeError, ValueError
        For what is no scalar parameter, no random walk, or a predictor without process noise.
    """
    if varying is None:
        return {}
    if not isinstance(varying, Mapping):
        raise TypeError(f"varying is {shown(varying)}; give a dict by parameter, such as {{'k': RandomWalk(scale=0.1)}}.")
    if isinstance(predictor, ProbabilisticKalman):
        raise ValueError(
            "varying: a ProbabilisticKalman has no process noise that could move a parameter; take ExtendedKalman or "
            "UnscentedKalman, or build an ODEFilter with varying= and call find_mode."
        )
    found: dict[str, float | str] = {}
    for name, value in varying.items():
        if not among(name, [n for n, shape in system.params.shapes.items() if shape == ()]):
            raise ValueError(
                f"varying names {shown(name)}; give scalar parameters of the system: {system.params}. For entries of vectors "
                "build an ODEFilter with varying= and call find_mode."
            )
        if name in system.states:
            raise ValueError(f"varying names {name!r}, which is a state as well; rename one of them.")
        if isinstance(value, RandomWalk):
            (scale, _) = value.values
            if not isinstance(scale, float | int):
                raise TypeError(f"varying[{name!r}] is {value!r}; a fit takes a number, or 'estimate' in place of the process.")
            value = scale * np.sqrt(interval)
        elif isinstance(value, Process):
            raise ValueError(
                f"varying[{name!r}] is {value!r}; a fit knows random walks alone: RandomWalk(scale=number), or 'estimate'. For "
                "others build an ODEFilter with varying= and call find_mode."
            )
        (found[name],) = _by_name("varying", {name: value}, [name], positive=True).entries
    return found


def _by_name(what: str, value: Mapping[str, Any], channels: Sequence[str], positive: bool) -> Noise:
    """Standard deviations by channel."""
    if isinstance(channels, Names):
        value = channels.spread(what, spread_numbers(channels, value))
    unknown = [k for k in value if k not in channels]
    missing = [c for c in channels if c not in value] if positive else []
    if unknown or missing:
        raise ValueError(
            f"{what} {f'names {unknown}' if unknown else f'lacks {missing}'}; give a standard deviation for {tuple(channels)}."
        )
    entries: list[float | str] = []
    for channel in channels:
        entry = value.get(channel, 0.0)
        if not isinstance(entry, str):
            if np.ndim(entry) or not np.isfinite(float(entry)) or float(entry) < 0 or (positive and float(entry) == 0):
                raise ValueError(
                    f"{what}[{channel!r}] is {entry!r}; give a {'positive' if positive else 'non-negative'} standard "
                    "deviation, the name of one in p_guess, or 'estimate'."
                )
            entry = float(entry)
        entries.append(entry)
    return Noise(tuple(entries))


def _root(what: str, matrix: np.ndarray, positive: bool) -> Noise:
    """Lower triangular root of a covariance, which may be singular."""
    values, vectors = np.linalg.eigh(matrix)
    small = 1e-12 * max(float(np.max(np.abs(values), initial=0.0)), 0.0)
    if values.min() < -small or (positive and values.min() <= small):
        kind = "positive definite" if positive else "positive semi-definite"
        raise ValueError(f"{what} must be {kind}, but its smallest eigenvalue is {values.min():.3g}.")
    if not np.any(matrix - np.diag(np.diag(matrix))):
        return Noise(tuple(float(s) for s in np.sqrt(np.diag(matrix))))
    triangle = np.linalg.qr((vectors * np.sqrt(np.maximum(values, 0.0))).T, mode="r").T
    root = triangle * np.where(np.diag(triangle) < 0, -1.0, 1.0)
    return Noise(tuple(float(root[i, j]) for i in range(len(root)) for j in range(i + 1)), full=True)


def check_substeps(name: str, substeps: Any) -> None:
    """A positive integer or ``"auto"``."""
    checked_substeps(substeps, f"{name}: ")


@dataclass(frozen=True, kw_only=True, eq=False)
class _Kalman:
    """What both Kalman predictors have in common."""

    Q: Any = 0.0
    R: Any = None
    substeps: int | Literal["auto"] = "auto"
    method: Literal["auto", "rk4", "implicit"] = "auto"

    def __post_init__(self) -> None:
        name = type(self).__name__
        check_substeps(name, self.substeps)
        checked_method(self.method, f"{name}: ")

    def noises(self, system: System) -> tuple[Noise, Noise | None]:
        """Process and measurement noise; None where the latter is not given."""
        process = read_noise("Q", self.Q, system.states, positive=False)
        return process, None if self.R is None else read_noise("R", self.R, system.outputs, positive=True)

    @property
    def points(self) -> tuple[float, float, float] | None:
        """Parameters of the sigma points, if there are any."""
        return None


@dataclass(frozen=True, kw_only=True, eq=False)
class ExtendedKalman(_Kalman):
    """Extended Kalman filter on Runge-Kutta or implicit steps, linearised with the exact derivative of the steps.

    Parameters
    ----------
    Q : covariance of the process noise, default 0
        Added once each sampling interval; in an interval longer than the median one, in proportion. A matrix (n_x, n_x) or a
        number (of which the identity is taken) is a covariance; a dict of standard deviations by state (those not named have
        none) may hold numbers, names of leaves of ``p_guess`` that are to be found, or ``"estimate"``; ``"estimate"`` alone
        finds one for every state. Noise that acts all the time grows less than in proportion over intervals that are no longer
        short beside the time constants of the system: of an irregular record a ``Q`` that is found is then too small.
    R : covariance of the measurement noise, optional
        The same for the outputs; a dict names all of them. By default estimated by maximum likelihood; the mean
        squared error of a free run does not depend on it.
    substeps : int or "auto", default "auto"
        Steps in a sampling interval (of median length). ``"auto"``: what :func:`simulate` needs at the guess and at the
        optimum, and more where the noise is so small that doubling them would move an unknown by a tenth of its standard error.
    method : {"auto", "rk4", "implicit"}, default "auto"
        Runge-Kutta steps, or the implicit ones of :func:`simulate` for stiff equations. ``"auto"`` chooses together with the
        substeps; with a number of these it takes Runge-Kutta steps.

    Notes
    -----
    With ``Q = 0`` and ``P0 = 0`` it is the free run, and its innovations are the output error. The initial state is that at
    the first sample, which is conditioned on before the first step. Filters that step first, as that of the reference does,
    are the same on a record with one missing sample before the first.

    Source: the extended Kalman filter in square-root form, with Potter's update of one output after the other (Bierman 1977).

    Examples
    --------
    >>> ExtendedKalman(Q={"v": 0.1}, R=1e-4, substeps=2)
    ExtendedKalman(Q={'v': 0.1}, R=0.0001, substeps=2, method='auto')
    """


@dataclass(frozen=True, kw_only=True, eq=False)
class UnscentedKalman(_Kalman):
    """Unscented Kalman filter on Runge-Kutta or implicit steps.

    Parameters
    ----------
    Q, R, substeps, method
        As for :class:`ExtendedKalman`.
    alpha, beta, kappa : float, default 1, 0, 0
        Scaled unscented transform: sigma points lie ``alpha sqrt(n + kappa)`` standard deviations from the mean; the centre
        has the weight ``1 - n / (alpha^2 (n + kappa))`` in the mean and ``1 - alpha^2 + beta`` more in the covariance. The
        default is Julier's choice without a centre, that of the reference.

    Notes
    -----
    Sigma points are drawn after a measurement, carried through all steps of an interval, and drawn anew around the
    prediction, process noise included, for the measurement. A negative weight of the centre takes covariance away; where
    more is taken than there is, the parameters count as impossible.

    Source: Wan and van der Merwe (2000); Julier (2002).

    Examples
    --------
    >>> UnscentedKalman(R=1e-4, kappa=1.0).points
    (1.0, 0.0, 1.0)
    """

    alpha: float = 1.0
    beta: float = 0.0
    kappa: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("alpha", "beta", "kappa"):
            value = getattr(self, name)
            if isinstance(value, bool):
                raise ValueError(f"UnscentedKalman: {name} is {value!r}; give a finite number.")
            number(value, f"UnscentedKalman: {name}")
        if self.alpha <= 0:
            raise ValueError(f"UnscentedKalman: alpha is {self.alpha!r}; it must be positive.")

    def noises(self, system: System) -> tuple[Noise, Noise | None]:
        """Process and measurement noise; None where the latter is not given."""
        if len(system.states) + self.kappa <= 0:
            raise ValueError(
                f"UnscentedKalman: kappa is {self.kappa!r} for {len(system.states)} states; it must be above "
                f"{-len(system.states)}."
            )
        return super().noises(system)

    @property
    def points(self) -> tuple[float, float, float] | None:
        """Parameters of the sigma points."""
        return float(self.alpha), float(self.beta), float(self.kappa)


@dataclass(frozen=True, kw_only=True, eq=False)
class ProbabilisticKalman:
    """The probabilistic ODE filter as a predictor: its process noise is what the solver does not know of the solution.

    Parameters
    ----------
    solver : EK0 or EK1, default EK1(order=4)
        With a number or ``"mle"`` or ``"dynamic"`` for the diffusion.
    R : covariance of the measurement noise, optional
        As for :class:`ExtendedKalman`, diagonal.
    substeps : int, default 2
        Filter steps in a sampling interval.

    Notes
    -----
    The errors of several outputs are each given those before it at the same sample.

    Examples
    --------
    >>> import pm_sysid as sid
    >>> sid.ProbabilisticKalman(solver=sid.EK1(order=3), R={"y": 1e-3}).substeps
    2
    """

    solver: Solver = field(default_factory=EK1)
    R: Any = None
    substeps: int = 2

    def __post_init__(self) -> None:
        if not isinstance(self.solver, Solver):
            raise TypeError(f"ProbabilisticKalman: solver is {type(self.solver).__name__}; give an EK0 or EK1.")
        check_substeps("ProbabilisticKalman", self.substeps)
        if isinstance(self.substeps, str):
            raise ValueError("ProbabilisticKalman: substeps is 'auto'; give a number, such as 2.")

    def noises(self, system: System) -> tuple[Noise, Noise | None]:
        """Process noise, of which it has none, and measurement noise."""
        noise = None if self.R is None else read_noise("R", self.R, system.outputs, positive=True)
        if noise is not None and noise.full:
            raise ValueError("R is not diagonal; a ProbabilisticKalman takes outputs with independent noise.")
        return Noise((0.0,) * len(system.states)), noise


type Predictor = ExtendedKalman | UnscentedKalman | ProbabilisticKalman


def as_predictor(value: Any) -> Predictor:
    """A predictor, or a solver as one."""
    if isinstance(value, Solver):
        return ProbabilisticKalman(solver=value)
    if not isinstance(value, ExtendedKalman | UnscentedKalman | ProbabilisticKalman):
        raise TypeError(
            f"predictor is {value!r}; give ExtendedKalman(...), UnscentedKalman(...), ProbabilisticKalman(...), or a solver "
            "such as EK1(3)."
        )
    return value
