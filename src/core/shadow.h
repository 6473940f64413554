/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A shadow cache: which known ranges one rule would hold within the budget.
 *
 * Idea.  It holds names only, so several can run beside each other to judge the
 * rules they stand for.  All rules share one shape.  Every resident has a key;
 * a range that is not resident and is read comes with a *prior*, its key from
 * before this read.  It enters when there is room, or when enough residents
 * with keys below the prior can go.  Not counting the read in its own favour is
 * what keeps a fixed part of a loop that is larger than the cache.
 *
 *   rule      key                                  prior
 *   HOT       score, half-life 4 budgets           score before the read
 *   SLOW      score, half-life 32 budgets          score before the read
 *   OVERDUE   as HOT, but a resident that is       as HOT, but nothing for a range
 *             unseen for 1.5 of its gaps ranks     that was overdue itself
 *             below everything that is alive
 *   LRU       time of the last use                 infinite: every miss enters
 *
 * Threads: the policy's lock.  Left out: who is followed (contest.h), real bytes
 * (real.h), and the ranges themselves (known.h): a shadow never frees one.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/heap.h"
#include "core/range_map.h"

/* What a present range costs; the shadows count the same, so that they agree with the real cache. */
struct charge_rule {
        uint64_t per_range;
        bool sums;
};

static inline uint64_t charge_of(const struct charge_rule *rule, uint64_t len) {
        /* With a sidecar there is a disk below, and the file's last block takes all of its 4 KiB there. */
        return (rule->sums ? (len + 4095) / 4096 * 4096 + len / 512 : len) + rule->per_range;
}

struct shadow {
        enum shadow_kind kind;
        bool running;
        const struct charge_rule *rule;
        uint64_t capacity, used; /* used may pass capacity by a split's overhead until the next admission */
        uint32_t most;           /* residents: names cost memory, however few bytes stand behind them */
        double clock;            /* half-lives, see score.h */
        struct heap residents;   /* coldest first */
        struct heap deadlines;   /* OVERDUE: residents by the time at which they become overdue */
        uint64_t hit_bytes, admitted_bytes;

        double reward; /* contest.h */
        uint64_t judged_hits, judged_admitted;

        /* Told of each range that enters or leaves; NULL unless followed. */
        void (*moved)(void *ctx, struct range *r);
        void *ctx;
};

/* One use of a range, computed once for all shadows. */
struct use {
        uint64_t now;      /* clock after the read, bytes */
        uint64_t bytes;    /* of the range that were read */
        bool credit;       /* enough was read to count as a use of the range */
        bool overdue;      /* the range was unseen for longer than 1.5 gaps */
        double floor[SHADOW_SCORES]; /* a prior the range inherits from the read it came in */
};

void shadow_init(struct shadow *s, enum shadow_kind kind, const struct charge_rule *rule);
void shadow_clear(struct shadow *s);
int shadow_reserve(struct shadow *s, uint32_t ranges); /* so that nothing below needs memory */

static inline bool shadow_holds(const struct shadow *s, const struct range *r) {
        return r->at[s->kind] != 0;
}

/* `len` bytes were requested and the clock is now `now`. */
void shadow_tick(struct shadow *s, uint64_t now, uint64_t len);
void shadow_use(struct shadow *s, struct range *r, const struct use *u);
/* The score that a use now would count against, and its update: also for ranges that are kept out (pinned). */
double shadow_prior(const struct shadow *s, const struct range *r, const struct use *u);

void shadow_enter(struct shadow *s, struct range *r); /* the caller has made sure that it fits */
void shadow_leave(struct shadow *s, struct range *r);
void shadow_offer(struct shadow *s, struct range *r); /* enters if its own key is worth it */
void shadow_warm(struct shadow *s, struct range *r);  /* enters free room, as if used once now */
bool shadow_fits(const struct shadow *s, uint64_t len);
void shadow_set_capacity(struct shadow *s, uint64_t bytes); /* evicts what no longer fits */
struct range *shadow_coldest(const struct shadow *s);

/* `r` was longer and now ends where `tail` begins; `tail` carries a copy of its state. */
void shadow_split(struct shadow *s, struct range *r, struct range *tail, uint64_t old_len);
void shadow_resized(struct shadow *s, const struct range *r, uint64_t old_len);
void shadow_absorb(struct shadow *s, struct range *b); /* `b` merges into a neighbour that is held as well */
void shadow_rekey(struct shadow *s, struct range *r); /* its score, last or gap was changed from outside */
