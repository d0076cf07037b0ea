/*
 * md5.h -- MD5 (RFC 1321), the checksum that many data sets are published with.
 *
 * It detects broken downloads.  It does not protect against tampering.
 */
#ifndef SNUG_BASE_MD5_H
#define SNUG_BASE_MD5_H

#include <stddef.h>
#include <stdint.h>

struct md5 {
    uint32_t state[4];
    uint64_t n_bytes;
    unsigned char block[64]; /* the last n_bytes % 64 bytes, not hashed yet */
};

enum { MD5_TEXT_MAX = 33 }; /* 32 digits and a NUL */

void md5_begin(struct md5 *md5);
void md5_add(struct md5 *md5, const void *bytes, size_t n_bytes);
void md5_end(struct md5 *md5, char text[MD5_TEXT_MAX]);

#endif
