# %% [markdown]
# # An unknown force: a Duffing oscillator that something pushes
#
# A mass on a hardening spring is driven by a force that is recorded, and pushed by one that is
# not. A model that lacks the second force explains the response by wrong parameters. Here the
# missing input gets a Matern process for a prior. The filter integrates its path out, and says
# afterwards what the force was.
#
# - Data: 20 s at 10 Hz, simulated here; the unknown force is drawn from a Matern process with
#   one derivative.
# - Priors: log-normal around wrong guesses for the parameters, the noise, and the scale and
#   length of the force.
# - Solver: `EK1(order=3)` with two substeps a sample; `sid.sample` from the posterior mode.
# - Runtime: `uv run examples/unknown_force.py` takes a few minutes; `--short` takes fewer
#   draws.

# %%
import argparse
import json
import logging
import os
import sys
from pathlib import Path

import matplotlib
import numpy as np
import pymc as pm

import pm_sysid as sid

NOTEBOOK = "ipykernel" in sys.modules  # which shows figures as well
if not NOTEBOOK:
    matplotlib.use("Agg")
import matplotlib.pyplot as plt

HERE = Path.cwd() if NOTEBOOK else Path(__file__).parent
SEED = 3
TRUTH = {"c": 0.3, "k": 4.0, "k3": 0.5}
NOISE, START = 0.02, {"z": 0.4, "v": 0.0}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description="A Duffing oscillator with a force that nobody recorded"
    )
    parser.add_argument(
        "--short", action="store_true", default=os.environ.get("PM_SYSID_SHORT") == "1"
    )
    options = parser.parse_args([] if NOTEBOOK else None)
    FIGURES = HERE / "figures" / ("short" if options.short else "")
    FIGURES.mkdir(parents=True, exist_ok=True)
    DRAWS = 200 if options.short else 1000
    logging.getLogger("pm_sysid").setLevel(logging.WARNING)

# %% [markdown]
# ## The system and the record
# Both forces are inputs of the system. The record has a channel for one of them.


# %%
def motion(x, force, p):
    """A hardening spring under a force (divided by the mass)."""
    return x.v, force - p.c * x.v - p.k * x.z - p.k3 * x.z**3


NAMES = {"states": ("z", "v"), "params": tuple(TRUTH), "observe": lambda t, x, dx, u, p: x.z}
PUSHED = sid.System(lambda t, x, u, p: motion(x, u.F + u.d, p), inputs=("F", "d"), **NAMES)
ALONE = sid.System(lambda t, x, u, p: motion(x, u.F, p), inputs=("F",), **NAMES)


def simulated():
    """The record, and what nobody recorded."""
    t = np.arange(200) * 0.1
    record = sid.TimeSeries(
        t, {"F": np.sin(1.3 * t) + 0.7 * np.sin(2.9 * t)}, intersample="foh"
    )
    push = sid.Matern(nu=1.5, scale=0.7, length=1.5)
    run = sid.simulate(PUSHED, record, TRUTH, x0=START, latent={"d": push}, random_seed=SEED)
    noise = NOISE * np.random.default_rng(SEED).standard_normal(t.size)
    return record.replace(y=run["y"].to_numpy() + noise), run


if __name__ == "__main__":
    record, truth = simulated()
    print(record)

# %% [markdown]
# ## Two models
# The first takes the unknown force for zero. The second gives it a process, whose scale and
# length are unknown as well.


# %%
def build(record, pushed):
    """The same priors, with the unknown force or without it."""
    with pm.Model() as model:
        params = {
            "c": pm.LogNormal("c", np.log(0.4), 0.5),
            "k": pm.LogNormal("k", np.log(3.0), 0.5),
        }
        params["k3"] = pm.LogNormal("k3", np.log(0.7), 0.7)
        noise = pm.LogNormal("noise", np.log(0.05), 1.0)
        latent = None
        if pushed:
            scale, length = pm.LogNormal("scale", 0.0, 1.0), pm.LogNormal("length", 0.0, 1.0)
            latent = {"d": sid.Matern(nu=1.5, scale=scale, length=length)}
        solver = {"solver": sid.EK1(order=3), "substeps": 2}
        sid.ODEFilter(
            "y",
            PUSHED if pushed else ALONE,
            record,
            params,
            noise=noise,
            x0=START,
            latent=latent,
            **solver,
        )
    return model


def fitted(model):
    """Posterior draws."""
    return sid.sample(
        model=model, draws=DRAWS, chains=2, cores=1, random_seed=SEED, progressbar=False
    )


if __name__ == "__main__":
    models = {"without the force": build(record, False), "with the force": build(record, True)}
    posteriors = {}
    for name, model in models.items():
        posteriors[name] = fitted(model)
        print(name, "-", posteriors[name].attrs["verdict"])
        for p, value in TRUTH.items():
            low, high = np.quantile(posteriors[name].posterior[p], [0.05, 0.95])
            print(f"  {p:3} true {value:4.2f}, 90 % interval {low:.3f} to {high:.3f}")

# %% [markdown]
# ## What the force was
# Paths drawn over the posterior carry what is uncertain about the parameters, too.


# %%
def drawn(paths, truth, record):
    """Force and displacement over time, and the posteriors of both models."""
    figure, axes = plt.subplot_mosaic(
        [["force"] * 3, list(TRUTH)], figsize=(7.2, 4.8), layout="constrained"
    )
    d = paths["inputs"].sel(input="d").to_numpy().reshape(-1, len(record))
    low, high = np.quantile(d, [0.05, 0.95], axis=0)
    axes["force"].fill_between(record.t, low, high, color="C0", alpha=0.35, label="90 % band")
    axes["force"].plot(record.t, np.median(d, axis=0), color="C0", lw=1.0, label="median")
    axes["force"].plot(record.t, truth["d"], "k--", lw=1.0, label="the force that was there")
    axes["force"].set(xlabel="time (s)", ylabel="unknown force (m/s$^2$)")
    axes["force"].margins(x=0)
    axes["force"].legend(ncols=3, fontsize="small", frameon=False)
    for p, value in TRUTH.items():
        for name, colour in (("without the force", "C1"), ("with the force", "C0")):
            draws = posteriors[name].posterior[p].to_numpy().ravel()
            axes[p].hist(draws, bins=40, density=True, color=colour, alpha=0.5, label=name)
        axes[p].axvline(value, color="k", ls="--", lw=1.0)
        axes[p].set(xlabel=p, yticks=[])
    axes["c"].legend(fontsize="x-small", frameon=False)
    return figure, float(
        np.mean((low <= truth["d"].to_numpy()) & (truth["d"].to_numpy() <= high))
    )


if __name__ == "__main__":
    thinned = max(1, DRAWS // 200)
    paths = sid.sample_states(
        posteriors["with the force"],
        model=models["with the force"],
        draws=DRAWS // thinned,
        random_seed=SEED,
    )
    figure, inside = drawn(paths, truth, record)
    figure.savefig(FIGURES / "unknown_force.png", dpi=130)
    print(f"{100 * inside:.0f} % of the force lie in its 90 % band.")
    print(
        json.dumps(
            {
                p: float(posteriors["with the force"].posterior[p].mean())
                for p in ("scale", "length", "noise")
            }
        )
    )
