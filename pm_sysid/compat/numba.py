"""Names of numba and of PyTensor's numba backend; importing this module imports numba."""

from __future__ import annotations

from numba.core import cgutils  # pieces of LLVM code: functions of other modules, tuples
from pytensor.link.numba.cache import compile_numba_function_src  # a Python function from source text, for numba
from pytensor.link.numba.dispatch import numba_funcify  # dispatch: an operation as a numba function
from pytensor.link.numba.dispatch.basic import (
    generate_fallback_impl,  # an operation's Python code, called from numba
    numba_njit,  # numba.njit with PyTensor's options
    register_funcify_and_cache_key,  # dispatch: an operation as a numba function with a key of the disk cache
)

__all__ = [
    "cgutils",
    "compile_numba_function_src",
    "generate_fallback_impl",
    "numba_funcify",
    "numba_njit",
    "register_funcify_and_cache_key",
]
