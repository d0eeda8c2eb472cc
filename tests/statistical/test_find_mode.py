"""find_mode on hare and lynx, where the model's initial point has no solution and half of the searches end in a flat one."""

import numpy as np
import pymc as pm
import pytest

import pm_sysid as sid

HARE = [30, 47.2, 70.2, 77.4, 36.3, 20.6, 18.1, 21.4, 22, 25.4, 27.1, 40.3, 57, 76.6, 52.3, 19.5, 11.2, 7.6, 14.6, 16.2, 24.7]
LYNX = [4, 6.1, 9.8, 35.2, 59.4, 41.7, 19, 13, 8.3, 9.1, 7.4, 8, 12.3, 19.5, 45.7, 51.1, 29.7, 15.8, 9.7, 10.1, 8.6]


@pytest.mark.slow
def test_hare_and_lynx_from_an_impossible_initial_point():
    """Published posterior means: Carpenter, Predator-Prey Population Dynamics (Stan case study, 2018)."""
    system = sid.System(
        lambda t, x, u, p: ((p.alpha - p.beta * x.v) * x.u, (-p.gamma + p.delta * x.u) * x.v),
        states=("u", "v"),
        params=("alpha", "beta", "gamma", "delta"),
        observe=lambda t, x, dx, u, p: (pm.math.log(x.u), pm.math.log(x.v)),
    )
    record = sid.TimeSeries(np.arange(21.0), None, np.log(np.c_[HARE, LYNX]))
    with pm.Model() as model:
        p = {n: pm.LogNormal(n, 0.0, 0.5) for n in ("alpha", "gamma")}
        p |= {n: pm.LogNormal(n, np.log(0.05), 1.0) for n in ("beta", "delta")}
        z = pm.LogNormal("z_init", np.log(10), 1, shape=2, initval=[1e4, 1e4])
        sigma = pm.LogNormal("sigma", -1, 1, shape=2)
        solver = sid.EK0(order=2)
        sid.ODEFilter("y", system, record, p, noise=sigma, x0={"u": z[0], "v": z[1]}, solver=solver, substeps=32)
    assert not np.isfinite(model.compile_logp()(model.initial_point()))
    known = {"alpha": (0.55, 0.07), "beta": (0.028, 0.004), "gamma": (0.80, 0.10), "delta": (0.024, 0.004)}
    for seed in range(5):
        mode = sid.find_mode(model, random_seed=seed, progressbar=False)
        assert mode.converged, mode.message
        for name, (mean, sd) in known.items():
            assert abs(float(mode.initvals[name]) - mean) < 1.5 * sd, (seed, name)
        assert np.all(mode.initvals["sigma"] < 0.4)
