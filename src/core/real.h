/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The real cache: what is present, what it is charged, and who goes next.
 *
 * Idea.  It has no opinion of its own.  Every range is in exactly one list, and
 * which one follows from its state, its pins and from whether the followed
 * shadow holds it.  What is present but no longer held is a victim; victims go
 * oldest first, when room is needed and not before.  So a change of leader
 * copies nothing: it sorts the present ranges anew, and the bytes leave as
 * others come.
 *
 *   BUSY    pending                    VICTIM  present, not held, not pinned
 *   HELD    pinned, not pending        GHOST   not present, longest unused first
 *   KEPT    present and held, longest unused first
 *
 * Threads: the policy's lock.
 */
#pragma once

#include "core/policy.h"
#include "core/shadow.h"

enum real_list { LIST_GHOST, LIST_KEPT, LIST_VICTIM, LIST_HELD, LIST_BUSY, LISTS };

TAILQ_HEAD(range_list, range);

struct real {
        const struct shadow *followed;
        const struct charge_rule *rule;
        struct range_list lists[LISTS];
        uint64_t capacity;
        uint64_t charged; /* present and pending */
        uint64_t pinned;  /* the part of it that is pinned */
        uint64_t present_bytes, present_ranges;
        uint64_t ranges, most; /* present and pending ranges, and how many there may be */
};

void real_init(struct real *c, const struct charge_rule *rule);

/* A known range comes, or leaves as a ghost. */
void real_add(struct real *c, struct range *r);
void real_remove(struct real *c, struct range *r);

void real_set_state(struct real *c, struct range *r, enum range_state state);
void real_set_pins(struct real *c, struct range *r, unsigned pins);
void real_relist(struct real *c, struct range *r); /* the followed shadow took it or let it go */
void real_touch(struct real *c, struct range *r);  /* it was read */
void real_follow(struct real *c, const struct shadow *s);

/* `r` lost its end to `tail`, or grew; `old_len` is what it was counted as. */
void real_split(struct real *c, struct range *r, struct range *tail, uint64_t old_len);
void real_resized(struct real *c, struct range *r, uint64_t old_len);

/* Evict victims until `need` more bytes in `ranges` more ranges fit: false, with less evicted, if they do not. */
bool real_make_room(struct real *c, uint64_t need, uint64_t ranges, policy_sink evicted, void *ctx);
