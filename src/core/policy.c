/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The policy: its life, its configuration, and what a restart keeps.  See
 * policy.h for the contract and policy_impl.h for the other files.  The caller's
 * lock.
 */
#include "core/policy.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "core/policy_impl.h"
#include "core/score.h"

#define HEAT_MAX 64.0 /* 2^64 uses within one half-life: what claims more is damaged */
#define HEAT_MIN (-1e5)

static void moved(void *ctx, struct range *r) {
        real_relist(ctx, r);
}

void policy_follow(struct policy *p) {
        struct shadow *leader = contest_followed(&p->contest);

        for (unsigned i = 0; i < SHADOW_KINDS; i++)
                p->contest.shadows[i].moved = NULL;
        leader->moved = moved;
        leader->ctx = &p->real;
        real_follow(&p->real, leader);
}

void policy_refit(struct policy *p) {
        uint64_t taken = p->real.pinned;

        contest_set_capacity(&p->contest, p->real.capacity > taken ? p->real.capacity - taken : 0);
}

int policy_new(const struct policy_config *cfg, struct policy **ret) {
        struct policy *p = calloc(1, sizeof(*p));

        if (!p)
                return -ENOMEM;
        p->rule = (struct charge_rule){ .per_range = cfg->range_overhead, .sums = cfg->charge_sums };
        contest_init(&p->contest, cfg->kind, &p->rule);
        real_init(&p->real, &p->rule);
        known_init(&p->known, &p->contest, &p->real, cfg->max_ranges ? cfg->max_ranges : POLICY_MAX_RANGES);
        p->known.min_ghosts = cfg->min_ghosts ? cfg->min_ghosts : POLICY_MIN_GHOSTS;
        p->real.capacity = cfg->capacity;
        policy_refit(p);
        policy_follow(p);
        *ret = p;
        return 0;
}

struct policy *policy_free(struct policy *p) {
        if (!p)
                return NULL;
        assert(p->known.count == 0);
        contest_clear(&p->contest);
        free(p);
        return NULL;
}

void policy_set_capacity(struct policy *p, uint64_t bytes) {
        p->real.capacity = bytes;
        policy_refit(p);
}

/* A shadow that starts takes over what its predecessor held, and what that one thought of every range. */
static void take_over(struct shadow *s, const struct shadow *from, struct range *r) {
        if (s->kind != SHADOW_LRU && from->kind != SHADOW_LRU)
                r->score[s->kind] = r->score[from->kind] - from->clock + s->clock;
        if (shadow_holds(from, r) && !shadow_holds(s, r) && shadow_fits(s, r->len))
                shadow_enter(s, r);
}

static void seed(struct policy *p, struct shadow *s, const struct shadow *from) {
        struct range_map *m;
        struct range *r;

        if (shadow_reserve(s, (uint32_t)p->known.count) < 0)
                return;
        TAILQ_FOREACH(m, &p->known.maps, all)
                for (r = range_map_find(m, 0); r; r = range_map_next(r))
                        take_over(s, from, r);
}

void policy_set_kind(struct policy *p, enum policy_kind kind) {
        struct contest *c = &p->contest;
        struct shadow *hot = &c->shadows[SHADOW_HOT];
        bool ran[SHADOW_KINDS];

        for (unsigned i = 0; i < SHADOW_KINDS; i++)
                ran[i] = c->shadows[i].running;
        contest_set_kind(c, kind);
        for (unsigned i = 0; i < SHADOW_KINDS; i++)
                if (c->shadows[i].running && !ran[i])
                        seed(p, &c->shadows[i], hot);
        policy_follow(p);
}

enum policy_kind policy_active(const struct policy *p) {
        return p->contest.followed == SHADOW_LRU ? POLICY_LRU : POLICY_HOTNESS;
}

struct range_heat policy_export(const struct policy *p, const struct range *r) {
        struct range_heat h = { .heat = -INFINITY };

        if (r->score[SHADOW_HOT] > SCORE_NONE)
                h.heat = r->score[SHADOW_HOT] - p->contest.shadows[SHADOW_HOT].clock;
        h.age = (uint64_t)((int64_t)p->clock - r->last);
        return h;
}

static void restore_heat(struct policy *p, struct range *r, struct range_heat heat) {
        uint64_t age = heat.age > (uint64_t)INT64_MAX / 2 ? (uint64_t)INT64_MAX / 2 : heat.age;

        r->last = (int64_t)p->clock - (int64_t)age;
        if (!(heat.heat > -INFINITY))
                return;
        heat.heat = fmin(fmax(heat.heat, HEAT_MIN), HEAT_MAX);
        for (unsigned i = 0; i < SHADOW_SCORES; i++)
                r->score[i] = p->contest.shadows[i].clock + heat.heat;
}

int policy_restore(struct policy *p, struct range_map *m, uint64_t off, uint64_t len, uint64_t nonce,
                   struct range_heat heat, bool suspect) {
        uint64_t end = end_of(off, len), charge = charge_of(&p->rule, len);
        struct range *r = range_map_find(m, off);

        if (len == 0 || end != off + len)
                return -EINVAL;
        if (r && r->off < end)
                return -EEXIST;
        if (charge > p->real.capacity || p->real.charged > p->real.capacity - charge || p->real.ranges >= p->real.most)
                return -ENOSPC;
        r = known_new(&p->known, m, off, len, false);
        if (!r)
                return -ENOMEM;
        r->nonce = nonce;
        r->suspect = suspect;
        m->any_trusted |= !suspect;
        restore_heat(p, r, heat);
        real_set_state(&p->real, r, RANGE_PRESENT);
        FOR_EACH_RUNNING(s, &p->contest)
                if (shadow_fits(s, len))
                        shadow_enter(s, r);
        return 0;
}

void policy_stats(const struct policy *p, struct policy_stats *ret) {
        const struct shadow *s = &p->contest.shadows[p->contest.followed];

        *ret = (struct policy_stats){
                .charged = p->real.charged,
                .present_bytes = p->real.present_bytes,
                .present_ranges = p->real.present_ranges,
                .ghost_ranges = p->known.count - p->real.present_ranges,
                .clock = p->clock,
                .pinned = p->real.pinned,
                .readmitted_bytes = p->readmitted,
                .shadow_hit_bytes = s->hit_bytes,
                .shadow_admitted_bytes = s->admitted_bytes,
        };
}
