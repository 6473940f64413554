/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A shadow cache; see shadow.h.  The policy's lock; no allocation outside
 * shadow_reserve.
 */
#include "core/shadow.h"

#include <assert.h>

#include "core/score.h"

/* Overdue residents keep their order among themselves, far below SCORE_NONE: even a range that was never seen before
 * may push them out. */
#define OVERDUE_DROP 1e9

/* Half-lives in budgets; LRU has no score. */
static const double half_life[SHADOW_SCORES] = { [SHADOW_HOT] = 4, [SHADOW_SLOW] = 32, [SHADOW_OVERDUE] = 4 };

#define MIN_BUDGET 4096 /* a half-life must not be 0 */

static bool used_earlier(const void *a, const void *b) {
        return ((const struct range *)a)->last < ((const struct range *)b)->last;
}

void shadow_init(struct shadow *s, enum shadow_kind kind, const struct charge_rule *rule) {
        *s = (struct shadow){ .kind = kind, .rule = rule, .most = UINT32_MAX };
        heap_init(&s->residents, offsetof(struct range, at) + kind * sizeof(uint32_t), used_earlier);
        heap_init(&s->deadlines, offsetof(struct range, due_at), NULL);
}

void shadow_clear(struct shadow *s) {
        heap_clear(&s->residents);
        heap_clear(&s->deadlines);
}

int shadow_reserve(struct shadow *s, uint32_t ranges) {
        int r = heap_reserve(&s->residents, ranges);

        if (r < 0 || s->kind != SHADOW_OVERDUE)
                return r;
        return heap_reserve(&s->deadlines, ranges);
}

static double deadline(const struct range *r) {
        return (double)r->last + 1.5 * (double)r->gap;
}

static double key_of(const struct shadow *s, const struct range *r) {
        return s->kind == SHADOW_LRU ? (double)r->last : r->score[s->kind];
}

/* A range without a gap was used once and has no date to be late for. */
static void set_deadline(struct shadow *s, struct range *r) {
        if (s->kind != SHADOW_OVERDUE || r->gap <= 0)
                return;
        if (heap_holds(&s->deadlines, r))
                heap_rekey(&s->deadlines, r, deadline(r));
        else
                heap_insert(&s->deadlines, r, deadline(r));
}

void shadow_enter(struct shadow *s, struct range *r) {
        heap_insert(&s->residents, r, key_of(s, r));
        set_deadline(s, r);
        s->used += charge_of(s->rule, r->len);
        if (s->moved)
                s->moved(s->ctx, r);
}

/* All of leaving but the heap of residents, which the range has left already. */
static void left(struct shadow *s, struct range *r) {
        if (s->kind == SHADOW_OVERDUE && heap_holds(&s->deadlines, r))
                heap_remove(&s->deadlines, r);
        s->used -= charge_of(s->rule, r->len);
        if (s->moved)
                s->moved(s->ctx, r);
}

void shadow_leave(struct shadow *s, struct range *r) {
        heap_remove(&s->residents, r);
        left(s, r);
}

struct range *shadow_coldest(const struct shadow *s) {
        double key;

        return heap_min(&s->residents, &key);
}

bool shadow_fits(const struct shadow *s, uint64_t len) {
        uint64_t need = charge_of(s->rule, len);

        return s->residents.count < s->most && need <= s->capacity && s->used <= s->capacity - need;
}

void shadow_set_capacity(struct shadow *s, uint64_t bytes) {
        s->capacity = bytes;
        while (s->used > s->capacity)
                shadow_leave(s, shadow_coldest(s));
}

/* Free `need` bytes, and a name, from residents colder than `prior`: all of it, or nothing. */
static bool make_room(struct shadow *s, uint64_t need, double prior) {
        uint64_t freed = 0;
        struct range *r;
        double key;

        if (need > s->capacity)
                return false;
        while (s->used - freed > s->capacity - need || s->residents.count >= s->most) {
                r = heap_min(&s->residents, &key);
                if (!r || !(key < prior)) {
                        heap_restore_hidden(&s->residents);
                        return false;
                }
                freed += charge_of(s->rule, r->len);
                heap_hide_min(&s->residents);
        }
        while ((r = heap_take_hidden(&s->residents)))
                left(s, r);
        return true;
}

void shadow_offer(struct shadow *s, struct range *r) {
        if (!shadow_holds(s, r) && make_room(s, charge_of(s->rule, r->len), key_of(s, r)))
                shadow_enter(s, r);
}

void shadow_warm(struct shadow *s, struct range *r) {
        if (shadow_holds(s, r))
                return;
        if (s->kind != SHADOW_LRU && r->score[s->kind] < s->clock)
                r->score[s->kind] = s->clock;
        if (r->pins == 0 && shadow_fits(s, r->len))
                shadow_enter(s, r);
}

void shadow_tick(struct shadow *s, uint64_t now, uint64_t len) {
        struct range *r;
        double due;

        if (s->kind == SHADOW_LRU)
                return;
        s->clock += (double)len / (half_life[s->kind] * (double)(s->capacity > MIN_BUDGET ? s->capacity : MIN_BUDGET));
        if (s->kind != SHADOW_OVERDUE)
                return;
        while ((r = heap_min(&s->deadlines, &due)) && due < (double)now) {
                heap_remove(&s->deadlines, r);
                heap_rekey(&s->residents, r, r->score[SHADOW_OVERDUE] - OVERDUE_DROP);
        }
}

double shadow_prior(const struct shadow *s, const struct range *r, const struct use *u) {
        double prior;

        if (s->kind == SHADOW_LRU)
                return INFINITY;
        prior = r->score[s->kind];
        if (s->kind == SHADOW_OVERDUE && u->overdue && !shadow_holds(s, r))
                prior = SCORE_NONE;
        return prior > u->floor[s->kind] ? prior : u->floor[s->kind];
}

static void credit(const struct shadow *s, struct range *r, const struct use *u) {
        double old;

        if (s->kind == SHADOW_LRU)
                return;
        old = r->score[s->kind];
        if (s->kind == SHADOW_OVERDUE && u->overdue && !shadow_holds(s, r))
                old = SCORE_NONE;
        r->score[s->kind] = score_used(old, s->clock);
}

void shadow_rekey(struct shadow *s, struct range *r) {
        heap_rekey(&s->residents, r, key_of(s, r));
        set_deadline(s, r);
}

void shadow_use(struct shadow *s, struct range *r, const struct use *u) {
        double prior = shadow_prior(s, r, u);

        if (shadow_holds(s, r))
                s->hit_bytes += u->bytes;
        if (!u->credit)
                return;
        credit(s, r, u);
        if (r->pins > 0)
                return;
        if (shadow_holds(s, r))
                shadow_rekey(s, r);
        else if (make_room(s, charge_of(s->rule, r->len), prior)) {
                s->admitted_bytes += r->len;
                shadow_enter(s, r);
        }
}

void shadow_resized(struct shadow *s, const struct range *r, uint64_t old_len) {
        if (shadow_holds(s, r))
                s->used = s->used - charge_of(s->rule, old_len) + charge_of(s->rule, r->len);
}

void shadow_split(struct shadow *s, struct range *r, struct range *tail, uint64_t old_len) {
        shadow_resized(s, r, old_len);
        tail->at[s->kind] = 0;
        if (s->kind == SHADOW_OVERDUE)
                tail->due_at = 0;
        if (!shadow_holds(s, r))
                return;
        heap_insert(&s->residents, tail, heap_key(&s->residents, r));
        if (s->kind == SHADOW_OVERDUE && heap_holds(&s->deadlines, r))
                heap_insert(&s->deadlines, tail, heap_key(&s->deadlines, r));
        s->used += charge_of(s->rule, tail->len);
}

void shadow_absorb(struct shadow *s, struct range *b) {
        if (!shadow_holds(s, b))
                return;
        heap_remove(&s->residents, b);
        if (s->kind == SHADOW_OVERDUE && heap_holds(&s->deadlines, b))
                heap_remove(&s->deadlines, b);
        s->used -= charge_of(s->rule, b->len);
}
