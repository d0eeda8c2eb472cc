# %% [markdown]
# # Silverbox: a measured Duffing oscillator
#
# The Silverbox is an electronic circuit that is described by `m y'' + c y' + k y + k3 y^3 = u +
# offset` (Wigren and Schoukens, 2013). As in Longbottom, Champneys and Rogers (2024), the model
# is trained on samples 49,278 to 52,350 (one multisine of 5 s). Free runs of the posterior are
# computed on samples 1000 to 40,000, whose amplitude grows beyond that of the training data
# (the "arrow head"). The errors of the particles of the paper are 1.057 / 1.825 / 2.952 mV
# (minimum, mean, maximum).
#
# - Data: the record as the package `nonlinear-benchmarks` has it, from the folder
#   `PM_SYSID_DATA` or `--data`.
# - Priors: log-normal with a standard deviation of 50 % to 65 % for the four physical
#   parameters, log-normal over a decade for the noise, normal for the offset and for the terms
#   that are added later.
# - Solver: `EK1(order=5)`, four steps per sample, a band-limited input; sequential sampling
#   with 2 x 1000 particles, and the No-U-Turn Sampler (NUTS). With fewer steps the calibrated
#   diffusion takes up what the structure lacks, and the evidence depends on the steps as well.
# - Runtime: about twenty minutes: `uv run examples/silverbox.py`. `--short`, two minutes, has
#   fewer particles and leaves out NUTS, the paper's settings, the comparison of structures and
#   most of the table of choices.

# %%
import argparse
import json
import os
import sys
import time
import warnings
from pathlib import Path

import arviz as az
import matplotlib
import numpy as np
import pymc as pm

import pm_sysid as sid

NOTEBOOK = "ipykernel" in sys.modules  # which shows figures as well
if not NOTEBOOK:
    matplotlib.use("Agg")
HERE = Path.cwd() if NOTEBOOK else Path(__file__).parent
SEED = 7
#: With twice these steps the log-likelihood moves by less than 0.1.
SOLVER, STEPS = sid.EK1(order=5), 4
PAPER = (1.057, 1.825, 2.952)
PARAMS = ("m", "c", "k", "k3", "offset")
STRUCTURES = {
    "Duffing": {},
    "offset": {"offset": True},
    "offset, cubic damping": {"offset": True, "cubic_damping": True},
    "offset, quadratic": {"offset": True, "quadratic": True},
    "offset, quadratic, cubic damping": {
        "offset": True,
        "quadratic": True,
        "cubic_damping": True,
    },
}

# %% [markdown]
# ## The models
# There are two models: the filter as the likelihood and, for comparison, a deterministic
# simulation with independent errors.


# %%
def priors(names=PARAMS):
    """Wide priors; the physical parameters are positive, as in the paper. Units: V for force
    and displacement."""
    everything = {
        "m": lambda: pm.LogNormal("m", np.log(5e-6), 0.5),
        "c": lambda: pm.LogNormal("c", np.log(2e-4), 0.5),
        "k": lambda: pm.LogNormal("k", np.log(1.0), 0.5),
        "k3": lambda: pm.LogNormal("k3", np.log(4.0), 0.5),
        "offset": lambda: pm.Normal("offset", 0.0, 0.01),
        "k2": lambda: pm.Normal("k2", 0.0, 0.3),  # at 0.3 V a tenth of the linear force
        "c3": lambda: pm.Normal("c3", 0.0, 3e-9),  # at 100 V/s a tenth of the linear damping
    }
    return {name: everything[name]() for name in names}


def filter_model(record, solver, substeps, system=None):
    """Posterior with the probabilistic ODE filter as likelihood."""
    system = system or sid.models.duffing(offset=True)
    with pm.Model() as model:
        noise = pm.LogNormal("noise", np.log(1e-3), 1.0)
        sid.ODEFilter(
            "y",
            system,
            record,
            priors(system.params),
            noise=noise,
            solver=solver,
            substeps=substeps,
        )
    return model


def first_order_duffing():
    """The same equations without chains of derivatives: each state has a prior of its own, as
    in the paper."""
    return sid.System(
        sid.models.duffing(offset=True).dynamics,
        states=("z", "v"),
        inputs=("F",),
        params=PARAMS,
        observe=lambda t, x, dx, u, p: x.z,
        chains=False,
    )


def output_error_model(record):
    """Posterior with a deterministic simulation and independent errors: any PyMC likelihood
    fits on it."""
    with pm.Model() as model:
        noise = pm.LogNormal("noise", np.log(1e-3), 1.0)
        x0 = {"z": pm.Normal("z0", 0.0, 0.1), "v": pm.Normal("v0", 0.0, 40.0)}
        mean = sid.simulate(
            sid.models.duffing(offset=True), record, priors(), x0=x0, substeps=4
        )
        pm.Normal("y", mean, noise, observed=record.y)
    return model


# %% [markdown]
# ## Quantities computed from a posterior
# These are the error of free runs, the evidence, and the agreement of two samplers.


# %%
def arrow_rmse(posterior, arrow, system=None):
    """Free-run error of each draw on the arrow head (mV); the runs are not stored."""
    system = system or sid.models.duffing(offset=True)
    misfit = sid.simulate(system, arrow, posterior[list(system.params)], distance="nmse")["y"]
    return 1e3 * np.sqrt(misfit / 100) * np.std(arrow.y)


def sequential(model, draws=1000, cores=2):
    """Posterior with evidence by IBIS; seconds it took, and its log evidence."""
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        idata = sid.sample_ibis(
            draws,
            model=model,
            chains=2,
            cores=cores,
            random_seed=SEED,
            store_stages=True,
            progressbar=False,
        )
    seconds = time.perf_counter() - start
    return idata, seconds, sid.log_evidence(idata)


def mode_rmse(model, arrow, start=None):
    """Free-run error at the posterior mode (mV)."""
    with model:
        mode = sid.find_mode(
            start=start, prior_draws=2000 if start is None else 0, random_seed=SEED
        )
    run = sid.simulate(
        sid.models.duffing(offset=True), arrow, {k: float(mode.initvals[k]) for k in PARAMS}
    )
    return float(1e3 * sid.rmse(arrow.y, run["y"])), mode


def triple(values):
    """Minimum / mean / maximum as text."""
    return (
        f"{float(values.min()):6.3f} / {float(values.mean()):6.3f} / {float(values.max()):6.3f}"
    )


def agreement(nuts, smc):
    """Posterior means and standard deviations of two samplers, and their difference in Monte
    Carlo errors."""
    a, b = (
        az.summary(nuts, round_to=20),
        az.summary(smc, var_names=list(nuts.posterior.data_vars), round_to=20),
    )
    print(
        "\n  parameter   NUTS mean   IBIS mean   difference / sd   difference / Monte Carlo "
        "error   sd ratio"
    )
    for name in a.index:
        difference = float(b.loc[name, "mean"]) - float(a.loc[name, "mean"])
        error = np.hypot(float(a.loc[name, "mcse_mean"]), float(b.loc[name, "mcse_mean"]))
        ratio = float(b.loc[name, "sd"]) / float(a.loc[name, "sd"])
        print(
            f"  {name:8s} {float(a.loc[name, 'mean']):12.5g} {float(b.loc[name, 'mean']):11.5g}"
            f" {difference / float(a.loc[name, 'sd']):17.3f} {difference / error:32.2f} "
            f"{ratio:10.3f}"
        )


# %% [markdown]
# ## Tables
# The tables show which structure the evidence selects, and the effect of each choice of solver
# and input.


# %%
def structures_table(train, arrow):
    """Evidence of each structure, and the arrow head that it did not see."""
    print(
        "\nStructures by evidence on the training record (EK1 order 5, x4; 2 x 1000 particles)"
    )
    print(
        f"  {'Duffing with':34s}  log evidence  error  noise mV   RMSE on the arrow head, mV   "
        "  seconds"
    )
    result = {}
    for name, terms in STRUCTURES.items():
        system = sid.models.duffing(**terms)
        idata, seconds, evidence = sequential(filter_model(train, SOLVER, STEPS, system))
        posterior = idata.posterior.to_dataset()
        rmse = arrow_rmse(posterior, arrow, system)
        noise, errors = (
            1e3 * float(posterior["noise"].mean()),
            [float(f(rmse)) for f in (np.min, np.mean, np.max)],
        )
        print(
            f"  {name:34s} {evidence.value:13.1f} {evidence.error:6.2f} {noise:9.4f}   "
            f"{triple(rmse)} {seconds:11.1f}{'   in doubt' if evidence.doubt else ''}",
            flush=True,
        )
        result[name] = {
            "log evidence": evidence.value,
            "error": evidence.error,
            "doubt": evidence.doubt or "",
            "noise": noise,
            "rmse": errors,
        }
    winner = max(result, key=lambda name: result[name]["log evidence"])
    print(
        f"  chosen by evidence: {winner}; its mean error on the arrow head "
        f"{result[winner]['rmse'][1]:.3f} mV (bar 0.48)"
    )
    return result


def choices_table(train, arrow, short):
    """What each choice does, at the posterior mode."""
    rows = [
        ("EK1 order 5, x4, band-limited", filter_model, (train, SOLVER, STEPS)),
        (
            "  the same, linear input (foh)",
            filter_model,
            (train.replace(intersample="foh"), SOLVER, STEPS),
        ),
        (
            "  the same, held input (zoh)",
            filter_model,
            (train.replace(intersample="zoh"), SOLVER, STEPS),
        ),
        ("EK1 order 4, x2", filter_model, (train, sid.EK1(order=4), 2)),
        ("EK1 order 4, x4", filter_model, (train, sid.EK1(order=4), 4)),
        ("EK1 order 4, x8", filter_model, (train, sid.EK1(order=4), 8)),
        ("EK1 order 3, x1", filter_model, (train, sid.EK1(order=3), 1)),
        ("EK1 order 3, x2", filter_model, (train, sid.EK1(order=3), 2)),
        ("EK1 order 3, x4", filter_model, (train, sid.EK1(order=3), 4)),
        ("EK0 order 2, x4", filter_model, (train, sid.EK0(order=2), 4)),
        (
            "EK0 order 2, x1, first-order form (paper)",
            filter_model,
            (train, sid.EK0(order=2), 1, first_order_duffing()),
        ),
        ("output error (RK4 x4)", output_error_model, (train,)),
    ]
    rows = [rows[0], rows[-1]] if short else rows
    result, first = {}, None
    print("\nFree run on the arrow head at the posterior mode")
    print(
        f"{'likelihood and input between samples':44s} {'RMSE mV':>9s} {'noise mV':>9s} "
        f"{'log posterior':>14s} {'seconds':>8s}"
    )
    for name, build, arguments in rows:
        start = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", sid.SubstepWarning
            )  # coarse steps are the point of the table
            warnings.simplefilter("ignore", UserWarning)
            between = arguments[
                0
            ].intersample  # the free run makes the same assumption as the training
            # The output error has many maxima: from the priors' centre the search ends in a
            # wrong one, so it starts where the filter ended.
            start_at = (
                first and {k: first[k] for k in (*PARAMS, "noise")}
                if build is output_error_model
                else None
            )
            rmse, mode = mode_rmse(
                build(*arguments), arrow.replace(intersample=between), start_at
            )
            first = first or mode.initvals
        took = time.perf_counter() - start
        result[name.strip()] = {"rmse": rmse, "log posterior": float(mode.logp)}
        print(
            f"{name:44s} {rmse:9.3f} {1e3 * float(mode.initvals['noise']):9.4f} "
            f"{mode.logp:14.2f} {took:8.1f}",
            flush=True,
        )
    return result


# %% [markdown]
# ## The records

# %%
ready = False
if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Silverbox study")
    parser.add_argument("--data", default=None, help="folder with the records")
    parser.add_argument(
        "--short", action="store_true", default=os.environ.get("PM_SYSID_SHORT") == "1"
    )
    options = parser.parse_args([] if NOTEBOOK else None)
    FIGURES = HERE / "figures" / ("short" if options.short else "")
    RESULTS = FIGURES if options.short else HERE / "results"
    try:
        train, arrow = (
            sid.datasets.silverbox(part, folder=options.data) for part in ("train", "arrow")
        )
        ready = True
        print(train)
    except (FileNotFoundError, ImportError) as error:
        print(f"Skipped: the Silverbox record is not here. {error}")

# %% [markdown]
# ## The sequential posterior
# Iterated batch importance sampling (IBIS) processes the samples one after the other. Every
# stage ends with the posterior given the record so far, and with the evidence. For comparison,
# a second run uses the settings of the paper (EK0, first-order form, one step per sample).

# %%
if ready:
    results, lines = {}, []
    model = filter_model(train, SOLVER, STEPS)
    # A process for each chain compiles for itself: worth it for a thousand particles only.
    idata, seconds, evidence = (
        sequential(model, 200, cores=1) if options.short else sequential(model)
    )
    rmse = arrow_rmse(idata.posterior.to_dataset(), arrow)
    stages = int(idata.sample_stats["time_index"].notnull().sum("stage").max())
    lines.append(
        (
            "EK1 order 5, x4, IBIS",
            rmse,
            f"{seconds:.0f} s, {stages} stages, log evidence {evidence.value:.1f}",
        )
    )
    if not options.short:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", sid.SubstepWarning)  # the point of the row
            paper_model = filter_model(train, sid.EK0(order=2), 1, first_order_duffing())
        paper_idata, seconds, worse = sequential(paper_model)
        paper_rmse = arrow_rmse(paper_idata.posterior.to_dataset(), arrow)
        lines.append(
            (
                "EK0 order 2, x1, first-order form, IBIS",
                paper_rmse,
                f"{seconds:.0f} s, log evidence {worse.value:.1f}",
            )
        )
        results["paper settings"] = [
            float(paper_rmse.min()),
            float(paper_rmse.mean()),
            float(paper_rmse.max()),
        ]
    results["ibis"] = [float(rmse.min()), float(rmse.mean()), float(rmse.max())]
    idata.update(
        pm.sample_prior_predictive(
            500, model=model, var_names=[*PARAMS, "noise"], random_seed=SEED
        )
    )

# %% [markdown]
# ## The same posterior by NUTS
# NUTS starts at the posterior mode, with the curvature there as the mass matrix.

# %%
if ready:
    if not options.short:
        start = time.perf_counter()
        with model:
            mode = sid.find_mode()
            nuts = pm.sample(
                500,
                tune=300,
                chains=4,
                cores=2,
                random_seed=SEED,
                initvals=mode.initvals,
                step=mode.nuts(),
                progressbar=False,
            )
        divergences = int(nuts.sample_stats["diverging"].sum())
        nuts_rmse = arrow_rmse(
            nuts.posterior.to_dataset().isel(draw=slice(None, None, 10)), arrow
        )
        took = f"{time.perf_counter() - start:.0f} s, {divergences} divergences"
        lines.append(("EK1 order 5, x4, NUTS", nuts_rmse, took))
        results |= {
            "nuts": [float(nuts_rmse.min()), float(nuts_rmse.mean()), float(nuts_rmse.max())]
        }
        agreement(nuts, idata)

    print(
        "\nFree run of the posterior on samples 1000-40,000, RMSE in mV: minimum / mean / "
        "maximum over particles"
    )
    print(f"  {'paper (EK0, IBIS)':42s} {PAPER[0]:6.3f} / {PAPER[1]:6.3f} / {PAPER[2]:6.3f}")
    for name, values, note in lines:
        print(f"  {name:42s} {triple(values)}   {note}", flush=True)

# %% [markdown]
# ## Choice of the structure
# Five structures are compared by their evidence, which is computed on the training record
# alone.

# %%
if ready and not options.short:
    results["structures"] = structures_table(train, arrow)

# %% [markdown]
# ## The effect of each choice

# %%
if ready:
    results["choices"] = choices_table(train, arrow, options.short)
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "silverbox.json").write_text(json.dumps(results, indent=1))

# %% [markdown]
# ## Figures of the results
# Prior and posterior, and the fit of the training record.


# %%
def save(axes, name):
    """Figure into a file."""
    FIGURES.mkdir(parents=True, exist_ok=True)
    np.ravel(axes)[0].figure.savefig(
        FIGURES / f"silverbox_{name}.png", dpi=150, bbox_inches="tight"
    )


if ready:
    some = idata.posterior.to_dataset().isel(draw=slice(None, None, 20))
    fit, run = (
        sid.simulate(sid.models.duffing(offset=True), record, some[list(PARAMS)])
        for record in (train, arrow)
    )
    save(sid.plot_prior_posterior(idata, var_names=list(PARAMS)), "posterior")
    save(sid.plot_fit(train, fit, zoom=(2.0, 2.15)), "training")

# %% [markdown]
# The change of the posterior while samples are added. The posterior of a correct model would
# become narrower without drifting:

# %%
if ready:
    save(sid.plot_ibis(idata), "ibis")

# %% [markdown]
# The free run on the arrow head, and the innovations of the training record:

# %%
if ready:
    save(sid.plot_fit(arrow, run, zoom=(63.2, 63.4)), "arrow")
    innovations = sid.innovations(idata, "y", model=model)["standardised"].values[:, 0]
    save(sid.plot_residuals(innovations, u=train.u, fs=train.fs), "innovations")
    print(sid.residual_tests(innovations, train.u))
    print(f"Figures in {FIGURES.relative_to(HERE)}")
