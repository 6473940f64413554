/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Behind everything else: the index follows memory, and the budget follows the disk.
 *
 * Once a second.  The lock is held only to copy rows; SQLite runs without it.  A batch that fails is marked dirty
 * again; an index that SQLite calls damaged is replaced by an empty one and written anew from memory.
 */
#include "base/log.h"
#include "base/thread.h"
#include "base/util.h"
#include "cache/internal.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#define SEGMENT_ROWS (INDEX_SEGMENT / BLOCK)
#define BATCH_ROWS 4096u  /* bounds the write-ahead log, which counts as used */
#define BATCH_SEGMENTS 64u
#define BATCH_DELETES 256u
#define LOG_HEADROOM (1 * MIB)

struct flusher {
        struct cache *cache;
        struct index_extent *rows; /* one segment */
        size_t batch_rows, batch_count;
        struct {
                uint64_t id, segment;
        } batch[BATCH_SEGMENTS];
};

/* ---- the budget ---- */

/* Rows are charged with their ranges; what the index takes beyond that (free pages, its log) is taken off the top, and
 * so is what free space has to be left.  `present`: what mirrors take already.  Looks at the disk: without the lock. */
static uint64_t capacity_for(struct cache *c, uint64_t metadata, uint64_t rows, uint64_t present) {
        uint64_t size = c->options->size, charged = rows * INDEX_ROW_BYTES;
        uint64_t meta = (metadata > charged ? metadata - charged : 0) + min_u64(LOG_HEADROOM, size / 8);

        int64_t room = (int64_t)present + space_left(c);

        return min_u64(size > meta ? size - meta : 0, room > 0 ? (uint64_t)room : 0);
}

uint64_t budget_at_start(struct cache *c) {
        uint64_t metadata = store_metadata_used(c->store), used = store_used(c->store);
        return capacity_for(c, metadata, 0, used > metadata ? used - metadata : 0);
}

/* A budget that moves with every file that others write would rescale the policy for nothing: steps of 1/256. */
static void adjust_budget(struct cache *c) {
        uint64_t metadata = store_metadata_used(c->store), step = c->options->size / 256;
        struct policy_stats ps;

        pthread_mutex_lock(&c->lock);
        policy_stats(c->policy, &ps);
        pthread_mutex_unlock(&c->lock);
        uint64_t now = capacity_for(c, metadata, ps.present_ranges, ps.charged);
        if (now + step >= c->capacity && now <= c->capacity + step && (now == 0) == (c->capacity == 0))
                return;
        pthread_mutex_lock(&c->lock);
        c->capacity = now;
        c->size = min_u64(c->options->size, now + metadata + LOG_HEADROOM);
        policy_set_capacity(c->policy, now);
        policy_shrink(c->policy, sink_evicted, NULL);
        pthread_mutex_unlock(&c->lock);
}

/* ---- the index ---- */

static size_t copy_segment(struct flusher *fl, struct cache_file *f, uint64_t segment) {
        uint64_t from = segment * INDEX_SEGMENT, to = from + INDEX_SEGMENT;
        size_t n = 0;

        for (struct range *r = range_map_find(&f->map, from); r && r->off < to && n < SEGMENT_ROWS; r = range_map_next(r)) {
                if (r->state != RANGE_PRESENT)
                        continue;
                struct range_heat h = policy_export(fl->cache->policy, r);
                uint64_t off = max_u64(r->off, from), end = min_u64(r->off + r->len, to);
                fl->rows[n++] = (struct index_extent){ .off = off, .len = end - off, .nonce = r->nonce, .age = h.age,
                                                       .suspect = r->suspect,
                                                       .heat = isfinite(h.heat) ? h.heat : -1e300 };
        }
        return n;
}

/* Takes one dirty segment off the file; false: it has none. */
static bool take_segment(struct cache_file *f, uint64_t *ret_segment) {
        for (size_t w = 0; w < f->dirty_words; w++)
                if (f->dirty[w]) {
                        unsigned bit = (unsigned)__builtin_ctzll(f->dirty[w]);
                        f->dirty[w] &= f->dirty[w] - 1;
                        *ret_segment = w * 64 + bit;
                        return true;
                }
        return false;
}

static bool any_segment(const struct cache_file *f) {
        for (size_t w = 0; w < f->dirty_words; w++)
                if (f->dirty[w])
                        return true;
        return false;
}

struct flush_item {
        bool found, with_file, with_segment;
        struct index_file file;
        uint64_t id, segment;
        size_t rows;
};

/* Under the lock: the next thing to write, copied. */
static struct flush_item next_item(struct flusher *fl) {
        struct cache *c = fl->cache;
        struct cache_file *f = TAILQ_FIRST(&c->dirty_files);
        struct flush_item item = { .found = f != NULL };

        if (!f)
                return item;
        item.id = f->id;
        bool kept = f->mirror_made && f->identity.lasting;
        item.with_segment = take_segment(f, &item.segment) && kept;
        /* The row last: were a new version committed before the ranges that it has cut are gone, a crash in between
         * could show old bytes, which verify, under it.  Ranges without a row are nobody's. */
        item.with_file = kept && f->row_dirty && !any_segment(f);
        item.file = (struct index_file){ f->id, f->identity };
        f->row_dirty = f->row_dirty && !item.with_file;
        if (item.with_segment) {
                item.rows = copy_segment(fl, f, item.segment);
                return item;
        }
        TAILQ_REMOVE(&c->dirty_files, f, dirty_link);
        f->listed = false;
        file_ref(f);
        file_unref_locked(f); /* it may have waited for this to be freed */
        return item;
}

static int put_item(struct flusher *fl, const struct flush_item *item) {
        struct index *ix = store_index(fl->cache->store);
        int r = item->with_file ? index_put_file(ix, &item->file) : 0;

        if (r == 0 && item->with_segment)
                r = index_put_segment(ix, item->id, item->segment, fl->rows, item->rows);
        fl->batch[fl->batch_count].id = item->id;
        fl->batch[fl->batch_count++].segment = item->segment;
        fl->batch_rows += item->rows;
        return r;
}

/* After a failure: what was in the batch is dirty again. */
static void mark_batch(struct flusher *fl) {
        pthread_mutex_lock(&fl->cache->lock);
        for (size_t i = 0; i < fl->batch_count; i++) {
                struct cache_file *f = file_by_id(fl->cache, fl->batch[i].id);
                if (f) {
                        f->row_dirty = true;
                        file_mark_dirty(f, fl->batch[i].segment * INDEX_SEGMENT, 1);
                }
        }
        pthread_mutex_unlock(&fl->cache->lock);
}

static void mark_everything(struct cache *c) {
        struct cache_file *f;

        pthread_mutex_lock(&c->lock);
        RB_FOREACH (f, key_tree, &c->files)
                if (f->mirror_made) {
                        f->row_dirty = true;
                        file_mark_dirty(f, 0, max_u64(f->identity.version.size, 1));
                }
        pthread_mutex_unlock(&c->lock);
}

static void give_up_index(struct flusher *fl, int error) {
        struct cache *c = fl->cache;

        count(c, COUNT_cache_errors, 1);
        if (error != -EBADMSG) {
                mark_batch(fl);
                return;
        }
        log_warn("the index of the cache is damaged; writing it anew");
        if (store_reset_index(c->store) == 0)
                mark_everything(c);
        else
                cache_warn(c, "the index of the cache cannot be written: a restart will begin with an empty cache");
}

static int delete_rows(struct cache *c) {
        int r = 0;

        for (unsigned n = 0; r == 0 && n < BATCH_DELETES; n++) {
                pthread_mutex_lock(&c->lock);
                uint64_t id = c->deleted_count > 0 ? c->deleted[--c->deleted_count] : 0;
                pthread_mutex_unlock(&c->lock);
                if (id == 0)
                        break;
                r = index_delete_file(store_index(c->store), id);
        }
        return r;
}

static bool anything_dirty(struct cache *c) {
        pthread_mutex_lock(&c->lock);
        bool dirty = !TAILQ_EMPTY(&c->dirty_files) || c->deleted_count > 0;
        pthread_mutex_unlock(&c->lock);
        return dirty;
}

/* One transaction.  -errno, 0: nothing more to write, 1: there is. */
static int flush_batch(struct flusher *fl) {
        struct cache *c = fl->cache;
        struct index *ix = store_index(c->store);
        bool more = true;
        int r = index_begin(ix);

        fl->batch_rows = fl->batch_count = 0;
        if (r == 0)
                r = delete_rows(c);
        while (r == 0 && more && fl->batch_rows < BATCH_ROWS && fl->batch_count < BATCH_SEGMENTS) {
                pthread_mutex_lock(&c->lock);
                struct flush_item item = next_item(fl);
                pthread_mutex_unlock(&c->lock);
                more = item.found;
                if (more)
                        r = put_item(fl, &item);
        }
        if (r == 0)
                r = index_commit(ix);
        if (r < 0)
                index_rollback(ix);
        return r < 0 ? r : more || anything_dirty(c);
}

static bool flush(struct flusher *fl) {
        int r = anything_dirty(fl->cache) ? 1 : 0;

        while (r > 0)
                r = flush_batch(fl);
        if (r < 0)
                give_up_index(fl, r);
        return r == 0;
}

static void *flusher(void *arg) {
        struct flusher *fl = arg;
        struct cache *c = fl->cache;
        bool saved = false;

        for (unsigned tick = 1;; tick++) {
                pthread_mutex_lock(&c->lock);
                bool last = c->stopping && !c->writer_runs;
                if (!last)
                        cond_wait_ns(&c->tick, &c->lock, 1000000000);
                if (tick % 32 == 0)
                        files_sweep(c);
                pthread_mutex_unlock(&c->lock);
                if (last)
                        mark_everything(c); /* heat is written now and then with the rest, and all of it here */
                saved = flush(fl);
                if (last)
                        break;
                adjust_budget(c);
        }
        free(fl->rows);
        free(fl);
        return saved ? arg : NULL;
}

int flusher_start(struct cache *c) {
        struct flusher *fl = calloc(1, sizeof *fl);

        if (!fl || !(fl->rows = malloc(SEGMENT_ROWS * sizeof *fl->rows))) {
                free(fl);
                return -ENOMEM;
        }
        fl->cache = c;
        int r = thread_start(&c->flusher, "hs-flush", flusher, fl);
        c->flusher_runs = r == 0;
        return r;
}

bool flusher_stop(struct cache *c) {
        void *saved = NULL;

        if (!c->flusher_runs)
                return false;
        pthread_mutex_lock(&c->lock);
        pthread_cond_broadcast(&c->tick);
        pthread_mutex_unlock(&c->lock);
        pthread_join(c->flusher, &saved);
        c->flusher_runs = false;
        return saved != NULL;
}
