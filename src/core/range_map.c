/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The range map of one file; see range_map.h.  A red-black tree by offset: the
 * ranges are disjoint, so the order of their starts is the order of their ends,
 * and "the first that ends after x" is one descent.  The policy's lock.
 */
#include "core/range_map.h"

#include <assert.h>
#include <stddef.h>

static int by_offset(const struct range *a, const struct range *b) {
        return a->off < b->off ? -1 : a->off > b->off;
}

RB_GENERATE_INTERNAL(range_tree, range, node, by_offset, static __attribute__((unused)))

void range_map_init(struct range_map *m, void *owner) {
        *m = (struct range_map){ .owner = owner };
        RB_INIT(&m->tree);
}

struct range *range_map_find(const struct range_map *m, uint64_t off) {
        struct range *r = RB_ROOT(&m->tree), *found = NULL;

        while (r) {
                if (range_end(r) > off) {
                        found = r;
                        r = RB_LEFT(r, node);
                } else
                        r = RB_RIGHT(r, node);
        }
        return found;
}

struct range *range_map_next(const struct range *r) {
        return range_tree_RB_NEXT((struct range *)r);
}

struct range *range_map_prev(const struct range *r) {
        return range_tree_RB_PREV((struct range *)r);
}

bool range_map_present(const struct range_map *m, uint64_t off, uint64_t end, uint64_t *ret_off, uint64_t *ret_end) {
        struct range *r = range_map_find(m, off);
        uint64_t from, to;

        while (r && r->off < end && r->state != RANGE_PRESENT)
                r = range_map_next(r);
        if (!r || r->off >= end || off >= end)
                return false;

        from = r->off > off ? r->off : off;
        to = range_end(r);
        while (to < end && (r = range_map_next(r)) && r->off == to && r->state == RANGE_PRESENT)
                to = range_end(r);
        *ret_off = from;
        *ret_end = to < end ? to : end;
        return true;
}

uint64_t range_map_good_to(const struct range_map *m, uint64_t off, uint64_t end) {
        const struct range *r = range_map_find(m, off);

        for (; r && off < end && r->off <= off && range_is_good(r); r = range_map_next(r))
                off = range_end(r);
        return off < end ? off : end;
}

uint64_t range_map_present_bytes(const struct range_map *m) {
        return m->present_bytes;
}

void range_map_insert(struct range_map *m, struct range *r) {
        struct range *other = RB_INSERT(range_tree, &m->tree, r);

        assert(!other);
        (void)other;
        r->map = m;
}

void range_map_remove(struct range_map *m, struct range *r) {
        RB_REMOVE(range_tree, &m->tree, r);
        r->map = NULL;
}
