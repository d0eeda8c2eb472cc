"""PyMC's samplers as this package calls them: every run of one goes through these two functions.

PyMC plans to describe samplers by objects, ``pm.sample(sampler=...)``, beside which ``step=`` remains. When a release has
them, the calls change here and nowhere else; ``tests/unit/test_compat.py`` checks that there are no others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pymc as pm
import xarray as xr

__all__ = ["sample_by_stages", "sample_by_steps"]


def sample_by_steps(draws: int, step: Any, **run: Any) -> xr.DataTree:
    """Markov chains of one step method, by ``pm.sample``."""
    idata: xr.DataTree = pm.sample(draws, step=step, **run)
    return idata


def sample_by_stages(draws: int, kernel: Callable[..., Any], **run: Any) -> xr.DataTree:
    """Sequential Monte Carlo by a kernel, by ``pm.sample_smc``."""
    idata: xr.DataTree = pm.sample_smc(draws, kernel=kernel, **run)
    return idata
