"""Dynamic systems written once as ordinary functions: states, inputs, parameters, equations of motion, outputs."""

from __future__ import annotations

import copy
import inspect
import re
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt
from pytensor.graph import graph_inputs
from pytensor.graph.basic import Variable

from pm_sysid.arguments import flag
from pm_sysid.notebook import html_formulas, html_line, html_table
from pm_sysid.symbolic.derivatives import jacobian
from pm_sysid.symbolic.latex import equations, rate_latex, symbol_latex
from pm_sysid.symbolic.lowering import Still, UnsupportedOperation, lower
from pm_sysid.symbolic.names import Names, checked_names
from pm_sysid.symbolic.scalars import Scalar, add, mul, not_polynomial, simplify, symbols, untraced


class System:
    r"""A nonlinear dynamic system ``dx/dt = f(t, x, u, p)``, ``y = g(t, x, dx, u, p)``.

    Parameters
    ----------
    dynamics : callable or None
        ``dynamics(t, x, u, p)`` returns the time derivative of every state, in the order of ``states`` (a tuple, list,
        vector, or a dict by state name). ``t`` is a 0-d tensor (seconds); ``x``, ``u`` and ``p`` are named tuples of
        tensors: 0-d, or vectors and matrices where ``states``, ``inputs`` and ``params`` say so. Python operators, ``pm.math``
        and elementwise ``pytensor.tensor`` functions, ``@``, ``pt.dot``, ``pt.stack``, ``pt.concatenate``, indexing and
        slices, ``pt.switch``, ``abs``, sums, products and maxima may be used. What depends on parameters alone may be any
        expression of ``pytensor.tensor`` (``pt.linalg.solve``, eigenvalues, bases of splines): it is evaluated once a
        parameter set. None for a static map.
    states : sequence of str, or mapping of str to int
        Names of the states, or their sizes by name: ``{"q": 3, "v": 3, "r": ()}`` are two vectors of three entries and a
        scalar. Empty for a static map, whose outputs follow the inputs at once.
    inputs : sequence of str, or mapping, optional
        Names of the inputs, in the order of the record's input channels; vectors take as many channels as they have entries.
    params : sequence of str, or mapping, optional
        Names of the parameters, or their shapes by name: ``{"K": (3, 3), "c": ()}``.
    observe : callable
        ``observe(t, x, dx, u, p)`` returns what the sensors read: one expression, a tuple, or a dict of named outputs, which
        may be vectors. ``dx`` holds the time derivatives of the states, so that ``dx.v`` is an acceleration.
    chains : bool, default True
        Recognise states that are derivatives of other states (``dz/dt = v``) and give each such chain *one* integrated
        Wiener process. ``False`` keeps every state a process of its own: the plain first-order form.
    relations : callable, optional
        ``relations(t, x, u, p)`` returns what is zero at all times of every exact solution (one expression, a tuple, a vector,
        or a dict by name): conserved mass, charge or energy, the length of a rod. The ODE filter conditions on them at the
        start and after every step, see :class:`ODEFilter`; free runs and :func:`fit_pem` do not use them.

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

    Two masses, with vectors:

    >>> masses = sid.System(
    ...     lambda t, x, u, p: {"q": x.v, "v": (u.F - p.c * x.v - p.K @ x.q) / p.m},
    ...     states={"q": 2, "v": 2},
    ...     inputs={"F": 2},
    ...     params={"K": (2, 2), "c": (), "m": 2},
    ...     observe=lambda t, x, dx, u, p: {"a": dx.v},
    ... )
    >>> masses.chains, list(masses.outputs)
    ((('q[0]', 'v[0]'), ('q[1]', 'v[1]')), ['a[0]', 'a[1]'])
    >>> masses.equations[2]
    '\\dot{v}_{0} = \\frac{F_{0} - c\\,v_{0} - K_{0,0}\\,q_{0} - K_{0,1}\\,q_{1}}{m_{0}}'

    A reaction a -> b in which nothing is lost:

    >>> reaction = sid.System(
    ...     lambda t, x, u, p: (-p.k * x.a, p.k * x.a),
    ...     states=("a", "b"),
    ...     params=("k", "m"),
    ...     observe=lambda t, x, dx, u, p: x.b,
    ...     relations=lambda t, x, u, p: {"mass": x.a + x.b - p.m},
    ... )
    >>> reaction.equations[-1]
    '0 = a + b - m'
    """

    @untraced()
    def __init__(
        self,
        dynamics: Callable[..., Any] | None,
        *,
        states: Sequence[str] | Mapping[str, Any],
        inputs: Sequence[str] | Mapping[str, Any] = (),
        params: Sequence[str] | Mapping[str, Any] = (),
        observe: Callable[..., Any],
        chains: bool = True,
        relations: Callable[..., Any] | None = None,
    ) -> None:
        #: Labels of all entries, in order, with the shapes of vectors: see :class:`Names`.
        self.states = _vectors("states", states)
        self.inputs = _vectors("inputs", inputs)
        self.params = checked_names("params", params)
        if dynamics is None and self.states:
            raise ValueError(
                f"dynamics is None, but there are the states {self.states}; give dynamics(t, x, u, p), or states=()."
            )
        self.dynamics, self.observe = dynamics, observe

        self.t = symbols("t", 1)[0]
        self.x = symbols("x", len(self.states))
        self.dx = symbols("dx", len(self.states))
        self.u = symbols("u", len(self.inputs))
        #: Tensors of the parameters, as the user's functions see them, and the symbols of their entries.
        self.tensors = _tensors(self.params)
        own = symbols("p", len(self.params))
        #: What is computed from the parameters alone, once a parameter set.
        self.still = Still(frozenset(self.tensors))
        #: Symbols of the entries of the user's parameters.
        self.own = own

        #: Expressions of the state derivatives in (t, x, u, p).
        self.f: tuple[Scalar, ...] = self._trace_dynamics()
        #: Expressions of the outputs in (t, x, dx, u, p), and their names.
        self.g: tuple[Scalar, ...]
        self.outputs: Names
        self.outputs, self.g = self._trace_outputs()
        for name, shape in self.outputs.shapes.items():
            if self.states.shapes.get(name, shape) != shape:
                raise ValueError(
                    f"the output {name!r} has the shape {shape}, and the state of this name {self.states.shapes[name]}; "
                    "rename the output."
                )
        #: Expressions in (t, x, u, p) that are zero at all times, and what they are called in messages.
        self.relations: tuple[Scalar, ...] = ()
        self.relation_names: tuple[str, ...] = ()
        if relations is not None:
            self.relation_names, self.relations = self._trace_relations(relations)
        used = set(graph_inputs([e for e in (*self.f, *self.g, *self.relations) if isinstance(e, Variable)]))
        #: Tensor expressions of the parameters, which of their entries the equations read, and the symbols of these.
        self.derived = tuple(_used(v, entries, used) for v, entries in self.still.found.items())
        #: Symbols of the parameters of a recurrence: those of the user, then what is derived from them.
        self.p = [*own, *(s for d in self.derived for s in d.symbols)]
        #: States that are derivatives of each other, whether or not they share a process.
        self.kinematic_chains = _find_chains(self.f, self.x)
        #: States of each Wiener process: a coordinate and its derivatives.
        self.chain_states = self.kinematic_chains if flag(chains, "chains") else tuple((i,) for i in range(len(self.states)))
        #: Processes that stand for inputs, drifting parameters and noise (:mod:`pm_sysid.symbolic.driven`): the system that has
        #: their states after its own, and the system without them.
        self.latents: tuple[Any, ...] = ()
        self.driven: System = self
        self.base: System = self

    # -- tracing ------------------------------------------------------------------------------------------------------

    def _call(self, what: str, function: Callable[..., Any], names: Sequence[str]) -> tuple[list[Variable], Any]:
        """Call a user function on named tuples of 0-d tensors."""
        _check_arity(what, function, names)
        groups = {"x": self.states, "dx": self.states, "u": self.inputs}
        flat: list[Variable] = []
        args: list[Any] = []
        for name in names:
            if name == "t":
                tensors = [pt.dscalar("t")]
                args += tensors
            else:
                tensors = self.tensors if name == "p" else _tensors(groups[name], "d" if name == "dx" else "")
                fields = (self.params if name == "p" else groups[name]).shapes
                args.append(namedtuple(name, fields)(*tensors))  # type: ignore[misc]
            flat += tensors
        try:
            return flat, function(*args)
        except AttributeError as error:
            raise AttributeError(
                f"{what}: {error}. Its arguments have the fields x: {tuple(self.states.shapes)}, "
                f"u: {tuple(self.inputs.shapes)}, p: {tuple(self.params.shapes)}."
            ) from error
        except (TypeError, ValueError) as error:
            if isinstance(error, ValueError) and "setting an array element with a sequence" not in str(error):
                raise  # what NumPy says of symbols that it is given
            if "indices must be integers or slices, not str" in str(error):
                raise TypeError(
                    f"{what} takes parameters, states and inputs by names in brackets; they are attributes: write p.k, x.z and "
                    'u.F instead of p["k"], x["z"] and u["F"].'
                ) from error
            raise TypeError(
                f"{what} could not be traced: it receives symbolic values, so write pm.math.sin instead of math.sin or np.sin, "
                "pm.math.sgn instead of np.sign, pm.math.maximum instead of max or np.maximum (minimum the same), and "
                "pm.math.switch(condition, a, b) instead of if or np.where "
                f"({str(error).rstrip('.')})."
            ) from error

    def _lower(self, what: str, names: Sequence[str], outputs: Sequence[Any], inputs: Sequence[Any]) -> list[np.ndarray]:
        """Arrays of simplified scalars, one for each output."""
        groups = {
            "x": (self.states, self.x),
            "dx": (self.states, self.dx),
            "u": (self.inputs, self.u),
            "p": (self.params, self.own),
        }
        scalars: list[Any] = []
        for n in names:
            scalars += [self.t] if n == "t" else _arrays(*groups[n])
        try:
            tensors = [pt.as_tensor_variable(o, dtype=None) for o in outputs]
            arrays = lower(tensors, inputs, scalars, self.still)
        except UnsupportedOperation as error:
            raise TypeError(f"{what}: {error}") from error
        entries = [item for array in arrays for item in np.atleast_1d(array).ravel()]
        values = simplify([item if isinstance(item, Variable) else float(item) for item in entries])
        flat = np.empty(len(values), dtype=object)
        flat[:] = values
        ends = np.cumsum([np.size(a) for a in arrays])
        return [part.reshape(np.shape(a)) for part, a in zip(np.split(flat, ends[:-1]), arrays, strict=True)] if arrays else []

    def _trace_dynamics(self) -> tuple[Scalar, ...]:
        if self.dynamics is None:
            return ()
        names = ("t", "x", "u", "p")
        flat, result = self._call("dynamics", self.dynamics, names)
        shapes = self.states.shapes
        if isinstance(result, Mapping):
            if set(result) != set(shapes):
                raise ValueError(
                    f"dynamics returned derivatives of {sorted(result)}, but the states are {list(shapes)}; "
                    "return one entry for each state."
                )
            result = [result[s] for s in shapes]
        arrays = self._lower("dynamics", names, expressions("dynamics", result), flat)
        if not self.states.scalar:
            _check_shapes(arrays, shapes)
        f = [e for a in arrays for e in a.ravel()]
        if len(f) != len(self.states):
            raise ValueError(
                f"dynamics returned {len(f)} derivatives, but there are {len(self.states)} states {self.states}; "
                "return one derivative for each state, in the same order."
            )
        return tuple(f)

    def _trace_outputs(self) -> tuple[Names, tuple[Scalar, ...]]:
        names = ("t", "x", "dx", "u", "p")
        flat, result = self._call("observe", self.observe, names)
        labels: Names | None = None
        if isinstance(result, Mapping):
            labels = checked_names("the outputs of observe", list(result))
            result = list(result.values())
        arrays = self._lower("observe", names, expressions("observe", result), flat)
        g = tuple(e for a in arrays for e in a.ravel())
        if not g:
            raise ValueError("observe returned nothing; return at least one output, such as x.z.")
        if labels is not None:
            return _vectors("the outputs of observe", {n: a.shape for n, a in zip(labels, arrays, strict=True)}), g
        return checked_names("outputs", ("y",) if len(g) == 1 else tuple(f"y{i + 1}" for i in range(len(g)))), g

    def _trace_relations(self, relations: Callable[..., Any]) -> tuple[tuple[str, ...], tuple[Scalar, ...]]:
        names = ("t", "x", "u", "p")
        flat, result = self._call("relations", relations, names)
        labels = list(map(str, result)) if isinstance(result, Mapping) else None
        result = list(result.values()) if isinstance(result, Mapping) else result
        arrays = self._lower("relations", names, expressions("relations", result), flat)
        labels = labels if labels is not None and all(a.ndim == 0 for a in arrays) else None
        found = tuple(e for a in arrays for e in a.ravel())
        if not found:
            raise ValueError("relations returned nothing; return at least one expression that is zero at all times.")
        called = tuple(labels) if labels else tuple(f"relations[{i}]" for i in range(len(found)))
        states = set(self.x)
        for name, e in zip(called, found, strict=True):
            if not isinstance(e, Variable) or states.isdisjoint(graph_inputs([e])):
                raise ValueError(
                    f"relations: {name!r} depends on no state, so that it says nothing of the solution; return expressions of "
                    f"the states {self.states} that are zero at all times, such as x.a + x.b - p.total."
                )
        return called, found

    # -- what the solvers ask -----------------------------------------------------------------------------------------

    @property
    def driving(self) -> tuple[Any, ...]:
        """Processes that move the states: all but noise."""
        return tuple(one for one in self.latents if one.role != "noise")

    @property
    def chains(self) -> tuple[tuple[str, ...], ...]:
        """State names of each chain: a coordinate followed by its derivatives."""
        return tuple(tuple(self.states[i] for i in chain) for chain in self.chain_states)

    @property
    def linear(self) -> bool:
        """Whether equations of motion, outputs and relations are linear in the states and their derivatives."""
        f, g, states = self.driven.f, self.driven.g, [*self.driven.x, *self.dx]
        slopes = jacobian([*f, *g, *self.relations], states)
        within = {x for row in slopes for d in row if isinstance(d, Variable) for x in graph_inputs([d])}
        return within.isdisjoint(states)

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
    def timed(self) -> tuple[int, ...]:
        """Which equations of motion contain time explicitly, in a switch too, whose derivative by time is zero."""
        return tuple(i for i, e in enumerate(self.f) if isinstance(e, Variable) and self.t in graph_inputs([e]))

    @cached_property
    def abrupt(self) -> tuple[int, ...]:
        """Which equations of motion may change within less than a step: with time, or as no polynomial of states and inputs."""
        bent = not_polynomial(self.f, [*self.x, *self.u])
        return tuple(i for i in range(len(self.f)) if i in self.timed or bent[i])

    @cached_property
    def output_chains(self) -> tuple[frozenset[int], ...]:
        """Which chains each output depends on."""
        return self._chains_of(self.g)

    @cached_property
    def relation_chains(self) -> tuple[frozenset[int], ...]:
        """Which chains each relation depends on."""
        return self._chains_of(self.relations)

    def _chains_of(self, expressions: Sequence[Scalar]) -> tuple[frozenset[int], ...]:
        chain_of = {s: c for c, chain in enumerate(self.chain_states) for s in chain}
        rows = jacobian(expressions, [*self.x, *self.dx])
        n = len(self.x)
        return tuple(
            frozenset(chain_of[i % n] for i, d in enumerate(row) if isinstance(d, Variable) or d != 0.0) for row in rows
        )

    @cached_property
    def without_relations(self) -> System:
        """The same system without its relations; itself if it has none."""
        if not self.relations:
            return self
        plain = copy.copy(self)
        plain.__dict__.pop("relation_chains", None)
        plain.relations, plain.relation_names = (), ()
        plain.driven = plain.base = plain
        return plain

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
        if self.base is not self:
            return self.base.equations
        rates = [rate_latex(symbol_latex(s)) for s in self.states]
        derived = [str(s.name) for s in self.p[len(self.params) :]]
        words = [symbol_latex(n) for n in ("t", *self.states)] + rates
        words += [symbol_latex(n) for n in (*self.inputs, *self.params, *derived)]
        names = dict(zip((self.t, *self.x, *self.dx, *self.u, *self.p), words, strict=True))
        left = [*rates, *map(symbol_latex, self.outputs), *("0" for _ in self.relations)]
        lines = equations(left, [*self.f, *self.g, *self.relations], names)
        return lines + [rf"{symbol_latex(d.name)} = {self._source(d)}" for d in self.derived]

    def _source(self, derived: Derived) -> str:
        """What a tensor expression of the parameters is computed from, and by which operations."""
        read = set(graph_inputs([derived.expression]))
        arguments = [symbol_latex(str(v.name)) for v in self.tensors if v in read]
        last = derived.expression.owner.op
        name = re.sub(r"\W", "", type(getattr(last, "core_op", getattr(last, "scalar_op", last))).__name__)
        return rf"\text{{{name}, a function of }} " + r",\, ".join(arguments)

    def _repr_latex_(self) -> str:
        return r"$$\begin{aligned}" + r" \\ ".join(e.replace(" = ", " &= ", 1) for e in self.equations) + r"\end{aligned}$$"

    def _repr_html_(self) -> str:
        """Equations and names for a notebook."""
        head, *rows = repr(self).split("\n")
        cells = [row.strip().split(maxsplit=1) for row in rows]
        return html_line(head, strong=True) + html_formulas(self.equations) + html_table(["", ""], cells, texts=2)

    def __repr__(self) -> str:
        chains = "; ".join(dict.fromkeys(" -> ".join(map(self.states.owner, chain)) for chain in self.chains))
        counts = ((self.states, "state"), (self.inputs, "input"), (self.outputs, "output"))
        lines = [
            f"System: {', '.join(f'{len(names)} {what}{"s" * (len(names) != 1)}' for names, what in counts)}",
            f"  states      {_listed(self.states) or 'none (a static map)'}",
            *([f"  chains      {chains}"] if self.states else []),
            f"  inputs      {_listed(self.inputs) or 'none'}",
            f"  outputs     {_listed(self.outputs)}",
            f"  parameters  {_listed(self.params) or 'none'} (each needs a value or a prior)",
            *([f"  relations   {', '.join(self.relation_names)}: zero at all times"] if self.relations else []),
            *([f"  computed    {', '.join(d.name for d in self.derived)}, once a parameter set"] if self.derived else []),
        ]
        return "\n".join(lines)


def expressions(what: str, result: Any) -> list[Any]:
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


def _vectors(what: str, names: Any) -> Names:
    """Names of scalars and vectors."""
    found = checked_names(what, names)
    for name, shape in found.shapes.items():
        if len(shape) > 1:
            raise ValueError(f"{what}: {name!r} has the shape {shape}; give vectors, or scalars, such as {name}.ravel().")
    return found


def _tensors(names: Names, prefix: str = "") -> list[Variable]:
    """Tensors of named scalars, vectors and matrices."""
    return [pt.TensorType("float64", shape)(prefix + n) for n, shape in names.shapes.items()]


def _arrays(names: Names, scalars: Sequence[Variable]) -> list[np.ndarray]:
    """Symbols of the entries of each quantity, in its shape."""
    flat = np.empty(len(scalars), dtype=object)
    flat[:] = scalars
    return [flat[where].reshape(names.shapes[n]) for n, where in names.vectors().items()]


def _listed(names: Names) -> str:
    """Names, with the shapes of vectors and matrices."""
    return ", ".join(f"{n} ({' x '.join(map(str, shape))})" if shape else n for n, shape in names.shapes.items())


class Derived(NamedTuple):
    """A tensor expression of the parameters, the places of the entries that are used in it, flat, and their symbols."""

    name: str
    expression: Any
    places: np.ndarray
    symbols: list[Variable]


def _used(v: Any, entries: np.ndarray, used: set[Variable]) -> Derived:
    flat = entries.ravel()
    places = np.array([i for i, s in enumerate(flat) if s in used], dtype=int)
    return Derived(Names.owner(str(flat[0].name)), v, places, [flat[i] for i in places])


def _check_shapes(arrays: Sequence[np.ndarray], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse derivatives of another shape than their states: nothing is broadcast."""
    if len(arrays) == 1 and arrays[0].ndim == 1:  # all of them in one vector
        return
    if len(arrays) != len(shapes):
        raise ValueError(
            f"dynamics returned {len(arrays)} derivatives, but the states are {list(shapes)}; return one for each."
        )
    for array, (name, shape) in zip(arrays, shapes.items(), strict=True):
        if array.shape != shape:
            raise ValueError(
                f"dynamics returned a derivative of {name!r} of the shape {array.shape}, but the state has the shape {shape}; "
                "return one derivative for each entry."
            )


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
    place = {s: j for j, s in enumerate(x)}
    taken: set[int] = set()
    for i, derivative in enumerate(f):
        j = place.get(derivative) if isinstance(derivative, Variable) else None
        if j is None or j == i or j in taken:
            continue
        end = j
        while end in follower:
            end = follower[end]
        if end != i:  # closing a cycle, as in z' = v, v' = z, would leave no equation of motion
            follower[i] = j
            taken.add(j)
    chains = []
    for i in range(len(f)):
        if i in taken:
            continue
        chain = [i]
        while chain[-1] in follower:
            chain.append(follower[chain[-1]])
        chains.append(tuple(chain))
    return tuple(chains)
