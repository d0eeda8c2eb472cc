"""Masses by fresh candidates and the probabilities of a run: what is said where they contradict each other."""

from __future__ import annotations

import numpy as np

from pm_sysid.sampling.abc.result import Masses

NAMES = ["one", "two"]


def test_probabilities_within_the_errors_are_not_doubted() -> None:
    masses = Masses(np.array([3e-4, 1e-4]), np.array([3e-5, 1e-5]))
    assert masses.against(np.array([0.75, 0.25]), NAMES) == ""
    assert masses.against(np.array([0.70, 0.30]), NAMES) == ""


def test_a_lost_part_of_a_model_is_named() -> None:
    masses = Masses(np.array([3e-4, 3e-4]), np.array([1e-5, 1e-5]))
    said = masses.against(np.array([0.95, 0.05]), NAMES)
    assert "the probability of " in said and "0.50 +- 0.01" in said and "Take more particles" in said


def test_nothing_found_again_is_said() -> None:
    nothing = Masses(np.zeros(2), np.zeros(2))
    assert "no fresh candidate" in nothing.against(np.array([1.0, 0.0]), NAMES)
