"""What is behind an ODE filter of a model, read by name: graphs, arrays, records, and what follows new data."""

from __future__ import annotations

from typing import Any

import cloudpickle
import numpy as np
import pymc as pm
import pytensor
import pytest
from pytensor.compile import SharedVariable
from pytensor.graph import ancestors

import pm_sysid as sid
from pm_sysid.likelihood.filter_rv import Inputs, numbers, numbers_of, pack, shared, shared_under, unpack
from pm_sysid.likelihood.filter_view import filter_names, filter_view, value_of
from pm_sysid.solve.filter_graph import RecordData, Unknowns
from pm_sysid.solve.initial_state import infer_state

TANK = sid.System(
    lambda t, x, u, p: (u.inflow - p.rate * x.level) / p.area,
    states=("level",),
    inputs=("inflow",),
    params=("area", "rate"),
    observe=lambda t, x, dx, u, p: {"height": x.level, "outflow": p.rate * x.level},
)
DECAY = sid.System(
    lambda t, x, u, p: -p.rate * x.level, states=("level",), params=("rate",), observe=lambda t, x, dx, u, p: x.level
)


def tank(length: int, seed: int, start: float = 0.0) -> sid.TimeSeries:
    rng = np.random.default_rng(seed)
    y = 1.0 + 0.1 * rng.standard_normal((length, 2))
    y[1, 0] = np.nan
    t = start + np.arange(length) / 2
    return sid.TimeSeries(t, rng.uniform(size=length), y, inputs="inflow", outputs=TANK.outputs, intersample="zoh")


def decay(length: int, rate: float = 1.0) -> sid.TimeSeries:
    t = np.arange(length) / 4
    return sid.TimeSeries(t, None, np.exp(-rate * t))


RECORDS = [tank(7, 0), tank(5, 1, start=3.0)]


@pytest.fixture
def model() -> pm.Model:
    """Two filters that share a parameter: one of two records with two outputs, one of a single vector."""
    with pm.Model() as model:
        rate, area, start, noise = pm.HalfNormal("rate"), pm.HalfNormal("area"), pm.Normal("start"), pm.HalfNormal("noise", 2)
        pm.Normal("elsewhere", rate, observed=1.0)
        options: dict[str, Any] = dict(solver=sid.EK1(order=2, diffusion=1.0), substeps=1)
        x0 = [{"level": start}, {"level": 0.5}]
        sid.ODEFilter("tank", TANK, RECORDS, {"area": area, "rate": rate}, noise=[0.2, noise], x0=x0, **options)
        sid.ODEFilter("decay", DECAY, decay(9), {"rate": rate}, noise=0.1, **options)
    return model


def same(found: list[sid.TimeSeries], records: list[sid.TimeSeries]) -> None:
    assert len(found) == len(records)
    for a, b in zip(found, records, strict=True):
        np.testing.assert_array_equal(a.t, b.t)
        np.testing.assert_array_equal(a.input_matrix, b.input_matrix)
        np.testing.assert_array_equal(a.y, b.y)
        assert (a.intersample, a.inputs) == (b.intersample, b.inputs)


def test_two_filters_of_a_model_are_told_apart_by_name(model: pm.Model) -> None:
    assert filter_names(model) == ["tank", "decay"]
    for name, system, n_records, flat in (("tank", TANK, 2, False), ("decay", DECAY, 1, True)):
        view = filter_view(name, model)
        assert (view.name, view.model, view.rv) == (name, model, model[name])
        assert view.op is model[name].owner.op and view.problem is view.op.problem and view.system is system
        assert (view.n_records, view.op.flat, view.op.substeps) == (n_records, flat, 1)
        assert view.observed is model.rvs_to_values[model[name]] and view.y.type.ndim == 2
    with model:
        assert filter_view("decay").rv is model["decay"]


def test_graphs_by_name_depend_on_the_variables_they_are_made_of(model: pm.Model) -> None:
    view = filter_view("tank", model)
    assert [v.name for v in view.free] == ["rate", "area", "start", "noise"]
    assert [v.name for v in filter_view("decay", model).free] == ["rate"]
    given = {"rate": 0.5, "area": 2.0, "start": 0.3, "noise": 0.7}
    values = Unknowns(*(v.eval({model[k]: x for k, x in given.items()}, on_unused_input="ignore") for v in view.unknowns))
    np.testing.assert_array_equal(values.params, [2.0, 0.5])
    np.testing.assert_array_equal(values.x0, [[0.3], [0.5]])
    np.testing.assert_array_equal(values.x0_std, [[0.0], [0.0]])
    np.testing.assert_array_equal(values.noise, [0.2, 0.7])
    np.testing.assert_array_equal(values.diffusion, [1.0])


def test_records_and_arrays_are_those_that_were_given(model: pm.Model) -> None:
    view = filter_view("tank", model)
    same(view.records(), RECORDS)
    np.testing.assert_array_equal(view.measured(), np.concatenate([r.output_matrix for r in RECORDS]))
    for a, b in zip(view.arrays(), view.problem.data(RECORDS, 1), strict=True):
        np.testing.assert_array_equal(a, b)
    same(filter_view("decay", model).records(), [decay(9)])


def test_a_view_sees_the_data_that_are_set_after_it_was_made(model: pm.Model) -> None:
    view = filter_view("tank", model)
    other = [tank(4, 2), tank(8, 3)]
    with model:
        sid.set_data({"tank": other, "decay": decay(6, 2.0)})
    same(view.records(), other)
    assert view.measured().shape == (12, 2) and view.arrays().samples.shape[0] == 12
    same(filter_view("decay", model).records(), [decay(6, 2.0)])
    np.testing.assert_array_equal(view.unknowns.x0.eval({model["start"]: 0.3}), [[0.3], [0.5]])  # was given, and stays
    inferred = filter_view("decay", model).unknowns
    np.testing.assert_allclose(inferred.x0.eval(), [[1.0]], atol=0.2)  # was read off the record
    before, _ = infer_state(DECAY, decay(6, 2.0))
    np.testing.assert_array_equal(inferred.x0.eval(), [[before["level"]]])


def test_a_pickled_model_has_a_view_of_its_own(model: pm.Model) -> None:
    copy = cloudpickle.loads(cloudpickle.dumps(model))
    sid.set_data({"decay": decay(5)}, model=copy)
    assert len(filter_view("decay", copy).measured()) == 5 and len(filter_view("decay", model).measured()) == 9


def test_the_name_may_be_left_out_where_there_is_one_filter(model: pm.Model) -> None:
    with pm.Model() as single:
        sid.ODEFilter("only", DECAY, decay(5), {"rate": pm.HalfNormal("rate")}, noise=0.1, x0=1.0, substeps=1)
        assert filter_view().name == "only"
        by_name, without = (sid.innovations({"rate": 1.0}, *name)["innovation"] for name in (["only"], []))
    np.testing.assert_array_equal(by_name, without)
    with pytest.raises(ValueError, match=r"name is None, which needs a model with one ODEFilter, .* choose one of \['tank'"):
        filter_view(model=model)
    with pytest.raises(ValueError, match="this one has 0; give a model with one"):
        filter_view(model=pm.Model())
    assert single["only"].name == "only"


@pytest.mark.parametrize("name", ["elsewhere", "rate", "nobody", 3, ""])
def test_what_is_no_filter_is_refused_with_the_names_of_those_there_are(model: pm.Model, name: Any) -> None:
    with pytest.raises(ValueError, match=r"no ODEFilter named .*; it has \['tank', 'decay'\]"):
        filter_view(name, model)


def test_packing_and_unpacking_are_inverse() -> None:
    rng = pytensor.shared(np.random.default_rng(0))
    unknowns = Unknowns(*(np.full(i + 1, float(i)) for i in range(5)))
    data = RecordData(*(np.full(i + 1, 10.0 + i) for i in range(5)))
    flat = pack(Inputs(rng, unknowns, data))
    back = unpack(flat)
    assert back.rng is rng and len(flat) == 11
    for given, found in zip((*unknowns, *data), (*back.unknowns, *back.data), strict=True):
        np.testing.assert_array_equal(found.eval(), given)


def test_numbers_under_variables_are_found_again() -> None:
    with pm.Model():
        a, b = pm.Normal("a"), pm.Normal("b")
    data = RecordData(np.arange(3.0), np.array([2, -1, 1]), np.array([[7.0], [8.0]]), np.zeros((3, 1)), np.zeros((3, 2)))
    arrays, x0, x0_std = shared("y", data, [[1.0, a], [b, 2.0]], [[0.0, 0.5], [0.1, 0.0]])
    for given, found in zip(data, arrays, strict=True):
        np.testing.assert_array_equal(value_of(found), given)
        assert value_of(found).dtype == given.dtype
    assert shared_under(arrays.counts) is shared_under(numbers_of(x0)) is shared_under(numbers_of(x0_std))
    np.testing.assert_array_equal(value_of(numbers_of(x0)), [[1.0, 0.0], [0.0, 2.0]])
    np.testing.assert_array_equal(value_of(numbers_of(x0_std)), [[0.0, 0.5], [0.1, 0.0]])
    longer = data._replace(counts=np.array([2, 2, -1, 1, 1]))
    shared_under(x0_std).set_value(numbers(longer, np.array([[5.0, 6.0], [7.0, 8.0]]), np.ones((2, 2))))
    np.testing.assert_array_equal(x0.eval({a: -1.0, b: -2.0}), [[5.0, -1.0], [-2.0, 8.0]])
    np.testing.assert_array_equal(arrays.counts.eval(), longer.counts)
    np.testing.assert_array_equal(arrays.starts.eval(), data.starts)
    assert value_of(x0_std).tolist() == [[1.0, 1.0], [1.0, 1.0]] and arrays.starts.type.shape == (2, 1)


def test_a_filter_holds_few_shared_variables(model: pm.Model) -> None:
    """Samplers that compile a function for each have as little to do as they can."""
    held = {v for v in ancestors([model["tank"], model.rvs_to_values[model["tank"]]]) if isinstance(v, SharedVariable)}
    assert {v.name for v in held if v.name} == {"tank::numbers", "tank::samples", "tank::substeps", "tank::y"}


@pytest.mark.parametrize("n", [20, 25, 30, 50])
def test_starts_that_are_read_off_the_first_samples(n: int) -> None:
    """Of the record in which they end; another is in whole, or has the rest."""
    t = np.arange(30) / 10
    records = [sid.TimeSeries(t, None, np.exp(-rate * t)) for rate in (1.0, 0.5)]

    def view(given: list[sid.TimeSeries]) -> Any:
        with pm.Model() as model:
            sid.ODEFilter("y", DECAY, given, {"rate": pm.LogNormal("rate")}, noise=0.1, substeps=1)
        return filter_view("y", model)

    cut = [records[0][: min(n, 30)], records[1][: n - 30] if n > 30 else records[1]]
    for a, b in zip(view(records).starts_of_first(n), view(cut).starts(), strict=True):
        np.testing.assert_allclose(a, b)
    changed = not all(np.allclose(a, b) for a, b in zip(view(records).starts(), view(cut).starts(), strict=True))
    assert changed == (n != 30)
