"""Which probabilistic solver: linearisation, order, diffusion, shape of the covariance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from pytensor.graph.basic import Variable

from pm_sysid.arguments import among, whole
from pm_sysid.records.timeseries import TimeSeries
from pm_sysid.records.validation import real
from pm_sysid.solve.checks import vector_entries
from pm_sysid.steps.filter_state import Form
from pm_sysid.symbolic.scales import not_negative
from pm_sysid.symbolic.system import System

#: Largest state that is dense without being asked for: the cost of a step grows with its cube.
DENSE_LIMIT = 40
#: Most components of a filter with processes, whose algebra is written out.
DRIVEN_LIMIT = 24
#: Largest dense state whose algebra is written out: straight-line code is faster, but grows with the cube too.
UNROLLED = 10
#: Most chains whose blocks are written out one by one; a loop goes through more.
UNROLLED_CHAINS = 8


@dataclass(frozen=True, eq=False)
class Solver:
    """What EK0 and EK1 have in common.

    Parameters
    ----------
    order : int, default 4
        Number of integrations q of the Wiener process each chain starts from; a chain carries q + 1 components.
    diffusion : "mle", "dynamic", number, PyMC variable, or one of these for each chain
        Intensity of the Wiener process. ``"mle"``: quasi-maximum-likelihood for each coordinate from a pass over the ODE
        alone (Longbottom et al., Eq. 19). ``"dynamic"``: from the residual of each step. A dict by the first state of
        each chain, or a sequence, gives each chain its own.
    covariance : "auto", "dense" or "block"
        Joint covariance of all chains, or one block a chain (cross-covariances between chains are dropped: exact for EK0
        when each output sees one chain, and for chains that are not coupled). ``"auto"`` is dense up to 40 components.
    """

    order: int = 4
    diffusion: Any = "mle"
    covariance: Literal["auto", "dense", "block"] = "auto"
    linearisation: ClassVar[Literal[0, 1]] = 1

    def __post_init__(self) -> None:
        """Check the settings."""
        name = type(self).__name__
        if not whole(self.order, 1, 11):
            raise ValueError(f"{name}: order is {self.order!r}; give an integer from 1 to 11 (3 or 4 suits most systems).")
        if not among(self.covariance, ("auto", "dense", "block")):
            raise ValueError(f"{name}: covariance is {self.covariance!r}; give 'auto', 'dense' or 'block'.")
        if isinstance(self.diffusion, str) and self.diffusion not in ("mle", "dynamic"):
            raise ValueError(
                f"{name}: diffusion is {self.diffusion!r}; give 'mle', 'dynamic', a positive number or a PyMC variable."
            )

    @property
    def calibrated(self) -> bool:
        """Whether the diffusion comes from a calibration pass."""
        return isinstance(self.diffusion, str) and self.diffusion == "mle"

    def form(self, system: System, records: Sequence[TimeSeries], free: tuple[int, ...] = ()) -> Form:
        """Shape of the filter for a system, its records, and the states whose initial value is uncertain."""
        size = (self.order + 1) * len(system.chain_states)
        states = sum(one.kind.size for one in system.latents)
        if system.latents and size + states > DRIVEN_LIMIT:
            raise ValueError(
                f"a filter of order {self.order} with processes has {size} components of the system and {states} of the "
                f"processes, together more than {DRIVEN_LIMIT}; choose a lower order, fewer processes, or processes with fewer "
                "states."
            )
        block = self.covariance == "block" or (self.covariance == "auto" and size > DENSE_LIMIT)
        if block and self.covariance == "auto":
            coupled = [name for name, chains in zip(system.outputs, system.output_chains, strict=True) if len(chains) > 1]
            if coupled:
                raise ValueError(
                    f"the outputs {coupled} see several chains, and a dense filter has {size} components (more than "
                    f"{DENSE_LIMIT}); choose covariance='dense' (slow) or covariance='block' (drops the "
                    "covariance between chains after each measurement)."
                )
        tied = [name for name, chains in zip(system.relation_names, system.relation_chains, strict=True) if len(chains) > 1]
        if block and tied:
            raise ValueError(
                f"the relations {tied} tie several chains together, and a filter with one block for each chain (covariance="
                f"{self.covariance!r}, {size} components) has no covariance between them; choose covariance='dense' or a lower "
                "order, or leave the relations out."
            )
        smoothness = {r.smoothness for r in records}
        if len(smoothness) > 1:
            raise ValueError(
                "the records differ in intersample behaviour, or in the spline that a band-limited input of their length "
                "takes (at least 8 uniform samples for the usual one); give all the same intersample and drop the shortest."
            )
        steps = np.array([r.dt[0] for r in records if len(r) > 1])
        uniform = all(r.uniform or len(r) == 1 for r in records) and (steps.size == 0 or bool(np.ptp(steps) <= 1e-9 * steps[0]))
        return Form(
            order=int(self.order),
            linearisation=self.linearisation,
            block=bool(block),
            dynamic=isinstance(self.diffusion, str) and self.diffusion == "dynamic",
            uniform=uniform,
            smoothness=smoothness.pop(),
            free=free,
            rolled=(len(system.chain_states) > UNROLLED_CHAINS if block else size > UNROLLED) and not system.latents,
        )

    def diffusions(self, system: System) -> list[Any] | None:
        """Diffusion of each chain as given, or None where the data decide."""
        if isinstance(self.diffusion, str):
            return None
        firsts = [chain[0] for chain in system.chains]
        value = self.diffusion
        if isinstance(value, Mapping):
            if set(value) != set(firsts):
                raise ValueError(f"diffusion has the entries {sorted(value)}; give one for each chain: {firsts}.")
            values = [value[f] for f in firsts]
        elif isinstance(value, Variable):
            values = vector_entries("diffusion", value, firsts)
        else:
            array = np.atleast_1d(real(value, "diffusion"))
            if array.ndim > 1 or array.size not in (1, len(firsts)):
                raise ValueError(f"diffusion has {array.size} entries; give one, or one for each chain: {firsts}.")
            values = list(np.broadcast_to(array, len(firsts)))
        for v in values:
            if not isinstance(v, Variable) and not (np.isfinite(v) and v > 0):
                raise ValueError(f"diffusion is {v!r}; it must be positive and finite.")
        return [not_negative(v) for v in values]

    def replace(self, **changes: Any) -> Solver:
        """Return a copy with changed settings."""
        return replace(self, **changes)


class EK0(Solver):
    """Zeroth-order Taylor linearisation of the ODE residual (Equation 17 of Longbottom et al. 2024).

    Cheap and robust, with one independent covariance a chain; less accurate for the same step than :class:`EK1`.
    """

    linearisation = 0


class EK1(Solver):
    """First-order Taylor linearisation of the ODE residual, with exact Jacobians.

    Examples
    --------
    >>> import pm_sysid as sid
    >>> sid.EK1(order=3, diffusion="dynamic").order
    3
    """

    linearisation = 1
