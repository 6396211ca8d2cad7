"""What has a `close` can be used by `with`, and what opens a log by `async with` too."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from penstock.storage.aside import aside


class Closable:
    """`with thing:` closes it at the end."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncClosable(Closable):
    """The same for coroutines."""

    async def aclose(self) -> None:
        """`close()` without blocking the event loop."""
        await aside(self.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
