/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The known ranges of all files: born, split, merged, forgotten, and never too many.
 *
 * Idea.  A range is in its file's map, in one list of the real cache and in the
 * heaps of the shadows that hold it.  This is the one place where ranges are
 * made and unmade, so the one place that keeps those three in step.
 *
 * Bounded memory.  From three quarters of the limit on, every read pays for a
 * few steps of a hand that goes round all maps and merges neighbours which
 * nothing tells apart (same state, nonce, pins, shadows, nearly equal heat).  At
 * the limit the oldest ghosts go.  No more than three quarters may be resident,
 * in any shadow or in truth: there are always ghosts to go, and a cache full of
 * tiny ranges still learns.
 *
 * Threads: the policy's lock.
 */
#pragma once

#include "core/contest.h"
#include "core/real.h"

TAILQ_HEAD(map_list, range_map);

struct known {
        struct contest *contest;
        struct real *real;
        uint64_t count, limit, min_ghosts;
        struct map_list maps; /* those with ranges */
        struct range_map *hand_map;
        uint64_t hand_off;
};

void known_init(struct known *k, struct contest *contest, struct real *real, uint64_t limit);

/* A ghost that nothing is known of, in no shadow.  Another ghost may be forgotten for it.  NULL: no memory, or the
 * limit is reached with nothing to forget; `above_limit` (for pins, which must not be lost) forgets nothing. */
struct range *known_new(struct known *k, struct range_map *m, uint64_t off, uint64_t len, bool above_limit);
/* Cut `r` at `at`, strictly inside; it keeps its front.  Returns the tail, or NULL without memory. */
struct range *known_split(struct known *k, struct range *r, uint64_t at);
/* Make the part of `r` in [off, end) a range of its own.  NULL without memory: `r` then still holds all of that
 * part. */
struct range *known_isolate(struct known *k, struct range *r, uint64_t off, uint64_t end);
void known_shorten(struct known *k, struct range *r, uint64_t len);
void known_forget(struct known *k, struct range *r); /* must be a ghost */

/* After a read or a pin: turn the hand, and drop ghosts beyond what residents justify. */
void known_trim(struct known *k);
