"""What a fit gives back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
import scipy
import xarray as xr

from pm_sysid.arguments import shown, whole
from pm_sysid.notebook import html_line, html_table
from pm_sysid.pem import analysis, laplace
from pm_sysid.records.timeseries import TimeSeries


class PEMResult(scipy.optimize.OptimizeResult):
    """Result of :func:`fit_pem`: a ``scipy.optimize.OptimizeResult`` with what follows from a fit.

    Attributes
    ----------
    x : ndarray, shape (k,)
        All unknowns: leaves of ``p_guess``, standard deviations, initial states; ``names`` says which is which.
    p : tree
        Parameters in the structure of ``p_guess``.
    x0 : ndarray, shape (n_x,), or tuple of them
        State at the first sample; for several records, one for each.
    success, status, message
        Whether the search ended at an optimum that the record determines and no other is in its way, and if not, why. Status
        -1 is a guess outside its bounds, -2 an impossible one, -3 a search that broke off; others are SciPy's.
    fun : float
        Mean squared innovation, or negative log-likelihood.
    nit, nfev, njev : int
        Accepted steps of the search that ended lowest; evaluations, and evaluations whose derivatives were used, from all
        starts.
    history : list of Iteration
        Objective, unknowns and relative length of the step, for the start and after each accepted step, of the search that
        ended lowest; one from a drawn start begins where its first, rough part has ended.
    optima : list of Optimum
        The distinct optima found, the best first: ``objective``, ``parameters`` (k,) in the order of ``names``, and the number
        of ``starts`` that ended there.
    jac : ndarray, shape (N, k)
        Derivatives of the measured innovations, by differences where equations switch; for a likelihood its gradient, (k,).
    cov : ndarray, shape (k, k)
        Covariance of the estimate: by the size of the innovations, or inverse expected information, enlarged by what the record
        leaves open of estimated process noise; it allows for innovations of a free run that are not white. Zero for unknowns
        on a bound, infinite for those the record says nothing about.
    stderr : tree
        Standard errors in the structure of ``p_guess``; ``x_stderr`` (k,) has them all. Larger than by ``cov`` where
        ``message`` says that they allow for a cause that the model lacks, which ``cov`` knows nothing of.
    noise : dict
        Standard deviations of process and measurement noise, found or given.
    """

    def __repr__(self) -> str:
        if "x" not in self:
            return str(super().__repr__())
        columns = {"estimate": [f"{v:.7g}" for v in self.x], "stderr": [f"{v:.3g}" for v in self.x_stderr]}
        table = pd.DataFrame(columns, index=self.names)
        ends = "" if self.success else " (not successful)"
        what = "mean squared innovation" if self.objective == "mse" else "negative log-likelihood"
        lines = [f"PEMResult: {what} {self.fun:.6g} after {self.nit} iterations by {self.method!r}{ends}", table.to_string()]
        return "\n".join([*lines, self.message])

    __str__ = __repr__

    def _repr_html_(self) -> str:
        """Table of the estimates for a notebook."""
        if "x" not in self:
            return html_line(repr(self))
        head, *_ = repr(self).split("\n")
        rows = [[n, f"{v:.7g}", f"{e:.3g}"] for n, v, e in zip(self.names, self.x, self.x_stderr, strict=True)]
        table = html_table(["", "estimate", "standard error"], rows)
        return html_line(head, strong=True) + table + html_line(self.message)

    @property
    def initval(self) -> dict[str, float]:
        """Unknowns by name, for ``pm.sample(initvals=...)``.

        With the deviation of each output's innovations, ``noise_...``, where the objective does not have one.
        """
        return dict(zip(self.names, map(float, self.x), strict=True)) | laplace.deviations(self)

    def like(self, record: int) -> PEMResult:
        """The same fit, whose parameters on other records are those of one of its own.

        For parameters with a number for each record (``p_guess={"k": [1.0, 1.2]}``): ``fit.like(1).predict(new)`` predicts a
        new record of the second specimen.

        Parameters
        ----------
        record : int
            Number of the fit's record.

        Returns
        -------
        PEMResult

        Raises
        ------
        ValueError
            If the fit has no such record.
        """
        count = len(self.setup.filter.records)
        if not whole(record, 0, count - 1):
            raise ValueError(f"record is {shown(record)}; give the number of a record of the fit, 0 to {count - 1}.")
        return PEMResult(self, setup=self.setup._replace(like=int(record)))

    def priors(self, *, scale: float = 10.0) -> laplace.Priors:
        """Priors around the fit.

        Parameters
        ----------
        scale : float, default 10
            Their standard deviations in standard errors of the fit. A prior that the record itself was used for is not one:
            wide ones keep its influence small.

        Returns
        -------
        Priors
            Of unknowns that are neither on a bound nor noise as good as zero: by name, ``mu``, ``sigma``, ``lower``, ``upper``;
            ``.variables()`` makes them random variables of a PyMC model.

        Raises
        ------
        ValueError
            If the fit has no standard error of some unknown.
        """
        return laplace.priors(self, scale)

    def model(self, *, scale: float = 10.0) -> pm.Model:
        """PyMC model of the fit: :meth:`priors`, and the innovations as its likelihood.

        Each measured value ``y`` is normal around its prediction from those before. What NUTS, ``az.loo`` and
        :func:`compare_models` do with a model they do with this; gradients are exact. Unknowns on a bound, and noise that
        is as good as zero, stay where they are.
        """
        return laplace.model(self, scale)

    def laplace(self, draws: int = 500, *, chains: int = 2, random_seed: Any = None) -> xr.DataTree:
        """Draws from the Gaussian approximation of the posterior, with flat priors: mean ``x``, covariance ``cov``.

        Standard deviations of innovations that the objective does not have follow their own posterior (scaled inverse chi),
        with as many degrees of freedom less as unknowns were fitted.

        Parameters
        ----------
        draws, chains : int
            Of each chain, and how many; all are independent.
        random_seed : int or numpy.random.Generator, optional

        Returns
        -------
        xarray.DataTree
            Groups ``posterior`` and ``log_likelihood`` (variable ``y``, one column a measured value), for ArviZ, and with
            :meth:`model` for :func:`compare_models`; ``constant_data`` has unknowns on a bound and noise as good as zero.
            Draws keep to the bounds.

        Raises
        ------
        ValueError
            If the fit has no covariance of some unknown.
        """
        return laplace.laplace(self, draws, chains, random_seed)

    def innovations(self, record: TimeSeries | int | None = None, *, x0: Any = None) -> xr.Dataset:
        """One-step-ahead innovations, their standard deviations and quotient, and the filtered states.

        Parameters
        ----------
        record : TimeSeries or int, optional
            Another record, or the number of one of the fit; by default the only one.
        x0 : optional
            State at the first sample. By default that of the fit; of another record estimated by least squares over its first
            500 samples. Where it is from is in the result's ``attrs["x0"]``.

        Returns
        -------
        xarray.Dataset
            ``innovation``, ``std``, ``standardised`` (time, output), NaN where missing; ``state_...`` and ``state_..._std``
            given all samples up to each, with the unknowns as they were found; those of a parameter that drifts allow for the
            standard errors of its start, of its size and of all others. After a fit of squared errors ``std`` is that of the
            innovations of the fit.
        """
        return analysis.innovations(self, record, x0)

    def predict(self, k: float = 1, record: TimeSeries | int | None = None, *, x0: Any = None) -> xr.Dataset:
        """Outputs predicted ``k`` samples ahead.

        Parameters
        ----------
        k : int or infinity, default 1
            Each sample is predicted from the state given those up to ``k`` before it, by Runge-Kutta steps; the first ``k``
            from the initial state. ``numpy.inf`` is the free run.
        record, x0
            As for :meth:`innovations`.

        Returns
        -------
        xarray.Dataset
            Each output, with the dim ``time``.

        Raises
        ------
        ValueError
            If ``k`` is no positive number of samples.
        """
        return analysis.predict(self, k, record, x0)

    def simulate(self, record: TimeSeries | int | None = None, *, x0: Any = None) -> xr.Dataset:
        """Free run: :meth:`predict` with ``k`` infinite."""
        return analysis.predict(self, float(np.inf), record, x0)

    def resid(self, record: TimeSeries | int | None = None, *, x0: Any = None, lags: int | None = None) -> analysis.Residuals:
        """Test whether the innovations are white and independent of the inputs.

        Parameters
        ----------
        record, x0
            As for :meth:`innovations`.
        lags : int, optional
            Largest lag in samples. Default: 25, or for each output a quarter of its measured samples where these are fewer than
            100.

        Returns
        -------
        Residuals
            Prints verdicts; ``.table`` has the numbers, and :func:`plot_resid` draws the correlations with 99 % bounds. Where
            the fit has several records, the innovations on each are those of unknowns for which each record counts by its own
            noise: a loud record has moved the unknowns of the fit by more than a quiet one allows.
        """
        return analysis.resid(self, record, x0, lags)
