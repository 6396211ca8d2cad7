/* CRC-64/XZ and CRC-32 (zlib's), tuned for the latency of short records.
 *
 * Three paths give the same results: "table" (any machine), "pclmul" (x86-64 with carry-less multiplication)
 * and "vpclmul" (the same on 64-byte vectors). ps_crc_init picks the best one that the machine has; before it
 * has run, the table path is used. Tables and constants come from tools/gen_crc.py, with the mathematics.
 *
 * The folding paths in short. Zero bytes before a message do not change a CRC whose register starts empty, so
 * a message is padded at its front, in registers, to whole blocks, the register's start value being added to
 * its first bytes. That way there is no tail to treat at the end, where it would add to the latency. Each
 * block is then multiplied by the power of x for its distance from the end, independently of the others, and
 * one reduction of the sum gives the CRC. Long messages are first folded to a few accumulators.
 */
#ifndef PENSTOCK_CRC_H
#define PENSTOCK_CRC_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "crc_tables.h"

#define PS_CRC_TABLE 0
#define PS_CRC_PCLMUL 1
#define PS_CRC_VPCLMUL 2

static int ps_crc_chosen = PS_CRC_TABLE;

/* ---- table: eight bytes per step ---------------------------------------------------------------------- */

/* Byte by byte, so that it is right on either endianness; compilers make one load of it. */
static inline uint64_t ps_crc_load64(const uint8_t *p)
{
    return (uint64_t)p[0] | (uint64_t)p[1] << 8 | (uint64_t)p[2] << 16 | (uint64_t)p[3] << 24 |
           (uint64_t)p[4] << 32 | (uint64_t)p[5] << 40 | (uint64_t)p[6] << 48 | (uint64_t)p[7] << 56;
}

#define PS_CRC_SLICES(t, v)                                                                         \
    (t[7][(v) & 255] ^ t[6][(v) >> 8 & 255] ^ t[5][(v) >> 16 & 255] ^ t[4][(v) >> 24 & 255] ^       \
     t[3][(v) >> 32 & 255] ^ t[2][(v) >> 40 & 255] ^ t[1][(v) >> 48 & 255] ^ t[0][(v) >> 56])

static inline uint64_t ps_crc64_table(uint64_t c, const uint8_t *p, size_t n)
{
    for (; n >= 8; p += 8, n -= 8) {
        uint64_t v = c ^ ps_crc_load64(p);
        c = PS_CRC_SLICES(ps_crc64_slices, v);
    }
    for (; n; n--)
        c = c >> 8 ^ ps_crc64_slices[0][(c ^ *p++) & 255];
    return c;
}

static inline uint32_t ps_crc32_table(uint32_t c, const uint8_t *p, size_t n)
{
    for (; n >= 8; p += 8, n -= 8) {
        uint64_t v = c ^ ps_crc_load64(p);
        c = PS_CRC_SLICES(ps_crc32_slices, v);
    }
    for (; n; n--)
        c = c >> 8 ^ ps_crc32_slices[0][(c ^ *p++) & 255];
    return c;
}

#if defined(__x86_64__) && defined(__GNUC__)

#include <immintrin.h>

#define PS_CRC_INLINE static inline __attribute__((always_inline))

/* ---- pclmul: blocks of 16 bytes ----------------------------------------------------------------------- */

#define PS_CRC_SSE __attribute__((target("pclmul,sse4.1")))
#define PS_CRC_LOAD(p) _mm_loadu_si128((const __m128i *)(p))

/* Adds x * k; one sum for each half of the blocks keeps the chains of additions short. */
#define PS_CRC_ADD(x, k)                                                                            \
    do {                                                                                            \
        __m128i x_ = (x), k_ = PS_CRC_LOAD(k);                                                      \
        lo = _mm_xor_si128(lo, _mm_clmulepi64_si128(x_, k_, 0x00));                                 \
        hi = _mm_xor_si128(hi, _mm_clmulepi64_si128(x_, k_, 0x11));                                 \
    } while (0)

/* Moves accumulator a ahead and adds the block at p there. */
#define PS_CRC_STEP(a, p)                                                                           \
    a = _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(a, ahead, 0x00), PS_CRC_LOAD(p)),          \
                      _mm_clmulepi64_si128(a, ahead, 0x11))

/* Barrett reduction of 128 bits to 64. `odd` is the constant term of Q, which the constants leave out. */
PS_CRC_SSE PS_CRC_INLINE uint64_t ps_crc_reduce(const ps_crc_fold *f, int odd, __m128i s)
{
    __m128i k = PS_CRC_LOAD(f->barrett);
    __m128i q = _mm_clmulepi64_si128(s, k, 0x00);
    __m128i m = _mm_clmulepi64_si128(q, k, 0x10);
    if (odd)
        s = _mm_xor_si128(s, _mm_slli_si128(q, 8));
    s = _mm_xor_si128(s, m);
    return (uint64_t)_mm_cvtsi128_si64(_mm_unpackhi_epi64(s, s));
}

/* Needs n >= 16. */
PS_CRC_SSE PS_CRC_INLINE uint64_t ps_crc_fold16(const ps_crc_fold *f, int odd, uint64_t crc,
                                                const uint8_t *p, size_t n)
{
    size_t left = (n - 1) / 16; /* blocks after the first */
    size_t r = n - 16 * left;   /* bytes in the first one, 1 to 16: the start value may reach the second */
    const uint64_t(*k)[2] = f->block + PS_CRC_BLOCKS;
    __m128i start = _mm_cvtsi64_si128((long long)crc);
    __m128i first = _mm_shuffle_epi8(_mm_xor_si128(PS_CRC_LOAD(p), start), PS_CRC_LOAD(ps_crc_window + r));
    __m128i spill = _mm_shuffle_epi8(start, PS_CRC_LOAD(ps_crc_window + 16 + r));
    __m128i lo = _mm_setzero_si128(), hi = lo;

    p += r;
    if (left < 16) {
        k -= left + 1;
        PS_CRC_ADD(first, k);
        if (left) {
            PS_CRC_ADD(_mm_xor_si128(PS_CRC_LOAD(p), spill), k + 1);
            for (size_t i = 1; i < left; i++)
                PS_CRC_ADD(PS_CRC_LOAD(p + 16 * i), k + 1 + i);
        }
    } else {
        __m128i ahead = PS_CRC_LOAD(f->by128);
        __m128i a0 = first, a1 = _mm_xor_si128(PS_CRC_LOAD(p), spill);
        __m128i a2 = PS_CRC_LOAD(p + 16), a3 = PS_CRC_LOAD(p + 32), a4 = PS_CRC_LOAD(p + 48);
        __m128i a5 = PS_CRC_LOAD(p + 64), a6 = PS_CRC_LOAD(p + 80), a7 = PS_CRC_LOAD(p + 96);
        p += 112;
        for (left -= 7; left >= 8; left -= 8, p += 128) {
            PS_CRC_STEP(a0, p);
            PS_CRC_STEP(a1, p + 16);
            PS_CRC_STEP(a2, p + 32);
            PS_CRC_STEP(a3, p + 48);
            PS_CRC_STEP(a4, p + 64);
            PS_CRC_STEP(a5, p + 80);
            PS_CRC_STEP(a6, p + 96);
            PS_CRC_STEP(a7, p + 112);
        }
        k -= left + 8;
        PS_CRC_ADD(a0, k);
        PS_CRC_ADD(a1, k + 1);
        PS_CRC_ADD(a2, k + 2);
        PS_CRC_ADD(a3, k + 3);
        PS_CRC_ADD(a4, k + 4);
        PS_CRC_ADD(a5, k + 5);
        PS_CRC_ADD(a6, k + 6);
        PS_CRC_ADD(a7, k + 7);
        for (size_t i = 0; i < left; i++)
            PS_CRC_ADD(PS_CRC_LOAD(p + 16 * i), k + 8 + i);
    }
    return ps_crc_reduce(f, odd, _mm_xor_si128(lo, hi));
}

PS_CRC_SSE static inline uint64_t ps_crc64_pclmul(uint64_t c, const uint8_t *p, size_t n)
{
    return ps_crc_fold16(&ps_crc64_fold, 1, c, p, n);
}

PS_CRC_SSE static inline uint32_t ps_crc32_pclmul(uint32_t c, const uint8_t *p, size_t n)
{
    return (uint32_t)ps_crc_fold16(&ps_crc32_fold, 0, c, p, n);
}

/* ---- vpclmul: the same with blocks of 64 bytes -------------------------------------------------------- */

#define PS_CRC_AVX __attribute__((target("avx512f,avx512bw,avx512vl,vpclmulqdq,pclmul,bmi2")))
#define PS_CRC_VLOAD(p) _mm512_loadu_si512((const void *)(p))
#define PS_CRC_XOR3 0x96 /* the truth table of a ^ b ^ c */

#define PS_CRC_VADD(x, k)                                                                           \
    do {                                                                                            \
        __m512i x_ = (x), k_ = PS_CRC_VLOAD(k);                                                     \
        lo = _mm512_xor_si512(lo, _mm512_clmulepi64_epi128(x_, k_, 0x00));                          \
        hi = _mm512_xor_si512(hi, _mm512_clmulepi64_epi128(x_, k_, 0x11));                          \
    } while (0)

#define PS_CRC_VSTEP(a, p)                                                                          \
    a = _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(a, ahead, 0x00),                         \
                                  _mm512_clmulepi64_epi128(a, ahead, 0x11),                         \
                                  PS_CRC_VLOAD(p), PS_CRC_XOR3)

/* Needs n >= 16. */
PS_CRC_AVX PS_CRC_INLINE uint64_t ps_crc_fold64(const ps_crc_fold *f, int odd, uint64_t crc,
                                                const uint8_t *p, size_t n)
{
    size_t left = (n - 1) / 64; /* blocks after the first */
    unsigned gap = -n & 63;     /* bytes missing in the first one */
    unsigned turn = 8 * gap & 63;
    const uint64_t(*k)[2] = f->block + PS_CRC_BLOCKS;
    /* The start value at all offsets congruent to gap modulo 8, from which masks choose the one at gap. */
    __m512i start = _mm512_set1_epi64((long long)(crc << turn | crc >> (-turn & 63)));
    __m512i first = _mm512_maskz_loadu_epi8(~0ull << gap, (const void *)((uintptr_t)p - gap));
    __m512i lo = _mm512_setzero_si512(), hi = lo;

    first = _mm512_xor_si512(first, _mm512_maskz_mov_epi8(0xffull << gap, start));
    p += 64 - gap;
    if (left < 8) {
        k -= 4 * left + 4;
        PS_CRC_VADD(first, k);
        if (left) {
            __m512i spill = _mm512_maskz_mov_epi8(0x7full >> (63 - gap), start);
            PS_CRC_VADD(_mm512_xor_si512(PS_CRC_VLOAD(p), spill), k + 4);
            for (size_t i = 1; i < left; i++)
                PS_CRC_VADD(PS_CRC_VLOAD(p + 64 * i), k + 4 + 4 * i);
        }
    } else {
        __m512i spill = _mm512_maskz_mov_epi8(0x7full >> (63 - gap), start);
        __m512i ahead = _mm512_broadcast_i32x4(PS_CRC_LOAD(f->by256));
        __m512i a0 = first, a1 = _mm512_xor_si512(PS_CRC_VLOAD(p), spill);
        __m512i a2 = PS_CRC_VLOAD(p + 64), a3 = PS_CRC_VLOAD(p + 128);
        p += 192;
        for (left -= 3; left >= 4; left -= 4, p += 256) {
            PS_CRC_VSTEP(a0, p);
            PS_CRC_VSTEP(a1, p + 64);
            PS_CRC_VSTEP(a2, p + 128);
            PS_CRC_VSTEP(a3, p + 192);
        }
        k -= 4 * left + 16;
        PS_CRC_VADD(a0, k);
        PS_CRC_VADD(a1, k + 4);
        PS_CRC_VADD(a2, k + 8);
        PS_CRC_VADD(a3, k + 12);
        for (size_t i = 0; i < left; i++)
            PS_CRC_VADD(PS_CRC_VLOAD(p + 64 * i), k + 16 + 4 * i);
    }
    /* Extracting the lanes from one register is quicker than halving twice: the extractions overlap. */
    lo = _mm512_xor_si512(lo, hi);
    __m128i s1 = _mm256_extracti128_si256(_mm512_castsi512_si256(lo), 1);
    __m128i s2 = _mm512_extracti32x4_epi32(lo, 2), s3 = _mm512_extracti32x4_epi32(lo, 3);
    __m128i s = _mm_ternarylogic_epi64(_mm_xor_si128(_mm512_castsi512_si128(lo), s1), s2, s3, PS_CRC_XOR3);
    return ps_crc_reduce(f, odd, s);
}

/* Masked-off bytes are not read, but if they lie in a page that is not mapped the processor takes a slow way;
 * so keep the load that pads the front out of the page before p. */
PS_CRC_INLINE int ps_crc_leaves_page(const uint8_t *p, size_t n)
{
    return ((uintptr_t)p & 4095) < (-n & 63);
}

PS_CRC_AVX static inline uint64_t ps_crc64_vpclmul(uint64_t c, const uint8_t *p, size_t n)
{
    if (__builtin_expect(ps_crc_leaves_page(p, n), 0)) {
        size_t r = n & 63;
        c = r < 16 ? ps_crc64_table(c, p, r) : ps_crc64_pclmul(c, p, r);
        if (n == r)
            return c;
        p += r;
        n -= r;
    }
    return ps_crc_fold64(&ps_crc64_fold, 1, c, p, n);
}

PS_CRC_AVX static inline uint32_t ps_crc32_vpclmul(uint32_t c, const uint8_t *p, size_t n)
{
    if (__builtin_expect(ps_crc_leaves_page(p, n), 0)) {
        size_t r = n & 63;
        c = r < 16 ? ps_crc32_table(c, p, r) : ps_crc32_pclmul(c, p, r);
        if (n == r)
            return c;
        p += r;
        n -= r;
    }
    return (uint32_t)ps_crc_fold64(&ps_crc32_fold, 0, c, p, n);
}

#define PS_CRC_FOLDS 1 /* the other two paths exist */

#endif

/* ---- choice of path ----------------------------------------------------------------------------------- */

/* The CRC of a message whose beginning has the CRC `crc` (0 for none) and which goes on with p[0..n). */
static inline uint64_t ps_crc64(uint64_t crc, const uint8_t *p, size_t n)
{
#ifdef PS_CRC_FOLDS
    if (n >= 16 && ps_crc_chosen != PS_CRC_TABLE) {
        /* Up to two blocks the narrow path is the quicker one: there is little to sum up. */
        if (n > 32 && ps_crc_chosen == PS_CRC_VPCLMUL)
            return ~ps_crc64_vpclmul(~crc, p, n);
        return ~ps_crc64_pclmul(~crc, p, n);
    }
#endif
    return ~ps_crc64_table(~crc, p, n);
}

static inline uint32_t ps_crc32(uint32_t crc, const uint8_t *p, size_t n)
{
#ifdef PS_CRC_FOLDS
    if (n >= 16 && ps_crc_chosen != PS_CRC_TABLE) {
        if (n > 32 && ps_crc_chosen == PS_CRC_VPCLMUL)
            return ~ps_crc32_vpclmul(~crc, p, n);
        return ~ps_crc32_pclmul(~crc, p, n);
    }
#endif
    return ~ps_crc32_table(~crc, p, n);
}

/* Use the path of this name from now on: 0, or -1 if this machine (or the name) does not have it. */
static inline int ps_crc_force(const char *name)
{
    if (!strcmp(name, "table")) {
        ps_crc_chosen = PS_CRC_TABLE;
        return 0;
    }
#ifdef PS_CRC_FOLDS
    int narrow, wide;
    __builtin_cpu_init();
    narrow = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
    wide = narrow && __builtin_cpu_supports("vpclmulqdq") && __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("bmi2");
    if (!strcmp(name, "pclmul") && narrow) {
        ps_crc_chosen = PS_CRC_PCLMUL;
        return 0;
    }
    if (!strcmp(name, "vpclmul") && wide) {
        ps_crc_chosen = PS_CRC_VPCLMUL;
        return 0;
    }
#endif
    return -1;
}

/* Choose the best path. */
static inline void ps_crc_init(void)
{
    if (ps_crc_force("vpclmul") && ps_crc_force("pclmul"))
        ps_crc_force("table");
}

static inline const char *ps_crc_path(void)
{
    return ps_crc_chosen == PS_CRC_VPCLMUL ? "vpclmul" : ps_crc_chosen == PS_CRC_PCLMUL ? "pclmul" : "table";
}

#endif
