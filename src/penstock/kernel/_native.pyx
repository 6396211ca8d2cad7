# cython: language_level=3, always_allow_keywords=False, binding=False, boundscheck=False, wraparound=False
"""The native kernel: hot loops over maps and buffers. No policy, no file names; `reference` says the same in Python.

The work itself is in C headers beside this file (crc.h, frames.h, shared.h, writer.h and others); here it meets Python objects.
Every method that may be slow or sleep releases the GIL; an append of one record keeps it, being shorter than a switch.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals
from cpython.pythread cimport PyThread_get_thread_ident
from libc.stdint cimport INT64_MAX, INT64_MIN, UINT64_MAX, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memset

cimport cython

import datetime as _datetime
import mmap as _mmap
import time as _time

from penstock.errors import InvalidPayload, PayloadTypeError
from penstock.kernel.spec import Scan


cdef extern from "ahead.h" nogil:
    ctypedef struct ps_file:
        int fd
        uint8_t *map
        uint64_t len
    ctypedef struct ps_ahead:
        int grow_fd
        ps_control *ctl
        ps_slot *slot
        uint64_t turn, base, size, interval, wake_at
        ps_file data, times, index
        int durable
    void ps_ahead_kick(ps_ahead *a)
    void ps_ahead_pause(ps_ahead *a)
    void ps_ahead_resume(ps_ahead *a)
    void ps_ahead_stop(ps_ahead *a)

cdef extern from "writer.h" nogil:
    ctypedef struct ps_spec:
        uint8_t big, shift, sum, sum_first, sum_head, zero_ends
        uint16_t state
    ctypedef struct ps_entry:
        int64_t us
        uint64_t sum
    ctypedef struct ps_sums:
        const ps_entry *at
        uint64_t count
    ctypedef struct ps_scan:
        uint64_t count, pos
        int reason
    ctypedef struct ps_slot:
        uint64_t segment, end, next, dirty_end, dirty_next, allocated, entries
        int64_t last_us
    ctypedef struct ps_control:
        uint64_t turn, poison
        uint32_t waiters, bell
        ps_slot slots[2]
        uint64_t base[2]
    ctypedef struct ps_clock:
        int usable
    ctypedef struct ps_writer:
        ps_control *ctl
        ps_slot *slot
        uint8_t *data
        int64_t *times
        uint8_t *index
        uint64_t turn, base, start, limit, size, interval, due, last, roll_next, notify_at
        int64_t roll_us
        uint64_t *mirror
        uint64_t mirror_add
        ps_spec spec
        int spill
        int is_queue, by_mutex, fd, durable
        uint8_t *buffer
        ps_clock clock
    ctypedef struct ps_batch:
        uint64_t first, at
    enum: EBUSY, EINTR
    enum: PS_HAVE_ROBUST, PS_OK, PS_AFTER, PS_CHECKSUM, PS_STATE_KIND, PS_COMPANION_HEADER, PS_INDEX_HEADER
    uint64_t ps_crc64(uint64_t crc, const uint8_t *p, size_t n)
    uint32_t ps_crc32(uint32_t crc, const uint8_t *p, size_t n)
    void ps_crc_init()
    const char *ps_crc_path()
    int ps_crc_force(const char *name)
    uint64_t ps_swap64(uint64_t v, int big)
    uint64_t ps_overhead(ps_spec s)
    uint64_t ps_max_payload(ps_spec s)
    uint32_t ps_length(ps_spec s, uint32_t head)
    uint32_t ps_put_body(ps_spec s, uint8_t *dst, const uint8_t *payload, uint32_t n, uint32_t kind)
    void ps_put_head(uint8_t *dst, uint32_t head)
    const uint8_t *ps_payload(ps_spec s, const uint8_t *frame)
    uint32_t ps_kind(ps_spec s, const uint8_t *frame)
    ps_sums ps_sums_from(ps_sums sums, uint64_t i)
    int ps_differs(ps_sums sums, uint64_t i, const uint8_t *frame, uint64_t size)
    uint64_t ps_check(ps_spec s, const uint8_t *p, uint64_t room, int verify, int *reason)
    ps_scan ps_walk(ps_spec s, const uint8_t *buf, uint64_t pos, uint64_t end, uint64_t limit, int verify,
                    ps_sums sums, uint64_t every, uint64_t *points, uint64_t room)
    ps_scan ps_gather(ps_spec s, const uint8_t *buf, uint64_t pos, uint64_t end, uint64_t limit, int verify,
                      ps_sums sums, int32_t *offsets, uint8_t *out, uint64_t room)
    uint64_t ps_resync(ps_spec s, const uint8_t *buf, uint64_t start, uint64_t anchor)
    int ps_mutex_init(ps_control *c)
    int ps_lock_try(ps_control *c)
    int ps_lock_wait(ps_control *c)
    void ps_unlock(ps_control *c)
    int ps_bell_wait(ps_control *c, uint32_t seen, double timeout_s)
    void ps_bell_ring(ps_control *c)
    int ps_someone_waits(ps_control *c)
    void ps_touch(uint8_t *p, size_t n)
    void ps_release(uint8_t *p, size_t n)
    int64_t ps_now_us(ps_clock *k)
    int ps_append(ps_writer *w, const uint8_t *payload, uint32_t n, int64_t now, uint64_t *seq, uint64_t *end)
    int ps_append_fast(ps_writer *w, const uint64_t *wake_at, const uint8_t *payload, uint64_t n, uint64_t *seq,
                       uint64_t *end)
    int ps_is_queue(ps_spec s)
    const ps_spec ps_queue_spec
    int ps_batch_begin(ps_writer *w, uint64_t bytes, uint64_t count, ps_batch *b)
    ctypedef struct ps_item:
        const uint8_t *data
        uint32_t size
    void ps_batch_put_items(ps_writer *w, ps_batch *b, const ps_item *items, uint64_t count)
    void ps_batch_put_arrow(ps_writer *w, ps_batch *b, const void *offsets, int wide, const uint8_t *values,
                            uint64_t start, uint64_t count)
    int ps_batch_commit(ps_writer *w, ps_batch *b)
    uint64_t PS_LOAD(uint64_t *p)
    void PS_STORE_INT "PS_STORE"(int *p, int value)
    void PS_STORE(uint64_t *p, uint64_t v)

cdef extern from "wait.h" nogil:
    ctypedef struct ps_bell:
        ps_control *ctl
        uint64_t segment, end
        uint32_t seen
    enum: EAGAIN, ETIMEDOUT, PS_BELLS_MOST
    int ps_bells_wait(const ps_bell *bells, size_t count, double timeout_s)

cdef extern from *:
    """
    static void ps_waiters_raise(ps_control *c) { __atomic_store_n(&c->waiters, 1, __ATOMIC_SEQ_CST); }
    static uint32_t ps_bell_read(ps_control *c) { return __atomic_load_n(&c->bell, __ATOMIC_SEQ_CST); }
    """
    void ps_waiters_raise(ps_control *c) nogil
    uint32_t ps_bell_read(ps_control *c) nogil

cdef extern from *:
    """
    #include <structmember.h>
    /* Make the last field of a type, an object, a plain slot: the interpreter reads one in place, a getter is a call. */
    static int ps_slot_of_last(PyObject *type, const char *name, const char *doc) {
        PyTypeObject *t = (PyTypeObject *)type;
        PyMemberDef *slot = PyMem_Calloc(1, sizeof *slot);  /* each type its own, for as long as that lives */
        if (!slot) { PyErr_NoMemory(); return -1; }
        slot->name = (char *)name;
        slot->type = T_OBJECT_EX;
        slot->offset = t->tp_basicsize - (Py_ssize_t)sizeof(PyObject *);
        slot->flags = READONLY;
        slot->doc = (char *)doc;
        PyObject *made = PyDescr_NewMember(t, slot);
        if (!made) return -1;
        int rc = PyDict_SetItemString(t->tp_dict, name, made);
        Py_DECREF(made);
        PyType_Modified(t);
        return rc;
    }
    """
    int ps_slot_of_last(object type, const char *name, const char *doc) except -1

ps_crc_init()

NAME = "native"
ROBUST = bool(PS_HAVE_ROBUST)

cdef object _EPOCH = _datetime.datetime(1970, 1, 1, tzinfo=_datetime.timezone.utc)
cdef object _timedelta = _datetime.timedelta
cdef uint64_t _DROP_BEHIND = 32 << 20
cdef double _NAP_S = 1.0        # how long a reader sleeps before it looks for signals, if none has woken it
cdef double _LOOK_S = 0.05      # how long `wait_any` sleeps before it looks for signals: another thread may have taken one


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


cdef int _check_range(Py_buffer *b, uint64_t start, uint64_t end) except -1:
    if start > end or end > <uint64_t> b.len:
        raise ValueError(f"range {start}..{end} is not within a buffer of {b.len} bytes")
    return 0


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


@cython.final
@cython.freelist(512)
cdef class Message:
    """One record: `sequence`, `timestamp` (UTC, or None when unknown), `payload`."""

    cdef readonly uint64_t sequence
    cdef int64_t us
    cdef bytes payload          # the last field: see below

    def __init__(self, uint64_t sequence, timestamp_us, bytes payload):
        self.sequence = sequence
        self.us = 0 if timestamp_us is None else timestamp_us
        self.payload = payload

    @property
    def timestamp_us(self):
        """Unix microseconds, or None when the time is not known."""
        return self.us if self.us else None

    @property
    def timestamp(self):
        """When the record was appended, in UTC, or None when that is not known."""
        return _EPOCH + _timedelta(microseconds=self.us) if self.us else None

    def __repr__(self):
        return f"Message(sequence={self.sequence}, timestamp_us={self.timestamp_us}, payload={self.payload!r})"

    def __eq__(self, other):
        if not isinstance(other, Message):
            return NotImplemented
        cdef Message m = <Message> other
        return self.sequence == m.sequence and self.us == m.us and self.payload == m.payload

    def __hash__(self):
        return hash((self.sequence, self.us, self.payload))

    def __reduce__(self):
        return Message, (self.sequence, self.timestamp_us, self.payload)


ps_slot_of_last(Message, b"payload", b"The record's bytes.")


@cython.final
@cython.freelist(512)
cdef class Record:
    """A record of an earlier session: `payload`, and of what it is a part: `group`, `complete`, `session`. Like a tuple of these
    it can be unpacked and compared."""

    cdef readonly uint64_t group, session
    cdef readonly bint complete
    cdef bytes payload          # the last field, as above

    def __init__(self, bytes payload, uint64_t group, bint complete, uint64_t session):
        self.payload, self.group, self.complete, self.session = payload, group, complete, session

    def __iter__(self):
        return iter((self.payload, self.group, self.complete, self.session))

    def __repr__(self):
        return (f"Record(payload={self.payload!r}, group={self.group}, complete={self.complete}, "
                f"session={self.session})")

    def __eq__(self, other):
        return tuple(self) == tuple(other) if isinstance(other, (Record, tuple)) else NotImplemented

    def __hash__(self):
        return hash(tuple(self))

    def __reduce__(self):
        return Record, tuple(self)


ps_slot_of_last(Record, b"payload", b"The record's bytes.")


def records(list payloads, uint64_t group, bint complete, uint64_t session):
    """The same group's records, of these payloads."""
    cdef list out = []
    cdef Record record
    for payload in payloads:
        record = Record.__new__(Record)
        record.payload, record.group, record.complete, record.session = payload, group, complete, session
        out.append(record)
    return out


cdef inline Message _message(uint64_t sequence, int64_t us, bytes payload):
    cdef Message m = Message.__new__(Message)
    m.sequence = sequence
    m.us = -us if us < 0 else us
    m.payload = payload
    return m


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


cdef class ControlPage:
    """The words every process shares. `file_lock` (acquire, release) stands in where there is no robust mutex.

    `with page` holds the lock; `on_locked()` is called inside, and what it returns is the block's target. Entering and
    leaving are C, so that no signal's exception comes between them and the block: the lock is never left behind.
    """

    cdef Py_buffer buf
    cdef ps_control *c
    cdef object file_lock
    cdef readonly bint writable
    cdef public object on_locked

    def __init__(self, page, file_lock=None, bint writable=True):
        _keep(page, &self.buf, PyBUF_WRITABLE if writable else PyBUF_SIMPLE)
        self.c = <ps_control *> self.buf.buf    # from here on __dealloc__ lets the buffer go
        _check_range(&self.buf, 0, 4096)
        self.file_lock = file_lock
        self.writable = writable

    def __dealloc__(self):
        if self.c != NULL:
            PyBuffer_Release(&self.buf)

    cdef uint64_t *word(self, uint64_t offset) except NULL:
        if offset % 8 or offset > 4088:
            raise ValueError(f"no word at {offset}")
        return <uint64_t *> (<uint8_t *> self.buf.buf + offset)

    def load(self, uint64_t offset):
        return PS_LOAD(self.word(offset))

    cdef int must_write(self) except -1:
        if not self.writable:
            raise ValueError("the control page is mapped read-only")
        return 0

    def store(self, uint64_t offset, uint64_t value):
        self.must_write()
        PS_STORE(self.word(offset), value)

    def init_lock(self):
        cdef int rc
        self.must_write()
        if self.file_lock is None:
            rc = ps_mutex_init(self.c)
            if rc:
                raise OSError(rc, "cannot make a robust mutex")

    def lock(self):
        """Take the lock. What an owner that died left behind shows as dirty_end != end; appends look for that."""
        cdef int rc
        self.must_write()
        if self.file_lock is not None:
            self.file_lock.acquire()
            return
        rc = ps_lock_try(self.c)
        if rc == EBUSY:
            with nogil:
                rc = ps_lock_wait(self.c)
        if rc:
            raise OSError(rc, "the log's mutex cannot be taken")

    cdef int let_go(self) except -1:
        if self.file_lock is None:
            ps_unlock(self.c)
            return 0
        try:
            self.file_lock.release()
        except BaseException:           # a signal's, before it had begun: again, then on with it
            self.file_lock.release()
            raise
        return 0

    def unlock(self):
        self.must_write()
        self.let_go()
        if ps_someone_waits(self.c):
            ps_bell_ring(self.c)

    def __enter__(self):
        self.lock()
        try:
            return None if self.on_locked is None else self.on_locked()
        except BaseException:
            self.unlock()
            raise

    def __exit__(self, *error):
        self.unlock()

    cdef uint64_t snapshot(self, ps_slot *out, uint64_t *base) noexcept nogil:
        """The active slot, whole: the turn is looked at before and after."""
        cdef uint64_t turn
        cdef ps_slot *slot
        while True:
            turn = PS_LOAD(&self.c.turn)
            slot = &self.c.slots[turn & 1]
            out.end = PS_LOAD(&slot.end)
            out.next = PS_LOAD(&slot.next)
            out.segment = PS_LOAD(&slot.segment)
            base[0] = PS_LOAD(&self.c.base[turn & 1])
            if PS_LOAD(&self.c.turn) == turn:
                return turn

    def active(self):
        """(turn, segment, base, end, next) of the segment being written."""
        cdef ps_slot s
        cdef uint64_t base
        cdef uint64_t turn = self.snapshot(&s, &base)
        return turn, s.segment, base, s.end, s.next

    cdef bint polls(self) noexcept:
        """Whether those who wait here look again and again: nobody would ring for them."""
        return not self.writable or self.file_lock is not None or not PS_HAVE_ROBUST

    def wait(self, uint64_t segment, uint64_t end, double timeout_s):
        """Sleep until the log is no longer at (segment, end), or the bell is rung: True, look again. False: `timeout_s`
        passed. A negative one is for ever."""
        cdef ps_slot s
        cdef uint64_t base
        cdef uint32_t bell
        cdef int rc
        cdef double left = timeout_s, until = 0, nap
        cdef bint polls = self.polls()
        if timeout_s >= 0:
            until = _time.monotonic() + timeout_s
        nap = 0.00005
        bell = ps_bell_read(self.c)      # once: a ring at any time after this counts
        while True:
            if not polls:
                ps_waiters_raise(self.c)
            self.snapshot(&s, &base)
            if s.segment != segment or s.end != end:
                return True
            if timeout_s >= 0:
                left = until - _time.monotonic()
                if left <= 0:
                    return False
            if polls:
                _time.sleep(nap if timeout_s < 0 else min(nap, left))
                PyErr_CheckSignals()        # one that came while we were not asleep has interrupted nothing
                nap = min(nap * 2, 0.002)
                if ps_bell_read(self.c) != bell:
                    return True
            else:
                with nogil:
                    rc = ps_bell_wait(self.c, bell, min(left, _NAP_S) if timeout_s >= 0 else _NAP_S)
                PyErr_CheckSignals()        # one that came before we slept, or to another thread, has interrupted nothing
                if rc != EINTR and ps_bell_read(self.c) != bell:
                    return True

    def ring(self):
        """Wake every sleeping reader, to look again."""
        if self.writable:
            ps_bell_ring(self.c)


def wait_any(pages, places, timeout_s):
    """Sleep until any of these logs is no longer at its place (segment, end), or its bell is rung: True, look again. False:
    `timeout_s` passed. None is for ever."""
    cdef tuple held = tuple(pages)          # our own: a list may change while we sleep
    cdef tuple at = tuple(places)
    cdef Py_ssize_t count = len(held), i
    cdef bytes room = PyBytes_FromStringAndSize(NULL, count * sizeof(ps_bell))
    cdef ps_bell *bells = <ps_bell *> PyBytes_AS_STRING(room)
    cdef bint polls = count == 0 or count > PS_BELLS_MOST, forever = timeout_s is None
    cdef double left = _LOOK_S, until = 0, nap = 0.00005
    cdef ps_slot s
    cdef uint64_t base
    cdef int rc
    if len(at) != count:
        raise ValueError(f"{count} pages, but {len(at)} places")
    if not forever:
        until = _time.monotonic() + <double> timeout_s
    for i in range(count):
        if not isinstance(held[i], ControlPage):
            raise TypeError(f"a ControlPage is needed, not {type(held[i]).__name__}")
        bells[i].segment, bells[i].end = at[i]
        bells[i].ctl = (<ControlPage> held[i]).c
        polls = polls or (<ControlPage> held[i]).polls()
    for i in range(count):
        bells[i].seen = ps_bell_read(bells[i].ctl)      # once: a ring at any time after this counts
    while True:
        if not polls:
            for i in range(count):
                ps_waiters_raise(bells[i].ctl)
        for i in range(count):
            (<ControlPage> held[i]).snapshot(&s, &base)
            if s.segment != bells[i].segment or s.end != bells[i].end:
                return True
        if not forever:
            left = until - _time.monotonic()
            if left <= 0:
                return False
        if polls:
            _time.sleep(min(left, nap if count else _LOOK_S))
            nap = min(nap * 2, 0.002)
        else:
            with nogil:
                rc = ps_bells_wait(bells, count, min(left, _LOOK_S))
            polls = rc not in (0, EAGAIN, ETIMEDOUT, EINTR)     # the system is too old for this, or forbids it
        PyErr_CheckSignals()        # one that came while we were not asleep, or to another thread, has interrupted nothing
        for i in range(count):
            if ps_bell_read(bells[i].ctl) != bells[i].seen:
                return True


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


include "taker.pxi"
include "buffered.pxi"
