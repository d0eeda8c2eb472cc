"""Dynamic systems written once as ordinary functions: states, inputs, parameters, equations of motion, outputs."""

from __future__ import annotations

import inspect
import keyword
from collections import namedtuple
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph import graph_inputs
from pytensor.graph.basic import Variable

from pm_sysid.arguments import flag, shown
from pm_sysid.symbolic.derivatives import jacobian
from pm_sysid.symbolic.latex import equations, rate_latex, symbol_latex
from pm_sysid.symbolic.lowering import UnsupportedOperation, lower
from pm_sysid.symbolic.scalars import Scalar, add, mul, simplify, symbols, untraced


class System:
    r"""A nonlinear dynamic system ``dx/dt = f(t, x, u, p)``, ``y = g(t, x, dx, u, p)``.

    Parameters
    ----------
    dynamics : callable or None
        ``dynamics(t, x, u, p)`` returns the time derivative of every state, in the order of ``states`` (a tuple, list,
        vector, or a dict by state name). ``t`` is a 0-d tensor (seconds); ``x``, ``u`` and ``p`` are named tuples of
        0-d tensors. Python operators, ``pm.math`` and elementwise ``pytensor.tensor`` functions, ``pt.stack``, indexing,
        ``pt.switch``, ``abs``, sums and products of small arrays may be used. None for a static map.
    states : sequence of str
        Names of the states; empty for a static map, whose outputs follow the inputs at once.
    inputs : sequence of str, optional
        Names of the inputs, in the order of the record's input channels.
    params : sequence of str, optional
        Names of the parameters.
    observe : callable
        ``observe(t, x, dx, u, p)`` returns what the sensors read: one expression, a tuple, or a dict of named outputs.
        ``dx`` holds the time derivatives of the states, so that ``dx.v`` is an acceleration.
    chains : bool, default True
        Recognise states that are derivatives of other states (``dz/dt = v``) and give each such chain *one* integrated
        Wiener process. ``False`` keeps every state a process of its own: the plain first-order form.

    Raises
    ------
    ValueError
        For names that are no identifiers or appear twice, or a wrong number of derivatives.
    TypeError
        For an operation that cannot be turned into scalar arithmetic.

    Examples
    --------
    >>> import pm_sysid as sid
    >>> duffing = sid.System(
    ...     lambda t, x, u, p: (x.v, (u.F - p.c * x.v - p.k * x.z - p.k3 * x.z**3) / p.m),
    ...     states=("z", "v"),
    ...     inputs=("F",),
    ...     params=("m", "c", "k", "k3"),
    ...     observe=lambda t, x, dx, u, p: x.z,
    ... )
    >>> duffing.chains
    (('z', 'v'),)
    """

    @untraced()
    def __init__(
        self,
        dynamics: Callable[..., Any] | None,
        *,
        states: Sequence[str],
        inputs: Sequence[str] = (),
        params: Sequence[str] = (),
        observe: Callable[..., Any],
        chains: bool = True,
    ) -> None:
        self.states = _names("states", states)
        self.inputs = _names("inputs", inputs)
        self.params = _names("params", params)
        if dynamics is None and self.states:
            raise ValueError(
                f"dynamics is None, but there are the states {self.states}; give dynamics(t, x, u, p), or states=()."
            )
        self.dynamics, self.observe = dynamics, observe

        self.t = symbols("t", 1)[0]
        self.x = symbols("x", len(self.states))
        self.dx = symbols("dx", len(self.states))
        self.u = symbols("u", len(self.inputs))
        self.p = symbols("p", len(self.params))

        #: Expressions of the state derivatives in (t, x, u, p).
        self.f: tuple[Scalar, ...] = self._trace_dynamics()
        #: Expressions of the outputs in (t, x, dx, u, p), and their names.
        self.g: tuple[Scalar, ...]
        self.outputs: tuple[str, ...]
        self.outputs, self.g = self._trace_outputs()
        #: States that are derivatives of each other, whether or not they share a process.
        self.kinematic_chains = _find_chains(self.f, self.x)
        #: States of each Wiener process: a coordinate and its derivatives.
        self.chain_states = self.kinematic_chains if flag(chains, "chains") else tuple((i,) for i in range(len(self.states)))

    # -- tracing ------------------------------------------------------------------------------------------------------

    def _call(self, what: str, function: Callable[..., Any], names: Sequence[str]) -> tuple[list[Variable], Any]:
        """Call a user function on named tuples of 0-d tensors."""
        _check_arity(what, function, names)
        groups: dict[str, tuple[str, ...]] = {
            "x": self.states,
            "dx": self.states,
            "u": self.inputs,
            "p": self.params,
        }
        flat: list[Variable] = []
        args: list[Any] = []
        for name in names:
            if name == "t":
                args.append(pt.dscalar("t"))
                flat.append(args[-1])
            else:
                prefix = "d" if name == "dx" else ""
                fields = [pt.dscalar(prefix + n) for n in groups[name]]
                args.append(namedtuple(name, groups[name])(*fields))  # type: ignore[misc]
                flat += fields
        try:
            return flat, function(*args)
        except AttributeError as error:
            raise AttributeError(
                f"{what}: {error}. Its arguments have the fields x: {self.states}, u: {self.inputs}, p: {self.params}."
            ) from error
        except TypeError as error:
            raise TypeError(
                f"{what} could not be traced: it receives symbolic values, so write pm.math.sin instead of math.sin or np.sin, "
                f"pm.math.sgn instead of np.sign, and pm.math.switch(condition, a, b) instead of if ({str(error).rstrip('.')})."
            ) from error

    def _lower(self, what: str, names: Sequence[str], outputs: Sequence[Any], inputs: Sequence[Any]) -> list[Scalar]:
        scalars = {"t": [self.t], "x": self.x, "dx": self.dx, "u": self.u, "p": self.p}
        try:
            tensors = [pt.as_tensor_variable(o, dtype=None) for o in outputs]
            arrays = lower(tensors, inputs, [s for n in names for s in scalars[n]])
        except UnsupportedOperation as error:
            raise TypeError(f"{what}: {error}") from error
        flat = [item for array in arrays for item in np.atleast_1d(array).ravel()]
        return simplify([item if isinstance(item, Variable) else float(item) for item in flat])

    def _trace_dynamics(self) -> tuple[Scalar, ...]:
        if self.dynamics is None:
            return ()
        names = ("t", "x", "u", "p")
        flat, result = self._call("dynamics", self.dynamics, names)
        if isinstance(result, Mapping):
            if set(result) != set(self.states):
                raise ValueError(
                    f"dynamics returned derivatives of {sorted(result)}, but the states are {list(self.states)}; "
                    "return one entry for each state."
                )
            result = [result[s] for s in self.states]
        values = _expressions("dynamics", result)
        f = self._lower("dynamics", names, values, flat)
        if len(f) != len(self.states):
            raise ValueError(
                f"dynamics returned {len(f)} derivatives, but there are {len(self.states)} states {self.states}; "
                "return one derivative for each state, in the same order."
            )
        return tuple(f)

    def _trace_outputs(self) -> tuple[tuple[str, ...], tuple[Scalar, ...]]:
        names = ("t", "x", "dx", "u", "p")
        flat, result = self._call("observe", self.observe, names)
        labels: tuple[str, ...] | None = None
        if isinstance(result, Mapping):
            labels = _names("the outputs of observe", list(result))
            result = list(result.values())
        values = _expressions("observe", result)
        g = self._lower("observe", names, values, flat)
        if not g:
            raise ValueError("observe returned nothing; return at least one output, such as x.z.")
        if labels is not None and len(labels) != len(g):
            raise ValueError("observe returned a dict with an array in it; give each scalar output its own name.")
        return labels or (("y",) if len(g) == 1 else tuple(f"y{i + 1}" for i in range(len(g)))), tuple(g)

    # -- what the solvers ask -----------------------------------------------------------------------------------------

    @property
    def chains(self) -> tuple[tuple[str, ...], ...]:
        """State names of each chain: a coordinate followed by its derivatives."""
        return tuple(tuple(self.states[i] for i in chain) for chain in self.chain_states)

    @property
    def linear(self) -> bool:
        """Whether the equations of motion and the outputs are linear in the states and their derivatives."""
        slopes = jacobian([*self.f, *self.g], [*self.x, *self.dx])
        within = {x for row in slopes for d in row if isinstance(d, Variable) for x in graph_inputs([d])}
        return within.isdisjoint([*self.x, *self.dx])

    @property
    def top(self) -> tuple[Scalar, ...]:
        """The equation of motion of each chain: the derivative of its last state."""
        return tuple(self.f[chain[-1]] for chain in self.chain_states)

    @cached_property
    def time_varying(self) -> bool:
        """Whether the equations depend on time explicitly."""
        rows = jacobian((*self.f, *self.g), [self.t])
        return any(isinstance(d, Variable) or d != 0.0 for (d,) in rows)

    @cached_property
    def output_chains(self) -> tuple[frozenset[int], ...]:
        """Which chains each output depends on."""
        chain_of = {s: c for c, chain in enumerate(self.chain_states) for s in chain}
        rows = jacobian(self.g, [*self.x, *self.dx])
        n = len(self.x)
        return tuple(
            frozenset(chain_of[i % n] for i, d in enumerate(row) if isinstance(d, Variable) or d != 0.0) for row in rows
        )

    def total_derivatives(self, count: int) -> tuple[list[list[Scalar]], list[list[Variable]]]:
        """Time derivatives along the flow of each chain's equation of motion.

        Parameters
        ----------
        count : int
            How many derivatives of each equation of motion, itself included.

        Returns
        -------
        derivatives : list of lists
            For each chain, ``[f, df/dt, d2f/dt2, ...]`` (``count`` entries).
        input_derivatives : list of lists
            Symbols of the inputs (``self.u``) and of their time derivatives, level by level.
        """
        levels = [list(self.u)]
        rows = [list(self.top)]
        for j in range(1, count):
            levels.append(symbols(f"u{j}_", len(self.u)))
            wrt = [self.t, *self.x, *(s for level in levels[:-1] for s in level)]
            rates = [1.0, *self.f, *(s for level in levels[1:] for s in level)]
            partial = jacobian(rows[-1], wrt)
            rows.append(simplify([add(*(mul(d, r) for d, r in zip(row, rates, strict=True))) for row in partial]))
        return [[row[c] for row in rows] for c in range(len(self.chain_states))], levels

    @property
    def equations(self) -> list[str]:
        r"""LaTeX of the equations of motion, of the outputs, and of choices in them, one line each; a notebook shows them.

        Examples
        --------
        >>> import pm_sysid as sid
        >>> sid.models.van_der_pol().equations[0]
        '\\dot{z} = v'
        """
        rates = [rate_latex(symbol_latex(s)) for s in self.states]
        words = [symbol_latex(n) for n in ("t", *self.states)] + rates + [symbol_latex(n) for n in (*self.inputs, *self.params)]
        names = dict(zip((self.t, *self.x, *self.dx, *self.u, *self.p), words, strict=True))
        return equations([*rates, *map(symbol_latex, self.outputs)], [*self.f, *self.g], names)

    def _repr_latex_(self) -> str:
        return r"$$\begin{aligned}" + r" \\ ".join(e.replace(" = ", " &= ", 1) for e in self.equations) + r"\end{aligned}$$"

    def __repr__(self) -> str:
        chains = "; ".join(" -> ".join(chain) for chain in self.chains)
        lines = [
            f"System: {len(self.states)} states, {len(self.inputs)} inputs, {len(self.outputs)} outputs",
            f"  states      {', '.join(self.states) or 'none (a static map)'}",
            *([f"  chains      {chains}"] if self.states else []),
            f"  inputs      {', '.join(self.inputs) or 'none'}",
            f"  outputs     {', '.join(self.outputs)}",
            f"  parameters  {', '.join(self.params) or 'none'} (each needs a value or a prior)",
        ]
        return "\n".join(lines)


def _expressions(what: str, result: Any) -> list[Any]:
    """What a user function returned, as a list of expressions."""
    if isinstance(result, np.ndarray):
        result = list(result.ravel())
    items = list(result) if isinstance(result, tuple | list) else [result]
    for item in items:
        if not isinstance(item, Variable | int | float | np.number | np.ndarray | list | tuple):
            raise TypeError(
                f"{what} returned {item!r} ({type(item).__name__}); return expressions of its arguments: one, a tuple or list "
                "in order, or a dict by name."
            )
    return items


def _names(what: str, names: Sequence[str]) -> tuple[str, ...]:
    if isinstance(names, str):
        raise TypeError(f"{what} is the string {names!r}; give a tuple of names, such as ({names!r},).")
    if not isinstance(names, Iterable) or not np.iterable(names):
        raise TypeError(f"{what} is {shown(names)}; give a tuple of names.")
    result = tuple(names)
    for name in result:
        if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
            raise ValueError(f"{what} contains {name!r}; names must be identifiers that do not start with '_'.")
    if len(set(result)) != len(result):
        raise ValueError(f"{what} contains a name twice: {result}.")
    return result


def _check_arity(what: str, function: Callable[..., Any], names: Sequence[str]) -> None:
    if not callable(function):
        raise TypeError(f"{what} is {function!r}; give a function {what}({', '.join(names)}).")
    try:
        inspect.signature(function).bind(*names)
    except TypeError as error:
        raise TypeError(f"{what} must accept the arguments ({', '.join(names)}): {error}.") from error
    except ValueError:  # builtins without a signature
        pass


def _find_chains(f: Sequence[Scalar], x: Sequence[Variable]) -> tuple[tuple[int, ...], ...]:
    """Group states into chains in which each state is exactly the derivative of the one before."""
    follower: dict[int, int] = {}
    for i, derivative in enumerate(f):
        j = next((j for j, s in enumerate(x) if derivative is s), None)
        if j is None or j == i or j in follower.values():
            continue
        end = j
        while end in follower:
            end = follower[end]
        if end != i:  # closing a cycle, as in z' = v, v' = z, would leave no equation of motion
            follower[i] = j
    chains = []
    for i in range(len(f)):
        if i in follower.values():
            continue
        chain = [i]
        while chain[-1] in follower:
            chain.append(follower[chain[-1]])
        chains.append(tuple(chain))
    return tuple(chains)
