/* Frames: how one record lies in a file, for any FrameSpec. No allocation, no Python, no I/O; bounds checked everywhere.
 *
 *   head | [sum] | payload | [sum]      head = u32 (length << shift | kind), in the spec's byte order
 */
#ifndef PENSTOCK_FRAMES_H
#define PENSTOCK_FRAMES_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "crc.h"

#define PS_STATE_KIND 1    /* records of this kind say in which state a file begins */

typedef struct {
    uint8_t big;           /* byte order of head and checksum */
    uint8_t shift;         /* bits of the head below the length, which hold the kind */
    uint8_t sum;           /* bytes of checksum: 0, 4 (CRC-32) or 8 (CRC-64) */
    uint8_t sum_first;     /* before the payload, not after */
    uint8_t sum_head;      /* covers the head too */
    uint8_t zero_ends;     /* a zero head is the end of the data */
    uint16_t state;        /* if any: bytes of a payload of PS_STATE_KIND whose head says 0 */
} ps_spec;

/* The queue's frames, spelled out so that the compiler can leave out every question about them. */
static const ps_spec ps_queue_spec = {0, 0, 8, 0, 1, 1, 0};
static inline int ps_is_queue(ps_spec s) { return memcmp(&s, &ps_queue_spec, sizeof s) == 0; }

enum { PS_LIMIT = 0, PS_END = 1, PS_ZERO = 2, PS_SHORT = 3, PS_CHECKSUM = 4 };

typedef struct {
    uint64_t count;
    uint64_t pos;          /* where it stopped: a frame's first byte, or the end */
    int reason;
} ps_scan;

typedef struct {           /* one record in the companion, where frames have no checksum of their own */
    int64_t us;
    uint64_t sum;          /* CRC-64 of the whole frame; 0: not known */
} ps_entry;

typedef struct {           /* such entries, of records that follow each other */
    const ps_entry *at;    /* anywhere: not aligned */
    uint64_t count;
} ps_sums;

static inline uint32_t ps_swap32(uint32_t v, int big) { return big ? __builtin_bswap32(v) : v; }
static inline uint64_t ps_swap64(uint64_t v, int big) { return big ? __builtin_bswap64(v) : v; }
static inline uint32_t ps_get32(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return v; }

static inline uint64_t ps_overhead(ps_spec s) { return 4u + s.sum; }
static inline uint64_t ps_max_payload(ps_spec s) { return 0xffffffffu >> s.shift; }
static inline uint32_t ps_head(ps_spec s, uint32_t n, uint32_t kind) {
    return ps_swap32(n << s.shift | kind, s.big);
}
/* A spec with `state` has kinds, so that a head of 1 is no length but the kind alone. */
static inline uint32_t ps_length(ps_spec s, uint32_t head) {
    head = ps_swap32(head, s.big);
    return __builtin_expect(s.state && head == PS_STATE_KIND, 0) ? s.state : head >> s.shift;
}
static inline uint32_t ps_kind(ps_spec s, const uint8_t *frame) {
    return ps_swap32(ps_get32(frame), s.big) & ((1u << s.shift) - 1);
}
static inline const uint8_t *ps_payload(ps_spec s, const uint8_t *frame) {
    return frame + 4 + (s.sum_first ? s.sum : 0);
}

/* The register of a CRC-64 after the four bytes of a head: four look-ups that do not wait for each other. */
static inline uint64_t ps_crc64_head(uint32_t head) {
    uint64_t v = ~(uint64_t)0 ^ head;
    return ~(ps_crc64_slices[3][v & 255] ^ ps_crc64_slices[2][v >> 8 & 255] ^ ps_crc64_slices[1][v >> 16 & 255] ^
             ps_crc64_slices[0][v >> 24 & 255] ^ v >> 32);
}

/* Of the payload in its own place, not of the copy just made: the wide loads would wait for those stores. */
static inline uint64_t ps_sum(ps_spec s, uint32_t head, const uint8_t *payload, size_t n) {
    if (s.sum == 8) return ps_crc64(s.sum_head ? ps_crc64_head(head) : 0, payload, n);
    if (s.sum == 4) return ps_crc32(s.sum_head ? ps_crc32(0, (const uint8_t *)&head, 4) : 0, payload, n);
    return 0;
}

static inline void ps_put_sum(ps_spec s, uint8_t *at, uint64_t sum) {
    if (s.sum == 8) {
        sum = ps_swap64(sum, s.big);
        memcpy(at, &sum, 8);
    } else if (s.sum == 4) {
        uint32_t v = ps_swap32((uint32_t)sum, s.big);
        memcpy(at, &v, 4);
    }
}

/* Everything of a frame but its head, which the caller stores last: that store is the commit. */
static inline uint32_t ps_put_body(ps_spec s, uint8_t *dst, const uint8_t *payload, uint32_t n, uint32_t kind) {
    uint32_t head = ps_head(s, n, kind);
    uint8_t *body = dst + 4 + (s.sum_first ? s.sum : 0);
    memcpy(body, payload, n);
    if (s.sum) ps_put_sum(s, s.sum_first ? dst + 4 : body + n, ps_sum(s, head, payload, n));
    return head;
}

static inline void ps_put_head(uint8_t *dst, uint32_t head) { memcpy(dst, &head, 4); }

/* Does a whole frame with a right checksum stand at p? `room` is what may be read from p on. Returns its size, or 0 and
 * the reason. */
static inline __attribute__((always_inline)) uint64_t ps_check(ps_spec s, const uint8_t *p, uint64_t room, int verify, int *reason) {
    if (room < 4) { *reason = room ? PS_SHORT : PS_END; return 0; }
    uint32_t head = ps_get32(p);
    if (s.zero_ends && head == 0) { *reason = PS_ZERO; return 0; }
    uint32_t n = ps_length(s, head);
    uint64_t size = ps_overhead(s) + n;
    if (size > room) { *reason = PS_SHORT; return 0; }
    if (verify && s.sum) {
        uint64_t want = 0;
        const uint8_t *at = s.sum_first ? p + 4 : p + 4 + n;
        uint64_t sum;
        if (s.sum == 8 && s.sum_head && !s.sum_first) sum = ps_crc64(0, p, 4u + (size_t)n);  /* one run, no seam */
        else sum = ps_sum(s, head, ps_payload(s, p), n);
        memcpy(&want, at, s.sum);
        if (s.big) want = s.sum == 8 ? ps_swap64(want, 1) : ps_swap32((uint32_t)want, 1);
        if (sum != want) { *reason = PS_CHECKSUM; return 0; }
    }
    *reason = PS_LIMIT;
    return size;
}

/* Those of the `i`-th record on. */
static inline ps_sums ps_sums_from(ps_sums sums, uint64_t i) {
    if (i >= sums.count) return (ps_sums){NULL, 0};
    return (ps_sums){sums.at + i, sums.count - i};
}

/* Does the companion say another checksum of the `i`-th frame? Often it does not know. */
static inline int ps_differs(ps_sums sums, uint64_t i, const uint8_t *frame, uint64_t size) {
    if (i >= sums.count) return 0;
    uint64_t want;
    memcpy(&want, (const uint8_t *)(sums.at + i) + offsetof(ps_entry, sum), 8);
    return want && ps_crc64(0, frame, size) != want;
}

/* Walk frames in buf[pos, end), which `sums` have entries of. With `every`, the position of each every-th frame (from the first) goes to points[];
 * the walk stops when `room` points are taken. */
static inline __attribute__((always_inline)) ps_scan ps_walk_as(ps_spec s, const uint8_t *buf, uint64_t pos, uint64_t end, uint64_t limit, int verify,
                       ps_sums sums, uint64_t every, uint64_t *points, uint64_t room) {
    ps_scan r = {0, pos, PS_LIMIT};
    uint64_t taken = 0;
    while (r.count < limit) {
        uint64_t size = ps_check(s, buf + r.pos, end - r.pos, verify, &r.reason);
        if (!size) return r;
        if (verify && ps_differs(sums, r.count, buf + r.pos, size)) { r.reason = PS_CHECKSUM; return r; }
        if (every && r.count % every == 0) {
            if (taken == room) return r;
            points[taken++] = r.pos;
        }
        r.pos += size;
        r.count++;
    }
    if (r.pos == end) r.reason = PS_END;
    return r;
}

static ps_scan ps_walk(ps_spec s, const uint8_t *buf, uint64_t pos, uint64_t end, uint64_t limit, int verify,
                       ps_sums sums, uint64_t every, uint64_t *points, uint64_t room) {
    if (ps_is_queue(s)) return ps_walk_as(ps_queue_spec, buf, pos, end, limit, verify, (ps_sums){NULL, 0}, every, points, room);
    return ps_walk_as(s, buf, pos, end, limit, verify, sums, every, points, room);
}

/* Copy `limit` frames' payloads one after the other into out[], with Arrow's int32 offsets: offsets[0] is set by the
 * caller. Stops before a payload that does not fit. */
static inline __attribute__((always_inline)) ps_scan ps_gather_as(ps_spec s, const uint8_t *buf, uint64_t pos, uint64_t end, uint64_t limit, int verify,
                         ps_sums sums, int32_t *offsets, uint8_t *out, uint64_t room) {
    ps_scan r = {0, pos, PS_LIMIT};
    uint64_t at = (uint64_t)(uint32_t)offsets[0];
    while (r.count < limit) {
        uint64_t size = ps_check(s, buf + r.pos, end - r.pos, verify, &r.reason);
        if (!size) return r;
        if (verify && ps_differs(sums, r.count, buf + r.pos, size)) { r.reason = PS_CHECKSUM; return r; }
        uint64_t n = size - ps_overhead(s);
        if (at + n > room) { r.reason = PS_LIMIT; return r; }
        memcpy(out + at, ps_payload(s, buf + r.pos), n);
        at += n;
        offsets[++r.count] = (int32_t)at;
        r.pos += size;
    }
    if (r.pos == end) r.reason = PS_END;
    return r;
}

static ps_scan ps_gather(ps_spec s, const uint8_t *buf, uint64_t pos, uint64_t end, uint64_t limit, int verify,
                         ps_sums sums, int32_t *offsets, uint8_t *out, uint64_t room) {
    if (ps_is_queue(s)) return ps_gather_as(ps_queue_spec, buf, pos, end, limit, verify, (ps_sums){NULL, 0}, offsets, out, room);
    return ps_gather_as(s, buf, pos, end, limit, verify, sums, offsets, out, room);
}

/* After damage: the first position in [start, anchor) from which whole, verified frames lead exactly to `anchor`, a
 * known boundary; `anchor` when there is none. It goes backwards, so that what follows a frame is already known, and a
 * checksum is computed only where lengths lead to such a place. Bytes made to claim many long frames at once would take
 * for ever: once checksums have covered the stretch PS_RESYNC_TIMES, no more are believed, which loses more records but
 * invents none. Returns UINT64_MAX when out of memory. */
#define PS_RESYNC_TIMES 64

static uint64_t ps_resync(ps_spec s, const uint8_t *buf, uint64_t start, uint64_t anchor) {
    if (start >= anchor) return anchor;
    uint64_t span = anchor - start, found = anchor, budget = span * PS_RESYNC_TIMES;
    uint8_t *leads = calloc(span / 8 + 1, 1);
    if (!leads) return UINT64_MAX;
    leads[span >> 3] |= (uint8_t)(1u << (span & 7));
    for (uint64_t at = anchor; at-- > start;) {
        int reason;
        uint64_t size = ps_check(s, buf + at, anchor - at, 0, &reason), to = at - start + size;
        if (!size || !(leads[to >> 3] >> (to & 7) & 1) || size > budget) continue;
        budget -= size;
        if (!ps_check(s, buf + at, anchor - at, 1, &reason)) continue;
        leads[(at - start) >> 3] |= (uint8_t)(1u << ((at - start) & 7));
        found = at;
    }
    free(leads);
    return found;
}

#endif
