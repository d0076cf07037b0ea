/*
 * md5.c -- RFC 1321, a block of 64 bytes at a time.
 */
#include "base/md5.h"

#include <stdio.h>
#include <string.h>

void md5_begin(struct md5 *md5)
{
    *md5 = (struct md5){.state = {0x67452301u, 0xefcdab89u, 0x98badcfeu, 0x10325476u}};
}

static uint32_t rotate(uint32_t x, int by)
{
    return x << by | x >> (32 - by);
}

/* The RFC's table T: the integer part of 2^32 |sin(i + 1)|. */
static const uint32_t sines[64] = {
    0xd76aa478, 0xe8c7b756, 0x242070db, 0xc1bdceee, 0xf57c0faf, 0x4787c62a, 0xa8304613, 0xfd469501,
    0x698098d8, 0x8b44f7af, 0xffff5bb1, 0x895cd7be, 0x6b901122, 0xfd987193, 0xa679438e, 0x49b40821,
    0xf61e2562, 0xc040b340, 0x265e5a51, 0xe9b6c7aa, 0xd62f105d, 0x02441453, 0xd8a1e681, 0xe7d3fbc8,
    0x21e1cde6, 0xc33707d6, 0xf4d50d87, 0x455a14ed, 0xa9e3e905, 0xfcefa3f8, 0x676f02d9, 0x8d2a4c8a,
    0xfffa3942, 0x8771f681, 0x6d9d6122, 0xfde5380c, 0xa4beea44, 0x4bdecfa9, 0xf6bb4b60, 0xbebfbc70,
    0x289b7ec6, 0xeaa127fa, 0xd4ef3085, 0x04881d05, 0xd9d4d039, 0xe6db99e5, 0x1fa27cf8, 0xc4ac5665,
    0xf4292244, 0x432aff97, 0xab9423a7, 0xfc93a039, 0x655b59c3, 0x8f0ccc92, 0xffeff47d, 0x85845dd1,
    0x6fa87e4f, 0xfe2ce6e0, 0xa3014314, 0x4e0811a1, 0xf7537e82, 0xbd3af235, 0x2ad7d2bb, 0xeb86d391};

static void add_block(struct md5 *md5, const unsigned char *block)
{
    static const int rotations[4][4] = {
        {7, 12, 17, 22}, {5, 9, 14, 20}, {4, 11, 16, 23}, {6, 10, 15, 21}};
    uint32_t words[16], a = md5->state[0], b = md5->state[1], c = md5->state[2], d = md5->state[3];
    for (int i = 0; i < 16; i++)
        words[i] = (uint32_t)block[4 * i] | (uint32_t)block[4 * i + 1] << 8 |
                   (uint32_t)block[4 * i + 2] << 16 | (uint32_t)block[4 * i + 3] << 24;
    for (int i = 0; i < 64; i++) {
        uint32_t mixed;
        int word;
        switch (i / 16) {
        case 0:
            mixed = (b & c) | (~b & d), word = i;
            break;
        case 1:
            mixed = (b & d) | (c & ~d), word = (5 * i + 1) % 16;
            break;
        case 2:
            mixed = b ^ c ^ d, word = (3 * i + 5) % 16;
            break;
        default:
            mixed = c ^ (b | ~d), word = 7 * i % 16;
        }
        uint32_t next = b + rotate(a + mixed + sines[i] + words[word], rotations[i / 16][i % 4]);
        a = d, d = c, c = b, b = next;
    }
    md5->state[0] += a, md5->state[1] += b, md5->state[2] += c, md5->state[3] += d;
}

void md5_add(struct md5 *md5, const void *bytes, size_t n_bytes)
{
    const unsigned char *from = bytes;
    while (n_bytes > 0) {
        size_t at = md5->n_bytes % sizeof md5->block, n = sizeof md5->block - at;
        n = n < n_bytes ? n : n_bytes;
        memcpy(md5->block + at, from, n);
        md5->n_bytes += n;
        from += n;
        n_bytes -= n;
        if (at + n == sizeof md5->block)
            add_block(md5, md5->block);
    }
}

void md5_end(struct md5 *md5, char text[MD5_TEXT_MAX])
{
    static const unsigned char padding[64] = {0x80};
    uint64_t n_bits = md5->n_bytes * 8;
    size_t at = md5->n_bytes % sizeof md5->block;
    unsigned char length[8];
    for (int i = 0; i < 8; i++)
        length[i] = (unsigned char)(n_bits >> (8 * i));
    md5_add(md5, padding, at < 56 ? 56 - at : 120 - at);
    md5_add(md5, length, sizeof length);
    for (int i = 0; i < 16; i++)
        snprintf(text + 2 * i, 3, "%02x", (md5->state[i / 4] >> (8 * (i % 4))) & 0xff);
}
