/* Appending through memory: frames are collected, and a thread of its own writes and syncs them, one batch at a time.
 *
 * For frames without a checksum; commit.h says how a batch gets into the file.
 *
 * Who waits for a batch that is due writes it himself if the thread is not at one: to wake that thread, and to be woken by
 * it, costs a third of what the disk does. What he cannot do at once, or what needs Python, he leaves to the thread.
 *
 * No Python here. What needs it (mending a cause, a file lock, telling of an error) is called through `ps_hooks`, never
 * with `m` held: whoever appends holds the GIL and takes `m`, so the other order would be a deadlock.
 */
#ifndef PENSTOCK_BUFFERED_H
#define PENSTOCK_BUFFERED_H

#include <signal.h>

#include "commit.h"

#if defined(__linux__)
#include <sys/eventfd.h>
#endif

#define PS_RAISED (-1)               /* for an errno: Python raised, and has kept the exception */
#define PS_NOT_MINE (-2)             /* the same: the thread must do it */
#define PS_PERSIST_NS 1000000000    /* the page is put on the disk so often at most */
#define PS_SPARES 2                  /* emptied piles that are kept: one fills while the other is written */
#define PS_SPARE_BYTES (16u << 20)   /* a larger one is given back */

/* What the thread sleeps for. Whoever appends wakes it from the first two; whoever delivers in its place, from the last one, or says
 * what it sleeps for then. */
enum { PS_AWAKE, PS_FOR_ANY, PS_FOR_DUE, PS_FOR_DELIVERY };

/* Why nothing was appended. */
enum { PS_PUT_OK, PS_PUT_FRESH, PS_PUT_FULL, PS_PUT_BROKEN, PS_PUT_CLOSED, PS_PUT_FORKED, PS_PUT_MEMORY };

typedef struct {
    int (*help)(void *self, ps_outcome *out, int code, uint64_t bytes, uint64_t records);   /* 0: try again */
    int (*enter)(void *self, ps_outcome *out);      /* the file lock, where there is no mutex; 0: held */
    void (*leave)(void *self);
    void (*failed)(void *self, int error);
} ps_hooks;

typedef struct {
    ps_control *ctl;
    ps_spec spec;
    ps_hooks hooks;
    void *self;
    uint64_t batch_records, most_bytes, most_records, segment_bytes, serial;
    int64_t linger_ns;
    int by_mutex, sync;
    unsigned forks;        /* a forked child has the memory, not the thread; and `m` may be held by nobody in it */
    ps_clock clock;        /* of whoever delivers */
    int64_t persisted_ns;  /* when the page was last put on the disk; the thread's own */

    pthread_mutex_t m;     /* guards everything below */
    pthread_cond_t kick;   /* the thread waits: for records, for more of them, for the end */
    pthread_cond_t progress;   /* others wait: for a batch, for room, for the thread to be out of the files or ended */
    pthread_t thread;
    int started, stop, ended, deaf;
    int delivering;        /* somebody is at the first batch */
    int writing, standing; /* he is in the files; so many wait for him to be out of them */
    int marked;            /* a durable mark was stored that is not on the disk itself */
    int asleep;            /* PS_FOR_… */
    int planned;           /* it went to sleep with a mark to put on the disk, and will wake for that */
    int broken;            /* errno or PS_RAISED: every batch fails from here on */
    ps_pile *head, *last;  /* batches in order; the head is the one being written or waited for */
    ps_pile *filling;      /* the last one, while records may still join it */
    ps_pile *spare;
    int spares;
    uint64_t pending, pending_records;  /* bytes, and records, appended and not yet durable */
    uint64_t lost;         /* records of batches that failed */
    uint64_t syncs;
    uint64_t sync_ns;      /* that they took */
    uint64_t finished;     /* batches */
    ps_place place;
    ps_text state;
    int bell[2];           /* to read, to write: the same where there is an eventfd; -1 until somebody asks for it */
} ps_buffered;

/* Counted by the thread, under `m`, and looked at without it. */
static inline void ps_tally(uint64_t *count, uint64_t more) { PS_STORE(count, *count + more); }

/* ---- time, forks, descriptors ---- */

/* Wait until `until` by the monotonic clock; INT64_MAX is for ever. Nonzero when the time is over. */
static int ps_cond_until(pthread_cond_t *c, pthread_mutex_t *m, int64_t until) {
    if (until == INT64_MAX) return pthread_cond_wait(c, m);
#if defined(__APPLE__)
    int64_t left = until - ps_mono_ns();
    if (left <= 0) return ETIMEDOUT;
    struct timespec t = {left / 1000000000, left % 1000000000};
    return pthread_cond_timedwait_relative_np(c, m, &t);
#else
    struct timespec t = {until / 1000000000, until % 1000000000};
    return pthread_cond_timedwait(c, m, &t);
#endif
}

static int ps_cond_init(pthread_cond_t *c) {
#if defined(__APPLE__)
    return pthread_cond_init(c, NULL);
#else
    pthread_condattr_t a;
    int rc = pthread_condattr_init(&a);
    if (rc) return rc;
    rc = pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
    if (!rc) rc = pthread_cond_init(c, &a);
    pthread_condattr_destroy(&a);
    return rc;
#endif
}

static unsigned ps_forks;
static void ps_count_fork(void) { ps_forks++; }
static void ps_watch_forks(void) { pthread_atfork(NULL, NULL, ps_count_fork); }

static inline int ps_buffered_forked(const ps_buffered *b) { return b->forks != ps_forks; }

static int ps_bell_open(int fd[2]) {
#if defined(__linux__)
    fd[0] = fd[1] = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    return fd[0] < 0 ? errno : 0;
#else
    if (pipe(fd) != 0) { fd[0] = fd[1] = -1; return errno; }
    for (int i = 0; i < 2; i++) {
        fcntl(fd[i], F_SETFL, O_NONBLOCK);
        fcntl(fd[i], F_SETFD, FD_CLOEXEC);
    }
    return 0;
#endif
}

static void ps_bell_write(int fd) {
    uint64_t one = 1;
    ssize_t n = write(fd, &one, sizeof one);    /* a full one is readable, which is all that is wanted */
    (void)n;
}

static void ps_bell_drain(int fd) {
    uint8_t room[512];
    while (read(fd, room, sizeof room) == (ssize_t)sizeof room) {}
}

/* ---- piles ---- */

/* An empty one, under `m`; NULL when there is no memory. */
static ps_pile *ps_pile_new(ps_buffered *b) {
    ps_pile *p = b->spare;
    if (!p) return calloc(1, sizeof *p);
    b->spare = p->next;
    b->spares--;
    p->next = NULL;
    return p;
}

static void ps_pile_done(ps_buffered *b, ps_pile *p) {
    if (b->spares >= PS_SPARES || p->room > PS_SPARE_BYTES) {
        ps_pile_free(p);
        return;
    }
    free(p->state.at);
    p->state = (ps_text){NULL, 0};
    p->bytes = p->count = 0;
    p->urgent = p->hollow = p->doom = 0;
    p->out = NULL;
    p->next = b->spare;
    b->spare = p;
    b->spares++;
}

static void ps_pile_link(ps_buffered *b, ps_pile *p, ps_outcome *out) {
    p->out = out;
    p->born_ns = ps_mono_ns();
    if (b->last) b->last->next = p;
    else b->head = p;
    b->last = b->filling = p;        /* what was filling is full, and so due */
}

/* ---- appending; the caller holds the GIL, or whatever keeps two of them apart ---- */

static int ps_buffered_init(ps_buffered *b) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    static uint64_t serial;
    pthread_once(&once, ps_watch_forks);
    b->forks = ps_forks;
    b->serial = ++serial;
    b->clock.usable = -1;
    b->place.data_fd = b->place.times_fd = b->place.index_fd = b->bell[0] = b->bell[1] = -1;
    int rc = pthread_mutex_init(&b->m, NULL);
    if (!rc) rc = ps_cond_init(&b->kick);
    if (!rc) rc = ps_cond_init(&b->progress);
    return rc;
}

static void ps_buffered_trim(ps_buffered *b) {
    while (b->spare) {
        ps_pile *p = b->spare;
        b->spare = p->next;
        ps_pile_free(p);
    }
    b->spares = 0;
}

static void ps_buffered_free(ps_buffered *b) {
    ps_buffered_trim(b);
    free(b->state.at);
    b->state = (ps_text){NULL, 0};
}

static int ps_buffered_refused(const ps_buffered *b) {
    if (b->stop) return PS_PUT_CLOSED;
    if (b->broken) return PS_PUT_BROKEN;
    return PS_PUT_OK;
}

/* An empty buffer takes anything: else a record longer than `most_bytes` could never be appended. */
static int ps_buffered_fits(const ps_buffered *b, uint64_t bytes, uint64_t records) {
    return b->pending == 0 || (bytes <= b->most_bytes && b->pending <= b->most_bytes - bytes &&
                               records <= b->most_records && b->pending_records <= b->most_records - records);
}

/* Let `m` go, having appended to the pile being filled; wake the thread if that is what it sleeps for. */
static inline void ps_buffered_leave(ps_buffered *b) {
    int due = b->head != b->filling || b->filling->count >= b->batch_records;
    int wake = b->asleep == PS_FOR_ANY || (b->asleep == PS_FOR_DUE && due);
    if (wake) b->asleep = PS_AWAKE;
    pthread_mutex_unlock(&b->m);
    if (wake) pthread_cond_signal(&b->kick);
}

/* One plain record to the batch being filled, which has room: its outcome. NULL for all else, with nothing changed. */
static inline ps_outcome *ps_buffered_append(ps_buffered *b, const uint8_t *payload, uint32_t n, uint32_t kind,
                                             uint64_t *place) {
    uint64_t bytes = ps_overhead(b->spec) + n;
    if (ps_buffered_forked(b) || kind == PS_STATE_KIND) return NULL;
    pthread_mutex_lock(&b->m);
    ps_pile *p = b->filling;
    if (__builtin_expect(!p || ps_buffered_refused(b) || !ps_buffered_fits(b, bytes, 1) || bytes > p->room - p->bytes ||
                             p->bytes + bytes > b->segment_bytes || p->count == p->entries_room, 0)) {
        pthread_mutex_unlock(&b->m);
        return NULL;
    }
    ps_outcome *out = p->out;
    *place = p->count;
    ps_pile_add(b->spec, p, payload, n, kind, 1);
    out->count = p->count;
    b->pending += bytes;
    b->pending_records++;
    ps_buffered_leave(b);
    return out;
}

/* Many records to one batch: the one being filled, or `fresh`. Without the latter PS_PUT_FRESH asks for it. */
static int ps_buffered_put(ps_buffered *b, const ps_source *s, ps_outcome *fresh, ps_outcome **out, uint64_t *place) {
    if (ps_buffered_forked(b)) return PS_PUT_FORKED;
    pthread_mutex_lock(&b->m);
    int rc = ps_buffered_refused(b);
    if (!rc && !ps_buffered_fits(b, s->bytes, s->count)) rc = PS_PUT_FULL;
    ps_pile *p = b->filling;
    if (p && p->bytes + s->bytes > b->segment_bytes) p = NULL;
    if (!rc && !p && !fresh) rc = PS_PUT_FRESH;
    if (!rc && !p) {
        p = ps_pile_new(b);
        if (!p || ps_pile_take(b->spec, p, s)) {
            if (p) ps_pile_done(b, p);
            rc = PS_PUT_MEMORY;
        } else {
            ps_pile_link(b, p, fresh);
        }
    } else if (!rc && ps_pile_take(b->spec, p, s)) {
        rc = PS_PUT_MEMORY;
    }
    if (rc) {
        pthread_mutex_unlock(&b->m);
        return rc;
    }
    *out = p->out;
    *place = p->count - s->count;
    p->out->count = p->count;
    b->pending += s->bytes;
    b->pending_records += s->count;
    ps_buffered_leave(b);
    return PS_PUT_OK;
}

/* Many bytes are copied in three steps, of which the long one needs neither the GIL nor `m`: reserve, then fill a pile
 * that nobody else knows, then link it as a batch of its own. */
static int ps_buffered_reserve(ps_buffered *b, uint64_t bytes, uint64_t records, ps_pile **pile) {
    if (ps_buffered_forked(b)) return PS_PUT_FORKED;
    pthread_mutex_lock(&b->m);
    int rc = ps_buffered_refused(b);
    if (!rc && !ps_buffered_fits(b, bytes, records)) rc = PS_PUT_FULL;
    if (!rc && !(*pile = ps_pile_new(b))) rc = PS_PUT_MEMORY;
    if (!rc) {
        b->pending += bytes;
        b->pending_records += records;
    }
    pthread_mutex_unlock(&b->m);
    return rc;
}

static int ps_buffered_link(ps_buffered *b, ps_pile *p, const ps_source *s, int rc, ps_outcome *fresh) {
    if (ps_buffered_forked(b)) return PS_PUT_FORKED;
    pthread_mutex_lock(&b->m);
    if (!rc) rc = ps_buffered_refused(b);
    if (rc) {
        b->pending -= s->bytes;
        b->pending_records -= s->count;
        ps_pile_done(b, p);
        pthread_cond_broadcast(&b->progress);
        pthread_mutex_unlock(&b->m);
        return rc;
    }
    ps_pile_link(b, p, fresh);
    fresh->count = p->count;
    ps_buffered_leave(b);
    return PS_PUT_OK;
}

/* ---- waiting; without the GIL ---- */

/* Nothing is waited for any more: under `m`, wake the thread to write what there is. */
static void ps_buffered_hurry(ps_buffered *b) {
    if (b->last) b->last->urgent = 1;
    b->asleep = PS_AWAKE;
    pthread_cond_signal(&b->kick);
}

static void ps_buffered_flush(ps_buffered *b) {
    pthread_mutex_lock(&b->m);
    ps_buffered_hurry(b);
    pthread_mutex_unlock(&b->m);
}

/* Nonzero when an append is worth trying: there is room, or there never will be. */
static int ps_buffered_wait_room(ps_buffered *b, uint64_t bytes, uint64_t records, int64_t until) {
    int late = 0, worth;
    pthread_mutex_lock(&b->m);
    while (!(worth = ps_buffered_refused(b) || ps_buffered_fits(b, bytes, records)) && !late) {
        ps_buffered_hurry(b);
        late = ps_cond_until(&b->progress, &b->m, until);
    }
    pthread_mutex_unlock(&b->m);
    return worth;
}

static int ps_buffered_wait_ended(ps_buffered *b, int64_t until) {
    int late = 0;
    pthread_mutex_lock(&b->m);
    while (!b->ended && !late) late = ps_cond_until(&b->progress, &b->m, until);
    int ended = b->ended;
    pthread_mutex_unlock(&b->m);
    return ended;
}

/* Stand on another segment. When this returns nobody touches the files of the old one any more. */
static void ps_buffered_stand(ps_buffered *b, ps_place place) {
    if (ps_buffered_forked(b)) return;
    pthread_mutex_lock(&b->m);
    b->standing++;
    while (b->writing) ps_cond_until(&b->progress, &b->m, INT64_MAX);
    b->standing--;
    b->place = place;
    pthread_mutex_unlock(&b->m);
}

/* ---- delivering; `thread`: it is the thread that does, and not one that waits ---- */

static int ps_buffered_lock(ps_buffered *b, ps_outcome *out, int thread) {
    if (!b->by_mutex) return PS_LOAD(&b->deaf) ? ECANCELED : b->hooks.enter(b->self, out);
    int rc = ps_lock_try(b->ctl);
    if (rc == EBUSY && !thread) return PS_NOT_MINE;    /* no signal would end that wait */
    return rc == EBUSY ? ps_lock_wait(b->ctl) : rc;
}

static void ps_buffered_unlock(ps_buffered *b) {
    if (b->by_mutex) ps_unlock(b->ctl);
    else if (!PS_LOAD(&b->deaf)) b->hooks.leave(b->self);
    if (ps_someone_waits(b->ctl)) ps_bell_ring(b->ctl);
}

/* Until the batch is published: 0 and its first sequence; or what failed it. */
static int ps_buffered_write(ps_buffered *b, ps_pile *p, int thread, uint64_t *first, int *fatal) {
    for (;;) {
        int error = ps_buffered_lock(b, p->out, thread);
        if (error) {
            *fatal = error != PS_RAISED && error != PS_NOT_MINE;
            return error;
        }
        pthread_mutex_lock(&b->m);
        b->writing = 1;
        ps_place place = b->place;
        pthread_mutex_unlock(&b->m);
        int64_t now = ps_now_us(&b->clock);
        int code = ps_pile_commit(b->ctl, &place, b->spec, p, now, b->sync, first, &error, fatal);
        pthread_mutex_lock(&b->m);
        b->writing = 0;
        ps_tally(&b->syncs, p->sync_ns > 0);
        ps_tally(&b->sync_ns, (uint64_t)p->sync_ns);
        p->sync_ns = 0;
        if (b->standing) pthread_cond_broadcast(&b->progress);
        pthread_mutex_unlock(&b->m);
        ps_buffered_unlock(b);
        if (code == PS_OK) return error;
        if (!thread) return PS_NOT_MINE;
        if (PS_LOAD(&b->deaf)) return ECANCELED;
        if (b->hooks.help(b->self, p->out, code, p->bytes, p->count)) {
            *fatal = code == PS_POISONED;
            return PS_RAISED;
        }
    }
}

static void ps_buffered_break(ps_buffered *b, int error) {
    pthread_mutex_lock(&b->m);
    b->broken = error;
    pthread_mutex_unlock(&b->m);
}

/* The first batch failed: those behind it would leave a hole in what was appended, so they fail too. All are counted in one step: what is
 * appended later is not lost, and asks whether others were. Under `m`. */
static void ps_buffered_doom(ps_buffered *b, int error) {
    for (ps_pile *p = b->head; p; p = p->next) {
        if (!p->doom) ps_tally(&b->lost, p->count);
        p->doom = error;
    }
    b->filling = NULL;                              /* what arrives from here on is another batch */
}

/* Under `m`, which is let go meanwhile: write the first batch, and say what became of it. Nonzero: it is the thread's. */
static int ps_buffered_deliver(ps_buffered *b, int thread) {
    ps_pile *p = b->head;
    uint64_t first = 0;
    int error = b->broken ? b->broken : p->doom, fatal = 0;
    if (b->filling == p) b->filling = NULL;        /* what arrives from here on is the next batch */
    if (!error) {
        b->delivering = 1;
        pthread_mutex_unlock(&b->m);
        error = ps_buffered_write(b, p, thread, &first, &fatal);
        if (fatal) {
            ps_buffered_break(b, error);
            if (error != PS_RAISED && !PS_LOAD(&b->deaf)) b->hooks.failed(b->self, error);
        }
        pthread_mutex_lock(&b->m);
        b->delivering = 0;
        if (error == PS_NOT_MINE) return 1;
        if (error && error != PS_RAISED) ps_buffered_doom(b, error);    /* what Python raised, Python has told the others */
    }
    b->head = p->next;
    if (!b->head) b->last = NULL;
    ps_tally(&b->pending, -p->bytes);
    ps_tally(&b->pending_records, -p->count);
    b->finished++;
    if (error && !p->doom) ps_tally(&b->lost, p->count);
    if (!error) b->marked |= b->sync;
    if (!error && p->state.at) {
        free(b->state.at);
        b->state = p->state;
        p->state = (ps_text){NULL, 0};
    }
    p->out->first = first;
    p->out->error = error;
    PS_STORE(&p->out->done, 1);
    ps_pile_done(b, p);
    pthread_cond_broadcast(&b->progress);
    int bell = b->bell[1];
    if (bell >= 0) {
        pthread_mutex_unlock(&b->m);
        ps_bell_write(bell);
        pthread_mutex_lock(&b->m);
    }
    return 0;
}

static int ps_buffered_due(const ps_buffered *b, int64_t *until) {
    const ps_pile *p = b->head;
    if (p != b->filling || p->urgent || b->stop || b->broken || p->count >= b->batch_records) return 1;
    int64_t at = p->born_ns + b->linger_ns;
    if (at < *until) *until = at;
    return ps_mono_ns() >= at;
}

/* The same by one who waits. Nonzero: there is none for him to do. */
static int ps_buffered_lend_hand(ps_buffered *b) {
    int64_t until = INT64_MAX;
    if (!b->by_mutex || b->delivering || !b->head || !ps_buffered_due(b, &until)) return 1;
    int left = ps_buffered_deliver(b, 0);
    if (left || b->head || b->stop || (b->marked && !b->planned)) {        /* the thread has something to do, or to plan */
        b->asleep = PS_AWAKE;
        pthread_cond_signal(&b->kick);
    } else if (b->asleep == PS_FOR_DELIVERY) {
        b->asleep = PS_FOR_ANY;
    }
    return left;
}

/* Nonzero when the batch is done. `own`: he who waits may take as long as the disk does. Without the GIL. */
static int ps_buffered_wait(ps_buffered *b, const ps_outcome *out, int64_t until, int own) {
    int late = 0;
    pthread_mutex_lock(&b->m);
    while (!out->done && !late)
        if (!own || ps_buffered_lend_hand(b)) late = ps_cond_until(&b->progress, &b->m, until);
    int done = out->done;
    pthread_mutex_unlock(&b->m);
    return done;
}

/* ---- the thread ---- */

/* Is a durable mark to be put on the disk now? If not, `*until` is no later than when it is. */
static int ps_buffered_persist_due(const ps_buffered *b, int64_t *until) {
    if (!b->marked || b->stop) return 0;           /* at the end the log's close does it */
    int64_t at = b->persisted_ns + PS_PERSIST_NS;
    if (ps_mono_ns() >= at) return 1;
    if (at < *until) *until = at;
    return 0;
}

/* Under `m`, which is let go meanwhile: nobody waits for this. It only tells damage from a torn tail more sharply after a
 * power cut, so it may fail. */
static void ps_buffered_persist(ps_buffered *b) {
    b->marked = 0;
    pthread_mutex_unlock(&b->m);
    msync(b->ctl, PS_PAGE_BYTES, MS_SYNC);
    b->persisted_ns = ps_mono_ns();
    pthread_mutex_lock(&b->m);
}

static void *ps_buffered_main(void *arg) {
    ps_buffered *b = arg;
    b->persisted_ns = ps_mono_ns();
    pthread_mutex_lock(&b->m);
    while (b->head || !b->stop) {
        int64_t until = INT64_MAX;
        if (ps_buffered_persist_due(b, &until)) {
            ps_buffered_persist(b);
            continue;
        }
        if (b->head && !b->delivering && ps_buffered_due(b, &until)) {
            ps_buffered_deliver(b, 1);
            continue;
        }
        b->asleep = b->delivering ? PS_FOR_DELIVERY : b->head ? PS_FOR_DUE : PS_FOR_ANY;
        b->planned = b->marked;
        ps_cond_until(&b->kick, &b->m, until);
        b->asleep = PS_AWAKE;
    }
    ps_buffered_trim(b);
    b->ended = 1;
    pthread_cond_broadcast(&b->progress);
    pthread_mutex_unlock(&b->m);
    return NULL;
}

/* Signals are for the threads of the program: a handler that ran here would leave a sleeping main thread asleep. */
static int ps_buffered_start(ps_buffered *b) {
    sigset_t all, before;
    sigfillset(&all);
    sigdelset(&all, SIGSEGV);
    sigdelset(&all, SIGBUS);
    sigdelset(&all, SIGFPE);
    sigdelset(&all, SIGILL);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(&b->thread, NULL, ps_buffered_main, b);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    b->started = rc == 0;
    return rc;
}

static int ps_buffered_is_thread(const ps_buffered *b) {
    return b->started && !ps_buffered_forked(b) && pthread_equal(b->thread, pthread_self());
}

/* No more appends; the thread writes what there is, then ends. */
static void ps_buffered_stop(ps_buffered *b) {
    pthread_mutex_lock(&b->m);
    b->stop = 1;
    if (!b->started) b->ended = 1;
    ps_buffered_hurry(b);
    pthread_cond_broadcast(&b->progress);          /* whoever waits for room waits in vain */
    pthread_mutex_unlock(&b->m);
}

static void ps_buffered_join(ps_buffered *b) { pthread_join(b->thread, NULL); }

static int ps_buffered_bell(ps_buffered *b) {
    if (b->bell[0] >= 0) return 0;
    int fd[2], rc = ps_bell_open(fd);
    if (rc) return rc;
    pthread_mutex_lock(&b->m);
    b->bell[0] = fd[0];
    b->bell[1] = fd[1];
    if (b->finished) ps_bell_write(fd[1]);         /* whoever comes late must look once */
    pthread_mutex_unlock(&b->m);
    return 0;
}

static void ps_buffered_bell_close(ps_buffered *b) {
    if (b->bell[0] >= 0) close(b->bell[0]);
    if (b->bell[1] >= 0 && b->bell[1] != b->bell[0]) close(b->bell[1]);
}

#endif
