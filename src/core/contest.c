/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The contest of shadows; see contest.h.  The policy's lock.
 */
#include "core/contest.h"

#include <math.h>

#define WINDOW 12.0      /* budgets of traffic after which a reward counts half */
#define WRITE_COST 0.1   /* of a hit byte */
#define CLEAR_LEAD 0.005 /* of the window's traffic */

static bool runs(enum policy_kind kind, enum shadow_kind s) {
        switch (kind) {
        case POLICY_AUTO:
                return true;
        case POLICY_LRU:
                return s == SHADOW_LRU || s == SHADOW_HOT;
        case POLICY_HOTNESS:
                return s == SHADOW_HOT;
        }
        return false;
}

void contest_init(struct contest *c, enum policy_kind kind, const struct charge_rule *rule) {
        *c = (struct contest){ .followed = SHADOW_HOT };
        for (unsigned i = 0; i < SHADOW_KINDS; i++)
                shadow_init(&c->shadows[i], (enum shadow_kind)i, rule);
        contest_set_kind(c, kind);
}

void contest_clear(struct contest *c) {
        for (unsigned i = 0; i < SHADOW_KINDS; i++)
                shadow_clear(&c->shadows[i]);
}

int contest_reserve(struct contest *c, uint32_t ranges) {
        FOR_EACH_RUNNING(s, c) {
                int r = shadow_reserve(s, ranges);

                if (r < 0)
                        return r;
        }
        return 0;
}

void contest_set_capacity(struct contest *c, uint64_t bytes) {
        c->budget = bytes;
        for (unsigned i = 0; i < SHADOW_KINDS; i++)
                shadow_set_capacity(&c->shadows[i], bytes);
}

static void stop(struct shadow *s) {
        while (shadow_coldest(s))
                shadow_leave(s, shadow_coldest(s));
        s->running = false;
        s->reward = 0;
}

bool contest_set_kind(struct contest *c, enum policy_kind kind) {
        enum shadow_kind before = c->followed;

        for (unsigned i = 0; i < SHADOW_KINDS; i++) {
                struct shadow *s = &c->shadows[i];

                if (s->running && !runs(kind, s->kind))
                        stop(s);
                s->running = runs(kind, s->kind);
        }
        c->open = kind == POLICY_AUTO;
        if (kind == POLICY_LRU)
                c->followed = SHADOW_LRU;
        else if (kind == POLICY_HOTNESS)
                c->followed = SHADOW_HOT;
        return c->followed != before;
}

void contest_tick(struct contest *c, uint64_t now, uint64_t len) {
        FOR_EACH_RUNNING(s, c)
                shadow_tick(s, now, len);
        if (!c->open)
                return;

        double fade = exp2(-(double)len / (WINDOW * (double)(c->budget + 1)));

        c->traffic = c->traffic * fade + (double)len;
        FOR_EACH_RUNNING(s, c)
                s->reward *= fade;
}

static void pay(struct shadow *s) {
        s->reward += (double)(s->hit_bytes - s->judged_hits);
        s->reward -= WRITE_COST * (double)(s->admitted_bytes - s->judged_admitted);
        s->judged_hits = s->hit_bytes;
        s->judged_admitted = s->admitted_bytes;
}

bool contest_judge(struct contest *c) {
        struct shadow *best = contest_followed(c);

        if (!c->open)
                return false;
        FOR_EACH_RUNNING(s, c) {
                pay(s);
                if (s->reward > best->reward)
                        best = s;
        }
        if (best->reward <= contest_followed(c)->reward + CLEAR_LEAD * c->traffic)
                return false;
        c->followed = best->kind;
        return true;
}
