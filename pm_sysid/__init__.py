"""Bayesian identification of nonlinear dynamic systems: a probabilistic ODE filter as a PyMC likelihood.

A public name is imported when it is first used. ``__init__.pyi`` lists the names with the modules that define them; it is read
here, and by type checkers.
"""

import logging as _logging
import re as _re
from importlib import import_module as _import_module
from pathlib import Path as _Path
from typing import Any as _Any

from pm_sysid import environment as _environment  # noqa: F401  (imports PyTensor, before anything else does)

_LISTED = _re.findall(
    r"^from ([\w.]+) import (\w+) as \2$", _Path(__file__).with_suffix(".pyi").read_text("utf-8"), _re.MULTILINE
)
_HOMES = {name: module for module, name in _LISTED}

_log = _logging.getLogger("pm_sysid")
if not _log.handlers:  # say what was chosen, as PyMC does, without a set-up by the user
    _log.addHandler(_logging.StreamHandler())
    _log.setLevel(_logging.INFO)
    _log.propagate = False

__version__ = "0.1.0"
__all__ = sorted(_HOMES, key=lambda name: (not name.isupper(), not name[0].isupper(), name))


def __getattr__(name: str) -> _Any:
    """Import a public name."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _HOMES[name]
    found = _import_module(f"{home}.{name}") if home == __name__ else getattr(_import_module(home), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """Public names, and those of the module itself; not the packages behind them."""
    return sorted([*__all__, "__all__", "__doc__", "__file__", "__name__", "__path__", "__spec__", "__version__"])
