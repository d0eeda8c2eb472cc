"""Learned laws against SciPy's spline, PyMC's Hilbert-space process, dense Gaussian processes, and inside a system."""

from __future__ import annotations

from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy.interpolate import CubicSpline

import pm_sysid as sid
from pm_sysid.compat import change_dist_size

KNOTS = np.array([-0.3, -0.12, 0.0, 0.05, 0.2, 0.3])
VALUES = np.array([-2.0, 0.3, 0.1, 0.4, -1.0, 5.0])
AT = np.linspace(-0.3, 0.3, 41)
RECORD = sid.TimeSeries(np.arange(60) * 0.02, 3.0 * np.sin(5 * np.arange(60) * 0.02), intersample="zoh")


def oscillator(law: Any) -> sid.System:
    return sid.System(
        lambda t, x, u, p: (x.v, u.F - p.c * x.v - law(x.z, p.w)),
        states=("z", "v"),
        inputs=("F",),
        params={"c": (), "w": law.size},
        observe=lambda t, x, dx, u, p: x.z,
    )


def test_a_spline_is_the_natural_cubic_spline_and_a_line_beyond() -> None:
    spline, known = sid.Spline(KNOTS), CubicSpline(KNOTS, VALUES, bc_type="natural")
    np.testing.assert_allclose(spline(AT, VALUES), known(AT), rtol=1e-12, atol=1e-12)
    out = np.array([-0.5, -0.4, 0.4, 0.7])
    ends = np.where(out < 0, -0.3, 0.3)
    np.testing.assert_allclose(spline(out, VALUES), known(ends) + known(ends, 1) * (out - ends), rtol=1e-10)


def test_sixty_knots_lose_no_digits() -> None:
    knots = np.sort(np.random.default_rng(0).uniform(-1.0, 1.0, 60))
    values, at = np.sin(9 * knots), np.linspace(knots[0], knots[-1], 500)
    np.testing.assert_allclose(sid.Spline(knots)(at, values), CubicSpline(knots, values, bc_type="natural")(at), atol=1e-7)


def test_a_hilbert_basis_has_the_prior_of_pymc() -> None:
    """Covariance of the law under the prior: PyMC's linearised HSGP, and the exact process away from the boundary."""
    basis = sid.HilbertBasis(-0.3, 0.3, size=40, boundary=2.0)
    cov = 4.0 * pm.gp.cov.Matern52(1, ls=0.15)
    with pm.Model() as model:
        basis.prior("w", cov)
    sd = model["w"].eval({model["w_scaled"]: np.ones(40)})
    phi = np.array([basis(AT, e) for e in np.eye(40)]).T
    ours = (phi * sd**2) @ phi.T
    with pm.Model():
        process = pm.gp.HSGP(m=[40], L=[0.6], cov_func=cov)
        theirs_phi, theirs_sd = process.prior_linearized(AT[:, None])
        theirs = (theirs_phi.eval() * theirs_sd.eval() ** 2) @ theirs_phi.eval().T
    np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(ours, cov(AT[:, None]).eval(), atol=0.02 * 4.0)


def test_the_prior_of_a_spline_is_the_process_at_its_knots() -> None:
    spline, cov = sid.Spline(KNOTS), 4.0 * pm.gp.cov.Matern52(1, ls=0.15)
    with pm.Model() as model:
        spline.prior("w", cov)
        length = pm.HalfNormal("length", 1.0)
        spline.prior("unknown", pm.gp.cov.Matern52(1, ls=length))
    draws = pm.draw(model["w"], 20_000, random_seed=0)
    np.testing.assert_allclose(np.cov(draws.T), cov(KNOTS[:, None]).eval(), atol=0.2)
    assert [v.name for v in model.free_RVs] == ["w_scaled", "length", "unknown_scaled"]
    assert np.isfinite(model.compile_logp()(model.initial_point()))


@pytest.mark.parametrize("law", [sid.Spline(KNOTS), sid.HilbertBasis(-0.3, 0.3, 6)], ids=["spline", "sines"])
def test_inside_a_system_the_law_is_that_of_arrays(law: Any) -> None:
    """A run with the learned law is SciPy's solution with the same law called with numbers."""
    from scipy.integrate import solve_ivp

    w = 0.4 * np.sin(np.arange(6.0)) + 4.0 * (KNOTS if isinstance(law, sid.Spline) else 0.0)
    run = sid.simulate(oscillator(law), RECORD, {"c": 0.3, "w": w}, x0=[0.05, 0.0], substeps=64)["y"].to_numpy()
    t, y = RECORD.t, [np.array([0.05, 0.0])]
    for i in range(59):
        force = float(RECORD.u[i])
        step = solve_ivp(
            lambda s, x, f=force: [x[1], f - 0.3 * x[1] - float(law(x[0], w))], (t[i], t[i + 1]), y[-1], rtol=1e-10, atol=1e-12
        )
        y.append(step.y[:, -1])
    np.testing.assert_allclose(run, np.array(y)[:, 0], atol=2e-6)


def test_the_likelihood_of_a_spline_is_that_of_its_formula() -> None:
    """A straight line through the knots is a linear spring: same log-likelihood, and a gradient of weights that agrees."""
    linear = sid.System(
        lambda t, x, u, p: (x.v, u.F - p.c * x.v - p.k * x.z),
        states=("z", "v"),
        inputs=("F",),
        params=("c", "k"),
        observe=lambda t, x, dx, u, p: x.z,
    )
    spline = sid.Spline(KNOTS)
    truth = sid.simulate(linear, RECORD, {"c": 0.3, "k": 40.0}, x0=0.0)["y"].to_numpy()
    record = RECORD.replace(y=truth + 0.001 * np.random.default_rng(0).standard_normal(truth.shape))

    def model(system: sid.System, learned: bool) -> tuple[float, np.ndarray]:
        with pm.Model() as m:
            k = pm.Normal("k", initval=40.0)
            params = {"c": 0.3, "w": k * KNOTS} if learned else {"c": 0.3, "k": k}
            sid.ODEFilter("y", system, record, params, noise=0.01, x0=0.0, substeps=2, solver=sid.EK1(order=2))
        point = {"k": np.array(40.0)}
        return float(m.compile_logp()(point)), m.compile_dlogp()(point)

    (value, slope), (expected, expected_slope) = model(oscillator(spline), True), model(linear, False)
    assert value == pytest.approx(expected, rel=1e-10)
    np.testing.assert_allclose(slope, expected_slope, rtol=1e-7)


def test_a_library_adds_up_its_terms_and_shrinks_most() -> None:
    law = sid.Library({"z": lambda z, v: z, "z^3": lambda z, v: z**3, "v|v|": lambda z, v: v * abs(v), "1": lambda z, v: 1.0})
    assert law(2.0, -1.0, [1.0, 0.5, 3.0, 0.25]) == 2.0 + 4.0 - 3.0 + 0.25
    with pm.Model() as model:
        law.prior("w", sizes=[1.0, 10.0, 1.0, 1.0], terms=1)
    draws = pm.draw(model["w"], 4000, random_seed=1)
    assert 0.6 < np.mean(np.abs(draws[:, 0]) < 0.03) < 0.9
    np.testing.assert_allclose(np.median(abs(draws[:, 1])) / np.median(abs(draws[:, 0])), 10.0, rtol=0.15)
    assert np.quantile(abs(draws[:, 0]), 0.999) < 30.0  # the slab
    assert np.isfinite(model.compile_logp()(model.initial_point()))


@pytest.mark.parametrize("size, terms", [(4, 1.0), (10, 2.0), (30, 5.0)])
def test_as_many_weights_as_said_are_expected_to_matter(size: int, terms: float) -> None:
    """Effective number of weights, those whose standard deviation is not below what is negligible (Piironen and Vehtari)."""
    law = sid.Library({f"{i}": lambda z: z for i in range(size)})
    with pm.Model() as model:
        law.prior("w", np.ones(size), terms=terms, negligible=0.05, slab=1e6)
    many = [change_dist_size(model[name], (20_000,), expand=True) for name in ("w_local", "w_global")]  # all in one call
    local, overall = pm.draw(many, random_seed=0)
    a = overall[:, None] * local / 0.05
    found = np.sum(a**2 / (1 + a**2), axis=1)
    assert abs(found.mean() - terms) < 5 * found.std() / np.sqrt(found.size)


@pytest.mark.parametrize("length", [0.002, 0.1, 0.5])
def test_a_basis_that_cannot_make_the_process_is_refused(length: float) -> None:
    with pm.Model(), pytest.raises(ValueError, match="give a larger boundary"):
        sid.HilbertBasis(-0.1, 0.1).prior("w", pm.gp.cov.Matern52(1, ls=length))


def test_a_basis_wide_enough_makes_the_process() -> None:
    with pm.Model():
        sid.HilbertBasis(-0.1, 0.1, size=60, boundary=4.0).prior("w", pm.gp.cov.Matern52(1, ls=0.1))


@pytest.mark.parametrize("cov", [pm.gp.cov.Linear(1, c=0.0), pm.gp.cov.Periodic(1, period=1.0, ls=1.0)])
def test_a_process_without_spectral_density_is_refused(cov: Any) -> None:
    with pm.Model(), pytest.raises(TypeError, match="no spectral density"):
        sid.HilbertBasis(-0.1, 0.1).prior("w", cov)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: sid.Spline([0.0, 1.0]), "3 to 60"),
        (lambda: sid.Spline([0.0, 2.0, 1.0]), "rising"),
        (lambda: sid.Spline(KNOTS)(0.0, np.zeros(5)), r"w has the shape \(5,\); Spline"),
        (lambda: sid.Spline(KNOTS)(0.0, pt.dvector("w", shape=(4,))), r"shape \(4,\)"),
        (lambda: sid.HilbertBasis(1.0, 0.0), "the smaller first"),
        (lambda: sid.HilbertBasis(0.0, 1.0, boundary=1.0), "above 1"),
        (lambda: sid.HilbertBasis(0.0, 1.0, size=1), "from 2 to 60"),
        (lambda: sid.Library({}), "at least one function"),
        (lambda: sid.Library({"z": abs})(1.0, [1.0, 2.0]), "a weight for each"),
        (lambda: sid.Library({"z": abs, "1": lambda z: 1.0}).prior("w", [1.0]), "2 positive numbers"),
        (lambda: sid.Library({"z": abs, "1": lambda z: 1.0}).prior("w", [1.0, 1.0], terms=2), "below that of the terms"),
    ],
)
def test_what_is_no_law_is_refused(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_a_prior_needs_a_covariance_function_and_a_model() -> None:
    spline = sid.Spline(KNOTS)
    with pytest.raises(TypeError, match="covariance function in one dimension"):
        spline.prior("w", 1.0)
    with pytest.raises(TypeError, match="No model"):
        spline.prior("w", pm.gp.cov.Matern52(1, ls=0.1))
