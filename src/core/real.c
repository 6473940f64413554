/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The real cache; see real.h.  The policy's lock.
 */
#include "core/real.h"

#include <assert.h>

void real_init(struct real *c, const struct charge_rule *rule) {
        *c = (struct real){ .rule = rule, .most = UINT64_MAX };
        for (unsigned i = 0; i < LISTS; i++)
                TAILQ_INIT(&c->lists[i]);
}

static enum real_list list_for(const struct real *c, const struct range *r) {
        if (r->state == RANGE_PENDING)
                return LIST_BUSY;
        if (r->pins > 0)
                return LIST_HELD;
        if (r->state == RANGE_GHOST)
                return LIST_GHOST;
        return shadow_holds(c->followed, r) ? LIST_KEPT : LIST_VICTIM;
}

static void append(struct real *c, struct range *r, enum real_list list) {
        r->list = list;
        TAILQ_INSERT_TAIL(&c->lists[list], r, order);
}

void real_relist(struct real *c, struct range *r) {
        enum real_list to = list_for(c, r);

        if (to == r->list)
                return;
        TAILQ_REMOVE(&c->lists[r->list], r, order);
        append(c, r, to);
}

void real_touch(struct real *c, struct range *r) {
        if (r->list != LIST_GHOST && r->list != LIST_KEPT)
                return;
        TAILQ_REMOVE(&c->lists[r->list], r, order);
        TAILQ_INSERT_TAIL(&c->lists[r->list], r, order);
}

/* Take the range out of the sums (it is about to change), or put it back in. */
static void count(struct real *c, const struct range *r, uint64_t len, int sign) {
        uint64_t charge = charge_of(c->rule, len), one = 1;

        if (sign < 0) {
                charge = -charge;
                len = -len;
                one = -one;
        }
        if (r->state == RANGE_GHOST)
                return;
        c->charged += charge;
        c->ranges += one;
        if (r->pins > 0)
                c->pinned += charge;
        if (r->state != RANGE_PRESENT)
                return;
        c->present_bytes += len;
        c->present_ranges += one;
        r->map->present_bytes += len;
}

void real_add(struct real *c, struct range *r) {
        count(c, r, r->len, 1);
        append(c, r, list_for(c, r));
}

void real_remove(struct real *c, struct range *r) {
        assert(r->state == RANGE_GHOST);
        TAILQ_REMOVE(&c->lists[r->list], r, order);
}

void real_set_state(struct real *c, struct range *r, enum range_state state) {
        count(c, r, r->len, -1);
        r->state = state;
        count(c, r, r->len, 1);
        real_relist(c, r);
}

void real_set_pins(struct real *c, struct range *r, unsigned pins) {
        count(c, r, r->len, -1);
        r->pins = pins & 0x3ffffff;
        count(c, r, r->len, 1);
        real_relist(c, r);
}

void real_resized(struct real *c, struct range *r, uint64_t old_len) {
        count(c, r, old_len, -1);
        count(c, r, r->len, 1);
}

void real_split(struct real *c, struct range *r, struct range *tail, uint64_t old_len) {
        real_resized(c, r, old_len);
        count(c, tail, tail->len, 1);
        TAILQ_INSERT_AFTER(&c->lists[r->list], r, tail, order);
}

void real_follow(struct real *c, const struct shadow *s) {
        struct range_list all;
        struct range *r;

        c->followed = s;
        TAILQ_INIT(&all);
        TAILQ_CONCAT(&all, &c->lists[LIST_VICTIM], order);
        TAILQ_CONCAT(&all, &c->lists[LIST_KEPT], order);
        while ((r = TAILQ_FIRST(&all))) {
                TAILQ_REMOVE(&all, r, order);
                append(c, r, list_for(c, r));
        }
}

bool real_make_room(struct real *c, uint64_t need, uint64_t ranges, policy_sink evicted, void *ctx) {
        if (need > c->capacity)
                return false;
        while (c->charged > c->capacity - need || (ranges > 0 && c->ranges > c->most - ranges)) {
                struct range *r = TAILQ_FIRST(&c->lists[LIST_VICTIM]);

                if (!r)
                        return false;
                real_set_state(c, r, RANGE_GHOST);
                r->evicted = true;
                evicted(ctx, r->map, r->off, r->len);
        }
        return true;
}
