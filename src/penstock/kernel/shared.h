/* The control page: the memory that every process with the log open has mapped, and how they take turns on it.
 *
 * Layout and meaning: docs/formats.md, "control page"; the same offsets stand in layout.py for the Python side, and a
 * test compares the two. Everything here is plain words in shared memory: a process may die between any two stores, and
 * the next one to take the lock must find enough to finish or to undo what it was doing.
 */
#ifndef PENSTOCK_SHARED_H
#define PENSTOCK_SHARED_H

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the native kernel keeps little-endian words in shared memory; use the reference kernel on this machine"
#endif

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#define PS_HAVE_FUTEX 1
#define PS_HAVE_ROBUST 1
#else
#define PS_HAVE_FUTEX 0
#define PS_HAVE_ROBUST 0
#endif

#define PS_LOAD(p) __atomic_load_n((p), __ATOMIC_ACQUIRE)
#define PS_STORE(p, v) __atomic_store_n((p), (v), __ATOMIC_RELEASE)

/* One segment being written: exactly one cache line, the only one an append dirties. */
typedef struct {
    uint64_t segment;      /* its id */
    uint64_t end;          /* published end: byte after the last committed frame */
    uint64_t next;         /* sequence of the next record */
    uint64_t dirty_end;    /* set before the first byte beyond `end` is touched */
    uint64_t dirty_next;   /* what `next` becomes when that append is committed */
    int64_t last_us;       /* timestamp of the last record: time never runs backwards in a log */
    uint64_t allocated;    /* bytes of the data file with real blocks under them */
    uint64_t entries;      /* sequences below this have allocated room in the companion and the index */
} ps_slot;

typedef struct {
    uint8_t identity[48];  /* magic, version, lock kind, boot id, device, inode: written under an exclusive flock only */
    uint64_t ready;
    uint64_t poison;       /* errno of a failed sync, 0 when healthy */
    union {
        pthread_mutex_t mutex;
        uint8_t room[128];
    } lock;
    uint64_t turn;         /* slots[turn & 1] is active; one store of it is a roll */
    uint64_t generation;   /* of the manifest file: bumped when it is rewritten */
    uint64_t pid_namespace;    /* of all that may take the mutex: it knows its owner by a number that is another's elsewhere */
    uint8_t pad0[40];
    uint32_t waiters;      /* somebody sleeps on the bell */
    uint32_t bell;         /* the futex: changes when sleepers are to look again */
    uint8_t pad1[56];
    ps_slot slots[2];
    uint64_t base[2];      /* first sequence of each slot's segment */
    uint8_t pad2[48];
} ps_control;

_Static_assert(sizeof(ps_slot) == 64, "a slot is one cache line");
_Static_assert(offsetof(ps_control, lock) == 64, "layout");
_Static_assert(offsetof(ps_control, turn) == 192, "layout");
_Static_assert(offsetof(ps_control, waiters) == 256, "layout");
_Static_assert(offsetof(ps_control, slots) == 320, "layout");
_Static_assert(offsetof(ps_control, base) == 448, "layout");
_Static_assert(sizeof(ps_control) == 512, "layout; marks follow, kept by storage/control.py");

/* ---- the lock: a robust mutex tells at once when its owner died, without any timeout ---- */

static int ps_mutex_init(ps_control *c) {
#if PS_HAVE_ROBUST
    pthread_mutexattr_t a;
    int rc = pthread_mutexattr_init(&a);
    if (rc) return rc;
    rc = pthread_mutexattr_setpshared(&a, PTHREAD_PROCESS_SHARED);
    if (!rc) rc = pthread_mutexattr_setrobust(&a, PTHREAD_MUTEX_ROBUST);
    memset(&c->lock, 0, sizeof c->lock);
    if (!rc) rc = pthread_mutex_init(&c->lock.mutex, &a);
    pthread_mutexattr_destroy(&a);
    return rc;
#else
    (void)c;
    return ENOTSUP;
#endif
}

static inline void ps_pause(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* A mutex whose owner died is simply taken: what the owner left half done shows in the slot (dirty_end != end), where
 * whoever appends next must look anyway. */
static inline int ps_owned(ps_control *c, int rc) {
#if PS_HAVE_ROBUST
    if (__builtin_expect(rc == EOWNERDEAD, 0)) rc = pthread_mutex_consistent(&c->lock.mutex);
#endif
    return rc;
}

/* An append holds the lock for some 50 ns and a sleeping waiter costs microseconds, so look again for a while before
 * sleeping. Returns 0, or EBUSY: worth sleeping for. */
static inline int ps_lock_try(ps_control *c) {
    int rc = pthread_mutex_trylock(&c->lock.mutex);
    if (__builtin_expect(rc == 0, 1)) return 0;
    for (int round = 0; round < 64 && rc == EBUSY; round++) {
        for (int i = 0; i < 8; i++) ps_pause();
        rc = pthread_mutex_trylock(&c->lock.mutex);
    }
    return ps_owned(c, rc);
}

/* ThreadSanitizer does not know of this one, and would take the mutex for free. */
#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 30) && !defined(__SANITIZE_THREAD__)
#define PS_HAVE_CLOCKLOCK 1
#else
#define PS_HAVE_CLOCKLOCK 0
#endif

/* Take a mutex within so long, by a clock that nobody sets: with the other one a step back would be slept through. */
static inline int ps_mutex_within(pthread_mutex_t *m, long ns) {
#if PS_HAVE_ROBUST
    struct timespec t;
#if PS_HAVE_CLOCKLOCK
    const clockid_t clock = CLOCK_MONOTONIC;
#else
    const clockid_t clock = CLOCK_REALTIME;
#endif
    clock_gettime(clock, &t);
    t.tv_nsec += ns;
    if (t.tv_nsec >= 1000000000) {
        t.tv_nsec -= 1000000000;
        t.tv_sec++;
    }
#if PS_HAVE_CLOCKLOCK
    return pthread_mutex_clocklock(m, clock, &t);
#else
    return pthread_mutex_timedlock(m, &t);
#endif
#else
    (void)ns;
    return pthread_mutex_lock(m);
#endif
}

/* Unlocking wakes one sleeper, and that one sees to the others. If it is killed before it has, while somebody who did not sleep has
 * the lock, the mutex no longer knows of them, and a free lock is slept for. So look again now and then. */
#define PS_LOCK_NAP_NS 50000000

/* Sleep for the lock, for no longer than a nap: 0, or ETIMEDOUT. */
static int ps_lock_nap(ps_control *c) { return ps_owned(c, ps_mutex_within(&c->lock.mutex, PS_LOCK_NAP_NS)); }

static int ps_lock_wait(ps_control *c) {
    int rc;
    do rc = ps_lock_nap(c); while (rc == ETIMEDOUT);
    return rc;
}

static inline void ps_unlock(ps_control *c) { pthread_mutex_unlock(&c->lock.mutex); }

/* ---- sleeping and waking ----
 * A reader reads the bell, raises `waiters`, looks once more, and sleeps unless the bell has changed. A writer publishes,
 * then looks at `waiters`. Each stores before it loads, so at least one of them sees the other. A reader that dies
 * asleep costs one needless wake, not one for ever. */

static int ps_bell_wait(ps_control *c, uint32_t seen, double timeout_s) {
#if PS_HAVE_FUTEX
    struct timespec ts, *tp = NULL;
    if (timeout_s >= 0) {
        ts.tv_sec = (time_t)timeout_s;
        ts.tv_nsec = (long)((timeout_s - (double)ts.tv_sec) * 1e9);
        tp = &ts;
    }
    return syscall(SYS_futex, &c->bell, FUTEX_WAIT, seen, tp, NULL, 0) == 0 ? 0 : errno;
#else
    (void)c; (void)seen; (void)timeout_s;
    return ENOTSUP;
#endif
}

static void ps_bell_ring(ps_control *c) {
    PS_STORE(&c->waiters, 0);
    __atomic_fetch_add(&c->bell, 1, __ATOMIC_SEQ_CST);
#if PS_HAVE_FUTEX
    syscall(SYS_futex, &c->bell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
#endif
}

/* The store of `end` must be visible before `waiters` is looked at, or a reader that is just falling asleep is missed.
 * On x86 the unlock in between is a full barrier already. */
static inline int ps_someone_waits(ps_control *c) {
#if defined(__x86_64__)
    __asm__ volatile("" ::: "memory");
#else
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
    return __atomic_load_n(&c->waiters, __ATOMIC_RELAXED) != 0;
}

/* ---- time ---- */

static inline int64_t ps_clock_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static inline int64_t ps_mono_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>
/* Microseconds from the cycle counter, set by the real clock every two milliseconds: as exact as the unit, at a third
 * of the price. Per thread of appending, so that no lock is needed; only with a counter that never stops. */
typedef struct {
    uint64_t at, until;    /* cycle count when last set, and when to set again */
    int64_t us;
    double us_per_cycle;   /* 0: not yet known */
    int usable;            /* -1 not yet asked */
} ps_clock;

static int ps_tsc_invariant(void) {
    unsigned a, b, c, d;
    return __get_cpuid(0x80000007u, &a, &b, &c, &d) && (d & (1u << 8));
}

static int64_t ps_clock_set(ps_clock *k) {
    uint64_t tsc = __builtin_ia32_rdtsc();
    int64_t us = ps_clock_us();
    if (k->usable < 0) k->usable = ps_tsc_invariant();
    if (!k->usable) return us;
    if (k->at && us - k->us > 1000 && us - k->us < 10000000 && tsc > k->at) {
        double measured = (double)(us - k->us) / (double)(tsc - k->at);
        k->us_per_cycle = measured;
        k->at = tsc;
        k->us = us;
    } else if (!k->at || us < k->us || us - k->us >= 10000000) {
        k->at = tsc;       /* first time, the clock was set back, or too long ago to measure by */
        k->us = us;
        k->us_per_cycle = 0;
    }
    k->until = k->us_per_cycle > 0 ? k->at + (uint64_t)(2000.0 / k->us_per_cycle) : 0;
    return us;
}

static inline int64_t ps_now_us(ps_clock *k) {
    uint64_t tsc = __builtin_ia32_rdtsc();
    if (__builtin_expect(tsc >= k->until, 0)) return ps_clock_set(k);
    return k->us + (int64_t)((double)(int64_t)(tsc - k->at) * k->us_per_cycle);
}
#else
typedef struct { int usable; } ps_clock;
static inline int64_t ps_now_us(ps_clock *k) { (void)k; return ps_clock_us(); }
#endif

/* ---- pages ---- */

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

/* Make pages present and writable before the writer gets there: a fresh page costs microseconds, a touched one nothing.
 * Another process may have rolled and sealed the segment just now, which cuts its files: madvise then fails, where a store
 * would kill us (SIGBUS). So on Linux there is no second try. Elsewhere zero is added to one byte of each page, which is
 * safe while others write there. */
static void ps_touch(uint8_t *p, size_t n) {
    const size_t page = 4096;
    uint8_t *from = (uint8_t *)((uintptr_t)p & ~(uintptr_t)(page - 1));
    size_t len = (size_t)(p + n - from);
#if defined(__linux__)
    madvise(from, len, MADV_POPULATE_WRITE);
#else
    for (size_t i = 0; i < len; i += page) __atomic_fetch_or(from + i, 0, __ATOMIC_RELAXED);
#endif
}

/* Let go of pages already read or written: they stay in the page cache, but no longer count as ours. */
static void ps_release(uint8_t *p, size_t n) {
    const uintptr_t page = 4096;
    uintptr_t from = ((uintptr_t)p + page - 1) & ~(page - 1), to = (uintptr_t)(p + n) & ~(page - 1);
    if (to > from) madvise((void *)from, to - from, MADV_DONTNEED);
}

#endif
