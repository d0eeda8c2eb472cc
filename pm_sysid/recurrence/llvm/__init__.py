"""Recurrences as machine code: LLVM alone compiles them, and numba functions call them."""
