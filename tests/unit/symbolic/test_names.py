"""Names of scalars, vectors and matrices, and the labels of their entries."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytensor.tensor as pt
import pytest
import xarray as xr

from pm_sysid.symbolic.names import Names, checked_names

NAMES = Names({"K": (2, 2), "c": (), "m": (3,)})
K = np.arange(4.0).reshape(2, 2)


def test_scalars_are_a_tuple_of_names() -> None:
    names = checked_names("params", ["m", "c"])
    assert names == ("m", "c") and names.scalar and repr(names) == "('m', 'c')"
    assert names.spread("params", {"m": 1.0, "other": [1]}) == {"m": 1.0, "other": [1]}


def test_labels_survive_pickle() -> None:
    again = pickle.loads(pickle.dumps(NAMES))
    assert again == NAMES and again.shapes == NAMES.shapes
    assert again[:5] == ("K[0, 0]", "K[0, 1]", "K[1, 0]", "K[1, 1]", "c") and again[-1] == "m[2]"
    assert repr(NAMES) == "('K[0..1, 0..1]', 'c', 'm[0..2]')"


def test_arrays_become_their_entries() -> None:
    found = NAMES.spread("params", {"K": K, "c": 5.0, "m[1]": 7.0})
    assert found == {"K[0, 0]": 0.0, "K[0, 1]": 1.0, "K[1, 0]": 2.0, "K[1, 1]": 3.0, "c": 5.0, "m[1]": 7.0}


def test_lists_of_variables_become_their_entries() -> None:
    a, b = pt.dscalar("a"), pt.dscalar("b")
    found = NAMES.spread("params", {"K": [[a, 1.0], [b, a]], "m": [a, b, 2.0]})
    values = {k: float(v.eval({a: 3.0, b: 4.0}, on_unused_input="ignore")) for k, v in found.items()}
    expected = [3.0, 1.0, 4.0, 3.0, 3.0, 4.0, 2.0]
    assert list(values.values()) == expected


def test_draws_stand_before_the_dimensions_of_a_matrix() -> None:
    draws = np.stack([K, 10 * K, 100 * K])
    plain = NAMES.draws("params", {"K": draws, "c": np.ones(3)})
    labelled = NAMES.draws("params", {"K": xr.DataArray(draws, dims=("draw", "a", "b"), coords={"a": [5, 6]})})
    np.testing.assert_array_equal(plain["K[1, 0]"], draws[:, 1, 0])
    np.testing.assert_array_equal(labelled["K[1, 0]"], draws[:, 1, 0])
    assert labelled["K[1, 0]"].dims == ("draw",) and not labelled["K[1, 0]"].coords


def test_stacked_draws_are_not_taken_for_entries() -> None:
    """As many draws as entries, behind the dimensions of the matrix, as ``stack(sample=...)`` puts them."""
    draws = np.stack([K, 10 * K])
    stacked = xr.DataArray(np.moveaxis(draws, 0, -1), dims=("a", "b", "sample"))
    np.testing.assert_array_equal(NAMES.draws("params", {"K": stacked})["K[0, 1]"], draws[:, 0, 1])


def test_variables_of_a_dataset_have_one_dimension_a_vector() -> None:
    found = xr.Dataset(NAMES.variables(("time",), np.arange(16.0).reshape(2, 8)))
    assert found["K"].dims == ("time", "K_dim_0", "K_dim_1") and found["c"].dims == ("time",)
    np.testing.assert_array_equal(found["K"][1], [[8.0, 9.0], [10.0, 11.0]])
    np.testing.assert_array_equal(found["m"][0], [5.0, 6.0, 7.0])


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"m": [1.0, 2.0]}, r"params\['m'\] has the shape \(2,\), but the system says \(3,\)"),
        ({"K": np.ones((2, 3))}, r"has the shape \(2, 3\)"),
        ({"K": 1.0}, r"has the shape \(\)"),
        ({"K": [[1.0], [1.0, 2.0]]}, "rows of different lengths"),
        ({"K": K, "K[0, 1]": 1.0}, r"gives 'K\[0, 1\]' twice"),
        ({"m": pt.dvector("m").reshape((1, 3))}, r"has the shape \(1, 3\)"),
        ({"m": pt.ones(4)}, r"has the shape \(4,\)"),
    ],
)
def test_wrong_shapes_are_refused(values: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        NAMES.spread("params", values)


def test_transposed_matrices_are_named() -> None:
    with pytest.raises(ValueError, match=r"has the shape \(3, 2\), but the system says \(2, 3\); transpose it"):
        Names({"B": (2, 3)}).spread("params", {"B": np.ones((3, 2))})


def test_draws_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match="with the dimensions of the draws before"):
        NAMES.draws("params", {"K": np.ones((2, 2, 3))})


@pytest.mark.parametrize("size", [0, -1, 2.0, "3", None, (2, 0), True, [2, None], (400, 400)])
def test_sizes_are_positive_integers(size: Any) -> None:
    with pytest.raises(ValueError, match=r"params\['K'\]"):
        checked_names("params", {"K": size})


def test_variables_of_one_run_without_any_dimension() -> None:
    """As the distance of a single run; its scalars were refused."""
    found = NAMES.variables((), np.arange(8.0))
    assert found["c"][0] == () and found["c"][1] == 4.0 and found["c"][1].shape == ()
    assert found["K"][0] == ("K_dim_0", "K_dim_1")
    np.testing.assert_array_equal(found["K"][1], K)
