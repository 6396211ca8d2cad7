/* Keeping ahead of the writer: a thread of its own, without the GIL, so that it keeps pace with any append loop.
 *
 * The first touch of a page of a file that is merely allocated costs some 10 us; of one that was written with zeros, 0.2 us,
 * and writing the zeros 0.6. So this thread writes zeros behind the allocated mark, makes the pages present in the
 * writer's maps, and only then moves the mark. Only the holder of the grow lock (a flock of its own file) may write there:
 * zeros that came late would wipe records. Whatever fails here is left to the append that runs out of room, which says so.
 */
#ifndef PENSTOCK_AHEAD_H
#define PENSTOCK_AHEAD_H

#include <fcntl.h>
#include <sys/file.h>

#include "shared.h"

#define PS_AHEAD_FROM (64u << 10)      /* whoever appends less has no thread to start and to wait for */
#define PS_AHEAD_LEAST (256u << 10)
#define PS_AHEAD_MOST (128u << 20)
#define PS_AHEAD_STEP (1u << 20)
#define PS_KEEP_BEHIND (32u << 20)

typedef struct {
    int fd;
    uint8_t *map;
    uint64_t len;
} ps_file;

typedef struct {
    pthread_t thread;
    pthread_mutex_t m;
    pthread_cond_t kick, idle;
    int started, stop, work, busy;
    pid_t pid;                  /* a forked child has the memory, not the thread */
    int paused;                 /* set: come to rest at the next step */
    int grow_fd;
    ps_control *ctl;
    ps_slot *slot;
    uint64_t turn, base, size, interval;
    ps_file data, times, index;
    uint64_t touched, touched_times, released;
    int durable;                /* syncs are frequent: sync the zeros too, before records come to lie there */
    uint64_t wake_at;           /* the writer kicks when `end` passes this */
} ps_ahead;

static uint64_t ps_min(uint64_t a, uint64_t b) { return a < b ? a : b; }
static uint64_t ps_max(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* Whole pages, within the file: where blocks are smaller than pages, a store to a page that is only partly allocated takes
 * more disk, and with none left it kills (SIGBUS). */
static uint64_t ps_page_up(uint64_t n, uint64_t most) {
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    return ps_min((n + page - 1) / page * page, most);
}

static int ps_write_zeros(int fd, uint64_t at, uint64_t end) {
    static const uint8_t zeros[PS_AHEAD_STEP / 4];
#if defined(__linux__)
    if (end > at && fallocate(fd, 0, (off_t)at, (off_t)(end - at)) != 0 && errno != EOPNOTSUPP) return -1;
#endif
    while (at < end) {
        ssize_t n = pwrite(fd, zeros, ps_min(end - at, sizeof zeros), (off_t)at);
        if (n <= 0) return -1;
        at += (uint64_t)n;
    }
    return 0;
}

/* Publish, unless the log has rolled or this thread is to rest: then the zeros are simply written again. It sleeps for the
 * lock rather than spin, and not for long at a time, since whoever tells it to rest may hold the lock. */
static int ps_ahead_publish(ps_ahead *a, uint64_t allocated, uint64_t entries) {
    int rc;
    do {
        rc = ps_owned(a->ctl, ps_mutex_within(&a->ctl->lock.mutex, 1000000));
    } while (rc == ETIMEDOUT && !PS_LOAD(&a->paused));
    if (rc) return 0;
    int same = a->ctl->turn == a->turn;
    if (same) {
        a->slot->allocated = ps_max(a->slot->allocated, allocated);
        a->slot->entries = ps_max(a->slot->entries, entries);
    }
    ps_unlock(a->ctl);
    return same;
}

static uint64_t ps_index_bytes(ps_ahead *a, uint64_t records) { return 256 + 16 * ((records + a->interval - 1) / a->interval); }

/* One step of writing zeros, up to byte `goal` and sequence `entries_goal`; 0 when that is done or cannot be. */
static int ps_ahead_grow(ps_ahead *a, uint64_t goal, uint64_t entries_goal) {
    if (PS_LOAD(&a->slot->allocated) >= goal && PS_LOAD(&a->slot->entries) >= entries_goal) return 0;
    if (flock(a->grow_fd, LOCK_EX | LOCK_NB) != 0) {    /* an append that ran out of room, or another process, is at it */
        struct timespec soon = {0, 100000};
        nanosleep(&soon, NULL);
        return errno == EWOULDBLOCK;
    }
    int done = 0;
    uint64_t have = PS_LOAD(&a->slot->allocated), entries = PS_LOAD(&a->slot->entries);  /* ours to move, now */
    if (PS_LOAD(&a->ctl->turn) == a->turn && entries >= a->base) {
        uint64_t step = PS_LOAD(&a->durable) ? 4 * PS_AHEAD_STEP : PS_AHEAD_STEP;
        uint64_t upto = have < goal ? ps_page_up(ps_min(goal, have + step), a->size) : have;
        int failed = ps_write_zeros(a->data.fd, have, upto) != 0;
        if (!failed && upto > have && PS_LOAD(&a->durable) && fdatasync(a->data.fd) != 0) {
            PS_STORE(&a->ctl->poison, (uint64_t)errno);    /* the system tells each failure once: it may be a record's */
            failed = 1;
        }
        if (!failed && entries < entries_goal) {
            uint64_t place = entries - a->base, last = entries_goal - a->base;
            uint64_t t1 = ps_page_up(64 + 8 * last, a->times.len), i1 = ps_page_up(ps_index_bytes(a, last), a->index.len);
            failed = ps_write_zeros(a->times.fd, 64 + 8 * place, t1) != 0 ||
                     ps_write_zeros(a->index.fd, ps_index_bytes(a, place), i1) != 0;
            entries = entries_goal;
        }
        if (!failed) done = ps_ahead_publish(a, upto, entries);
    }
    flock(a->grow_fd, LOCK_UN);
    return done;
}

/* Touch pages of one map up to `goal`, a step at a time; 0 when done. */
static int ps_ahead_touch(ps_file *f, uint64_t *touched, uint64_t at, uint64_t goal) {
    uint64_t from = ps_max(*touched, at & ~(uint64_t)4095);
    uint64_t upto = ps_min(ps_min(goal, f->len), from + PS_AHEAD_STEP);
    if (upto <= from) return 0;
    ps_touch(f->map + from, upto - from);
    *touched = upto;
    return 1;
}

/* Everything up to a goal that is set at the start, so that the writer's cache line is looked at rarely. True when the
 * writer has come near the goal meanwhile: then go on at once. */
static int ps_ahead_round(ps_ahead *a) {
    uint64_t end = PS_LOAD(&a->slot->end), next = PS_LOAD(&a->slot->next);
    if (PS_LOAD(&a->ctl->turn) != a->turn || a->ctl->poison || next < a->base) return 0;
    uint64_t window = ps_min(ps_max(end, PS_AHEAD_LEAST), PS_AHEAD_MOST);
    uint64_t goal = ps_min(a->size, end + window);
    uint64_t entries_goal = ps_min(next + ps_max(4096, window / 64), a->base + (a->times.len - 64) / 8);
    int more = 1;
    while (more && !PS_LOAD(&a->paused) && PS_LOAD(&a->ctl->turn) == a->turn) {
        more = ps_ahead_grow(a, goal, entries_goal);
        uint64_t have = PS_LOAD(&a->slot->allocated), entries = PS_LOAD(&a->slot->entries), at = PS_LOAD(&a->slot->end);
        if (!PS_LOAD(&a->durable)) more |= ps_ahead_touch(&a->data, &a->touched, at, ps_min(have, goal));
        more |= ps_ahead_touch(&a->times, &a->touched_times, 64 + 8 * (next - a->base), 64 + 8 * (entries - a->base));
    }
    if (end > a->released + 2 * (uint64_t)PS_KEEP_BEHIND) {   /* what is long written need not count as our memory */
        ps_release(a->data.map + a->released, end - PS_KEEP_BEHIND - a->released);
        a->released = end - PS_KEEP_BEHIND;
    }
    PS_STORE(&a->wake_at, end + window / 4);
    return !PS_LOAD(&a->paused) && goal < a->size && PS_LOAD(&a->slot->allocated) >= goal && PS_LOAD(&a->slot->end) + window / 2 > goal;
}

static void *ps_ahead_main(void *arg) {
    ps_ahead *a = arg;
    pthread_mutex_lock(&a->m);
    while (!a->stop) {
        if (!a->work) {
            pthread_cond_wait(&a->kick, &a->m);
            continue;
        }
        a->work = 0;
        a->busy = 1;
        pthread_mutex_unlock(&a->m);
        while (ps_ahead_round(a)) {}
        pthread_mutex_lock(&a->m);
        a->busy = 0;
        pthread_cond_broadcast(&a->idle);
    }
    pthread_mutex_unlock(&a->m);
    return NULL;
}

/* False where no thread is to be had: then appends look after themselves. */
static int ps_ahead_start(ps_ahead *a) {
    a->pid = getpid();
    pthread_mutex_init(&a->m, NULL);
    pthread_cond_init(&a->kick, NULL);
    pthread_cond_init(&a->idle, NULL);
    a->stop = a->work = a->busy = 0;
    a->started = pthread_create(&a->thread, NULL, ps_ahead_main, a) == 0;
    return a->started;
}

static void ps_ahead_kick(ps_ahead *a) {
    PS_STORE(&a->wake_at, UINT64_MAX);      /* until it has looked */
    if (!a->started && !ps_ahead_start(a)) return;
    pthread_mutex_lock(&a->m);
    a->work = 1;
    pthread_cond_signal(&a->kick);
    pthread_mutex_unlock(&a->m);
}

/* Come to rest: when this returns the thread touches none of the maps and files. Takes a millisecond at most. */
static void ps_ahead_pause(ps_ahead *a) {
    if (a->started && a->pid != getpid()) a->started = 0;
    if (!a->started) return;
    PS_STORE(&a->paused, 1);
    pthread_mutex_lock(&a->m);
    a->work = 0;
    while (a->busy) pthread_cond_wait(&a->idle, &a->m);
    pthread_mutex_unlock(&a->m);
}

/* Go to work on what the caller has set: at once, or when some has been appended if there is no thread yet. */
static void ps_ahead_resume(ps_ahead *a) {
    a->touched = a->touched_times = a->released = 0;
    PS_STORE(&a->paused, 0);
    if (a->started) ps_ahead_kick(a);
    else PS_STORE(&a->wake_at, PS_LOAD(&a->slot->end) + PS_AHEAD_FROM);
}

static void ps_ahead_stop(ps_ahead *a) {
    ps_ahead_pause(a);
    if (!a->started) return;
    pthread_mutex_lock(&a->m);
    a->stop = 1;
    pthread_cond_signal(&a->kick);
    pthread_mutex_unlock(&a->m);
    pthread_join(a->thread, NULL);
    a->started = 0;
}

#endif
