"""Are ranks uniform? Exact tests of a calibration, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import arviz_stats
import numpy as np
import scipy
import xarray as xr
from numpy.typing import NDArray

from pm_sysid.arguments import words
from pm_sysid.idata import group

__all__ = ["CalibrationTests", "calibration_tests"]

type FloatArray = NDArray[np.float64]

_arviz: Any = arviz_stats  # without types
#: Chance with which the tests find what they say they would find.
POWER = 0.9
#: Convergence statistic above which a fit is counted as not converged.
R_HAT = 1.05


@dataclass(frozen=True, repr=False)
class CalibrationTests:
    """Outcome of :func:`calibration_tests`; printing it gives a table and a verdict.

    Attributes
    ----------
    parameters : tuple of str
        What was ranked.
    fits, failed, unconverged : int
        Fits in all, those that failed and are left out, and those with an ``r_hat`` above 1.05, which are not.
    level : float
        Probability that posteriors which are right pass all tests.
    uniform_p, location_p, width_p : ndarray, shape (parameters,)
        P-values: of uniform ranks (ArviZ's ``pot_c``), of their location, and of their spread.
    location, width : ndarray, shape (parameters,)
        Mean and root mean square of the normal scores of the ranks: 0 and 1 if right. A width of 1.2 says that posterior
        standard deviations are too small by about that factor.
    z_mean, z_sd : ndarray, shape (parameters,)
        Mean and root mean square of the z-scores; 0 and 1 if right, but not normal where posteriors are not.
    coverage : ndarray, shape (parameters, 2)
        Share of the fits whose central 50 % and 90 % interval has the truth.
    contraction : ndarray, shape (parameters,)
        Median of 1 less the quotient of posterior and prior variance: near 0 where the data say nothing.
    """

    parameters: tuple[str, ...]
    fits: int
    failed: int
    unconverged: int
    level: float
    uniform_p: FloatArray
    location_p: FloatArray
    width_p: FloatArray
    location: FloatArray
    width: FloatArray
    z_mean: FloatArray
    z_sd: FloatArray
    coverage: FloatArray
    contraction: FloatArray

    @property
    def threshold(self) -> float:
        """P-value below which a test fails: the level shared out among all tests (Bonferroni)."""
        return (1 - self.level) / (3 * len(self.parameters))

    @property
    def passed(self) -> bool:
        """Whether no test fails."""
        return bool(np.min([self.uniform_p, self.location_p, self.width_p]) > self.threshold)

    @property
    def resolution(self) -> tuple[float, float]:
        """Bias, in posterior standard deviations, and relative error of the width that are found nine times in ten."""
        needed = float(scipy.stats.norm.isf(self.threshold / 2) + scipy.stats.norm.ppf(POWER))
        n = self.fits - self.failed
        return needed / np.sqrt(n), needed / np.sqrt(2 * n)

    def verdict(self, parameter: str) -> str:
        """What the tests say about one parameter."""
        k, said = self.parameters.index(parameter), []
        if self.width_p[k] < self.threshold:
            said.append("too narrow" if self.width[k] > 1 else "too wide")
        if self.location_p[k] < self.threshold:
            said.append("too low" if self.location[k] > 0 else "too high")
        if not said and self.uniform_p[k] < self.threshold:
            said.append("ranks not uniform")
        return ", ".join(said) or "fine"

    def __repr__(self) -> str:
        """Give the table and the verdict."""
        header = f"{'':{self._name}s}  z mean   z rms  in 50%  in 90%  contraction  p(uniform) p(location)  p(width)  posterior"
        lines = []
        for k, name in enumerate(self.parameters):
            contraction = f"{self.contraction[k]:11.4f}" if np.isfinite(self.contraction[k]) else f"{'-':>11s}"
            p = "  ".join(f"{_p_text(v[k]):>10s}" for v in (self.uniform_p, self.location_p, self.width_p))
            lines.append(
                f"{name:{self._name}s}  {_z_text(self.z_mean[k])}  {_z_text(self.z_sd[k])}  {100 * self.coverage[k, 0]:5.0f}%  "
                f"{100 * self.coverage[k, 1]:5.0f}%  {contraction}  {p}  {self.verdict(name)}"
            )
        bias, width = self.resolution
        bad = [name for name in self.parameters if self.verdict(name) != "fine"]
        counts = f"{self.fits} fits" + (f", of which {self.failed} failed and are left out" if self.failed else "")
        counts += f"; {self.unconverged} with r_hat above {R_HAT:g}" if self.unconverged else ""
        said = (
            f"Not calibrated ({100 * self.level:g} % level): {', '.join(f'{b} {self.verdict(b)}' for b in bad)}."
            if bad
            else f"No sign of miscalibration at the {100 * self.level:g} % level."
        )
        found = (
            f"Nine times in ten, so many fits find a bias of {bias:.2f} posterior sd or a width wrong by {100 * width:.0f} %."
        )
        return "\n".join([f"CalibrationTests: {counts}", header, *lines, f"{said} {found}"])

    @property
    def _name(self) -> int:
        return max(map(len, self.parameters))


def calibration_tests(
    result: xr.DataTree, *, var_names: str | Sequence[str] | None = None, level: float = 0.99
) -> CalibrationTests:
    r"""Test whether the ranks of a calibration are uniform.

    Parameters
    ----------
    result : xarray.DataTree
        Of :func:`calibrate`.
    var_names : str or sequence of str, optional
        Parameters by their label, such as ``"k"`` or ``"theta[0]"``. Default: all.
    level : float, default 0.99
        Probability that posteriors which are right pass, all tests of all parameters together.

    Returns
    -------
    CalibrationTests

    Raises
    ------
    ValueError
        If there is no such parameter, a level out of range, or fewer than ten fits to judge.

    Notes
    -----
    With :math:`u_i = (\mathrm{rank}_i + U_i) / (L_i + 1)`, which are independent and uniform if the posterior is right, and
    normal scores :math:`s_i = \Phi^{-1}(u_i)`: :math:`\sqrt n\, \bar s` is standard normal and :math:`\sum s_i^2` is
    chi-squared with n degrees of freedom, exactly and whatever the shape of the posterior (after Cook, Gelman and Rubin 2006).
    These two see a bias and a wrong width better than any general test; for the rest there is ArviZ's test of uniformity.

    Examples
    --------
    >>> import numpy as np, xarray as xr, pm_sysid as sid
    >>> u = np.random.default_rng(1).random((200, 1))
    >>> columns = {
    ...     name: (("fit", "parameter"), u) for name in ("pit", "z", "contraction", "r_hat")
    ... }
    >>> fits = xr.Dataset(
    ...     {**columns, "failed": ("fit", np.zeros(200, bool))}, {"parameter": ["k"]}
    ... )
    >>> sid.calibration_tests(xr.DataTree.from_dict({"calibration": fits})).passed
    True
    """
    if not isinstance(result, xr.DataTree) or "calibration" not in result.children:
        raise ValueError("result has no group 'calibration'; give the result of calibrate.")
    if isinstance(level, bool) or not isinstance(level, float | np.floating) or not 0 < level < 1:
        raise ValueError(f"level is {level!r}; give a probability between 0 and 1, such as 0.99.")
    found = group(result, "calibration")
    labels = found["parameter"].values.tolist()
    names = labels if var_names is None else words(var_names, "var_names")
    if not names:
        raise ValueError("var_names is empty; give parameters, or None for all.")
    if unknown := [v for v in names if v not in labels]:
        raise ValueError(f"no parameter {unknown[0]!r} was ranked; there are {', '.join(labels)}.")
    fits, failed = found.sizes["fit"], int(found["failed"].sum())
    if fits - failed < 10:
        raise ValueError(f"{fits - failed} fits did not fail, too few to say anything; make at least ten.")
    table = found.sel(parameter=names).isel(fit=np.flatnonzero(~found["failed"].values))
    pit, z = (table[name].transpose("fit", "parameter").values for name in ("pit", "z"))
    n, scores = len(pit), scipy.stats.norm.ppf(pit)
    squares = np.sum(scores**2, axis=0)
    with np.errstate(invalid="ignore"):
        unconverged = int(np.any(table["r_hat"].values > R_HAT, axis=table["r_hat"].get_axis_num("parameter")).sum())
    inside = np.abs(2 * pit - 1)
    return CalibrationTests(
        parameters=tuple(names),
        fits=fits,
        failed=failed,
        unconverged=unconverged,
        level=float(level),
        uniform_p=np.array([_uniform(column) for column in pit.T]),
        location_p=2 * scipy.stats.norm.sf(np.abs(scores.mean(axis=0)) * np.sqrt(n)),
        width_p=2 * np.minimum(scipy.stats.chi2.sf(squares, n), scipy.stats.chi2.cdf(squares, n)),
        location=scores.mean(axis=0),
        width=np.sqrt(squares / n),
        z_mean=_mean(z),
        z_sd=np.sqrt(_mean(z**2)),
        coverage=np.stack([np.mean(inside < share, axis=0) for share in (0.5, 0.9)], axis=1),
        contraction=np.median(table["contraction"].transpose("fit", "parameter").values, axis=0),
    )


def _mean(z: FloatArray) -> FloatArray:
    """Mean over the fits that have a number: draws outside the prior have no log-likelihood to average."""
    finite = np.isfinite(z)
    total: FloatArray = np.where(finite, z, 0.0).sum(axis=0) / np.maximum(finite.sum(axis=0), 1)
    return total


def _uniform(values: FloatArray) -> float:
    p, *_ = _arviz.base.array_stats.uniformity_test(values, method="pot_c")
    return float(p)


def _z_text(z: float) -> str:
    return f"{z:6.2f}" if abs(z) < 100 else f"{z:6.0e}"


def _p_text(p: float) -> str:
    return f"{p:.3f}" if p >= 1e-3 else "<0.001" if p >= 1e-4 else "<0.0001"
