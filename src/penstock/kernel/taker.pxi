# Part of _native.pyx: taking records off a reader, and storing with each how far that has come.


cdef enum: _REMEMBERED = 32

cdef struct _took:
    unsigned long thread
    uint64_t sequence, offset, end


@cython.final
cdef class Taker:
    """Takes records off a reader one at a time, and stores with each the offset behind it, so that both come of one call.

    It is stored as `store_big` does, at `place` (data, offset, stride, copies); if that is None it is only known here. `take`
    asks nobody and calls nothing but `decode`, so that under the GIL it is one step: threads may share it. Whatever takes more
    than that is its owner's, who does it under a lock of its own, between `hold` and `allow`.
    """

    cdef Reader reader
    cdef Py_buffer data
    cdef bint stored, ready
    cdef uint64_t at, stride, copies, shift, version
    cdef readonly uint64_t taken, count     # the offset below which all is taken; how often `take` gave something
    cdef public uint64_t until      # `take` gives nothing that reaches this offset
    cdef _took remembered[_REMEMBERED]      # number n at n % _REMEMBERED

    def __init__(self, Reader reader not None, place, uint64_t taken):
        self.reader = reader
        self.taken = taken
        self.until = UINT64_MAX
        if place is None:
            return
        data, self.at, self.stride, self.copies = place
        _keep(data, &self.data, PyBUF_WRITABLE)
        self.stored = True          # from here on __dealloc__ lets the buffer go
        _check_places(&self.data, self.at, self.stride, self.copies)

    def __dealloc__(self):
        if self.stored:
            PyBuffer_Release(&self.data)

    def hold(self):
        """From now on `take` gives nothing; what is taken."""
        self.ready = False
        self.version += 1
        return self.taken

    def allow(self, int64_t shift):
        """What lies ahead of the reader in its segment may be taken: byte p of it has the offset p + shift."""
        self.shift = <uint64_t> shift
        self.version += 1
        self.ready = self.reader.attached

    def watch(self, uint64_t offset):
        """Give nothing from now on that reaches this offset, unless it was reached before."""
        self.until = offset if self.taken < offset else UINT64_MAX

    def mark(self, uint64_t offset):
        """All below this offset is taken, and nothing else."""
        self.put(offset)

    cdef inline void put(self, uint64_t offset) noexcept:
        self.taken = offset
        if self.stored:
            _store_big(<uint8_t *> self.data.buf + self.at, self.stride, self.copies, offset)

    def take(self, decode=None):
        """The next payload, or what `decode` makes of it, which is thereby taken. None when it is not to be had just so: at
        the end of what is written, or of the segment; at a bad frame, or one that does not decode, or decodes to None."""
        cdef Reader r = self.reader
        cdef uint64_t size, version, end
        cdef int reason = 0
        if not self.ready or (r.position >= r.end and not r.more()):
            return None
        size = r.check(&reason)
        end = self.shift + r.position + size
        if size == 0 or end >= self.until:
            return None
        out = PyBytes_FromStringAndSize(<const char *> ps_payload(r.s, r.p + r.position), size - ps_overhead(r.s))
        if decode is not None:
            version = self.version
            try:
                out = decode(out)
            except Exception:       # whoever comes to it the slow way is told
                return None
            if out is None or version != self.version or end >= self.until:
                return None         # or another thread was faster, or has set a limit
        self.remember(r.sequence, end - size, end)
        self.version += 1
        r.step(size)
        self.put(end)
        return out

    cdef inline void remember(self, uint64_t sequence, uint64_t offset, uint64_t end) noexcept:
        cdef _took *t
        self.count += 1
        t = &self.remembered[self.count % _REMEMBERED]
        t.thread, t.sequence, t.offset, t.end = PyThread_get_thread_ident(), sequence, offset, end

    def mine(self, uint64_t since):
        """(sequence, offset, end) of what this thread took last, after `count` was `since`; or None. For a call that was
        interrupted when it had just taken something, and cannot return it any more."""
        cdef uint64_t n = self.count, oldest = max(since, n - min(n, <uint64_t> _REMEMBERED))
        cdef _took *t
        while n > oldest:
            t = &self.remembered[n % _REMEMBERED]
            if t.thread == PyThread_get_thread_ident():
                return t.sequence, t.offset, t.end
            n -= 1
        return None
