"""The model a function is about."""

from __future__ import annotations

import pymc as pm


def model_of(model: pm.Model | None) -> pm.Model:
    """Return the model given, or the one on the context stack."""
    model = pm.modelcontext(model)
    if not isinstance(model, pm.Model):
        raise TypeError(f"model is {type(model).__name__}; give a pm.Model, or None for the one on the context stack.")
    return model
