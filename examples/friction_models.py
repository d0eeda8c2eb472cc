# %% [markdown]
# # Which friction? Data Annealing and model selection
#
# A magnet slides on a rod between two others, shaken at its base: `m x'' = -c z' - k z - k3 z^3
# - m g - F`, `z = x - y`. Green (2015) identified such a rig with three friction laws, viscous
# (`F = 0`), Coulomb (`F = Fc sgn z'`) and hyperbolic tangent (`F = Fc tanh(beta z')`), by Data
# Annealing, and selected one by the deviance information criterion (DIC).
#
# The record of the rig is not public. Here the same experiment is simulated: 2 s at 1500 Hz for
# training, 59 s of another excitation for prediction, band-limited base motion, unknown sigma,
# uniform priors, and a known mass. In a simulation the true law is known, so the study is done
# for three true laws: Coulomb, a hyperbolic tangent far from its limit, and viscous. In
# addition to the DIC, the study computes the widely applicable information criterion (WAIC),
# leave-one-out cross-validation (LOO), the evidence and the prediction error.
#
# - Data: simulated here.
# - Priors: uniform from zero to well above the true values, also for the noise; the mass is
#   known.
# - Solver: `EK1(order=3)`, one step per sample; Data Annealing in two chains of 50,000 draws,
#   and sequential sampling.
# - Runtime: `uv run examples/friction_models.py` takes about 25 minutes of processor time;
#   `--short` takes few draws of two models for one true law.

# %%
import argparse
import json
import os
import sys
import time
from pathlib import Path

import arviz as az
import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
from pymc.distributions.transforms import log

import pm_sysid as sid

NOTEBOOK = "ipykernel" in sys.modules  # which shows figures as well
if not NOTEBOOK:
    matplotlib.use("Agg")
HERE = Path.cwd() if NOTEBOOK else Path(__file__).parent
SEED = 5
FS, TRAIN, TEST = 1500.0, 2.0, 59.0
NOISE = 3e-4  # m; the response has about 2.5 mm
KINDS = ("viscous", "coulomb", "tanh")
#: Without friction the viscous damping has to do all the work.
TRUTHS = {
    "viscous": {"m": 0.06, "c": 0.4, "k": 60.0, "k3": 2e5},
    "coulomb": {"m": 0.06, "c": 0.1, "k": 60.0, "k3": 2e5, "Fc": 0.06},
    "tanh": {"m": 0.06, "c": 0.1, "k": 60.0, "k3": 2e5, "Fc": 0.06, "beta": 15.0},
}
UNITS = {"c": "N s/m", "k": "N/m", "k3": "N/m^3", "Fc": "N", "beta": "s/m", "sigma": "m"}
#: Uniform from zero to these. A tangent of 1000 s/m is what stands for the sign in the Coulomb
#: model, its limit.
UPPER = {"c": 2.0, "k": 300.0, "k3": 2e6, "Fc": 1.0, "beta": 1e3, "sigma": 1e-2}
SOLVER = sid.EK1(order=3)
CORES, CHAINS = 2, 4

# %% [markdown]
# ## The experiment
# The base moves with a random acceleration between 2 and 30 Hz, with a root-mean-square value
# of 4 m/s^2. The motion starts some time before the record begins. The reference solution takes
# 64 Runge-Kutta steps per sample, and for Coulomb friction a sign function that is smoothed
# over 0.1 mm/s. Halving the steps changes it by less than 0.1 um.


# %%
def excitation(seconds, seed, band=(2.0, 30.0), rms=4.0):
    """Random base acceleration (m/s^2), periodic, with a flat spectrum in a band."""
    n = round(seconds * FS)
    frequency = np.fft.rfftfreq(n, 1 / FS)
    lines = np.random.default_rng(seed).standard_normal((2, frequency.size))
    spectrum = np.where(
        (frequency >= band[0]) & (frequency <= band[1]), lines[0] + 1j * lines[1], 0.0
    )
    acceleration = np.fft.irfft(spectrum, n)
    return rms * acceleration / np.std(acceleration)


def record_of(kind, seconds, seed, settle=2.0):
    """Measured record of a rig with this friction."""
    system = sid.models.friction_oscillator(kind, v_s=1e-4)
    a = excitation(settle + seconds, seed)
    t = np.arange(len(a)) / FS
    start = {"z": -0.007, "v": 0.0}
    run = sid.simulate(
        system, sid.TimeSeries(t, a, inputs="a"), TRUTHS[kind], x0=start, substeps=64
    )
    keep = slice(round(settle * FS), None)
    z = run["z"].values[keep]
    y = z + NOISE * np.random.default_rng(seed + 1000).standard_normal(len(z))
    return sid.TimeSeries(t[keep] - t[keep][0], a[keep], y, inputs="a", outputs="z")


# %% [markdown]
# ## The models
# Proposals are made in logarithms of the parameters, as in the paper; this is the reason for
# the transform. The filter estimates the initial state from the first samples, with an
# uncertainty. One step per sample is enough here (`substeps="auto"` also gives one), with the
# sign function of the Coulomb law smoothed over 1 mm/s, a hundredth of the typical speed.


# %%
def friction_model(kind, record):
    """Posterior of a law of friction; the mass is known."""
    system = sid.models.friction_oscillator(kind)
    with pm.Model() as model:
        names = [name for name in system.params if name != "m"]
        params = {
            name: pm.Uniform(name, 0.0, UPPER[name], default_transform=log) for name in names
        }
        sigma = pm.Uniform("sigma", 0.0, UPPER["sigma"], default_transform=log)
        sid.ODEFilter(
            "y", system, record, {"m": 0.06, **params}, noise=sigma, solver=SOLVER, substeps=1
        )
    return model


def anneal(model, draws, tune, seed, **settings):
    """Two chains: 2 to all points over the first half of the tuning, adaptation over the rest,
    then a stationary chain."""
    begin = time.perf_counter()
    with model:
        step = sid.DataAnnealing(widths=0.005, **settings)
        idata = pm.sample(
            draws,
            tune=tune,
            step=step,
            chains=2,
            cores=CORES,
            random_seed=seed,
            discard_tuned_samples=False,
            progressbar=False,
        )
    took = time.perf_counter() - begin
    return idata, took


def thin(idata, by=10, burn=0.0):
    """Every tenth draw."""
    return idata.isel(draw=slice(int(burn * idata.posterior.sizes["draw"]), None, by))


# %% [markdown]
# ## One true law: three models, all criteria
# Sequential sampling gives the evidence, which Data Annealing does not (the paper names it as
# future work). `--criteria` leaves it out: DIC, WAIC, LOO and the prediction error need the
# chains of Data Annealing alone.


# %%
def study(truth, draws, tune, particles, seconds, kinds=KINDS, evidence=True):
    """Records under a truth; models with their posteriors, chains and sequential runs; and a
    row of costs for each."""
    train, test = record_of(truth, TRAIN, seed=SEED), record_of(truth, seconds, seed=SEED + 1)
    models, chains, sequential, costs = {}, {}, {}, {}
    for number, kind in enumerate(kinds):
        model = friction_model(kind, train)
        chain, took = anneal(model, draws, tune, seed=SEED + number)
        begin = time.perf_counter()
        if evidence:
            settings = {
                "chains": CHAINS,
                "cores": CORES,
                "random_seed": SEED,
                "progressbar": False,
            }
            sequential[kind] = sid.sample_ibis(particles, model=model, **settings)
        cost = float(chain.warmup_sample_stats["evaluations"].mean()) / len(train)
        accepted = float(chain.sample_stats["accepted"].mean())
        costs[kind] = {
            "annealing": took,
            "IBIS": time.perf_counter() - begin,
            "cost": cost,
            "accepted": accepted,
        }
        print(
            f"  {kind:8s} Data Annealing {took:5.1f} s (annealing phase: {cost:.3f} of as many "
            "full draws; accepted ",
            end="",
        )
        print(f"{accepted:.2f}), IBIS {costs[kind]['IBIS']:5.1f} s", flush=True)
        models[kind], chains[kind] = (model, thin(chain)), chain
    comparison = sid.compare_models(
        models, sid.Validation(test, skip=1.0), evidence=sequential or None
    )
    return train, test, models, chains, comparison, costs


def plain(model, chain, draws, tune):
    """The paper's plain form beside the adapted one, at the same number of draws."""
    fitted = anneal(model, draws + 4 * tune // 5, tune // 5, seed=SEED, adapt=False)[0]
    for name, idata, burn in (("plain, after a fifth", fitted, 0.2), ("adapted", chain, 0.0)):
        effective = az.summary(thin(idata, by=1, burn=burn), kind="diagnostics")[
            "ess_bulk"
        ].astype(float)
        worst = effective.idxmin()
        accepted = float(idata.sample_stats["accepted"].mean())
        print(
            f"  {name}: accepted {accepted:.2f}, {effective[worst]:.0f} effective draws of "
            f"{worst}, the fewest"
        )


def posterior_table(truth, models):
    """Means and standard deviations, effective draws, and the correlations that the paper
    speaks of."""
    for kind, (_, idata) in models.items():
        names = [str(name) for name in idata.posterior.data_vars]
        matrix = sid.correlation(idata)
        summary = az.summary(idata, kind="all", round_to="none")
        pairs = [("k", "k3")] + [("c", "Fc")] * ("Fc" in names)
        print(
            f"  {kind}: correlation "
            + ", ".join(f"{a}-{b} {float(matrix.loc[a, b]):.2f}" for a, b in pairs)
        )
        for name in names:
            true = {"sigma": NOISE, **(TRUTHS[truth] if kind == truth else {})}.get(name)
            row = summary.loc[name]
            said = f"   true {true:.4g}" if true is not None else ""
            print(
                f"    {name:6s} {row['mean']:.4g} +/- {row['sd']:.2g} {UNITS[name]}, ", end=""
            )
            print(f"ess {row['ess_bulk']:.0f}, r_hat {row['r_hat']:.2f}{said}")


# %% [markdown]
# ## Figures of the results
# As in the paper: chains (Figures 5-7), correlations (8-10), and predictions of one second (11,
# 12), with the parameters of one draw for a whole run and with a new draw in every step.


# %%
def figures(truth, test, models, chains, folder):
    """Chains, correlations and predictions."""

    def save(figure, name):
        figure.savefig(folder / f"friction_{name}.png", dpi=110, bbox_inches="tight")
        if not NOTEBOOK:
            plt.close(figure)

    for kind, chain in chains.items():
        known = (
            {k: v for k, v in {**TRUTHS[truth], "sigma": NOISE}.items() if k in chain.posterior}
            if kind == truth
            else None
        )
        save(sid.plot_annealing(chain, truth=known)[0, 0].figure, f"{truth}_chain_{kind}")
    fig, axes = plt.subplots(
        1, len(models), figsize=(4.3 * len(models), 4), layout="constrained"
    )
    for ax, (kind, (_, idata)) in zip(axes, models.items(), strict=True):
        sid.plot_correlation(idata, axes=ax)
        ax.set_title(kind)
    save(fig, f"{truth}_correlation")
    predictions = {}
    for kind, (model, idata) in models.items():
        predictions[f"{kind}, one draw a run"] = sid.predict(idata, test, model=model, draws=50)
    model, idata = models[truth]
    each = sid.predict(idata, test, model=model, draws=50, every_step=True, random_seed=SEED)
    predictions[f"{truth}, a new draw every step"] = each
    axes = sid.plot_prediction(test, predictions, window=(3.0, 4.0))
    save(np.ravel(axes)[0].figure, f"{truth}_prediction")
    axes = sid.plot_prediction(test, {f"{truth}, all": predictions[f"{truth}, one draw a run"]})
    save(np.ravel(axes)[0].figure, f"{truth}_prediction_all")
    both = [predictions[f"{truth}, one draw a run"], each]
    spread = [1e6 * float(p["z"].std("draw").mean()) for p in both]
    apart = 1e6 * float(
        np.sqrt(((both[0]["z"].median("draw") - both[1]["z"].median("draw")) ** 2).mean())
    )
    print(
        f"  spread of 50 predictions: {spread[0]:.2f} um by fixed draws, {spread[1]:.2f} um by "
        "a new draw every step;",
        end="",
    )
    print(f" their medians are {apart:.2f} um apart (noise: {1e6 * NOISE:.0f} um)")
    k = {kind: predictions[f"{kind}, one draw a run"]["z"].median("draw") for kind in models}
    apart = {
        kind: 1e6 * float(np.sqrt(((k[kind] - k["coulomb"]) ** 2).mean()))
        for kind in k
        if kind != "coulomb"
    }
    print(
        "  prediction apart from Coulomb's: "
        + ", ".join(f"{kind} {value:.2f} um" for kind, value in apart.items())
    )


# %% [markdown]
# ## The study
# The study has three true laws, or one in the short form.

# %%
if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="friction study")
    parser.add_argument(
        "--short", action="store_true", default=os.environ.get("PM_SYSID_SHORT") == "1"
    )
    parser.add_argument("--truth", choices=KINDS, default=None, help="only this one")
    parser.add_argument(
        "--criteria", action="store_true", help="without the evidence; nothing is saved"
    )
    options = parser.parse_args([] if NOTEBOOK else None)
    FIGURES = HERE / "figures" / ("short" if options.short else "")
    RESULTS = (
        FIGURES if options.short or options.truth or options.criteria else HERE / "results"
    )  # whole runs only
    for folder in (FIGURES, RESULTS):
        folder.mkdir(parents=True, exist_ok=True)
    if options.short:
        CORES, CHAINS = 1, 2  # a process for each chain compiles for itself
    results = {}
    for truth in (
        [options.truth or "coulomb"]
        if options.short or options.truth
        else ("coulomb", "tanh", "viscous")
    ):
        sizes = (
            (1000, 1000, 100, 5.0, KINDS[:2]) if options.short else (40_000, 10_000, 2000, TEST)
        )
        print(f"\nTruth: {truth}", flush=True)
        _, test, models, chains, comparison, costs = study(
            truth, *sizes, evidence=not options.criteria
        )
        table = comparison.table
        print(comparison)
        best = {}
        for criterion in ("DIC", "WAIC", "LOO", "MSE"):
            # What a criterion itself is doubtful about does not stand for election.
            doubted = [
                kind
                for kind in KINDS
                if any(n.startswith(criterion) for n in comparison.notes.get(kind, ()))
            ]
            best[criterion] = (
                str(table[criterion].drop(doubted, errors="ignore").idxmin())
                if len(doubted) < len(table)
                else "none"
            )
        if not options.criteria:
            best["evidence"] = str(table["log_evidence"].idxmax())
        print("  chosen by " + ", ".join(f"{name}: {kind}" for name, kind in best.items()))
        posterior_table(truth, models)
        if not options.short:
            plain(models[truth][0], chains[truth], *sizes[:2])
        figures(truth, test, models, chains, FIGURES)
        comparison.to_html(FIGURES / f"friction_{truth}.html")
        results[truth] = {"table": table.to_dict("index"), "chosen": best, "costs": costs}
    (RESULTS / "friction_models.json").write_text(json.dumps(results, indent=1, default=float))
    print(f"Figures and reports in {FIGURES.relative_to(HERE)}")
