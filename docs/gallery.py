"""Figures of the gallery: every ``plot_*`` function on one small study, drawn when the site is built."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pymc as pm
import xarray as xr

import pm_sysid as sid

TRUTH = {"m": 1.0, "c": 1.0, "k": 150.0, "k3": 2000.0}
DUFFING = sid.models.duffing()

#: What each figure shows, for the page.
CAPTIONS = {
    "plot_record": "A record: over time, its spectrum, and the states it passes",
    "plot_fit": "A free run of posterior draws beside the measurement, and what it leaves",
    "plot_prediction": "Predictions of two models on a new record",
    "plot_residuals": "One-step innovations with their tests",
    "plot_prior_posterior": "What the record said beyond the prior",
    "plot_correlation": "Parameters that are known in combination only",
    "plot_states": "States that were not measured, with their uncertainty",
    "plot_restoring_force": "The law of a spring with its band",
    "plot_ibis": "A posterior while the data arrive, and the evidence",
    "plot_annealing": "Chains of Data Annealing",
    "plot_abc": "Nested sampling without a likelihood, over two models",
    "plot_compare_fits": "Fits of two structures in percent",
    "plot_resid": "Residuals of a prediction-error fit",
    "plot_calibration": "Ranks of simulation-based calibration",
}


@cache
def experiment(seed: int = 0, amplitude: float = 10.0) -> sid.TimeSeries:
    """A swept sine on a hardening spring."""
    t = np.arange(300) / 50.0
    force = amplitude * np.sin(2 * np.pi * 0.1 * t * (1 + t))
    record = sid.TimeSeries(t, {"F": force}, np.zeros(300), outputs="y", units={"F": "N", "y": "m"})
    y = sid.simulate(DUFFING, record, TRUTH, x0=0.0)["y"].to_numpy()
    return record.replace(y=y + 0.002 * np.random.default_rng(seed).standard_normal(300))


@cache
def model() -> tuple[pm.Model, xr.DataTree]:
    """The oscillator with draws of the Laplace approximation, which cost no sampling, and of the prior."""
    with pm.Model() as built:
        params: dict[str, Any] = {n: pm.LogNormal(n, np.log(v), 0.3) for n, v in TRUTH.items() if n != "m"}
        noise = pm.HalfNormal("noise", 0.01)
        sid.ODEFilter("y", DUFFING, experiment(), params | {"m": 1.0}, noise=noise, x0=0.0, substeps=4)
        mode = sid.find_mode(random_seed=1, progressbar=False)
        prior = pm.sample_prior_predictive(400, var_names=["c", "k", "k3", "noise"], random_seed=1)["prior"]
    normal = np.random.default_rng(0).multivariate_normal(mode.point, mode.covariance, 800)
    values = sid.Target(built).constrained(normal)
    draws = xr.Dataset({n: (("chain", "draw"), v.reshape(2, 400)) for n, v in values.items() if v.ndim == 1})
    return built, xr.DataTree.from_dict({"posterior": draws, "prior": prior.to_dataset()})


@cache
def unforced() -> pm.Model:
    """Twelve numbers around an unknown mean, for the samplers' own figures."""
    with pm.Model() as built:
        mean = pm.Normal("mean", 0.0, 3.0)
        pm.Normal("y", mean, 0.5, observed=pm.Data("y_data", 1 + 0.5 * np.random.default_rng(3).standard_normal(40)))
    return built


@cache
def fits() -> dict[str, sid.PEMResult]:
    """A linear and a cubic spring by prediction errors."""
    guess, kalman = {"c": 1.5, "k": 120.0}, sid.ExtendedKalman(substeps=4)
    options: dict[str, Any] = {"predictor": kalman, "x0": 0.0, "progressbar": False}
    return {
        "linear": sid.fit_pem(DUFFING, experiment(), guess, fixed={"m": 1.0, "k3": 0.0}, **options),
        "cubic": sid.fit_pem(DUFFING, experiment(), guess | {"k3": 1500.0}, fixed={"m": 1.0}, **options),
    }


def runs(record: sid.TimeSeries) -> xr.Dataset:
    """Free runs of posterior draws."""
    return sid.predict(model()[1], record, model=model()[0], draws=60, x0=0.0)


def prediction() -> Any:
    """Draw two structures on another record."""
    new = experiment(1, 12.0)
    linear = sid.simulate(DUFFING, new, fits()["linear"].p | {"m": 1.0, "k3": 0.0}, x0=0.0)
    return sid.plot_prediction(new, {"cubic": runs(new), "linear": linear})


def springs() -> Any:
    """Draw the law of the spring."""
    z = np.linspace(-0.1, 0.1, 60)
    law = lambda x, p: p.k * x + p.k3 * x**3  # noqa: E731
    truth = TRUTH["k"] * z + TRUTH["k3"] * z**3
    return sid.plot_restoring_force(model()[1], law, z, truth=truth, xlabel="z (m)", ylabel="spring force (N)")


def annealed() -> Any:
    """Draw chains from wrong starts."""
    with unforced():
        step = sid.DataAnnealing(widths=0.3)
        options: dict[str, Any] = {"progressbar": False, "compute_convergence_checks": False, "random_seed": 1, "cores": 1}
        return sid.plot_annealing(pm.sample(300, tune=200, step=step, chains=2, discard_tuned_samples=False, **options))


def nested() -> Any:
    """Draw a run over two structures."""

    def one(cubic: bool) -> pm.Model:
        with pm.Model() as built:
            params = {"m": 1.0, "c": pm.Uniform("c", 0.2, 3.0), "k": pm.Uniform("k", 50.0, 300.0)}
            params["k3"] = pm.Uniform("k3", 0.0, 5000.0) if cubic else 0.0
            sid.ODESimulator("y", DUFFING, experiment(), params, x0=0.0, substeps=4)
        return built

    models = {"linear": one(False), "cubic": one(True)}
    return sid.plot_abc(sid.sample_abc_ns(models, 200, random_seed=1, progressbar=False))


def calibrated() -> Any:
    """Draw ranks of forty fits that are uniform."""
    u = (np.random.default_rng(1).permutation(200).reshape(100, 2) + 0.5) / 200
    columns = {name: (("fit", "parameter"), u) for name in ("pit", "z", "contraction", "r_hat")}
    ranks = xr.Dataset({**columns, "failed": ("fit", np.zeros(100, bool))}, {"parameter": ["c", "k"]})
    return sid.plot_calibration(xr.DataTree.from_dict({"calibration": ranks}))


def states() -> Any:
    """Draw paths of states given the whole record."""
    return sid.plot_states(sid.sample_states(model()[1], model=model()[0], draws=25, random_seed=1), zoom=(4, 5))


def sequential() -> Any:
    """Draw the growth of a posterior."""
    options = dict(chains=1, cores=1, progressbar=False, random_seed=1, store_stages=True)
    found = sid.sample_ibis(200, model=model()[0], **options)
    return sid.plot_ibis(found, var_names=["c", "k3"], truth={n: TRUTH[n] for n in ("c", "k3")})


def innovations() -> Any:
    """Draw innovations at the posterior mean."""
    built, idata = model()
    e = sid.innovations(idata, "y", model=built)["standardised"].to_numpy()[:, 0]
    return sid.plot_residuals(e, u=experiment().u[:, 0], t=experiment().t)


DRAWINGS: dict[str, Callable[[], Any]] = {
    "plot_record": lambda: sid.plot_record(experiment()),
    "plot_fit": lambda: sid.plot_fit(experiment(), runs(experiment()), zoom=(4.5, 5.5)),
    "plot_prediction": prediction,
    "plot_residuals": innovations,
    "plot_prior_posterior": lambda: sid.plot_prior_posterior(model()[1], truth={n: TRUTH[n] for n in ("c", "k", "k3")}),
    "plot_correlation": lambda: sid.plot_correlation(model()[1]),
    "plot_states": states,
    "plot_restoring_force": springs,
    "plot_ibis": sequential,
    "plot_annealing": annealed,
    "plot_abc": nested,
    "plot_compare_fits": lambda: sid.plot_compare_fits(sid.compare_fits(fits(), {"new": experiment(1, 12.0)}, x0=0.0)),
    "plot_resid": lambda: sid.plot_resid(fits()["linear"].resid(lags=25)),
    "plot_calibration": calibrated,
}


def draw_gallery(folder: Path) -> None:
    """Draw what is not there yet, or was drawn by an older version of this file."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in DRAWINGS.items():
        file = folder / f"{name}.png"
        if file.exists() and file.stat().st_mtime > Path(__file__).stat().st_mtime:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            figure = np.asarray(draw(), dtype=object).ravel()[0].figure
        figure.savefig(file, dpi=90, bbox_inches="tight")
        pyplot.close("all")


def gallery_page() -> str:
    """Page with a card for each figure."""
    cards = []
    for name, caption in CAPTIONS.items():
        options = {"link": f"api/pm_sysid.{name}", "link-type": "doc", "img-top": f"gallery/{name}.png", "img-alt": caption}
        lines = "".join(f":{key}: {value}\n" for key, value in options.items())
        cards.append(f":::{{grid-item-card}} {name}\n{lines}\n{caption}.\n:::\n")
    head = "# Gallery\n\nEvery figure of the package on one small study.\n\n"
    return f"{head}::::{{grid}} 1 2 2 3\n:gutter: 2\n\n{''.join(cards)}::::\n"


if __name__ == "__main__":
    draw_gallery(Path(__file__).parent / "gallery")
