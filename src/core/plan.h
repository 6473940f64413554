/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The read plan: one read cut into pieces that are present (HIT), being read by somebody (JOIN), or neither (MISS).
 * What is present but suspect is a MISS as well: the source's bytes are served, and then they prove it or cut it.
 *
 * Spans are the reads of the source under way in one file; disjoint, ordered.  The plan only looks; whoever carries
 * it out makes the spans for its misses, under the same lock.  Pure.
 */
#pragma once

#include "core/range_map.h"

#include <stddef.h>

struct span {
        uint64_t off, len;
        RB_ENTRY(span) node;
};
RB_HEAD(span_tree, span);

void span_insert(struct span_tree *t, struct span *s); /* must not overlap what is there */
void span_remove(struct span_tree *t, struct span *s);

enum piece_kind { PIECE_HIT, PIECE_MISS, PIECE_JOIN };
struct piece {
        enum piece_kind kind;
        uint64_t off, len;
        uint64_t nonce;    /* HIT: all of it was admitted under this one */
        struct span *span; /* JOIN: the read to wait for; it may be wider than the piece */
};

/* Plans [off, off+len): the pieces in order, without gaps.  A MISS is never longer than `max_miss`.  Where more than
 * `max` pieces would be needed (the range is in shreds), 0 is returned: read it as one. */
size_t plan_read(const struct range_map *m, const struct span_tree *spans, uint64_t off, uint64_t len,
                 uint64_t max_miss, struct piece *ret_pieces, size_t max);
