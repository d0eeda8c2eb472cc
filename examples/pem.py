# %% [markdown]
# # Prediction-error minimisation: a fit in milliseconds, and what follows from it
#
# A Kalman filter predicts each sample from the previous ones. Prediction-error minimisation
# (PEM) finds the parameters that minimise the prediction errors or maximise their likelihood.
# The first example is that of the reference page (archimedes, `sysid.pem`), line by line. Then
# follow measured and benchmark records: the Silverbox, Bouc-Wen hysteresis, and the drive of
# the Electro-Mechanical Positioning System (EMPS).
#
# - Data: simulated, and the measured records in the folder `PM_SYSID_DATA` or `--data`; without
#   them only the first part runs.
# - Priors: none for the fits; for the No-U-Turn Sampler (NUTS) normal priors centred at the
#   fit, `fit.priors()`.
# - Solver: four Runge-Kutta steps per sample (one where the input is held),
#   Levenberg-Marquardt; NUTS.
# - Runtime: `uv run examples/pem.py` takes about two minutes, most of it compilation; `--short`
#   takes parts of the records and leaves out NUTS.

# %%
import argparse
import json
import logging
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
PAPER = {"test_sinesweep": 5.4017e-6, "test_multisine": 2.4772e-6}  # Bouc-Wen, mean particle


def seconds(function):
    """Result, and the time of a second call: the first may have to compile."""
    function()
    start = time.perf_counter()
    result = function()
    return result, time.perf_counter() - start


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Prediction-error minimisation")
    parser.add_argument("--data", default=None, help="folder with the records")
    parser.add_argument(
        "--short", action="store_true", default=os.environ.get("PM_SYSID_SHORT") == "1"
    )
    options = parser.parse_args([] if NOTEBOOK else None)
    FIGURES = HERE / "figures" / ("short" if options.short else "")
    RESULTS = FIGURES if options.short else HERE / "results"
    FIGURES.mkdir(parents=True, exist_ok=True)
    RESULTS.mkdir(parents=True, exist_ok=True)
    results = {}
    logging.getLogger("pm_sysid").setLevel(
        logging.WARNING
    )  # the substeps that each free run chose

# %% [markdown]
# ## The example of the reference page
# The record is the response of a second-order oscillator to a step. The data of the reference
# page have no seed, so its digits cannot be reproduced. On the same data the two packages agree
# to all printed digits (`benchmarks/pem.py`). One difference is intended: in archimedes `x0` is
# the state *before* the input of the first sample has acted; here it is the state *at* the
# first sample, where this record starts.


# %%
def dynamics(t, x, u, p):
    """Natural frequency and damping ratio."""
    return x.v, -(p.omega_n**2) * x.z - 2 * p.zeta * p.omega_n * x.v + p.omega_n**2 * u.F


OSCILLATOR = sid.System(
    dynamics,
    states=("z", "v"),
    inputs=("F",),
    params=("omega_n", "zeta"),
    observe=lambda t, x, dx, u, p: x.z,  # position only
)


def experiment(x0=(0.0, 0.0), force=1.0, seed=SEED):
    """Step response with noise."""
    rng = np.random.default_rng(seed)
    t = np.arange(0, 10, 0.05)
    data = sid.TimeSeries(t, np.full(t.size, force), None, intersample="zoh")
    clean = sid.simulate(OSCILLATOR, data, {"omega_n": 2.0, "zeta": 0.1}, x0=list(x0))[
        "y"
    ].to_numpy()
    return data.replace(y=clean + 0.01 * rng.normal(size=t.size), outputs="y")


def reference():
    """The page's lines, then bounds that bind, and two records."""
    noise_std = 0.01
    data = experiment()
    ekf = sid.ExtendedKalman(Q=noise_std**2 * np.eye(2), R=noise_std**2 * np.eye(1), substeps=1)
    p_guess = {"omega_n": 2.5, "zeta": 0.5}

    # Estimate parameters with known initial conditions
    result, took = seconds(
        lambda: sid.fit_pem(OSCILLATOR, data, p_guess, predictor=ekf, x0=[0.0, 0.0])
    )
    print(f"Estimated parameters: {result.p}")
    print(f"Converged in {result.nit} iterations ({1e3 * took:.1f} ms)")
    print(result)

    # With physical parameter constraints
    bounds = ({"omega_n": 0.0, "zeta": 0.0}, {"omega_n": 10.0, "zeta": 1.0})
    result = sid.fit_pem(OSCILLATOR, data, p_guess, predictor=ekf, x0=[0.0, 0.0], bounds=bounds)
    print(f"\nWith bounds: {result.p}")

    narrow = ({"omega_n": 0.0, "zeta": 0.2}, {"omega_n": 10.0, "zeta": 1.0})
    active = sid.fit_pem(OSCILLATOR, data, p_guess, predictor=ekf, x0=[0.0, 0.0], bounds=narrow)
    print(f"With a bound that binds: {active.p}; {active.message}")

    # The data have no process noise: the free run says more. Its initial state may be unknown,
    # for each record by itself.
    records = [experiment(x0=(0.0, 0.0)), experiment(x0=(0.5, -1.0), force=0.5, seed=SEED + 1)]
    joint = sid.fit_pem(
        OSCILLATOR, records, p_guess, x0=sid.InitialState(0.0, estimate=(False, True))
    )
    print(f"\nTwo records, free run, the second from an unknown state\n{joint}")

    predictor, known_start = sid.ExtendedKalman(Q="estimate"), sid.InitialState(0.0, P0=0.0)
    likely = sid.fit_pem(
        OSCILLATOR, data, p_guess, predictor=predictor, x0=known_start, objective="likelihood"
    )
    print(f"\nMaximum likelihood, which finds that there is no process noise\n{likely}")
    return data, likely


# %%
if __name__ == "__main__":
    _, likely = reference()

# %% [markdown]
# ## From a fit to Bayes
# `model()` has priors centred at the fit and the likelihood of the innovations. `laplace()`
# draws from the Gaussian approximation. NUTS starts from `initval`.


# %%
def bayes(fit, sample):
    """Laplace draws beside NUTS."""
    print(f"\nPriors, 10 standard errors wide\n{fit.priors(scale=10.0)}")
    tree = fit.laplace(random_seed=SEED)
    table = az.summary(tree, kind="stats", ci_prob=0.94, round_to=6)
    print(f"\nLaplace approximation\n{table.to_string()}")
    if sample:
        with fit.model() as model:
            start = {v.name: fit.initval[v.name] for v in model.free_RVs}
            nuts = pm.sample(
                500,
                tune=500,
                chains=2,
                cores=1,
                initvals=start,
                random_seed=SEED,
                progressbar=False,
            )
        table = az.summary(nuts, kind="stats", ci_prob=0.94, round_to=6)
        print(f"\nNUTS\n{table.to_string()}")


# %%
if __name__ == "__main__":
    bayes(likely, sample=not options.short)

# %% [markdown]
# ## Silverbox
# The model is trained on one multisine of 5 s and validated by a free run on the arrow head,
# whose amplitude grows beyond that of the training data. A fit of the free run (output error)
# minimises the same quantity as this validation. A likelihood with process noise describes what
# the equations lack, and gives better one-step predictions.


# %%
def silverbox(folder, short, figures):
    """Three structures by output error; free run, predictions and tests; comparison by
    criteria."""
    train, arrow = (sid.datasets.silverbox(part, folder=folder) for part in ("train", "arrow"))
    structures = {
        "offset": {"offset": True},
        "offset, quadratic": {"offset": True, "quadratic": True},
        "offset, quadratic, cubic damping": {
            "offset": True,
            "quadratic": True,
            "cubic_damping": True,
        },
    }
    start = {"m": 5e-6, "c": 2e-4, "k": 1.0, "k3": 4.0, "offset": 0.0, "k2": 0.0, "c3": 0.0}
    fits, likely, rows = {}, {}, {}
    print(
        "\nSilverbox: RMSE in mV of the training record and, in free run, of the arrow head "
        "(bar 0.48; 0.40 with k2)"
    )
    for name, terms in structures.items():
        system = sid.models.duffing(**terms)
        guess = {k: start[k] for k in system.params}
        free = sid.ExtendedKalman(substeps=4)
        fits[name], took = seconds(
            lambda s=system, g=guess, f=free: sid.fit_pem(s, train, g, predictor=f)
        )
        error = 1e3 * float(sid.rmse(arrow.y, fits[name].simulate(arrow)["y"]))
        trained = 1e3 * np.sqrt(fits[name].fun)
        print(
            f"  {name:34s} {trained:7.4f} {error:8.4f}   {fits[name].nit} iterations, "
            f"{1e3 * took:.0f} ms",
            flush=True,
        )
        rows[name] = {"train": float(trained), "arrow": error, "seconds": took}
        if short:
            break
        noisy = sid.ExtendedKalman(Q={"v": "estimate"}, R="estimate", substeps=4)
        likely[name] = sid.fit_pem(
            system, train, guess, predictor=noisy, objective="likelihood"
        )
        error = 1e3 * float(sid.rmse(arrow.y, likely[name].simulate(arrow)["y"]))
        print(
            f"  {'  with process noise, likelihood':34s} {'':7s} {error:8.4f}   "
            f"{likely[name].noise}"
        )
        rows[f"{name}, likelihood"] = {"arrow": error}
    print(fits["offset"])
    table = sid.compare_fits(fits, {"training": train, "arrow head": arrow})
    print(table)
    tests = fits["offset"].resid(lags=50)
    print(f"\nInnovations of the free run with offset\n{tests}")
    if likely:
        print(
            "\nInnovations of the likelihood with all "
            f"terms\n{list(likely.values())[-1].resid(lags=50)}"
        )
        pairs = {
            name: (fit.model(), fit.laplace(100, random_seed=SEED))
            for name, fit in likely.items()
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of Pareto k, which the table marks
            comparison = sid.compare_models(pairs)
        print(
            "\nThe likelihoods by information criteria of their Laplace "
            f"approximations\n{comparison}"
        )
    sid.plot_compare_fits(table)[0, 0].figure.savefig(figures / "pem_silverbox.png", dpi=150)
    sid.plot_resid(tests)[0, 0].figure.savefig(figures / "pem_silverbox_resid.png", dpi=150)
    return rows


# %%
if __name__ == "__main__":
    try:
        results["silverbox"] = silverbox(options.data, options.short, FIGURES)
    except (FileNotFoundError, ImportError) as error:
        print(f"Skipped silverbox: its records are not here. {error}")

# %% [markdown]
# ## Bouc-Wen hysteresis
# `beta` appears only as a factor of `gamma` and `delta`. If all three are free, the record does
# not determine them, and the fit reports this. With `beta` known, the estimates from the
# training record differ from the true parameters (m = 2, c = 10, k = alpha = 5e4, gamma = 0.8,
# delta = -1.1) by a few thousandths. The records are simulated in steady state, so their
# initial states are unknown.


# %%
def bouc_wen(folder, short):
    """Fit the benchmark's training record and validate on its two tests."""
    train, *tests = (sid.datasets.bouc_wen(part, folder=folder) for part in ("train", *PAPER))
    if short:
        train = train[:4096]
    system = sid.models.bouc_wen(observe="displacement")
    free = sid.ExtendedKalman(substeps=4)
    guess = {
        "mass": {"m": 2.2},
        "linear": {"c": 8.0, "k": 5.5e4},
        "hysteresis": {"alpha": 4.5e4, "gamma": 0.9, "delta": -1.3},
    }
    known, unknown_start = {"beta": 1e3}, sid.InitialState(0.0, estimate=True)

    def run():
        return sid.fit_pem(system, train, guess, fixed=known, predictor=free, x0=unknown_start)

    fit, took = seconds(run)
    print(f"\nBouc-Wen, {len(train)} samples, {1e3 * took:.0f} ms\n{fit}")
    result = {"seconds": took}
    found = {
        name: float(value)
        for name, value in zip(fit.names, fit.x, strict=True)
        if name in system.params
    }
    for part, record in zip(PAPER, tests, strict=True):
        # Only the state that a test record starts from is fitted to it; the sine sweep starts
        # at rest.
        start = 0.0
        if part == "test_multisine":
            start = sid.fit_pem(
                system, record, {}, fixed={**found, **known}, predictor=free, x0=unknown_start
            ).x0
        error = float(sid.rmse(record.y, fit.simulate(record, x0=start)["y"]))
        print(
            f"  {part}: RMSE {1e6 * error:.3f} um in free run (paper {1e6 * PAPER[part]:.2f} "
            "um)",
            flush=True,
        )
        result[part] = error
    alone = sid.fit_pem(
        system, train[:2048], guess | {"product": {"beta": 900.0}}, predictor=free, x0=0.0
    )
    print(f"  With beta free: {alone.message}")
    return result


# %%
if __name__ == "__main__":
    try:
        results["bouc_wen"] = bouc_wen(options.data, options.short)
    except (FileNotFoundError, ImportError) as error:
        print(f"Skipped bouc_wen: its records are not here. {error}")

# %% [markdown]
# ## EMPS in open loop
# A mass with friction integrates the forces that are missing in its equations. The open-loop
# error at the least-squares optimum is some millimetres, and depends on the state from which
# the run starts.


# %%
def emps(folder):
    """Output error from three kinds of start."""
    train, test = (
        sid.datasets.emps(part, folder=folder, intersample="zoh") for part in ("train", "test")
    )
    system, free = sid.models.emps(), sid.ExtendedKalman(substeps=1)
    guess = {"M": 95.1089, "Fv": 203.5034, "Fc": 20.3935, "offset": -3.1648}
    print("\nEMPS: open-loop RMSE in mm at the least-squares optimum of the training record")
    result = {}
    slope, value = np.polyfit(test.t[:5] - test.t[0], test.y[:5], 1)
    kinds = {
        "position and speed of the first samples": (
            sid.InitialState(estimate=False),
            [value, slope],
        ),
        "first position, at rest": ([float(train.y[0]), 0.0], [float(test.y[0]), 0.0]),
        "estimated, the default": (None, None),
    }
    for name, (trained, tested) in kinds.items():
        fit, took = seconds(
            lambda x0=trained: sid.fit_pem(system, train, guess, predictor=free, x0=x0)
        )
        errors = (
            1e3 * np.sqrt(fit.fun),
            1e3 * float(sid.rmse(test.y, fit.simulate(test, x0=tested)["y"])),
        )
        params = ", ".join(f"{k} {v:.2f}" for k, v in fit.p.items())
        print(
            f"  {name:42s} train {errors[0]:.3f}, test {errors[1]:.3f}   ({params}; {fit.nit} "
            f"iterations, {took:.1f} s)"
        )
        result[name] = list(map(float, errors))
    return result


# %%
if __name__ == "__main__":
    try:
        if options.short:
            print("Left out in the short form.")
        else:
            results["emps"] = emps(options.data)
    except (FileNotFoundError, ImportError) as error:
        print(f"Skipped emps: its records are not here. {error}")
    folder = RESULTS if len(results) == 3 else FIGURES  # whole runs only
    (folder / "pem.json").write_text(json.dumps(results, indent=1))
