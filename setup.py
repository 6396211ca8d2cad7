"""Builds the native kernel. Everything declarative is in pyproject.toml.

The extension is optional: on a machine without a C compiler the install goes on and the reference kernel serves.
PENSTOCK_BUILD=require turns a failed build into an error, for our own tests and for packagers.
"""

import os
import sys

from setuptools import Extension, setup

HERE = "src/penstock/kernel"
DEPENDS = [
    *(f"{name}.pxi" for name in ("buffered", "buffers", "frames", "page", "reader", "records", "taker", "writer")),
    *(
        f"{name}.h"
        for name in ("ahead", "buffered", "commit", "crc", "crc_tables", "frames", "pile", "shared", "wait", "writer")
    ),
]

extension = Extension(
    "penstock.kernel._native",
    [f"{HERE}/_native.pyx"],
    depends=[f"{HERE}/{name}" for name in DEPENDS],
    include_dirs=[HERE],
    extra_compile_args=[
        "-O3",
        "-std=gnu11",
        "-fno-strict-aliasing",
        *os.environ.get("PENSTOCK_CFLAGS", "").split(),
    ],
    extra_link_args=[
        *(["-pthread"] if sys.platform != "win32" else []),
        *os.environ.get("PENSTOCK_LDFLAGS", "").split(),
    ],
    optional=os.environ.get("PENSTOCK_BUILD") != "require",
)

setup(ext_modules=[extension])
