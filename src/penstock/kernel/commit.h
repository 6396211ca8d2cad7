/* Putting one batch into a file whose length is the truth: it grows by whole batches only, in the order
 *   1. dirty_next, dirty_end    from here on there may be bytes beyond `end`
 *   2. the frames, the companion's entries
 *   3. the sync
 *   4. last_us, next, end       readers look at `end` alone
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
    uint64_t turn, base, start, limit;
} ps_place;

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

/* Take back what a failed batch may have left beyond `end`. */
static int ps_cut(int fd, uint64_t end) {
    struct stat st;
    if (fstat(fd, &st) != 0) return -1;
    return st.st_size > (off_t)end ? ftruncate(fd, (off_t)end) : 0;
}

/* Put a batch into the file; the lock is held. PS_OK: published, or `*error` says why not. Else a code for `help`, with
 * nothing changed. */
static int ps_pile_commit(ps_control *c, const ps_place *w, ps_pile *p, int64_t us, int sync, uint64_t *first,
                          int *error, int *fatal) {
    if (w->data_fd < 0 || c->turn != w->turn) return PS_REMAP;
    if (c->poison) return PS_POISONED;
    ps_slot *slot = &c->slots[w->turn & 1];
    uint64_t end = slot->end, next = slot->next;
    if (slot->dirty_end != end || slot->dirty_next != next) return PS_DIRTY;
    if ((end > w->limit || p->bytes > w->limit - end) && end != w->start) return PS_ROLL;    /* an empty one takes it */
    if (us < slot->last_us) us = slot->last_us;    /* time never runs backwards in a log */
    for (uint64_t i = 0; i < p->count; i++) p->entries[i].us = -us;    /* after a power cut, the proof of a part ... */
    p->entries[p->count - 1].us = us;                                   /* ... and of the whole */

    slot->dirty_next = next + p->count;
    PS_STORE(&slot->dirty_end, end + p->bytes);
    *error = ps_write_all(w->data_fd, p->frames, p->bytes, end);
    if (!*error)
        *error = ps_write_all(w->times_fd, p->entries, p->count * sizeof(ps_entry),
                              PS_COMPANION_HEADER + (next - w->base) * sizeof(ps_entry));
    *fatal = *error && *error != ENOSPC && *error != EDQUOT;
    if (!*error && sync && (*error = ps_sync(w->data_fd))) {
        PS_STORE(&c->poison, (uint64_t)*error);    /* the system tells a failure once: nobody may build on this file */
        *fatal = 1;
    }
    if (*error) {
        if (ps_cut(w->data_fd, end) == 0) {        /* else it stays announced, for the next to mend */
            PS_STORE(&slot->dirty_end, end);
            slot->dirty_next = next;
        }
        return PS_OK;
    }
    slot->last_us = us;
    PS_STORE(&slot->next, next + p->count);
    PS_STORE(&slot->end, end + p->bytes);
    *first = next;
    return PS_OK;
}

#endif
