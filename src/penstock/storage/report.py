"""What opening a log found and did, told to whoever opened it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

OnProgress = Callable[[int, int], None]  # (bytes checked, bytes there are, as near as can be told)


@dataclass(slots=True)
class Recovery:
    """What opening found and did. `clean` when there was nothing to do."""

    how: str = "joined"  # created, joined (others had it open), clean, same boot, new boot, foreign
    bytes_scanned: int = 0
    records_scanned: int = 0
    torn: list[str] = field(default_factory=list)  # what was cut, and where a copy of it is
    damage: list[str] = field(default_factory=list)  # what is damaged and was left alone
    rebuilt: list[str] = field(default_factory=list)  # manifest, indexes
    cursors_set_back: dict[str, int] = field(default_factory=dict)  # name: where it stood
    moved_bytes: int = 0  # copied to a new segment after a failed sync
    _progress: OnProgress | None = field(default=None, repr=False, compare=False)
    _total_bytes: int = field(default=0, repr=False, compare=False)

    def _tell(self, progress: OnProgress | None, total_bytes: int) -> None:
        """From now on, tell how far checking has come."""
        self._progress, self._total_bytes = progress, total_bytes

    def _scanned(self, size_bytes: int, records: int) -> None:
        """So much more was checked."""
        self.bytes_scanned += size_bytes
        self.records_scanned += records
        if self._progress is not None:
            self._progress(self.bytes_scanned, max(self.bytes_scanned, self._total_bytes))

    @property
    def clean(self) -> bool:
        """Whether there was nothing to put right or to tell."""
        return not (self.torn or self.damage or self.rebuilt or self.cursors_set_back or self.moved_bytes)
