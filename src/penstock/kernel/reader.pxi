# Part of _native.pyx: reading from maps.

cdef uint64_t _DROP_BEHIND = 32 << 20


cdef class Reader:
    """Reads one segment at a time, in order, up to the published end. One per tailer; not thread-safe.

    `on_end()` is called when the segment is read up: True when there is more (it moved the reader on), else False.
    `on_bad(reason)` is called at a frame that does not verify: it raises, or moves the reader past it.
    """

    cdef ps_spec s
    cdef public ControlPage page   # None while nothing is being written
    cdef Py_buffer data, times
    cdef bint attached, verify, mapped, is_queue
    cdef const uint8_t *p
    cdef const int64_t *t
    cdef uint64_t t_step, t_count, dropped
    cdef ps_sums sums           # of frames without a checksum; none when they are not to be verified
    cdef readonly uint64_t segment, position, sequence, base, end
    cdef object on_end, on_bad

    def __init__(self, page, spec, on_end, on_bad, bint verify=True):
        self.page = page
        self.s = _spec(spec)
        self.is_queue = ps_is_queue(self.s)
        self.on_end = on_end
        self.on_bad = on_bad
        self.verify = verify

    def __dealloc__(self):
        self.let_go()

    cdef void let_go(self):
        if self.attached:
            self.attached = False
            PyBuffer_Release(&self.data)
            PyBuffer_Release(&self.times)

    def detach(self):
        """Let the segment's files go; nothing is readable until the next `attach`."""
        self.let_go()
        self.position = self.end = 0
        self.segment = UINT64_MAX

    def attach(self, data, times, spec, uint64_t segment, uint64_t base, uint64_t position, uint64_t sequence,
               uint64_t end):
        """Stand in `segment` at `position`, where record `sequence` begins; bytes below `end` may be read."""
        self.detach()
        self.s = _spec(spec)
        self.is_queue = ps_is_queue(self.s)
        _keep(data, &self.data, PyBUF_SIMPLE)
        try:
            _keep(times, &self.times, PyBUF_SIMPLE)
        except BaseException:
            PyBuffer_Release(&self.data)
            raise
        self.attached = True
        self.mapped = _is_map(data)
        if end > <uint64_t> self.data.len or position > end or sequence < base:
            raise ValueError("the segment ends beyond its map")
        self.p = <const uint8_t *> self.data.buf
        self.t = <const int64_t *> (<uint8_t *> self.times.buf + PS_COMPANION_HEADER)
        self.t_step = 1 if self.s.sum else sizeof(ps_entry) // 8
        self.t_count = max(self.times.len - PS_COMPANION_HEADER, 0) // 8 // self.t_step
        self.sums = _sums(self.s, <const uint8_t *> self.t, self.times.len - PS_COMPANION_HEADER if self.verify else 0)
        self.segment = segment
        self.base = base
        self.position = self.dropped = position
        self.sequence = sequence
        self.end = end

    def seek(self, uint64_t position, uint64_t sequence):
        """Move within the segment."""
        if position > self.end or sequence < self.base:
            raise ValueError("not within the segment")
        self.position = position
        self.dropped = min(self.dropped, position)
        self.sequence = sequence

    cdef bint more(self):
        """Has the segment grown?"""
        cdef ps_slot s
        cdef uint64_t base
        if self.page is None:
            return False
        self.page.snapshot(&s, &base)
        if s.segment != self.segment or s.end <= self.position or s.end > <uint64_t> self.data.len:
            return False
        self.end = s.end
        return True

    cdef uint64_t frame(self) except? 0:
        """Size of the verified frame at the position, having moved on as needed; 0 at the end."""
        cdef int reason = 0
        cdef uint64_t size
        while True:
            if self.position >= self.end and not self.more():
                if not self.on_end():
                    return 0
                continue
            size = self.check(&reason)
            if size:
                return size
            self.on_bad(reason)

    cdef inline uint64_t check(self, int *reason) noexcept:
        """Size of the verified frame at the position; or 0, and why."""
        cdef uint64_t size
        if self.is_queue:
            return ps_check(ps_queue_spec, self.p + self.position, self.end - self.position, self.verify, reason)
        size = ps_check(self.s, self.p + self.position, self.end - self.position, self.verify, reason)
        if size and ps_differs(self.sums, self.sequence - self.base, self.p + self.position, size):
            reason[0] = PS_CHECKSUM
            return 0
        return size

    cdef inline int64_t time_of(self, uint64_t sequence) noexcept nogil:
        cdef uint64_t place = sequence - self.base
        cdef int64_t us = self.t[place * self.t_step] if place < self.t_count else 0
        return us if us != INT64_MIN else 0         # nonsense, which has no absolute value

    cdef inline void step(self, uint64_t size) noexcept:
        self.position += size
        self.sequence += 1
        if self.position - self.dropped > _DROP_BEHIND:
            self.drop_behind()

    cdef void drop_behind(self) noexcept:
        if self.mapped:
            ps_release(<uint8_t *> self.p + self.dropped, self.position - self.dropped)
        self.dropped = self.position

    cdef Message take(self):
        cdef uint64_t size = self.frame()
        cdef Message m
        if size == 0:
            return None
        m = _message(self.sequence, self.time_of(self.sequence), PyBytes_FromStringAndSize(
            <const char *> ps_payload(self.s, self.p + self.position), size - ps_overhead(self.s)))
        self.step(size)
        return m

    def read(self):
        """The next message, or None at the end."""
        return self.take()

    def __iter__(self):
        return self

    def __next__(self):
        cdef Message m = self.take()
        if m is None:
            raise StopIteration
        return m

    def over(self, owner):
        """The messages, as iterating gives them, for as long as somebody goes over them: `owner` is kept alive meanwhile."""
        cdef _Messages out = _Messages.__new__(_Messages)
        out.reader, out.owner = self, owner
        return out

    def read_batch(self, Py_ssize_t n):
        """Up to `n` messages."""
        cdef list out = []
        cdef Message m
        while n > 0:
            m = self.take()
            if m is None:
                break
            out.append(m)
            n -= 1
        return out

    def read_run(self, Py_ssize_t n):
        """(kind, payloads) of up to `n` records that follow each other and are of one kind: (0, []) only at the end.

        With some in hand it stops before whatever `on_end` or `on_bad` would be asked about: `sequence` less their number
        is the first one's.
        """
        cdef list out = []
        cdef uint32_t kind = 0
        cdef uint64_t size
        cdef int reason = 0
        if n <= 0:
            return 0, out
        size = self.frame()
        if size:
            kind = ps_kind(self.s, self.p + self.position)
        while size:
            out.append(PyBytes_FromStringAndSize(<const char *> ps_payload(self.s, self.p + self.position),
                                                 size - ps_overhead(self.s)))
            self.step(size)
            n -= 1
            if n == 0 or (self.position >= self.end and not self.more()):
                break
            size = self.check(&reason)
            if size and ps_kind(self.s, self.p + self.position) != kind:
                break
        return kind, out

    def read_span(self):
        """(start, end) of the next payload in the segment's data, stepping over it; None at the end."""
        cdef uint64_t size = self.frame(), start
        if size == 0:
            return None
        start = <uint64_t> (ps_payload(self.s, self.p + self.position) - self.p)
        size_payload = size - ps_overhead(self.s)
        self.step(size)
        return start, start + size_payload

    def measure(self, uint64_t limit, uint64_t most_bytes):
        """(records, payload bytes) that the next `fill` can take from this segment: (0, 0) only at the end."""
        cdef ps_scan r
        cdef uint64_t end
        if self.frame() == 0:
            return 0, 0
        end = self.position + min(most_bytes, self.end - self.position)
        with nogil:
            r = ps_walk(self.s, self.p, self.position, end, limit, False, self.sums, 0, NULL, 0)
            if r.count == 0:
                r = ps_walk(self.s, self.p, self.position, self.end, 1, False, self.sums, 0, NULL, 0)
        return r.count, r.pos - self.position - r.count * ps_overhead(self.s)

    def fill(self, uint64_t count, offsets, values, sequences, times, valid):
        """Read `count` records into Arrow buffers, verified; how many were (fewer before a bad frame)."""
        cdef Py_buffer o, v, q, t, ok
        cdef ps_scan r
        cdef uint64_t i, from_seq = self.sequence
        cdef int64_t us
        cdef int64_t *qs
        cdef int64_t *ts
        cdef uint8_t *bits
        PyObject_GetBuffer(offsets, &o, PyBUF_WRITABLE)
        PyObject_GetBuffer(values, &v, PyBUF_WRITABLE)
        PyObject_GetBuffer(sequences, &q, PyBUF_WRITABLE)
        PyObject_GetBuffer(times, &t, PyBUF_WRITABLE)
        PyObject_GetBuffer(valid, &ok, PyBUF_WRITABLE)
        try:
            if (count > 0x7fffffff or o.len < <Py_ssize_t> (count + 1) * 4 or q.len < <Py_ssize_t> count * 8
                    or t.len < <Py_ssize_t> count * 8 or ok.len < <Py_ssize_t> (count + 7) // 8
                    or v.len > 0x7fffffff):
                raise ValueError("the buffers do not fit the records")
            qs = <int64_t *> q.buf
            ts = <int64_t *> t.buf
            bits = <uint8_t *> ok.buf
            with nogil:
                (<int32_t *> o.buf)[0] = 0
                r = ps_gather(self.s, self.p, self.position, self.end, count, self.verify,
                              ps_sums_from(self.sums, from_seq - self.base), <int32_t *> o.buf, <uint8_t *> v.buf, v.len)
                memset(bits, 0, (r.count + 7) // 8)
                for i in range(r.count):
                    us = self.time_of(from_seq + i)
                    qs[i] = <int64_t> (from_seq + i)
                    ts[i] = -us if us < 0 else us
                    bits[i >> 3] |= <uint8_t> ((us != 0) << (i & 7))
            self.sequence += r.count
            self.position = r.pos
            if self.position - self.dropped > _DROP_BEHIND:
                self.drop_behind()
            return r.count
        finally:
            PyBuffer_Release(&o)
            PyBuffer_Release(&v)
            PyBuffer_Release(&q)
            PyBuffer_Release(&t)
            PyBuffer_Release(&ok)


@cython.final
cdef class _Messages:
    """What `Reader.over` gives."""

    cdef Reader reader
    cdef object owner

    def __iter__(self):
        return self

    def __next__(self):
        cdef Message m = self.reader.take()
        if m is None:
            raise StopIteration
        return m
