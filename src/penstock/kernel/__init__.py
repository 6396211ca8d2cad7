"""The hot loops, in one of two kernels with the same names: native (Cython) or reference (plain Python).

PENSTOCK_KERNEL=native|reference forces one; native never falls back silently. Without it the native kernel serves when
it was built, and otherwise the reference one, with a warning, since it is tens of times slower.
"""

import os
import warnings
from importlib import import_module
from typing import TYPE_CHECKING

from penstock.kernel.spec import FrameSpec, Scan

_wanted = os.environ.get("PENSTOCK_KERNEL", "")
if _wanted not in ("", "native", "reference"):
    raise ImportError(f"PENSTOCK_KERNEL is {_wanted!r}; it may be 'native' or 'reference', or unset")

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from penstock.kernel import _native as _chosen
elif _wanted == "reference":
    from penstock.kernel import reference as _chosen
else:
    try:  # `from … import` would blame a circular import when it is missing
        _chosen = import_module("penstock.kernel._native")
    except ImportError as error:
        if _wanted == "native":
            raise ImportError(
                f"PENSTOCK_KERNEL=native, but the native kernel cannot be loaded ({error}); "
                "install a C compiler and reinstall penstock, or unset PENSTOCK_KERNEL"
            ) from error
        from penstock.kernel import reference as _chosen

        warnings.warn(
            f"penstock runs on its reference kernel, tens of times slower: {error}; install a C compiler and "
            "reinstall penstock, or set PENSTOCK_KERNEL=reference to choose it without this warning",
            RuntimeWarning,
            stacklevel=2,
        )

if not TYPE_CHECKING:
    Buffer = object  # any object with the buffer protocol; the name is for annotations

NAME = _chosen.NAME
ROBUST = _chosen.ROBUST
Batch = _chosen.Batch
Buffered = _chosen.Buffered
ControlPage = _chosen.ControlPage
Message = _chosen.Message
Reader = _chosen.Reader
Record = _chosen.Record
Taker = _chosen.Taker
Writer = _chosen.Writer
crc32 = _chosen.crc32
crc64 = _chosen.crc64
crc_path = _chosen.crc_path
encode = _chosen.encode
encode_arrow = _chosen.encode_arrow
encode_many = _chosen.encode_many
entries = _chosen.entries
fnv1a = _chosen.fnv1a
records = _chosen.records
release = _chosen.release
resync = _chosen.resync
scan = _chosen.scan
store_big = _chosen.store_big
touch = _chosen.touch
wait_any = _chosen.wait_any

__all__ = [
    "NAME",
    "ROBUST",
    "Batch",
    "Buffer",
    "Buffered",
    "ControlPage",
    "FrameSpec",
    "Message",
    "Reader",
    "Record",
    "Scan",
    "Taker",
    "Writer",
    "crc32",
    "crc64",
    "crc_path",
    "encode",
    "encode_arrow",
    "encode_many",
    "entries",
    "fnv1a",
    "records",
    "release",
    "resync",
    "scan",
    "store_big",
    "touch",
    "wait_any",
]
