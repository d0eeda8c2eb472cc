"""Output functions of sensors on a mass."""

from __future__ import annotations

from typing import Any

from pm_sysid.arguments import among


def choose(kind: str, sensors: dict[str, Any]) -> Any:
    """Choose a sensor by its name; an error names the available ones."""
    if not among(kind, sensors):
        raise ValueError(f"observe is {kind!r}; give one of {sorted(sensors)}.")
    return sensors[kind]


def motion_sensor(kind: str) -> Any:
    """Displacement ``z``, velocity ``v`` or acceleration ``v'`` of one mass."""
    return choose(
        kind,
        {
            "displacement": lambda t, x, dx, u, p: x.z,
            "velocity": lambda t, x, dx, u, p: x.v,
            "acceleration": lambda t, x, dx, u, p: dx.v,
        },
    )
