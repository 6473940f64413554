/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a restart finds: the index says what is present; after a crash, what it does not know of is freed.
 *
 * Nothing is read or verified here: a range that the index claims and the mirror does not hold does not verify at its
 * first read.  Runs before any other thread, so without the lock.
 */
#include "base/log.h"
#include "base/util.h"
#include "cache/internal.h"

#include <errno.h>

struct load {
        struct cache *cache;
        bool untidy; /* something in the directory is not as the index says */
};

static void found_file(void *ctx, const struct index_file *row) {
        struct load *l = ctx;

        if (!file_by_id(l->cache, row->id) && file_add(l->cache, &row->identity, row->id))
                return;
        removal_push_unlink(l->cache, row->id); /* two rows for one file: this one goes, with its mirror */
        l->untidy = true;
}

static bool plausible(const struct cache_file *f, const struct index_extent *e) {
        uint64_t size = f->identity.version.size, end = end_of(e->off, e->len);

        return e->len > 0 && e->off % BLOCK == 0 && end <= size && (end % BLOCK == 0 || end == size);
}

static void found_extent(void *ctx, uint64_t id, const struct index_extent *e) {
        struct load *l = ctx;
        struct cache_file *f = file_by_id(l->cache, id);

        if (f && plausible(f, e) &&
            policy_restore(l->cache->policy, &f->map, e->off, e->len, e->nonce, (struct range_heat){ e->heat, e->age },
                           e->suspect) == 0)
                return;
        l->untidy = true;
        if (f)
                file_mark_dirty(f, min_u64(e->off, f->identity.version.size), 1);
}

static bool claims(void *ctx, uint64_t off, uint64_t *ret_off, uint64_t *ret_end) {
        struct cache_file *f = ctx;
        return range_map_present(&f->map, off, UINT64_MAX, ret_off, ret_end);
}

static void reconcile(void *ctx, uint64_t id) {
        struct cache *c = ctx;
        struct cache_file *f = file_by_id(c, id);
        struct mirror *m = NULL;

        if (!f || range_map_present_bytes(&f->map) == 0 ||
            mirror_open(c->store, id, f->identity.version.size, false, &m) < 0) {
                mirror_unlink(c->store, id);
                return;
        }
        if (mirror_reconcile(m, claims, f) < 0)
                file_forget_content(f);
        mirror_unref(m);
}

static void forget_all(struct cache *c) {
        struct cache_file *f, *next;

        for (f = RB_MIN(key_tree, &c->files); f; f = next) {
                next = RB_NEXT(key_tree, &c->files, f);
                file_forget_content(f);
        }
        files_sweep(c);
}

int cache_load(struct cache *c) {
        struct load l = { .cache = c, .untidy = !store_was_clean(c->store) };
        const struct index_reader reader = { found_file, found_extent, &l };
        uint64_t bad_rows = 0;
        int r = index_load(store_index(c->store), &reader, &bad_rows);

        l.untidy |= bad_rows > 0;
        if (r == -EBADMSG || r == -EIO) {
                log_warn("the index of the cache is damaged; beginning with an empty cache");
                forget_all(c);
                l.untidy = true;
                r = store_reset_index(c->store);
        }
        if (r < 0)
                return r;
        return l.untidy ? store_each_mirror(c->store, reconcile, c) : 0;
}
