# %% [markdown]
# # How many slopes? Piecewise-linear oscillators by ABC, and by likelihood
#
# Nayek et al. (2023) identify oscillators whose spring or damper has several linear regions.
# The number of regions is found by model selection, without a likelihood: by approximate
# Bayesian computation with nested sampling (ABC-NS), which compares models by the distance
# between their simulations and the record.
#
# There are four studies, each with a linear, a bilinear, a trilinear and a quadlinear model: a
# trilinear spring, a trilinear damper, a cubic spring (which none of the models describes
# exactly), and static maps of dampers, two measured and one simulated. The result of ABC is
# compared with that of the likelihood of the filter for the same models and priors, to show the
# cost and the accuracy of ABC.
#
# - Data: simulated here; the measured dampers in the folder `PM_SYSID_DATA` or `--data`.
# - Priors: log-uniform for mass, damping and slopes, uniform for breakpoints, which are in
#   order; as in the paper.
# - Solver: eight Runge-Kutta steps per sample for ABC, eight steps of `EK1(order=3)` for the
#   likelihood; 1000 particles.
# - Runtime: `uv run examples/piecewise_linear.py` takes an hour or more, nearly all of it
#   for the likelihood. `--short`, one oscillator and one damper with few particles, takes a
#   minute.

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

import pm_sysid as sid

NOTEBOOK = "ipykernel" in sys.modules  # which shows figures as well
if not NOTEBOOK:
    matplotlib.use("Agg")
HERE = Path.cwd() if NOTEBOOK else Path(__file__).parent
SEED = 1
FS = 100.0
STUDIES = ("stiffness", "visited", "damping", "cubic", "absorber", "mr", "friction")
NAMES = ("linear", "bilinear", "trilinear", "quadlinear")
STIFFNESS = {"m": 1.0, "c0": 2.0, "k0": 1e3, "k1": 3e3, "k2": 7e3, "d1": -1e-3, "d2": 0.5e-3}
DAMPING = {"m": 1.0, "k0": 1e3, "c0": 2.0, "c1": 0.5, "c2": 0.2, "v1": -0.05, "v2": 0.025}
CUBIC = {"m": 1.0, "c": 2.0, "k": 1e3, "k3": 1e8}
#: Tables 1 and 2 of the paper: log-uniform, and uniform for breakpoints.
PRIORS = {
    "stiffness": {
        "m": (0.5, 1.5),
        "c0": (0.1, 4.0),
        "k0": (500.0, 1500.0),
        "k": (500.0, 1e4),
        "d": (-10e-3, 10e-3),
    },
    "damping": {
        "m": (0.5, 1.5),
        "c0": (0.1, 4.0),
        "k0": (500.0, 1500.0),
        "c": (0.1, 4.0),
        "v": (-0.5, 0.5),
    },
}

# %% [markdown]
# ## The records
# The force is band-limited and Gaussian, 2 N up to 20 Hz, for 10 s at 100 Hz, and the
# oscillator starts at rest. The measured acceleration has 5 % noise.
#
# The force of the paper is not public. For about half of all random forces this trilinear
# oscillator is chaotic: if `k1` is larger by 0.03 %, its response differs from the true one by
# 5 % to 40 % of its variance within the 10 s. A free run, for ABC or any other method, can then
# not be compared with the record (the filter can be used, because it is corrected by the
# measurements). The seed here gives a regular response.


# %%
def force(n=1001, seed=7):
    """Gaussian force in the band from 0 to 20 Hz, 2 N rms."""
    lines = np.random.default_rng(seed).standard_normal((2, 2049))
    frequency = np.fft.rfftfreq(4096, 1 / FS)
    spectrum = np.where((frequency > 0) & (frequency <= 20.0), lines[0] + 1j * lines[1], 0.0)
    u = np.fft.irfft(spectrum, 4096)[:n]
    return sid.TimeSeries(np.arange(n) / FS, 2.0 * u / u.std(), None)


def measured(system, params, noise, seed=0, forcing=7):
    """Acceleration of the true system, with noise as a fraction of its standard deviation."""
    record = force(seed=forcing)
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", sid.SubstepWarning
        )  # a kink between two samples: the last digits move on
        run = sid.simulate(system, record, params, x0=0.0, substeps=256)
    y = run["y"].values
    return record.replace(
        y=y + noise * y.std() * np.random.default_rng(seed).standard_normal(len(y)), outputs="y"
    ), run


# %% [markdown]
# ## The models
# Breakpoints may lie on either side of the origin and are exchangeable, so they are ordered by
# size. Adjacent slopes differ by at least 5 %. These two constraints are potentials, which
# restrict the prior.


# %%
def log_uniform(name, bounds):
    """Log-uniform prior."""
    return pm.Deterministic(name, pm.math.exp(pm.Uniform(f"log_{name}", *np.log(bounds))))


def parameters(kind, regions, breakpoints=None):
    """Priors and constraints of an oscillator in the current model."""
    prior = PRIORS[kind]
    slope, corner = ("k", "d") if kind == "stiffness" else ("c", "v")
    params = {name: log_uniform(name, prior[name]) for name in ("m", "c0", "k0")}
    slopes = [log_uniform(f"{slope}{i}", prior[slope]) for i in range(1, regions)]
    corners = [
        pm.Uniform(f"{corner}{i}", *(breakpoints or prior[corner])) for i in range(1, regions)
    ]
    if regions > 1:
        sid.models.piecewise_constraints(params[f"{slope}0"], slopes, corners)
    params |= {f"{slope}{i}": s for i, s in enumerate(slopes, 1)} | {
        f"{corner}{i}": c for i, c in enumerate(corners, 1)
    }
    return params


def oscillators(kind, record, breakpoints=None, likelihood=False):
    """The four models of a record, with a simulator or with a likelihood."""
    models = {}
    for regions, name in enumerate(NAMES, 1):
        system = sid.models.piecewise_oscillator(regions, nonlinear=kind)
        with pm.Model() as models[name], warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", sid.SubstepWarning
            )  # at a corner between two samples any step is too long
            params = parameters(kind, regions, breakpoints)
            if likelihood:
                noise = pm.LogNormal("noise", np.log(0.05 * np.std(record.y)), 1.0)
                sid.ODEFilter(
                    "y",
                    system,
                    record,
                    params,
                    noise=noise,
                    x0=0.0,
                    solver=sid.EK1(order=3),
                    substeps=8,
                )
            else:
                sid.ODESimulator("y", system, record, params, x0=0.0, substeps=8)
    return models


# %% [markdown]
# ## ABC and likelihood


# %%
def abc(models, particles, seed=SEED, **settings):
    """Run ABC-NS and say what it found."""
    begin = time.perf_counter()
    idata = sid.sample_abc_ns(
        models, particles, random_seed=seed, progressbar=False, **settings
    )
    took = time.perf_counter() - begin
    rounds = idata["populations"].to_dataset()
    last = rounds.isel(population=-1)
    best = str(rounds["model"].values[int(last["probability"].values.argmax())])
    print(
        f"  ABC-NS: {idata.attrs['stopped']} in {took:.0f} s, {rounds.sizes['population']} "
        "populations, ",
        end="",
    )
    print(
        f"{int(last['simulations']):,} simulations, last threshold "
        f"{float(last['threshold']):.4g}, ",
        end="",
    )
    print(
        f"acceptance {float(rounds['acceptance'].min()):.1e} to "
        f"{float(rounds['acceptance'].max()):.1e}"
    )
    for name in NAMES:
        here = last.sel(model=name)
        print(
            f"    {name:10s} probability {float(here['probability']):.3f}, share of particles "
            f"{float(here['share']):.3f}"
        )
    lists = {name: last[name].values.tolist() for name in ("probability", "share")}
    return (
        idata,
        best,
        {"seconds": took, "simulations": int(last["simulations"]), **lists, "best": best},
    )


def by_likelihood(models, particles):
    """Evidence by sequential sampling, and LOO, for the same models."""
    rows, posteriors = {}, {}
    for name, model in models.items():
        begin = time.perf_counter()
        with model:
            idata = sid.sample_ibis(
                particles, chains=2, cores=2, random_seed=SEED, progressbar=False
            )
        evidence = sid.log_evidence(idata)
        took = time.perf_counter() - begin
        posteriors[name] = idata
        evaluations = float(idata.sample_stats["evaluations"].max("stage").sum()) / len(
            idata.observed_data["y"]
        )
        rows[name] = {
            "log evidence": evidence.value,
            "error": evidence.error,
            "seconds": took,
            "runs": evaluations,
        }
        rows[name]["doubt"] = evidence.doubt
    comparison = sid.compare_models(
        {name: (models[name], posteriors[name]) for name in models}, draws=1000
    )
    for name, row in rows.items():
        row["LOO"] = float(comparison.table.loc[name, "LOO"])
    best = max(rows, key=lambda name: rows[name]["log evidence"])
    print("  likelihood:  log evidence        LOO (deviance)   runs      s")
    for name, row in rows.items():
        print(
            f"    {name:10s} {row['log evidence']:9.2f} +/- {row['error']:5.2f} "
            f"{row['LOO']:12.1f} ",
            end="",
        )
        print(
            f"{row['runs']:10,.0f} {row['seconds']:6.1f}{'   in doubt' if row['doubt'] else ''}"
        )
    return posteriors, best, rows


def coverage(posterior, truth):
    """Print intervals beside the truth; how many of them hold it."""
    hits = 0
    for name, value in truth.items():
        low, middle, high = np.quantile(posterior[name], [0.025, 0.5, 0.975])
        hits += low <= value <= high
        print(
            f"      {name:3s} true {value:9.4g}   95 % from {low:9.4g} to {high:9.4g}, median "
            f"{middle:9.4g}"
        )
    return int(hits)


def spring(x, p, regions, letters=("k", "d")):
    """Force of a posterior's draws."""
    slope, corner = letters
    slopes, corners = (
        [getattr(p, f"{c}{i}") for i in range(1, regions)] for c in (slope, corner)
    )
    return sid.models.piecewise_linear(x, getattr(p, f"{slope}0"), slopes, corners)


def save(figure, name):
    FIGURES.mkdir(parents=True, exist_ok=True)
    figure.savefig(FIGURES / f"piecewise_{name}.png", dpi=110, bbox_inches="tight")
    if not NOTEBOOK:
        plt.close(figure)


# %% [markdown]
# ## Oscillators


# %%
def oscillator_study(title, kind, record, run, truth, particles, curve, breakpoints=None):
    """One record: ABC beside the likelihood."""
    print(
        f"\n{title}: displacement from {1e3 * float(run['z'].min()):.1f} to "
        f"{1e3 * float(run['z'].max()):.1f} mm",
        flush=True,
    )
    idata, best, result = abc(oscillators(kind, record, breakpoints), particles)
    posteriors, likely, rows = {}, None, {}
    if particles >= 1000:  # fewer lose their way between the modes
        posteriors, likely, rows = by_likelihood(
            oscillators(kind, record, breakpoints, likelihood=True), particles
        )
        print(f"  most probable by ABC: {best}; by evidence: {likely}")
    if truth is not None:
        for name, draws in (
            ("ABC", idata.get("trilinear")),
            ("likelihood", posteriors.get("trilinear")),
        ):
            if draws is not None:
                print(f"    the trilinear model by {name}:")
                result[f"hits {name}"] = coverage(draws["posterior"], truth)
                print(
                    f"      {result[f'hits {name}']} of {len(truth)} intervals hold the truth"
                )
    label = title.replace(" ", "_").replace(",", "").lower()
    save(sid.plot_abc(idata, share=True)[0].figure, f"{label}_abc")
    letters, state = (("k", "d"), "z") if kind == "stiffness" else (("c", "v"), "v")
    at = np.linspace(float(run[state].min()), float(run[state].max()), 400)
    regions = NAMES.index(best) + 1
    fig, ax = plt.subplots(figsize=(6, 4), layout="constrained")
    names = (
        ("displacement (m)", "spring force (N)")
        if kind == "stiffness"
        else ("velocity (m/s)", "damper force (N)")
    )
    labels = {"truth": curve(at), "xlabel": names[0], "ylabel": names[1]}
    sid.plot_restoring_force(
        idata[best], lambda x, p: spring(x, p, regions, letters), at, axes=ax, **labels
    )
    save(fig, f"{label}_force")
    result |= {"likelihood": rows, "likely": likely}
    return result, idata[best], regions


def true_force(truth, kind):
    """Restoring force of a known oscillator."""
    slope, corner = ("k", "d") if kind == "stiffness" else ("c", "v")
    slopes, corners = ([truth[f"{c}{i}"] for i in (1, 2)] for c in (slope, corner))
    return lambda x: sid.models.piecewise_linear(x, truth[f"{slope}0"], slopes, corners)


def cubic_study(particles):
    """A spring that none of the models is, without noise; with another force, for which it is
    regular enough."""
    record, run = measured(
        sid.models.duffing(observe="acceleration"), CUBIC, noise=0.0, forcing=4
    )

    def cubic(x):
        return CUBIC["k"] * x + CUBIC["k3"] * x**3

    result, posterior, regions = oscillator_study(
        "Cubic stiffness", "stiffness", record, run, None, particles, cubic
    )
    at = np.linspace(*np.quantile(run["z"].values, [0.005, 0.995]), 200)
    draws = az.extract(posterior)
    p = {name: draws[name].values[:, None] for name in draws.data_vars}
    slopes, corners = ([p[f"{c}{i}"] for i in range(1, regions)] for c in "kd")
    mean = sid.models.piecewise_linear(at, p["k0"], slopes, corners).mean(axis=0)
    result["force error"] = float(np.sqrt(np.mean((mean - cubic(at)) ** 2)) / np.std(cubic(at)))
    print(
        f"  spring force over 99 % of the samples: error {100 * result['force error']:.1f} % "
        "of its standard deviation"
    )
    return result


# %% [markdown]
# ## Static maps
# A damper held at one end and moved at the other has no dynamics: its force is a function of
# the velocity, `f(v - v0)`. The simulated one is like the paper's shock absorber: 5000 samples
# to train, 2000 to test. The record of the magnetorheological damper is that without current in
# its coil. The friction damper has play and hysteresis, so no static curve fits, and the
# residuals show this.


# %%
def shock_absorber(seed=3):
    """Velocities and forces with different slopes in compression and rebound, smooth corners,
    and 5 % noise."""
    rng = np.random.default_rng(seed)
    v = 0.25 * rng.standard_normal(7000)
    x = v - 0.02
    f = (
        2500 * x
        - 1900 * np.log1p(np.exp((x - 0.12) / 0.01)) * 0.01
        + 1500 * np.log1p(np.exp((-x - 0.15) / 0.01)) * 0.01
    )
    f = f + 0.05 * f.std() * rng.standard_normal(len(f))
    return (v[:5000], f[:5000]), (v[5000:], f[5000:])


def mr_damper(folder):
    """The magnetorheological damper without current, every fourth sample; every fifth second to
    test."""
    with np.load(Path(folder) / "mr_damper_ranran50.npz") as data:
        off = data["command_V"] < 0.05
        v, f = data["v_m_s"][off][::4], data["F_N"][off][::4]
    test = np.arange(len(v)) // 150 % 5 == 4
    return (v[~test], f[~test]), (v[test], f[test])


def friction_damper(folder):
    """The friction damper under a slow sinusoid, and under a faster one to test."""
    with np.load(Path(folder) / "friction_damper_backlash.npz") as data:
        return tuple(
            (data[f"{k}_v_m_s"][::5], data[f"{k}_F_N"][::5])
            for k in ("c0p5Hz_30lb_1in", "c1Hz_30lb_1in")
        )


def maps(train, likelihood=False):
    """Four static maps, with Table 3's kinds of prior scaled to the record."""
    v, f = train
    scale, reach = np.ptp(f) / np.ptp(v), (float(v.min()), float(v.max()))
    record = sid.TimeSeries(
        np.arange(len(v), dtype=float), v, f, inputs="v", outputs="force", intersample="zoh"
    )
    models = {}
    for regions, name in enumerate(NAMES, 1):
        with pm.Model() as models[name]:
            c0 = log_uniform("c0", (scale / 30, scale * 30))
            slopes = [log_uniform(f"c{i}", (scale / 30, scale * 30)) for i in range(1, regions)]
            corners = [pm.Uniform(f"v{i}", *reach) for i in range(1, regions)]
            v0 = pm.Normal("v0", 0.0, 0.1 * np.ptp(v))
            if regions > 1:
                sid.models.piecewise_constraints(c0, slopes, corners)
            if likelihood:
                noise = pm.LogNormal("noise", np.log(0.1 * np.std(f)), 1.0)
                pm.Normal(
                    "y",
                    sid.models.piecewise_linear(v - v0, c0, slopes, corners),
                    noise,
                    observed=f,
                )
            else:
                params = {"c0": c0, "v0": v0} | {f"c{i}": s for i, s in enumerate(slopes, 1)}
                params |= {f"v{i}": c for i, c in enumerate(corners, 1)}
                sid.ODESimulator("y", sid.models.piecewise_map(regions), record, params)
    return models


def map_study(title, train, test, particles):
    """One damper."""
    print(f"\n{title}: {len(train[0])} samples to train, {len(test[0])} to test", flush=True)
    idata, best, result = abc(maps(train), particles, thresholds=sid.Thresholds(epsilon=150.0))
    likely, rows = None, {}
    if particles >= 1000:
        _, likely, rows = by_likelihood(maps(train, likelihood=True), particles)
        print(f"  most probable by ABC: {best}; by evidence: {likely}")
    regions = NAMES.index(best) + 1
    posterior = az.extract(idata[best])

    def mean_force(v):
        draws = {name: posterior[name].values[:, None] for name in posterior.data_vars}
        slopes, corners = ([draws[f"{c}{i}"] for i in range(1, regions)] for c in "cv")
        return sid.models.piecewise_linear(v - draws["v0"], draws["c0"], slopes, corners).mean(
            axis=0
        )

    for name, (v, f) in (("train", train), ("test", test)):
        error = f - mean_force(v)
        result[f"NMSE {name}"] = float(sid.nmse(f, f - error))
        # Residuals of a curve that fits are as likely up as down whatever the direction of the
        # motion.
        rising = np.gradient(v) > 0
        gap = (error[rising].mean() - error[~rising].mean()) / f.std()
        lag = float(np.corrcoef(error[1:], error[:-1])[0, 1])
        result[f"gap {name}"] = float(gap)
        print(
            f"    {name}: NMSE {result[f'NMSE {name}']:.2f}; residuals: correlation with the "
            f"sample before {lag:.2f},"
        )
        print(
            f"      mean while the velocity rises less while it falls {gap:+.2f} standard "
            "deviations of the force"
        )
    label = title.replace(" ", "_").lower()
    at = np.linspace(train[0].min(), train[0].max(), 300)
    fig, ax = plt.subplots(figsize=(6, 4), layout="constrained")
    labels = {"data": train, "xlabel": "velocity (m/s)", "ylabel": "force (N)"}
    sid.plot_restoring_force(
        idata[best],
        lambda x, p: spring(x - p.v0, p, regions, ("c", "v")),
        at,
        axes=ax,
        **labels,
    )
    save(fig, f"{label}_force")
    save(sid.plot_abc(idata, share=True)[0].figure, f"{label}_abc")
    return result | {"likelihood": rows, "likely": likely}


# %% [markdown]
# ## The oscillators

# %%
chosen = ()
if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="piecewise-linear oscillators and dampers")
    parser.add_argument(
        "--data",
        default=os.environ.get(sid.datasets.FOLDER_VARIABLE),
        help="folder with the records",
    )
    parser.add_argument(
        "--short", action="store_true", default=os.environ.get("PM_SYSID_SHORT") == "1"
    )
    parser.add_argument(
        "--only", choices=STUDIES, nargs="*", default=None, help="only these studies"
    )
    options = parser.parse_args([] if NOTEBOOK else None)
    FIGURES = HERE / "figures" / ("short" if options.short else "")
    RESULTS = FIGURES if options.short else HERE / "results"
    particles = 100 if options.short else 1000
    chosen = options.only or (("visited", "absorber") if options.short else STUDIES)
    results = {}
    stiff, damped = (
        sid.models.piecewise_oscillator(3, nonlinear=kind) for kind in ("stiffness", "damping")
    )

if {"stiffness", "visited"} & set(chosen):
    record, run = measured(stiff, STIFFNESS, noise=0.05)
    curve = true_force(STIFFNESS, "stiffness")
    # The paper's prior: breakpoints within 10 mm of the origin; or where the record goes:
    # beyond, a spare one costs nothing.
    visited = float(run["z"].min()), float(run["z"].max())
    kinds = {
        "stiffness": ("Trilinear stiffness", None),
        "visited": ("Trilinear stiffness, visited", visited),
    }
    for name in sorted(kinds.keys() & set(chosen)):
        title, where = kinds[name]
        results[name], *_ = oscillator_study(
            title, "stiffness", record, run, STIFFNESS, particles, curve, where
        )
if "damping" in chosen:
    record, run = measured(damped, DAMPING, noise=0.05)
    curve = true_force(DAMPING, "damping")
    results["damping"], *_ = oscillator_study(
        "Trilinear damping", "damping", record, run, DAMPING, particles, curve
    )
if "cubic" in chosen:
    results["cubic"] = cubic_study(particles)

# %% [markdown]
# ## The dampers

# %%
if "absorber" in chosen:
    results["absorber"] = map_study("Shock absorber", *shock_absorber(), particles)
if {"mr", "friction"} & set(chosen):
    if options.data is None or not (Path(options.data) / "mr_damper_ranran50.npz").exists():
        print("\nSkipped: the measured dampers are not here; name their folder with --data.")
        chosen = set(chosen) - {"mr", "friction"}
if "mr" in chosen:
    results["mr"] = map_study("MR damper", *mr_damper(options.data), particles)
if "friction" in chosen:
    results["friction"] = map_study(
        "Friction damper", *friction_damper(options.data), particles
    )
if chosen:
    RESULTS.mkdir(parents=True, exist_ok=True)
    file = RESULTS / "piecewise_linear.json"
    earlier = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(earlier | results, indent=1))
    print(f"\nFigures in {FIGURES.relative_to(HERE)}")
