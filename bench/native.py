"""Compiles `limits.pyx` when it is needed and loads the result.

Built at run time, and not with the package, because users of Penstock have no use for it. The build goes to
`bench/.build/<digest>`, so it happens once per source, Python and Cython.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).parent
SOURCE = HERE / "limits.pyx"
BUILD = HERE / ".build"
MODULE = "limits"


class CannotBuild(Exception):
    """There is no compiler or no Cython, or they failed; the message says which."""


def _target() -> Path:
    digest = hashlib.sha256(SOURCE.read_bytes() + sys.version.encode()).hexdigest()[:16]
    return BUILD / digest / f"{MODULE}{sysconfig.get_config_var('EXT_SUFFIX')}"


def build() -> Path:
    """Compile unless it is done already, and return the path of the module."""
    target = _target()
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    # In a process of its own: setuptools patches what it finds, and that should be far from measurements.
    command = [sys.executable, "-m", "bench.native", str(target.parent)]
    done = subprocess.run(command, cwd=HERE.parent, capture_output=True, text=True, check=False)
    if done.returncode or not target.exists():
        lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise CannotBuild(f"bench/limits.pyx does not compile: {lines[-1] if lines else 'no output'}")
    return target


def load() -> ModuleType:
    """The compiled module. Only loads: whoever runs the benchmark has called `build` first."""
    target = _target()
    if not target.exists():
        raise CannotBuild("bench/limits.pyx is not compiled (no C compiler or no Cython)")
    loader = importlib.machinery.ExtensionFileLoader(MODULE, str(target))
    spec = importlib.util.spec_from_file_location(MODULE, target, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def _compile(directory: Path) -> None:
    """Translate and compile into `directory`; runs in the process that `build` starts."""
    from Cython.Build import cythonize
    from setuptools import Distribution, Extension

    source = directory / SOURCE.name
    shutil.copy(SOURCE, source)
    extension = Extension(MODULE, [str(source)], extra_compile_args=["-O2"])
    modules = cythonize([extension], quiet=True)  # type: ignore[no-untyped-call]
    distribution = Distribution({"ext_modules": modules})
    command = distribution.get_command_obj("build_ext")
    command.build_lib = str(directory)
    command.build_temp = str(directory)
    command.ensure_finalized()
    command.run()


if __name__ == "__main__":
    _compile(Path(sys.argv[1]))
