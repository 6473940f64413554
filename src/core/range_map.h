/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The range map of one file: the disjoint ranges that were ever read, ordered by offset.
 *
 * A range is present (its bytes are in the mirror), pending (they are being written there) or a ghost (only its heat
 * is known).  Only the policy changes a map; others look through the functions below.  Pure; the policy's lock.
 *
 * The structs are here because a map is embedded in its owner and because their size is the daemon's memory: what a
 * caller may read is marked, the rest belongs to core/.
 */
#pragma once

#include <bsd/sys/queue.h>
#include <bsd/sys/tree.h>
#include <stdbool.h>
#include <stdint.h>

enum range_state { RANGE_GHOST, RANGE_PENDING, RANGE_PRESENT };

/* The shadow caches that may run (core/shadow.h); here because a range carries a few words for each. */
enum shadow_kind { SHADOW_HOT, SHADOW_SLOW, SHADOW_OVERDUE, SHADOW_LRU, SHADOW_KINDS };
#define SHADOW_SCORES SHADOW_LRU /* LRU ranks by `last` and keeps no score */

struct range_map;

struct range {
        /* public */
        uint64_t off, len;
        uint64_t nonce; /* meaningful while present */
        enum range_state state : 2;
        unsigned suspect : 1; /* present, but the source may have other bytes by now: compare before it is served */

        /* core's own */
        unsigned list : 3;        /* which list of the real cache, core/real.h */
        unsigned evicted : 1;     /* was present once, and had to go: what comes back is readmitted */
        unsigned pins : 25;
        uint32_t part;            /* bytes/512 heard of in reads that covered less than half, not yet credited */
        float gap;                /* largest recent distance between uses, bytes; 0: used once */
        uint32_t due_at;          /* position in the overdue shadow's heap of deadlines */
        uint32_t at[SHADOW_KINDS]; /* position in each shadow's heap; 0: that shadow does not hold it */
        double score[SHADOW_SCORES];
        int64_t last;             /* clock of the last use; negative: before a restart */
        struct range_map *map;
        RB_ENTRY(range) node;
        TAILQ_ENTRY(range) order;
};

/* What a known range costs in memory: this, and 16 bytes per shadow that holds it (one more for a deadline). */
#define RANGE_STATE_BYTES 144
_Static_assert(sizeof(struct range) <= RANGE_STATE_BYTES, "a range outgrew its stated size");

RB_HEAD(range_tree, range);

struct range_map {
        void *owner; /* public: the file, for sinks */

        /* core's own */
        struct range_tree tree;
        uint64_t present_bytes;
        bool any_trusted; /* false: no present range that is not suspect */
        TAILQ_ENTRY(range_map) all; /* maps that hold ranges, for the merging hand */
};

void range_map_init(struct range_map *m, void *owner);

/* First range whose end lies after `off`, or NULL; and its successor. */
struct range *range_map_find(const struct range_map *m, uint64_t off);
struct range *range_map_next(const struct range *r);

/* The first maximal present stretch of [off, end), suspects included: true and its bounds, or false if there is none. */
bool range_map_present(const struct range_map *m, uint64_t off, uint64_t end, uint64_t *ret_off, uint64_t *ret_end);
/* May it be served as it is? */
static inline bool range_is_good(const struct range *r) { return r->state == RANGE_PRESENT && !r->suspect; }
/* The end of what may be served without a gap from `off` on, `end` at most; `off`: nothing. */
uint64_t range_map_good_to(const struct range_map *m, uint64_t off, uint64_t end);
/* Present bytes of the map, all of it. */
uint64_t range_map_present_bytes(const struct range_map *m);

static inline uint64_t range_end(const struct range *r) {
        return r->off + r->len;
}

/* For core only: tree membership.  `r` must not overlap what the map holds. */
void range_map_insert(struct range_map *m, struct range *r);
void range_map_remove(struct range_map *m, struct range *r);
struct range *range_map_prev(const struct range *r);
