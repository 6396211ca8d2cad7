/* Appending to a mapped segment: what happens between taking the lock and letting it go. The caller holds the lock.
 *
 * Order of the stores, so that a process may die between any two of them:
 *   1. dirty_end, dirty_next    from here on there may be bytes beyond `end`
 *   2. payload, checksum, companion entry, index entry
 *   3. the frame's head         (of a batch: frames 2..n whole, then the first one's head)
 *   4. next, then end           readers look at `end` alone
 * Whoever finds dirty_end != end under the lock finishes the append if its frames verify, and zeroes them if not.
 */
#ifndef PENSTOCK_WRITER_H
#define PENSTOCK_WRITER_H

#include "frames.h"
#include "shared.h"

enum { PS_OK = 0, PS_REMAP = 1, PS_ROLL = 2, PS_SPACE = 3, PS_POISONED = 4, PS_DIRTY = 5 };

#define PS_SLOW (-1)     /* of ps_append_fast alone */
#define PS_AFTER (-2)

#define PS_BUFFER_MOST (16u << 20) /* larger batches are synced by their size, not by their number */
#define PS_FAST_MOST (1u << 20)    /* longer payloads are no matter of nanoseconds */

#define PS_COMPANION_HEADER 64
#define PS_INDEX_HEADER 256

typedef struct {
    ps_control *ctl;
    ps_slot *slot;
    uint8_t *data;
    int64_t *times;        /* companion entries of this segment, by record */
    uint8_t *index;        /* the index file from its first byte */
    uint64_t turn, base, start, limit, size, interval;
    uint64_t due;          /* place of the record that the index is to note next */
    uint64_t last;         /* no map has room for this sequence, whatever the control page says */
    uint64_t roll_next;    /* roll before this sequence ... */
    int64_t roll_us;       /* ... or from this time on */
    uint64_t notify_at;    /* ask for attention when `end` passes this */
    uint64_t *mirror;      /* if any: every published end is stored here too, big-endian, plus ... */
    uint64_t mirror_add;   /* ... this */
    ps_spec spec;
    int spill;             /* a record may pass the limit; the segment is left before the next one */
    int is_queue, by_mutex;
    int fd;                /* of the data file */
    int durable;           /* syncs are frequent: batches go through the file, see ps_batch_begin */
    uint8_t *buffer;
    uint64_t buffer_size;
    ps_clock clock;
} ps_writer;

typedef struct {
    uint64_t first, pos, at, seq, last;   /* the batch's first sequence, first byte; the cursor; its last sequence */
    uint8_t *room;                        /* where byte `pos` is put: in the map, or in a buffer to be written */
    int64_t us;
    uint32_t head;
} ps_batch;

/* Room for `need` bytes and `count` records? Changes nothing. A segment with no records takes anything that fits it. */
static inline int ps_admit(ps_writer *w, int64_t now, uint64_t need, uint64_t count, int64_t *us) {
    ps_slot *slot = w->slot;
    uint64_t pos = slot->end;
    if (__builtin_expect(w->ctl->turn != w->turn, 0)) return PS_REMAP;
    if (__builtin_expect(w->ctl->poison != 0, 0)) return PS_POISONED;
    if (__builtin_expect(slot->dirty_end != pos || slot->dirty_next != slot->next, 0)) return PS_DIRTY;
    *us = now > slot->last_us ? now : slot->last_us;
    uint64_t within = w->spill ? 1 : need;
    if (__builtin_expect(within > w->limit - pos || pos > w->limit || need > w->size - pos || slot->next >= w->roll_next ||
                         now >= w->roll_us, 0)) {
        if (pos != w->start || need > w->size - pos) return PS_ROLL;
    }
    if (__builtin_expect(pos + need > slot->allocated || slot->next + count > slot->entries || pos + need > w->size, 0))
        return PS_SPACE;
    if (__builtin_expect(slot->next + count > w->last || slot->next < w->base, 0)) return PS_ROLL;
    return PS_OK;
}

static inline void ps_companions(ps_writer *w, uint64_t seq, uint64_t pos, int64_t entry) {
    uint64_t place = seq - w->base;
    w->times[place] = entry;
    if (__builtin_expect(place >= w->due, 0)) {            /* the next multiple of the interval, or others went past it */
        uint64_t n = place / w->interval, pair[2] = {seq, pos};
        w->due = (n + 1) * w->interval;
        if (place % w->interval == 0) {
            memcpy(w->index + PS_INDEX_HEADER + 16 * n, pair, 16);
            n++;
            memcpy(w->index + 8, &n, 8);
        }
    }
}

/* From here on there may be bytes beyond `end`. Only what a dying process has already stored counts, so it is the compiler alone that
 * must not put any of those bytes before this: a store with release order would let it. */
static inline void ps_announce(ps_slot *slot, uint64_t next, uint64_t end) {
    slot->dirty_next = next;
    PS_STORE(&slot->dirty_end, end);
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
}

static inline void ps_publish(ps_writer *w, uint64_t next, uint64_t end, int64_t us) {
    ps_slot *slot = w->slot;
    slot->last_us = us;
    PS_STORE(&slot->next, next);
    PS_STORE(&slot->end, end);
    if (__builtin_expect(w->mirror != NULL, 0)) PS_STORE(w->mirror, ps_swap64(end + w->mirror_add, 1));
}

static inline __attribute__((always_inline)) int ps_append_as(ps_spec spec, ps_writer *w, const uint8_t *payload,
                                                              uint32_t n, int64_t now, uint64_t *seq, uint64_t *end) {
    uint64_t need = ps_overhead(spec) + n;
    int64_t us;
    int rc = ps_admit(w, now, need, 1, &us);
    if (__builtin_expect(rc != PS_OK, 0)) return rc;
    ps_slot *slot = w->slot;
    uint64_t pos = slot->end, s = slot->next;
    ps_announce(slot, s + 1, pos + need);
    uint8_t *dst = w->data + pos;
    uint32_t head = ps_put_body(spec, dst, payload, n, 0);
    ps_companions(w, s, pos, us);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    ps_put_head(dst, head);
    ps_publish(w, s + 1, pos + need, us);
    *seq = s;
    *end = pos + need;
    return PS_OK;
}

static inline int ps_append(ps_writer *w, const uint8_t *payload, uint32_t n, int64_t now, uint64_t *seq, uint64_t *end) {
    if (__builtin_expect(w->is_queue, 1)) return ps_append_as(ps_queue_spec, w, payload, n, now, seq, end);
    return ps_append_as(w->spec, w, payload, n, now, seq, end);
}

/* The whole of a plain append, lock and all, with nothing to be done afterwards; anything else gives PS_SLOW and has
 * changed nothing, or PS_AFTER: done, but somebody must be told. */
static int ps_append_fast(ps_writer *w, const uint64_t *wake_at, const uint8_t *payload, uint64_t n, uint64_t *seq,
                          uint64_t *end) {
    int64_t now = ps_now_us(&w->clock);    /* before the lock: here its 10 ns overlap with what came before */
    if (__builtin_expect(!w->by_mutex || n - 1 >= PS_FAST_MOST || ps_lock_try(w->ctl) != 0, 0)) return PS_SLOW;
    int rc = ps_append(w, payload, (uint32_t)n, now, seq, end);
    ps_unlock(w->ctl);
    if (__builtin_expect(rc != PS_OK, 0)) return PS_SLOW;
    if (__builtin_expect(ps_someone_waits(w->ctl) || *end >= w->notify_at || *end >= PS_LOAD(wake_at), 0)) return PS_AFTER;
    return PS_OK;
}

/* Pages dirtied through a map are slow to sync: their write protection is a fault each, and the file system writes whole
 * large folios for them (56 KB: 365 us against 157). So where syncs are frequent a batch is built in a buffer and written. */
static inline uint8_t *ps_batch_buffer(ps_writer *w, uint64_t bytes) {
    if (!w->durable || w->fd < 0 || bytes > PS_BUFFER_MOST) return NULL;
    if (w->buffer_size < bytes) {
        uint8_t *grown = realloc(w->buffer, bytes);
        if (!grown) return NULL;
        w->buffer = grown;
        w->buffer_size = bytes;
    }
    return w->buffer;
}

static inline int ps_batch_begin(ps_writer *w, uint64_t bytes, uint64_t count, ps_batch *b) {
    int rc = ps_admit(w, ps_now_us(&w->clock), bytes, count, &b->us);
    if (rc != PS_OK) return rc;
    ps_slot *slot = w->slot;
    b->first = b->seq = slot->next;
    b->last = b->first + count - 1;
    b->pos = b->at = slot->end;
    b->head = 0;
    b->room = ps_batch_buffer(w, bytes);
    if (!b->room) b->room = w->data + b->pos;
    ps_announce(slot, b->first + count, b->pos + bytes);
    return PS_OK;
}

/* A negative time says that the batch goes on with the next record: after a power cut, the proof that it is not whole. */
static inline __attribute__((always_inline)) void ps_batch_put_as(ps_spec spec, ps_writer *w, ps_batch *b,
                                                                  const uint8_t *payload, uint32_t n) {
    uint8_t *dst = b->room + (b->at - b->pos);
    uint32_t head = ps_put_body(spec, dst, payload, n, 0);
    if (b->at == b->pos) b->head = head;
    else ps_put_head(dst, head);
    ps_companions(w, b->seq, b->at, b->seq == b->last ? b->us : -b->us);
    b->at += ps_overhead(spec) + n;
    b->seq++;
}

typedef struct {
    const uint8_t *data;
    uint32_t size;
} ps_item;

static void ps_batch_put_items(ps_writer *w, ps_batch *b, const ps_item *items, uint64_t count) {
    if (w->is_queue)
        for (uint64_t i = 0; i < count; i++) ps_batch_put_as(ps_queue_spec, w, b, items[i].data, items[i].size);
    else
        for (uint64_t i = 0; i < count; i++) ps_batch_put_as(w->spec, w, b, items[i].data, items[i].size);
}

/* Values [i, i + 1) of Arrow's offsets, which the caller has checked. */
static void ps_batch_put_arrow(ps_writer *w, ps_batch *b, const void *offsets, int wide, const uint8_t *values,
                               uint64_t start, uint64_t count) {
    const int32_t *o32 = offsets;
    const int64_t *o64 = offsets;
    for (uint64_t i = start; i < start + count; i++) {
        uint64_t lo = wide ? (uint64_t)o64[i] : (uint64_t)o32[i], hi = wide ? (uint64_t)o64[i + 1] : (uint64_t)o32[i + 1];
        if (w->is_queue) ps_batch_put_as(ps_queue_spec, w, b, values + lo, (uint32_t)(hi - lo));
        else ps_batch_put_as(w->spec, w, b, values + lo, (uint32_t)(hi - lo));
    }
}

/* 0, or the errno of a failed write: then nothing is committed, and whoever appends next wipes what was written. */
static inline int ps_batch_commit(ps_writer *w, ps_batch *b) {
    if (b->room != w->data + b->pos) {
        for (uint64_t done = 4; done < b->at - b->pos;) {
            ssize_t n = pwrite(w->fd, b->room + done, b->at - b->pos - done, (off_t)(b->pos + done));
            if (n < 0 && errno == EINTR) continue;
            if (n <= 0) return n ? errno : EIO;
            done += (uint64_t)n;
        }
    }
    __atomic_thread_fence(__ATOMIC_RELEASE);
    ps_put_head(w->data + b->pos, b->head);
    ps_publish(w, b->seq, b->at, b->us);
    return 0;
}

#endif
