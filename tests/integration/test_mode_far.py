"""The search for the mode from a start that L-BFGS gives up on."""

import numpy as np
import pymc as pm
import pytest

import pm_sysid as sid


@pytest.mark.filterwarnings("ignore::pm_sysid.SubstepWarning")  # eight steps are few at the mode; the search is tested here
def test_the_mode_is_found_where_the_first_search_stops_far_off() -> None:
    """A lightly damped circuit: from these priors L-BFGS stops 2000 units of log density below the maximum."""
    circuit = sid.models.duffing()
    t = np.arange(600) / 610.35
    record = sid.TimeSeries(t, 0.1 * np.sin(2 * np.pi * (40.0 + 30.0 * t) * t))
    truth = {"m": 5.4e-6, "c": 2.3e-4, "k": 0.99, "k3": 4.0}
    y = sid.simulate(circuit, record, truth, x0=0.0, substeps=8)["y"].values
    record = record.replace(y=y + 5e-3 * np.random.default_rng(0).standard_normal(t.size))
    with pm.Model():
        params = sid.models.priors({"m": 4e-6, "c": 4e-4, "k": 1.2, "k3": (0.0, 5.0)}, sd=0.3)
        noise = pm.HalfNormal("noise", 0.03)
        sid.ODEFilter("y", circuit, record, params, noise=noise, x0=0.0, solver=sid.EK1(order=3), substeps=8)
        mode = sid.find_mode()
    assert mode.converged
    found = np.array([mode.initvals[name] for name in ("m", "c", "k")])
    np.testing.assert_allclose(found, [truth[name] for name in ("m", "c", "k")], rtol=0.02)
    np.testing.assert_allclose(mode.initvals["noise"], 5e-3, rtol=0.1)
