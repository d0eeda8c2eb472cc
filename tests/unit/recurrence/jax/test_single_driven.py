"""Models with processes on JAX: log-density and gradient are those of the interpreted program."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor
import pytest

from support.pushed import OWN, SHARED, build, records

jax = pytest.importorskip("jax", reason="JAX is not installed")

import jax.numpy as jnp  # noqa: E402
from pymc.sampling.jax import get_jaxified_logp  # noqa: E402

INTERPRETED = pytensor.compile.mode.Mode(linker="py", optimizer="fast_compile")


@pytest.mark.parametrize(
    "options", [pytest.param({"diffusion": "mle"}, marks=pytest.mark.slow), {"diffusion": "dynamic", "outliers": True}], ids=str
)
@pytest.mark.filterwarnings("ignore::pm_sysid.SubstepWarning")
def test_specimens_with_processes_have_the_interpreted_density_and_gradient(options: Any) -> None:
    """Two specimens with parameters of their own, a force, a drift, coloured noise and a limit."""
    model = build([record[:8] for record in records()[:2]], 2, **options)
    at = {f"{k}_log__": np.log(v) for k, v in SHARED.items()} | {f"{k}_log__": np.log(v[:2]) for k, v in OWN.items()}
    point = [at[str(v.name)] for v in model.value_vars]
    value, gradient = jax.jit(jax.value_and_grad(get_jaxified_logp(model)))([jnp.asarray(x) for x in point])
    expected = model.compile_logp(mode=INTERPRETED)(at), model.compile_dlogp(mode=INTERPRETED)(at)
    assert np.isfinite(expected[1]).all() and np.abs(expected[1]).min() > 1e-6
    np.testing.assert_allclose(value, expected[0], rtol=1e-9)
    got = np.concatenate([np.ravel(g) for g in gradient])
    np.testing.assert_allclose(got, expected[1], rtol=1e-8, atol=1e-9 * np.abs(expected[1]).max())
