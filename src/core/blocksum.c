/* SPDX-License-Identifier: Apache-2.0 */
#include "core/blocksum.h"

#define XXH_INLINE_ALL /* no symbol from outside: this layer is pure */
#include <xxhash.h>

static uint64_t block_sum(const unsigned char *block, size_t len, uint64_t off, uint64_t nonce) {
        /* The multiplication spreads neighbouring offsets over all bits, so that no two seeds differ in a few only. */
        return XXH3_64bits_withSeed(block, len, nonce ^ (off / 4096 + 1) * 0x9e3779b97f4a7c15ull);
}

static size_t block_len(size_t len, size_t at) { return len - at < 4096 ? len - at : 4096; }

void blocksum_compute(const void *data, size_t len, uint64_t off, uint64_t nonce, uint64_t *sums) {
        const unsigned char *p = data;

        for (size_t at = 0; at < len; at += 4096)
                sums[at / 4096] = block_sum(p + at, block_len(len, at), off + at, nonce);
}

ptrdiff_t blocksum_verify(const void *data, size_t len, uint64_t off, uint64_t nonce, const uint64_t *sums) {
        const unsigned char *p = data;

        for (size_t at = 0; at < len; at += 4096)
                if (sums[at / 4096] != block_sum(p + at, block_len(len, at), off + at, nonce))
                        return (ptrdiff_t)(at / 4096);
        return -1;
}
