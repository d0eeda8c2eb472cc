"""What a record says of its inputs between the samples, against evidences and means on a grid."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytest
import scipy
import xarray as xr

import pm_sysid as sid
from support import tiny

KINDS = ("zoh", "foh", "bl")
LAG = sid.System(
    lambda t, x, u, p: p.rate * (p.gain * u.F - x.y),
    states=("y",),
    inputs=("F",),
    params=("rate", "gain"),
    observe=lambda t, x, dx, u, p: x.y,
)
TRUTH = {"rate": 1.0, "gain": 2.0}


def record(true: Any, noise: float, dt: float = 0.5, seed: int = 0) -> sid.TimeSeries:
    rng, t = np.random.default_rng(seed), dt * np.arange(60)
    data = sid.TimeSeries(t, rng.standard_normal(60), None, inputs="F", intersample=true)
    y = sid.simulate(LAG, data, TRUTH, x0=0.0, substeps=8)["y"].to_numpy()
    return data.replace(y=y + noise * rng.standard_normal(60))


def model(data: sid.TimeSeries, noise: float | None) -> pm.Model:
    with pm.Model() as built:
        params = {"rate": pm.LogNormal("rate", 0.0, 0.5), "gain": pm.LogNormal("gain", 0.5, 0.5)}
        size = pm.LogNormal("noise", np.log(0.1), 1.0) if noise is None else noise
        sid.ODEFilter("y", LAG, data, params, noise=size, x0=0.0, substeps=8)
    return built


class Exact(NamedTuple):
    """A posterior on a grid, in the coordinates of a sampler, and draws of it."""

    model: pm.Model
    log_evidence: float
    mean: np.ndarray
    std: np.ndarray
    draws: xr.Dataset


def on_a_grid(built: pm.Model) -> Exact:
    """Around the mode, by 5.5 standard deviations each way."""
    target = sid.Target(built)

    def density(points: np.ndarray) -> np.ndarray:
        return np.asarray(target.log_prior(points) + target.log_likelihood(points).reshape(len(points)))

    start = np.array([0.0, np.log(2.0), np.log(0.1)])[: len(built.free_RVs)]
    mode = scipy.optimize.minimize(lambda x: -density(x[None])[0], start, method="Nelder-Mead", options={"xatol": 1e-5}).x
    curvature = -scipy.differentiate.hessian(lambda x: density(x.reshape(len(mode), -1).T).reshape(x.shape[1:]), mode).ddf
    width, n = 5.5 * np.sqrt(np.diag(np.linalg.inv(curvature))), 41 if mode.size == 2 else 31
    axes = [c + w * np.linspace(-1, 1, n) for c, w in zip(mode, width, strict=True)]
    points = np.stack([a.ravel() for a in np.meshgrid(*axes, indexing="ij")], axis=1)
    values, steps = density(points), [a[1] - a[0] for a in axes]
    total = scipy.special.logsumexp(values)
    weights = np.exp(values - total)
    mean = weights @ points
    assert weights[np.any(np.abs(points - mode) > 0.999 * width, axis=1)].sum() < 1e-4
    rng = np.random.default_rng(3)
    drawn = points[rng.choice(len(points), 400, p=weights)]
    drawn = np.exp(drawn + (rng.random(drawn.shape) - 0.5) * steps).reshape(2, 200, -1)
    draws = xr.Dataset({v.name: (("chain", "draw"), drawn[..., i]) for i, v in enumerate(built.free_RVs)})
    return Exact(built, float(total + np.sum(np.log(steps))), mean, np.sqrt(weights @ (points - mean) ** 2), draws)


def exact(data: sid.TimeSeries, noise: float | None) -> dict[str, Exact]:
    """By behaviour of the inputs."""
    return {kind: on_a_grid(model(data.replace(intersample=kind), noise)) for kind in KINDS}


@pytest.mark.parametrize(
    ("true", "noise"),
    [("bl", 0.05), *(pytest.param(true, 0.05, marks=pytest.mark.slow) for true in ("zoh", "foh"))]
    + [pytest.param(true, None, marks=pytest.mark.slow) for true in KINDS],
)
def test_log_ratios_and_shifts_are_those_of_a_grid(true: Any, noise: float | None) -> None:
    found = exact(record(true, 0.05), noise)
    for kind, (built, log_evidence, mean, std, draws) in found.items():
        check = sid.check_intersample(draws, model=built)
        assert check.intersample == kind and set(check.log_ratio) == set(KINDS) - {kind}
        for other in check.log_ratio:
            ratio = found[other].log_evidence - log_evidence
            assert check.log_ratio[other] == pytest.approx(ratio, abs=0.4 + 0.05 * abs(ratio))
            for i, name in enumerate(("rate", "gain") if noise else ("rate", "gain", "noise")):
                moved = (np.exp(found[other].mean[i]) - np.exp(mean[i])) / (np.exp(mean[i]) * std[i])
                assert check.shift[other][name] == pytest.approx(moved, abs=0.3 + 0.2 * abs(moved))
        best = max(found, key=lambda k: found[k].log_evidence)
        assert check.preferred == ("" if best == kind else best)


DUFFING = sid.System(
    lambda t, x, u, p: (x.v, u.F - p.c * x.v - p.k * x.z - p.k3 * x.z**3),
    states=("z", "v"),
    inputs=("F",),
    params=("c", "k", "k3"),
    observe=lambda t, x, dx, u, p: (x.z, x.v),
)


@pytest.mark.slow
@pytest.mark.parametrize(("true", "noise"), [("zoh", 0.003), ("foh", 0.05), ("bl", 0.003)])
def test_ratios_of_two_behaviours_are_opposite(true: Any, noise: float) -> None:
    """From either side, over posteriors of a nonlinear oscillator that are far from each other, two outputs and records."""
    records = list[sid.TimeSeries]()
    for seed in range(2):
        rng, t = np.random.default_rng(seed), 0.3 * np.arange(100)
        force = sid.TimeSeries(t, 2.0 * rng.standard_normal(100), None, inputs="F", intersample=true)
        solution = sid.simulate(DUFFING, force, {"c": 0.3, "k": 4.0, "k3": 8.0}, x0=[0.0, 0.0], substeps=20)
        y = np.column_stack([solution[name].to_numpy() for name in ("z", "v")])
        records.append(force.replace(y=y + noise * rng.standard_normal(y.shape)))
    found = dict[str, Any]()
    for told in KINDS:
        with pm.Model():
            params = {name: pm.LogNormal(name, np.log(v) + 0.3, 0.5) for name, v in (("c", 0.3), ("k", 4.0), ("k3", 8.0))}
            size = pm.LogNormal("noise", np.log(noise), 1.5, shape=2)
            sid.ODEFilter("y", DUFFING, [r.replace(intersample=told) for r in records], params, noise=size, x0=np.zeros(2))
            found[told] = sid.check_intersample(sid.sample(random_seed=1, progressbar=False))
    for told, check in found.items():
        assert not check.unknown and check.level == ("good" if told == true else "bad")
        assert check.preferred == ("" if told == true else true)
        for other, ratio in check.log_ratio.items():
            assert ratio == pytest.approx(-found[other].log_ratio[told], abs=1.0 + 0.02 * abs(ratio))


@pytest.mark.slow
@pytest.mark.parametrize("what", ["force", "diffusion", "known size"])
def test_with_process_noise_ratios_are_those_of_evidences(what: str) -> None:
    """Innovations are then as large as parameters say; and a size that is known well does not take its best value."""
    rng, t = np.random.default_rng(0), 0.25 * np.arange(80)
    force = sid.TimeSeries(t, rng.standard_normal(80), None, inputs="F", intersample="zoh")
    system = sid.System(
        lambda t, x, u, p: p.rate * (u.F + u.d - x.y),
        states=("y",),
        inputs=("F", "d"),
        params=("rate",),
        observe=lambda t, x, dx, u, p: x.y,
    )
    latent: dict[str, Any] = {"d": sid.OU(scale=0.3 if what == "force" else 1e-9, length=0.3)}
    y = sid.simulate(system, force, {"rate": 1.0}, x0=0.0, substeps=4, latent=latent, random_seed=0)["y"].to_numpy()
    data, checks, evidences = force.replace(y=np.ravel(y) + 0.02 * rng.standard_normal(80)), {}, {}
    for told in ("zoh", "foh"):
        with pm.Model():
            options: dict[str, Any] = {"noise": 0.02, "x0": 0.0, "substeps": 16}
            if what == "force":
                options["latent"] = {"d": sid.OU(scale=pm.LogNormal("size", np.log(0.3), 1.0), length=0.3)}
            elif what == "diffusion":
                options["solver"] = sid.EK1(order=2, diffusion=pm.LogNormal("size", -1.0, 2.0))
            else:
                options["noise"] = pm.LogNormal("size", np.log(0.02), 0.1)
            model = system if what == "force" else LAG
            params: dict[str, Any] = {"rate": pm.LogNormal("rate")} | ({} if what == "force" else {"gain": 1.0})
            sid.ODEFilter("y", model, data.replace(intersample=told), params, **options)
            idata = sid.sample_ibis(500, chains=2, cores=1, random_seed=1, progressbar=False)
            checks[told], evidences[told] = sid.check_intersample(idata), sid.log_evidence(idata).value
    truth = evidences["zoh"] - evidences["foh"]
    assert truth > 50 and checks["foh"].log_ratio["zoh"] == pytest.approx(truth, abs=0.5 + 0.02 * truth)
    assert checks["foh"].level == "bad" and checks["zoh"].level == "good"


def test_draws_of_another_record_are_refused() -> None:
    """As after set_data: what they say of this record is nothing."""
    built = tiny.driven()
    idata = xr.DataTree.from_dict(
        {"posterior": tiny.POSTERIOR[["rate"]], "observed_data": xr.Dataset({"y": ("y_time", 2.0 * tiny.Y)})}
    )
    for check in (sid.check_intersample, sid.check_substeps):
        with pytest.raises(ValueError, match="measurements of 'y' in the model are not those that idata was made of"):
            check(idata, model=built)


def test_what_cannot_be_compared_is_named() -> None:
    """However little is against the others; and nothing is called good then."""
    check = sid.check_intersample(tiny.POSTERIOR, model=tiny.driven())
    doubtful = dataclasses.replace(check, log_ratio={"foh": -9.0}, shift={"foh": {"rate": 1.0}}, unknown=("zoh",))
    assert doubtful.level == "look"
    assert doubtful.verdict.endswith("intersample='zoh' could not be compared: solutions diverge, or are too far from linear.")
    preferred = dataclasses.replace(doubtful, log_ratio={"foh": 9.0})
    assert preferred.level == "look" and "intersample='zoh' could not be compared" in preferred.verdict
    nothing = dataclasses.replace(check, log_ratio={}, shift={}, unknown=("zoh", "foh"))
    assert nothing.level == "look"
    assert "nothing is known against" in nothing.verdict and "'zoh' and intersample='foh' could not" in nothing.verdict


def test_levels() -> None:
    data = record("zoh", 0.05)
    told = on_a_grid(model(data.replace(intersample="bl"), 0.05))
    check = sid.check_intersample(told.draws, model=told.model)
    assert check.level == "bad"
    assert "times as likely with intersample='zoh' as with intersample='bl'" in check.verdict
    fine = record("bl", 0.3, dt=0.01)
    with pm.Model() as built:
        params = {"rate": pm.LogNormal("rate", 0.0, 0.5), "gain": pm.LogNormal("gain", 0.5, 0.5)}
        sid.ODEFilter("y", LAG, fine, params, noise=0.3, x0=0.0, substeps=2)
    rng = np.random.default_rng(0)
    draws = xr.Dataset({n: (("chain", "draw"), np.exp(0.5 * rng.standard_normal((2, 100)))) for n in TRUTH})
    assert sid.check_intersample(draws, model=built).level == "good"


def test_the_fewest_draws() -> None:
    few = tiny.POSTERIOR[["rate"]].isel(chain=[0], draw=slice(0, 3))
    with pytest.raises(ValueError, match="idata has 3 draws for 1 parameters; 4 for each are needed"):
        sid.check_intersample(few, model=tiny.driven())


def test_no_inputs() -> None:
    with pytest.raises(ValueError, match="'y' has no inputs, so that nothing moves between its samples"):
        sid.check_intersample(tiny.IDATA, model=tiny.model())


def test_samples_at_a_limit_and_outliers_are_left_out() -> None:
    """Of a sensor with limits, and of one with outliers, which would make a normal noise so large that nothing is told."""
    data, rng = record("zoh", 0.05), np.random.default_rng(1)
    draws = xr.Dataset({n: (("chain", "draw"), v * np.exp(0.005 * rng.standard_normal((2, 60)))) for n, v in TRUTH.items()})
    y = data.output_matrix[:, 0]
    cases: dict[str, dict[str, Any]] = {
        "limits": {"y": np.clip(y, -0.5, 0.5), "noise": 0.05, "limits": (-0.5, 0.5)},
        "outliers": {"y": y + 20.0 * (rng.random(len(y)) < 0.1), "noise": sid.StudentT(scale=0.05, nu=3)},
    }
    for options in cases.values():
        with pm.Model() as built:
            params = {"rate": pm.LogNormal("rate", 0.0, 0.5), "gain": pm.LogNormal("gain", 0.5, 0.5)}
            sid.ODEFilter("y", LAG, data.replace(y=options.pop("y")), params, x0=0.0, substeps=8, **options)
        check = sid.check_intersample(draws, model=built)
        assert check.preferred == "" and check.log_ratio and max(check.log_ratio.values()) < -8.0


def test_draws_that_are_not_around_one_mode_are_refused() -> None:
    """Of the gain the record tells the square: a linear model through both modes knows neither."""
    system = sid.System(
        lambda t, x, u, p: p.rate * (p.gain**2 * u.F - x.y),
        states=("y",),
        inputs=("F",),
        params=("rate", "gain"),
        observe=lambda t, x, dx, u, p: x.y,
    )
    data, rng = record("foh", 0.05), np.random.default_rng(0)
    with pm.Model() as built:
        params = {"rate": pm.LogNormal("rate", 0.0, 0.5), "gain": pm.Normal("gain", 0.0, 2.0)}
        sid.ODEFilter("y", system, data.replace(intersample="zoh"), params, noise=0.05, x0=0.0, substeps=8)
    gain = np.sqrt(2.0) * rng.choice([-1.0, 1.0], (2, 100)) * np.exp(0.005 * rng.standard_normal((2, 100)))
    draws = xr.Dataset(
        {"rate": (("chain", "draw"), np.exp(0.01 * rng.standard_normal((2, 100)))), "gain": (("chain", "draw"), gain)}
    )
    with pytest.raises(ValueError, match="the draws are not around one mode"):
        sid.check_intersample(draws, model=built)
