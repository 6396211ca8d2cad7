/* The frames of one batch, collected in memory, and what is known of the batch. No I/O, no locks. */
#ifndef PENSTOCK_PILE_H
#define PENSTOCK_PILE_H

#include "writer.h"

#define PS_PILE_BYTES (64u << 10)    /* what a new pile has room for at first */
#define PS_PILE_RECORDS 1024u
#define PS_BLOCK_BYTES 512u          /* no file system has smaller blocks */

/* What is known of a batch. The thread's last touch of it is the store of `done`. */
typedef struct {
    void *owner;           /* the Python object that it lies in */
    uint64_t first;        /* sequence of the first record, once durable */
    uint64_t count;        /* records so far */
    int error;             /* errno of what failed it, or PS_RAISED */
    int done;
} ps_outcome;

typedef struct {
    uint8_t *at;
    uint64_t size;
} ps_text;

/* The frames of one batch. */
typedef struct ps_pile {
    struct ps_pile *next;
    ps_outcome *out;
    uint8_t *frames;
    ps_entry *entries;
    uint64_t bytes, room, count, entries_room;
    ps_text state;         /* a copy of its last record of PS_STATE_KIND: made now, since the thread must not fail */
    int64_t born_ns, sync_ns;
    int urgent;            /* do not wait for more */
    int doom;              /* what failed it, or one before it: its records are counted as lost */
    int hollow;            /* it has a record whose head is zero: without a checksum nothing tells it from no record */
} ps_pile;

static void ps_pile_free(ps_pile *p) {
    free(p->frames);
    free(p->entries);
    free(p->state.at);
    free(p);
}

/* Room for so much more; nonzero when there is no memory. */
static int ps_pile_reserve(ps_pile *p, uint64_t bytes, uint64_t count) {
    if (p->room - p->bytes < bytes) {
        uint64_t room = p->room ? 2 * p->room : PS_PILE_BYTES;
        if (room < p->bytes + bytes) room = p->bytes + bytes;
        uint8_t *grown = realloc(p->frames, room);
        if (!grown) return ENOMEM;
        p->frames = grown;
        p->room = room;
    }
    if (p->entries_room - p->count < count) {
        uint64_t room = p->entries_room ? 2 * p->entries_room : PS_PILE_RECORDS;
        if (room < p->count + count) room = p->count + count;
        if (room > SIZE_MAX / sizeof(ps_entry)) return ENOMEM;
        ps_entry *grown = realloc(p->entries, room * sizeof(ps_entry));
        if (!grown) return ENOMEM;
        p->entries = grown;
        p->entries_room = room;
    }
    return 0;
}

/* There is room. `stable`: nobody changes the payload meanwhile, so its checksum may be taken from its own place, where
 * the loads need not wait for the copy's stores; else it must be of what is written. */
static inline void ps_pile_add(ps_spec spec, ps_pile *p, const uint8_t *payload, uint32_t n, uint32_t kind,
                               int stable) {
    uint8_t *dst = p->frames + p->bytes;
    uint64_t size = ps_overhead(spec) + n;
    uint32_t head = ps_put_body(spec, dst, payload, n, kind);
    ps_put_head(dst, head);
    p->hollow |= head == 0;
    p->entries[p->count++].sum =
        stable && !spec.sum ? ps_crc64(ps_crc64_head(head), payload, n) : ps_crc64(0, dst, size);
    p->bytes += size;
}

/* Whether the batch, at byte `at` of its file, has nothing but zeros in one of the file's blocks. */
static int ps_pile_has_blank(const ps_pile *p, uint64_t at) {
    for (uint64_t from = 0, to; from < p->bytes; from = to) {
        to = from + PS_BLOCK_BYTES - (at + from) % PS_BLOCK_BYTES;
        if (to > p->bytes) to = p->bytes;
        const uint8_t *block = p->frames + from;
        if (block[0] == 0 && memcmp(block, block + 1, to - from - 1) == 0) return 1;
    }
    return 0;
}

/* Where payloads come from: items, or values [start, start + count) by Arrow's offsets; the caller has checked them. */
typedef struct {
    const ps_item *items;
    const void *offsets;
    const uint8_t *values;
    uint64_t start, count, bytes;    /* bytes of the frames */
    uint32_t kind;
    int wide, stable;
} ps_source;

static inline ps_item ps_source_at(const ps_source *s, uint64_t i) {
    if (s->items) return s->items[i];
    const int32_t *o32 = s->offsets;
    const int64_t *o64 = s->offsets;
    i += s->start;
    uint64_t lo = s->wide ? (uint64_t)o64[i] : (uint64_t)o32[i];
    uint64_t hi = s->wide ? (uint64_t)o64[i + 1] : (uint64_t)o32[i + 1];
    return (ps_item){s->values + lo, (uint32_t)(hi - lo)};
}

/* Add all of them, or nothing: nonzero when there is no memory. */
static int ps_pile_take(ps_spec spec, ps_pile *p, const ps_source *s) {
    if (ps_pile_reserve(p, s->bytes, s->count)) return ENOMEM;
    uint64_t size = 0;
    uint8_t *state = NULL;
    if (s->kind == PS_STATE_KIND) {
        size = ps_source_at(s, s->count - 1).size;
        state = malloc(size ? size : 1);
        if (!state) return ENOMEM;
    }
    for (uint64_t i = 0; i < s->count; i++) {
        ps_item one = ps_source_at(s, i);
        ps_pile_add(spec, p, one.data, one.size, s->kind, s->stable);
    }
    if (state) {
        memcpy(state, ps_payload(spec, p->frames + p->bytes - size - ps_overhead(spec)), size);
        free(p->state.at);
        p->state = (ps_text){state, size};
    }
    return 0;
}

#endif
