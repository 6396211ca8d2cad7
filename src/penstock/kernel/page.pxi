# Part of _native.pyx: the control page: its words, its lock, its bell.

cdef extern from *:
    """
    static void ps_waiters_raise(ps_control *c) { __atomic_store_n(&c->waiters, 1, __ATOMIC_SEQ_CST); }
    static uint32_t ps_bell_read(ps_control *c) { return __atomic_load_n(&c->bell, __ATOMIC_SEQ_CST); }
    """
    void ps_waiters_raise(ps_control *c) nogil
    uint32_t ps_bell_read(ps_control *c) nogil

cdef double _NAP_S = 1.0    # how long a reader sleeps before it looks for signals, if none has woken it
cdef double _LOOK_S = 0.05  # how long `wait_any` sleeps before it looks for signals: another thread may have taken one
cdef double _NAP_LEAST_S = 0.00005  # who polls sleeps for an eighth of the time in which nothing has come, but no shorter than this,
cdef double _NAP_OPEN_S = 0.002     # nor longer than this where the log is open for writing,
cdef double _NAP_MOST_S = 0.05      # nor than this where it is only read


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
    cdef uint64_t still_segment, still_end  # where those who poll have last seen the log,
    cdef double still_s                     # and since when

    def __init__(self, page, file_lock=None, bint writable=True):
        _keep(page, &self.buf, PyBUF_WRITABLE if writable else PyBUF_SIMPLE)
        self.c = <ps_control *> self.buf.buf    # from here on __dealloc__ lets the buffer go
        _check_range(&self.buf, 0, 4096)
        self.file_lock = file_lock
        self.writable = writable
        self.still_end = <uint64_t> -1          # nowhere yet

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
        """Take the lock, unless a signal's handler raises meanwhile. What an owner that died left behind shows as dirty_end != end;
        appends look for that."""
        cdef int rc
        self.must_write()
        if self.file_lock is not None:
            self.file_lock.acquire()
            return
        rc = ps_lock_try(self.c)
        while rc == EBUSY or rc == ETIMEDOUT:
            with nogil:
                rc = ps_lock_nap(self.c)
            if rc == ETIMEDOUT:
                PyErr_CheckSignals()
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

    cdef double nap(self, ps_slot *s):
        """How long one who polls, and has found the log at `s`, is to sleep: the longer, the longer it has been there. Whoever polls
        in this process counts, so one who waits a second at a time does not begin anew with each."""
        cdef double now = _time.monotonic()
        if s.segment != self.still_segment or s.end != self.still_end:
            self.still_segment, self.still_end, self.still_s = s.segment, s.end, now
        return max(_NAP_LEAST_S, min((now - self.still_s) / 8, _NAP_OPEN_S if self.writable else _NAP_MOST_S))

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
                nap = self.nap(&s)
                _time.sleep(nap if timeout_s < 0 else min(nap, left))
                PyErr_CheckSignals()        # one that came while we were not asleep has interrupted nothing
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
    cdef double left = _LOOK_S, until = 0, nap
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
        nap = _LOOK_S
        for i in range(count):
            (<ControlPage> held[i]).snapshot(&s, &base)
            if s.segment != bells[i].segment or s.end != bells[i].end:
                return True
            if polls:
                nap = min(nap, (<ControlPage> held[i]).nap(&s))
        if not forever:
            left = until - _time.monotonic()
            if left <= 0:
                return False
        if polls:
            _time.sleep(min(left, nap))
        else:
            with nogil:
                rc = ps_bells_wait(bells, count, min(left, _LOOK_S))
            polls = rc not in (0, EAGAIN, ETIMEDOUT, EINTR)     # the system is too old for this, or forbids it
        PyErr_CheckSignals()        # one that came while we were not asleep, or to another thread, has interrupted nothing
        for i in range(count):
            if ps_bell_read(bells[i].ctl) != bells[i].seen:
                return True
