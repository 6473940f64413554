/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The contest: shadows run beside each other, the real cache follows the best.
 *
 * Idea.  Every shadow earns the bytes it would have hit, less a tenth of the
 * bytes it would have written (flash wears, and a write costs a source read that
 * others wait for), in a sum that halves in twelve budgets of traffic.  The
 * leader is changed only for a clear lead, so that two equal rules do not take
 * turns in moving the cache's contents.
 *
 * Which shadows run depends on the configured policy: one rule alone needs no
 * contest.  HOT always runs, because its score is what a restart keeps.
 *
 * Threads: the policy's lock.  Left out: what following means (real.h).
 */
#pragma once

#include "core/policy.h"
#include "core/shadow.h"

struct contest {
        struct shadow shadows[SHADOW_KINDS];
        enum shadow_kind followed;
        bool open;       /* the leader may change */
        double traffic;  /* bytes requested, fading like the rewards */
        uint64_t budget; /* capacity of every shadow */
};

void contest_init(struct contest *c, enum policy_kind kind, const struct charge_rule *rule);
void contest_clear(struct contest *c);
int contest_reserve(struct contest *c, uint32_t ranges);
void contest_set_capacity(struct contest *c, uint64_t bytes);
/* Which shadows run from now on; those that start are empty.  True if another one is followed now. */
bool contest_set_kind(struct contest *c, enum policy_kind kind);

void contest_tick(struct contest *c, uint64_t now, uint64_t len);
/* After the uses that belong to the last tick: true if another shadow is followed now. */
bool contest_judge(struct contest *c);

static inline struct shadow *contest_followed(struct contest *c) {
        return &c->shadows[c->followed];
}

#define FOR_EACH_RUNNING(s, c) \
        for (struct shadow *s = (c)->shadows; s < (c)->shadows + SHADOW_KINDS; s++) \
                if (s->running)
