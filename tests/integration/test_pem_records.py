"""Measured and benchmark records: the free run after a fit is as good as the structure allows."""

from __future__ import annotations

import numpy as np
import pytest

import pm_sysid as sid
from support.records import FOLDER

FREE = sid.ExtendedKalman(substeps=4)
START = {"m": 5e-6, "c": 2e-4, "k": 1.0, "k3": 4.0, "offset": 0.0, "k2": 0.0}


@pytest.mark.needs_records("silverbox_snls80mv.npz")
@pytest.mark.parametrize("quadratic, bar", [(False, 0.48), (True, 0.40)])
def test_silverbox_arrow_head(quadratic: bool, bar: float) -> None:
    train, arrow = (sid.datasets.silverbox(part, folder=FOLDER) for part in ("train", "arrow"))
    system = sid.models.duffing(offset=True, quadratic=quadratic)
    fit = sid.fit_pem(system, train, {k: START[k] for k in system.params}, predictor=FREE, x0=sid.InitialState(estimate=True))
    assert fit.success and fit.nit < 15
    assert 1e3 * float(sid.rmse(arrow.y, fit.simulate(arrow)["y"])) <= bar


@pytest.mark.needs_records("boucwen_train_multisine.npz", "boucwen_test_sinesweep.npz")
def test_bouc_wen_gives_back_its_parameters() -> None:
    train = sid.datasets.bouc_wen("train", folder=FOLDER)[:8192]
    sweep = sid.datasets.bouc_wen("test_sinesweep", folder=FOLDER)
    truth = {"m": 2.0, "c": 10.0, "k": 5e4, "alpha": 5e4, "gamma": 0.8, "delta": -1.1}
    guess = {"m": 2.2, "c": 8.0, "k": 5.5e4, "alpha": 4.5e4, "gamma": 0.9, "delta": -1.3}
    system = sid.models.bouc_wen(observe="displacement")
    fit = sid.fit_pem(system, train, guess, fixed={"beta": 1e3}, predictor=FREE, x0=sid.InitialState(0.0, estimate=True))
    assert fit.success
    np.testing.assert_allclose(list(fit.p.values()), list(truth.values()), rtol=0.01)
    assert float(sid.rmse(sweep.y, fit.simulate(sweep, x0=0.0)["y"])) < 2.6e-6  # the true parameters give 2.55e-6


@pytest.mark.slow
@pytest.mark.needs_records("emps_train.npz")
def test_emps_in_open_loop() -> None:
    """Least squares found by other means reaches 3.02 mm from the first samples' position and speed."""
    train = sid.datasets.emps("train", folder=FOLDER, intersample="zoh")
    guess = {"M": 95.0, "Fv": 200.0, "Fc": 20.0, "offset": -3.0}
    options = {"predictor": sid.ExtendedKalman(substeps=1), "starts": 1}
    fit = sid.fit_pem(sid.models.emps(), train, guess, x0=sid.InitialState(estimate=False), **options)
    assert fit.success
    np.testing.assert_allclose(1e3 * np.sqrt(fit.fun), 3.02, atol=0.005)
    assert sid.fit_pem(sid.models.emps(), train, guess, **options).fun < fit.fun  # the start estimated
