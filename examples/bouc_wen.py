# %% [markdown]
# # Bouc-Wen hysteresis: a hidden state, observed by one accelerometer
#
# The system is a mass on a spring with hysteresis: `m z'' + c z' + k z + r = F`, `r' = alpha z'
# - beta (gamma |z'| r + delta z' |r|)`. As in Longbottom, Champneys and Rogers (2024), the
# model is trained on 3 s of its own simulated acceleration with 5 % noise. The posterior is
# validated by free runs of the displacement on the two records of the hysteretic benchmark
# (Noel and Schoukens, 2016), which are not used for training. The hysteretic force `r` is not
# measured.
#
# - Data: the training record is simulated here; the benchmark's test records are read from the
#   folder `PM_SYSID_DATA` or `--data`.
# - Priors: the paper's normal ones for the seven parameters; log-normal over a decade for the
#   noise.
# - Solver: `EK1(order=3)` with two steps per sample, chosen automatically, and a band-limited
#   input; sequential sampling with 2 x 1000 particles.
# - Runtime: `uv run examples/bouc_wen.py` takes 12 minutes of processor time. `--short` takes a
#   quarter of the record and few particles.

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
import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
import xarray as xr

import pm_sysid as sid

NOTEBOOK = "ipykernel" in sys.modules  # which shows figures as well
if not NOTEBOOK:
    matplotlib.use("Agg")
HERE = Path.cwd() if NOTEBOOK else Path(__file__).parent
SEEDS = (1, 2, 3)
TRUTH = {"m": 2.0, "c": 10.0, "k": 5e4, "alpha": 5e4, "beta": 1e3, "gamma": 0.8, "delta": -1.1}
#: Mean and variance. The paper prints delta's mean without its sign.
PRIORS = {
    "m": (2.1, 0.011),
    "c": (8.8, 6.97),
    "k": (5.9e4, 2.18e8),
    "alpha": (4.4e4, 1.74e8),
    "beta": (8.6e2, 6.66e4),
    "gamma": (0.93, 0.0541),
    "delta": (-1.3, 0.1056),
}
#: beta, gamma and delta enter the equations as two products, which the record tells; the
#: factors it does not.
IDENTIFIABLE, FACTORS = (
    ("m", "c", "k", "alpha", "beta_gamma", "beta_delta"),
    ("beta", "gamma", "delta"),
)
TRUE = TRUTH | {f"beta_{name}": TRUTH["beta"] * TRUTH[name] for name in ("gamma", "delta")}
PAPER = {
    "sine sweep": (4.6313e-6, 5.4017e-6, 6.6416e-6),
    "multisine": (7.1967e-7, 2.4772e-6, 6.2220e-6),
}
SYSTEM = sid.models.bouc_wen(observe="acceleration")
#: The paper's form of the same equations: position and velocity as separate first-order
#: coordinates.
FIRST_ORDER = sid.System(
    SYSTEM.dynamics,
    states=SYSTEM.states,
    inputs=SYSTEM.inputs,
    params=SYSTEM.params,
    observe=SYSTEM.observe,
    chains=False,
)
SOLVER = sid.EK1(order=3)


# %% [markdown]
# ## The experiment
# The force is a multisine of 2000 lines between 0.5 and 100 Hz with random phases and a peak of
# 208 N. Its amplitude increases from zero over the first tenth. The reference is a Runge-Kutta
# solution at 131072 Hz, of which every 32nd sample is kept.

# %%
FS, OVERSAMPLING, SECONDS = 4096, 32, 3.0


def multisine(t, *, lines=2000, band=(0.5, 100.0), peak=208.0, seed=0):
    """Force at uniform times, faded in over the first tenth."""
    phases = np.random.default_rng(seed).uniform(0, 2 * np.pi, lines)
    omega = 2 * np.pi * np.linspace(*band, lines)
    # cos(omega t + phase) at t = a + b, as a product of matrices: a coarse grid of times by the
    # fine grid of its cells.
    cell = 1024
    coarse, fine = t[::cell], t[:cell] - t[0]
    sums = np.exp(1j * (np.outer(coarse, omega) + phases)) @ np.exp(1j * np.outer(omega, fine))
    force = sums.real.ravel()[: len(t)] * np.minimum(1.0, (t - t[0]) / (0.1 * SECONDS))
    return peak * force / np.abs(force).max()


def experiment():
    """Input and true response (dims time) at the sampling rate."""
    t = np.arange(round(SECONDS * FS) * OVERSAMPLING) / (FS * OVERSAMPLING)
    fine = sid.TimeSeries(t, multisine(t))
    run = sid.simulate(SYSTEM, fine, TRUTH, x0=0.0, substeps=1).isel(
        time=slice(None, None, OVERSAMPLING)
    )
    return sid.TimeSeries(t[::OVERSAMPLING], fine.u[::OVERSAMPLING], outputs=()), run


def measured(record, run, seed):
    """The record as the accelerometer sees it: 5 % noise."""
    clean = run["y"].values
    noise = 0.05 * np.sqrt(np.mean(clean**2))
    return record.replace(
        y=clean + noise * np.random.default_rng(seed).standard_normal(len(clean)), outputs="y"
    ), noise


# %% [markdown]
# ## The model
# `beta` enters only as `beta gamma` and `beta delta`, so the record determines the products and
# not the factors. As a function of the factors, the posterior is a thin curved ridge, on which
# normal proposals fail. With the products as variables, each with a prior conditional on
# `beta`, the prior is exactly the same and the ridge is straight.


# %%
def filter_model(record, solver=SOLVER, substeps="auto", system=SYSTEM):
    """Posterior of the seven parameters and the noise; the record starts at rest."""
    with pm.Model() as model:
        params = {
            name: pm.Normal(name, PRIORS[name][0], np.sqrt(PRIORS[name][1]))
            for name in ("m", "c", "k", "alpha", "beta")
        }
        beta = params["beta"]
        for name in ("gamma", "delta"):
            mean, variance = PRIORS[name]
            product = pm.Normal(f"beta_{name}", beta * mean, abs(beta) * np.sqrt(variance))
            params[name] = pm.Deterministic(name, product / beta)
        noise = pm.LogNormal("noise", 0.0, 1.0)
        sid.ODEFilter(
            "y", system, record, params, noise=noise, x0=0.0, solver=solver, substeps=substeps
        )
    return model


# %% [markdown]
# ## Validation
# A free run is computed for every particle on the records of the benchmark. The multisine
# record is a steady state: two periods are simulated from rest, and the first, in which the
# transient decays, is marked as missing.


# %%
def validation(folder=None):
    """The two test records, ready for runs from rest."""
    sweep = sid.datasets.bouc_wen("test_sinesweep", folder=folder)
    period = sid.datasets.bouc_wen("test_multisine", folder=folder)
    n = len(period)
    twice = sid.TimeSeries(
        np.arange(2 * n) / period.fs,
        np.tile(period.u, 2),
        np.append(np.full(n, np.nan), period.y),
        periodic=True,
    )
    return {"sine sweep": sweep, "multisine": twice}


def free_run_rmse(params, record):
    """Error of the displacement (m) for each parameter set; no run is kept."""
    displacement = sid.models.bouc_wen(observe="displacement")
    with warnings.catch_warnings():
        # "auto" looks at the worst sample and takes 32 substeps, which move the root mean
        # square by 0.3 % only.
        warnings.simplefilter("ignore", sid.SubstepWarning)
        distance = sid.simulate(
            displacement, record, params, x0=0.0, substeps=8, distance="nmse"
        )["y"]
    return np.sqrt(distance / 100).values.ravel() * np.nanstd(record.y)


def triple(values):
    """Minimum, mean and maximum."""
    return [float(f(values)) for f in (np.min, np.mean, np.max)]


def rmse_row(name, errors):
    """One line of the table: minimum / mean / maximum in micrometres on each record."""
    columns = (" / ".join(f"{1e6 * v:6.3f}" for v in errors[record]) for record in PAPER)
    print(f"{name:44s}" + "   ".join(columns), flush=True)


def joint_distance(posterior):
    """Squared Mahalanobis distance of the truth: below 12.6 in 95 % of records, since six
    numbers are known jointly."""
    draws = np.stack([posterior[name].values.ravel() for name in IDENTIFIABLE])
    away = draws.mean(axis=1) - [TRUE[name] for name in IDENTIFIABLE]
    return float(away @ np.linalg.solve(np.cov(draws), away))


def parameter_table(posterior):
    """Truth, mean and 95 % interval: what the record tells, then the factors it does not."""
    rows = {}
    print(f"{'':12s}{'truth':>10s}{'mean':>12s}{'95 % interval':>26s}   inside?")
    for name in (*IDENTIFIABLE, *FACTORS):
        values = posterior[name].values.ravel()
        low, high = np.quantile(values, [0.025, 0.975])
        inside = bool(low <= TRUE[name] <= high)
        line = f"{name:12s}{TRUE[name]:10.4g}{values.mean():12.5g}{low:13.5g}{high:13.5g}"
        line += f"   {'yes' if inside else 'no'}"
        print(line + "   (only its products show)" * (name in FACTORS), flush=True)
        rows[name] = {
            "truth": TRUE[name],
            "mean": float(values.mean()),
            "interval": [low, high],
            "inside": inside,
        }
    return rows


# %% [markdown]
# ## Figures
# The degeneration and renewal of the particles, as in Figure 2 of the paper.


# %%
def degeneracy(idata, model, record, run, between=(1600, 3000), draws=50):
    """Acceleration as the particles of each stage predict it, and their effective size, from
    sample to sample."""
    stages = idata["stages"].to_dataset().isel(chain=0, drop=True)
    path = sid.stages(idata)["ess_path"].isel(chain=0, drop=True)
    ends = stages["time_index"].values
    ends = ends[np.isfinite(ends)].astype(int)
    first, last = (
        np.searchsorted(ends, between[0], "right"),
        np.searchsorted(ends, between[1], "left"),
    )
    # Stage s weights the particles that stage s - 1 left, over the samples up to its own end.
    shown = np.arange(max(first, 1), min(last + 1, len(ends)))
    particles = stages.drop_vars("time_index").isel(
        stage=shown - 1, draw=slice(None, None, stages.sizes["draw"] // draws)
    )
    particles = particles.rename(stage="chain")
    found = sid.innovations(
        particles, "y", draws=particles.sizes["chain"] * particles.sizes["draw"], model=model
    )
    predicted = record.y - found["innovation"].values[..., 0].reshape(
        len(shown), -1, len(record)
    )

    _, axes = plt.subplots(
        3, sharex=True, figsize=(7.2, 5.2), layout="constrained", height_ratios=(1.2, 1, 1)
    )
    clean = run["y"].values
    window = slice(*between)
    axes[0].plot(record.t[window], record.y[window], ".", ms=1.5, color="0.6", label="measured")
    for stage, paths in zip(shown, predicted, strict=True):
        part = slice(max(ends[stage - 1], between[0]), min(ends[stage], between[1]))
        t = record.t[part]
        axes[0].plot(t, paths[:, part].T, color="#0072B2", lw=0.5, alpha=0.3)
        axes[1].plot(t, (paths[:, part] - clean[part]).T, color="#0072B2", lw=0.5, alpha=0.3)
        at = np.linspace(ends[stage - 1], ends[stage], path.sizes["point"]) / FS
        axes[2].plot(
            at,
            path.isel(stage=stage),
            color="#0072B2",
            label="effective size" if stage == shown[0] else None,
        )
        for ax in axes:
            ax.axvline(ends[stage] / FS, color="0.8", lw=0.8, zorder=0)
    axes[0].plot([], [], color="#0072B2", label="particles")
    axes[2].axhline(0.5 * stages.sizes["draw"], color="#D55E00", lw=1, label="threshold")
    axes[0].set_ylabel("acceleration\n(m/s²)")
    axes[1].set_ylabel("particles -\ntruth (m/s²)")
    axes[2].set(
        ylabel="effective size",
        xlabel="time (s)",
        xlim=(between[0] / FS, between[1] / FS),
        ylim=(0, None),
    )
    for ax in (axes[0], axes[2]):
        ax.legend(
            fontsize="small",
            frameon=False,
            ncols=2,
            loc="lower right" if ax is axes[2] else "upper right",
        )
    return axes


# %% [markdown]
# ## The study


# %%
def sample(model, draws, seed, cores=None):
    """Posterior by sequential Monte Carlo, and the seconds it took."""
    start = time.perf_counter()
    with model:
        idata = sid.sample_ibis(
            draws, chains=2, cores=cores, random_seed=seed, store_stages=True, progressbar=False
        )
    return idata, time.perf_counter() - start


def study(solver, system, substeps, short=False):
    """Posterior, parameters and free runs for each noise draw; and the first posterior with its
    model and record."""
    draws, seeds = (200, SEEDS[:1]) if short else (1000, SEEDS)
    rows, kept = {}, None
    for seed in seeds:
        record, _ = measured(unmeasured, run, seed)
        if short:
            record = record[: len(record) // 4]
        model = filter_model(record, solver, substeps, system)
        idata, seconds = sample(model, draws, seed, cores=1 if short else None)
        posterior = idata.posterior.to_dataset()
        worst = float(az.rhat(posterior[list(IDENTIFIABLE)]).to_array().max())
        print(
            f"\n{type(solver).__name__}({solver.order}), noise draw {seed}: {seconds:.0f} s, "
            f"largest R-hat {worst:.3f}"
        )
        runs = posterior.isel(draw=slice(None, None, 4)) if short else posterior
        errors = {name: triple(free_run_rmse(runs, test)) for name, test in tests.items()}
        table = parameter_table(posterior)
        distance = joint_distance(posterior)
        print(f"jointly: squared distance of the truth {distance:.1f} (95 % below 12.6)")
        rows[seed] = {
            "rmse": errors,
            "seconds": seconds,
            "rhat": worst,
            "parameters": table,
            "distance": distance,
        }
        kept = kept or (idata, model, record)
    return rows, kept


ready = False
if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Bouc-Wen study")
    parser.add_argument("--data", default=None, help="folder with the benchmark's records")
    parser.add_argument(
        "--short", action="store_true", default=os.environ.get("PM_SYSID_SHORT") == "1"
    )
    options = parser.parse_args([] if NOTEBOOK else None)
    FIGURES = HERE / "figures" / ("short" if options.short else "")
    RESULTS = FIGURES if options.short else HERE / "results"
    try:
        tests = validation(options.data)
        ready = True
    except (FileNotFoundError, ImportError) as error:
        print(f"Skipped: the Bouc-Wen records are not here. {error}")

# %%
if ready:
    unmeasured, run = experiment()
    results = {
        "paper": PAPER,
        "truth": {name: triple(free_run_rmse(TRUTH, record)) for name, record in tests.items()},
    }
    results["this"], (idata, model, record) = study(SOLVER, SYSTEM, "auto", options.short)
    if not options.short:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", sid.SubstepWarning
            )  # one coarse step a sample is the point
            results["paper's settings"], _ = study(sid.EK0(order=2), FIRST_ORDER, 1)

# %% [markdown]
# ## Comparison with the paper

# %%
if ready:
    print(
        "\nFree runs of the particles, RMSE of the displacement in micrometres: minimum / mean "
        "/ maximum"
    )
    print(f"{'':44s}{'sine sweep':27s}   {'multisine':27s}")
    rmse_row("paper", PAPER)
    titles = {
        "paper's settings": "EK0(2), first-order form, one step",
        "this": "EK1(3), chains, substeps='auto'",
    }
    for label, title in titles.items():
        rows = results.get(label, {})
        for seed, row in rows.items():
            rmse_row(f"{title}, noise {seed}", row["rmse"])
        if len(rows) > 1:
            mean = {
                name: np.mean([row["rmse"][name] for row in rows.values()], axis=0).tolist()
                for name in PAPER
            }
            rmse_row("  mean of the noise draws", mean)
            results[f"{label}, mean"] = mean
    rmse_row("true parameters", results["truth"])
    inside = [
        row["parameters"][name]["inside"]
        for row in results["this"].values()
        for name in IDENTIFIABLE
    ]
    print(f"True values inside their 95 % intervals: {sum(inside)} of {len(inside)}")
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "bouc_wen.json").write_text(json.dumps(results, indent=1))

# %% [markdown]
# ## Figures of the results
# The figures of the paper: prior and posterior relative to the true values (Figure 1), and
# their change from stage to stage.


# %%
def save(axes, name):
    """Figure into a file."""
    FIGURES.mkdir(parents=True, exist_ok=True)
    np.ravel(axes)[0].figure.savefig(
        FIGURES / f"bouc_wen_{name}.png", dpi=150, bbox_inches="tight"
    )


if ready:
    with model:
        idata.update(pm.sample_prior_predictive(2000, var_names=list(TRUE), random_seed=1))
    relative = {
        g: idata[g].to_dataset()[list(TRUE)] / xr.Dataset(TRUE) for g in ("posterior", "prior")
    }
    names = dict.fromkeys(TRUE, 1.0)
    save(
        sid.plot_prior_posterior(
            xr.DataTree.from_dict(relative), var_names=list(names), truth=names
        ),
        "posterior",
    )
    save(
        sid.plot_ibis(
            idata, var_names=list(IDENTIFIABLE), truth={n: TRUE[n] for n in IDENTIFIABLE}
        ),
        "stages",
    )

# %% [markdown]
# The degeneration and renewal of the particles (2), and the states (3), of which only the
# acceleration was measured:

# %%
if ready:
    run = run.isel(time=slice(len(record)))
    save(degeneracy(idata, model, record, run), "degeneracy")
    states = sid.sample_states(idata, model=model, draws=100, random_seed=1)
    axes = sid.plot_states(
        states,
        truth=run,
        var_names=["z", "v", "r", "y"],
        zoom=(0.711, 0.717) if options.short else (1.711, 1.717),
    )
    for ax, label in zip(
        axes[:, 0], ("z (m)", "v (m/s)", "r (N)", "acceleration\n(m/s²)"), strict=True
    ):
        ax.set_ylabel(label)
    save(axes, "states")
    print(f"Figures in {FIGURES.relative_to(HERE)}")
