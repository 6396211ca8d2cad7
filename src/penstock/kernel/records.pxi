# Part of _native.pyx: what readers give.

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

from penstock.times import utc as _utc


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
        return _utc(self.us)

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
