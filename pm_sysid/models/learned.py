"""Laws that are learned: functions of a state whose shape no equation gives, linear in a vector of weights."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import ArrayLike
from pytensor.graph import graph_inputs
from pytensor.graph.basic import Constant, Variable
from scipy import optimize, stats
from scipy.interpolate import CubicSpline

from pm_sysid.arguments import count, number, shown
from pm_sysid.records.validation import real

#: Added to the covariance of a prior, relative to its variances: a factor of it exists whatever the length scale is.
JITTER = 1e-9
#: Of the standard deviation that a covariance function asks for, what a Hilbert basis has to make of it.
LEAST_SHARE = 0.9


class _Learned(ABC):
    """A function ``f(x; w)`` of one argument, linear in its weights, with a Gaussian process as prior."""

    #: Number of weights.
    size: int

    @abstractmethod
    def __call__(self, x: Any, w: Any) -> Any:
        """Value at ``x``."""

    @abstractmethod
    def _factor(self, cov: Any) -> Any:
        """Matrix, or vector where it is diagonal, that makes weights of a Gaussian process of standard normal numbers."""

    def prior(self, name: str, cov: Any) -> Any:
        """Weights whose function is a Gaussian process of mean zero, as a variable of the PyMC model on the context stack.

        Parameters
        ----------
        name : str
            Name of the weights in the model. The free variable is ``{name}_scaled``, standard normal.
        cov : pymc.gp.cov.Covariance
            Covariance function of the law in one dimension, such as ``4.0 * pm.gp.cov.Matern52(1, ls=0.1)``: the variance
            (the square of the law's unit) and the length scale (the unit of its argument). Both may be variables.

        Returns
        -------
        TensorVariable, shape (size,)

        Raises
        ------
        TypeError
            Outside a model; for something that is no covariance function of one dimension.
        """
        if not isinstance(name, str) or not name:
            raise TypeError(f"name is {shown(name)}; give the name of the weights, such as 'w'.")
        if not isinstance(cov, pm.gp.cov.Covariance) or cov.n_dims != 1:
            raise TypeError(
                f"cov is {shown(cov)}; give a covariance function in one dimension, such as pm.gp.cov.Matern52(1, ls=0.1)."
            )
        pm.modelcontext(None)
        factor = self._factor(cov)
        scaled = pm.Normal(f"{name}_scaled", shape=self.size)
        return pm.Deterministic(name, factor @ scaled if factor.ndim == 2 else factor * scaled)

    def _given(self, x: Any, w: Any) -> tuple[Any, Any, Any]:
        """Argument and weights as tensors or as arrays of finite numbers, and the module that computes with them."""
        symbolic = isinstance(x, Variable) or isinstance(w, Variable)
        x, w = (v if isinstance(v, Variable) else _finite(v, name) for name, v in (("x", x), ("w", w)))
        shape = w.type.shape if isinstance(w, Variable) else w.shape
        if len(shape) != 1 or shape[0] not in (None, self.size):
            raise ValueError(f"w has the shape {tuple(shape)}; {self!r} has {self.size} weights, one vector of them.")
        return x, pt.as_tensor_variable(w) if symbolic else w, pt if symbolic else np


class Spline(_Learned):
    """A natural cubic spline through unknown values at given knots, as a law inside a :class:`System`.

    Parameters
    ----------
    knots : array, shape (n,)
        Rising places (in the unit of the argument), three to 60 of them. Let them reach a knot beyond what the record visits:
        the curvature at the first and the last knot is zero.

    Raises
    ------
    ValueError, TypeError
        For knots that are not finite, do not rise, or are too few or too many.

    Notes
    -----
    The weights ``w`` are the values of the law at the knots, in the law's own unit, so that a prior can be read from a rig.
    Between the knots the law is the smoothest curve through these values, with two continuous derivatives. Beyond the first and
    the last knot it goes on as a straight line: an extrapolation, which the prior's band does not cover.

    A law learned together with a linear term of the same argument cannot be told from it. Leave the linear term out, or give
    one of the two a narrow prior.

    Examples
    --------
    An oscillator whose spring has no formula:

    >>> import numpy as np, pymc as pm, pm_sysid as sid
    >>> spring = sid.Spline(np.linspace(-0.3, 0.3, 7))
    >>> system = sid.System(
    ...     lambda t, x, u, p: (x.v, (u.F - p.c * x.v - spring(x.z, p.w)) / p.m),
    ...     states=("z", "v"),
    ...     inputs=("F",),
    ...     params={"m": (), "c": (), "w": spring.size},
    ...     observe=lambda t, x, dx, u, p: x.z,
    ... )
    >>> with pm.Model() as model:
    ...     w = spring.prior("w", 0.5**2 * pm.gp.cov.Matern52(1, ls=0.2))
    >>> float(spring(0.1, spring.knots**3)) == 0.1**3
    False
    >>> bool(abs(spring(0.1, spring.knots**3) - 0.1**3) < 1e-9)  # a knot
    True
    """

    def __init__(self, knots: ArrayLike) -> None:
        places = real(knots, "knots")
        if places.ndim != 1 or not 3 <= places.size <= 60 or not np.isfinite(places).all() or not (np.diff(places) > 0).all():
            raise ValueError(f"knots is {shown(knots)}; give 3 to 60 finite, rising places, such as np.linspace(-1, 1, 9).")
        #: Places where the weights are the values of the law.
        self.knots = places
        self.size = places.size
        #: Width of the knots: the cubes are those of shares of it.
        self._width = float(places[-1] - places[0])
        shares = (places - places[0]) / self._width
        spline = CubicSpline(shares, np.eye(self.size), bc_type="natural")
        #: Of each weight: slopes at both ends, and the jump of the third derivative at each knot but the last, over six.
        self._ends = spline(shares[[0, -1]], 1)
        self._bends = np.diff(np.concatenate([np.zeros((1, self.size)), spline.c[0]]), axis=0)

    def __call__(self, x: Any, w: Any) -> Any:
        """Value of the law.

        Parameters
        ----------
        x : tensor or array
            Argument: a state inside a system, or places where to draw the law.
        w : tensor or array, shape (size,)
            Values at the knots.

        Returns
        -------
        tensor or array
            Of the shape of ``x``.

        Raises
        ------
        ValueError, TypeError
            For another number of weights; for what is no finite number.
        """
        x, w, m = self._given(x, w)
        # What the weights alone decide is computed once a parameter set: straight lines, and a cube from each knot on.
        (first, last), bends = (self._ends * w).sum(axis=-1), (self._bends * w).sum(axis=-1)
        s = (x - self.knots[0]) / self._width
        inside = m.minimum(m.maximum(s, 0.0), 1.0)
        law = w[0] + first * m.minimum(s, inside) + last * m.maximum(s - 1.0, 0.0)
        for bend, knot in zip((bends[i] for i in range(self.size - 1)), self.knots, strict=False):
            law = law + bend * m.maximum(inside - (knot - self.knots[0]) / self._width, 0.0) ** 3
        return law

    def _factor(self, cov: Any) -> Any:
        matrix = cov(self.knots[:, None])
        return pt.linalg.cholesky(matrix + JITTER * pt.mean(pt.diagonal(matrix)) * np.eye(self.size))

    def __repr__(self) -> str:
        return f"Spline(knots={shown(self.knots)})"


class HilbertBasis(_Learned):
    """A Hilbert-space Gaussian process in an interval, as a law inside a :class:`System`.

    The law is ``f(x) = sum_j w_j sin(j theta) / sqrt(L)`` with ``theta = pi (x - centre + L) / (2 L)``.

    Parameters
    ----------
    lower, upper : float
        Smallest and largest argument that the record visits.
    size : int, default 20
        Number of sines. About ``1.75 boundary (upper - lower) / (2 length)`` resolve a length scale.
    boundary : float, default 1.5
        ``L`` in units of half of the interval: the law is zero ``L`` away from the centre and beyond. A long length scale needs
        about ``6.4 length / (upper - lower)``.

    Raises
    ------
    ValueError, TypeError
        If ``lower`` is not below ``upper``, `size` is not from 2 to 60, or `boundary` is not above 1.

    Notes
    -----
    Source: Solin and Sarkka (2020), "Hilbert space methods for reduced-rank Gaussian process regression", Statistics and
    Computing 30, equations (30) and (56). The weights are independent, with the square root of the spectral density of the
    covariance function as their standard deviation; ``pm.gp.HSGP`` has the same prior. The law returns to zero at the
    boundary, whatever the truth is, and has too small a variance near it: :meth:`prior` refuses a basis that does not make the
    covariance function that it is given, as far as that is known in numbers. Where its length scale is a variable, choose
    boundary and size for the longest and shortest one.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pm_sysid as sid
    >>> friction = sid.HilbertBasis(-0.1, 0.1, size=12)
    >>> with pm.Model() as model:
    ...     w = friction.prior("w", 20.0**2 * pm.gp.cov.ExpQuad(1, ls=0.02))
    >>> w.eval().shape, friction(np.linspace(-0.1, 0.1, 5), np.ones(12)).shape
    ((12,), (5,))
    """

    def __init__(self, lower: float, upper: float, size: int = 20, boundary: float = 1.5) -> None:
        low = number(lower, "lower", "give the smallest argument, such as -0.1")
        high = number(upper, "upper", "give the largest argument, such as 0.1")
        if not low < high:
            raise ValueError(f"lower is {lower!r} and upper {upper!r}; give two numbers, the smaller first.")
        self.size = count(size, "size", 2, 60)
        share = number(boundary, "boundary", "give a number above 1, such as 1.5")
        if not 1 < share < 1e6:
            raise ValueError(f"boundary is {boundary!r}; give a number above 1, such as 1.5.")
        #: Interval of the argument, and half the width of the basis.
        self.lower, self.upper, self.half_width = low, high, share * (high - low) / 2

    @property
    def frequencies(self) -> np.ndarray:
        """Angular frequencies of the sines, shape (size,), in radians per unit of the argument."""
        return np.arange(1, self.size + 1) * (math.pi / (2 * self.half_width))

    def __call__(self, x: Any, w: Any) -> Any:
        """Value of the law, as :meth:`Spline.__call__`."""
        x, w, m = self._given(x, w)
        centre, L = (self.lower + self.upper) / 2, self.half_width
        theta = (math.pi / (2 * L)) * (m.minimum(m.maximum(x - centre, -L), L) + L)
        # sin((j + 1) theta) = 2 cos(theta) sin(j theta) - sin((j - 1) theta): two calls in place of one for each sine.
        twice, before, sine = 2 * m.cos(theta), 0.0, m.sin(theta)
        law = w[0] * sine
        for j in range(1, self.size):
            before, sine = sine, twice * sine - before
            law = law + w[j] * sine
        return law / math.sqrt(L)

    def _factor(self, cov: Any) -> Any:
        try:
            factor = pt.sqrt(cov.power_spectral_density(self.frequencies[:, None]))
        except (AttributeError, NotImplementedError, ValueError) as error:
            raise TypeError(
                f"cov is {shown(cov)}, which has no spectral density; give pm.gp.cov.ExpQuad, Matern32 or Matern52, times a "
                "number or a variable, or take a Spline."
            ) from error
        if all(isinstance(v, Constant) for v in graph_inputs([factor])):
            self._check_reach(cov, factor.eval())
        return factor

    def _check_reach(self, cov: Any, sd: np.ndarray) -> None:
        """Refuse a basis that cannot make the process that was asked for, at the centre or the ends of the interval."""
        places = np.array([self.lower, (self.lower + self.upper) / 2, self.upper])
        made = np.sqrt(sum((s * self(places, unit)) ** 2 for s, unit in zip(sd, np.eye(self.size), strict=True)))
        share = made / np.sqrt(np.diag(cov(places[:, None]).eval()))
        if share.min() < LEAST_SHARE:
            raise ValueError(
                f"with this cov the basis has {100 * share[1]:.0f} % of the standard deviation at the centre of "
                f"[{self.lower:g}, {self.upper:g}] and {100 * min(share[0], share[2]):.0f} % at an end; give a larger "
                "boundary for a long length scale (at least 3.2 times it over half of the interval), and a larger size for a "
                "short one (at least 1.75 boundary times half of the interval over it)."
            )

    def __repr__(self) -> str:
        share = 2 * self.half_width / (self.upper - self.lower)
        return f"HilbertBasis({self.lower!r}, {self.upper!r}, size={self.size}, boundary={share:g})"


class Library:
    """Candidate terms of a law, each with a weight of which most may be zero: sparse regression inside a :class:`System`.

    Parameters
    ----------
    terms : mapping of str to callable
        Functions of the same arguments, by name, such as ``{"z": lambda z, v: z, "z^3": lambda z, v: z**3}``. They are
        called with tensors inside a system and with arrays where the law is drawn: write ``abs`` and operators, or
        ``pytensor.tensor`` functions.

    Raises
    ------
    TypeError, ValueError
        For something else, or no term.

    Examples
    --------
    >>> import pymc as pm, pm_sysid as sid
    >>> law = sid.Library(
    ...     {"z": lambda z, v: z, "z^3": lambda z, v: z**3, "v|v|": lambda z, v: v * abs(v)}
    ... )
    >>> law(2.0, -1.0, [1.0, 0.5, 3.0])
    3.0
    >>> with pm.Model() as model:
    ...     w = law.prior("w", sizes=[100.0, 1e4, 0.1], terms=2)
    >>> w.eval().shape
    (3,)
    """

    def __init__(self, terms: Mapping[str, Callable[..., Any]]) -> None:
        if not isinstance(terms, Mapping) or not all(isinstance(k, str) and callable(f) for k, f in terms.items()):
            raise TypeError(f"terms is {shown(terms)}; give functions by name, such as {{'z^3': lambda z, v: z**3}}.")
        if not terms:
            raise ValueError("terms is empty; give at least one function by name.")
        #: Functions by name.
        self.terms = dict(terms)

    @property
    def size(self) -> int:
        """Number of weights."""
        return len(self.terms)

    def __call__(self, *arguments: Any) -> Any:
        """Value of the law: the arguments of the terms, then the weights, shape (size,)."""
        if len(arguments) < 2:
            raise TypeError(
                "a Library is called with the arguments of its terms and then the weights, such as law(x.z, x.v, p.w)."
            )
        *x, w = arguments
        shape = w.type.shape if isinstance(w, Variable) else np.shape(w)
        if len(shape) != 1 or shape[0] not in (None, self.size):
            raise ValueError(f"w has the shape {tuple(shape)}; the library has {self.size} terms and a weight for each.")
        return sum(w[i] * f(*x) for i, f in enumerate(self.terms.values()))

    def prior(self, name: str, sizes: ArrayLike, *, terms: float = 2.0, negligible: float = 0.03, slab: float = 4.0) -> Any:
        """Weights with the regularised horseshoe prior, as a variable of the PyMC model on the context stack.

        Parameters
        ----------
        name : str
            Name of the weights. Its free variables are ``{name}_scaled``, ``{name}_local``, ``{name}_global`` and
            ``{name}_slab``.
        sizes : array, shape (size,)
            A weight of each term that would matter: the typical size of the law over that of the term, in the weight's unit.
        terms : float, default 2
            Number of terms that are expected to matter: the prior mean of the effective number of weights, those that are not
            shrunk to zero.
        negligible : float, default 0.03
            Share of its size at which a weight can just be told from zero: about the noise over the size of the term, over the
            root of the number of samples.
        slab : float, default 4
            A term that matters has a weight of about as much as `slab` sizes, at most.

        Returns
        -------
        TensorVariable, shape (size,)

        Raises
        ------
        TypeError, ValueError
            Outside a model; for sizes that are not positive or of another number; for `terms` outside (0, size); for
            `negligible` or `slab` that are not positive.

        Notes
        -----
        Source: Piironen and Vehtari (2017), "Sparsity information and regularization in the horseshoe and other shrinkage
        priors", Electronic Journal of Statistics 11, with half-t distributions of three degrees of freedom for the local and
        global scales instead of half-Cauchy, whose tails cost samplers more. The scale of the global one is found from the
        effective number of weights, ``sum_j a_j^2 / (1 + a_j^2)`` with ``a_j`` the standard deviation of a weight in units of
        what is negligible, whose prior mean is `terms`.
        """
        if not isinstance(name, str) or not name:
            raise TypeError(f"name is {shown(name)}; give the name of the weights, such as 'w'.")
        unit = real(sizes, "sizes")
        if unit.shape != (self.size,) or not np.isfinite(unit).all() or not (unit > 0).all():
            raise ValueError(f"sizes is {shown(sizes)}; give {self.size} positive numbers, one for each of {list(self.terms)}.")
        expected = number(terms, "terms", "give the number of terms that are expected to matter, such as 2")
        if not 1e-6 <= expected < self.size:
            raise ValueError(f"terms is {terms!r}; give a number from 1e-6 to below that of the terms, {self.size}.")
        least = number(negligible, "negligible", "give a positive number, such as 0.03")
        if not 0 < least < 1e30:
            raise ValueError(f"negligible is {negligible!r}; give a positive number, such as 0.03.")
        width = number(slab, "slab", "give a positive number, such as 4")
        if not 0 < width < 1e30:
            raise ValueError(f"slab is {slab!r}; give a positive number, such as 4.")
        pm.modelcontext(None)
        scaled = pm.Normal(f"{name}_scaled", shape=self.size)
        local = pm.HalfStudentT(f"{name}_local", nu=3, shape=self.size)
        overall = pm.HalfStudentT(f"{name}_global", nu=3, sigma=least * _global_scale(expected / self.size))
        square = pm.InverseGamma(f"{name}_slab", alpha=2.0, beta=2.0) * width**2
        shrunk = pt.sqrt(square) * local / pt.sqrt(square + (overall * local) ** 2)
        return pm.Deterministic(name, unit * scaled * overall * shrunk)

    def __repr__(self) -> str:
        return f"Library({', '.join(self.terms)})"


def _finite(value: Any, name: str) -> np.ndarray:
    """Finite real numbers, or an error that names the argument."""
    array = real(value, name)
    if not np.isfinite(array).all():
        raise ValueError(f"{name} is {shown(value)}; give finite numbers.")
    return array


def _global_scale(share: float) -> float:
    """Scale of the global half-t, in units of what is negligible, at which this share of the weights is not shrunk."""
    half_t = stats.t(3).ppf(0.5 + (np.arange(400) + 0.5) / 800)
    products = np.outer(half_t, half_t) ** 2

    def excess(logarithm: float) -> float:
        a = np.exp(2 * logarithm) * products
        return float(np.mean(a / (1 + a))) - share

    return float(np.exp(optimize.brentq(excess, -30.0, 30.0)))
