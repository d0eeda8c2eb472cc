# %% [markdown]
# # Quickstart: identify a Duffing oscillator from a noisy record
#
# A mass on a hardening spring is driven by a band-limited random force. A sensor measures its
# displacement with 2 % noise. From the record we want to estimate mass, damping and both
# stiffnesses with correct uncertainties, and to predict a new experiment.
#
# - Data: 8 s at 50 Hz, simulated here with known parameters.
# - Priors: log-normal around rough guesses, wrong by 20 to 100 %; the noise half-normal.
# - Solver: `EK1(order=4)`, the default, with substeps chosen automatically; the No-U-Turn
#   Sampler (NUTS) from the posterior mode.
# - Runtime: about a minute, most of it compilation: `uv run examples/quickstart.py`.

# %%
import sys
from pathlib import Path

import arviz as az
import matplotlib
import numpy as np
import pymc as pm
from scipy.signal import butter, sosfiltfilt

import pm_sysid as sid

NOTEBOOK = "ipykernel" in sys.modules  # which shows figures as well
if not NOTEBOOK:
    matplotlib.use("Agg")
HERE = Path.cwd() if NOTEBOOK else Path(__file__).parent
FIGURES = HERE / "figures"
SEED = 1

# %% [markdown]
# ## The system
# The equations of motion are written once, as an ordinary function. The package recognises that
# `x.v` is the derivative of `x.z`.

# %%
duffing = sid.System(
    lambda t, x, u, p: (x.v, (u.F - p.c * x.v - p.k * x.z - p.k3 * x.z**3) / p.m),
    states=("z", "v"),
    inputs=("F",),
    params=("m", "c", "k", "k3"),
    observe=lambda t, x, dx, u, p: x.z,
)
print(duffing)

# %% [markdown]
# ## The record
# The record is simulated here; measured arrays are given to `sid.TimeSeries(t, u, y)` in the
# same way. Displacements are in metres, forces in newtons.


# %%
def random_force(rng, t, fs, strength):
    """Band-limited Gaussian force, 0.2 to 6 Hz, with the given standard deviation (N)."""
    force = sosfiltfilt(
        butter(4, [0.2, 6.0], "bandpass", fs=fs, output="sos"), rng.standard_normal(t.size)
    )
    return strength * force / force.std()


rng = np.random.default_rng(SEED)
truth = {"m": 1.0, "c": 2.0, "k": 150.0, "k3": 3000.0}  # kg, N s/m, N/m, N/m^3
fs = 50.0
t = np.arange(400) / fs
record = sid.TimeSeries(t, random_force(rng, t, fs, 15.0), None, inputs="F")
clean = sid.simulate(duffing, record, truth, x0=0.0)["y"].values
record = record.replace(y=clean + 0.02 * clean.std() * rng.standard_normal(t.size))
print(record)

# %% [markdown]
# ## The model
# The model consists of the priors, and of the filter as the likelihood. The initial state is
# estimated from the first samples. (With `cores=2` the chains run in parallel. On macOS and
# Windows a script then needs `if __name__ == "__main__":` around the sampling.)

# %%
with pm.Model() as model:
    params = {
        "m": pm.LogNormal("m", np.log(1.2), 0.3),
        "c": pm.LogNormal("c", np.log(1.0), 0.5),
        "k": pm.LogNormal("k", np.log(120.0), 0.3),
        "k3": pm.LogNormal("k3", np.log(2000.0), 0.5),
    }
    noise = pm.HalfNormal("noise", 0.05)
    sid.ODEFilter("y", duffing, record, params, noise=noise)

    mode = sid.find_mode(random_seed=SEED)
    start = {"initvals": mode.initvals, "step": mode.nuts()}
    idata = pm.sample(
        500, tune=200, chains=2, cores=1, random_seed=SEED, progressbar=False, **start
    )
    idata.update(pm.sample_prior_predictive(400, var_names=list(truth), random_seed=SEED))

summary = az.summary(idata, ci_prob=0.94, round_to=5)
summary["truth"] = {**truth, "noise": 0.02 * clean.std()}
print(summary.to_string())

# %% [markdown]
# ## Test of the residuals
# If the model is correct, its standardised one-step-ahead innovations are white noise.

# %%
innovations = sid.innovations(idata, "y", model=model)
print(sid.residual_tests(innovations["standardised"].values[:, 0], record.u))

# %% [markdown]
# ## A new experiment
# The force is larger by one third. The posterior is used for free runs with this input, which
# was not used for the fit.

# %%
force = random_force(np.random.default_rng(SEED + 1), t, fs, 20.0)
new = sid.TimeSeries(t, force, None, inputs="F")
new = new.replace(y=sid.simulate(duffing, new, truth, x0=0.0)["y"].values)
draws = idata.posterior.to_dataset().isel(draw=slice(None, None, 4))
prediction = sid.simulate(duffing, new, draws, x0=0.0)
fit = sid.fit_percent(new.y, prediction["y"])
print(
    f"Fit of the free run at a third more force: {float(fit.min()):.2f} to "
    f"{float(fit.max()):.2f} %"
)

# %%
FIGURES.mkdir(exist_ok=True)
axes = sid.plot_fit(new, prediction, zoom=(2.0, 3.5))
axes.flat[0].figure.savefig(FIGURES / "quickstart_free_run.png", dpi=150)

# %% [markdown]
# Prior and posterior, with the true values:

# %%
axes = sid.plot_prior_posterior(idata, var_names=list(truth), truth=truth)
np.ravel(axes)[0].figure.savefig(FIGURES / "quickstart_posterior.png", dpi=150)
print(f"Figures in {FIGURES.relative_to(HERE)}")
