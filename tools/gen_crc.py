"""Write src/penstock/kernel/crc_tables.h: every table and constant that crc.h needs.

    python tools/gen_crc.py            write the header
    python tools/gen_crc.py --check    exit 1 if the header in the repository differs

The mathematics, in brief. A polynomial over GF(2) is a Python int here, bit i being the coefficient of x^i.
Both CRCs are "reflected": the first message bit is the lowest bit of the first byte, and it is the highest
power of x. So a register of w bits in the C code, loaded little-endian, holds its polynomial reflected: bit i
is the coefficient of x^(w-1-i). With the initial value added to the first bytes of a message M, the CRC is
M * x^64 mod P for CRC-64, M * x^32 mod P for CRC-32, and then inverted.

CRC-32 runs through the same folding code as CRC-64. With Q = x^32 * P32, of degree 64,
M * x^64 mod Q = x^32 * (M * x^32 mod P32): the wanted 32 bits are the top half of a 64-bit remainder, hence
the low half of the reflected register. For CRC-64 Q is simply P64.

A carry-less multiplication of two reflected 64-bit registers has 127 significant bits in a 128-bit register,
starting at bit 0, which read as a reflected 128-bit register is a * b * x. That is why each exponent below is
one less than the distance it moves by.
"""

from __future__ import annotations

import sys
from pathlib import Path

HEADER = Path(__file__).resolve().parent.parent / "src" / "penstock" / "kernel" / "crc_tables.h"

P64 = 1 << 64 | 0x42F0E1EBA9EA3693  # CRC-64/XZ, the polynomial of ECMA-182
P32 = 1 << 32 | 0x04C11DB7  # CRC-32, IEEE 802.3

SLICES = 8  # bytes per step of the table path
BLOCKS = 32  # 16-byte blocks which block[] can bring to the end at once (512 bytes)


def divmod_poly(a: int, b: int) -> tuple[int, int]:
    """Quotient and remainder of a by b."""
    quotient = 0
    while (shift := a.bit_length() - b.bit_length()) >= 0:
        quotient |= 1 << shift
        a ^= b << shift
    return quotient, a


def x_to(k: int, modulus: int) -> int:
    """x^k modulo the modulus."""
    return divmod_poly(1 << k, modulus)[1]


def reflect(a: int, width: int) -> int:
    """The lowest `width` bits of a in reverse order."""
    return int(f"{a:0{width}b}"[::-1], 2)


def slice_tables(p: int, width: int) -> list[list[int]]:
    """tables[k][b]: the CRC register after byte b and then k zero bytes, from an empty register.

    That is b(x) * x^width * x^(8k) mod P, where b(x) is the byte reflected.
    """
    return [
        [reflect(divmod_poly(reflect(b, 8) << (width + 8 * k), p)[1], width) for b in range(256)] for k in range(SLICES)
    ]


def block_pairs(q: int) -> list[tuple[int, int]]:
    """For each 16-byte block, the pair which turns it into its share of M * x^64, below degree 128.

    A block with d blocks after it stands for A * x^(128d), A = lo * x^64 + hi (`lo` is the low quadword, it
    has the high powers). Its share of M * x^64 is lo * x^(128d+128) + hi * x^(128d+64). Pairs are ordered as
    blocks are in memory: the last one has d = 0.
    """
    return [(reflect(x_to(128 * d + 127, q), 64), reflect(x_to(128 * d + 63, q), 64)) for d in reversed(range(BLOCKS))]


def stride_pair(q: int, bits: int) -> tuple[int, int]:
    """The pair which moves a 16-byte accumulator ahead by `bits`: A * x^bits, below degree 128."""
    return reflect(x_to(bits + 63, q), 64), reflect(x_to(bits - 1, q), 64)


def barrett_pair(q: int) -> tuple[int, int]:
    """floor(mu / x) with mu = floor(x^128 / Q), and floor(Q / x): both have degree 63.

    For S = H * x^64 + L the quotient floor(S / Q) is floor(H * mu / x^64), and the remainder is
    L + quotient * Q mod x^64. Dividing both factors by x makes up for the x which a multiplication adds. The
    constant term this drops matters not for mu (H * 1 is below x^64); for Q it has to be added back: it is
    1 for P64 and 0 for x^32 * P32.
    """
    mu = divmod_poly(1 << 128, q)[0]
    return reflect(mu >> 1, 64), reflect(q >> 1, 64)


def shuffle_window() -> list[int]:
    """Indices for PSHUFB, to be loaded at a variable offset: 16 zeroing, 16 identity, 16 zeroing.

    At offset r the shuffle moves bytes 0..r-1 to the end of the register; at offset 16 + r it moves bytes
    r..15 to the start. The rest becomes zero.
    """
    return [0x80] * 16 + list(range(16)) + [0x80] * 16


def lines(values: list[int], width: int, per_line: int, indent: str) -> str:
    """Values as C initialisers of `width` bits."""
    suffix = {8: "", 32: "u", 64: "ull"}[width]
    words = [f"0x{v:0{width // 4}x}{suffix}" for v in values]
    rows = [words[i : i + per_line] for i in range(0, len(words), per_line)]
    return "".join(f"{indent}{', '.join(row)},\n" for row in rows)


def c_slices(name: str, p: int, width: int) -> str:
    body = "".join(
        "    {\n" + lines(table, width, 256 // width, "        ") + "    },\n" for table in slice_tables(p, width)
    )
    return f"static const uint{width}_t {name}[{SLICES}][256] = {{\n{body}}};\n"


def c_fold(name: str, q: int) -> str:
    def pair(values: tuple[int, int]) -> str:
        return "{" + ", ".join(f"0x{v:016x}ull" for v in values) + "}"

    blocks = "".join(f"        {pair(values)},\n" for values in block_pairs(q))
    return (
        f"static const ps_crc_fold {name} = {{\n"
        f"    .block = {{\n{blocks}    }},\n"
        f"    .by128 = {pair(stride_pair(q, 8 * 128))},\n"
        f"    .by256 = {pair(stride_pair(q, 8 * 256))},\n"
        f"    .barrett = {pair(barrett_pair(q))},\n"
        f"}};\n"
    )


def generate() -> str:
    """The text of crc_tables.h."""
    return f"""\
/* Written by tools/gen_crc.py, which explains the mathematics. Do not edit. */
#ifndef PENSTOCK_CRC_TABLES_H
#define PENSTOCK_CRC_TABLES_H

#include <stdint.h>

/* [k][b]: the register after byte b and k zero bytes. */
{c_slices("ps_crc64_slices", P64, 64)}
{c_slices("ps_crc32_slices", P32, 32)}
#if defined(__x86_64__) && defined(__GNUC__)

#define PS_CRC_BLOCKS {BLOCKS}

/* Q is P for CRC-64 and x^32 * P for CRC-32; every value is a reflected 64-bit polynomial. */
typedef struct {{
    uint64_t block[PS_CRC_BLOCKS][2]; /* d blocks from the end: x^(128d+127), x^(128d+63) mod Q */
    uint64_t by128[2];                /* ahead by 128 bytes: x^(1024+63), x^(1024-1) mod Q */
    uint64_t by256[2];                /* ahead by 256 bytes: x^(2048+63), x^(2048-1) mod Q */
    uint64_t barrett[2];              /* floor(floor(x^128 / Q) / x), floor(Q / x) */
}} __attribute__((aligned(64))) ps_crc_fold;

{c_fold("ps_crc64_fold", P64)}
{c_fold("ps_crc32_fold", P32 << 32)}
/* PSHUFB indices: offset r moves bytes 0..r-1 to the end, offset 16 + r moves bytes r..15 to the start. */
static const uint8_t ps_crc_window[48] = {{
{lines(shuffle_window(), 8, 16, "    ")}}};

#endif
#endif
"""


def main(arguments: list[str]) -> int:
    text = generate()
    if arguments == ["--check"]:
        if HEADER.exists() and HEADER.read_text(encoding="ascii") == text:
            return 0
        print(f"{HEADER} is not what tools/gen_crc.py writes", file=sys.stderr)
        return 1
    if arguments:
        print("usage: gen_crc.py [--check]", file=sys.stderr)
        return 2
    HEADER.write_text(text, encoding="ascii", newline="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
