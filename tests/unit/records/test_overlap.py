"""Which samples of a record stand in others."""

from __future__ import annotations

import numpy as np
import pytest

import pm_sysid as sid
from pm_sysid.records.overlap import shared_samples

T = np.arange(200) / 50
U = np.sin(3 * T)


def record(seed: int = 1, n: int = 200, **options: object) -> sid.TimeSeries:
    y = np.random.default_rng(seed).standard_normal((200, 2))
    y[40:50, 0] = y[60] = np.nan
    return sid.TimeSeries(T[:n], U[:n], y[:n], **options)  # type: ignore[arg-type]


def test_a_record_and_its_parts_are_found() -> None:
    whole = record()
    assert shared_samples(whole, [whole]) == 200
    assert shared_samples(whole[120:], [whole]) == 80 and shared_samples(whole, [whole[120:]]) == 80
    part = whole[120:]
    assert shared_samples(part.replace(t=part.t - part.t[0], units={"u": "N"}), [record(2), whole]) == 80
    assert shared_samples(whole[:120], [whole[60:]]) == 60
    assert shared_samples(whole[:8], [whole]) == 8 and shared_samples(whole[:2], [whole]) == 0
    assert shared_samples(whole.replace(outputs=("a", "b"), intersample="foh"), [whole]) == 200
    assert shared_samples(whole.replace(u=-U * 0.0), [whole.replace(u=U * 0.0)]) == 200


def test_other_records_share_nothing() -> None:
    whole = record()
    assert shared_samples(record(2), [whole]) == 0 and shared_samples(whole, []) == 0
    assert shared_samples(whole.replace(u=2 * U), [whole]) == 0
    assert shared_samples(whole.replace(y=whole.output_matrix[:, 0]), [whole]) == 0


@pytest.mark.parametrize("step", [0.1, 0.5])
def test_an_experiment_that_is_repeated_is_new_though_its_samples_are_rounded(step: float) -> None:
    """At rest all samples are the same; in motion two noises seldom round to the same numbers."""
    move = np.where(T < 2, 0.0, np.sin(9 * (T - 2)))

    def rounded(seed: int) -> sid.TimeSeries:
        noise = 0.3 * step * np.random.default_rng(seed).standard_normal(200) * (T >= 2)
        return sid.TimeSeries(T, U, step * np.round((move + noise) / step))

    assert not any(shared_samples(rounded(2 * seed), [rounded(2 * seed + 1)]) for seed in range(30))
