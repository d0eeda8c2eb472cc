# %% [markdown]
# # Twelve isolators, and the one that was not measured
#
# Rubber isolators of one make differ: their stiffness scatters by a quarter, their damping by a
# third. Twelve were shaken, each for another time. Of a thirteenth there is a record of a
# quarter of a second. How well is it known, and how well is one known that was never measured
# at all?
#
# Three models answer. *No pooling* takes every isolator by itself. *Complete pooling* takes
# them all for the same. *Partial pooling* gives each isolator a stiffness and a damping of its
# own, which come from a population whose mean and spread are unknown, too: a hierarchical
# model. In PyMC this is a variable with the dim of the specimens, and `ODEFilter(...,
# params={"k": k})` gives each record its own entry.
#
# - Data: simulated, a random force, noise of 2 % of the displacement.
# - Priors: wide log-normal ones for what all isolators share and for the means of the
#   population.
# - Solver: EK1 of order 3.
# - Runtime: `uv run examples/specimens.py` takes twenty minutes; `--short` takes three
#   specimens, two models and two short chains.

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
from matplotlib import pyplot as plt

HERE = Path.cwd() if NOTEBOOK else Path(__file__).parent
SEED, FS, MASS = 4, 100.0, 2.0  # Hz, kg
POPULATION = {"k": (800.0, 0.25), "c": (6.0, 0.3)}  # median and spread of the logarithm
SHARED = {"k3": 4e4}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Twelve isolators with unlike stiffness")
    parser.add_argument(
        "--short", action="store_true", default=os.environ.get("PM_SYSID_SHORT") == "1"
    )
    options = parser.parse_args([] if NOTEBOOK else None)
    FIGURES = HERE / "figures" / ("short" if options.short else "")
    RESULTS = FIGURES if options.short else HERE / "results"
    FIGURES.mkdir(parents=True, exist_ok=True)
    RESULTS.mkdir(parents=True, exist_ok=True)
    logging.getLogger("pm_sysid").setLevel(
        logging.WARNING
    )  # the substeps that each free run chose

# %% [markdown]
# ## Records
# The last isolator has a long record as well; the models see its first quarter of a second
# alone.

# %%
isolator = sid.models.duffing()


def shaken(rng, count, first=25):
    """Records of isolators from the population; and of the last one the first samples alone."""
    truth, records = [], []
    for i in range(count + 1):
        own = {
            name: median * np.exp(spread * rng.standard_normal())
            for name, (median, spread) in POPULATION.items()
        }
        n = 300 if i == count else int(rng.integers(90, 160))
        force = 60 * np.convolve(rng.standard_normal(n + 4), np.full(5, 5**-0.5), "valid")
        record = sid.TimeSeries(np.arange(n) / FS, {"F": force}, np.zeros(n))
        run = sid.simulate(isolator, record, {"m": MASS, **own, **SHARED}, x0=0.0)
        z = run["y"].to_numpy()
        records.append(record.replace(y=z + 0.02 * z.std() * rng.standard_normal(n)))
        truth.append(own)
    return [*records[:-1], records[-1][:first]], records[-1], truth


if __name__ == "__main__":
    rng = np.random.default_rng(SEED)
    records, whole, truth = shaken(rng, 3 if options.short else 12)
    print(
        f"{len(records)} isolators, {sum(map(len, records))} samples; stiffness "
        f"{[round(t['k']) for t in truth]} N/m"
    )

# %% [markdown]
# ## Three models
# Each record says much about its own isolator, so that the population is written with centres:
# the logarithm of a stiffness is normal around the mean. (Where records say little, write it
# without: `mean + spread * z` with standard normal `z`.) NUTS starts at the mode.

# %%


def pooled(records, how):
    """No pooling, complete pooling, or partial pooling."""
    n = len(records)
    with pm.Model(coords={"isolator": [f"{i + 1}" for i in range(n)]}) as model:
        params = {"m": MASS, "k3": pm.LogNormal("k3", np.log(3e4), 1.0)}
        for name, middle in (("k", 500.0), ("c", 10.0)):
            if how == "complete":
                params[name] = pm.LogNormal(name, np.log(middle), 1.0)
            elif how == "none":
                params[name] = pm.LogNormal(name, np.log(middle), 1.0, dims="isolator")
            else:
                mean, spread = (
                    pm.Normal(f"{name}_mean", np.log(middle), 1.0),
                    pm.HalfNormal(f"{name}_spread", 0.5),
                )
                params[name] = pm.LogNormal(name, mean, spread, dims="isolator")
                pm.Deterministic(
                    f"{name}_new", pm.math.exp(mean + spread * pm.Normal(f"{name}_z_new"))
                )
        noise = pm.HalfNormal("noise", 0.05)
        sid.ODEFilter(
            "z",
            isolator,
            records,
            params,
            noise=noise,
            x0=0.0,
            substeps=2,
            solver=sid.EK1(order=3),
        )
    return model


def sampled(model, short):
    """Posterior by NUTS, with seconds by the clock, and the worst R-hat and effective number of
    draws."""
    draws, clock = 120 if short else 300, time.perf_counter()
    with model, warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", UserWarning
        )  # what is wrong with chains is in the numbers below
        mode = sid.find_mode(starts=4, tempering=False, random_seed=SEED, progressbar=False)
        options = dict(chains=2 if short else 4, cores=2, random_seed=SEED, progressbar=False)
        idata = pm.sample(
            draws, tune=draws, init="adapt_diag", initvals=mode.initvals, **options
        )
    table = az.summary(idata, round_to="none")
    said = {"seconds": time.perf_counter() - clock, "r_hat": float(table["r_hat"].max())}
    return idata, said | {
        "ess": float(table["ess_bulk"].min()),
        "divergences": int(idata["sample_stats"]["diverging"].sum()),
    }


if __name__ == "__main__":
    found = {"specimens": len(records) - 1, "truth": truth, "models": {}}
    known, fits = records[:-1], {}
    for how in ("complete", "partial") if options.short else ("none", "complete", "partial"):
        for seen, data in (("never measured", known), ("a quarter of a second", records)):
            model = pooled(data, how)
            idata, said = sampled(model, options.short)
            fits[how, seen] = model, idata
            found["models"][f"{how}, {seen}"] = said
            print(
                f"{how} pooling, {seen}: " + ", ".join(f"{k} {v:.4g}" for k, v in said.items())
            )

# %% [markdown]
# ## The thirteenth isolator
# Of one that was never measured, no pooling says what its prior says; complete pooling gives it
# the parameters of all; partial pooling draws it from the population (`params={"k":
# model["k_new"]}`). With a quarter of a second, each model has parameters for it. The error is
# that of the median run over the long record; the share of its samples that lie in the 90 %
# band of runs says whether a model knows how little it knows.

# %%


def predicted(how, seen, fits, record):
    """Free runs on a record of the last isolator."""
    model, idata = fits[how, seen]
    with model:
        if how == "complete":
            options = {}
        elif seen != "never measured":
            options = {"record": len(model.coords["isolator"]) - 1}
        elif how == "partial":
            options = {"params": {name: model[f"{name}_new"] for name in POPULATION}}
        else:  # its own prior
            rng = np.random.default_rng(SEED)
            runs = []
            for _ in range(200):
                values = {
                    "k": 500 * np.exp(rng.standard_normal()),
                    "c": 10 * np.exp(rng.standard_normal()),
                }
                runs.append(
                    sid.predict(idata, record, x0=0.0, draws=1, params=values)["y"].to_numpy()[
                        0
                    ]
                )
            return np.array(runs)
        return sid.predict(idata, record, x0=0.0, draws=200, **options)["y"].to_numpy()


if __name__ == "__main__":
    scores, runs = {}, {}
    for how, seen in fits:
        runs[how, seen] = z = predicted(how, seen, fits, whole)
        low, high = np.quantile(z, [0.05, 0.95], axis=0)
        inside = float(np.mean((whole.y[25:] >= low[25:]) & (whole.y[25:] <= high[25:])))
        error = float(sid.nrmse(whole.y[25:], np.median(z, axis=0)[25:]))
        scores[f"{how}, {seen}"] = {"error_percent": error, "inside_90": inside}
        print(
            f"{how} pooling, {seen}: error {error:.1f} %, {100 * inside:.0f} % of the samples "
            "in the 90 % band"
        )
    found["scores"] = scores

# %% [markdown]
# ## Which model, by leaving out a specimen
# `log_likelihood_by_record` sums the log-likelihood over each record, so that `az.loo` leaves
# out one isolator at a time. Where isolators have parameters of their own, their record is all
# that says what these are: they are integrated out first.

# %%
if __name__ == "__main__":
    for how in ("complete", "partial"):
        model, idata = fits[how, "never measured"]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the Pareto k is printed
            own = {"integrate": 50, "random_seed": SEED} if how == "partial" else {}
            loo = az.loo(
                sid.log_likelihood_by_record(idata, model=model, **own), pointwise=True
            )
        k = loo.pareto_k.to_numpy()
        doubted = int(
            np.sum(k > loo.good_k)
        )  # specimens that move what all share: fit without them
        found["models"][f"{how}, never measured"] |= {
            "elpd": float(loo.elpd),
            "pareto_k": float(k.max()),
            "doubted": doubted,
        }
        said = f"Pareto k up to {k.max():.2f}, {doubted} above {loo.good_k:.2f}"
        print(f"{how} pooling: elpd {loo.elpd:.1f} +- {loo.se:.1f}, {said}")
    (RESULTS / "specimens.json").write_text(json.dumps(found, indent=1) + "\n")

# %% [markdown]
# ## What the models say of the stiffness, and of the thirteenth

# %%
STYLE = {
    "none": ("C0", "no pooling", -0.22),
    "partial": ("C2", "partial pooling", 0.0),
    "complete": ("C1", "complete pooling", 0.22),
}


def drawn(fits, runs, truth, whole):
    """Intervals of every stiffness, and bands of the last isolator."""
    figure, axes = plt.subplots(
        3, 1, figsize=(7.2, 8.4), height_ratios=(3, 2, 2), layout="constrained"
    )
    for how, (colour, label, shift) in STYLE.items():
        if (how, "a quarter of a second") not in fits:  # in the short form
            continue
        k = (
            fits[how, "a quarter of a second"][1]["posterior"]["k"]
            .stack(sample=("chain", "draw"))
            .to_numpy()
        )
        low, middle, high = np.quantile(
            np.broadcast_to(k, (len(truth), k.shape[-1])), [0.05, 0.5, 0.95], axis=1
        )
        place = np.arange(1, len(truth) + 1) + shift
        axes[0].errorbar(
            place,
            middle,
            [middle - low, high - middle],
            fmt="o",
            ms=3,
            color=colour,
            capsize=2,
            label=label,
        )
    axes[0].plot(
        np.arange(1, len(truth) + 1), [t["k"] for t in truth], "k_", ms=18, label="truth"
    )
    axes[0].set(
        xlabel="isolator (of the last one a quarter of a second was measured)",
        ylabel="stiffness (N/m)",
        yscale="log",
    )
    axes[0].set_xticks(np.arange(1, len(truth) + 1))
    axes[0].yaxis.set_major_formatter("{x:.0f}")
    axes[0].yaxis.set_minor_formatter("{x:.0f}")
    axes[0].legend(loc="upper left", ncols=2, fontsize="small")
    for ax, seen in zip(axes[1:], ("never measured", "a quarter of a second"), strict=True):
        for how in ("partial", "complete"):
            colour, label, _ = STYLE[how]
            low, middle, high = 1e3 * np.quantile(runs[how, seen], [0.05, 0.5, 0.95], axis=0)
            ax.fill_between(
                whole.t, low, high, color=colour, alpha=0.35, lw=0, label=f"{label}, 90 % band"
            )
            ax.plot(whole.t, middle, color=colour, lw=0.9)
        ax.plot(whole.t, 1e3 * whole.y, color="k", lw=0.8, label="measured afterwards")
        ax.set(
            ylabel="displacement (mm)",
            title=f"The last isolator, {seen}",
            xlim=(0, whole.t[-1]),
        )
    axes[1].legend(loc="upper right", ncols=3, fontsize="small")
    axes[2].axvspan(0, 0.25, color="0.9", zorder=0)
    axes[2].set_xlabel("time (s)")
    return figure


if __name__ == "__main__":
    figure = drawn(fits, runs, truth, whole)
    figure.savefig(FIGURES / "specimens.png", dpi=130)
