# Part of _native.pyx: frames: encoding, walking, finding the next one behind damage.


cdef ps_spec _spec(object spec) except *:
    cdef ps_spec s
    s.big = spec.big_endian
    s.shift = spec.shift
    s.sum = spec.sum_bytes
    s.sum_first = spec.sum_first
    s.sum_head = spec.sum_covers_head
    s.zero_ends = spec.zero_ends
    s.state = spec.state_bytes
    return s


cdef int _check_length(ps_spec s, uint64_t n, uint32_t kind=0) except -1:
    if n == 0 and s.zero_ends:
        raise InvalidPayload("an empty payload cannot be stored: a zero length marks the end of the data")
    if n == 0 and s.state and kind == PS_STATE_KIND:
        raise InvalidPayload(f"an empty payload of kind {kind} cannot be stored: there a zero length says {s.state} bytes")
    if n > ps_max_payload(s):
        raise InvalidPayload(f"a payload of {n} bytes is longer than a frame can say ({ps_max_payload(s)})")
    return 0


def encode(spec, payload, uint32_t kind=0):
    """One frame."""
    return encode_many(spec, (payload,), kind)


def encode_many(spec, payloads, uint32_t kind=0):
    """The frames of `payloads`, one after the other."""
    cdef ps_spec s = _spec(spec)
    cdef _Items items = _Items.__new__(_Items)
    if kind >> s.shift:
        raise ValueError(f"kind {kind} does not fit the {s.shift} bits below the length")
    items.collect(s, payloads, kind)
    cdef bytes out = PyBytes_FromStringAndSize(NULL, items.bytes)
    cdef uint8_t *dst = <uint8_t *> PyBytes_AS_STRING(out)
    cdef Py_ssize_t i
    for i in range(items.count):
        ps_put_head(dst, ps_put_body(s, dst, items.at[i].data, items.at[i].size, kind))
        dst += ps_overhead(s) + items.at[i].size
    return out


cdef ps_sums _sums(ps_spec s, const uint8_t *entries, Py_ssize_t size):
    """What a companion says of frames that have no checksum of their own; of others it knows times alone."""
    cdef ps_sums sums
    sums.at = <const ps_entry *> entries
    sums.count = size // <Py_ssize_t> sizeof(ps_entry) if size > 0 and not s.sum else 0
    return sums


def scan(spec, data, uint64_t start, uint64_t end, uint64_t limit=UINT64_MAX, bint verify=True, uint64_t every=0,
         sums=None, uint64_t place=0):
    """Walk frames in data[start:end], at most `limit`; with `every`, take the position of each every-th.

    Frames without a checksum are held to the entries of a companion, if given: the first frame to the `place`-th.
    """
    cdef Py_buffer b
    if sums is None:
        return _scan(spec, data, start, end, limit, verify, every, NULL, 0, place)
    PyObject_GetBuffer(sums, &b, PyBUF_SIMPLE)
    try:
        return _scan(spec, data, start, end, limit, verify, every, <const uint8_t *> b.buf, b.len, place)
    finally:
        PyBuffer_Release(&b)


cdef object _scan(spec, data, uint64_t start, uint64_t end, uint64_t limit, bint verify, uint64_t every,
                  const uint8_t *entries, Py_ssize_t size, uint64_t place):
    cdef ps_spec s = _spec(spec)
    cdef ps_sums sums = ps_sums_from(_sums(s, entries, size), place)
    cdef Py_buffer b
    cdef ps_scan r
    cdef uint64_t points[512]
    cdef uint64_t done = 0, taken, i, step
    cdef list out = []
    every = min(every, <uint64_t> 1 << 48)      # more frames than memory has bytes; 512 * every must not wrap
    PyObject_GetBuffer(data, &b, PyBUF_SIMPLE)
    try:
        _check_range(&b, start, end)
        if not every:
            with nogil:
                r = ps_walk(s, <const uint8_t *> b.buf, start, end, limit, verify, sums, 0, NULL, 0)
            return Scan(r.count, r.pos, r.reason, out)
        while True:
            step = min(limit - done, 512 * every)   # a multiple of `every`, so that points stay aligned
            with nogil:
                r = ps_walk(s, <const uint8_t *> b.buf, start, end, step, verify, ps_sums_from(sums, done), every, points,
                            512)
            taken = (r.count + every - 1) // every
            for i in range(taken):
                out.append(points[i])
            done += r.count
            start = r.pos
            if r.count < step or done == limit or r.pos == end:
                return Scan(done, r.pos, r.reason, out)
    finally:
        PyBuffer_Release(&b)


def resync(spec, data, uint64_t start, uint64_t anchor):
    """The first position in [start, anchor) from which verified frames lead exactly to `anchor`; else `anchor`."""
    cdef ps_spec s = _spec(spec)
    cdef Py_buffer b
    cdef uint64_t found
    PyObject_GetBuffer(data, &b, PyBUF_SIMPLE)
    try:
        _check_range(&b, start, anchor)
        with nogil:
            found = ps_resync(s, <const uint8_t *> b.buf, start, anchor)
        if found == UINT64_MAX:
            raise MemoryError("no memory to search for the next whole record")
        return found
    finally:
        PyBuffer_Release(&b)


cdef object _flat(object payload):
    """A view of a bytes-like object as plain bytes."""
    if isinstance(payload, str):
        raise PayloadTypeError("a payload must be bytes-like, not str; encode it first, as in text.encode()")
    try:
        m = memoryview(payload)
        return m.cast("B") if m.nbytes else b""
    except TypeError as error:
        raise PayloadTypeError(f"a payload must be bytes-like, not {type(payload).__name__} ({error})") from None


@cython.final
cdef class _Items:
    """Pointers into a batch of bytes-like objects, checked before the lock is taken. Keeps the objects alive."""

    cdef ps_item *at
    cdef Py_ssize_t count
    cdef uint64_t bytes
    cdef tuple keep       # our own: a list may change while we wait for the lock
    cdef list views
    cdef bytes room

    cdef int collect(self, ps_spec s, object payloads, uint32_t kind=0) except -1:
        cdef Py_ssize_t i
        cdef object p
        cdef uint64_t n
        cdef const unsigned char[::1] view
        self.keep = payloads if type(payloads) is tuple else tuple(payloads)
        self.count = len(self.keep)
        self.room = PyBytes_FromStringAndSize(NULL, self.count * sizeof(ps_item))
        self.at = <ps_item *> PyBytes_AS_STRING(self.room)
        self.views = []
        self.bytes = self.count * ps_overhead(s)
        for i in range(self.count):
            p = self.keep[i]
            if PyBytes_CheckExact(p):
                n = PyBytes_GET_SIZE(p)
                self.at[i].data = <const uint8_t *> PyBytes_AS_STRING(p)
            else:
                m = _flat(p)
                self.views.append(m)
                n = len(m)
                if n:
                    view = m
                    self.at[i].data = &view[0]
            _check_length(s, n, kind)
            self.at[i].size = <uint32_t> n
            self.bytes += n
        return 0


cdef uint64_t _check_arrow(ps_spec s, Py_buffer *offsets, bint wide, Py_buffer *values, uint64_t start,
                           uint64_t count) except? 0:
    """Bytes of the frames of `count` values from the `start`-th. Hostile offsets must not reach memcpy."""
    cdef int64_t *o64 = <int64_t *> offsets.buf
    cdef int32_t *o32 = <int32_t *> offsets.buf
    cdef uint64_t total = count * ps_overhead(s), i, lo, hi
    if max(start, count) > <uint64_t> offsets.len or (start + count + 1) * (8 if wide else 4) > <uint64_t> offsets.len:
        raise InvalidPayload("the offsets do not hold that many values")
    for i in range(start, start + count):
        lo = <uint64_t> o64[i] if wide else <uint64_t> o32[i]
        hi = <uint64_t> o64[i + 1] if wide else <uint64_t> o32[i + 1]
        if lo > hi or hi > <uint64_t> values.len:
            raise InvalidPayload(f"offsets of value {i - start} lie outside the array's data")
        if hi == lo or hi - lo > ps_max_payload(s):
            _check_length(s, hi - lo)
        total += hi - lo
    return total


def encode_arrow(spec, offsets, bint wide, values, uint64_t start, uint64_t count):
    """The frames of `count` values of an Arrow binary array, from its `start`-th, one after the other."""
    cdef ps_spec s = _spec(spec)
    cdef Py_buffer o, v
    cdef uint64_t total, i, lo, hi
    cdef bytes out
    cdef uint8_t *dst
    PyObject_GetBuffer(offsets, &o, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(values if values is not None else b"", &v, PyBUF_SIMPLE)
    except BaseException:
        PyBuffer_Release(&o)
        raise
    try:
        total = _check_arrow(s, &o, wide, &v, start, count)
        out = PyBytes_FromStringAndSize(NULL, total)
        dst = <uint8_t *> PyBytes_AS_STRING(out)
        with nogil:
            for i in range(start, start + count):
                lo = <uint64_t> (<int64_t *> o.buf)[i] if wide else <uint64_t> (<int32_t *> o.buf)[i]
                hi = <uint64_t> (<int64_t *> o.buf)[i + 1] if wide else <uint64_t> (<int32_t *> o.buf)[i + 1]
                ps_put_head(dst, ps_put_body(s, dst, (<const uint8_t *> v.buf) + lo, <uint32_t> (hi - lo), 0))
                dst += ps_overhead(s) + hi - lo
        return out
    finally:
        PyBuffer_Release(&o)
        PyBuffer_Release(&v)


def entries(spec, data, int64_t us, bint goes_on=False):
    """The companion's entries for the whole frames that `data` consists of, as one batch, or a part of one that `goes_on`."""
    cdef ps_spec s = _spec(spec)
    cdef Py_buffer b
    cdef ps_scan r
    cdef uint64_t i, at = 0, n
    cdef bytes out
    cdef int64_t *dst
    cdef uint64_t width = 1 if s.sum else 2
    cdef uint32_t head
    cdef ps_sums none
    PyObject_GetBuffer(data, &b, PyBUF_SIMPLE)
    try:
        none = _sums(s, NULL, 0)
        with nogil:
            r = ps_walk(s, <const uint8_t *> b.buf, 0, b.len, UINT64_MAX, 0, none, 0, NULL, 0)
        if r.pos != <uint64_t> b.len:
            raise ValueError(f"no whole frame begins at byte {r.pos}")
        out = PyBytes_FromStringAndSize(NULL, r.count * width * 8)
        dst = <int64_t *> PyBytes_AS_STRING(out)
        with nogil:
            for i in range(r.count):
                dst[i * width] = -us if goes_on or i + 1 < r.count else us
                if width == 2:
                    memcpy(&head, (<const uint8_t *> b.buf) + at, 4)
                    n = ps_overhead(s) + ps_length(s, head)
                    (<uint64_t *> dst)[i * 2 + 1] = ps_crc64(0, (<const uint8_t *> b.buf) + at, n)
                    at += n
        return out
    finally:
        PyBuffer_Release(&b)
