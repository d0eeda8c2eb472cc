"""Ready systems."""

from pm_sysid.models.friction import friction_oscillator
from pm_sysid.models.oscillators import bouc_wen, duffing
from pm_sysid.models.piecewise import piecewise_constraints, piecewise_linear, piecewise_map, piecewise_oscillator
from pm_sysid.models.positioning import emps

__all__ = [
    "bouc_wen",
    "duffing",
    "emps",
    "friction_oscillator",
    "piecewise_constraints",
    "piecewise_linear",
    "piecewise_map",
    "piecewise_oscillator",
]
