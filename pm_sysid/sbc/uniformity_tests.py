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
from pm_sysid.sbc.power import MANY, Resolution, resolution

__all__ = ["CalibrationTests", "calibration_tests"]

type FloatArray = NDArray[np.float64]

_arviz: Any = arviz_stats  # without types
#: Convergence statistic above which a fit is counted as not converged, and share of such fits above which it is the sampler
#: that is judged.
R_HAT, MOSTLY = 1.05, 0.5
#: Share of failed fits above which the others are a selection.
SELECTED = 0.05
#: Draws among which a truth is ranked that are too few to see more than gross errors, if half of the fits have no more.
FEW = 9


@dataclass(frozen=True, repr=False)
class CalibrationTests:
    """Outcome of :func:`calibration_tests`; printing it gives a table and a verdict.

    Attributes
    ----------
    parameters : tuple of str
        What was ranked.
    fits, failed, unconverged : int
        Fits in all, those that failed and are left out, and those with an ``r_hat`` above 1.05, which are not.
    ranked : tuple of int
        Draws among which the truth was ranked, of each fit that did not fail.
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
    ranked: tuple[int, ...]
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
        """Whether no test fails, of fits that can be judged: nothing is in ``doubts``."""
        return not self.doubts and bool(np.min([self.uniform_p, self.location_p, self.width_p]) > self.threshold)

    @property
    def doubts(self) -> tuple[str, ...]:
        """Why tests that do not fail are no sign that posteriors are right, in words; empty if nothing speaks against it."""
        said, n = [], self.fits - self.failed
        if self.failed > SELECTED * self.fits:
            said.append(f"{self.failed} of {self.fits} fits failed, and the others may be a selection: see their messages.")
        if self.unconverged > MOSTLY * n:
            said.append(
                f"{self.unconverged} of {n} fits have not converged (r_hat above {R_HAT:g}), so that their ranks say little of "
                "the posterior: draw more, tune longer, or take another sampler."
            )
        if np.median(self.ranked) <= FEW:
            said.append(
                f"Half of the fits rank the truth among {int(np.median(self.ranked))} draws or fewer, which only gross errors "
                "change: draw more, or rank among more."
            )
        return tuple(said)

    @property
    def resolution(self) -> Resolution:
        """Errors of the posterior that are found nine times in ten, by as many fits with as many ranked draws.

        ``bias``, in posterior standard deviations, and the parts ``narrow`` and ``wide`` by which the posterior standard
        deviation is too small or too large; infinite where no error of a sensible size is found so often.
        """
        return resolution(self.ranked, self.threshold)

    def verdict(self, parameter: str) -> str:
        """What the tests say about one parameter; ``"in doubt"`` where they find nothing in fits that cannot be judged."""
        k, said = self.parameters.index(parameter), []
        if self.width_p[k] < self.threshold:
            said.append("too narrow" if self.width[k] > 1 else "too wide")
        if self.location_p[k] < self.threshold:
            said.append("too low" if self.location[k] > 0 else "too high")
        if not said and self.uniform_p[k] < self.threshold:
            said.append("ranks not uniform")
        return ", ".join(said) or ("in doubt" if self.doubts else "fine")

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
        bad = [name for name in self.parameters if self.verdict(name) not in ("fine", "in doubt")]
        counts = f"{self.fits} fits" + (f", of which {self.failed} failed and are left out" if self.failed else "")
        counts += f"; {self.unconverged} with r_hat above {R_HAT:g}" if self.unconverged else ""
        said = (
            f"Not calibrated ({100 * self.level:g} % level): {', '.join(f'{b} {self.verdict(b)}' for b in bad)}."
            if bad
            else f"Not shown to be calibrated, though no test fails at the {100 * self.level:g} % level."
            if self.doubts
            else f"No sign of miscalibration at the {100 * self.level:g} % level."
        )
        return "\n".join([f"CalibrationTests: {counts}", header, *lines, " ".join([said, *self.doubts, self._found])])

    @property
    def _found(self) -> str:
        """What is found nine times in ten, in words."""
        bias, narrow, wide = self.resolution
        parts = {
            f"a bias of {bias:.2f} posterior sd": bias,
            f"an sd too small by {100 * narrow:.0f} %": narrow,
            f"an sd too large by {100 * wide:.0f} %": wide,
        }
        found = " or ".join([text for text, size in parts.items() if np.isfinite(size)]) or "no error of a sensible size"
        return f"Nine times in ten, so many fits with so many ranked draws find {found}."

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

    What they find nine times in ten (``resolution``) follows from the number of fits and from the draws among which each truth
    is ranked: by few draws a wrong width is hardly seen. Fits that say little do not pass (``doubts``): where more than 5 %
    failed, most have not converged, or half of them rank the truth among fewer than ten draws.

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
        ranked=tuple(int(v) for v in table["ranked"].values) if "ranked" in table else (MANY,) * n,
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
