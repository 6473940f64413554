/* SPDX-License-Identifier: Apache-2.0 */
#include "core/plan.h"

#include "base/util.h"

static int span_cmp(const struct span *a, const struct span *b) { return a->off < b->off ? -1 : a->off > b->off; }

RB_GENERATE_INTERNAL(span_tree, span, node, span_cmp, static __attribute__((unused)))

void span_insert(struct span_tree *t, struct span *s) { RB_INSERT(span_tree, t, s); }
void span_remove(struct span_tree *t, struct span *s) { RB_REMOVE(span_tree, t, s); }

/* The first span that ends behind `off`, or NULL. */
static struct span *span_find(const struct span_tree *spans, uint64_t off) {
        struct span *at = RB_ROOT(spans), *found = NULL;

        while (at) {
                if (at->off + at->len > off) {
                        found = at;
                        at = RB_LEFT(at, node);
                } else {
                        at = RB_RIGHT(at, node);
                }
        }
        return found;
}

struct planner {
        const struct span_tree *spans;
        struct range *range; /* the next good range that ends behind the position, or NULL */
        struct span *span;   /* the same of spans */
        uint64_t end, max_miss;
};

static struct range *good_from(struct range *r) {
        while (r && !range_is_good(r))
                r = range_map_next(r);
        return r;
}

/* Present wins: a span over good bytes is left from before they came. */
static struct piece next_piece(const struct planner *p, uint64_t off) {
        const struct range *r = p->range;
        uint64_t gap_end = r ? min_u64(p->end, r->off) : p->end;

        if (r && r->off <= off)
                return (struct piece){ PIECE_HIT, off, min_u64(p->end, r->off + r->len) - off, r->nonce, NULL };
        if (p->span && p->span->off <= off)
                return (struct piece){ PIECE_JOIN, off, min_u64(gap_end, p->span->off + p->span->len) - off, 0,
                                       p->span };
        if (p->span)
                gap_end = min_u64(gap_end, p->span->off);
        return (struct piece){ PIECE_MISS, off, min_u64(gap_end - off, p->max_miss), 0, NULL };
}

static bool extends(const struct piece *last, const struct piece *p) {
        return last->kind == PIECE_HIT && p->kind == PIECE_HIT && last->nonce == p->nonce;
}

size_t plan_read(const struct range_map *m, const struct span_tree *spans, uint64_t off, uint64_t len,
                 uint64_t max_miss, struct piece *ret_pieces, size_t max) {
        struct planner p = { spans, good_from(range_map_find(m, off)), span_find(spans, off), off + len, max_miss };
        size_t n = 0;

        while (off < p.end) {
                struct piece next = next_piece(&p, off);
                if (n > 0 && extends(&ret_pieces[n - 1], &next))
                        ret_pieces[n - 1].len += next.len;
                else if (n < max)
                        ret_pieces[n++] = next;
                else
                        return 0;
                off += next.len;
                while (p.range && p.range->off + p.range->len <= off)
                        p.range = good_from(range_map_next(p.range));
                while (p.span && p.span->off + p.span->len <= off)
                        p.span = RB_NEXT(span_tree, NULL, p.span);
        }
        return n;
}
