# %% [markdown]
# # EMPS: a drive with friction, measured in closed loop
#
# An Electro-Mechanical Positioning System (EMPS; Janot, Gautier and Brunot, 2019) moves a mass
# by a ball screw: `M q'' + Fv q' + Fc sign(q') + offset = tau`. A digital controller sets the
# force `tau` every millisecond and holds it. As in Longbottom, Champneys and Rogers (2024), the
# posterior is sampled sequentially from the first record and validated on the second, in which
# pulses are added to the output of the controller. The errors of their particles are 0.295 /
# 0.520 / 0.899 mm (minimum, mean, maximum).
#
# A mass with friction integrates its force. Every force that is missing in the model (cogging,
# friction that depends on position) therefore moves the simulated position permanently, by
# millimetres, whereas the encoder resolves 50 nanometres. A likelihood with measurement noise
# alone would have to describe this drift as noise. The filter can describe it better: the
# diffusion of its prior acts as a random force between the samples. The size of this force is a
# parameter here, `disturbance`.
#
# - Data: `emps_train.npz` and `emps_test_pulses.npz` in the folder `PM_SYSID_DATA` or `--data`.
# - Priors: log-normal around round numbers with a standard deviation of the logarithm of one
#   (M, Fv, Fc) or two (noise, disturbance), normal for the offset.
# - Solver: `EK1(order=2)`, one step per sample, a held input; sequential sampling with 2 x 1000
#   particles.
# - Runtime: about three minutes: `uv run examples/emps.py`. `--short` takes the first 4 s and
#   few particles.

# %%
import argparse
import json
import os
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import arviz as az
import matplotlib
import numpy as np
import pymc as pm
from scipy.optimize import least_squares

import pm_sysid as sid

NOTEBOOK = "ipykernel" in sys.modules  # which shows figures as well
if not NOTEBOOK:
    matplotlib.use("Agg")
from matplotlib import pyplot as plt

HERE = Path.cwd() if NOTEBOOK else Path(__file__).parent
SEED = 7
SYSTEM = sid.models.emps()
PAPER = (0.295, 0.52018, 0.899)  # mm, Table 2
PARAMS = ("M", "Fv", "Fc", "offset")
UNITS = {"M": "kg", "Fv": "N s/m", "Fc": "N", "offset": "N", "noise": "m", "disturbance": "N"}
PUBLISHED = {
    "M": 95.1089,
    "Fv": 203.5034,
    "Fc": 20.3935,
    "offset": -3.1648,
}  # by regression, with the data


# %% [markdown]
# ## The model
# The filter with an integrated Wiener process of order 2 satisfies the equation of motion at
# every step. Between two steps the acceleration is a Brownian bridge of diffusion g, whose
# integral has the variance g^2 h^3 / 12. A force w held over a sample changes the velocity by w
# h / M. If the two are set equal over the `substeps` of a sample, the result is the diffusion
# that corresponds to a white disturbance force of standard deviation w. The meaning of w is
# then the same for every step size.


# %%
def filter_model(record, *, v_s=3e-4, substeps=1, diffusion=None):
    """Posterior with the probabilistic ODE filter as likelihood; the diffusion is a disturbance
    force unless given."""
    with pm.Model() as model:
        params = {
            "M": pm.LogNormal("M", np.log(50.0), 1.0),
            "Fv": pm.LogNormal("Fv", np.log(100.0), 1.0),
            "Fc": pm.LogNormal("Fc", np.log(10.0), 1.0),
            "offset": pm.Normal("offset", 0.0, 10.0),
        }
        noise = pm.LogNormal("noise", np.log(1e-6), 2.0)
        if diffusion is None:
            disturbance = pm.LogNormal("disturbance", np.log(1.0), 2.0)
            diffusion = disturbance / params["M"] * substeps * np.sqrt(12 * record.fs)
        system = sid.models.emps(v_s=v_s)
        solver = sid.EK1(order=2, diffusion=diffusion)
        with warnings.catch_warnings():
            # The check of the step compares with a smooth solution and knows nothing of the
            # disturbance: see the table.
            warnings.simplefilter("ignore", sid.SubstepWarning)
            sid.ODEFilter(
                "y", system, record, params, noise=noise, solver=solver, substeps=substeps
            )
    return model


# %% [markdown]
# ## The closed loop
# The control law `u[k] = kv (kp (qref[k] - q[k]) - (q[k] - q[k-2]) / 2h) + pulse[k]` reproduces
# the recorded voltage of the first record to 4 mV, which corresponds to the resolution of the
# encoder. While the force is held, the equation of motion has an exact solution with the exact
# sign function: an exponential until the velocity is zero. There the mass sticks if the force
# is below Fc; otherwise the velocity changes its sign. The solution therefore does not depend
# on a step size.


# %%
def load(part, folder):
    """Record with the force held between samples, and its controller."""
    return sid.datasets.emps(
        part, folder=folder, intersample="zoh"
    ), sid.datasets.emps_controller(part, folder=folder)


def held(q, v, force, M, Fv, Fc, h):
    """Position and velocity after a time h under a constant force: the exact solution, with the
    exact sign."""

    def glide(q, v, force, t):
        final, decay = force / Fv, np.exp(-Fv / M * t)
        return q + final * t + (v - final) * (1 - decay) * M / Fv, final + (v - final) * decay

    pushed = np.where(np.abs(force) > Fc, np.sign(force), 0.0)  # where it goes from rest
    side = np.where(v != 0, np.sign(v), pushed)
    end_q, end_v = glide(q, v, force - Fc * side, h)
    turns = end_v * side < 0
    if np.any(turns):
        net = np.where(turns, force - Fc * side, 1.0)
        rest = np.where(
            turns, M / Fv * np.log1p(np.where(turns, -Fv * v / net, 0.0)), 0.0
        )  # when the velocity is zero
        stop, _ = glide(q, v, net, rest)
        after_q, after_v = glide(stop, 0.0 * v, force - Fc * pushed, h - rest)
        stays = pushed == 0
        end_q = np.where(turns, np.where(stays, stop, after_q), end_q)
        end_v = np.where(turns, np.where(stays, 0.0, after_v), end_v)
    at_rest = side == 0
    return np.where(at_rest, q, end_q), np.where(at_rest, 0.0, end_v)


def closed_loop(params, record, loop, delay=0) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Position and controller voltage of every parameter set (arrays of one shape), sample by
    sample.

    ``delay`` is the number of samples after which a voltage becomes a force.

    """
    M, Fv, Fc, offset = (
        np.atleast_1d(np.asarray(params[name], float)).ravel() for name in PARAMS
    )
    h = 1 / record.fs
    speed, start = np.polyfit(record.t[:5] - record.t[0], record.y[:5], 1)
    q, v = np.full(M.shape, start), np.full(M.shape, speed)
    once, twice = q - h * v, q - 2 * h * v
    waiting = [np.full(M.shape, record.u[0] / loop.gain)] * delay
    for reference, pulse in zip(loop.reference, loop.pulses, strict=True):
        volts = loop.kv * (loop.kp * (reference - q) - (q - twice) / (2 * h)) + pulse
        waiting.append(np.clip(volts, -10.0, 10.0))
        yield q, waiting[-1]
        once, twice = q, once
        q, v = held(q, v, loop.gain * waiting.pop(0) - offset, M, Fv, Fc, h)


# %% [markdown]
# ## Errors
# Open loop: the recorded force alone drives the model. Closed loop: the controller does.


# %%
def open_rmse(params, record, x0=None):
    """Error of every parameter set (mm); the runs are not stored."""
    params = {name: params[name] for name in PARAMS}
    distance = sid.simulate(SYSTEM, record, params, x0=x0, distance="nmse", substeps=2)["y"]
    return 1e3 * np.std(record.y) * np.sqrt(distance.values.ravel() / 100)


def closed_rmse(params, record, loop, delay=0):
    """Error of every parameter set (mm)."""
    steps = zip(closed_loop(params, record, loop, delay), record.y, strict=False)
    return 1e3 * np.sqrt(sum((q - y) ** 2 for (q, _), y in steps) / len(record))


def errors(params, parts):
    """Open and closed loop on both records."""
    both = [open_rmse(params, record) for record, _ in parts]
    return [*both, *(closed_rmse(params, record, loop) for record, loop in parts)]


def output_error(record, free=False):
    """Parameters whose simulated position is closest to the measured one, by least squares from
    the published ones.

    ``free`` fits the initial state too, else it is read off the first samples, as everywhere in
    this study.
    """
    names = (*PARAMS, "q", "v") if free else PARAMS
    slope, first = np.polyfit(record.t[:5], record.y[:5], 1)
    start = np.array([*PUBLISHED.values(), first, slope])[: len(names)]
    scale = np.array([*np.abs(list(PUBLISHED.values())), 1e-3, 1e-2])[: len(names)]

    def errors(points):
        values = dict(zip(names, points.T, strict=True))
        x0 = {name: values.pop(name) for name in ("q", "v")} if free else None
        return 1e3 * (
            sid.simulate(SYSTEM, record, values, x0=x0, substeps=2)["y"].values - record.y
        )

    def jacobian(z):
        step = np.diag(1e-4 * scale)
        return (errors(z + step) - errors(z - step)).T / (2e-4 * scale)

    fit = least_squares(lambda z: errors(z[None])[0], start, jacobian, x_scale=scale)
    return dict(zip(names, fit.x, strict=True))


def triple(*values):
    """Minimum, mean and maximum as text."""
    return " / ".join(f"{v:8.4f}" for v in values)


# %% [markdown]
# ## Tables and figures


# %%
def choices_table(parts, short):
    """What each choice does: posterior mode and its errors on both records."""
    train = parts[0][0]
    rows = [
        ("disturbance, order 2, x1", {}),
        ("disturbance, order 2, x2", {"substeps": 2}),
        ("disturbance, order 2, x4", {"substeps": 4}),
        ("disturbance, v_s = 3e-3 m/s", {"v_s": 3e-3}),
        ("disturbance, v_s = 1e-3 m/s", {"v_s": 1e-3}),
        ("disturbance, v_s = 1e-4 m/s", {"v_s": 1e-4}),
        ("disturbance, exact sign", {"v_s": 0.0}),
        ("diffusion 'mle'", {"diffusion": "mle"}),
        ("diffusion 'dynamic'", {"diffusion": "dynamic"}),
    ]
    rows = rows[:1] if short else rows
    result = {}
    print("\nPosterior mode, log posterior density there, and simulation error in mm")
    print(
        f"{'':30s} {'M':>8s} {'Fv':>8s} {'Fc':>7s} {'offset':>7s} {'noise':>8s} "
        f"{'disturb':>8s} {'log post':>10s}",
        end="",
    )
    print(f" {'open':>7s} {'test':>7s} {'closed':>9s} {'test':>9s} {'s':>5s}")

    def show(name, point, logp=np.nan, begin=np.nan):
        took = time.perf_counter() - begin
        result[name] = [float(e[0]) for e in errors(point, parts)]
        print(
            f"{name:30s} {point['M']:8.3f} {point['Fv']:8.3f} {point['Fc']:7.3f} "
            f"{point['offset']:7.3f}",
            end="",
        )
        print(
            f" {point.get('noise', np.nan):8.2g} {point.get('disturbance', np.nan):8.3g} "
            f"{logp:10.1f}",
            end="",
        )
        print(
            " {:7.3f} {:7.3f} {:9.5f} {:9.5f}".format(*result[name]), f"{took:5.0f}", flush=True
        )

    show("published (regression)", PUBLISHED)
    begin = time.perf_counter()
    show("least squares, open loop", output_error(train), begin=begin)
    begin = time.perf_counter()
    fit = output_error(train, free=True)
    show("least squares, free start", fit, begin=begin)
    x0 = {name: fit[name] for name in ("q", "v")}
    print(
        f"  (open loop from its own start, q = {1e3 * x0['q']:.2f} mm, v = {1e3 * x0['v']:.1f} "
        "mm/s: ",
        end="",
    )
    print(f"{open_rmse(fit, train, x0)[0]:.3f} mm)")
    for name, settings in rows:
        begin = time.perf_counter()
        with filter_model(train, **settings):
            # With a calibrated diffusion the drift is left to the noise: millimetres, to start
            # with.
            start = PUBLISHED | ({"noise": 2e-3} if "diffusion" in settings else {})
            mode = sid.find_mode(start=start, prior_draws=0)
        name += "" if mode.converged else " (*)"
        show(name, {k: float(v) for k, v in mode.initvals.items()}, mode.logp, begin)
    return result


def prior_posterior(idata):
    """Prior above, posterior below: the reduction is too large for one axis."""
    fig, axes = plt.subplots(2, len(UNITS), figsize=(11, 4.2), layout="constrained")
    for column, (name, unit) in zip(axes.T, UNITS.items(), strict=True):
        before, after = (idata[group][name].values.ravel() for group in ("prior", "posterior"))
        log = name in ("noise", "disturbance")
        low, high = (
            (before.min(), before.max())
            if log or name == "offset"
            else (0.0, np.quantile(before, 0.99))
        )
        column[0].hist(
            before,
            np.geomspace(low, high, 30) if log else np.linspace(low, high, 40),
            color="0.6",
        )
        column[0].set_xscale("log" if log else "linear")
        column[1].hist(after, 30, color="#0072B2")
        column[1].set_xlabel(f"{name} ({unit})")
        column[1].locator_params(axis="x", nbins=3)
        column[1].ticklabel_format(
            axis="x", useOffset=False, scilimits=(-3, 4), useMathText=True
        )
        if name in PUBLISHED:
            for panel in column:
                panel.axvline(
                    PUBLISHED[name], color="#D55E00", lw=1, ls="--", label="published"
                )
        for panel in column:
            panel.set_yticks([])
            panel.spines[["left", "right", "top"]].set_visible(False)
    axes[0, 0].set_ylabel("prior")
    axes[1, 0].set_ylabel("posterior")
    axes[0, 0].legend(frameon=False, fontsize="small")
    return fig


# %% [markdown]
# ## The records

# %%
ready = False
if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="EMPS study")
    parser.add_argument("--data", default=None, help="folder with the records")
    parser.add_argument(
        "--short", action="store_true", default=os.environ.get("PM_SYSID_SHORT") == "1"
    )
    options = parser.parse_args([] if NOTEBOOK else None)
    FIGURES = HERE / "figures" / ("short" if options.short else "")
    RESULTS = FIGURES if options.short else HERE / "results"
    try:
        parts = [load(part, options.data) for part in ("train", "test")]
        train = parts[0][0][:4000] if options.short else parts[0][0]
        test, loop = parts[1]
        ready = True
        print(train)
    except FileNotFoundError as error:
        print(f"Skipped: the EMPS records are not here. {error}")

# %% [markdown]
# ## The posterior by sequential sampling

# %%
if ready:
    model = filter_model(train)
    start = time.perf_counter()
    with model:
        # A process for each chain compiles for itself: worth it for a long record only.
        draws, cores = (300, 1) if options.short else (1000, 2)
        idata = sid.sample_ibis(
            draws, chains=2, cores=cores, random_seed=SEED, progressbar=False
        )
        took = time.perf_counter() - start
        idata.update(pm.sample_prior_predictive(5000, var_names=list(UNITS), random_seed=SEED))
    stages = idata.sample_stats.to_dataset()
    evidence = (
        stages["log_marginal_likelihood"].max("stage").values
    )  # NaN before the last stage
    summary = az.summary(idata, kind="stats", round_to=11)
    print(summary.to_string())
    print(
        f"Sequential sampling: {took:.0f} s, "
        f"{int(stages['time_index'].notnull().sum('stage').max())} stages, ",
        end="",
    )
    print("log evidence of each chain " + ", ".join(f"{e:.2f}" for e in evidence))

# %% [markdown]
# ## Validation

# %%
if ready:
    posterior = idata.posterior.to_dataset()
    particles = {name: posterior[name].values.ravel() for name in PARAMS}
    labels = ("open loop, train", "open loop, test", "closed loop, train", "closed loop, test")
    found = [[float(f(e)) for f in (np.min, np.mean, np.max)] for e in errors(particles, parts)]
    results = dict(zip(labels, found, strict=True))
    print("\nRMSE of the particles in mm: minimum / mean / maximum")
    print(f"  {'paper':20s} {triple(*PAPER)}")
    for name, values in results.items():
        bar = "   (bar: 0.0200)" if name == "closed loop, test" else ""
        print(f"  {name:20s} {triple(*values)}{bar}")
    print(
        "  closed loop if a voltage becomes a force one sample later, published parameters: ",
        end="",
    )
    print(" and ".join(f"{closed_rmse(PUBLISHED, *part, delay=1)[0]:.4f}" for part in parts))
    results |= {
        "seconds": took,
        "log evidence": evidence.tolist(),
        "posterior": summary[["mean", "sd"]].to_dict("index"),
    }

# %% [markdown]
# ## The effect of the choices

# %%
if ready:
    results["choices"] = choices_table([(train, parts[0][1]), parts[1]], options.short)
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "emps.json").write_text(json.dumps(results, indent=1))

# %% [markdown]
# ## Figures of the results
# Prior and posterior, and the training record in open loop, where the small errors of the model
# accumulate:


# %%
def save(figure, name):
    """Figure into a file."""
    FIGURES.mkdir(parents=True, exist_ok=True)
    figure.savefig(FIGURES / f"emps_{name}.png", dpi=150, bbox_inches="tight")


def draw_fit(record, runs, zoom):
    """Runs beside a record, in millimetres."""
    axes = sid.plot_fit(
        record.replace(y=1e3 * record.y, outputs="q (mm)"), 1e3 * runs, zoom=zoom
    )
    axes[1, 0].set_ylabel("residual (mm)")
    return axes[0, 0].figure


if ready:
    draws = az.extract(idata, num_samples=50, random_seed=SEED)
    save(prior_posterior(idata), "posterior")
    runs = sid.simulate(SYSTEM, train, {k: draws[k].values for k in PARAMS}, substeps=2)[
        "y"
    ].values
    save(draw_fit(train, runs, zoom=(2.8, 3.8)), "open_loop")

# %% [markdown]
# The test record in closed loop, and the innovations of the training record:

# %%
if ready:
    runs = np.stack([q for q, _ in closed_loop(draws, test, loop)], axis=1)
    save(draw_fit(test, runs, zoom=(2.8, 3.4)), "closed_loop")
    innovations = sid.innovations(idata, "y", model=model)["standardised"].values[:, 0]
    save(
        np.ravel(sid.plot_residuals(innovations, u=train.u, fs=train.fs))[0].figure,
        "innovations",
    )
    print(sid.residual_tests(innovations, train.u))
    print(f"Figures in {FIGURES.relative_to(HERE)}")
