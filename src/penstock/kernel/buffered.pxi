# Part of _native.pyx: appending through memory. The work is in buffered.h; here it meets Python objects.
#
# The thread holds a reference to its object, so that one with a thread is never freed; `close` gives it back, at the exit
# of the interpreter at the latest (closing.py). In a forked child there is no thread and `m` may be held for ever, so
# nothing touches it there.

from cpython.ref cimport Py_DECREF, Py_INCREF

import os as _os
import sys as _sys

from penstock.errors import BufferFull
from penstock.kernel import closing as _closing


cdef extern from "buffered.h" nogil:
    ctypedef struct ps_outcome:
        void *owner
        uint64_t first, count
        int error, done
    ctypedef struct ps_text:
        uint8_t *at
        uint64_t size
    ctypedef struct ps_pile:
        pass
    ctypedef struct ps_place:
        int data_fd, times_fd, index_fd
        uint64_t turn, base, start, limit, interval
    ctypedef struct ps_hooks:
        int (*help)(void *self, ps_outcome *out, int code, uint64_t bytes, uint64_t records) noexcept nogil
        int (*enter)(void *self, ps_outcome *out) noexcept nogil
        void (*leave)(void *self) noexcept nogil
        void (*failed)(void *self, int error) noexcept nogil
    ctypedef struct pthread_mutex_t:
        pass
    ctypedef struct ps_buffered:
        ps_control *ctl
        ps_spec spec
        ps_hooks hooks
        void *self
        uint64_t batch_records, most_bytes, most_records, segment_bytes, serial, pending, pending_records, lost, syncs, sync_ns
        int64_t linger_ns
        int by_mutex, sync, started, stop, deaf, broken
        pthread_mutex_t m
        ps_text state
        int bell[2]
    ctypedef struct ps_source:
        const ps_item *items
        const void *offsets
        const uint8_t *values
        uint64_t start, count, bytes
        uint32_t kind
        int wide, stable
    enum: PS_PUT_OK, PS_PUT_FRESH, PS_PUT_FULL, PS_PUT_BROKEN, PS_PUT_CLOSED, PS_PUT_FORKED, PS_PUT_MEMORY
    enum: PS_RAISED, PS_POISONED
    int ps_buffered_init(ps_buffered *b)
    void ps_buffered_free(ps_buffered *b)
    int ps_buffered_start(ps_buffered *b)
    void ps_buffered_stop(ps_buffered *b)
    void ps_buffered_join(ps_buffered *b)
    int ps_buffered_forked(ps_buffered *b)
    int ps_buffered_is_thread(ps_buffered *b)
    void ps_buffered_stand(ps_buffered *b, ps_place place)
    ps_outcome *ps_buffered_append(ps_buffered *b, const uint8_t *payload, uint32_t n, uint32_t kind, uint64_t *place)
    int ps_buffered_put(ps_buffered *b, const ps_source *s, ps_outcome *fresh, ps_outcome **out, uint64_t *place)
    int ps_buffered_reserve(ps_buffered *b, uint64_t bytes, uint64_t records, ps_pile **pile)
    int ps_pile_take(ps_spec spec, ps_pile *p, const ps_source *s)
    int ps_buffered_link(ps_buffered *b, ps_pile *p, const ps_source *s, int rc, ps_outcome *fresh)
    void ps_buffered_flush(ps_buffered *b)
    int ps_buffered_wait(ps_buffered *b, const ps_outcome *out, int64_t until, int own)
    int ps_buffered_wait_room(ps_buffered *b, uint64_t bytes, uint64_t records, int64_t until)
    int ps_buffered_wait_ended(ps_buffered *b, int64_t until)
    int ps_buffered_bell(ps_buffered *b)
    void ps_buffered_bell_close(ps_buffered *b)
    void ps_bell_drain(int fd)
    int64_t ps_mono_ns()
    int PS_LOAD_INT "PS_LOAD"(int *p)
    void ps_buffered_break(ps_buffered *b, int error)
    void ps_buffered_doom(ps_buffered *b, int error)
    int pthread_mutex_lock(pthread_mutex_t *m)
    int pthread_mutex_unlock(pthread_mutex_t *m)

cdef int64_t _SLICE_NS = 50_000_000     # how long a wait lasts before it looks for signals
cdef uint64_t _LARGE = 1 << 20          # copied without the GIL
cdef object _is_finalizing = _sys.is_finalizing, _strerror = _os.strerror   # when modules are empty, these still work


cdef int64_t _until(object timeout_s) except? -1:
    """When to stop waiting, by the monotonic clock."""
    cdef double seconds
    if timeout_s is None:
        return INT64_MAX
    seconds = timeout_s
    if not seconds > 0:
        return 0
    return INT64_MAX if seconds > 1e9 else ps_mono_ns() + <int64_t> (seconds * 1e9)


@cython.final
@cython.freelist(64)
cdef class Batch:
    """What one write and sync puts on the disk, or fails to. Made when its first record is appended."""

    cdef ps_outcome out
    cdef uint64_t serial        # of the object that writes it
    cdef object raised, trace

    def __cinit__(self):
        memset(&self.out, 0, sizeof(ps_outcome))
        self.out.owner = <void *> self

    @property
    def done(self):
        """Whether it is durable, or has failed."""
        return bool(PS_LOAD_INT(&self.out.done))

    @property
    def first(self):
        """Sequence of its first record, once durable; else None."""
        return self.out.first if PS_LOAD_INT(&self.out.done) and not self.out.error else None

    @property
    def count(self):
        """Records so far."""
        return self.out.count

    @property
    def error(self):
        """Errno of the write or sync that failed it, else 0."""
        return self.out.error if PS_LOAD_INT(&self.out.done) and self.out.error > 0 else 0

    @property
    def exception(self):
        """What failed it, as `wait` raises it; None while nothing has."""
        if not PS_LOAD_INT(&self.out.done) or not self.out.error:
            return None
        if self.raised is not None:
            return self.raised.with_traceback(self.trace)   # else each raise would add to the one before
        return _failure(self.out.error)

    cdef void keep(self, object error):
        self.raised, self.trace = error, error.__traceback__


cdef object _failure(int error):
    return OSError(error, f"the records could not be put on the disk ({_strerror(error)}); "
                          "none of them are in the log")


cdef int _help(void *arg, ps_outcome *out, int code, uint64_t bytes, uint64_t records) noexcept with gil:
    cdef Buffered self = <Buffered> arg
    try:
        self.on_slow(code, bytes, records)
        return 0
    except BaseException as error:
        self.fail_all(<Batch> out.owner, error, code == PS_POISONED)
        return PS_RAISED


cdef int _enter(void *arg, ps_outcome *out) noexcept with gil:
    cdef Buffered self = <Buffered> arg
    try:
        self.page.file_lock.acquire()
        return 0
    except BaseException as error:
        self.fail_all(<Batch> out.owner, error, False)
        return PS_RAISED


cdef void _leave(void *arg) noexcept with gil:
    (<Buffered> arg).page.let_go()


cdef void _failed(void *arg, int error) noexcept with gil:
    (<Buffered> arg).on_error(error)


cdef class Buffered:
    """Appends to the active segment of one log through memory: a thread writes and syncs whole batches. Thread-safe.

    A batch is written when it has `batch_records`, when `linger_s` have passed since its first one, or when `flush`, `close`
    or a full buffer ask for it; what arrives meanwhile is the next one. It never has more than `segment_bytes`, what an
    empty segment has room for.

    `on_slow(code, bytes, records)` is called in the thread, without the lock, when a batch cannot be written yet: it mends
    the cause or raises, which fails the batch (POISONED: and all later ones). `on_error(errno)` is called there when a write
    or a sync failed; from then on everything is refused. Only a full disk is no such end: it fails the batch, and those that
    were behind it then, which would leave a hole. Neither may wait for a batch, nor take a lock that somebody holds who does.
    """

    cdef ps_buffered b
    cdef ControlPage page
    cdef object on_slow, on_error
    cdef list live              # batches that the thread may still write to, in order; perhaps some done ones
    cdef list closing           # those that `close` has to answer for
    cdef Batch last_straw       # the one whose exception is every later one's
    cdef bint made, joined
    cdef uint64_t fast_least, fast_most, kinds
    cdef object __weakref__

    def __cinit__(self):
        memset(&self.b, 0, sizeof(ps_buffered))
        self.b.stop = 1         # until it is made

    def __init__(self, ControlPage page not None, spec, on_slow, on_error, *, uint64_t batch_records, double linger_s,
                 uint64_t most_bytes, uint64_t segment_bytes, bint sync, uint64_t most_records=INT64_MAX):
        cdef int rc
        if self.made:
            raise RuntimeError("it is made already")
        page.must_write()
        if batch_records < 1 or not linger_s >= 0:
            raise ValueError("batch_records must be at least 1, and linger_s not negative")
        self.page = page
        self.on_slow = on_slow
        self.on_error = on_error
        self.live, self.closing = [], []
        self.b.ctl = page.c
        self.b.spec = _spec(spec)
        self.b.self = <void *> self
        self.b.hooks.help, self.b.hooks.enter = _help, _enter
        self.b.hooks.leave, self.b.hooks.failed = _leave, _failed
        self.b.by_mutex = page.file_lock is None
        self.b.batch_records = batch_records
        self.b.linger_ns = <int64_t> (min(linger_s, 1e9) * 1e9)
        self.b.most_bytes = most_bytes
        self.b.most_records = most_records
        self.b.segment_bytes = segment_bytes
        self.b.sync = sync
        self.fast_least = self.b.spec.zero_ends
        self.fast_most = min(min(_LARGE, segment_bytes) - ps_overhead(self.b.spec), ps_max_payload(self.b.spec))
        if segment_bytes < ps_overhead(self.b.spec):
            raise ValueError("a segment must have room for a record")
        self.kinds = <uint64_t> 1 << self.b.spec.shift
        rc = ps_buffered_init(&self.b)
        if rc:
            raise OSError(rc, "no lock to be had")
        self.made = True
        self.b.stop = 0
        _closing.still_open.add(self)

    def __dealloc__(self):
        if self.made:
            ps_buffered_bell_close(&self.b)
            ps_buffered_free(&self.b)

    cdef void fail_all(self, Batch batch, object error, bint ever):
        """What failed this batch fails those behind it too, and `ever`, all that come. None can come while we hold the GIL."""
        batch.keep(error)
        for one in self.live:
            (<Batch> one).keep(error)
        if ever:
            self.last_straw = batch
            ps_buffered_break(&self.b, PS_RAISED)
        pthread_mutex_lock(&self.b.m)
        ps_buffered_doom(&self.b, PS_RAISED)
        pthread_mutex_unlock(&self.b.m)

    # ---- where it stands ----

    cdef int stand(self, ps_place place) except -1:
        with nogil:
            ps_buffered_stand(&self.b, place)
        return 0

    def attach(self, int data_fd, int times_fd, int index_fd, *, uint64_t turn, uint64_t start, uint64_t limit,
               uint64_t interval):
        """Stand on the segment of `turn`: its data begin at `start` and may reach to `limit`. Call with the lock held.

        The index notes the place of each `interval`-th record of the segment; without one `index_fd` is -1.
        """
        cdef ps_place place
        cdef ControlPage page = self.page       # our own: `close` lets go of it
        if page is None:
            self.refuse(PS_PUT_CLOSED)
        self.detach()
        if start > limit or data_fd < 0 or times_fd < 0 or (index_fd >= 0 and interval < 1):
            raise ValueError("no such segment")
        place.data_fd, place.times_fd, place.index_fd = data_fd, times_fd, index_fd
        place.turn, place.start, place.limit = turn, start, limit
        place.interval = min(interval, <uint64_t> 1 << 48)      # more than a file has records; sums of it must not wrap
        place.base = page.c.base[turn & 1]
        self.stand(place)

    def detach(self):
        """Stand on no segment: the next batch asks `on_slow` for one. When this returns the files may be closed."""
        cdef ps_place place
        memset(&place, 0, sizeof(ps_place))
        place.data_fd = place.times_fd = place.index_fd = -1
        self.stand(place)

    # ---- appending ----

    def append(self, payload, uint32_t kind=0, timeout_s=None):
        """Take one record; its batch, and its place in it. `timeout_s` is for a full buffer: None is for ever."""
        cdef uint64_t n, place
        cdef ps_outcome *out
        cdef Batch batch
        if PyBytes_CheckExact(payload):
            n = PyBytes_GET_SIZE(payload)
            if n <= self.fast_most and n >= self.fast_least and kind < self.kinds:
                out = ps_buffered_append(&self.b, <const uint8_t *> PyBytes_AS_STRING(payload), <uint32_t> n, kind,
                                         &place)
                if out != NULL:
                    batch = <Batch> out.owner
                    return batch, place
        return self.append_many((payload,), kind, timeout_s)

    def append_many(self, payloads, uint32_t kind=0, timeout_s=None):
        """Take many records as parts of one batch; that, and the first one's place in it."""
        cdef _Items items = _Items.__new__(_Items)
        cdef ps_source s
        items.collect(self.b.spec, payloads, kind)
        memset(&s, 0, sizeof(ps_source))
        s.items, s.count, s.bytes, s.kind, s.stable = items.at, items.count, items.bytes, kind, not items.views
        return self.take(&s, timeout_s)

    def append_arrow(self, offsets, bint wide, values, uint64_t start, uint64_t count, timeout_s=None):
        """Take `count` values of an Arrow binary array, from its `start`-th, as parts of one batch."""
        cdef Py_buffer o, v
        cdef ps_source s
        if count == 0:
            raise InvalidPayload("an empty batch has no sequence")
        memset(&s, 0, sizeof(ps_source))
        PyObject_GetBuffer(offsets, &o, PyBUF_SIMPLE)
        try:
            PyObject_GetBuffer(values if values is not None else b"", &v, PyBUF_SIMPLE)
        except BaseException:
            PyBuffer_Release(&o)
            raise
        try:
            s.bytes = _check_arrow(self.b.spec, &o, wide, &v, start, count)
            s.offsets, s.values, s.start, s.count, s.wide = o.buf, <const uint8_t *> v.buf, start, count, wide
            return self.take(&s, timeout_s)
        finally:
            PyBuffer_Release(&o)
            PyBuffer_Release(&v)

    cdef tuple take(self, ps_source *s, object timeout_s):
        cdef Batch fresh = None
        cdef ps_outcome *out = NULL
        cdef uint64_t place = 0
        cdef int64_t until = -1
        cdef int rc
        if s.count == 0:
            raise InvalidPayload("an empty batch has no sequence")
        if s.kind >= self.kinds:
            raise ValueError(f"kind {s.kind} does not fit the {self.b.spec.shift} bits below the length")
        if s.bytes > self.b.segment_bytes:
            raise InvalidPayload(
                f"{s.bytes} bytes with their heads are more than a file has room for ({self.b.segment_bytes})"
                + ("; append fewer records at a time" if s.count > 1 else ""))
        while True:
            if s.bytes > _LARGE:
                fresh = self.fresh()
                rc = self.put_large(s, fresh)
                out = &fresh.out
            elif fresh is None:
                rc = ps_buffered_put(&self.b, s, NULL, &out, &place)
            else:
                self.live.append(fresh)
                rc = ps_buffered_put(&self.b, s, &fresh.out, &out, &place)
                if rc != PS_PUT_OK or out != &fresh.out:
                    self.live.pop()                         # not needed after all
            if rc == PS_PUT_OK:
                return <Batch> out.owner, place
            if rc == PS_PUT_FRESH:
                fresh = self.fresh()
            elif rc == PS_PUT_FULL:
                if until < 0:
                    until = _until(timeout_s)
                self.wait_room(s, until)
            else:
                self.refuse(rc)

    cdef Batch fresh(self):
        """A batch for the next records. The thread is started when it is first needed."""
        cdef Batch batch = Batch.__new__(Batch)
        cdef int rc
        while self.live and PS_LOAD_INT(&(<Batch> self.live[0]).out.done):
            del self.live[0]
        batch.serial = self.b.serial
        if not self.b.started and not self.b.stop and not ps_buffered_forked(&self.b):
            rc = ps_buffered_start(&self.b)
            if rc:
                raise OSError(rc, "no thread to be had that writes the records")
            Py_INCREF(self)
        return batch

    cdef int put_large(self, ps_source *s, Batch fresh) except -1:
        cdef ps_pile *pile = NULL
        cdef int rc = ps_buffered_reserve(&self.b, s.bytes, s.count, &pile)
        if rc == PS_PUT_OK:
            with nogil:
                if ps_pile_take(self.b.spec, pile, s):
                    rc = PS_PUT_MEMORY
            self.live.append(fresh)
            rc = ps_buffered_link(&self.b, pile, s, rc, &fresh.out)
            if rc != PS_PUT_OK:
                self.live.pop()
        return rc

    cdef int wait_room(self, ps_source *s, int64_t until) except -1:
        cdef int64_t slice_end
        cdef int worth
        while True:
            slice_end = 0 if ps_buffered_is_thread(&self.b) else min(until, ps_mono_ns() + _SLICE_NS)
            with nogil:
                worth = ps_buffered_wait_room(&self.b, s.bytes, s.count, slice_end)
            if worth:
                return 0
            PyErr_CheckSignals()
            if slice_end == 0 or ps_mono_ns() >= until:
                raise BufferFull(
                    f"{self.b.pending_records} records of {self.b.pending} bytes are not on the disk yet, and {s.count} of "
                    f"{s.bytes} more would pass what may wait; append again when a batch is done")

    cdef int refuse(self, int rc) except -1:
        if rc == PS_PUT_CLOSED:
            raise ValueError("it was closed; nothing more can be appended")
        if rc == PS_PUT_FORKED:
            raise ValueError("it was made before a fork; make another one in the child process")
        if rc == PS_PUT_MEMORY:
            raise MemoryError("no memory for the records")
        if self.b.broken == PS_RAISED:
            raise self.last_straw.exception
        raise _failure(self.b.broken)

    # ---- waiting ----

    def wait(self, Batch batch not None, timeout_s=None):
        """Until the batch is durable: True. False when `timeout_s` passed (None: for ever). Raises what failed it."""
        cdef int64_t until, now
        cdef int done = PS_LOAD_INT(&batch.out.done)
        if batch.serial != self.b.serial:
            raise ValueError("the batch is another one's")
        if not done:
            if ps_buffered_forked(&self.b):
                self.refuse(PS_PUT_FORKED)
            if ps_buffered_is_thread(&self.b):
                raise RuntimeError("the thread that writes the batch cannot wait for it")
            until = _until(timeout_s)
        while not done:
            now = ps_mono_ns()
            with nogil:
                done = ps_buffered_wait(&self.b, &batch.out, min(until, now + _SLICE_NS), until == INT64_MAX)
            if not done:
                PyErr_CheckSignals()
                if ps_mono_ns() >= until:
                    return False
        if batch.out.error:
            raise batch.exception
        return True

    def flush(self):
        """Have everything appended so far written now; the batch to wait for, or None when there is nothing."""
        if ps_buffered_forked(&self.b):
            self.refuse(PS_PUT_FORKED)
        if self.b.broken:
            self.refuse(PS_PUT_BROKEN)
        cdef Py_ssize_t n = len(self.live)
        if n == 0 or PS_LOAD_INT(&(<Batch> self.live[n - 1]).out.done):
            return None
        ps_buffered_flush(&self.b)
        return self.live[n - 1]

    def close(self):
        """Write and sync what there is, end the thread and let go of the page. Raises what failed a batch there. Safe to call
        twice."""
        cdef int ended = 0
        cdef Batch batch
        cdef list closing
        if ps_buffered_forked(&self.b) or self.joined:
            return
        if ps_buffered_is_thread(&self.b):
            raise RuntimeError("the thread cannot wait for its own end")
        if not self.b.stop:
            self.closing = [batch for batch in self.live if not PS_LOAD_INT(&batch.out.done)]
        if _is_finalizing():
            self.b.deaf = 1                 # whoever asks for the GIL now never comes back
        ps_buffered_stop(&self.b)
        while not ended:
            with nogil:
                ended = ps_buffered_wait_ended(&self.b, ps_mono_ns() + _SLICE_NS)
            if not ended:
                PyErr_CheckSignals()
        if not self.joined:
            self.joined = True
            if self.b.started:
                with nogil:
                    ps_buffered_join(&self.b)
                Py_DECREF(self)
            self.live.clear()
            self.b.ctl = NULL               # only the thread looked there, and asked those
            self.page = self.on_slow = self.on_error = None
        closing, self.closing = self.closing, []
        for batch in closing:
            if batch.out.error:
                self.wait(batch)

    def fileno(self):
        """A descriptor, readable when a batch was done since the last `drain`. It lives as long as this object."""
        cdef int rc
        if ps_buffered_forked(&self.b):
            self.refuse(PS_PUT_FORKED)
        rc = ps_buffered_bell(&self.b)
        if rc:
            raise OSError(rc, _strerror(rc))
        return self.b.bell[0]

    def drain(self):
        """Read the descriptor empty. Look at batches after this, not before."""
        if self.b.bell[0] >= 0:
            ps_bell_drain(self.b.bell[0])

    @property
    def state(self):
        """The payload of the last record of kind 1 that was written; empty before the first."""
        cdef bytes out
        if ps_buffered_forked(&self.b):
            self.refuse(PS_PUT_FORKED)
        pthread_mutex_lock(&self.b.m)
        try:
            out = PyBytes_FromStringAndSize(<const char *> self.b.state.at, self.b.state.size)
        finally:
            pthread_mutex_unlock(&self.b.m)
        return out

    @property
    def waiting(self):
        """(records, bytes) that were appended and are not on the disk yet."""
        return PS_LOAD(&self.b.pending_records), PS_LOAD(&self.b.pending)

    @property
    def synced(self):
        """How many batches were synced, and the nanoseconds that took."""
        return PS_LOAD(&self.b.syncs), PS_LOAD(&self.b.sync_ns)

    @property
    def lost(self):
        """How many records were in batches that failed: for whoever waits for none of them."""
        return PS_LOAD(&self.b.lost)
