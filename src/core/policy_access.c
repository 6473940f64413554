/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A read is heard of: the clock advances, known ranges get their credit, unknown
 * bytes become known, and the shadows decide.
 *
 *   read          |=====================|
 *   known   [  a    ][   b  ]      [    c    ]
 *   then    [ a ][a'][   b  ][ new ][ c ][ c' ]
 *
 * a and c are cut at the read's ends, so that each part can have its own heat;
 * not when that would leave a part of less than 64 KiB, or random windows would
 * grind every range to dust.  Then every range of which at least half was read
 * counts as used.  What was read of the others adds up, and counts as one use
 * once it makes a range's length: small random reads heat a large range too.
 *
 * A new range that was read together with known ones inherits their prior: it is
 * the rest of the same tensor, seen through another window.
 *
 * The caller's lock.
 */
#include <math.h>

#include "core/policy_impl.h"
#include "core/score.h"

#define SPLIT_MIN 65536u
#define PART_UNIT 512u
#define LATE 1.5        /* gaps without a use make a range overdue */
#define GAP_FADE 0.98f

struct hearing {
        struct policy *p;
        struct range_map *map;
        uint64_t off, end;           /* as requested */
        double prior[SHADOW_SCORES]; /* highest of the ghosts that this read used */
};

static void split_at(struct known *k, struct range_map *m, uint64_t at) {
        struct range *r = range_map_find(m, at);

        if (!r || r->off >= at || at - r->off < SPLIT_MIN || range_end(r) - at < SPLIT_MIN)
                return;
        if (k->count < k->limit)
                known_split(k, r, at);
}

static uint64_t bytes_read(const struct hearing *h, const struct range *r) {
        uint64_t from = r->off > h->off ? r->off : h->off, to = range_end(r) < h->end ? range_end(r) : h->end;

        return to > from ? to - from : 0;
}

/* Did this read use the range?  If not, did the reads that used less than half of it, together? */
static bool counts(struct range *r, uint64_t bytes) {
        uint64_t part;

        if (bytes >= r->len - bytes)
                return true;
        part = r->part + (bytes + PART_UNIT - 1) / PART_UNIT;
        if (part < r->len / PART_UNIT) {
                r->part = part > UINT32_MAX ? UINT32_MAX : (uint32_t)part;
                return false;
        }
        r->part = 0;
        return true;
}

static void note_prior(struct hearing *h, const struct range *r, const struct use *u) {
        for (unsigned i = 0; i < SHADOW_SCORES; i++) {
                const struct shadow *s = &h->p->contest.shadows[i];

                if (s->running && !shadow_holds(s, r))
                        h->prior[i] = fmax(h->prior[i], shadow_prior(s, r, u));
        }
}

static void set_time(struct range *r, struct use *u) {
        float since = (float)((double)((int64_t)u->now - r->last));

        u->overdue = r->gap > 0 && since > LATE * r->gap;
        r->gap = fmaxf(since, GAP_FADE * r->gap);
        r->last = (int64_t)u->now;
}

static void tell_shadows(struct policy *p, struct range *r, const struct use *u) {
        FOR_EACH_RUNNING(s, &p->contest)
                shadow_use(s, r, u);
        if (u->credit)
                real_touch(&p->real, r);
}

static void hear_known(struct hearing *h, struct range *r) {
        struct use u = { .now = h->p->clock, .bytes = bytes_read(h, r) };

        u.credit = counts(r, u.bytes);
        for (unsigned i = 0; i < SHADOW_SCORES; i++)
                u.floor[i] = SCORE_NONE;
        if (u.credit) {
                set_time(r, &u);
                note_prior(h, r, &u);
        }
        tell_shadows(h->p, r, &u);
}

static void hear_new(struct hearing *h, uint64_t off, uint64_t end) {
        struct range *r = known_new(&h->p->known, h->map, off, end - off, false);
        struct use u = { .now = h->p->clock, .credit = true };

        if (!r)
                return;
        r->last = (int64_t)u.now;
        u.bytes = bytes_read(h, r);
        for (unsigned i = 0; i < SHADOW_SCORES; i++)
                u.floor[i] = h->prior[i];
        tell_shadows(h->p, r, &u);
}

/* Unknown stretches of [at, end); a stretch without a byte that was read lies behind the file's end. */
static void hear_gaps(struct hearing *h, uint64_t at, uint64_t end) {
        while (at < end) {
                struct range *r = range_map_find(h->map, at);
                uint64_t to = r && r->off < end ? r->off : end;

                if (to <= at) {
                        at = range_end(r);
                        continue;
                }
                if (at < h->end && to > h->off)
                        hear_new(h, at, to); /* `r` may be forgotten for it */
                at = to;
        }
}

void policy_access(struct policy *p, struct range_map *m, uint64_t off, uint64_t len) {
        uint64_t end = end_of(off, len), from = block_down(off), to = block_up(end);
        struct hearing h = { .p = p, .map = m, .off = off, .end = end };

        if (end <= off)
                return;
        p->clock += end - off;
        contest_tick(&p->contest, p->clock, end - off);
        for (unsigned i = 0; i < SHADOW_SCORES; i++)
                h.prior[i] = SCORE_NONE;

        split_at(&p->known, m, from);
        split_at(&p->known, m, to);
        for (struct range *r = range_map_find(m, from); r && r->off < to; r = range_map_next(r))
                hear_known(&h, r);
        hear_gaps(&h, from, to);

        if (contest_judge(&p->contest))
                policy_follow(p);
        known_trim(&p->known);
}
