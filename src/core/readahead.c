/* SPDX-License-Identifier: Apache-2.0 */
#include "core/readahead.h"

#include "base/util.h"

enum {
        SUSPICION = 20, /* one byte in so many may be read that nobody has asked for */
        REFUSALS = 2,   /* a reader has two windows refused before it probes the first; more mean a prefetch */
        FRESH = 4 * READAHEAD_RUNS, /* reads of the file within which a request may still belong to a run */
};

static uint64_t length(const struct readahead_run *r) { return r->end - r->start; }

static bool is_fresh(const struct readahead *ra, const struct readahead_run *r) { return ra->reads - r->used <= FRESH; }

/* The run that a request at `off` goes on with: best one that ends there, else one that was refused that place. */
static struct readahead_run *find(struct readahead *ra, uint64_t off) {
        struct readahead_run *found = NULL;

        for (size_t i = 0; i < READAHEAD_RUNS; i++) {
                struct readahead_run *r = &ra->runs[i];
                if (r->used == 0 || off < r->end || off > r->refused)
                        continue;
                bool better = !found || (r->end == off) > (found->end == off) ||
                              ((r->end == off) == (found->end == off) && r->used > found->used);
                if (better)
                        found = r;
        }
        return found;
}

/* A new run takes the place of the one that was used the longest time ago. */
static struct readahead_run *begin(struct readahead *ra, uint64_t off) {
        struct readahead_run *oldest = &ra->runs[0];

        for (size_t i = 1; i < READAHEAD_RUNS; i++)
                if (ra->runs[i].used < oldest->used)
                        oldest = &ra->runs[i];
        *oldest =
                (struct readahead_run){ .start = off, .end = off, .refused = off, .used = ra->reads, .sure = off == 0 };
        return oldest;
}

static struct readahead_verdict answer(const struct readahead *ra, struct readahead_run *r, uint64_t end) {
        if (end - r->end > BLOCK)
                r->last = end - r->end;
        r->end = end;
        r->refused = max_u64(r->refused, end);
        r->used = ra->reads;
        r->refusals = 0;
        return (struct readahead_verdict){ 0 };
}

static struct readahead_verdict refuse(const struct readahead *ra, struct readahead_run *r, uint64_t end) {
        r->refused = max_u64(r->refused, end);
        r->used = ra->reads;
        r->refusals++;
        return (struct readahead_verdict){ .refuse = true };
}

/* How much further runs of this file went that were as long as this one is now; 0: no two agree. */
static uint64_t learnt(const struct readahead *ra, const struct readahead_run *run) {
        uint64_t best = 0;

        for (size_t i = 0; i < READAHEAD_RUNS; i++)
                for (size_t j = 0; j < i; j++) {
                        uint64_t a = length(&ra->runs[i]), b = length(&ra->runs[j]), less = min_u64(a, b);
                        if (&ra->runs[i] == run || &ra->runs[j] == run || max_u64(a, b) - less > BLOCK)
                                continue; /* slices begin anywhere in a page, so they differ by one */
                        if (less > length(run) && (best == 0 || less < best))
                                best = less;
                }
        return best ? best - length(run) : 0;
}

static uint64_t allowance(const struct readahead *ra, const struct readahead_run *r) {
        return r->sure ? UINT64_MAX : block_down(max_u64(length(r) / SUSPICION, learnt(ra, r)));
}

/* A probe was answered: what of the refused pages behind it may come at once? */
static struct readahead_verdict grant(const struct readahead *ra, const struct readahead_run *r,
                                      const struct readahead_view *v) {
        struct readahead_verdict verdict = { 0 };
        uint64_t to = r->end < r->refused ? v->ready_to(v->ctx, r->end, r->refused) : r->end;

        if (to == r->end && r->end < r->refused) {
                to = r->end + min_u64(allowance(ra, r), r->refused - r->end);
                verdict.want_off = r->end - BLOCK; /* with the probe, as one read of the source */
                verdict.want_end = to;
        }
        if (to == r->end)
                return (struct readahead_verdict){ 0 };
        verdict.drop_off = r->end;
        verdict.drop_end = to;
        return verdict;
}

/* The kernel's windows double until they have the mount's size.  Requests that repeat a smaller size are exact. */
static bool looks_ahead(const struct readahead *ra, const struct readahead_run *r, uint64_t len) {
        return len >= ra->window || len > r->last;
}

/* Begins where a run ends. */
static struct readahead_verdict go_on(struct readahead *ra, struct readahead_run *r, uint64_t end,
                                      const struct readahead_view *v) {
        uint64_t off = r->end, len = end - off;

        if (len <= BLOCK) {
                answer(ra, r, end);
                return grant(ra, r, v);
        }
        if (r->sure || !looks_ahead(ra, r, len) || v->missing(v->ctx, off, end) <= length(r) / SUSPICION)
                return answer(ra, r, end);
        if (!is_fresh(ra, r) && r->refused == r->end)
                return answer(ra, begin(ra, off), end); /* that reader is gone: this one has asked for its first byte */
        return refuse(ra, r, end);
}

/* Begins in or right behind what a run was refused. */
static struct readahead_verdict go_behind(struct readahead *ra, struct readahead_run *r, uint64_t off, uint64_t end,
                                          const struct readahead_view *v) {
        uint64_t refused = r->refused;
        bool behind = off == refused, one_page = end - off <= BLOCK;

        if (!behind) { /* a reader came by another way, or the empty pages are gone */
                r->refused = off;
                r = begin(ra, off);
                r->refused = one_page ? refused : off;
                return one_page ? go_on(ra, r, end, v) : answer(ra, r, end);
        }
        if (one_page || !is_fresh(ra, r) || v->missing(v->ctx, off, end) == 0)
                return answer(ra, begin(ra, off), end);
        if (r->refusals < REFUSALS)
                return refuse(ra, r, end);
        /* Nobody who reads passes by what was refused: somebody prefetches.  What he was refused comes to the cache. */
        struct readahead_verdict verdict = { .want_off = r->end, .want_end = r->refused };
        r->sure = true;
        r = begin(ra, off);
        r->sure = true;
        answer(ra, r, end);
        return verdict;
}

/* Belongs to no run.  Its reader has asked for the first page of it, so it is answered, unless only that seems wanted:
 * of a whole window that is present to somewhere, no more was ever read. */
static struct readahead_verdict go_elsewhere(struct readahead *ra, uint64_t off, uint64_t end,
                                             const struct readahead_view *v) {
        if (end - off <= BLOCK)
                return (struct readahead_verdict){ 0 };
        struct readahead_run *r = begin(ra, off);
        if (!r->sure && end - off >= ra->window && v->ready_to(v->ctx, off, end) > off &&
            v->missing(v->ctx, off, end) > (end - off) / SUSPICION)
                return refuse(ra, r, end);
        return answer(ra, r, end);
}

struct readahead_verdict readahead_judge(struct readahead *ra, uint64_t off, uint64_t end,
                                         const struct readahead_view *v) {
        struct readahead_run *r = find(ra, off);

        ra->reads++;
        if (!r)
                return go_elsewhere(ra, off, end, v);
        return r->end == off ? go_on(ra, r, end, v) : go_behind(ra, r, off, end, v);
}

bool readahead_take_refused(struct readahead *ra, uint64_t *ret_off, uint64_t *ret_end) {
        for (size_t i = 0; i < READAHEAD_RUNS; i++) {
                struct readahead_run *r = &ra->runs[i];
                if (r->refused <= r->end)
                        continue;
                *ret_off = r->end;
                *ret_end = r->refused;
                r->refused = r->end;
                return true;
        }
        return false;
}
