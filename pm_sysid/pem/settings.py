"""Settings of a fit that belong together: what is known of the initial state, and the optimiser."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pm_sysid.arguments import among, shown

type Method = Literal["lm", "bfgs", "trust"]


@dataclass(frozen=True, eq=False)
class InitialState:
    """What a fit knows of the state at the first sample, for ``fit_pem(..., x0=InitialState(...))``.

    Parameters
    ----------
    x0 : number, mapping by state, sequence or vector, optional
        Its value in the units of the states, or where the search for it starts; a list or tuple with one for each of several
        records. States without a value start where the first samples show them, and at zero where no output does.
    estimate : bool, names of states, or mapping by state, optional
        States whose initial value is found with the parameters; for several records, one choice for all or a list with one
        for each. By default those that `x0` gives no value to, unless there is a `P0`, or process noise beside a measurement
        noise that is to be found (a likelihood then has no maximum over them); values that are given are exact. With False,
        values read off noisy samples are taken as they are, and parameters and standard errors suffer from it.
    P0 : matrix (n_x, n_x) or number, optional
        Covariance with which the filter starts, of a number times the identity; a list or tuple with one for each of several
        records. By default zero for states that are given or estimated, and where no measurement noise is there to weigh it
        against; else the square of the error of what was read off the record, or of the spread over it.

    Raises
    ------
    TypeError, ValueError
        By :func:`fit_pem`, which knows the states: for a value, names or a covariance that do not belong to the system, or a
        list that is not as long as that of the records.

    Examples
    --------
    >>> InitialState({"z": 0.1, "v": 0.0}, estimate=["v"])
    InitialState(x0={'z': 0.1, 'v': 0.0}, estimate=['v'], P0=None)
    """

    x0: Any = None
    estimate: Any = None
    P0: Any = None

    @classmethod
    def of(cls, value: Any) -> InitialState:
        """Settings as they are; anything else is the value of the state."""
        return value if isinstance(value, cls) else cls(value)


@dataclass(frozen=True, eq=False)
class Optimiser:
    """How the objective of a fit is minimised, for ``fit_pem(..., optimiser=Optimiser(...))``.

    Parameters
    ----------
    method : {"lm", "bfgs", "trust"}
        ``"lm"``: Levenberg-Marquardt (MINPACK), or, with bounds, which that cannot keep, ``"trust"``. ``"bfgs"``: L-BFGS-B.
        ``"trust"``: reflective trust region of :func:`scipy.optimize.least_squares`. For a likelihood ``"lm"`` and
        ``"trust"`` are Newton's method with the expected information in a trust region (``trust-exact``; with bounds
        ``trust-constr``).
    options : mapping, optional
        Passed to SciPy's function, such as ``{"max_nfev": 20, "ftol": 1e-4}``.

    Raises
    ------
    TypeError, ValueError
        If the method is another, or the options have no names.

    Examples
    --------
    >>> Optimiser("bfgs", {"maxiter": 50})
    Optimiser(method='bfgs', options={'maxiter': 50})
    """

    method: Method = "lm"
    options: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        """Check the settings."""
        if not among(self.method, ("lm", "bfgs", "trust")):
            raise ValueError(f"Optimiser: method is {shown(self.method)}; give 'lm', 'bfgs' or 'trust'.")
        if not isinstance(self.options, Mapping | None) or not all(isinstance(k, str) for k in self.options or ()):
            raise TypeError(f"Optimiser: options is {shown(self.options)}; give a dict of what SciPy takes, by name.")
