"""Measurement noise as a user gives it: standard deviations, heavy tails, a covariance, a function of the output, limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt
from pytensor.graph import ancestors, graph_replace
from pytensor.graph.basic import Constant, Variable

from pm_sysid.arguments import among, number, shown
from pm_sysid.records.timeseries import TimeSeries
from pm_sysid.records.validation import real
from pm_sysid.solve.by_record import noise_by_record
from pm_sysid.solve.checks import vector
from pm_sysid.steps.sensors import Limits, Rule, Sensor, Sensors
from pm_sysid.symbolic.lowering import lower
from pm_sysid.symbolic.scalars import as_variable, symbol, symbols
from pm_sysid.symbolic.scales import not_negative
from pm_sysid.symbolic.system import System

#: Degrees of freedom for which the mixture that stands for a t distribution is good.
FREEDOM = 1.0, 50.0
#: Share of the size of a covariance's entries up to which it may be unsymmetric, as products of matrices are.
ROUNDING = 1e-10


class StudentT:
    """Measurement noise with the tails of a t distribution: a few outliers do not move the estimates.

    Parameters
    ----------
    nu : number from 1 to 50, or PyMC variable
        Degrees of freedom; 4 suits most records. The larger, the nearer to Gaussian noise.
    scale : number, PyMC variable, or one for each output
        Scale, in the unit of the output: about the standard deviation of the samples that are no outliers. The standard
        deviation of all noise is ``scale * sqrt(nu / (nu - 2))``.

    Raises
    ------
    ValueError, TypeError
        For numbers out of range.

    Notes
    -----
    A t distribution is a normal one whose precision has a Gamma distribution. The filter integrates over the precision of each
    sample by quadrature (23 normal distributions, seven of them where the precision of that sample is likely to be), and keeps
    the mean and the covariance of the states, which are exact at that sample; that later samples see a Gaussian is the
    approximation. The smoothed states treat every sample so, too.

    Source: Lange, Little and Taylor (1989), Robust statistical modeling using the t distribution; assumed density filtering as
    in Sarkka (2013), Bayesian filtering and smoothing, Section 6.

    Examples
    --------
    >>> import pm_sysid as sid
    >>> sid.StudentT(nu=4, scale=0.1)
    StudentT(nu=4.0, scale=0.1)
    """

    def __init__(self, *, nu: Any, scale: Any) -> None:
        low, high = FREEDOM
        if isinstance(nu, Variable):
            if nu.type.ndim:  # type: ignore[attr-defined]
                raise ValueError(f"StudentT: nu has {nu.type.ndim} dimensions; give a scalar variable.")  # type: ignore[attr-defined]
        else:
            nu = number(nu, "StudentT: nu", f"give a number from {low:g} to {high:g}")
            if not low <= nu <= high:
                more = "; for more, Gaussian noise is the same" if nu > high else ""
                raise ValueError(f"StudentT: nu is {nu!r}; give a number from {low:g} to {high:g}{more}.")
        self.nu, self.scale = nu, _scale(scale)

    def __repr__(self) -> str:
        nu, scale = (getattr(v, "name", None) or v for v in (self.nu, self.scale))
        return f"StudentT(nu={nu}, scale={scale})"


def _scale(value: Any) -> Any:
    """Scales as they are given; what is no variable is a positive number, or several."""
    parts = list(value) if isinstance(value, list | tuple) else [value]
    for part in parts:
        if isinstance(part, Variable):
            continue
        remedy = "give a positive number, a PyMC variable, or one for each output"
        for v in part.ravel() if isinstance(part, np.ndarray) and part.ndim else [part]:
            if not number(v, "StudentT: scale", remedy) > 0:
                raise ValueError(f"StudentT: scale is {shown(value)}; {remedy}.")
    return value


class Correlated:
    """Gaussian measurement noise that is correlated between the outputs: a covariance, or its Cholesky factor.

    Parameters
    ----------
    cov : array or PyMC variable, shape (n_y, n_y), optional
        Covariance, in the order of the outputs and the products of their units.
    chol : array or PyMC variable, shape (n_y, n_y), optional
        Lower triangular factor L of the covariance ``L L'``, such as the first result of ``pm.LKJCholeskyCov``. Give one of the
        two.

    Raises
    ------
    ValueError, TypeError
        If not exactly one is given; for arrays that are no covariance or no factor.

    Notes
    -----
    The outputs of a sample are taken one after the other: with a triangular factor of the covariance, combinations of them have
    independent noise. A missing output is left out of the factor, so that the others count as they should.

    Examples
    --------
    >>> import pm_sysid as sid
    >>> sid.Correlated(cov=[[0.04, 0.01], [0.01, 0.09]])
    Correlated(2 outputs)
    """

    def __init__(self, *, cov: Any = None, chol: Any = None) -> None:
        if (cov is None) == (chol is None):
            found = "neither cov nor chol is" if cov is None else "both cov and chol are"
            raise ValueError(f"Correlated: {found} given; give one of the two.")
        name, value = ("cov", cov) if chol is None else ("chol", chol)
        if not isinstance(value, Variable):
            value = _matrix(name, value)
        elif value.type.ndim != 2:  # type: ignore[attr-defined]
            raise ValueError(f"Correlated: {name} has {value.type.ndim} dimensions; give a square matrix.")  # type: ignore[attr-defined]
        self.name, self.value = name, value

    def __repr__(self) -> str:
        return f"Correlated({self.value.name if isinstance(self.value, Variable) else f'{len(self.value)} outputs'})"

    def covariance(self, n_y: int) -> Any:
        """The covariance as an expression, of the size that is asked for."""
        shape = self.value.type.shape if isinstance(self.value, Variable) else self.value.shape
        if any(found not in (None, n_y) for found in shape):
            raise ValueError(f"noise: {self.name} of Correlated has the shape {shape}; the outputs ask for ({n_y}, {n_y}).")
        value = pt.as_tensor_variable(self.value)
        return value if self.name == "cov" else value @ value.T  # type: ignore[attr-defined]


def _matrix(name: str, value: Any) -> np.ndarray:
    """Numbers of a covariance or of a factor, checked."""
    try:
        matrix = real(value, name)
    except (TypeError, ValueError):
        raise TypeError(
            f"Correlated: {name} is {shown(value)}; give a square matrix of numbers or a variable (pm.LKJCholeskyCov returns "
            "several: the factor is the first)."
        ) from None
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not len(matrix):
        raise ValueError(f"Correlated: {name} has the shape {matrix.shape}; give a square matrix, a row for each output.")
    if not np.isfinite(matrix).all():
        raise ValueError(f"Correlated: {name} has entries that are not finite; give finite numbers.")
    if name == "chol":
        if np.triu(matrix, 1).any():
            raise ValueError("Correlated: chol is not lower triangular; give its transpose, or the covariance as cov=....")
        if not (np.diag(matrix) > 0).all():
            raise ValueError("Correlated: chol has a diagonal that is not positive; give a Cholesky factor.")
        return matrix
    if np.abs(matrix - matrix.T).max() > ROUNDING * np.abs(matrix).max():
        raise ValueError("Correlated: cov is not symmetric; give a covariance, or its factor as chol=....")
    size = np.sqrt(np.abs(np.diag(matrix)))
    scaled = matrix / np.where(np.outer(size, size) > 0, np.outer(size, size), 1.0)
    if np.linalg.eigvalsh(scaled)[0] < 1e-14:
        raise ValueError("Correlated: cov is not positive definite; give a covariance of noise that every output has.")
    return matrix


class Noise(NamedTuple):
    """Sensors, and their vector as an expression: (n,), or (R, n) where records have standard deviations of their own.

    After the standard deviations come the entries of the sensors, shared by all records. A function of the output stands among
    the standard deviations with its value where the record's root mean square is.
    """

    sensors: Sensors
    values: Any
    entries: list[Any]


def measurement_noise(system: System, noise: Any, limits: Any, records: Sequence[TimeSeries]) -> Noise:
    """What the user said of noise and limits, checked."""
    bounds = _limits(system, limits, records)
    n_y, outputs = len(system.outputs), system.outputs
    if isinstance(noise, Correlated):
        if any(bound != (None, None) for bound in bounds):
            raise ValueError(
                "limits are given with Correlated noise; a censored sample needs noise of its own: give each output a number "
                "or variable, or leave out limits."
            )
        cov = noise.covariance(n_y)
        entries = [cov[i, j] for i in range(n_y) for j in range(i + 1)]
        return Noise(Sensors(correlated=True), vector([pt.sqrt(cov[i, i]) for i in range(n_y)]), entries)
    noise = _traced(noise)
    given: Any = noise
    kinds: dict[str, Any] = dict.fromkeys(outputs)
    if isinstance(noise, StudentT):
        given, kinds = noise.scale, dict.fromkeys(outputs, noise)
    elif isinstance(noise, Traced):
        given, kinds = dict.fromkeys(outputs, noise), dict.fromkeys(outputs, noise)
    elif isinstance(noise, Mapping):
        for name, value in noise.items():
            if isinstance(value, Correlated):
                raise ValueError(f"noise[{name!r}] is {value!r}, which is for all outputs; give noise=Correlated(...).")
            if isinstance(value, StudentT | Traced):
                labels = [o for o in outputs if o == name or outputs.owner(o) == name]
                kinds |= dict.fromkeys(labels, value)
    if isinstance(given, Mapping):
        given = {k: v.scale if isinstance(v, StudentT) else v for k, v in given.items()}
        given = {k: _typical(outputs, k, v, records) if isinstance(v, Traced) else v for k, v in given.items()}
    values = noise_by_record(system, _not_negative(given), len(records))
    sensors, entries = [], []
    for name, bound in zip(outputs, bounds, strict=True):
        kind, rule = kinds[name], None
        if isinstance(kind, StudentT):
            entries.append(kind.nu)
        elif kind is not None:
            rule, leaves = _rule(kind)
            entries += leaves
        sensors.append(Sensor(bound, isinstance(kind, StudentT), rule))
    if all(sensor == Sensor() for sensor in sensors):
        sensors = []
    return Noise(Sensors(tuple(sensors)), values, entries)


def _not_negative(noise: Any) -> Any:
    """Standard deviations without values where a variable among them is negative."""
    if isinstance(noise, Mapping):
        return {name: not_negative(v) for name, v in noise.items()}
    return [not_negative(v) for v in noise] if isinstance(noise, list | tuple) else not_negative(noise)


def shared_noise(noise: Any) -> Any:
    """What may be one standard deviation for outputs of unlike size: not a function of the output, nor a covariance."""
    return noise.scale if isinstance(noise, StudentT) else {} if _is_rule(noise) or isinstance(noise, Correlated) else noise


# -- noise that depends on the output ---------------------------------------------------------------------------------


def _is_rule(value: Any) -> bool:
    return callable(value) and not isinstance(value, Variable | type)


class Traced(NamedTuple):
    """A function of the output as the expression that it returned for the symbol ``y``; ``name`` is what it was given for."""

    name: str
    y: Variable
    std: Variable

    def at(self, y: float) -> Any:
        """Standard deviation at a value of the output, as an expression."""
        return graph_replace([self.std], {self.y: pt.constant(y, dtype="float64")})[0]


def _traced(noise: Any) -> Any:
    """Noise in which functions have been called, each once, since they may create variables of the model."""
    if _is_rule(noise):
        return _called("noise", noise)
    if isinstance(noise, Mapping):
        made: dict[int, Traced] = {}
        for k, v in noise.items():
            if _is_rule(v) and id(v) not in made:
                made[id(v)] = _called(f"noise[{k!r}]", v)
        return {k: made[id(v)]._replace(name=f"noise[{k!r}]") if id(v) in made else v for k, v in noise.items()}
    if isinstance(noise, list | tuple) and any(isinstance(v, StudentT | Correlated) or _is_rule(v) for v in noise):
        raise TypeError("noise is a list that holds StudentT, Correlated or a function; give a dict of them by output.")
    return noise


def check_plain_noise(
    noise: Any, what: str = "noise", remedy: str = "give standard deviations: a number, a PyMC variable, or one for each output"
) -> None:
    """Refuse noise that only an :class:`ODEFilter` takes."""
    values = noise.values() if isinstance(noise, Mapping) else noise if isinstance(noise, list | tuple) else [noise]
    for value in values:
        if isinstance(value, StudentT | Correlated) or _is_rule(value):
            found = "a function" if _is_rule(value) else repr(value)
            raise TypeError(f"{what} is or holds {found}, which only ODEFilter takes; {remedy}.")


def _called(name: str, function: Callable[[Any], Any]) -> Traced:
    """Standard deviation at an output, as an expression."""
    y = pt.dscalar("y")
    try:
        found = function(y)
    except TypeError as error:
        raise TypeError(
            f"{name} is a function that cannot be called with a symbol ({error}); let it take the output alone, and write it "
            "with functions of PyMC: pm.math.sqrt in place of math.sqrt, pm.math.switch in place of if."
        ) from error
    if not isinstance(found, Variable):
        found = pt.as_tensor_variable(number(found, name, "let the function return a standard deviation"))
    if found.type.ndim:  # type: ignore[attr-defined]
        raise ValueError(
            f"{name} returns {found.type.ndim} dimensions; let it return a scalar standard deviation."  # type: ignore[attr-defined]
        )
    if y not in set(ancestors([found])):
        raise ValueError(f"{name} is a function that does not use the output; give the standard deviation itself.")
    return Traced(name, y, found)


def _rule(traced: Traced) -> tuple[Rule, list[Any]]:
    """The function of a user as a scalar expression of the output, and the variables of the model it holds."""
    name, y, expression = traced
    leaves: list[Any] = []

    def collect(v: Variable) -> None:
        if v is y or isinstance(v, Constant) or v in leaves:
            return
        if y in set(ancestors([v])):
            assert v.owner is not None
            for parent in v.owner.inputs:
                collect(parent)
        elif v.type.ndim:  # type: ignore[attr-defined]
            raise ValueError(f"{name} holds {v}, which is no scalar; give one entry of it.")
        else:
            leaves.append(v)

    collect(expression)
    symbol_y, entries = symbol("y"), symbols("noise", len(leaves))
    std = lower([expression], [y, *leaves], [symbol_y, *entries])[0][()]
    return Rule(symbol_y, tuple(entries), as_variable(std)), leaves


def _typical(outputs: Sequence[str], name: str, traced: Traced, records: Sequence[TimeSeries]) -> Any:
    """Its value at the root mean square of an output."""
    columns = np.concatenate([r.output_matrix for r in records])
    own = [i for i, o in enumerate(outputs) if o == name or o.startswith(f"{name}[")]
    seen = columns[:, own]
    seen = seen[np.isfinite(seen)]
    size = float(np.sqrt(np.mean(seen**2))) if seen.size else 1.0
    value = traced.at(size)
    if _rule(traced)[1]:
        return value
    for at in (size, *((float(seen.min()), float(seen.max())) if seen.size else ())):
        found = float(traced.at(at).eval())
        if not (np.isfinite(found) and found > 0):
            raise ValueError(
                f"{traced.name} is {found!r} where the output is {at:g}; a standard deviation must be positive: add a floor, "
                "such as pt.sqrt(0.01**2 + (0.05 * y)**2)."
            )
    return float(value.eval())


# -- limits -----------------------------------------------------------------------------------------------------------


def _limits(system: System, limits: Any, records: Sequence[TimeSeries]) -> list[Limits]:
    """Lower and upper limit of each output; None where there is none."""
    outputs = system.outputs
    if limits is None:
        return [(None, None)] * len(outputs)
    if not isinstance(limits, Mapping):
        if len(outputs) > 1:
            raise TypeError(
                f"limits is {shown(limits)}; for several outputs give a dict of (lower, upper) by output: {list(outputs)}."
            )
        limits = {outputs[0]: limits}
    if unknown := [name for name in limits if not among(name, outputs)]:
        raise ValueError(f"limits names {shown(unknown[0])}; give outputs of the system: {list(outputs)}.")
    bounds = []
    for i, name in enumerate(outputs):
        lower, upper = _pair(name, limits.get(name))
        y = np.concatenate([record.output_matrix[:, i] for record in records])
        y = y[~np.isnan(y)]
        inside = (y > (-np.inf if lower is None else lower)) & (y < (np.inf if upper is None else upper))
        if y.size and not inside.any():
            raise ValueError(
                f"limits[{name!r}] is {(lower, upper)}, and every sample is at a limit or beyond; give the limits in the unit "
                "of the output."
            )
        bounds.append((lower, upper))
    return bounds


def _pair(name: str, value: Any) -> Limits:
    """Two limits, of which one may be None or infinite."""
    if value is None:
        return None, None
    remedy = "give (lower, upper), with None where there is no limit"
    if isinstance(value, str | Mapping) or not np.iterable(value) or len(list(value)) != 2:
        raise TypeError(f"limits[{name!r}] is {shown(value)}; {remedy}.")
    found: list[float | None] = []
    for v, none in zip(value, (-np.inf, np.inf), strict=True):
        infinite = isinstance(v, float | np.floating) and v == none
        found.append(None if v is None or infinite else number(v, f"limits[{name!r}]", remedy))
    lower, upper = found
    if lower is not None and upper is not None and not lower < upper:
        raise ValueError(f"limits[{name!r}] is {(lower, upper)}; the lower limit must be below the upper one.")
    return lower, upper
