"""Structures of many coordinates: matrices of mass, damping and stiffness, or modes, with local nonlinear elements."""

from __future__ import annotations

import keyword
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple

import numpy as np
import pytensor.tensor as pt

from pm_sysid.arguments import among, shown, whole
from pm_sysid.models.elements import ELEMENTS, speed_width
from pm_sysid.symbolic.system import System

type Kind = Literal["displacement", "velocity", "acceleration"]

#: Largest number of coordinates.
MOST = 1000
#: Matrices may be this far from symmetric, relative to their largest entry; eigenvalues this far below zero.
TOLERANCE = 1e-8
#: Share of the critical damping that hardly any structure has.
MUCH_DAMPING = 0.2
KINDS = ("displacement", "velocity", "acceleration")


def structural(
    M: Any,
    C: Any,
    K: Any,
    *,
    nonlinear: Mapping[str, tuple[str | Sequence[str], Any]] | None = None,
    input: Any = None,
    output: Mapping[Kind, Any] | None = None,
    v_s: float = 1e-3,
) -> System:
    """Structure ``M q'' + C q' + K q + sum of elements = B F`` with n coordinates.

    Parameters
    ----------
    M, C, K : array (n, n), str, or mapping of str to array
        Mass (kg), damping (N s/m) and stiffness (N/m). An array of numbers is known. A name makes the matrix a parameter of
        the system: ``K="K"`` takes ``params={"K": ...}`` of the shape (n, n). A mapping is a sum of known matrices times
        parameters, ``{"k_joint": K1, None: K0}`` is ``k_joint K1 + K0``; ``C={"alpha": M, "beta": K}`` is Rayleigh damping.
        At least one matrix has to be given in numbers.
    nonlinear : mapping of str to (element, place), optional
        Elements of the catalogue of :func:`chain` by a name that goes behind the names of their parameters:
        ``{"tip": ("cubic", 9)}`` has the parameter ``k3_tip``. Several elements at a place are a tuple. Places are as for
        ``input``, or a pair of them: the element then lies between the two, with the elongation ``d = q_i - q_j``.
    input : int, sequence of int, or array (n, m), optional
        Where forces act: the coordinate of the force ``F``, counted from 0, or those of a vector ``F``; or the matrix B. By
        default there is no force.
    output : mapping of {"displacement", "velocity", "acceleration"} to int, sequence of int, or array (m, n), optional
        Coordinates of the sensors of each kind, or rows that multiply all coordinates; by default all displacements.
    v_s : float, default 1e-3
        Speed (m/s) over which the sign of ``"coulomb"`` and ``"stribeck"`` friction is smoothed.

    Returns
    -------
    System
        States ``q`` (m) and ``v`` (m/s), vectors of n entries, and ``r`` of elements with a hidden state; input ``F`` (N);
        outputs ``displacement``, ``velocity``, ``acceleration``, vectors with one entry a sensor.

    Raises
    ------
    TypeError, ValueError
        For matrices that are not square, finite and of one size; a mass or stiffness that is not symmetric; a mass that is
        singular or indefinite, a stiffness or damping with negative eigenvalues; places and elements that do not exist.

    Notes
    -----
    Only numbers can be checked here: a matrix that is a parameter may become singular, which is impossible for the sampler
    and no error. Its inverse is computed once a parameter set. Each coordinate is a chain with a Wiener process of its own,
    q + 1 components: the filter is dense up to 40 of them, and ``EK1(covariance="block")`` keeps it small.

    Source: Newton's law; Craig and Kurdila (2006), Chapter 8, for discrete systems of many degrees of freedom.

    Examples
    --------
    >>> import numpy as np, pm_sysid as sid
    >>> K = np.array([[200.0, -100.0], [-100.0, 100.0]])
    >>> system = sid.models.structural(
    ...     np.eye(2),
    ...     {"beta": K},
    ...     K,
    ...     nonlinear={"wall": ("cubic", 0)},
    ...     input=1,
    ...     output={"acceleration": [0, 1]},
    ... )
    >>> system.params, list(system.outputs)
    (('beta', 'k3_wall'), ['acceleration[0]', 'acceleration[1]'])
    """
    n = _size({"M": M, "C": C, "K": K})
    mass, damping, stiffness = (_Matrix.of(what, value, n) for what, value in (("M", M), ("C", C), ("K", K)))
    _check_mass(mass.numbers)
    _check_stiffness(stiffness.numbers, mass.numbers)
    _check_damping(damping.numbers)

    def acceleration(force: Any, q: Any, v: Any, p: Any) -> Any:
        if mass.numbers is None:
            return pt.linalg.solve(mass.value(p), force - damping.value(p) @ v - stiffness.value(p) @ q)
        # Known matrices are divided by the mass in numbers: what is zero costs nothing.
        inverse = _inverse(mass.numbers)
        return inverse @ force - damping.times(inverse, p) @ v - stiffness.times(inverse, p) @ q

    shapes = {**mass.shapes, **damping.shapes, **stiffness.shapes}
    return _system(_Shapes(n, np.eye(n)), n, acceleration, shapes, nonlinear, input, output, v_s)


def modal(
    frequencies: Any,
    damping: Any,
    shapes: Any,
    *,
    nonlinear: Mapping[str, tuple[str | Sequence[str], Any]] | None = None,
    input: Any = None,
    output: Mapping[Kind, Any] | None = None,
    v_s: float = 1e-3,
) -> System:
    """Structure by its modes: ``eta_k'' + 2 zeta_k w_k eta_k' + w_k^2 eta_k = shapes_k (B F - sum of elements)``.

    Parameters
    ----------
    frequencies : array (n,) or str
        Natural frequencies (Hz), or the name of a vector of parameters.
    damping : array (n,), number or str
        Damping ratios, as a share of the critical damping: 0.01 is one percent; or the name of a vector of parameters.
    shapes : array (m, n), or mapping of str to (m, n)
        Mode shapes at m places, normalised to a modal mass of one (1/sqrt(kg)): ``Phi' M Phi = I``. ``{"phi": (3, 2)}`` makes
        them a parameter of the system: those of two modes at three places, to be found from a test.
    nonlinear, input, output, v_s
        As for :func:`structural`; places are rows of ``shapes``, counted from 0, or rows (m,) that multiply them.

    Returns
    -------
    System
        States ``q`` (modal coordinates, m sqrt(kg)) and ``v``, vectors of n entries; the rest as of :func:`structural`.

    Raises
    ------
    TypeError, ValueError
        For shapes that do not fit, frequencies that are not positive, damping ratios of one and more (percent, most likely).

    Warns
    -----
    UserWarning
        If damping ratios are above 0.2.

    Notes
    -----
    Modes whose shapes are parameters can change places and signs without any change of the outputs: start a search, or
    centre a prior, near the modes of a linear fit. A spring inside an element adds to the stiffness of the modes; the
    frequencies are then those of the structure without that element.

    Source: Craig and Kurdila (2006), Chapter 11, mode superposition.

    Examples
    --------
    >>> import numpy as np, pm_sysid as sid
    >>> system = sid.models.modal(
    ...     [3.2, 20.1],
    ...     "zeta",
    ...     [[0.1, -0.3], [0.5, 0.5]],
    ...     nonlinear={"tip": ("cubic", 1)},
    ...     input=0,
    ...     output={"acceleration": 1},
    ... )
    >>> system.chains, system.params
    ((('q[0]', 'v[0]'), ('q[1]', 'v[1]')), ('zeta[0..1]', 'k3_tip'))
    """
    basis, n = _shapes(shapes, frequencies, damping)
    hertz = _modal_vector("frequencies", frequencies, n)
    ratio = _modal_vector("damping", damping, n)
    _check_frequencies(hertz)
    _check_ratios(ratio)
    params: dict[str, tuple[int, ...]] = {name: (n,) for name in (frequencies, damping) if isinstance(name, str)}
    if basis.name is not None:
        if basis.name in params:
            raise ValueError(f"shapes and frequencies or damping share the name {basis.name!r}; give each one of its own.")
        params[basis.name] = (basis.places, n)

    def acceleration(force: Any, q: Any, v: Any, p: Any) -> Any:
        omega = 2 * np.pi * (getattr(p, frequencies) if hertz is None else hertz)
        zeta = getattr(p, damping) if ratio is None else ratio
        return force - 2 * zeta * omega * v - omega**2 * q

    return _system(basis, n, acceleration, params, nonlinear, input, output, v_s)


# -- the parts of both ---------------------------------------------------------------------------------------------------


class _Shapes(NamedTuple):
    """Displacements of all places by the coordinates: ``numbers`` (places, n), or the parameter called ``name``."""

    places: int
    numbers: np.ndarray | None
    name: str | None = None

    def at(self, weights: np.ndarray, p: Any) -> Any:
        """Rows of the coordinates that give weighted displacements of the places."""
        return weights @ (getattr(p, str(self.name)) if self.numbers is None else self.numbers)

    def moves(self, weights: np.ndarray) -> bool:
        """Whether weighted displacements can be anything but zero."""
        return bool(np.any(weights if self.numbers is None else weights @ self.numbers))


class _Placed(NamedTuple):
    """An element, the suffix of its parameters, the places its elongation is made of, and the place of its hidden state."""

    name: str
    suffix: str
    weights: np.ndarray
    hidden: int | None


def _system(
    shapes: _Shapes,
    n: int,
    acceleration: Callable[[Any, Any, Any, Any], Any],
    params: Mapping[str, tuple[int, ...]],
    nonlinear: Any,
    input: Any,
    output: Any,
    v_s: float,
) -> System:
    """System with displacements ``shapes @ q`` at its places and forces ``shapes.T @ f`` on its n coordinates."""
    v_s = speed_width(v_s)
    placed = _placed(nonlinear, shapes)
    hidden = sum(e.hidden is not None for e in placed)
    forces, single = _forces(input, shapes.places)
    sensors = _sensors(output, shapes.places)
    sizes = dict(params)
    for name in (f"{q}_{e.suffix}" for e in placed for q in ELEMENTS[e.name].params):
        if name in sizes:
            raise ValueError(f"two parameters are called {name!r}; rename a matrix or an element.")
        sizes[name] = ()

    def dynamics(t: Any, x: Any, u: Any, p: Any) -> dict[str, Any]:
        force: Any = pt.zeros(n)
        if forces is not None:
            force = shapes.at(forces, p).T @ (pt.stack([u.F]) if single else u.F)
        rates: dict[int, Any] = {}
        for e in placed:
            law = ELEMENTS[e.name]
            row = shapes.at(e.weights, p)
            d, speed = row @ x.q, row @ x.v
            own = SimpleNamespace(**{q: getattr(p, f"{q}_{e.suffix}") for q in law.params})
            r = None if e.hidden is None else x.r[e.hidden]
            force = force - row * law.force(d, speed, r, own, v_s)
            if law.rate and e.hidden is not None:
                rates[e.hidden] = law.rate(d, speed, r, own)
        found = {"q": x.v, "v": acceleration(force, x.q, x.v, p)}
        return found | ({"r": pt.stack([rates[i] for i in range(hidden)])} if hidden else {})

    def measured(t: Any, x: Any, dx: Any, u: Any, p: Any) -> dict[str, Any]:
        source = {"displacement": x.q, "velocity": x.v, "acceleration": dx.v}
        return {kind: shapes.at(weights, p) @ source[kind] for kind, weights in sensors.items()}

    return System(
        dynamics,
        states={"q": n, "v": n, **({"r": hidden} if hidden else {})},
        inputs={} if forces is None else {"F": () if single else len(forces)},
        params=sizes,
        observe=measured,
    )


def _row(what: str, place: Any, places: int) -> np.ndarray:
    """Weights of all places: one at a place, or given."""
    if whole(place, 0, places - 1):
        return np.asarray(np.eye(places)[int(place)])
    array = _numbers(what, place) if isinstance(place, list | tuple | np.ndarray) else np.empty(0)
    if array.shape != (places,) or not isinstance(place, np.ndarray | list):
        raise ValueError(
            f"{what} is {shown(place)}; give a place from 0 to {places - 1}, or a row of {places} numbers that "
            "multiplies the displacements of all."
        )
    return array


def _rows(what: str, given: Any, places: int) -> np.ndarray:
    """Weights (m, places) of a place, of several, or given as a matrix that multiplies the displacements of all."""
    if whole(given, -(2**31)):
        return _row(what, given, places)[None]
    if isinstance(given, np.ndarray) and given.ndim == 2:
        matrix = _numbers(what, given)
        if matrix.shape[1] != places:
            raise ValueError(f"{what} has the shape {matrix.shape}; give one column for each of {places} places.")
        return matrix
    if isinstance(given, str) or not np.iterable(given) or not len(list(given)):
        raise ValueError(f"{what} is {shown(given)}; give a place, several, or a matrix with one column a place.")
    return np.array([_row(f"{what}[{i}]", place, places) for i, place in enumerate(given)])


def _forces(input: Any, places: int) -> tuple[np.ndarray | None, bool]:
    """Weights of the forces, and whether there is one force alone, given as a number."""
    if input is None:
        return None, False
    if isinstance(input, np.ndarray) and input.ndim == 2:  # the matrix B: one column a force
        if input.shape[0] != places:
            raise ValueError(f"input has the shape {input.shape}; give one row for each of {places} places.")
        input = input.T
    return _rows("input", input, places), whole(input, 0)


def _sensors(output: Any, places: int) -> dict[str, np.ndarray]:
    if output is None:
        return {"displacement": np.eye(places)}
    if not isinstance(output, Mapping) or not output:
        raise TypeError(f"output is {shown(output)}; give the places of sensors by kind, such as {{'acceleration': [0, 1]}}.")
    for kind in output:
        if not among(kind, KINDS):
            raise ValueError(f"output names {kind!r}; give some of {list(KINDS)}.")
    return {kind: _rows(f"output[{kind!r}]", output[kind], places) for kind in output}


def _placed(nonlinear: Any, shapes: _Shapes) -> list[_Placed]:
    """Elements in the order they are given in."""
    if nonlinear is None:
        return []
    if not isinstance(nonlinear, Mapping):
        raise TypeError(f"nonlinear is {shown(nonlinear)}; give elements and places by name, such as {{'tip': ('cubic', 9)}}.")
    found: list[_Placed] = []
    memories = 0
    for suffix, given in nonlinear.items():
        if not isinstance(suffix, str) or not f"a_{suffix}".isidentifier():
            raise ValueError(f"nonlinear names {suffix!r}; give a name that can stand behind k3_, such as 'tip'.")
        if not isinstance(given, tuple) or len(given) != 2:
            raise ValueError(f"nonlinear[{suffix!r}] is {shown(given)}; give (element, place), such as ('cubic', 9).")
        names, place = given
        names = (names,) if isinstance(names, str) else names
        if not isinstance(names, list | tuple) or not names or not all(among(name, ELEMENTS) for name in names):
            raise ValueError(f"nonlinear[{suffix!r}] has the element {shown(given[0])}; give some of {list(ELEMENTS)}.")
        owners: dict[str, str] = {}
        for name in names:
            for q in ELEMENTS[name].params:
                if q in owners:
                    raise ValueError(f"in nonlinear[{suffix!r}] {owners[q]!r} and {name!r} share the parameter {q}_{suffix}; "
                                     "give one of them a name of its own.")  # fmt: skip
                owners[q] = name
        weights = _elongation(f"nonlinear[{suffix!r}]", place, shapes.places)
        if not shapes.moves(weights):
            raise ValueError(f"nonlinear[{suffix!r}] lies between {shown(place)}, which never move apart; choose other places.")
        for name in names:
            remembers = ELEMENTS[name].rate is not None
            found.append(_Placed(name, suffix, weights, memories if remembers else None))
            memories += remembers
    return found


def _elongation(what: str, place: Any, places: int) -> np.ndarray:
    """Weights of the elongation of an element: of a place to the ground, or between two."""
    if isinstance(place, tuple):
        if len(place) != 2:
            raise ValueError(f"{what} has {len(place)} places; give one, or the two that the element lies between.")
        first, second = (_row(f"{what}[{i}]", p, places) for i, p in enumerate(place))
        return np.asarray(first - second)
    return _row(what, place, places)


# -- matrices --------------------------------------------------------------------------------------------------------------


class _Matrix(NamedTuple):
    """A matrix: ``numbers``, or the sum of numbers and parameters."""

    numbers: np.ndarray | None
    parts: tuple[tuple[str | None, np.ndarray | None], ...]
    shapes: dict[str, tuple[int, ...]]

    @classmethod
    def of(cls, what: str, value: Any, n: int) -> _Matrix:
        """Matrix as a user gives it."""
        if isinstance(value, str):
            return cls(None, ((_parameter(what, value), None),), {value: (n, n)})
        if isinstance(value, Mapping):
            parts = tuple((name, _square(f"{what}[{name!r}]", part, n)) for name, part in value.items())
            named = [_parameter(what, name) for name, _ in parts if name is not None]
            if not named:
                raise ValueError(f"{what} is {shown(value)}; give a matrix, or matrices by the parameter that multiplies them.")
            for name, part in parts:
                if what != "C":
                    _check_symmetric(f"{what}[{name!r}]", part)
            return cls(None, parts, dict.fromkeys(named, ()))
        numbers = _square(what, value, n)
        if what != "C":
            _check_symmetric(what, numbers)
        return cls(numbers, ((None, numbers),), {})

    def value(self, p: Any) -> Any:
        """The matrix with the parameters ``p``."""
        return self._sum(p, lambda a: a)

    def times(self, left: np.ndarray, p: Any) -> Any:
        """Product of a known matrix and this one."""
        return self._sum(p, lambda a: _clean(left @ a) if isinstance(a, np.ndarray) else left @ a)

    def _sum(self, p: Any, of: Callable[[Any], Any]) -> Any:
        terms = []
        for name, part in self.parts:
            if part is None:
                terms.append(of(getattr(p, str(name))))
            else:
                terms.append(of(part) if name is None else getattr(p, name) * of(part))
        return sum(terms[1:], terms[0])


def _parameter(what: str, name: Any) -> str:
    """Name of a parameter, or an error that says where it stands."""
    if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
        raise ValueError(f"{what} names the parameter {shown(name)}; names must be identifiers that do not start with '_'.")
    return name


def _clean(product: np.ndarray) -> np.ndarray:
    """Product of matrices whose rounding errors are zeros: they would cost what any number costs."""
    return np.where(np.abs(product) < 1e-15 * np.max(np.abs(product), initial=0.0), 0.0, product)


def _inverse(mass: np.ndarray) -> np.ndarray:
    if not np.any(mass - np.diag(np.diag(mass))):
        return np.diag(1.0 / np.diag(mass))
    return _clean(np.linalg.inv(mass))


def _size(matrices: Mapping[str, Any]) -> int:
    """Number of coordinates, from the first matrix of numbers."""
    for what, value in matrices.items():
        parts = list(value.values()) if isinstance(value, Mapping) else [] if isinstance(value, str) else [value]
        if parts:
            shape = _numbers(what, parts[0]).shape
            if len(shape) != 2 or shape[0] != shape[1] or not 1 <= shape[0] <= MOST:
                raise ValueError(f"{what} has the shape {shape}; give a square matrix for 1 to {MOST} coordinates.")
            return int(shape[0])
    raise ValueError("M, C and K are all names; give one in numbers, such as M=np.eye(n), which says how many there are.")


def _numbers(what: str, value: Any) -> np.ndarray:
    if hasattr(value, "toarray"):  # sparse matrices of SciPy
        value = value.toarray()
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ValueError(f"{what} has rows of different lengths; give a matrix.") from error
    if array.dtype.kind not in "iuf":
        raise TypeError(f"{what} is {shown(value)}; give real numbers, or the name of a parameter.")
    if not np.all(np.isfinite(array)):
        raise ValueError(f"{what} has entries that are not finite.")
    return array.astype(float)


def _square(what: str, value: Any, n: int) -> np.ndarray:
    array = _numbers(what, value)
    if array.shape != (n, n):
        raise ValueError(f"{what} has the shape {array.shape}; give {(n, n)}, as the other matrices have.")
    return array


def _check_symmetric(what: str, matrix: np.ndarray) -> None:
    apart = float(np.max(np.abs(matrix - matrix.T), initial=0.0))
    if apart > TOLERANCE * float(np.max(np.abs(matrix), initial=0.0)):
        i, j = np.unravel_index(np.argmax(np.abs(matrix - matrix.T)), matrix.shape)
        raise ValueError(
            f"{what} is not symmetric: {what}[{i}, {j}] = {matrix[i, j]:.6g}, but {what}[{j}, {i}] = {matrix[j, i]:.6g}; "
            "check how it was assembled (both triangles?), or average it with its transpose if this is rounding."
        )


def _check_mass(mass: np.ndarray | None) -> None:
    if mass is None:
        return
    values, vectors = np.linalg.eigh(mass)
    if values[0] < -TOLERANCE * abs(values[-1]) or values[-1] <= 0:
        raise ValueError(f"M is not positive definite: its smallest eigenvalue is {values[0]:.3g} kg; check its signs.")
    if values[0] <= 1e-14 * values[-1]:
        where = int(np.argmax(np.abs(vectors[:, 0])))
        raise ValueError(
            f"M is singular: its smallest eigenvalue is {values[0]:.3g} kg beside {values[-1]:.3g}, mostly at coordinate "
            f"{where}; condense coordinates without mass (q = -K_oo^-1 K_oa q_a), or remove them."
        )


def _check_stiffness(stiffness: np.ndarray | None, mass: np.ndarray | None) -> None:
    if stiffness is None:
        return
    values = np.linalg.eigvalsh(stiffness)
    if values[0] < -TOLERANCE * max(abs(values[0]), abs(values[-1])):
        raise ValueError(
            f"K has the negative eigenvalue {values[0]:.3g} N/m: without its nonlinear elements the structure is unstable. "
            "Check its signs and constraints; a structure that is meant to buckle takes K as a parameter (K='K')."
        )


def _check_damping(damping: np.ndarray | None) -> None:
    if damping is None:
        return
    values = np.linalg.eigvalsh((damping + damping.T) / 2)
    if values[0] < -TOLERANCE * max(abs(values[0]), abs(values[-1])):
        raise ValueError(
            f"C has the negative eigenvalue {values[0]:.3g} N s/m: it feeds energy into the structure. Check its signs; "
            "damping that is meant to do so is a parameter (C='C')."
        )


# -- modes ---------------------------------------------------------------------------------------------------------------


def _shapes(shapes: Any, frequencies: Any, damping: Any) -> tuple[_Shapes, int]:
    """Mode shapes and the number of modes."""
    if isinstance(shapes, Mapping):
        basis, (places, n) = _named_shapes(shapes)
    else:
        array = _numbers("shapes", shapes)
        if array.ndim != 2 or not array.size or array.shape[1] > MOST:
            raise ValueError(f"shapes has the shape {array.shape}; give one row a place and one column a mode (up to {MOST}).")
        if not array.any(axis=0).all():
            raise ValueError(f"shapes: mode {int(np.argmin(array.any(axis=0)))} moves at none of the places; leave it out.")
        (places, n), basis = array.shape, _Shapes(len(array), array)
    for what, value in (("frequencies", frequencies), ("damping", damping)):
        if not isinstance(value, str) and np.ndim(value) == 1 and len(value) != n:
            transposed = "; transpose shapes" if len(value) == places else ""
            raise ValueError(f"{what} has {len(value)} entries, and shapes {n} columns; give one of each a mode{transposed}.")
    return basis, n


def _named_shapes(shapes: Mapping[Any, Any]) -> tuple[_Shapes, tuple[int, int]]:
    """Mode shapes that are a parameter, given by its name and shape."""
    remedy = "give an array, or the name and shape of a parameter, such as {'phi': (3, 2)} for 3 places and 2 modes"
    if len(shapes) != 1:
        raise ValueError(f"shapes is {shown(shapes)}; {remedy}.")
    ((name, size),) = shapes.items()
    if not isinstance(size, tuple | list) or len(size) != 2 or not all(whole(k, 1, MOST) for k in size):
        raise ValueError(f"shapes is {shown(shapes)}; {remedy}, up to {MOST} of each.")
    places, n = (int(k) for k in size)
    return _Shapes(places, None, _parameter("shapes", name)), (places, n)


def _modal_vector(what: str, value: Any, n: int) -> np.ndarray | None:
    """Numbers of each mode; None for a parameter."""
    if isinstance(value, str):
        _parameter(what, value)
        return None
    array = _numbers(what, value)
    if array.ndim == 0 and what == "damping":
        array = np.full(n, float(array))
    if array.shape != (n,):
        raise ValueError(f"{what} has the shape {array.shape}; give {n} numbers, one a mode.")
    return array


def _check_frequencies(hertz: np.ndarray | None) -> None:
    if hertz is not None and not np.all(hertz >= 0):
        raise ValueError(f"frequencies has {hertz.min():.6g} Hz; give positive numbers (0 for a rigid-body mode).")


def _check_ratios(ratio: np.ndarray | None) -> None:
    if ratio is None:
        return
    if not np.all(ratio >= 0):
        raise ValueError(f"damping has the ratio {ratio.min():.6g}; give shares of the critical damping, such as 0.01.")
    if np.any(ratio >= 1):
        raise ValueError(
            f"damping has the ratio {ratio.max():.6g}, at which nothing vibrates; these look like percent: divide them by 100."
        )
    if np.any(ratio > MUCH_DAMPING):
        warnings.warn(
            f"damping has the ratio {ratio.max():.6g}, which is {100 * ratio.max():.3g} % of the critical damping; if it is "
            "meant in percent, divide it by 100.",
            stacklevel=3,
        )
