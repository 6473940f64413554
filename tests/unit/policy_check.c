/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What must hold of a policy after every operation; see policy_check.h.  Slow on purpose: everything is counted anew.
 */
#include "policy_check.h"

struct sums {
        uint64_t ranges, charged, pinned, present_bytes, present_ranges, listed;
        uint64_t used[SHADOW_KINDS], held[SHADOW_KINDS];
};

static enum real_list right_list(const struct policy *p, const struct range *r) {
        if (r->state == RANGE_PENDING)
                return LIST_BUSY;
        if (r->pins > 0)
                return LIST_HELD;
        if (r->state == RANGE_GHOST)
                return LIST_GHOST;
        return shadow_holds(&p->contest.shadows[p->contest.followed], r) ? LIST_KEPT : LIST_VICTIM;
}

static void add_range(const struct policy *p, const struct range *r, struct sums *s) {
        uint64_t charge = charge_of(&p->rule, r->len);

        must(r->len > 0);
        must_eq(r->list, right_list(p, r));
        s->ranges++;
        if (r->state != RANGE_GHOST) {
                s->charged += charge;
                s->pinned += r->pins > 0 ? charge : 0;
        }
        if (r->state == RANGE_PRESENT) {
                s->present_bytes += r->len;
                s->present_ranges++;
        }
        for (unsigned i = 0; i < SHADOW_KINDS; i++) {
                if (!r->at[i])
                        continue;
                must_eq(r->pins, 0);
                must(p->contest.shadows[i].running);
                s->held[i]++;
                s->used[i] += charge;
        }
}

static void check_map(const struct policy *p, struct range_map *m, struct sums *s) {
        uint64_t before = s->present_bytes, end = 0;

        for (struct range *r = range_map_find(m, 0); r; r = range_map_next(r)) {
                must(r->off >= end);
                must_eq(r->map, m);
                end = range_end(r);
                add_range(p, r, s);
        }
        must_eq(range_map_present_bytes(m), s->present_bytes - before);
}

static void check_heap(const struct heap *h) {
        must_eq(h->hidden, 0);
        for (uint32_t i = 0; i < h->count; i++) {
                must_eq(*(uint32_t *)((char *)h->slots[i].item + h->index_at), i + 1);
                must(i == 0 || h->slots[(i - 1) / 2].key <= h->slots[i].key);
        }
}

static void check_shadow(const struct shadow *s, const struct sums *sums) {
        must_eq(s->used, sums->used[s->kind]);
        must_eq(s->residents.count, sums->held[s->kind]);
        check_heap(&s->residents);
        check_heap(&s->deadlines);
}

void policy_check(const struct policy *p, struct range_map *maps, size_t count) {
        struct sums s = { 0 };
        struct range *r;

        for (size_t i = 0; i < count; i++)
                check_map(p, &maps[i], &s);
        for (unsigned i = 0; i < LISTS; i++)
                TAILQ_FOREACH(r, &p->real.lists[i], order) {
                        must_eq(r->list, i);
                        s.listed++;
                }
        must_eq(s.listed, s.ranges);
        must_eq(p->known.count, s.ranges);
        must_eq(p->real.charged, s.charged);
        must_eq(p->real.pinned, s.pinned);
        must_eq(p->real.present_bytes, s.present_bytes);
        must_eq(p->real.present_ranges, s.present_ranges);
        for (unsigned i = 0; i < SHADOW_KINDS; i++)
                check_shadow(&p->contest.shadows[i], &s);
}
