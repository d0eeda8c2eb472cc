"""Systems with inputs that were not recorded, parameters that drift and coloured noise: each is the value of a process."""

from __future__ import annotations

import copy
from collections import namedtuple
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import pytensor.tensor as pt
from pytensor.graph import graph_inputs
from pytensor.graph.basic import Variable

from pm_sysid.arguments import among, shown
from pm_sysid.symbolic.names import Names
from pm_sysid.symbolic.processes import Kind, Process
from pm_sysid.symbolic.scalars import Scalar, add, dot, simplify, substitute, symbols, untraced
from pm_sysid.symbolic.system import System, expressions


class Latent(NamedTuple):
    """One process in a system: its kind, and the symbols of its states and entries.

    ``name`` is that of the input it is, of the parameter that drifts by it, or of the output it is added to as noise.
    """

    name: str
    role: Literal["input", "parameter", "noise"]
    kind: Kind
    x: list[Variable]
    p: list[Variable]

    @property
    def value(self) -> Scalar:
        """What the process adds."""
        return dot(self.kind.value(self.p), self.x)


def driven_system(
    system: System,
    latent: Mapping[str, Process] | None = None,
    varying: Mapping[str, Process] | None = None,
    coloured: Mapping[str, Process] | None = None,
) -> tuple[System, list[Any]]:
    """A system in which processes stand for inputs, drifts of parameters and noise, and the values of the processes' entries.

    Parameters
    ----------
    system : System
    latent : mapping, optional
        Process of each input that the records lack.
    varying : mapping, optional
        Process that is added to each parameter that drifts.
    coloured : mapping, optional
        Process that is added to each output whose noise is not white.

    Returns
    -------
    System
        The system for records without these inputs, with the processes at zero. Its ``driven`` has their states after those of
        the system; the entries of the processes are further parameters.
    list
        Values of these further parameters.
    """
    found: list[tuple[str, str, Process]] = []
    for what, role, kind, names, given, such in (
        ("latent", "input", "input", system.inputs, latent, "{'d': Matern(...)}"),
        ("varying", "parameter", "parameter", system.params, varying, "{'k': RandomWalk(...)}"),
        ("coloured", "noise", "output", system.outputs, coloured, "{'y': OU(...)}"),
    ):
        if given is None:
            continue
        if not isinstance(given, Mapping):
            raise TypeError(f"{what} is {shown(given)}; give a dict of processes by {kind}, such as {such}.")
        for name, process in given.items():
            if not among(name, names):
                more = f", one process for each entry of {name!r}" if among(name, names.shapes) else ""
                raise ValueError(f"{what} names {shown(name)}; give {kind}s of the system{more}: {list(names)}.")
            if not isinstance(process, Process):
                raise TypeError(
                    f"{what}[{name!r}] is {shown(process)}; give a process: Matern, OU, IntegratedWiener, RandomWalk or "
                    "Periodic."
                )
            found.append((name, role, process))
    if not found:
        return system, []
    made = _driven(system, tuple((name, role, process.kind) for name, role, process in found))
    return made, [v for _, _, process in found for v in process.values]


@lru_cache(maxsize=64)
@untraced()
def _driven(system: System, spec: Sequence[tuple[str, Any, Kind]]) -> System:
    """Build the system of :func:`driven_system`, once for each structure."""
    if system.latents:
        raise ValueError("the system has processes already; give those of inputs and parameters in one call.")
    mean = copy.copy(system)
    latents: list[Latent] = []
    replace: dict[Variable, Scalar] = {}
    none: dict[Variable, Scalar] = {}
    noise: dict[str, Scalar] = {}
    for name, role, kind in spec:
        x, p = symbols(f"{name}_", kind.size), symbols(f"{name}.", len(kind.entries))
        latents.append(Latent(name, role, kind, x, p))
        if role == "input":
            symbol = system.u[system.inputs.index(name)]
            replace[symbol], none[symbol] = latents[-1].value, 0.0
        elif role == "noise":
            noise[name] = latents[-1].value
        else:
            symbol = system.own[system.params.index(name)]
            _check_drift(system, name)
            replace[symbol] = add(symbol, latents[-1].value)
    _check_relations(system, replace)
    hyper = {f"{'noise ' * (one.role == 'noise')}{one.name}.{entry}": () for one in latents for entry in one.kind.entries}
    own = [*system.own, *(s for one in latents for s in one.p)]
    keep = [i for i, n in enumerate(system.inputs) if not any(n == one.name and one.role == "input" for one in latents)]
    mean.inputs = system.inputs if len(keep) == len(system.inputs) else Names({system.inputs[i]: () for i in keep})
    mean.u = [system.u[i] for i in keep]
    mean.params = Names(system.params.shapes | hyper)
    mean.tensors = [*system.tensors, *(pt.TensorType("float64", ())(n) for n in hyper)]
    mean.own, mean.p = own, [*own, *system.p[len(system.own) :]]
    mean.base, mean.latents = system, tuple(latents)
    mean.f, mean.g = (tuple(simplify(substitute(e, none))) for e in (system.f, system.g))
    driven = copy.copy(mean)
    rates = []
    for one in latents:
        rates += [dot(row, one.x) for row in one.kind.drift(one.p)]
    driven.x = [*system.x, *(s for one in latents for s in one.x)]
    driven.f = (*simplify(substitute(system.f, replace)), *rates)
    clean = substitute(system.g, replace)
    driven.g = tuple(simplify([add(g, noise.get(name, 0.0)) for name, g in zip(system.outputs, clean, strict=True)]))
    mean.driven = driven.driven = driven
    for made in (mean, driven):
        for cached in ("time_varying", "output_chains"):
            made.__dict__.pop(cached, None)
    return mean


@lru_cache(maxsize=64)
def with_states_for(system: System, names: tuple[str, ...]) -> System:
    """A system in which some scalar parameters are states that stand still, after its own: what moves them is process noise.

    Raises
    ------
    ValueError
        If an expression that is evaluated once a parameter set depends on one of them.
    """
    for name in names:
        _check_drift(system, name)
    states, params = tuple(system.states.shapes), tuple(system.params.shapes)
    States, Params = namedtuple("x", states), namedtuple("p", params)  # type: ignore[misc]

    def of_states(x: Any) -> Any:
        """States, or their rates, as the user's functions know them."""
        return States(*(getattr(x, s) for s in states))

    def of_params(x: Any, p: Any) -> Any:
        """Parameters as the user's functions know them."""
        return Params(*(getattr(x if s in names else p, s) for s in params))

    def dynamics(t: Any, x: Any, u: Any, p: Any) -> Any:
        assert system.dynamics is not None
        rates, still = system.dynamics(t, of_states(x), u, of_params(x, p)), dict.fromkeys(names, 0.0)
        return {**rates, **still} if isinstance(rates, Mapping) else (*expressions("dynamics", rates), *still.values())

    def observe(t: Any, x: Any, dx: Any, u: Any, p: Any) -> Any:
        return system.observe(t, of_states(x), of_states(dx), u, of_params(x, p))

    return System(
        dynamics,
        states=system.states.shapes | dict.fromkeys(names, ()),
        inputs=system.inputs.shapes,
        params={name: shape for name, shape in system.params.shapes.items() if name not in names},
        observe=observe,
    )


def _check_relations(system: System, replaced: Mapping[Variable, Scalar]) -> None:
    """Refuse relations that see what a process stands for: they would tie its path, which is not part of the covariance."""
    for name, e in zip(system.relation_names, system.relations, strict=True):
        if isinstance(e, Variable) and (seen := set(replaced) & set(graph_inputs([e]))):
            known = {**dict(zip(system.u, system.inputs, strict=True)), **dict(zip(system.own, system.params, strict=True))}
            raise ValueError(
                f"relations: {name!r} depends on {', '.join(sorted(known[s] for s in seen))}, which latent or varying makes a "
                "random process; leave the relation out, or write it without what varies."
            )


def _check_drift(system: System, name: str) -> None:
    """Refuse a parameter that enters an expression which is evaluated once a parameter set."""
    tensor = system.tensors[list(system.params.shapes).index(Names.owner(name))]
    for derived in system.derived:
        if tensor in graph_inputs([derived.expression]):
            raise ValueError(
                f"{name!r} drifts (varying), or has a number for each record, but enters {derived.name}, an expression that is "
                "computed once a parameter set; write that with scalar operations, or let another parameter drift."
            )
