/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small things that every layer needs: checked range arithmetic, alignment, clean-up by attribute.
 * No state, no locks.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#define BLOCK 4096u /* the unit of checksums and of alignment: every extent starts and ends on one, the file's tail less */
#define KIB 1024ull
#define MIB (1024ull * KIB)

#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))
#define container_of(ptr, type, member) ((type *)((char *)(ptr) - offsetof(type, member)))

static inline uint64_t min_u64(uint64_t a, uint64_t b) { return a < b ? a : b; }
static inline uint64_t max_u64(uint64_t a, uint64_t b) { return a > b ? a : b; }
static inline uint64_t block_down(uint64_t x) { return x & ~(uint64_t)(BLOCK - 1); }
/* Saturates, so that no later comparison with an end wraps. */
static inline uint64_t block_up(uint64_t x) { return x > UINT64_MAX - BLOCK ? UINT64_MAX : block_down(x + BLOCK - 1); }
static inline uint64_t end_of(uint64_t off, uint64_t len) { return len > UINT64_MAX - off ? UINT64_MAX : off + len; }
static inline bool overlaps(uint64_t a, uint64_t a_end, uint64_t b, uint64_t b_end) { return a < b_end && b < a_end; }

/* Ownership leaves a variable that would otherwise be cleaned up. */
#define TAKE_PTR(p)                         \
        __extension__({                     \
                __typeof__(p) _taken = (p); \
                (p) = NULL;                 \
                _taken;                     \
        })
static inline int take_fd(int *fd) {
        int taken = *fd;
        *fd = -1;
        return taken;
}

static inline void closep(int *fd) {
        if (*fd >= 0)
                close(*fd);
}
static inline void freep(void *p) { free(*(void **)p); }
#define _cleanup_(fn) __attribute__((cleanup(fn)))
#define _cleanup_close_ _cleanup_(closep)
#define _cleanup_free_ _cleanup_(freep)
