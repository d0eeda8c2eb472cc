"""Names of PyMC, PyTensor, ArviZ and numba that their authors may move or change without notice.

All other modules import these names from here, so that a new version of a library is dealt with in one place;
``tests/unit/test_compat.py`` checks each of them and says which library broke which name. What the libraries document for
their users (``pymc``, ``pytensor.tensor``, ``pytensor.graph``, ...) is imported from them directly.

Here are the names that PyMC imports anyway. ArviZ and numba, which it does not, have modules of their own, so that they are
imported by those who need them; :func:`jax_dispatch` imports JAX.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pymc.distributions.censored import CensoredRV  # class of the random variable of pm.Censored
from pymc.distributions.custom import CustomDistRV  # operation: distribution by a function of the user
from pymc.distributions.dist_math import SplineWrapper  # operation: the density of pm.Interpolated
from pymc.distributions.shape_utils import change_dist_size  # a random variable with more dimensions
from pymc.distributions.simulator import SimulatorRV  # class of the random variable of pm.Simulator
from pymc.distributions.transforms import _default_transform as default_transform  # that of a distribution, by its class
from pymc.logprob.abstract import _logprob as logprob  # dispatch: the log density of a random variable, by its class
from pymc.logprob.utils import (
    CheckParameterValue,  # the check of parameters that a log density contains
    ParameterValueError,  # what this check raises
)
from pymc.pytensorf import (
    join_nonshared_inputs,  # all values of a model as one vector
    normalize_rng_param,  # a new generator where a random variable was given none
    replace_rng_nodes,  # generators of their own for a copy of a graph
    reseed_rngs,  # new seeds for the generators of a compiled function
)
from pymc.smc.kernels import SMC_KERNEL  # base class of the kernels of pm.sample_smc
from pymc.stats.convergence import (
    SamplerWarning,  # what a step method says among its statistics, for PyMC to log
    WarningType,  # what such a warning is about
)
from pymc.step_methods.compound import (
    BlockedStep,  # base class of the step methods of pm.sample
    Competence,  # how well a step method suits a variable
    StepMethodState,  # base class of the state that a step method saves
)
from pymc.step_methods.hmc.integration import CpuLeapfrogIntegrator  # leapfrog steps of NUTS for a mass matrix
from pymc.step_methods.hmc.quadpotential import QuadPotentialFull  # dense mass matrix of NUTS
from pymc.step_methods.state import dataclass_state  # declares the state of a step method
from pymc.util import _get_seeds_per_chain as seeds_per_chain  # a seed for each chain, as the samplers choose them
from pymc.util import (
    get_random_generator,  # a generator from a seed, as step methods get it
    get_value_vars_from_user_vars,  # values of the variables that a user named
)
from pytensor.compile.builders import OpFromGraph  # an operation that is a graph of others
from pytensor.compile.mode import (
    Mode,  # how a function is compiled: rewrites and linker
    optdb,  # the rewrites of all graphs, by name
)
from pytensor.compile.ops import ViewOp  # operation: what it is given, as of pm.Deterministic
from pytensor.compile.rewriting import inline_ofg_node  # that graph of others, in place of the operation
from pytensor.graph.fg import FrozenFunctionGraph  # a graph that cannot change, and can be hashed
from pytensor.graph.replace import _vectorize_node as vectorize_node  # dispatch: how an operation gets batch dimensions
from pytensor.graph.rewriting.basic import GraphRewriter  # base class of the rewrites of a whole graph
from pytensor.graph.rewriting.db import RewriteDatabaseQuery  # a choice of rewrites by their tags
from pytensor.graph.traversal import (
    io_toposort,  # operations between inputs and outputs, each after those it needs
    toposort,  # operations above outputs, each after those it needs
)
from pytensor.graph.utils import MissingInputError  # raised where a graph needs a value that nobody gives
from pytensor.link.vm import VMLinker  # runs a graph operation by operation
from pytensor.raise_op import Assert  # operation: what it is given, if a condition holds
from pytensor.tensor.basic import (  # operations
    Alloc,
    AllocDiag,
    AllocEmpty,
    ARange,
    ExtractDiag,
    Eye,
    Join,
    MakeVector,
    ScalarFromTensor,
    Split,
    TensorFromScalar,
)
from pytensor.tensor.blas import BatchedDot  # operation: products of matrices
from pytensor.tensor.blockwise import (
    Blockwise,  # an operation on the last dimensions, repeated over the first ones
    vectorize_node_fallback,  # batch dimensions by Blockwise
)
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise  # operations
from pytensor.tensor.extra_ops import CumOp  # operation: cumulative sums and products
from pytensor.tensor.linalg.constructors import BlockDiagonal  # operation: matrices along the diagonal of another
from pytensor.tensor.linalg.decomposition.cholesky import Cholesky  # operation
from pytensor.tensor.linalg.inverse import MatrixInverse  # operation
from pytensor.tensor.linalg.solvers.general import Solve  # operation: solution of a linear system
from pytensor.tensor.linalg.solvers.triangular import SolveTriangular  # operation: solution of a triangular system
from pytensor.tensor.math import Dot, Sum  # operations
from pytensor.tensor.random.op import RandomVariable  # base class of the distributions' operations
from pytensor.tensor.rewriting.basic import (
    register_specialize,  # adds a rewrite to the stage "specialize"
    register_stabilize,  # adds a rewrite to the stage "stabilize"
)
from pytensor.tensor.rewriting.scalarize import ScalarizedJoin  # operation: a vector of numbers that are no arrays, for numba
from pytensor.tensor.shape import Reshape, Shape, Shape_i, SpecifyShape  # operations
from pytensor.tensor.sort import ArgSortOp, SortOp  # operations
from pytensor.tensor.subtensor import (
    AdvancedIncSubtensor,  # operation: x[indices] += y
    AdvancedSubtensor,  # operation: x[indices]
    IncSubtensor,  # operation: x[index] += y
    Subtensor,  # operation: x[index]
    indices_from_subtensor,  # the indices of these operations
)
from pytensor.tensor.type_other import NoneTypeT  # type of the constant None in a graph

__all__ = [
    "SMC_KERNEL",
    "ARange",
    "AdvancedIncSubtensor",
    "AdvancedSubtensor",
    "Alloc",
    "AllocDiag",
    "AllocEmpty",
    "ArgSortOp",
    "Assert",
    "BatchedDot",
    "BlockDiagonal",
    "BlockedStep",
    "Blockwise",
    "CAReduce",
    "CensoredRV",
    "CheckParameterValue",
    "Cholesky",
    "Competence",
    "CpuLeapfrogIntegrator",
    "CumOp",
    "CustomDistRV",
    "DimShuffle",
    "Dot",
    "Elemwise",
    "ExtractDiag",
    "Eye",
    "FrozenFunctionGraph",
    "GraphRewriter",
    "IncSubtensor",
    "Join",
    "MakeVector",
    "MatrixInverse",
    "MissingInputError",
    "Mode",
    "NoneTypeT",
    "OpFromGraph",
    "ParameterValueError",
    "QuadPotentialFull",
    "RandomVariable",
    "Reshape",
    "RewriteDatabaseQuery",
    "SamplerWarning",
    "ScalarFromTensor",
    "ScalarizedJoin",
    "Shape",
    "Shape_i",
    "SimulatorRV",
    "Solve",
    "SolveTriangular",
    "SortOp",
    "SpecifyShape",
    "SplineWrapper",
    "Split",
    "StepMethodState",
    "Subtensor",
    "Sum",
    "TensorFromScalar",
    "VMLinker",
    "ViewOp",
    "WarningType",
    "change_dist_size",
    "dataclass_state",
    "default_transform",
    "get_random_generator",
    "get_value_vars_from_user_vars",
    "indices_from_subtensor",
    "inline_ofg_node",
    "io_toposort",
    "jax_dispatch",
    "join_nonshared_inputs",
    "logp_dlogp",
    "logprob",
    "normalize_rng_param",
    "optdb",
    "register_specialize",
    "register_stabilize",
    "replace_rng_nodes",
    "reseed_rngs",
    "seeds_per_chain",
    "silent_draws",
    "toposort",
    "vectorize_node",
    "vectorize_node_fallback",
]


def jax_dispatch() -> Any:
    """Dispatch of PyTensor: an operation as a JAX function. Imports JAX."""
    from pytensor.link.jax.dispatch import jax_funcify

    return jax_funcify


def logp_dlogp(step: Any) -> Any:
    """Log density with its gradient that a gradient-based step method of PyMC compiled."""
    return step._logp_dlogp_func


@contextmanager
def silent_draws() -> Iterator[None]:
    """PyMC's draws from a prior without the line "Sampling: [...]", which it logs whatever ``progressbar`` says."""
    logger = logging.getLogger("pymc.sampling.forward")
    before = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(before)
