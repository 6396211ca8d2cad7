"""Which kernel serves: the native one where it was built, the reference one with a warning, or the one asked for."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import penstock

PACKAGE = Path(penstock.__file__).parent
BUILT = bool(list((PACKAGE / "kernel").glob("_native.*.so")))

SAY = """
import tempfile, warnings
import penstock, penstock.kernel
import penstock as again
with tempfile.TemporaryDirectory() as top, penstock.Queue(top, file_size=8192) as q:
    q.append_batch([b"a", b"b"])
    print(penstock.__file__, penstock.kernel.NAME, len(list(q.tailer())))
"""


def run(kernel: str | None, source: Path | None = None, *flags: str) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if k not in ("PENSTOCK_KERNEL", "PYTHONPATH", "PYTHONWARNINGS")}
    if kernel is not None:
        env["PENSTOCK_KERNEL"] = kernel
    if source is not None:
        env["PYTHONPATH"] = str(source)
    return subprocess.run(
        [sys.executable, *flags, "-c", SAY], env=env, capture_output=True, text=True, check=False, timeout=60
    )


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source tree of the package without the native kernel, as an install without a compiler leaves it."""
    top = tmp_path_factory.mktemp("without")
    shutil.copytree(PACKAGE, top / "penstock", ignore=shutil.ignore_patterns("*.so", "*.pyd", "*.c", "__pycache__"))
    return top


def said(done: subprocess.CompletedProcess[str]) -> tuple[str, str, str]:
    assert done.returncode == 0, done.stderr
    file, name, count = done.stdout.split()
    return file, name, count


def test_the_reference_kernel_can_be_chosen_without_a_warning() -> None:
    done = run("reference", None, "-W", "error")
    assert said(done)[1:] == ("reference", "2")
    assert done.stderr == ""


@pytest.mark.skipif(not BUILT, reason="no compiler")
@pytest.mark.parametrize("kernel", [None, "", "native"])
def test_the_native_kernel_serves_where_it_was_built(kernel: str | None) -> None:
    done = run(kernel, None, "-W", "error")
    assert said(done)[1:] == ("native", "2")
    assert done.stderr == ""


@pytest.mark.parametrize("kernel", ["garbage", "Native", "1"])
def test_an_unknown_kernel_is_refused(kernel: str) -> None:
    done = run(kernel)
    assert done.returncode != 0
    assert f"ImportError: PENSTOCK_KERNEL is '{kernel}'; it may be 'native' or 'reference', or unset" in done.stderr


def test_without_the_native_kernel_the_package_warns_once_and_works(without: Path) -> None:
    done = run(None, without, "-W", "always")
    file, name, count = said(done)
    assert Path(file).parent == without / "penstock"
    assert (name, count) == ("reference", "2")
    assert done.stderr.count("RuntimeWarning") == 1
    assert "reference kernel" in done.stderr
    assert "install a C compiler" in done.stderr


def test_without_the_native_kernel_the_warning_can_be_an_error(without: Path) -> None:
    done = run(None, without, "-W", "error::RuntimeWarning")
    assert done.returncode != 0
    assert "RuntimeWarning: penstock runs on its reference kernel" in done.stderr


def test_without_the_native_kernel_choosing_the_reference_one_is_silent(without: Path) -> None:
    done = run("reference", without, "-W", "error")
    assert said(done)[1:] == ("reference", "2")
    assert done.stderr == ""


def test_without_the_native_kernel_asking_for_it_is_an_error_that_says_what_to_do(without: Path) -> None:
    done = run("native", without)
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: PENSTOCK_KERNEL=native, but the native kernel cannot be loaded")
    assert "install a C compiler and reinstall penstock, or unset PENSTOCK_KERNEL" in last


def test_the_public_names_are_all_there() -> None:
    assert set(penstock.__all__) <= set(dir(penstock))
    for name in penstock.__all__:
        assert getattr(penstock, name).__doc__, name
    assert (PACKAGE / "py.typed").exists()
