"""Structures by matrices and by modes: against SciPy's eigenvalues, the energy they keep, chains of masses, and each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy

import pm_sysid as sid
from pm_sysid.steps.derived import completed_sets
from pm_sysid.symbolic.derivatives import jacobian
from pm_sysid.symbolic.scalars import evaluate

RNG = np.random.default_rng(2)
N = 4
SHIFT = np.diag(np.ones(N - 1), 1)
MASS = np.diag([1.0, 2.0, 1.5, 0.7]) + 0.05 * (SHIFT + SHIFT.T)
STIFFNESS = 400.0 * (2 * np.eye(N) - SHIFT - SHIFT.T)
DAMPING = 0.1 * MASS + 1e-3 * STIFFNESS
T = 0.01 * np.arange(400)
FORCE = sid.TimeSeries(T, 20 * RNG.normal(size=T.size), intersample="foh")
FREE = sid.TimeSeries(T)


def eigenvalues(system: sid.System, **values: Any) -> np.ndarray:
    """Eigenvalues of the motion about rest."""
    entries = system.params.spread("params", values)
    (p,) = completed_sets(system, np.array([[float(entries[n]) for n in system.params]]))
    at = dict.fromkeys([system.t, *system.x, *system.u], 0.0) | dict(zip(system.p, p, strict=True))
    slopes = [d for row in jacobian(system.f, system.x) for d in row]
    return np.linalg.eigvals(np.reshape(evaluate(slopes, at), (len(system.x),) * 2))


VERSIONS = {
    "numbers": (MASS, {}),
    "a parameter": ("M", {"M": MASS}),
    "a sum": ({"m": np.diag(np.diag(MASS)), None: MASS - np.diag(np.diag(MASS))}, {"m": 1.0}),
}


@pytest.mark.parametrize("version", VERSIONS)
def test_modal_frequencies_are_those_of_scipy(version: str) -> None:
    mass, values = VERSIONS[version]
    system = sid.models.structural(mass, 0 * MASS, STIFFNESS)
    expected = np.sqrt(scipy.linalg.eigh(STIFFNESS, MASS, eigvals_only=True))
    found = eigenvalues(system, **values)
    np.testing.assert_allclose(np.sort(found.imag)[N:], expected, rtol=1e-9)
    np.testing.assert_allclose(found.real, 0.0, atol=1e-7)


def test_modes_have_the_frequencies_and_damping_given() -> None:
    shapes = RNG.normal(size=(5, 3))
    system = sid.models.modal("f", "zeta", shapes)
    f, zeta = np.array([1.0, 2.5, 7.0]), np.array([0.01, 0.05, 0.002])
    found = eigenvalues(system, f=f, zeta=zeta)
    found = found[found.imag > 0][np.argsort(found.imag[found.imag > 0])]
    np.testing.assert_allclose(np.abs(found), 2 * np.pi * f, rtol=1e-9)
    np.testing.assert_allclose(-found.real / np.abs(found), zeta, rtol=1e-7)


def test_energy_is_kept_without_damping() -> None:
    system = sid.models.structural(
        MASS, 0 * MASS, STIFFNESS, nonlinear={"wall": ("cubic", 0), "link": ("cubic", (2, 1)), "row": ("cubic", np.ones(N))}
    )
    k3 = {"k3_wall": 2e4, "k3_link": 5e4, "k3_row": 1e3}
    start = {"q": [0.1, -0.05, 0.12, 0.2], "v": [1.0, 0.0, -2.0, 0.5]}
    run = sid.simulate(system, FREE, k3, x0=start, substeps=16)
    q, v = run["q"].to_numpy(), run["v"].to_numpy()
    d = np.stack([q[:, 0], q[:, 2] - q[:, 1], q.sum(axis=1)])
    linear = 0.5 * np.einsum("ti,ij,tj->t", v, MASS, v) + 0.5 * np.einsum("ti,ij,tj->t", q, STIFFNESS, q)
    springs = np.array(list(k3.values())) @ d**4 / 4
    assert springs.max() > 0.2 * linear.max()  # they matter
    energy = linear + springs
    np.testing.assert_allclose(energy, energy[0], rtol=1e-6)


def test_modes_of_a_structure_move_as_it_does() -> None:
    squares, modes = scipy.linalg.eigh(STIFFNESS, MASS)
    f = np.sqrt(squares) / (2 * np.pi)
    zeta = (0.1 + 1e-3 * squares) / (2 * np.sqrt(squares))
    options: dict[str, Any] = dict(
        v_s=0.1,
        nonlinear={"tip": (("cubic", "bouc_wen"), 3), "link": ("coulomb", (1, 2))},
        input=2,
        output={"acceleration": [0, 3], "displacement": 1, "velocity": np.array([[1.0, 0.0, 0.0, -1.0]])},
    )
    values = {"k3_tip": 3e3, "alpha_tip": 300.0, "beta_tip": 2.0, "gamma_tip": 0.8, "delta_tip": -0.5, "Fc_link": 1.0}
    by_matrices = sid.simulate(sid.models.structural(MASS, DAMPING, STIFFNESS, **options), FORCE, values, x0=0.0, substeps=32)
    by_modes = sid.simulate(sid.models.modal(f, zeta, modes, **options), FORCE, values, x0=0.0, substeps=32)
    for kind in ("acceleration", "displacement", "velocity"):
        size = float(np.abs(by_matrices[kind]).max())
        assert size > 0
        np.testing.assert_allclose(by_modes[kind], by_matrices[kind], atol=1e-7 * size)


def test_shapes_that_are_a_parameter_are_the_shapes_given_as_numbers() -> None:
    shapes = 0.5 * RNG.normal(size=(4, 3))
    options: dict[str, Any] = dict(
        nonlinear={"joint": (("cubic", "bouc_wen"), (1, 2)), "row": ("cubic", [0.0, 0.5, 0.0, 1.0])},
        input=np.array([[1.0], [0.0], [0.0], [-0.5]]),
        output={"acceleration": [0, 3], "displacement": np.array([[0.0, 1.0, -1.0, 0.0]])},
    )
    values = {"f": [1.0, 2.5, 7.0], "zeta": [0.01, 0.05, 0.002], "k3_joint": 3e3, "k3_row": 2e3}
    values |= {"alpha_joint": 300.0, "beta_joint": 2.0, "gamma_joint": 0.8, "delta_joint": -0.5}
    force = FORCE.replace(u=FORCE.input_matrix)
    known = sid.models.modal("f", "zeta", shapes, **options)
    unknown = sid.models.modal("f", "zeta", {"phi": (4, 3)}, **options)
    assert set(unknown.params.shapes) == {"phi", *known.params.shapes} and unknown.params.shapes["phi"] == (4, 3)
    a = sid.simulate(known, force, values, x0=0.0, substeps=32)
    b = sid.simulate(unknown, force, {**values, "phi": shapes}, x0=0.0, substeps=32)
    for name in ("acceleration", "displacement", "q", "r"):
        np.testing.assert_allclose(b[name], a[name], rtol=0, atol=1e-10 * float(np.abs(a[name]).max()))


def test_a_structure_is_the_chain_of_masses_it_describes() -> None:
    chain = sid.models.chain(
        3, {2: ("cubic", "coulomb"), 3: "bouc_wen"}, walls="both", forces=[1], observe="acceleration", v_s=0.1
    )
    K = 100.0 * (2 * np.eye(3) - np.diag(np.ones(2), 1) - np.diag(np.ones(2), -1))
    structure = sid.models.structural(
        np.diag([1.0, 2.0, 3.0]),
        {"c": K / 100.0},
        "K",
        nonlinear={"a": (("cubic", "coulomb"), (1, 0)), "b": ("bouc_wen", (2, 1))},
        v_s=0.1,
        input=[0],
        output={"acceleration": [0, 1, 2]},
    )
    elements = {"k3": 500.0, "Fc": 2.0}, {"alpha": 50.0, "beta": 2.0, "gamma": 0.8, "delta": -0.5}
    ours = {"c": 0.7, "K": K} | {f"{k}_a": v for k, v in elements[0].items()} | {f"{k}_b": v for k, v in elements[1].items()}
    theirs = (
        {f"m{i}": float(i) for i in (1, 2, 3)} | {f"k{i}": 100.0 for i in range(1, 5)} | {f"c{i}": 0.7 for i in range(1, 5)}
    )
    theirs |= {f"{k}_2": v for k, v in elements[0].items()} | {f"{k}_3": v for k, v in elements[1].items()}
    a = sid.simulate(structure, FORCE, ours, x0=0.0, substeps=32)["acceleration"]
    b = sid.simulate(chain, FORCE, theirs, x0=0.0, substeps=32)
    for i in range(3):
        np.testing.assert_allclose(a[:, i], b[f"y{i + 1}"], rtol=0, atol=1e-8 * float(np.abs(a).max()))


def test_forces_by_a_matrix_act_where_it_says() -> None:
    B = np.array([[1.0, 0.0], [0.0, 0.0], [0.0, 2.0], [0.0, -2.0]])
    both = sid.TimeSeries(T, RNG.normal(size=(T.size, 2)), intersample="foh")
    by_matrix = sid.models.structural(MASS, DAMPING, STIFFNESS, input=B)
    by_places = sid.models.structural(MASS, DAMPING, STIFFNESS, input=[0, 2, 3])
    three = sid.TimeSeries(T, both.input_matrix @ np.array([[1.0, 0.0, 0.0], [0.0, 2.0, -2.0]]), intersample="foh")
    a, b = (sid.simulate(s, r, {}, x0=0.0, substeps=4)["q"] for s, r in ((by_matrix, both), (by_places, three)))
    np.testing.assert_allclose(a, b, rtol=0, atol=1e-12 * float(np.abs(b).max()))


def test_zeros_of_the_matrices_cost_nothing() -> None:
    system = sid.models.structural(np.diag(np.diag(MASS)), {"alpha": MASS, "beta": STIFFNESS}, STIFFNESS)
    slopes = jacobian(system.f[N:], system.x[:N])
    assert [sum(d != 0.0 for d in row) for row in slopes] == [2, 3, 3, 2]


SINGULAR = np.diag([1.0, 0.0, 1.0, 1.0])
LOWER = np.tril(STIFFNESS)
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "all names": ({"M": "M", "C": "C", "K": "K"}, "give one in numbers"),
    "shape of K": ({"K": np.eye(3)}, r"K has the shape \(3, 3\); give \(4, 4\)"),
    "no square": ({"M": np.ones((4, 3))}, r"M has the shape \(4, 3\); give a square matrix"),
    "not finite": ({"K": np.full((4, 4), np.nan)}, "K has entries that are not finite"),
    "singular mass": ({"M": SINGULAR}, "M is singular: .* mostly at coordinate 1; condense"),
    "indefinite mass": ({"M": np.diag([1.0, -1.0, 1.0, 1.0])}, "M is not positive definite"),
    "one triangle": ({"K": LOWER}, r"K is not symmetric: K\[0, 1\] = 0, but K\[1, 0\] = -400; check how it was assembled"),
    "asymmetric part": ({"K": {"k": LOWER}}, r"K\['k'\] is not symmetric"),
    "unstable": (
        {"K": -STIFFNESS},
        "K has the negative eigenvalue .* without its nonlinear elements the structure is unstable",
    ),
    "active damping": ({"C": -DAMPING}, "C has the negative eigenvalue .* feeds energy"),
    "text": ({"M": np.full((4, 4), "a")}, "give real numbers"),
    "no parameter": ({"K": {None: STIFFNESS}}, "give a matrix, or matrices by the parameter"),
    "a place too many": ({"input": 4}, "input is 4; give a place from 0 to 3"),
    "a negative place": ({"output": {"velocity": [-1]}}, r"output\['velocity'\]\[0\] is -1; give a place from 0 to 3"),
    "no places": ({"output": {"velocity": []}}, r"output\['velocity'\] is \[\]"),
    "rows": ({"output": {"velocity": np.ones((2, 3))}}, "give one column for each of 4 places"),
    "kind": ({"output": {"strain": 0}}, "output names 'strain'"),
    "columns of B": ({"input": np.ones((2, 4))}, "give one row for each of 4 places"),
    "element": ({"nonlinear": {"tip": ("quintic", 0)}}, "has the element 'quintic'; give some of"),
    "no pair": ({"nonlinear": {"tip": "cubic"}}, r"give \(element, place\), such as \('cubic', 9\)"),
    "three places": ({"nonlinear": {"tip": ("cubic", (0, 1, 2))}}, "has 3 places; give one, or the two"),
    "nowhere": ({"nonlinear": {"tip": ("cubic", (1, 1))}}, "never move apart"),
    "shared": ({"nonlinear": {"tip": (("coulomb", "tanh"), 0)}}, "share the parameter Fc_tip"),
    "two of a name": ({"C": {"k3_tip": STIFFNESS}, "nonlinear": {"tip": ("cubic", 0)}}, "two parameters are called 'k3_tip'"),
    "suffix": ({"nonlinear": {"a b": ("cubic", 0)}}, "a name that can stand behind k3_"),
}


@pytest.mark.parametrize("name", WRONG)
def test_impossible_structures_are_refused_with_the_remedy(name: str) -> None:
    changes, said = WRONG[name]
    arguments: dict[str, Any] = {"M": MASS, "C": DAMPING, "K": STIFFNESS} | changes
    with pytest.raises((ValueError, TypeError), match=said):
        sid.models.structural(**arguments)


WRONG_MODES: dict[str, tuple[dict[str, Any], str]] = {
    "percent": ({"damping": [1.2, 0.8]}, "these look like percent: divide them by 100"),
    "negative damping": ({"damping": [-0.01, 0.01]}, "give shares of the critical damping"),
    "negative frequency": ({"frequencies": [-1.0, 2.0]}, "give positive numbers"),
    "transposed": ({"frequencies": [1.0, 2.0, 3.0]}, "frequencies has 3 entries, and shapes 2 columns; .*transpose shapes"),
    "a mode that does not move": ({"shapes": [[1.0, 0.0]] * 3}, "mode 1 moves at none of the places"),
    "one number": ({"frequencies": 3.0}, "give 2 numbers, one a mode"),
    "named shapes without a shape": ({"shapes": {"phi": 3}}, r"such as \{'phi': \(3, 2\)\} for 3 places and 2 modes"),
    "named shapes of no modes": ({"shapes": {"phi": (3, 0)}}, r"such as \{'phi': \(3, 2\)\}"),
    "two names": ({"shapes": {"phi": (3, 2), "psi": (3, 2)}}, r"such as \{'phi': \(3, 2\)\}"),
    "named shapes of other modes": ({"shapes": {"phi": (4, 3)}}, "frequencies has 2 entries, and shapes 3 columns"),
    "a name for two": ({"frequencies": "phi", "shapes": {"phi": (3, 2)}}, "share the name 'phi'"),
    "no identifier": ({"shapes": {"a b": (3, 2)}}, "shapes names the parameter 'a b'"),
    "an element between a place and itself": (
        {"shapes": {"phi": (3, 2)}, "nonlinear": {"a": ("cubic", (1, 1))}},
        "never move apart",
    ),
}


@pytest.mark.parametrize("name", WRONG_MODES)
def test_impossible_modes_are_refused_with_the_remedy(name: str) -> None:
    changes, said = WRONG_MODES[name]
    arguments: dict[str, Any] = {"frequencies": [1.0, 2.0], "damping": 0.01, "shapes": np.ones((3, 2))} | changes
    with pytest.raises((ValueError, TypeError), match=said):
        sid.models.modal(**arguments)


def test_much_damping_is_asked_about() -> None:
    with pytest.warns(UserWarning, match=r"which is 50 % of the critical damping; .*in percent, divide it by 100"):
        sid.models.modal([1.0], 0.5, [[1.0]])
