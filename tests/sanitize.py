"""The native kernel under the compiler's sanitizers: `make sanitize`.

    python -m tests.sanitize --only address

Builds it into build/sanitize-*, beside a copy of the sources, so that the ordinary build stays what it is, and runs the tests of the
kernel, and hostile files, on that. A sanitizer that is not there, or that finds something, is a failure.

- address: AddressSanitizer and UndefinedBehaviorSanitizer. Leaks are not looked for: CPython keeps what it has to its end.
- thread: ThreadSanitizer, over the tests with several threads, those of all four uses at once among them. CPython itself is not built with it, so it sees nothing of what
  atomics order there; what that makes it tell wrongly is named in tests/tsan.txt, with the reasons.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.building import COMPILER, NotBuilt, build
from tests.support import ROOT

SEED = int(os.environ.get("PENSTOCK_SEED", time.time()))
_COMMON = "-O1 -g -fno-omit-frame-pointer"


class Missing(Exception):
    """A sanitizer that this machine does not have."""


@dataclass(frozen=True)
class Sanitizer:
    flags: str
    libraries: tuple[str, ...]  # to be there before anything else is loaded
    options: dict[str, str]  # how it is told what to do; where it writes what it finds is added
    runs: tuple[tuple[str, ...], ...]  # what is run with Python


# ThreadSanitizer follows no child of a process with several threads; and what must be done within a second takes longer with it.
_IN_ONE_PROCESS = "not reference and not fork and not process and not once_a_second"
_PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist")
SANITIZERS = {
    "address": Sanitizer(
        "-fsanitize=address,undefined -fno-sanitize-recover=undefined",
        ("libasan.so", "libubsan.so"),
        {
            "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
            "UBSAN_OPTIONS": "print_stacktrace=1",
            "PYTHONMALLOC": "malloc",  # else it would see one large block
        },
        (
            (*_PYTEST, "tests/kernel", "tests/fuzz/test_decoders.py", "-k", "not reference"),
            ("-m", "tests.fuzz.campaign", "--kills", "350", "--seed", str(SEED), "--unlimited"),
        ),
    ),
    "thread": Sanitizer(
        "-fsanitize=thread",
        ("libtsan.so",),
        {"TSAN_OPTIONS": f"suppressions={ROOT / 'tests' / 'tsan.txt'}"},
        (
            (
                *(*_PYTEST, "-k", _IN_ONE_PROCESS),
                *(
                    "tests/kernel/test_lend_hand.py",
                    "tests/kernel/test_buffered.py",
                    "tests/kernel/test_buffered_index.py",
                ),
                *(
                    "tests/kernel/test_buffered_failing.py",
                    "tests/kernel/test_writer.py",
                    "tests/kernel/test_wait_any.py",
                    "tests/kernel/test_taker.py",
                ),
            ),
            (*_PYTEST, "tests/test_threads.py"),
            (*_PYTEST, "-k", "thread", "tests/queue", "tests/channel", "tests/journal", "tests/topic"),
        ),
    ),
}


def library(name: str) -> str:
    """Where the compiler has a library."""
    if shutil.which(COMPILER) is None:
        raise Missing(f"no C compiler ({COMPILER})")
    found = subprocess.run(
        [COMPILER, f"-print-file-name={name}"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if not Path(found).is_absolute():
        raise Missing(f"{COMPILER} has no {name}; install its sanitizers")
    return str(Path(found).resolve())


def built(name: str) -> Path:
    """A copy of the sources with a kernel of its own; the path to import it from."""
    flags, top = SANITIZERS[name].flags, ROOT / "build" / f"sanitize-{name}"
    top.mkdir(parents=True, exist_ok=True)
    try:
        return build(top, f"{_COMMON} {flags}", flags)
    except NotBuilt as error:
        raise Missing(f"the kernel cannot be built with {flags}:\n{str(error)[-3000:]}") from error


def environment(name: str, place: Path) -> dict[str, str]:
    one = SANITIZERS[name]
    # Into files: what a test that passes has written to stderr is not shown.
    told = {
        key: f"{value}:log_path={reports(name) / 'report'}"
        for key, value in one.options.items()
        if key.endswith("_OPTIONS")
    }
    return {
        **os.environ,
        **one.options,
        **told,
        "LD_PRELOAD": " ".join(map(library, one.libraries)),
        "PYTHONPATH": str(place),
        "PENSTOCK_KERNEL": "native",
    }


def reports(name: str) -> Path:
    """Where a sanitizer writes what it finds."""
    return ROOT / "build" / f"sanitize-{name}" / "reports"


def sanitize(name: str) -> bool:
    place, fine = built(name), True
    shutil.rmtree(reports(name), ignore_errors=True)
    reports(name).mkdir()
    env = environment(name, place)
    where = [sys.executable, "-c", "from penstock.kernel import _native; print(_native.__file__)"]
    used = subprocess.run(where, cwd=ROOT, env=env, capture_output=True, text=True)
    if not used.stdout.startswith(str(place)):
        raise Missing(f"the kernel that was built is not the one that runs: {used.stdout}{used.stderr[-2000:]}")
    for run in SANITIZERS[name].runs:
        began = time.monotonic()
        code = subprocess.run([sys.executable, *run], cwd=ROOT, env=env).returncode
        fine = fine and code == 0
        print(
            f"{name}: {'fine' if code == 0 else f'ended with {code}'}, {time.monotonic() - began:.0f} s: {' '.join(run)}"
        )
    found = sorted(reports(name).iterdir())
    for report in found:
        print(report.read_text(errors="replace"))
    return fine and not found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sanitize", description=__doc__.split("\n")[0])
    parser.add_argument("--only", choices=SANITIZERS)
    try:
        only = parser.parse_args(arguments).only
        fine = [sanitize(name) for name in SANITIZERS if only in (None, name)]
    except Missing as missing:
        print(f"sanitize: {missing}", file=sys.stderr)
        return 1
    return 0 if all(fine) else 1


if __name__ == "__main__":
    sys.exit(main())
