"""Arrow in and out, from buffers, never from row objects. Imports pyarrow only when it is used."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from penstock.errors import InvalidPayload, PayloadTypeError, PenstockError
from penstock.kernel import Buffer, Reader
from penstock.options import MAX_NUMBER

if TYPE_CHECKING:
    import pyarrow

_MOST_BYTES = 32 << 20  # with what is mapped, and the batch before, well within the 200 MiB that reading may take


def arrow_buffers(payloads: Any) -> tuple[Buffer, bool, Buffer | None, int, int] | None:
    """(offsets, are they 64-bit, values, first, count) of a pyarrow binary array; None for anything else."""
    pa = sys.modules.get("pyarrow")
    if pa is None:
        return None
    if isinstance(payloads, pa.ChunkedArray):
        payloads = payloads.combine_chunks() if payloads.num_chunks != 1 else payloads.chunk(0)
    if not isinstance(payloads, pa.Array):
        return None
    if payloads.null_count:
        raise InvalidPayload(f"the array has {payloads.null_count} nulls; a record needs a payload")
    kind = payloads.type
    if pa.types.is_binary(kind) or pa.types.is_string(kind):
        wide = False
    elif pa.types.is_large_binary(kind) or pa.types.is_large_string(kind):
        wide = True
    else:
        raise PayloadTypeError(f"an array of {kind} holds no payloads; cast it to binary")
    _, offsets, values = payloads.buffers()
    return offsets, wide, values, payloads.offset, len(payloads)


def read_arrow(records: Reader, n: int) -> pyarrow.RecordBatch:
    """Up to `n` records as one batch."""
    import pyarrow as pa

    schema = pa.schema(
        [
            pa.field("sequence", pa.int64(), nullable=False),
            pa.field("timestamp", pa.timestamp("us", "UTC")),
            pa.field("payload", pa.binary(), nullable=False),
        ]
    )
    parts: list[list[pyarrow.Array]] = []
    n, room = min(n, MAX_NUMBER), _MOST_BYTES
    while n > 0 and room > 0:
        try:
            count, size = records.measure(n, room)
        except PenstockError:
            if parts:
                break  # what was read is given; the next call meets the error
            raise
        if count == 0 or (parts and size > room):
            break
        offsets, values = pa.allocate_buffer((count + 1) * 4), pa.allocate_buffer(size)
        sequences, times, valid = (pa.allocate_buffer(b) for b in (count * 8, count * 8, (count + 7) // 8))
        count = records.fill(count, offsets, values, sequences, times, valid)
        if count:
            parts.append(
                [
                    pa.Array.from_buffers(pa.int64(), count, [None, sequences]),
                    pa.Array.from_buffers(schema.field(1).type, count, [valid, times]),
                    pa.Array.from_buffers(pa.binary(), count, [None, offsets, values]),
                ]
            )
        n -= count
        room -= size
    if not parts:
        return pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema], schema=schema)
    columns = parts[0] if len(parts) == 1 else [pa.concat_arrays(list(c)) for c in zip(*parts, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
