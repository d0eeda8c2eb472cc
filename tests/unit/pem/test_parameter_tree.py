"""Leaves of nested containers have names, and the containers come back around other numbers."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
import pytest

from pm_sysid.pem.parameter_tree import leaves, rebuild

Pair = namedtuple("Pair", ["first", "second"])


@pytest.mark.parametrize(
    "tree, names",
    [
        ({"m": 1.0, "damping": {"c1": 0.1, "c3": np.float32(0.2)}}, ["m", "c1", "c3"]),
        ({"k": [1.0, 2.0], "c": (3,)}, ["k_0", "k_1", "c_0"]),
        ({"k": np.ones((2, 2))}, ["k_0_0", "k_0_1", "k_1_0", "k_1_1"]),
        ([{"m": 1.0}, {"c": 2.0}], ["m", "c"]),
        ({"list": [{"m": 1.0}, {"c": np.array(2.0)}]}, ["m", "c"]),
        ([1.0, 2.0], ["0", "1"]),
        (np.array([1, 2, 3]), ["0", "1", "2"]),
        (4, [""]),
        ({}, []),
    ],
)
def test_names(tree: Any, names: list[str]) -> None:
    assert list(leaves("p_guess", tree)) == names


def test_none_stands_for_a_number_where_there_is_one_for_it() -> None:
    assert leaves("upper bounds", {"m": None, "k": [1.0, None]}, none=np.inf) == {"m": np.inf, "k_0": 1.0, "k_1": np.inf}


def test_what_comes_back_has_the_same_structure() -> None:
    tree = {"a": 1, "b": [2.0, (3.0, np.array([4.0, 5.0]))], "c": {"d": Pair(6, np.array(7.0)), "e": []}}
    values = [float(v) for v in range(10, 17)]
    back = rebuild(tree, values)
    assert list(leaves("p", back).values()) == values
    assert back["a"] == 10.0 and isinstance(back["a"], float)
    assert isinstance(back["b"], list) and isinstance(back["b"][1], tuple)
    np.testing.assert_array_equal(back["b"][1][1], [13.0, 14.0])
    assert isinstance(back["c"]["d"], Pair) and back["c"]["d"].second.shape == () and back["c"]["e"] == []
    assert tree["a"] == 1 and tree["b"][0] == 2.0  # the original is left alone
    with pytest.raises(ValueError, match="2 numbers do not fit"):
        rebuild({"a": 1.0}, [1.0, 2.0])


@pytest.mark.parametrize(
    "tree, error, message",
    [
        ({"a": {"m": 1.0}, "b": {"m": 2.0}}, ValueError, "two numbers called 'm'"),
        ({"m": "heavy"}, TypeError, "p_guess holds 'heavy' at 'm'"),
        ({"m": None}, TypeError, "holds None at 'm'"),
        ({"m": True}, TypeError, "holds True"),
        ({"m": 1j}, TypeError, "holds 1j"),
        ({"m": np.array(["a"])}, TypeError, "at 'm_0'"),
        ({1: 2.0}, TypeError, "has the key 1"),
    ],
)
def test_what_is_no_number_is_refused(tree: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        leaves("p_guess", tree)
