"""crc_tables.h is what tools/gen_crc.py writes, and its numbers are what they are said to be.

The checks read the numbers back from the header's text and use arithmetic of their own: one coefficient at a
time, on reflected registers as the C code has them, while the generator divides unreflected polynomials.
"""

import re
import runpy
import zlib

import pytest

from tests.support import ROOT

GENERATOR = ROOT / "tools" / "gen_crc.py"
HEADER = ROOT / "src" / "penstock" / "kernel" / "crc_tables.h"

# Q reflected, without its leading term. For CRC-32 it is x^32 * P, hence the 32 upper bits are empty.
REFLECTED = {64: 0xC96C5795D7870F42, 32: 0xEDB88320}
WIDTHS = pytest.mark.parametrize("width", [64, 32])
X0 = 1 << 63  # the polynomial 1 in a reflected 64-bit register


def initialiser(name):
    """The text of a C array or structure, up to its closing brace."""
    return re.search(rf"\b{name}(?:\[\w+\])* = \{{\n(.*?)\n\}};", HEADER.read_text(), re.DOTALL)[1]


def numbers(text):
    return [int(word, 16) for word in re.findall(r"\b0x([0-9a-f]+)", text)]


def pairs(width, member):
    """The pairs of a member of the folding constants."""
    text = initialiser(f"ps_crc{width}_fold")
    found = numbers(re.search(rf"\.{member} = \{{(.*?)\}},\n(?=    \.|$)", text + "\n", re.DOTALL)[1])
    return list(zip(found[::2], found[1::2], strict=True))


def times_x(a, width):
    """a * x mod Q, both reflected."""
    return a >> 1 ^ (REFLECTED[width] if a & 1 else 0)


def powers_of_x(width, count):
    """x^0, x^1, ... mod Q as reflected registers."""
    power, found = X0, []
    for _ in range(count):
        found.append(power)
        power = times_x(power, width)
    return found


def clmul(a, b):
    """What PCLMULQDQ does: the product without carries, as an integer of 128 bits."""
    product = 0
    for i in range(64):
        if b >> i & 1:
            product ^= a << i
    return product


def bitwise_crc(width, data):
    """The CRC by its definition, a bit at a time."""
    ones = (1 << width) - 1
    crc = ones
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = times_x(crc, width)
    return crc ^ ones


def test_header_is_generated():
    module = runpy.run_path(str(GENERATOR))
    assert module["generate"]() == HEADER.read_text(encoding="ascii")
    assert module["HEADER"] == HEADER
    assert module["main"](["--check"]) == 0


def test_check_notices_a_difference(tmp_path, capsys):
    main = runpy.run_path(str(GENERATOR))["main"]
    main.__globals__["HEADER"] = tmp_path / "crc_tables.h"
    assert main(["--check"]) == 1
    assert main([]) == 0
    assert main(["--check"]) == 0
    with (tmp_path / "crc_tables.h").open("a") as header:
        header.write("\n")
    assert main(["--check"]) == 1
    assert "crc_tables.h" in capsys.readouterr().err


def test_reference_is_the_right_crc():
    assert bitwise_crc(64, b"123456789") == 0x995DC9BBDF1939FA
    assert bitwise_crc(32, b"123456789") == zlib.crc32(b"123456789") == 0xCBF43926


@WIDTHS
def test_slices(width):
    """Entry [k][b] is b after one step per bit of its own byte and of k zero bytes."""
    table = numbers(initialiser(f"ps_crc{width}_slices"))
    assert len(table) == 8 * 256
    for b in range(256):
        register = b
        for k in range(8):
            for _ in range(8):
                register = times_x(register, width)
            assert table[256 * k + b] == register


@WIDTHS
def test_folding_constants_are_powers_of_x(width):
    powers = powers_of_x(width, 32 * 128)
    blocks = pairs(width, "block")
    assert len(blocks) == 32
    for d, pair in enumerate(reversed(blocks)):
        assert pair == (powers[128 * d + 127], powers[128 * d + 63])
    assert pairs(width, "by128") == [(powers[1024 + 63], powers[1024 - 1])]
    assert pairs(width, "by256") == [(powers[2048 + 63], powers[2048 - 1])]


@WIDTHS
def test_barrett_constants(width):
    """By long division, one coefficient of the quotient at a time from the top."""
    [(mu, q)] = pairs(width, "barrett")
    # Q over x, reflected: Q without its constant term, x^64 being the lowest bit.
    assert q == (REFLECTED[width] << 1 | 1) & (1 << 64) - 1
    # x^128 / Q: the remainder begins as x^64 * x^64, and each step brings one coefficient down. The first
    # 64 of the 65 coefficients, x^64 to x^1, are bits 0 to 63 of mu over x reflected.
    remainder, quotient = REFLECTED[width], 1
    for i in range(1, 64):
        quotient |= (remainder & 1) << i
        remainder = times_x(remainder, width)
    assert mu == quotient


@WIDTHS
@pytest.mark.parametrize("blocks", [1, 2, 7, 32])
def test_constants_give_the_crc(width, blocks):
    """The algorithm of crc.h in Python, on whole blocks."""
    data = bytes(7 * i * i + 3 * i & 255 for i in range(16 * blocks))
    low = (1 << 64) - 1
    message = bytearray(data)
    for i in range(width // 8):
        message[i] ^= 255
    total = 0
    for i, (k_lo, k_hi) in enumerate(pairs(width, "block")[-blocks:]):
        block = int.from_bytes(message[16 * i : 16 * i + 16], "little")
        total ^= clmul(block & low, k_lo) ^ clmul(block >> 64, k_hi)
    [(mu, q)] = pairs(width, "barrett")
    quotient = clmul(total & low, mu) & low
    remainder = (total ^ clmul(quotient, q)) >> 64 ^ (quotient if width == 64 else 0)
    assert remainder >> width == 0
    assert remainder ^ (1 << width) - 1 == bitwise_crc(width, data)


def test_shuffle_window():
    window = numbers(initialiser("ps_crc_window"))
    source = list(range(100, 116))

    def shuffle(offset):
        return [0 if i & 0x80 else source[i] for i in window[offset : offset + 16]]

    assert len(window) == 48
    for r in range(17):
        assert shuffle(r) == [0] * (16 - r) + source[:r]
        assert shuffle(16 + r) == source[r:] + [0] * r
