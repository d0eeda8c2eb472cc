"""Bad input ends at the door, with a message that names the argument and the remedy."""

import numpy as np
import pymc as pm
import pytest

import pm_sysid as sid

T = np.arange(20) / 20.0
RECORD = sid.TimeSeries(T, np.sin(T), 0.1 * np.sin(T))
PARAMS = {"m": 1.0, "c": 0.1, "k": 4.0, "k3": 1.0}
BOUC_WEN = {"m": 1.0, "c": 0.1, "k": 4.0, "alpha": 1.0, "beta": 1.0, "gamma": 0.5, "delta": 0.5}


def build(**changes):
    arguments = {"system": sid.models.duffing(), "data": RECORD, "params": PARAMS, "noise": 0.1, "substeps": 2} | changes
    with pm.Model():
        return sid.ODEFilter("y", arguments.pop("system"), arguments.pop("data"), arguments.pop("params"), **arguments)


CASES = [
    ({"params": {"m": 1.0}}, ValueError, r"params lacks \['c', 'k', 'k3'\]; the system's parameters are"),
    ({"params": PARAMS | {"mass": 1.0}}, ValueError, r"unknown names \['mass'\]"),
    ({"params": PARAMS | {"m": np.nan}}, ValueError, r"params\['m'\] is nan; give a finite number"),
    ({"params": PARAMS | {"m": np.ones(2)}}, TypeError, r"params\['m'\] is array.*scalar"),
    ({"params": [1.0, 2.0]}, TypeError, "params is list; give a dict"),
    ({"system": "duffing"}, TypeError, "system is str; give a pm_sysid.System"),
    ({"data": np.ones(3)}, TypeError, "data is ndarray; give a TimeSeries"),
    ({"data": []}, TypeError, "give a TimeSeries, or a list"),
    ({"data": sid.TimeSeries(T, None, T)}, ValueError, r"0 input channels .* the system has the inputs \('F',\)"),
    ({"data": sid.TimeSeries(T, T, None)}, ValueError, "data has no outputs; give the measured y"),
    ({"data": sid.TimeSeries(T, T, np.ones((20, 2)))}, ValueError, "2 output channels"),
    ({"noise": -1.0}, ValueError, "noise is -1.0; a standard deviation must be positive"),
    ({"noise": [1.0, 2.0]}, ValueError, "noise has 2 entries; give one, or one for each output"),
    ({"noise": {"z": 1.0}}, ValueError, r"noise has the entries \['z'\]; give one for each output: \('y',\)"),
    ({"x0": {"w": 0.0}}, ValueError, r"x0 names the states \['w'\], which the system does not have"),
    ({"x0": [0.0, 0.0, 0.0]}, ValueError, "x0 has 3 entries; give one for each state"),
    ({"x0": {"z": np.inf}}, ValueError, "x0 of 'z' is inf; it must be finite"),
    ({"x0_std": {"z": -1.0}}, ValueError, "x0_std of 'z' is -1.0; it must be finite and not negative"),
    ({"solver": "ek1"}, TypeError, "solver is 'ek1'; give pm_sysid.EK0"),
    (
        {"solver": sid.EK1(order=1)},
        ValueError,
        r"order is 1, but the chain \('z', 'v'\) has 2 states; use an order of at least 2",
    ),
    ({"solver": sid.EK1(diffusion=[1.0, 2.0])}, ValueError, "diffusion has 2 entries"),
    ({"solver": sid.EK1(diffusion=-1.0)}, ValueError, "diffusion is .*-1.0.*positive and finite"),
    ({"solver": sid.EK1(diffusion={"v": 1.0})}, ValueError, r"diffusion has the entries \['v'\]; give one for each chain"),
    ({"substeps": 0}, ValueError, "substeps is 0; give a positive integer or 'auto'"),
    ({"substeps": 1.5}, ValueError, "substeps is 1.5"),
    ({"likelihood": "dalton"}, ValueError, "likelihood is 'dalton'; choose 'filter' or 'fenrir'"),
    ({"data": [RECORD, RECORD], "x0": [0.0, 0.0, 0.0]}, ValueError, "x0 has 3 entries for 2 records"),
    ({"data": [RECORD, RECORD.replace(intersample="zoh")]}, ValueError, "the records differ in intersample behaviour"),
    (
        {"system": sid.models.bouc_wen(observe="displacement"), "params": BOUC_WEN},
        ValueError,
        r"x0 is not given for the states \['r'\].*x0=\{'r': 0.0\}",
    ),
]


@pytest.mark.parametrize(("changes", "error", "message"), CASES)
def test_odefilter_refuses(changes, error, message):
    with pytest.raises(error, match=message):
        build(**changes)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"order": 0}, "order is 0; give an integer from 1 to 11"),
        ({"order": 2.5}, r"order is 2\.5"),
        ({"diffusion": "ml"}, "diffusion is 'ml'; give 'mle', 'dynamic'"),
        ({"covariance": "full"}, "covariance is 'full'; give 'auto', 'dense' or 'block'"),
    ],
)
def test_solvers_refuse(settings, message):
    with pytest.raises(ValueError, match=message):
        sid.EK1(**settings)


def test_a_large_dense_filter_with_a_coupled_output_asks_for_a_choice():
    names = [f"z{i}" for i in range(9)]
    system = sid.System(
        lambda t, x, u, p: tuple(-a for a in x),
        states=names,
        observe=lambda t, x, dx, u, p: x.z0 - x.z1,
    )
    with pytest.raises(ValueError, match=r"outputs \['y'\] see several chains.*covariance='dense'.*covariance='block'"):
        build(system=system, data=sid.TimeSeries(T, None, T), params={}, x0=1.0)


def test_set_data_refuses_another_kind_of_record():
    with pm.Model() as model:
        k = pm.LogNormal("k", 1.4, 0.1)
        sid.ODEFilter("y", sid.models.duffing(), RECORD, PARAMS | {"k": k}, noise=0.1, substeps=4)
        with pytest.raises(ValueError, match="differs from the old one in intersample behaviour"):
            sid.set_data({"y": RECORD.replace(intersample="zoh")})
        with pytest.raises(ValueError, match="was built for 1 records and got 2"):
            sid.set_data({"y": [RECORD, RECORD]})
        with pytest.raises(ValueError, match=r"no ODEFilter named 'q'; it has \['y'\]"):
            sid.set_data({"q": RECORD})
        logp = model.compile_logp()
        point = model.initial_point()
        before = float(logp(point))
        longer = np.arange(33) / 20.0
        y = np.where(longer < 0.2, 0.1 * np.sin(longer), np.nan)
        sid.set_data({"y": sid.TimeSeries(longer, np.sin(longer), y)})
        assert np.isfinite(float(logp(point)))
        with pytest.raises(ValueError, match="fewer than two of its values were measured"):
            sid.set_data({"y": sid.TimeSeries(longer, np.sin(longer), np.full(33, np.nan))})
        assert len(model.coords["y_time"]) == 33
        sid.set_data({"y": RECORD})
        assert float(logp(point)) == before
