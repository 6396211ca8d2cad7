/* Sleeping on the bells of several logs at once.
 *
 * The rules are those of one bell (shared.h, "sleeping and waking"), kept for each: read the bell, raise `waiters`, look,
 * and sleep unless a bell has changed. The system compares all of them under its own locks before it lets us sleep.
 */
#ifndef PENSTOCK_WAIT_H
#define PENSTOCK_WAIT_H

#include "shared.h"

#define PS_BELLS_MOST 128  /* as many as the system takes in one call */

/* One log that is waited for: where it stood when we looked, and what its bell said. */
typedef struct {
    ps_control *ctl;
    uint64_t segment, end;
    uint32_t seen;
} ps_bell;

#if PS_HAVE_FUTEX
/* futex_waitv came with Linux 5.16; the headers that we are built with may be older than the system that we run on. */
#if defined(SYS_futex_waitv)
#define PS_SYS_WAITV SYS_futex_waitv
#elif defined(__alpha__)
#define PS_SYS_WAITV 559
#else
#define PS_SYS_WAITV 449
#endif

typedef struct {
    uint64_t value, address;
    uint32_t flags, reserved;
} ps_waitv;

enum { PS_WAITV_U32 = 2 }; /* and not private: others than this process ring */
#endif

/* 0 when one of at most PS_BELLS_MOST bells was rung, else EAGAIN (one had been already), ETIMEDOUT, EINTR, or any other
 * errno: this system cannot do it. */
static int ps_bells_wait(const ps_bell *bells, size_t count, double timeout_s) {
#if PS_HAVE_FUTEX
    ps_waitv waits[PS_BELLS_MOST];
    struct timespec now;
    struct { int64_t sec, nsec; } until; /* 64 bits on every machine, which a timespec is not */
    for (size_t i = 0; i < count; i++)
        waits[i] = (ps_waitv){bells[i].seen, (uint64_t)(uintptr_t)&bells[i].ctl->bell, PS_WAITV_U32, 0};
    clock_gettime(CLOCK_MONOTONIC, &now);
    int64_t nsec = (int64_t)now.tv_nsec + (int64_t)(timeout_s * 1e9);
    until.sec = (int64_t)now.tv_sec + nsec / 1000000000;
    until.nsec = nsec % 1000000000;
    return syscall(PS_SYS_WAITV, waits, (unsigned)count, 0u, &until, CLOCK_MONOTONIC) >= 0 ? 0 : errno;
#else
    (void)bells; (void)count; (void)timeout_s;
    return ENOTSUP;
#endif
}

#endif
