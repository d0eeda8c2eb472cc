"""Information criteria of a posterior: estimates of the predictive accuracy for new data, from the data of the fit."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import arviz_stats
import numpy as np
import pymc as pm
import scipy
import xarray as xr

from pm_sysid.compat.arviz import ELPDData, ELPDDataLOO, elpd_table
from pm_sysid.idata import elements
from pm_sysid.posterior.log_likelihood import Likelihood, Space, evaluate

_arviz: Any = arviz_stats  # without types; the whole of arviz would import matplotlib

#: A point whose log-likelihood has a larger variance over the posterior makes the WAIC unreliable (Vehtari et al. 2017).
VARIANCE = 0.4
#: Chains with a larger R-hat have not mixed, or are in different modes.
RHAT = 1.1
#: With fewer draws per chain, R-hat is too uncertain.
RHAT_DRAWS = 50
#: Pareto k up to which leave-one-out is reliable, of many draws.
GOOD_K = 0.7
#: Smallest number of draws from which LOO can estimate a tail.
FEWEST = 25


@dataclass(kw_only=True, repr=False)
class Criterion(ELPDData):
    """An information criterion in the form of ArviZ: on the scale of the log density, higher is better.

    Attributes
    ----------
    elpd, se, p : float
        Expected log pointwise predictive density, its standard error, effective number of parameters.
    elpd_i, p_i : DataArray, dims (point,)
        Contribution of each sample; the sums are ``elpd`` and ``p``. ``point`` counts the samples of the record, without
        those that have no measurement.
    reasons : tuple of str
        Reasons why the criterion is unreliable, if there are any.
    """

    p_i: Any = None
    reasons: tuple[str, ...] = ()

    _name: ClassVar[str] = ""

    @property
    def deviance(self) -> float:
        """The criterion on the scale of the deviance, -2 ``elpd``: lower is better."""
        return -2 * float(self.elpd)

    @property
    def deviance_se(self) -> float:
        """Standard error of ``deviance``, from the variance of the contributions of the samples."""
        return 2 * float(self.se)

    def __str__(self) -> str:
        """Print what ArviZ prints, the deviance, and the reasons for a warning."""
        lines = [f"{self._name} {self.deviance:.2f}, standard error {self.deviance_se:.2f} (deviance: lower is better)."]
        return "\n".join([elpd_table(self), *lines, *(f"Warning: {r}" for r in self.reasons)])


@dataclass(kw_only=True, repr=False)
class ELPDDataWAIC(Criterion):
    """Result of :func:`waic`; see :class:`Criterion`."""

    _kind: ClassVar[str] = "waic"
    _name: ClassVar[str] = "WAIC"


@dataclass(kw_only=True, repr=False)
class ELPDDataDIC(Criterion):
    """Result of :func:`dic`; see :class:`Criterion`.

    Attributes
    ----------
    mean_deviance, deviance_at_mean : float
        E[D] and D at the posterior mean (Eqs. 12 and 13): DIC = 2 ``mean_deviance`` - ``deviance_at_mean``.
    at : dict
        The posterior mean: value of each free variable, in the model's own units.
    """

    mean_deviance: float
    deviance_at_mean: float
    at: Any

    _kind: ClassVar[str] = "dic"
    _name: ClassVar[str] = "DIC"


def dic(idata: Any, *, model: pm.Model | None = None, draws: int | None = None, space: Space = "model") -> ELPDDataDIC:
    """Deviance information criterion, 2 E[D] - D(posterior mean) with D = -2 log-likelihood.

    Parameters
    ----------
    idata : xarray.DataTree
        With the group ``posterior``. Pointwise log-likelihoods are taken from the group ``log_likelihood`` if it exists;
        otherwise they are computed. ``idata`` is not changed.
    model : pm.Model, optional
        Default: the model on the context stack.
    draws : int, optional
        Use about this many draws, evenly spaced. Default: all. A computed log-likelihood takes 8 bytes per draw and sample.
    space : {"model", "unconstrained"}
        Space in which the parameters are averaged: the units of the model, as in the paper, or the unconstrained space of the
        samplers (logarithms of positive parameters). The DIC depends on this choice; the dependence is small for a narrow
        posterior.

    Returns
    -------
    ELPDDataDIC
        For ``az.compare`` and ``az.plot_compare``, together with other DICs: on their scale, -DIC / 2. ``.deviance`` is the
        DIC.

    Raises
    ------
    ValueError
        If there is no posterior or no model; if the posterior was sampled on other data than the model holds (by its group
        ``observed_data``); if the log-likelihood is not finite, does not fit the model, or is of variables with different
        numbers of samples.

    Warns
    -----
    UserWarning
        If the effective number of parameters is negative, or above twice the number of unknowns; or if the posterior seems to
        have several modes, so that its mean is not a typical draw. A posterior seems to have several modes if the R-hat of a
        parameter is above 1.1, or if the density of its draws has a minimum that is less than half as high as the maxima on
        both sides, with at least 5 % of the draws on each side.

    Notes
    -----
    A sample with several outputs is one point; a sample without a measurement is not a point. The log-likelihood of a sample
    of an :class:`ODEFilter` is conditional on the samples before it. The standard error treats points as independent.
    Sources: Spiegelhalter, Best, Carlin and van der Linde (2002); Green (2015), Eqs. 10-15.

    Examples
    --------
    >>> import numpy as np, pymc as pm, xarray as xr, pm_sysid as sid
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu", 0.0, 10.0)
    ...     y = pm.Normal("y", mu, 1.0, observed=[0.5, -0.5, 1.0, 0.0])
    >>> draws = 0.25 + 0.5 * np.random.default_rng(1).standard_normal(
    ...     (2, 2000)
    ... )  # the posterior of mu
    >>> idata = xr.DataTree.from_dict(
    ...     {"posterior": xr.Dataset({"mu": (("chain", "draw"), draws)})}
    ... )
    >>> result = sid.dic(idata, model=model)
    >>> round(result.p, 1), round(result.deviance, 1)
    (1.0, 10.6)
    """
    return dic_of(evaluate(idata, model, draws=draws, space=space))


def waic(idata: Any, *, model: pm.Model | None = None, draws: int | None = None) -> ELPDDataWAIC:
    """Widely applicable information criterion.

    Parameters
    ----------
    idata, model, draws
        As for :func:`dic`; the model is needed only if ``idata`` has no group ``log_likelihood``.

    Returns
    -------
    ELPDDataWAIC
        For ``az.compare`` and ``az.plot_compare``, together with other WAICs: on their scale, -WAIC / 2.

    Raises
    ------
    ValueError
        As for :func:`dic`.

    Warns
    -----
    UserWarning
        If the variance of the log-likelihood of a point over the posterior is above 0.4, or the effective number of
        parameters is above twice the number of unknowns. Leave-one-out cross-validation (``az.loo``) is then more reliable,
        and reports for which points it fails.

    Notes
    -----
    Points as for :func:`dic`; the effective number of parameters is the sum of the variances of their log-likelihoods over
    the posterior. Sources: Watanabe (2010); Vehtari, Gelman and Gabry (2017).

    Examples
    --------
    >>> import numpy as np, pymc as pm, xarray as xr, pm_sysid as sid
    >>> draws = 0.25 + 0.5 * np.random.default_rng(1).standard_normal(
    ...     (2, 2000)
    ... )  # the posterior of the mean
    >>> idata = xr.DataTree.from_dict(
    ...     {"posterior": xr.Dataset({"mu": (("chain", "draw"), draws)})}
    ... )
    >>> with pm.Model() as model:
    ...     _ = pm.Normal("y", pm.Normal("mu", 0.0, 10.0), 1.0, observed=[0.5, -0.5, 1.0, 0.0])
    >>> result = sid.waic(idata, model=model)
    >>> round(result.p, 1), result.elpd_i.dims
    (0.4, ('point',))
    """
    return waic_of(evaluate(idata, model, draws=draws, mean=False))


# -- from log-likelihoods to criteria ---------------------------------------------------------------------------------


def dic_of(likelihood: Likelihood) -> ELPDDataDIC:
    """DIC of an evaluated posterior."""
    at = likelihood.at_mean
    assert at is not None
    if not np.isfinite(at).all():
        raise ValueError(
            "the log-likelihood at the posterior mean is not finite: the mean lies where the model cannot be solved, as "
            "happens with several modes or a bent posterior. The DIC means nothing then; use waic or az.loo."
        )
    rows = _rows(likelihood.draws)
    p_i = 2 * (at - rows.mean(axis=0))
    reasons = []
    p, size = float(p_i.sum()), likelihood.size
    if p < 0:
        reasons.append(
            f"the effective number of parameters is negative ({p:.3g}): the posterior mean fits worse than the draws do, so "
            "that the DIC means nothing (several modes, a bent posterior, or a chain that has not converged)."
        )
    elif size is not None and p > 2 * size:
        reasons.append(_too_many(p, size))
    if places := several_modes(likelihood.posterior):
        reasons.append(
            f"the posterior seems to have several modes ({'; '.join(places)}): its mean lies between them, and the DIC means "
            "nothing. If it has not, the chains have not converged."
        )
    result = ELPDDataDIC(
        **_fields(likelihood, at - p_i, p_i, reasons),
        mean_deviance=-2 * float(rows.mean(axis=0).sum()),
        deviance_at_mean=-2 * float(at.sum()),
        at=likelihood.mean,
    )
    return _said(result)


def waic_of(likelihood: Likelihood) -> ELPDDataWAIC:
    """WAIC of an evaluated posterior."""
    rows = _rows(likelihood.draws)
    if len(rows) < 2:
        raise ValueError(f"idata has {len(rows)} draws; the WAIC needs at least two.")
    p_i = rows.var(axis=0, ddof=1)
    elpd_i = scipy.special.logsumexp(rows, axis=0) - np.log(len(rows)) - p_i
    reasons = []
    if many := int(np.sum(p_i > VARIANCE)):
        reasons.append(
            f"the log-likelihood of {many} of {len(p_i)} points varies by more than {VARIANCE} over the posterior: the WAIC is "
            "unreliable; use leave-one-out (compare_models, or az.loo), which says where it fails."
        )
    if likelihood.size is not None and p_i.sum() > 2 * likelihood.size:
        reasons.append(_too_many(float(p_i.sum()), likelihood.size))
    return _said(ELPDDataWAIC(**_fields(likelihood, elpd_i, p_i, reasons)))


def loo_of(likelihood: Likelihood) -> Any:
    """``az.loo`` for the same points; points that do not depend on the parameters are treated separately."""
    draws, posterior = likelihood.draws, likelihood.posterior
    n_draws, n = draws.sizes["chain"] * draws.sizes["draw"], draws.sizes["point"]
    if n_draws < FEWEST:
        raise ValueError(f"idata has {n_draws} draws; leave-one-out by importance sampling needs at least {FEWEST}.")
    rows = _rows(draws)
    varies = np.ptp(rows, axis=0) > 1e-10 * (1 + np.abs(rows[0]))
    if not varies.any():  # nothing is learned from any point: it is predicted as well without it
        fields = _fields(likelihood, rows[0], np.zeros(n), ())
        zero = fields.pop("p_i")
        return ELPDDataLOO(**{k: v for k, v in fields.items() if k != "reasons"} | {"good_k": GOOD_K, "pareto_k": zero})
    tree = xr.DataTree.from_dict({"posterior": posterior, "log_likelihood": xr.Dataset({"y": draws[..., varies]})})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # said below, with the remedy for a record
        found = _arviz.loo(tree, var_name="y", pointwise=True)
    elpd_i, k = rows[0].copy(), np.zeros(n)
    elpd_i[varies], k[varies] = found.elpd_i.values, found.pareto_k.values
    if not np.isfinite(elpd_i).all():
        raise ValueError("leave-one-out by importance sampling has no value: single draws carry all the weight of some points.")
    bad = int(np.sum(~(k <= found.good_k)))  # NaN where no tail could be fitted
    if bad:
        warnings.warn(
            f"the Pareto k of {bad} of {n} points is above {found.good_k:.2f}: leave-one-out by importance sampling is "
            "unreliable there. For a record use leave-future-out: az.lfo_cv, or the log evidence of sample_ibis, which is "
            "the sum of the log densities of each sample given those before it.",
            stacklevel=2,
        )
    points = {"point": draws["point"]}
    return replace(
        found,
        elpd=float(elpd_i.sum()),
        se=_error(elpd_i),
        n_data_points=n,
        warning=bad > 0,
        elpd_i=xr.DataArray(elpd_i, points, ("point",)),
        pareto_k=xr.DataArray(k, points, ("point",)),
        log_weights=None,  # as large as the log-likelihood
    )


def several_modes(posterior: xr.Dataset) -> list[str]:
    """Parameters for which a posterior seems to have several modes, with the reasons."""
    draws = elements(posterior)
    n_chains, n_draws, _ = draws.shape
    found = []
    for label in draws["parameter"].values:
        values = draws.sel(parameter=label).values
        if not np.ptp(values) > 0:
            continue
        rhat = float(_arviz.rhat(values)) if n_chains > 1 and n_draws >= RHAT_DRAWS else float("nan")
        effective = float(_arviz.ess(values)) if n_draws > 3 else float("nan")
        if rhat > RHAT:
            found.append(f"R-hat of {label} is {rhat:.2f}")
        elif _has_valley(values.ravel(), effective):
            found.append(f"the draws of {label} fall into two groups")
    return found


def _has_valley(x: np.ndarray, effective: float, depth: float = 0.5, share: float = 0.05) -> bool:
    """Whether the density has a point less than ``depth`` as high as a peak on either side, ``share`` of the draws beyond."""
    quartiles = float(np.subtract(*np.quantile(x, [0.75, 0.25]))) / 1.349
    size = min(max(effective if np.isfinite(effective) else len(x), 50.0), len(x))
    width = 0.9 * (min(float(np.std(x)), quartiles) or float(np.std(x))) * size**-0.2  # Silverman
    low, high = np.quantile(x, [share, 1 - share])
    grid = np.linspace(x.min(), x.max(), 400)
    some = x[:: -(-len(x) // 2000)]
    density = scipy.stats.norm.pdf((grid[:, None] - some) / width).sum(axis=1)
    left, right = np.maximum.accumulate(density), np.maximum.accumulate(density[::-1])[::-1]
    inside = (grid > low) & (grid < high)
    return bool(np.any(inside & (density < depth * np.minimum(left, right))))


def _too_many(p: float, size: int) -> str:
    return (
        f"the effective number of parameters is {p:.3g} for {size} unknowns: more than twice as many, which a nearly "
        "normal posterior does not have. The model misfits some samples, or the chain has not converged."
    )


def _fields(likelihood: Likelihood, elpd_i: np.ndarray, p_i: np.ndarray, reasons: Sequence[str]) -> dict[str, Any]:
    draws = likelihood.draws

    def labelled(values: np.ndarray) -> xr.DataArray:
        return xr.DataArray(values, {"point": draws["point"]}, ("point",))

    return {
        "elpd": float(elpd_i.sum()),
        "se": _error(elpd_i),
        "p": float(p_i.sum()),
        "n_samples": draws.sizes["chain"] * draws.sizes["draw"],
        "n_data_points": len(elpd_i),
        "scale": "log",
        "warning": bool(reasons),
        "good_k": None,
        "elpd_i": labelled(elpd_i),
        "p_i": labelled(p_i),
        "reasons": tuple(reasons),
    }


def _error(values: np.ndarray) -> float:
    """Standard error of the sum of independent contributions."""
    return float(np.sqrt(len(values) * np.var(values, ddof=1))) if len(values) > 1 else float("nan")


def _said[C: Criterion](result: C) -> C:
    for reason in result.reasons:
        warnings.warn(f"{result._name}: {reason}", stacklevel=4)
    return result


def _rows(draws: xr.DataArray) -> np.ndarray:
    """Draws of all chains, shape (draws, points)."""
    return draws.values.reshape(-1, draws.sizes["point"])
