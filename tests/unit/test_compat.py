"""What :mod:`pm_sysid.compat` takes from other libraries is still there and does what the package uses it for.

Each name is imported on its own and not through the package, so that a library that changed one of them is named together
with the name and the modules that need it, where the package itself might not even import.
"""

from __future__ import annotations

import ast
import inspect
import warnings
from collections.abc import Callable, Iterator
from dataclasses import fields
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.statements import statements

ROOT = Path(__file__).parents[2] / "pm_sysid"
COMPAT = sorted((ROOT / "compat").glob("*.py"))
LIBRARIES = {"arviz", "arviz_base", "arviz_plots", "arviz_stats", "llvmlite", "numba", "pymc", "pytensor"}
#: Modules that the libraries document for their users; names of all others go through compat.
PUBLIC = {
    "arviz_base",
    "arviz_stats",
    "llvmlite",
    "llvmlite.binding",
    "numba",
    "numba.extending",
    "pymc",
    "pytensor",
    "pytensor.compile",
    "pytensor.compile.builders",
    "pytensor.gradient",
    "pytensor.graph",
    "pytensor.graph.basic",
    "pytensor.graph.op",
    "pytensor.scalar",
    "pytensor.scalar.basic",
    "pytensor.scalar.math",
    "pytensor.tensor",
}


def from_imports(path: Path) -> Iterator[tuple[str, str, str]]:
    """Module, name, and the name in the file, of every ``from module import name`` of a file."""
    for node in statements(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.module, alias.name, alias.asname or alias.name) for alias in node.names)


NAMES = {own: (module, name) for p in COMPAT for module, name, own in from_imports(p) if module.split(".")[0] in LIBRARIES}
NAMES.pop("jax_funcify")  # by jax_dispatch
#: Functions of compat that reach into an object or import late, with their modules.
FUNCTIONS = {
    node.name: "pm_sysid.compat" if path.stem == "__init__" else f"pm_sysid.compat.{path.stem}"
    for path in COMPAT
    for node in ast.parse(path.read_text()).body
    if isinstance(node, ast.FunctionDef)
}
USERS: dict[str, list[str]] = {}
for path in sorted(ROOT.rglob("*.py")):
    for module, name, _ in from_imports(path):
        if module.startswith("pm_sysid.compat"):
            USERS.setdefault(name, []).append(path.relative_to(ROOT).as_posix())

CHECKS: dict[str, Callable[[Any], None]] = {}


def checks(*names: str) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
    """Register a function as the check of what compat offers under these names."""

    def register(check: Callable[[Any], None]) -> Callable[[Any], None]:
        CHECKS.update(dict.fromkeys(names, check))
        return check

    return register


def problem(name: str, module: str, attribute: str, check: Callable[[Any], None]) -> str | None:
    """What is wrong with a name of a library, in one line; None if it is as the package needs it."""
    library = module.split(".")[0]
    users = ", ".join(USERS.get(name, [])) or "nothing"
    said = f"{library} {version(library)}: {module}.{attribute} (compat.{name}, used by {users})"
    try:
        thing = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        return f"{said} is not there: {error}"
    try:
        check(thing)
    except Exception as error:
        return f"{said} is not what it was: {type(error).__name__}: {error}"
    return None


def takes(function: Any, *arguments: str) -> None:
    """Assert that a function has arguments of these names, or takes any."""
    parameters = inspect.signature(function).parameters
    free = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    missing = [a for a in arguments if a not in parameters]
    assert free or not missing, f"it takes {list(parameters)}, without {missing}"


def has(thing: Any, *attributes: str) -> None:
    """Assert that an object has these attributes."""
    missing = [a for a in attributes if not hasattr(thing, a)]
    assert not missing, f"it has no {missing}"


def model() -> Any:
    """Return a small PyMC model: a positive scale and one datum."""
    import pymc as pm

    with pm.Model() as built:
        scale = pm.HalfNormal("scale")
        pm.Normal("y", 0.0, scale, observed=1.0)
    return built


# -- ArviZ --------------------------------------------------------------------------------------------------------------


@checks("ELPDData")
def _(thing: Any) -> None:
    names = {f.name for f in fields(thing)}
    assert {"elpd", "se", "p", "n_samples", "n_data_points", "scale", "warning", "good_k", "elpd_i"} <= names, names


@checks("ELPDDataLOO")
def _(thing: Any) -> None:
    names = {f.name for f in fields(thing)}
    assert {"elpd", "se", "p", "n_samples", "n_data_points", "scale", "warning", "good_k", "elpd_i", "pareto_k"} <= names, names


@checks("elpd_table")
def _(thing: Any) -> None:
    from arviz_stats import ELPDData

    class Named(ELPDData):
        _kind = "waic"

    numbers = {"elpd": -10.0, "se": 1.0, "p": 2.0, "n_samples": 100, "n_data_points": 10}
    printed = thing(Named(**numbers, scale="log", warning=False, good_k=0.7))
    assert "elpd_waic" in printed and "-10.00" in printed and "100" in printed, printed


@checks("array_stats")
def _(thing: Any) -> None:
    draws = np.random.default_rng(0).normal(size=(2, 200))
    assert thing.ess(draws, method="bulk") > 50 and thing.ess(draws, method="tail", prob=(0.05, 0.95)) > 50
    assert 0.9 < thing.rhat(draws) < 1.1


# -- numba --------------------------------------------------------------------------------------------------------------


@checks("cgutils")
def _(thing: Any) -> None:
    has(thing, "unpack_tuple")
    takes(thing.get_or_insert_function, "module", "fnty", "name")


# -- PyMC ---------------------------------------------------------------------------------------------------------------


@checks("CensoredRV")
def _(thing: Any) -> None:
    import pymc as pm

    with pm.Model():
        rv = pm.Censored("y", pm.Normal.dist(0.0, 1.0), None, 2.0, observed=[1.0, 2.0])
    node = rv.owner
    assert isinstance(node.op, thing) and len(node.inputs) == 3
    assert node.inputs[1].eval() == -np.inf and node.inputs[2].eval() == 2.0


@checks("SimulatorRV")
def _(thing: Any) -> None:
    import pymc as pm

    with pm.Model(), warnings.catch_warnings():  # of PyTensor, about how PyMC builds simulators
        warnings.simplefilter("ignore", DeprecationWarning)
        rv = pm.Simulator("y", lambda rng, a, size: np.array([a]), 1.0, observed=[1.0], sum_stat="identity")
    op = rv.owner.op
    assert isinstance(op, thing) and op.epsilon.eval() == 1.0
    has(op, "fn", "distance", "sum_stat", "epsilon")


@checks("logprob")
def _(thing: Any) -> None:
    import pymc as pm

    has(thing, "register")
    rv = pm.Normal.dist(1.0, 2.0)
    found = thing(rv.owner.op, [np.float64(1.0)], *rv.owner.inputs)
    assert np.isclose(found.eval(), -np.log(2.0) - 0.5 * np.log(2 * np.pi))


@checks("default_transform")
def _(thing: Any) -> None:
    import pymc as pm

    with pm.Model() as model:
        positive = pm.HalfNormal("positive")
        free = pm.Normal("free", shape=2, transform=pm.distributions.transforms.ordered)
    assert type(thing(positive.owner.op, positive)) is type(model.rvs_to_transforms[positive])
    assert thing(free.owner.op, free) is None and model.rvs_to_transforms[free] is not None


@checks("CheckParameterValue")
def _(thing: Any) -> None:
    import pymc as pm
    import pytensor.tensor as pt
    from pytensor.graph import ancestors

    logp = pm.logp(pm.Normal.dist(0.0, pt.dscalar()), 1.0)
    ops = [v.owner.op for v in ancestors([logp]) if v.owner and isinstance(v.owner.op, thing)]
    assert ops and all(op.can_be_replaced_by_ninf for op in ops)


@checks("ParameterValueError")
def _(thing: Any) -> None:
    import pymc as pm

    with pytest.raises(thing):
        pm.logp(pm.Normal.dist(0.0, -1.0), 1.0).eval()


@checks("join_nonshared_inputs")
def _(thing: Any) -> None:
    built = model()
    (logp,), joined = thing(built.initial_point(), [built.logp()], built.value_vars)
    assert joined.type.ndim == 1 and np.isfinite(logp.eval({joined: np.zeros(1)}))


@checks("normalize_rng_param")
def _(thing: Any) -> None:
    variable = thing(None)
    assert isinstance(variable.get_value(), np.random.Generator) and thing(variable) is variable


@checks("replace_rng_nodes")
def _(thing: Any) -> None:
    import pymc as pm

    graph = pm.Normal.dist()
    shared = graph.owner.inputs[0]
    (replaced,) = thing([graph])
    assert replaced.owner.inputs[0] is not shared


@checks("reseed_rngs")
def _(thing: Any) -> None:
    import pymc as pm

    draw, updates = pm.compile([], [pm.Normal.dist()], return_updates=True)
    values = []
    for seed in (1, 1, 2):
        thing(list(updates), seed)
        values.append(float(draw()[0]))
    assert values[0] == values[1] != values[2]


@checks("SMC_KERNEL")
def _(thing: Any) -> None:
    takes(thing, "draws", "start", "model", "random_seed", "threshold")
    steps = ("initialize_population", "setup_kernel", "update_beta_and_weights", "resample", "tune", "mutate")
    has(thing, *steps, "sample_stats", "sample_settings")


@checks("SamplerWarning", "WarningType")
def _(thing: Any) -> None:
    import pymc as pm
    from pymc.stats.convergence import SamplerWarning, WarningType

    said = SamplerWarning(WarningType.CONVERGENCE, "what is said", "warn")
    assert said.message == "what is said"
    assert pm.NUTS.stats_dtypes_shapes["warning"] == (SamplerWarning, None)  # beside which a step method must say the same


@checks("BlockedStep")
def _(thing: Any) -> None:
    import pymc as pm

    assert issubclass(pm.Metropolis, thing)
    has(thing, "competence", "sampling_state", "_state_class", "stop_tuning")


@checks("Competence")
def _(thing: Any) -> None:
    assert thing.INCOMPATIBLE < thing.COMPATIBLE


@checks("StepMethodState", "dataclass_state")
def _(thing: Any) -> None:
    from dataclasses import field

    from pymc.step_methods.compound import StepMethodState
    from pymc.step_methods.state import dataclass_state

    class State(StepMethodState):
        size: int = field(metadata={"frozen": True})

    State.__annotations__ = {"size": int}
    assert {"var_names", "rng", "size"} <= {f.name for f in fields(dataclass_state(State))}


@checks("CpuLeapfrogIntegrator", "QuadPotentialFull", "logp_dlogp")
def _(thing: Any) -> None:
    import pymc as pm
    from pymc.step_methods.hmc.integration import CpuLeapfrogIntegrator
    from pymc.step_methods.hmc.quadpotential import QuadPotentialFull

    from pm_sysid.compat import logp_dlogp

    with model():
        step = pm.NUTS(max_treedepth=2)
    has(step, "potential", "integrator", "setup_chain", "reset_tuning", "stop_tuning", "step")
    potential = QuadPotentialFull(np.eye(1))
    state = CpuLeapfrogIntegrator(potential, logp_dlogp(step)).compute_state(
        pm.blocking.RaveledVars(np.zeros(1), (("scale_log__", (), 1, np.dtype(float)),)), np.zeros(1)
    )
    assert np.isfinite(state.model_logp)


@checks("get_random_generator")
def _(thing: Any) -> None:
    assert thing(5).normal() == np.random.default_rng(5).normal()


@checks("seeds_per_chain")
def _(thing: Any) -> None:
    assert list(thing(5, 3)) == list(thing(5, 3)) and len(set(thing(5, 3))) == 3
    assert list(thing(5, 1)) == [5] and list(thing([7, 8], 2)) == [7, 8]


@checks("sample_by_steps")
def _(thing: Any) -> None:
    import pymc as pm

    takes(pm.sample, "draws", "tune", "chains", "cores", "random_seed", "initvals", "step", "progressbar")
    quiet = {"progressbar": False, "compute_convergence_checks": False}
    with model():
        drawn = thing(5, pm.Metropolis(), tune=5, chains=1, cores=1, random_seed=1, **quiet)
    assert drawn["posterior"].sizes == {"chain": 1, "draw": 5}


@checks("sample_by_stages")
def _(thing: Any) -> None:
    import pymc as pm

    takes(pm.sample_smc, "draws", "kernel", "model", "chains", "cores", "random_seed", "progressbar")
    drawn = thing(20, pm.smc.MH, model=model(), chains=2, cores=1, random_seed=1, progressbar=False)
    assert drawn["posterior"].sizes == {"chain": 2, "draw": 20}


@checks("get_value_vars_from_user_vars")
def _(thing: Any) -> None:
    built = model()
    assert thing([built["scale"]], built) == built.value_vars


# -- PyTensor: graphs -------------------------------------------------------------------------------------------------------


def square() -> tuple[Any, Any]:
    """Return x and x * x, as scalars."""
    import pytensor.scalar.basic as psb

    x = psb.float64("x")
    return x, psb.mul(x, x)


@checks("FrozenFunctionGraph")
def _(thing: Any) -> None:
    from pytensor.graph import FunctionGraph

    one, two = (FunctionGraph([x], [y], clone=True).freeze() for x, y in (square(), square()))
    assert isinstance(one, thing) and one == two and hash(one) == hash(two)
    has(one, "inputs", "outputs", "toposort")


@checks("io_toposort")
def _(thing: Any) -> None:
    x, y = square()
    assert thing([x], [y]) == [y.owner]


@checks("toposort")
def _(thing: Any) -> None:
    _, y = square()
    assert list(thing([y])) == [y.owner]


@checks("MissingInputError")
def _(thing: Any) -> None:
    import pytensor
    import pytensor.tensor as pt

    with pytest.raises(thing):
        pytensor.function([], pt.dscalar("a") + 1.0)


@checks("Mode", "RewriteDatabaseQuery", "VMLinker")
def _(thing: Any) -> None:
    import pytensor
    import pytensor.tensor as pt
    from pytensor.compile.mode import Mode
    from pytensor.graph.rewriting.db import RewriteDatabaseQuery
    from pytensor.link.vm import VMLinker

    linker = VMLinker(allow_gc=False, use_cloop=False, c_thunks=False)
    mode = Mode(linker, RewriteDatabaseQuery(include=["fast_run", "py_only"], exclude=["fusion", "inplace", "BlasOpt"]))
    x = pt.dscalar()
    assert pytensor.function([x], x + 1, mode=mode)(2.0) == 3.0


@checks("optdb", "GraphRewriter")
def _(thing: Any) -> None:
    from pytensor.compile.mode import optdb
    from pytensor.graph.rewriting.basic import GraphRewriter

    takes(optdb.register, "name", "db", "position")
    has(GraphRewriter, "apply")


@checks("register_specialize", "register_stabilize")
def _(thing: Any) -> None:
    takes(thing, "node_rewriter")


@checks("vectorize_node", "vectorize_node_fallback")
def _(thing: Any) -> None:
    import pytensor.tensor as pt

    core = pt.linalg.inv(pt.dmatrix()).owner.op.core_op
    node = core.make_node(pt.dmatrix())
    found = thing(core, node, pt.dtensor3())
    outputs = found if isinstance(found, list) else found.outputs
    assert outputs[0].type.ndim == 3
    if thing.__name__ == "_vectorize_node":
        has(thing, "register")


# -- PyTensor: operations ---------------------------------------------------------------------------------------------------


def operation(name: str) -> Any:
    """Return an operation as user code makes it."""
    import pymc as pm
    import pytensor.tensor as pt
    from pymc.distributions.dist_math import SplineWrapper
    from pytensor.raise_op import Assert
    from scipy.interpolate import InterpolatedUnivariateSpline

    x, m, s = pt.dvector(), pt.dmatrix(), pt.dscalar()
    made = {
        "Alloc": lambda: pt.alloc(s, 3),
        "AdvancedIncSubtensor": lambda: x[np.array([0, 2])].set(s),
        "AdvancedSubtensor": lambda: x[np.array([0, 2])],
        "AllocDiag": lambda: pt.diag(x),
        "AllocEmpty": lambda: pt.empty(3),
        "ArgSortOp": lambda: pt.argsort(x),
        "Assert": lambda: Assert("a message")(x, pt.all(x > 0)),
        "ARange": lambda: pt.arange(s.astype("int64")),
        "Blockwise": lambda: pt.matmul(pt.dtensor3(), pt.dtensor3()),
        "CAReduce": lambda: pt.prod(x),
        "CumOp": lambda: pt.cumsum(x),
        "DimShuffle": lambda: m.T,
        "Dot": lambda: pt.dot(m, m),
        "Elemwise": lambda: pt.exp(x),
        "ExtractDiag": lambda: pt.diagonal(m),
        "Eye": lambda: pt.eye(s.astype("int64")),
        "IncSubtensor": lambda: pt.set_subtensor(x[0], s),
        "Join": lambda: pt.concatenate([x, x]),
        "MakeVector": lambda: pt.stack([s, s]),
        "Reshape": lambda: pt.reshape(x, (2, 2)),
        "ScalarFromTensor": lambda: pt.scalar_from_tensor(s),
        "Shape": lambda: pt.shape(x),
        "Shape_i": lambda: shape_i(x),
        "SortOp": lambda: pt.sort(x),
        "SplineWrapper": lambda: SplineWrapper(InterpolatedUnivariateSpline(np.arange(5.0), np.arange(5.0)))(s),
        "SpecifyShape": lambda: pt.specify_shape(x, (3,)),
        "Split": lambda: pt.split(x, [1, 2], n_splits=2)[0],
        "Subtensor": lambda: x[0],
        "Sum": lambda: pt.sum(x),
        "TensorFromScalar": lambda: pt.tensor_from_scalar(pt.scalar_from_tensor(s)),
        "ViewOp": lambda: pm.Deterministic("view", s, model=pm.Model()),
    }
    return made[name]().owner.op


def shape_i(x: Any) -> Any:
    """Length of a vector, as rewrites write it."""
    from pytensor.tensor.shape import Shape_i

    return Shape_i(0)(x)


#: Attributes of operations that the package reads.
READ = {
    "Blockwise": ["core_op", "batch_ndim"],
    "AdvancedIncSubtensor": ["set_instead_of_inc"],
    "CAReduce": ["scalar_op", "axis"],
    "CumOp": ["mode", "axis"],
    "DimShuffle": ["new_order"],
    "Elemwise": ["scalar_op"],
    "ExtractDiag": ["offset", "axis1", "axis2"],
    "IncSubtensor": ["idx_list", "set_instead_of_inc"],
    "Join": ["axis"],
    "Split": ["axis"],
    "Shape_i": ["i"],
    "Subtensor": ["idx_list"],
    "Sum": ["axis"],
}
OPERATIONS = (
    "AdvancedIncSubtensor AdvancedSubtensor Alloc AllocDiag AllocEmpty ArgSortOp Assert ARange Blockwise CAReduce CumOp "
    "DimShuffle Dot Elemwise ExtractDiag Eye IncSubtensor Join MakeVector Reshape ScalarFromTensor Shape Shape_i SortOp "
    "SpecifyShape SplineWrapper Split Subtensor Sum TensorFromScalar ViewOp"
).split()


@checks(*OPERATIONS)
def _(thing: Any) -> None:
    op = operation(thing.__name__)
    assert isinstance(op, thing), f"{op} is a {type(op).__name__}"
    has(op, *READ.get(thing.__name__, []))


@checks("ScalarizedJoin")
def _(thing: Any) -> None:
    import pytensor
    import pytensor.tensor as pt

    x, s = pt.dvector(), pt.dscalar()
    both = pt.concatenate([pt.exp(s)[None], x])
    graph = pytensor.function([x, s], [both, pt.exp(s) * 2], mode="NUMBA").maker.fgraph
    (made,) = [node for node in graph.toposort() if isinstance(node.op, thing)]
    assert [getattr(v.type, "ndim", None) for v in made.inputs] == [0, 1], "inputs are not one after the other"
    assert made.inputs[0].type == pytensor.scalar.float64


@checks("BatchedDot")
def _(thing: Any) -> None:
    """Where a rewrite puts it."""
    import pytensor
    import pytensor.tensor as pt

    a, b = pt.dtensor3(), pt.dtensor3()
    graph = pytensor.function([a, b], pt.matmul(a, b), mode="FAST_RUN").maker.fgraph
    assert any(isinstance(node.op, thing) for node in graph.apply_nodes)


@checks("OpFromGraph")
def _(thing: Any) -> None:
    import pytensor.tensor as pt

    assert isinstance(pt.logsumexp(pt.dvector()).owner.op, thing)


@checks("inline_ofg_node")
def _(thing: Any) -> None:
    import pytensor.tensor as pt

    x = pt.dvector()
    (inside,) = thing(pt.logsumexp(x).owner)
    assert abs(inside.eval({x: np.zeros(2)}) - np.log(2.0)) < 1e-12


@checks("BlockDiagonal", "Cholesky", "MatrixInverse", "Solve", "SolveTriangular")
def _(thing: Any) -> None:
    import pytensor.tensor as pt

    m, x = pt.dmatrix(), pt.dvector()
    made = {
        "BlockDiagonal": pt.linalg.block_diag(m, m),
        "Cholesky": pt.linalg.cholesky(m),
        "MatrixInverse": pt.linalg.inv(m),
        "Solve": pt.linalg.solve(m, x),
        "SolveTriangular": pt.linalg.solve_triangular(m, x),
    }
    op = made[thing.__name__].owner.op.core_op
    assert isinstance(op, thing), f"{op} is a {type(op).__name__}"
    if thing.__name__ == "Solve":
        has(op, "assume_a", "lower")


@checks("indices_from_subtensor")
def _(thing: Any) -> None:
    import pytensor.tensor as pt

    index = pt.dmatrix()[1:, 2].owner
    assert tuple(thing([1, 2], index.op.idx_list)) == (slice(1, None), 2)


@checks("change_dist_size")
def _(thing: Any) -> None:
    import pymc as pm

    assert thing(pm.Normal.dist(shape=2), (3,), expand=True).eval().shape == (3, 2)


@checks("NoneTypeT")
def _(thing: Any) -> None:
    import pytensor.tensor as pt

    assert isinstance(pt.NoneConst.type, thing)


@checks("CustomDistRV")
def _(thing: Any) -> None:
    import pymc as pm

    own = pm.CustomDist.dist(0.0, random=lambda m, rng=None, size=None: m + rng.normal(size=size), shape=2)
    assert isinstance(own.owner.op, thing)


@checks("RandomVariable")
def _(thing: Any) -> None:
    import pymc as pm
    import pytensor.tensor as pt

    with pm.Model():
        node = pm.Normal("x", 1.0, pm.HalfNormal("s"), shape=3).owner
    assert isinstance(node.op, thing) and node.op.size_param(node).type.shape == (1,)
    mean, std = node.op.dist_params(node)
    many = node.op.make_node(node.inputs[0], pt.as_tensor([5, 3]), mean, std).default_output()
    assert many.type.ndim == 2 and pm.draw(many).shape == (5, 3)


# -- PyTensor: backends -----------------------------------------------------------------------------------------------------


@checks("compile_numba_function_src")
def _(thing: Any) -> None:
    namespace = {"two": 2.0}
    assert thing("def kernel(x):\n    return two * x", "kernel", namespace, namespace)(3.0) == 6.0


@checks("numba_funcify")
def _(thing: Any) -> None:
    has(thing, "register")
    takes(thing, "op", "node")


@checks("generate_fallback_impl")
def _(thing: Any) -> None:
    takes(thing, "op", "node")


@checks("numba_njit")
def _(thing: Any) -> None:
    import numba

    def double(x: float) -> float:
        return 2 * x

    compiled = thing(double, fastmath=False, error_model="numpy", forceinline=True)
    # Such a function has no wrapper for calls from Python.
    assert numba.njit(lambda x: compiled(x))(1.5) == 3.0


@checks("register_funcify_and_cache_key")
def _(thing: Any) -> None:
    takes(thing, "op_type")


@checks("silent_draws")
def _(thing: Any) -> None:
    """Without it PyMC says that it draws; the level that a user has set is there again, also after an error."""
    import logging

    import pymc as pm

    said: list[str] = []
    logger, handler = logging.getLogger("pymc.sampling.forward"), logging.Handler()
    handler.emit = lambda line: said.append(line.getMessage())  # type: ignore[method-assign]
    before = logger.level
    logger.addHandler(handler)
    try:
        logger.setLevel(logging.INFO)
        with model():
            pm.sample_prior_predictive(2, var_names=["scale"])
            assert said and all(line.startswith("Sampling: ") for line in said)
            said.clear()
            with thing():
                pm.sample_prior_predictive(2, var_names=["scale"])
            assert not said and logger.level == logging.INFO
        with pytest.raises(ZeroDivisionError), thing():
            1 / 0  # noqa: B018
        assert logger.level == logging.INFO
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


@checks("jax_dispatch")
def _(thing: Any) -> None:
    if find_spec("jax") is None or find_spec("jaxlib") is None:
        pytest.skip("JAX is not installed")
    has(thing(), "register")


# -- the tests ----------------------------------------------------------------------------------------------------------


def test_every_name_has_a_check_and_a_user() -> None:
    offered = {*NAMES, *FUNCTIONS}
    assert set(CHECKS) == offered
    assert set(USERS) == offered


@pytest.mark.parametrize("name", NAMES)
def test_the_library_offers_what_is_used(name: str) -> None:
    found = problem(name, *NAMES[name], CHECKS[name])
    assert found is None, found


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_reaches_into_objects_works(name: str) -> None:
    found = problem(name, FUNCTIONS[name], name, CHECKS[name])
    assert found is None, found


def test_a_broken_name_is_reported_with_its_library_its_version_and_what_needs_it() -> None:
    gone = problem("logprob", "pymc.logprob.abstract", "_gone", CHECKS["logprob"])
    changed = problem("logprob", "pymc.logprob.abstract", "_logcdf", lambda thing: takes(thing.register, "gone"))
    for said in (gone, changed):
        assert said and f"pymc {version('pymc')}" in said and "likelihood/filter_rv.py" in said, said
    assert "is not there" in str(gone) and "is not what it was" in str(changed)


def test_samplers_of_pymc_are_called_in_one_place() -> None:
    calls = [
        path.relative_to(ROOT).as_posix()
        for path in sorted(ROOT.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"pm.sample", "pm.sample_smc"}
    ]
    assert calls == ["compat/samplers.py"] * 2


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda p: p.relative_to(ROOT).as_posix())
def test_only_compat_imports_names_that_libraries_may_change(path: Path) -> None:
    if path in COMPAT:
        return
    tree, bad = ast.parse(path.read_text()), []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in LIBRARIES:
            names = [alias.name for alias in node.names if alias.name.startswith("_")]
            bad += [f"{node.module}.{name}" for name in names] + ([node.module] if node.module not in PUBLIC else [])
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
            bad += [n for n in names if n.split(".")[0] in LIBRARIES and n not in PUBLIC]
        elif isinstance(node, ast.Attribute) and ast.unparse(node).split(".")[0] in {"pm", "pt", "pytensor", "numba", "psb"}:
            bad += [ast.unparse(node)] if node.attr.startswith("_") and not node.attr.startswith("__") else []
    assert not bad, f"{bad}: import this through pm_sysid.compat"
