/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checksums of mirror blocks: one 64-bit XXH3 per 4 KiB, the file's tail block over the bytes that it has.
 *
 * The seed is made of the extent's nonce and the block's offset.  So a block that was torn, flipped, swapped with
 * another, punched, or left over from an older version of the file (whose old checksum survived with it) does not
 * verify, and no fsync is needed to be safe: what does not verify is a miss.  Pure.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

static inline size_t blocksum_count(size_t len) { return (len + 4095) / 4096; }

/* `off` is a multiple of 4 KiB; `sums` has room for blocksum_count(len). */
void blocksum_compute(const void *data, size_t len, uint64_t off, uint64_t nonce, uint64_t *sums);
/* The index of the first block that does not match, or -1. */
ptrdiff_t blocksum_verify(const void *data, size_t len, uint64_t off, uint64_t nonce, const uint64_t *sums);
