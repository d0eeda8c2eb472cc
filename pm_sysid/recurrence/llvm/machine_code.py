"""From LLVM instructions to an address that can be called, with the machine code kept on disk."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from threading import RLock
from typing import Any

import llvmlite
import llvmlite.binding as llvm
from llvmlite import ir
from pytensor import config

#: The folder of machine code is cut back to three quarters of this when it holds more.
FOLDER_BYTES = 256 * 2**20
#: A process looks at the whole folder at the first file that it writes, and again after having written this part of it.
LOOK = 1 / 64
#: Effort of LLVM's passes: what is emitted is already what they would make of it, and more costs time only.
SPEED = 1

_ADDRESSES: dict[str, int] = {}
_LOCK = RLock()
_ENGINE: list[Any] = []
#: Bytes written to a folder since this process has looked at all of it.
_UNSEEN: dict[Path, int] = {}


def machine() -> str:
    """Whom machine code is for: the processor, its features, and the compiler."""
    features = llvm.get_host_cpu_features().flatten()
    version = ".".join(map(str, llvm.llvm_version_info))
    compiler = f"LLVM {version}, llvmlite {llvmlite.__version__}, effort {SPEED}"
    return f"{llvm.get_process_triple()} {llvm.get_host_cpu_name()} {features} {compiler}"


def folder() -> Path:
    """Where machine code is kept: beside what PyTensor has compiled."""
    return Path(str(config.base_compiledir)) / "pm_sysid"


def load(key: str, build: Callable[[str], ir.Module]) -> str:
    """Make a kernel callable by its symbol.

    Parameters
    ----------
    key : str
        Names what is built: equal keys mean equal kernels.
    build : callable
        Returns the module with the kernel as a function of the name given.

    Returns
    -------
    str
        Symbol that LLVM, and with it numba, resolves to the kernel.

    Notes
    -----
    The machine code of a kernel is taken from this process, else from the folder, else built. A file that is damaged, or
    was made for another machine, is built again; where none can be written, a warning says so once.
    """
    symbol = f"pm_sysid_{key}"
    with _LOCK:
        if key not in _ADDRESSES:
            path = folder() / f"{sha256(f'{key} {machine()}'.encode()).hexdigest()[:40]}.o"
            code = read(path)
            if code is None:
                code = machine_code(build(symbol))
                write(path, code)
            engine = _engine()
            engine.add_object_file(llvm.ObjectFileRef.from_data(code))
            engine.finalize_object()
            _ADDRESSES[key] = engine.get_function_address(symbol)
            llvm.add_symbol(symbol, _ADDRESSES[key])
    return symbol


def address(symbol: str) -> int:
    """Where a kernel that was loaded is."""
    return _ADDRESSES[symbol.removeprefix("pm_sysid_")]


def optimised(module: ir.Module) -> Any:
    """Module after LLVM's passes."""
    target = target_machine()
    module.triple, module.data_layout = llvm.get_process_triple(), str(target.target_data)
    parsed = llvm.parse_assembly(str(module))
    options = llvm.create_pipeline_tuning_options(speed_level=SPEED)
    options.loop_vectorization = True  # the algebra of large filters is loops; small ones have no loop that could be
    options.slp_vectorization = options.loop_unrolling = False
    passes = llvm.create_pass_builder(target, options)
    passes.getModulePassManager().run(parsed, passes)
    return parsed


def machine_code(module: ir.Module) -> bytes:
    """Object file of a module."""
    code: bytes = target_machine().emit_object(optimised(module))
    return code


def target_machine() -> Any:
    """Return this machine as LLVM compiles for it."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=SPEED,
        reloc="default",
        codemodel="jitdefault",
        jit=True,
    )


def _engine() -> Any:
    """Return the engine that holds this process's kernels; they stay until it ends."""
    if not _ENGINE:
        _ENGINE.append(llvm.create_mcjit_compiler(llvm.parse_assembly(""), target_machine()))
    return _ENGINE[0]


# -- files ------------------------------------------------------------------------------------------------------------------


def read(path: Path) -> bytes | None:
    """Machine code of a file; None if there is none, or not what was written."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    digest, code = content[:32], content[32:]
    if sha256(code).digest() != digest:
        return None
    with suppress(OSError):
        os.utime(path)  # used now: the oldest go first
    return code


def write(path: Path, code: bytes) -> None:
    """Keep machine code; other processes see the whole file or none."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, suffix=".new")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(sha256(code).digest() + code)
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        unseen = _UNSEEN.get(path.parent, FOLDER_BYTES) + len(code)
        if unseen > LOOK * FOLDER_BYTES:  # to look at thousands of files each time took longer than to compile
            _cut_back(path.parent)
            unseen = 0
        _UNSEEN[path.parent] = unseen
    except OSError as error:
        warnings.warn(
            f"compiled code cannot be kept in {path.parent} ({error}), and each new process compiles again. Make room, or give "
            "PyTensor another folder: PYTENSOR_FLAGS=base_compiledir=...",
            RuntimeWarning,
            stacklevel=2,
        )


def _cut_back(place: Path) -> None:
    """Remove the files that nobody has used for longest."""
    files = []
    for file in place.iterdir():
        try:
            found = file.stat()
        except FileNotFoundError:  # another process was faster
            continue
        files.append((found.st_mtime, found.st_size, file))
    total = sum(size for _, size, _ in files)
    if total <= FOLDER_BYTES:
        return
    for _, size, file in sorted(files):
        if total <= 0.75 * FOLDER_BYTES:
            break
        file.unlink(missing_ok=True)
        total -= size
