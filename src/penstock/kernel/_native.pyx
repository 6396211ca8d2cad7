# cython: language_level=3, always_allow_keywords=False, binding=False, boundscheck=False, wraparound=False
"""The native kernel: hot loops over maps and buffers. No policy, no file names; `reference` says the same in Python.

The work itself is in C headers beside this file (crc.h, frames.h, shared.h, writer.h and others). In the parts included at the end it
meets Python objects, one part to a module of the reference.
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
    int ps_lock_nap(ps_control *c)
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

ps_crc_init()

NAME = "native"
ROBUST = bool(PS_HAVE_ROBUST)

include "buffers.pxi"
include "frames.pxi"
include "records.pxi"
include "page.pxi"
include "writer.pxi"
include "reader.pxi"
include "taker.pxi"
include "buffered.pxi"
