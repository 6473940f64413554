/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The known ranges; see known.h.  The policy's lock.
 */
#include "core/known.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "core/score.h"

#define GHOSTS_PER_RESIDENT 4 /* fewer than the largest model's ranges, and its loop hits nothing at all */
#define MAX_LIMIT (UINT32_MAX / 2)
#define HAND_STEPS 8          /* merges tried per read: the hand is faster than the growth */
#define FORGET_TRIES 16       /* ghosts looked at for one that no shadow wants */
#define SAME_HEAT 0.25        /* in doublings */
#define MIN_MERGE (1u << 20)  /* a merged range may always grow to this */

void known_init(struct known *k, struct contest *contest, struct real *real, uint64_t limit) {
        *k = (struct known){ .contest = contest, .real = real, .limit = limit < MAX_LIMIT ? limit : MAX_LIMIT };
        TAILQ_INIT(&k->maps);
        real->most = k->limit - k->limit / 4;
        for (unsigned i = 0; i < SHADOW_KINDS; i++)
                contest->shadows[i].most = (uint32_t)real->most;
}

static struct shadow *shadow_at(struct known *k, unsigned i) {
        return &k->contest->shadows[i];
}

/* The tree and the list of maps that have one. */
static void enter_map(struct known *k, struct range_map *m, struct range *r) {
        if (RB_EMPTY(&m->tree))
                TAILQ_INSERT_TAIL(&k->maps, m, all);
        range_map_insert(m, r);
        k->count++;
}

static void leave_map(struct known *k, struct range *r) {
        struct range_map *m = r->map;

        range_map_remove(m, r);
        k->count--;
        if (!RB_EMPTY(&m->tree))
                return;
        TAILQ_REMOVE(&k->maps, m, all);
        if (k->hand_map == m)
                k->hand_map = NULL;
}

void known_forget(struct known *k, struct range *r) {
        for (unsigned i = 0; i < SHADOW_KINDS; i++)
                if (shadow_holds(shadow_at(k, i), r))
                        shadow_leave(shadow_at(k, i), r);
        real_remove(k->real, r);
        leave_map(k, r);
        free(r);
}

/* What the followed shadow holds will be wanted again: such a ghost goes to the end of the queue, if others
 * are near. */
static bool forget_oldest(struct known *k) {
        struct range *r = TAILQ_FIRST(&k->real->lists[LIST_GHOST]);

        for (int i = 0; r && shadow_holds(k->real->followed, r) && i < FORGET_TRIES; i++) {
                real_touch(k->real, r);
                r = TAILQ_FIRST(&k->real->lists[LIST_GHOST]);
        }
        if (!r)
                return false;
        known_forget(k, r);
        return true;
}

static bool same_heat(const struct known *k, const struct range *a, const struct range *b) {
        int64_t apart = a->last > b->last ? a->last - b->last : b->last - a->last;

        for (unsigned i = 0; i < SHADOW_SCORES; i++)
                if (k->contest->shadows[i].running && fabs(a->score[i] - b->score[i]) > SAME_HEAT)
                        return false;
        return (uint64_t)apart <= k->contest->budget / 16;
}

static bool alike(const struct known *k, const struct range *a, const struct range *b) {
        uint64_t fair = 4 * (k->real->capacity / k->limit), most = fair > MIN_MERGE ? fair : MIN_MERGE;

        if (range_end(a) != b->off || a->len + b->len > most)
                return false;
        if (a->state != b->state || a->state == RANGE_PENDING || a->pins != b->pins)
                return false;
        if (a->state == RANGE_PRESENT && (a->nonce != b->nonce || a->suspect != b->suspect))
                return false;
        for (unsigned i = 0; i < SHADOW_KINDS; i++)
                if (!a->at[i] != !b->at[i])
                        return false;
        return a->pins > 0 || same_heat(k, a, b);
}

static void take_heat(struct range *a, const struct range *b) {
        for (unsigned i = 0; i < SHADOW_SCORES; i++)
                a->score[i] = fmax(a->score[i], b->score[i]);
        a->gap = a->gap > b->gap ? a->gap : b->gap;
        a->last = a->last > b->last ? a->last : b->last;
        a->part = 0;
}

static void merge(struct known *k, struct range *a, struct range *b) {
        uint64_t len = b->len, old = a->len;

        for (unsigned i = 0; i < SHADOW_KINDS; i++)
                shadow_absorb(shadow_at(k, i), b);
        take_heat(a, b);
        if (b->state == RANGE_PRESENT)
                real_set_state(k->real, b, RANGE_GHOST);
        known_forget(k, b);
        a->len = old + len;
        real_resized(k->real, a, old);
        for (unsigned i = 0; i < SHADOW_KINDS; i++) {
                shadow_resized(shadow_at(k, i), a, old);
                if (shadow_holds(shadow_at(k, i), a))
                        shadow_rekey(shadow_at(k, i), a);
        }
}

/* One step of the hand: merge the range under it with its neighbours, or move on. */
static void hand_step(struct known *k) {
        struct range *r, *next;

        if (!k->hand_map) {
                k->hand_map = TAILQ_FIRST(&k->maps);
                k->hand_off = 0;
        }
        if (!k->hand_map)
                return;
        r = range_map_find(k->hand_map, k->hand_off);
        if (!r) {
                k->hand_map = TAILQ_NEXT(k->hand_map, all);
                k->hand_off = 0;
                return;
        }
        next = range_map_next(r);
        if (next && alike(k, r, next))
                merge(k, r, next);
        else
                k->hand_off = range_end(r);
}

struct range *known_new(struct known *k, struct range_map *m, uint64_t off, uint64_t len, bool above_limit) {
        struct range *r;

        if (k->count >= k->limit && !above_limit && !forget_oldest(k))
                return NULL;
        if (contest_reserve(k->contest, (uint32_t)k->count + 1) < 0)
                return NULL;
        r = calloc(1, sizeof(*r));
        if (!r)
                return NULL;
        r->off = off;
        r->len = len;
        for (unsigned i = 0; i < SHADOW_SCORES; i++)
                r->score[i] = SCORE_NONE;
        enter_map(k, m, r);
        real_add(k->real, r);
        return r;
}

struct range *known_split(struct known *k, struct range *r, uint64_t at) {
        struct range *tail;
        uint64_t old = r->len;

        assert(at > r->off && at < range_end(r));
        if (contest_reserve(k->contest, (uint32_t)k->count + 1) < 0 || !(tail = malloc(sizeof(*tail))))
                return NULL;
        *tail = *r;
        tail->off = at;
        tail->len = range_end(r) - at;
        r->len = at - r->off;
        r->part = tail->part = 0;
        enter_map(k, r->map, tail);
        for (unsigned i = 0; i < SHADOW_KINDS; i++)
                shadow_split(shadow_at(k, i), r, tail, old);
        real_split(k->real, r, tail, old);
        return tail;
}

struct range *known_isolate(struct known *k, struct range *r, uint64_t off, uint64_t end) {
        if (end < range_end(r) && !known_split(k, r, end))
                return NULL;
        return off > r->off ? known_split(k, r, off) : r;
}

void known_shorten(struct known *k, struct range *r, uint64_t len) {
        uint64_t old = r->len;

        r->len = len;
        real_resized(k->real, r, old);
        for (unsigned i = 0; i < SHADOW_KINDS; i++)
                shadow_resized(shadow_at(k, i), r, old);
}

void known_trim(struct known *k) {
        uint64_t residents = k->real->followed->residents.count, ghosts, most;

        for (int i = 0; i < HAND_STEPS && k->count >= k->limit / 4 * 3; i++)
                hand_step(k);
        if (k->real->present_ranges > residents)
                residents = k->real->present_ranges;
        ghosts = GHOSTS_PER_RESIDENT * residents;
        most = residents + (ghosts > k->min_ghosts ? ghosts : k->min_ghosts);
        if (most > k->limit)
                most = k->limit;
        while (k->count > most && forget_oldest(k))
                ;
}
