/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes come, are committed, and go: the real half of the policy.
 *
 * Every function here cuts ranges exactly where its caller says, since these are
 * bytes in a mirror and not heat.  Where memory for a cut is missing, the whole
 * range is given up: a future miss.  The caller's lock.
 */
#include <assert.h>

#include "core/policy_impl.h"
#include "core/score.h"

/* The source ends at `end`, inside a block: a ghost that was rounded up to the block ends there as well. */
static void learn_end(struct policy *p, struct range_map *m, uint64_t end) {
        struct range *r = range_map_find(m, end);

        if (end % POLICY_BLOCK == 0 || !r || r->off >= end)
                return;
        if (r->state == RANGE_GHOST && range_end(r) <= block_up(end))
                known_shorten(&p->known, r, end - r->off);
}

/* Pinned bytes push the shadows' budgets down first, which makes victims; otherwise victims are all there is. */
static bool admit_pinned(struct policy *p, struct range *r, policy_sink evicted, void *ctx) {
        uint64_t need = charge_of(&p->rule, r->len);

        if (need > p->real.capacity || p->real.pinned > p->real.capacity - need)
                return false;
        real_set_state(&p->real, r, RANGE_PENDING);
        policy_refit(p);
        if (real_make_room(&p->real, 0, 0, evicted, ctx))
                return true;
        real_set_state(&p->real, r, RANGE_GHOST);
        policy_refit(p);
        return false;
}

static bool admit(struct policy *p, struct range *r, policy_sink evicted, void *ctx) {
        if (r->pins > 0)
                return admit_pinned(p, r, evicted, ctx);
        if (!real_make_room(&p->real, charge_of(&p->rule, r->len), 1, evicted, ctx))
                return false;
        real_set_state(&p->real, r, RANGE_PENDING);
        return true;
}

uint64_t policy_admit(struct policy *p, struct range_map *m, uint64_t off, uint64_t len, policy_sink evicted,
                      void *ctx) {
        uint64_t end = end_of(off, len), marked = 0;

        learn_end(p, m, end);
        for (struct range *r = range_map_find(m, off); r && r->off < end; r = range_map_next(r)) {
                if (r->state != RANGE_GHOST || (r->pins == 0 && !shadow_holds(p->real.followed, r)))
                        continue;
                r = known_isolate(&p->known, r, off, end);
                if (!r)
                        break;
                if (admit(p, r, evicted, ctx))
                        marked += r->len;
        }
        return marked;
}

/* One pending range is done: it becomes `state`. */
static void finish(struct policy *p, struct range *r, enum range_state state, uint64_t nonce) {
        r->nonce = nonce;
        r->suspect = false;
        r->map->any_trusted |= state == RANGE_PRESENT;
        if (state == RANGE_PRESENT && r->evicted) {
                p->readmitted += r->len;
                r->evicted = false;
        }
        real_set_state(&p->real, r, state);
}

static void finish_all(struct policy *p, struct range_map *m, uint64_t off, uint64_t len, enum range_state state,
                       uint64_t nonce) {
        uint64_t end = end_of(off, len);
        struct range *r, *part;

        for (r = range_map_find(m, off); r && r->off < end; r = range_map_next(r)) {
                if (r->state != RANGE_PENDING)
                        continue;
                part = known_isolate(&p->known, r, off, end);
                if (part)
                        finish(p, r = part, state, nonce);
                else
                        finish(p, r, RANGE_GHOST, 0);
        }
        policy_refit(p);
}

void policy_commit(struct policy *p, struct range_map *m, uint64_t off, uint64_t len, uint64_t nonce) {
        finish_all(p, m, off, len, RANGE_PRESENT, nonce);
}

void policy_abort(struct policy *p, struct range_map *m, uint64_t off, uint64_t len) {
        finish_all(p, m, off, len, RANGE_GHOST, 0);
}

void policy_drop(struct policy *p, struct range_map *m, uint64_t off, uint64_t len, policy_sink dropped, void *ctx) {
        uint64_t end = end_of(off, len);
        struct range *r, *part;

        for (r = range_map_find(m, off); r && r->off < end; r = range_map_next(r)) {
                if (r->state != RANGE_PRESENT)
                        continue;
                part = known_isolate(&p->known, r, off, end);
                if (part)
                        r = part;
                real_set_state(&p->real, r, RANGE_GHOST);
                dropped(ctx, m, r->off, r->len);
        }
        policy_refit(p);
}

static void set_suspect(struct policy *p, struct range_map *m, uint64_t off, uint64_t end, bool suspect) {
        struct range *r, *part;

        for (r = range_map_find(m, off); r && r->off < end; r = range_map_next(r)) {
                if (r->state != RANGE_PRESENT || r->suspect == suspect)
                        continue;
                part = known_isolate(&p->known, r, off, end);
                if (part)
                        r = part;
                r->suspect = suspect || !part; /* without memory for a cut: the whole range stays in doubt */
        }
}

void policy_doubt(struct policy *p, struct range_map *m) {
        if (m->any_trusted)
                set_suspect(p, m, 0, UINT64_MAX, true);
        m->any_trusted = false;
}

void policy_trust(struct policy *p, struct range_map *m, uint64_t off, uint64_t len) {
        m->any_trusted = true;
        set_suspect(p, m, off, end_of(off, len), false);
}

/* Nothing is known of these bytes any more, except that they are pinned. */
static void blank(struct range *r) {
        for (unsigned i = 0; i < SHADOW_SCORES; i++)
                r->score[i] = SCORE_NONE;
        r->gap = 0;
        r->part = 0;
}

static void cut(struct policy *p, struct range *r, policy_sink sink, void *ctx) {
        struct range_map *m = r->map;
        uint64_t off = r->off, len = r->len;
        bool real = r->state != RANGE_GHOST;

        if (real)
                real_set_state(&p->real, r, RANGE_GHOST);
        if (r->pins > 0)
                blank(r);
        else
                known_forget(&p->known, r);
        if (real)
                sink(ctx, m, off, len);
}

void policy_cut(struct policy *p, struct range_map *m, uint64_t off, uint64_t len, policy_sink sink, void *ctx) {
        uint64_t end = end_of(off, len);
        struct range *r = range_map_find(m, off), *next, *part;

        while (r && r->off < end) {
                part = known_isolate(&p->known, r, off, end);
                if (part)
                        r = part;
                next = range_map_next(r);
                cut(p, r, sink, ctx);
                r = next;
        }
        policy_refit(p);
}

void policy_clear_map(struct policy *p, struct range_map *m, policy_sink sink, void *ctx) {
        struct range *r, *next;

        for (r = range_map_find(m, 0); r; r = next) {
                next = range_map_next(r);
                real_set_pins(&p->real, r, 0);
                cut(p, r, sink, ctx);
        }
        policy_refit(p);
}

bool policy_shrink(struct policy *p, policy_sink evicted, void *ctx) {
        struct shadow *s = contest_followed(&p->contest);

        while (!real_make_room(&p->real, 0, 0, evicted, ctx)) {
                struct range *coldest = shadow_coldest(s);

                if (!coldest)
                        return false;
                shadow_leave(s, coldest);
        }
        return true;
}

/* Make all of [off, end) known, as ghosts of which nothing is known. */
static void make_known(struct policy *p, struct range_map *m, uint64_t off, uint64_t end, bool above_limit) {
        while (off < end) {
                struct range *r = range_map_find(m, off);
                uint64_t to = r && r->off < end ? r->off : end;

                if (to <= off) {
                        off = range_end(r);
                        continue;
                }
                known_new(&p->known, m, off, to - off, above_limit); /* `r` may be forgotten for it */
                off = to;
        }
}

static void pin(struct policy *p, struct range *r) {
        if (r->pins == 0)
                FOR_EACH_RUNNING(s, &p->contest)
                        if (shadow_holds(s, r))
                                shadow_leave(s, r);
        real_set_pins(&p->real, r, r->pins + 1);
}

void policy_pin(struct policy *p, struct range_map *m, uint64_t off, uint64_t len) {
        uint64_t end = end_of(off, len);

        make_known(p, m, off, end, true);
        for (struct range *r = range_map_find(m, off); r && r->off < end; r = range_map_next(r)) {
                struct range *part = known_isolate(&p->known, r, off, end);

                pin(p, part ? (r = part) : r);
        }
        policy_refit(p);
        known_trim(&p->known);
}

static void unpin(struct policy *p, struct range *r) {
        if (r->pins == 0)
                return;
        real_set_pins(&p->real, r, r->pins - 1);
        if (r->pins > 0)
                return;
        policy_refit(p);
        FOR_EACH_RUNNING(s, &p->contest)
                shadow_offer(s, r);
}

void policy_unpin(struct policy *p, struct range_map *m, uint64_t off, uint64_t len) {
        uint64_t end = end_of(off, len);

        for (struct range *r = range_map_find(m, off); r && r->off < end; r = range_map_next(r)) {
                struct range *part = known_isolate(&p->known, r, off, end);

                unpin(p, part ? (r = part) : r);
        }
}

static bool fill(struct policy *p, struct range *r) {
        uint64_t need = charge_of(&p->rule, r->len);

        if (need > p->real.capacity || p->real.charged > p->real.capacity - need || p->real.ranges >= p->real.most)
                return false;
        if (r->score[SHADOW_HOT] <= SCORE_NONE)
                r->last = (int64_t)p->clock;
        real_set_state(&p->real, r, RANGE_PENDING);
        FOR_EACH_RUNNING(s, &p->contest)
                shadow_warm(s, r);
        return true;
}

uint64_t policy_fill(struct policy *p, struct range_map *m, uint64_t off, uint64_t len) {
        uint64_t end = end_of(off, len), marked = 0;

        learn_end(p, m, end);
        make_known(p, m, off, end, false);
        for (struct range *r = range_map_find(m, off); r && r->off < end; r = range_map_next(r)) {
                if (r->state != RANGE_GHOST)
                        continue;
                r = known_isolate(&p->known, r, off, end);
                if (!r)
                        break;
                if (fill(p, r))
                        marked += r->len;
        }
        policy_refit(p);
        known_trim(&p->known);
        return marked;
}
