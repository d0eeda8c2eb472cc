"""Catalogue of systems that are ready to use."""

from pm_sysid.models.batteries import battery
from pm_sysid.models.chains import chain
from pm_sysid.models.friction import friction_oscillator
from pm_sysid.models.friction_laws import lugre_oscillator, stribeck_oscillator
from pm_sysid.models.gaps import freeplay
from pm_sysid.models.heat import heated_wall
from pm_sysid.models.oscillators import bouc_wen, duffing
from pm_sysid.models.pendulum import pendulum
from pm_sysid.models.piecewise import piecewise_constraints, piecewise_linear, piecewise_map, piecewise_oscillator
from pm_sysid.models.positioning import emps
from pm_sysid.models.priors import priors
from pm_sysid.models.reactions import enzyme, hires, robertson
from pm_sysid.models.self_excited import van_der_pol
from pm_sysid.models.structures import modal, structural
from pm_sysid.models.tanks import cascaded_tanks, coupled_tanks

__all__ = [
    "battery",
    "bouc_wen",
    "cascaded_tanks",
    "chain",
    "coupled_tanks",
    "duffing",
    "emps",
    "enzyme",
    "freeplay",
    "friction_oscillator",
    "heated_wall",
    "hires",
    "lugre_oscillator",
    "modal",
    "pendulum",
    "piecewise_constraints",
    "piecewise_linear",
    "piecewise_map",
    "piecewise_oscillator",
    "priors",
    "robertson",
    "stribeck_oscillator",
    "structural",
    "van_der_pol",
]


def __dir__() -> list[str]:
    """Public names only."""
    return sorted(__all__)
