/* Putting one batch into a file whose length is the truth: it grows by whole batches only, in the order
 *   1. dirty_next, dirty_end    from here on there may be bytes beyond `end`
 *   2. the frames, the companion's entries
 *   3. the sync; before it that of the companion, if only its entries tell a record from zeros
 *   4. the index                a cache: never synced, and nothing fails when it does
 *   5. last_us, next, end       readers look at `end` alone
 *   6. the durable mark         if synced
 * with the page's lock held all the while: readers take none. A batch that fails is cut off again, nothing is published.
 */
#ifndef PENSTOCK_COMMIT_H
#define PENSTOCK_COMMIT_H

#include <fcntl.h>
#include <sys/stat.h>

#include "pile.h"

/* The segment it stands on. */
typedef struct {
    int data_fd, times_fd; /* -1: on none */
    int index_fd;          /* -1: there is no index */
    uint64_t turn, base, start, limit, interval;
} ps_place;

/* Where the log ends on the disk; it lies behind what ps_control describes. */
#define PS_DURABLE_AT 512
#define PS_PAGE_BYTES 4096

#define PS_INDEX_CHUNK 512u    /* entries written at once: one write for all but strange intervals */

static int ps_write_all(int fd, const void *from, uint64_t n, uint64_t at) {
    for (uint64_t done = 0; done < n;) {
        ssize_t wrote = pwrite(fd, (const uint8_t *)from + done, n - done, (off_t)(at + done));
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote <= 0) return wrote ? errno : EIO;
        done += (uint64_t)wrote;
    }
    return 0;
}

static int ps_sync(int fd) {
    int rc;
#if defined(__APPLE__)
    do rc = fcntl(fd, F_FULLFSYNC); while (rc != 0 && errno == EINTR);
#else
    do rc = fdatasync(fd); while (rc != 0 && errno == EINTR);
#endif
    return rc ? errno : 0;
}

/* The companion first, where only its entries can tell records from zeros that a power cut left: it may give a file its new
 * length and not yet a block's content. `behind`: others appended to the file and did not sync, and what they did is not known. */
static int ps_sync_pile(const ps_place *w, ps_spec spec, ps_pile *p, uint64_t at, int behind) {
    int64_t began_ns = ps_mono_ns();
    int error = !spec.sum && (behind || p->hollow || ps_pile_has_blank(p, at)) ? ps_sync(w->times_fd) : 0;
    if (!error) error = ps_sync(w->data_fd);
    p->sync_ns = ps_mono_ns() - began_ns;
    return error;
}

/* Take back what a failed batch may have left beyond `end`. */
static int ps_cut(int fd, uint64_t end, int sync) {
    struct stat st;
    if (fstat(fd, &st) != 0) return -1;
    if (st.st_size <= (off_t)end) return 0;
    if (ftruncate(fd, (off_t)end) != 0) return -1;
    if (sync) ps_sync(fd);
    return 0;
}

/* The index of a batch that begins at byte `end` with record `next`: an entry for each record whose place in the file is
 * a multiple of the interval, then their count. Readers check what it says, so it may fail at any point. */
static void ps_index_pile(const ps_place *w, ps_spec spec, const ps_pile *p, uint64_t end, uint64_t next) {
    uint64_t place = next - w->base, n = place / w->interval + (place % w->interval != 0);
    uint64_t due = n * w->interval - place, pairs[2 * PS_INDEX_CHUNK], have = 0, i = 0, at = 0;
    if (due >= p->count) return;
    for (; due < p->count; due += w->interval) {
        for (; i < due; i++) at += ps_overhead(spec) + ps_length(spec, ps_get32(p->frames + at));
        pairs[2 * have] = next + due;
        pairs[2 * have + 1] = end + at;
        if (++have < PS_INDEX_CHUNK) continue;
        if (ps_write_all(w->index_fd, pairs, 16 * have, PS_INDEX_HEADER + 16 * n)) return;
        n += have;
        have = 0;
    }
    if (ps_write_all(w->index_fd, pairs, 16 * have, PS_INDEX_HEADER + 16 * n)) return;
    n += have;
    ps_write_all(w->index_fd, &n, 8, 8);
}

static uint64_t ps_durable_next(ps_control *c) { return PS_LOAD((uint64_t *)((uint8_t *)c + PS_DURABLE_AT) + 2); }

/* Everything below this is on the disk. Whoever looks meanwhile finds a wrong checksum, and so no mark; `next` alone may be
 * read at any time. */
static void ps_mark_durable(ps_control *c, uint64_t segment, uint64_t end, uint64_t next) {
    uint64_t body[3] = {segment, end, next}, *mark = (uint64_t *)((uint8_t *)c + PS_DURABLE_AT);
    for (int i = 0; i < 3; i++) PS_STORE(&mark[i], body[i]);
    PS_STORE((uint32_t *)&mark[3], ps_crc32(0, (const uint8_t *)body, sizeof body));
}

/* Put a batch into the file; the lock is held. PS_OK: published, or `*error` says why not. Else a code for `help`, with
 * nothing changed. */
static int ps_pile_commit(ps_control *c, const ps_place *w, ps_spec spec, ps_pile *p, int64_t us, int sync,
                          uint64_t *first, int *error, int *fatal) {
    if (w->data_fd < 0 || c->turn != w->turn) return PS_REMAP;
    if (c->poison) return PS_POISONED;
    ps_slot *slot = &c->slots[w->turn & 1];
    uint64_t end = slot->end, next = slot->next;
    uint64_t entries_at = PS_COMPANION_HEADER + (next - w->base) * sizeof(ps_entry);
    if (slot->dirty_end != end || slot->dirty_next != next) return PS_DIRTY;
    if ((end > w->limit || p->bytes > w->limit - end) && end != w->start) return PS_ROLL;    /* an empty one takes it */
    if (us < slot->last_us) us = slot->last_us;    /* time never runs backwards in a log */
    for (uint64_t i = 0; i < p->count; i++) p->entries[i].us = -us;    /* after a power cut, the proof of a part ... */
    p->entries[p->count - 1].us = us;                                   /* ... and of the whole */

    ps_announce(slot, next + p->count, end + p->bytes);
    *error = ps_write_all(w->data_fd, p->frames, p->bytes, end);
    if (!*error)
        *error = ps_write_all(w->times_fd, p->entries, p->count * sizeof(ps_entry), entries_at);
    *fatal = *error && *error != ENOSPC && *error != EDQUOT;
    if (!*error && sync && (*error = ps_sync_pile(w, spec, p, end, ps_durable_next(c) != next))) {
        PS_STORE(&c->poison, (uint64_t)*error);    /* the system tells a failure once: nobody may build on this file */
        *fatal = 1;
    }
    if (*error) {
        /* Entries that came back after a power cut would speak against the records that are there then. */
        if (ps_cut(w->data_fd, end, 0) == 0 && ps_cut(w->times_fd, entries_at, sync) == 0) {    /* else the next mends it */
            PS_STORE(&slot->dirty_end, end);
            slot->dirty_next = next;
        }
        return PS_OK;
    }
    if (w->index_fd >= 0) ps_index_pile(w, spec, p, end, next);
    slot->last_us = us;
    PS_STORE(&slot->next, next + p->count);
    PS_STORE(&slot->end, end + p->bytes);
    if (sync) ps_mark_durable(c, slot->segment, end + p->bytes, next + p->count);
    *first = next;
    return PS_OK;
}

#endif
