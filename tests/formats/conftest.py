"""The formats' vectors are held to both kernels."""

from tests.kernel.conftest import kernel

__all__ = ["kernel"]
