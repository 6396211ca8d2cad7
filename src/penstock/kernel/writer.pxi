# Part of _native.pyx: appending into maps. The order of the stores is in writer.h.


cdef class Writer:
    """Appends to the active segment of one log, for one process. Thread-safe under the GIL.

    `on_slow(code, bytes, records)` is called without the lock when the fast path cannot go on; it mends the cause or
    raises, and the append is tried again. `on_notify()` is called when `end` passed `notify_at`.
    """

    cdef ps_writer w
    cdef ps_ahead a
    cdef ControlPage page
    cdef Py_buffer data, times, index, mirror
    cdef bint attached, mirrored
    cdef object on_slow, on_notify

    def __init__(self, ControlPage page not None, spec, on_slow, on_notify):
        page.must_write()
        self.page = page
        self.on_slow = on_slow
        self.on_notify = on_notify
        memset(&self.w, 0, sizeof(ps_writer))
        memset(&self.a, 0, sizeof(ps_ahead))
        self.a.wake_at = UINT64_MAX
        self.w.ctl = page.c
        self.w.spec = _spec(spec)
        self.w.is_queue = ps_is_queue(self.w.spec)
        self.w.by_mutex = page.file_lock is None
        self.w.clock.usable = -1
        self.detach()

    def __dealloc__(self):
        ps_ahead_stop(&self.a)
        self.let_go()
        free(self.w.buffer)

    cdef void let_go(self):
        if self.attached:
            self.attached = False
            PyBuffer_Release(&self.data)
            PyBuffer_Release(&self.times)
            PyBuffer_Release(&self.index)
        if self.mirrored:
            self.mirrored = False
            PyBuffer_Release(&self.mirror)

    def detach(self):
        """Stand on no segment: the next append asks `on_slow` for one. Call with the lock held, or alone."""
        self.w.turn = UINT64_MAX
        self.w.slot = &self.w.ctl.slots[0]
        self.w.fd = -1
        with nogil:
            ps_ahead_pause(&self.a)
        self.a.wake_at = UINT64_MAX
        self.let_go()

    def stop(self, on_slow=None):
        """Detach, and end the thread that works ahead. What comes later asks `on_slow`, if that is given."""
        self.detach()
        with nogil:
            ps_ahead_stop(&self.a)
        if on_slow is not None:
            self.on_slow = on_slow

    def work_ahead(self, int grow_fd, int data_fd, int times_fd, int index_fd):
        """Have a thread allocate and touch what the next appends will need. The files stay open until `detach`."""
        if not self.attached:
            raise ValueError("not standing on a segment")
        with nogil:
            ps_ahead_pause(&self.a)
        self.a.grow_fd = grow_fd
        self.a.ctl = self.w.ctl
        self.a.slot = self.w.slot
        self.a.turn, self.a.base, self.a.size, self.a.interval = self.w.turn, self.w.base, self.w.size, self.w.interval
        self.w.fd = data_fd
        self.a.data.fd, self.a.times.fd, self.a.index.fd = data_fd, times_fd, index_fd
        self.a.data.map, self.a.data.len = <uint8_t *> self.data.buf, self.data.len
        self.a.times.map, self.a.times.len = <uint8_t *> self.times.buf, self.times.len
        self.a.index.map, self.a.index.len = <uint8_t *> self.index.buf, self.index.len
        ps_ahead_resume(&self.a)

    def attach(self, data, times, index, *, uint64_t turn, uint64_t start, uint64_t size, uint64_t limit,
               uint64_t interval, uint64_t roll_next, int64_t roll_us, bint spill=False, mirror=None,
               int64_t mirror_add=0):
        """Stand on the segment of `turn`. Call with the lock held.

        With `spill` a record may pass the limit, and the segment is left before the next one. Into the first eight bytes of
        `mirror` every published end is stored too, big-endian, plus `mirror_add`.
        """
        self.detach()
        if interval < 1 or start > size:
            raise ValueError("no such segment")
        _keep(data, &self.data, PyBUF_WRITABLE)
        try:
            _keep(times, &self.times, PyBUF_WRITABLE)
        except BaseException:
            PyBuffer_Release(&self.data)
            raise
        try:
            _keep(index, &self.index, PyBUF_WRITABLE)
        except BaseException:
            PyBuffer_Release(&self.data)
            PyBuffer_Release(&self.times)
            raise
        self.attached = True
        if mirror is not None:
            _keep(mirror, &self.mirror, PyBUF_WRITABLE)
            self.mirrored = True
            if self.mirror.len < 8 or <uintptr_t> self.mirror.buf % 8:
                raise ValueError("a mirror is eight bytes, aligned")
        if size > <uint64_t> self.data.len:
            raise ValueError("the segment is larger than its map")
        self.w.mirror = <uint64_t *> self.mirror.buf if self.mirrored else NULL
        self.w.mirror_add = <uint64_t> mirror_add
        self.w.spill = spill
        self.w.data = <uint8_t *> self.data.buf
        self.w.times = <int64_t *> (<uint8_t *> self.times.buf + PS_COMPANION_HEADER)
        self.w.index = <uint8_t *> self.index.buf
        self.w.slot = &self.w.ctl.slots[turn & 1]
        self.w.base = self.w.ctl.base[turn & 1]
        self.w.start = start
        self.w.size = size
        self.w.limit = min(limit, size)
        self.w.interval = interval
        self.w.due = 0
        self.w.last = self.w.base + min((max(self.times.len, PS_COMPANION_HEADER) - PS_COMPANION_HEADER) // 8,
                                        (max(self.index.len, PS_INDEX_HEADER) - PS_INDEX_HEADER) // 16 * interval)
        self.w.roll_next = roll_next
        self.w.roll_us = roll_us
        self.w.turn = turn

    @property
    def durable(self):
        """Whether syncs are frequent: then batches are written through the file, which is quicker to sync than a map."""
        return self.w.durable

    @durable.setter
    def durable(self, bint value):
        self.w.durable = value
        PS_STORE_INT(&self.a.durable, value)    # the thread that works ahead looks at it

    @property
    def notify_at(self):
        return self.w.notify_at

    @notify_at.setter
    def notify_at(self, uint64_t value):
        self.w.notify_at = value

    cdef inline int enter(self) except -1:
        if self.page.file_lock is None and ps_lock_try(self.w.ctl) == 0:
            return 0
        self.page.lock()
        return 0

    cdef inline int leave(self) except -1:
        return self.page.let_go()

    cdef int after(self, uint64_t end) except -1:
        if ps_someone_waits(self.w.ctl):
            ps_bell_ring(self.w.ctl)
        if end >= PS_LOAD(&self.a.wake_at):
            ps_ahead_kick(&self.a)
        if end >= self.w.notify_at:
            self.w.notify_at = UINT64_MAX
            self.on_notify()
        return 0

    def append(self, payload):
        """Append one record; its sequence."""
        cdef uint64_t seq, end
        cdef int rc
        if not PyBytes_CheckExact(payload):
            return self.append_batch((payload,))
        rc = ps_append_fast(&self.w, &self.a.wake_at, <const uint8_t *> PyBytes_AS_STRING(payload),
                            <uint64_t> PyBytes_GET_SIZE(payload), &seq, &end)
        if rc == PS_OK:
            return seq
        if rc == PS_AFTER:
            self.after(end)
            return seq
        return self.append_slow(payload)

    cdef object append_slow(self, bytes payload):
        cdef uint64_t n = PyBytes_GET_SIZE(payload), seq = 0, end = 0
        cdef int rc
        _check_length(self.w.spec, n)
        while True:
            self.enter()
            rc = ps_append(&self.w, <const uint8_t *> PyBytes_AS_STRING(payload), <uint32_t> n,
                           ps_now_us(&self.w.clock), &seq, &end)
            self.leave()
            if rc == PS_OK:
                self.after(end)
                return seq
            self.on_slow(rc, n + ps_overhead(self.w.spec), 1)

    def append_batch(self, payloads):
        """Append many records as one; the first one's sequence."""
        cdef _Items items = _Items.__new__(_Items)
        cdef ps_batch b
        cdef int rc, failed = 0
        items.collect(self.w.spec, payloads)
        if items.count == 0:
            raise InvalidPayload("an empty batch has no sequence")
        while True:
            self.enter()
            rc = ps_batch_begin(&self.w, items.bytes, items.count, &b)
            if rc == PS_OK:
                if items.bytes > 1 << 20 or self.w.durable:
                    with nogil:
                        ps_batch_put_items(&self.w, &b, items.at, items.count)
                        failed = ps_batch_commit(&self.w, &b)
                else:
                    ps_batch_put_items(&self.w, &b, items.at, items.count)
                    failed = ps_batch_commit(&self.w, &b)
            self.leave()
            if failed:
                raise OSError(failed, "the batch could not be written; nothing was appended")
            if rc == PS_OK:
                break
            self.on_slow(rc, items.bytes, items.count)
        self.after(b.at)
        return b.first

    def append_arrow(self, offsets, bint wide, values, uint64_t start, uint64_t count):
        """Append `count` values of an Arrow binary array, from its `start`-th, without making objects of them."""
        cdef Py_buffer o, v
        cdef ps_batch b
        cdef int rc = 0, failed = 0
        cdef uint64_t total
        if count == 0:
            raise InvalidPayload("an empty batch has no sequence")
        PyObject_GetBuffer(offsets, &o, PyBUF_SIMPLE)
        try:
            PyObject_GetBuffer(values if values is not None else b"", &v, PyBUF_SIMPLE)
        except BaseException:
            PyBuffer_Release(&o)
            raise
        try:
            total = _check_arrow(self.w.spec, &o, wide, &v, start, count)
            while True:
                self.enter()
                rc = ps_batch_begin(&self.w, total, count, &b)
                if rc == PS_OK:
                    with nogil:
                        ps_batch_put_arrow(&self.w, &b, o.buf, wide, <const uint8_t *> v.buf, start, count)
                        failed = ps_batch_commit(&self.w, &b)
                self.leave()
                if failed:
                    raise OSError(failed, "the batch could not be written; nothing was appended")
                if rc == PS_OK:
                    break
                self.on_slow(rc, total, count)
            self.after(b.at)
            return b.first
        finally:
            PyBuffer_Release(&o)
            PyBuffer_Release(&v)
