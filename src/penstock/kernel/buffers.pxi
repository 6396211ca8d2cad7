# Part of _native.pyx: bytes of others: checksums, aligned stores, pages of maps.


def crc64(data, uint64_t value=0):
    """CRC-64/XZ of `data`, going on from `value`."""
    cdef Py_buffer b
    PyObject_GetBuffer(data, &b, PyBUF_SIMPLE)
    try:
        return ps_crc64(value, <const uint8_t *> b.buf, b.len)
    finally:
        PyBuffer_Release(&b)


def crc32(data, uint32_t value=0):
    """CRC-32 (IEEE) of `data`, going on from `value`."""
    cdef Py_buffer b
    PyObject_GetBuffer(data, &b, PyBUF_SIMPLE)
    try:
        return ps_crc32(value, <const uint8_t *> b.buf, b.len)
    finally:
        PyBuffer_Release(&b)


def fnv1a(data):
    """FNV-1a, of 64 bits, of `data`."""
    cdef Py_buffer b
    cdef uint64_t value = 0xCBF29CE484222325ULL
    cdef Py_ssize_t i
    PyObject_GetBuffer(data, &b, PyBUF_SIMPLE)
    try:
        for i in range(b.len):
            value = (value ^ (<const uint8_t *> b.buf)[i]) * 0x100000001B3ULL
        return value
    finally:
        PyBuffer_Release(&b)


def store_big(data, uint64_t offset, uint64_t stride, uint64_t copies, uint64_t value):
    """Store a number at an aligned place, and at further ones `stride` apart, big-endian, each in one piece: whoever looks,
    also after our death, sees each whole."""
    cdef Py_buffer b
    PyObject_GetBuffer(data, &b, PyBUF_WRITABLE)
    try:
        _check_places(&b, offset, stride, copies)
        _store_big(<uint8_t *> b.buf + offset, stride, copies, value)
    finally:
        PyBuffer_Release(&b)


cdef int _check_places(Py_buffer *b, uint64_t offset, uint64_t stride, uint64_t copies) except -1:
    cdef uint64_t last = offset + stride * (copies - 1)
    if (not copies or copies > 64 or stride > 1 << 32 or (offset | stride | <uint64_t> <uintptr_t> b.buf) % 8
            or offset > <uint64_t> b.len or last + 8 > <uint64_t> b.len):
        raise ValueError(f"no aligned places from {offset} to {last}")
    return 0


cdef inline void _store_big(uint8_t *at, uint64_t stride, uint64_t copies, uint64_t value) noexcept nogil:
    value = ps_swap64(value, 1)
    while copies:
        PS_STORE(<uint64_t *> at, value)
        at += stride
        copies -= 1


def crc_path():
    """Which implementation of the checksums this CPU runs: vpclmul, pclmul or table."""
    return ps_crc_path().decode()


def force_crc_path(name):
    """Choose the implementation by name, for tests; False when this CPU has not got it."""
    return ps_crc_force(name.encode()) == 0


cdef int _check_range(Py_buffer *b, uint64_t start, uint64_t end) except -1:
    if start > end or end > <uint64_t> b.len:
        raise ValueError(f"range {start}..{end} is not within a buffer of {b.len} bytes")
    return 0


def touch(data, uint64_t start, uint64_t end):
    """Make the pages of data[start:end] present and writable without changing them."""
    _pages(data, start, end, True)


def release(data, uint64_t start, uint64_t end):
    """Let go of the pages of data[start:end], a map: their contents stay, this process's memory shrinks."""
    _pages(data, start, end, False)


cdef bint _is_map(object data) except -1:
    """Letting go of pages keeps their contents only where a file is below; heap memory would be zeroed."""
    return isinstance(data.obj if isinstance(data, memoryview) else data, _mmap.mmap)


cdef _pages(data, uint64_t start, uint64_t end, bint bring):
    cdef Py_buffer b
    cdef bint mapped = _is_map(data)
    PyObject_GetBuffer(data, &b, PyBUF_WRITABLE if bring else PyBUF_SIMPLE)
    try:
        _check_range(&b, start, end)
        with nogil:
            if bring:
                ps_touch(<uint8_t *> b.buf + start, end - start)
            elif mapped:
                ps_release(<uint8_t *> b.buf + start, end - start)
    finally:
        PyBuffer_Release(&b)


cdef int _keep(given, Py_buffer *kept, int flags) except -1:
    """Take a buffer to keep: of a memoryview, that of what it looks into. The collector of garbage would let go of the view
    before its keeper, and complain."""
    cdef Py_buffer seen
    if not isinstance(given, memoryview):
        return PyObject_GetBuffer(given, kept, flags)
    PyObject_GetBuffer(given, &seen, flags)
    try:
        PyObject_GetBuffer(given.obj, kept, flags)
        kept.buf = seen.buf
        kept.len = seen.len
    finally:
        PyBuffer_Release(&seen)
    return 0
