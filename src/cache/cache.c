/* SPDX-License-Identifier: Apache-2.0 */
/* Life and status of a cache. */
#include "base/log.h"
#include "base/util.h"
#include "cache/internal.h"
#include "source/paths.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

const char *const cache_counter_names[CACHE_COUNTERS] = {
#define COUNTER(name, doc) [COUNT_##name] = #name,
#include "cache/counters.def"
#undef COUNTER
};

uint64_t random_u64(void) {
        uint64_t x = 0;

        while (x == 0)
                if (getrandom(&x, sizeof x, 0) != (ssize_t)sizeof x)
                        x = 0;
        return x;
}

void cond_wait_ns(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t ns) {
        int64_t until = monotonic_ns() + ns;
        struct timespec t = { .tv_sec = until / 1000000000, .tv_nsec = until % 1000000000 };

        pthread_cond_timedwait(cond, lock, &t);
}

static void init_sync(struct cache *c) {
        pthread_condattr_t attr;

        pthread_mutex_init(&c->lock, NULL);
        pthread_condattr_init(&attr);
        pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
        pthread_cond_init(&c->work, &attr);
        pthread_cond_init(&c->tick, &attr);
        pthread_cond_init(&c->ahead_landed, NULL);
        pthread_condattr_destroy(&attr);
}

static int new_policy(struct cache *c) {
        static const enum policy_kind kinds[] = {
                [OPT_POLICY_AUTO] = POLICY_AUTO, [OPT_POLICY_HOTNESS] = POLICY_HOTNESS, [OPT_POLICY_LRU] = POLICY_LRU,
        };
        uint32_t block = store_block_size(c->store);
        struct policy_config cfg = {
                .kind = kinds[c->options->policy],
                .capacity = c->capacity = budget_at_start(c),
                /* A lone extent fills a block of the sidecar and a row of the index, and its ends may stand in blocks
                 * of the file system larger than ours. */
                .range_overhead = block + 2ull * (block - BLOCK) + INDEX_ROW_BYTES,
                .charge_sums = true,
                .max_ranges = KNOWN_RANGES_MAX,
        };
        return policy_new(&cfg, &c->policy);
}

/* `size` is a wish: what the disk can give, less the reserve, is the most there will be until others free some. */
static void warn_of_size(struct cache *c) {
        int64_t room = space_left(c) + (int64_t)store_used(c->store);
        uint64_t most = room > 0 ? (uint64_t)room : 0;
        char text[160];

        c->size = min_u64(c->options->size, most);
        if (c->size == c->options->size)
                return;
        snprintf(text, sizeof text, "size=%lluM is more than the cache's disk can give; using %lluM",
                 (unsigned long long)(c->options->size / MIB), (unsigned long long)(most / MIB));
        cache_warn(c, text);
}

static void note_warning(void *ctx, const char *text) { cache_warn(ctx, text); }

static int open_store(struct cache *c, const struct cache_config *cfg, char *error) {
        int root = source_root(c->source);
        int r;

        if (path_is_below(c->options->cache, cfg->source_path, root)) {
                snprintf(error, CACHE_ERROR_MAX, "cache %s lies inside the source; it would cache itself: give a "
                         "directory on another file system", c->options->cache);
                return -EINVAL;
        }
        if ((r = store_open(c->options->cache, cfg->owner, 10, &c->store, error)) < 0)
                return r;
        store_warnings(c->store, root, note_warning, c);
        warn_of_size(c);
        if ((r = new_policy(c)) == 0 && (r = cache_load(c)) == 0 && (r = writer_start(c)) == 0)
                r = flusher_start(c);
        if (r < 0)
                snprintf(error, CACHE_ERROR_MAX, "cache %s: %s", c->options->cache, strerror(-r));
        return r;
}

int cache_new(const struct cache_config *cfg, struct cache **ret, char *error) {
        const char *backend = getenv("HOTSET_IO"); /* for tests and measurements: "threads" */
        enum io_backend kind = backend && strcmp(backend, "threads") == 0 ? IO_THREADS : IO_AUTO;
        struct cache *c = calloc(1, sizeof *c);
        int r;

        if (!c)
                return -ENOMEM;
        init_sync(c);
        c->options = cfg->options;
        c->source = cfg->source;
        c->mode = cfg->options->mode;
        RB_INIT(&c->files);
        RB_INIT(&c->ids);
        RB_INIT(&c->open_files);
        TAILQ_INIT(&c->dirty_files);
        TAILQ_INIT(&c->starved);
        TAILQ_INIT(&c->queue);
        TAILQ_INIT(&c->removals);
        if ((r = buffer_pool_new(POOL_BYTES, &c->buffers)) < 0 ||
            (r = io_engine_new(kind, &c->io)) < 0 || (r = io_engine_new(kind, &c->mirror_io)) < 0)
                snprintf(error, CACHE_ERROR_MAX, "cannot start reading: %s", strerror(-r));
        else if (cfg->options->cache && cfg->options->size > 0 && c->mode != MODE_OFF)
                r = open_store(c, cfg, error);
        if (r < 0) {
                cache_free(c);
                return r;
        }
        *ret = c;
        return 0;
}

/* The bytes stay where they are: the next start wants to find them. */
static void sink_nothing(void *ctx, struct range_map *map, uint64_t off, uint64_t len) {
        (void)ctx, (void)map, (void)off, (void)len;
}

/* What no other run could find again has no row in the index either. */
static void unlink_unlasting(struct cache *c) {
        struct cache_file *f;

        RB_FOREACH (f, key_tree, &c->files)
                if (!f->identity.lasting && f->mirror_made)
                        mirror_unlink(c->store, f->id);
}

static void free_files(struct cache *c) {
        struct cache_file *f;

        while ((f = RB_MIN(key_tree, &c->files))) {
                policy_cut(c->policy, &f->map, 0, UINT64_MAX, sink_nothing, NULL);
                RB_REMOVE(key_tree, &c->files, f);
                mirror_unref(f->mirror);
                free(f->dirty);
                free(f);
        }
}

/* Waits until no read of the source waits for a buffer any more. */
static bool all_landed(struct cache *c, unsigned seconds) {
        for (unsigned i = 0; i < seconds * 100; i++) {
                pthread_mutex_lock(&c->lock);
                bool empty = TAILQ_EMPTY(&c->starved);
                pthread_mutex_unlock(&c->lock);
                if (empty && io_engine_idle(c->io))
                        return true;
                nanosleep(&(struct timespec){ .tv_nsec = 10 * 1000 * 1000 }, NULL);
        }
        return false;
}

bool cache_free(struct cache *c) {
        bool saved;

        if (!c)
                return true;
        /* The writer first: what it lets go of may start reads that wait for a buffer, and those need the engine. */
        writer_stop(c);
        bool landed = all_landed(c, 2); /* all of this has to fit into the time that a shutdown may take */
        saved = flusher_stop(c);
        unlink_unlasting(c);
        if (!landed || io_engine_free(c->io, 1) < 0 || io_engine_free(c->mirror_io, 1) < 0) {
                log_warn("the source does not answer; leaving without waiting for it");
                store_close(c->store, saved);
                return false;
        }
        free_files(c);
        c->policy = policy_free(c->policy);
        store_close(c->store, saved);
        buffer_pool_free(c->buffers);
        for (size_t i = 0; i < ARRAY_SIZE(c->warnings); i++)
                free(c->warnings[i]);
        free(c->deleted);
        pthread_mutex_destroy(&c->lock);
        free(c);
        return true;
}

void cache_warn(struct cache *c, const char *text) {
        pthread_mutex_lock(&c->lock);
        for (size_t i = 0; i < ARRAY_SIZE(c->warnings); i++) {
                if (c->warnings[i] && strcmp(c->warnings[i], text) == 0)
                        break;
                if (!c->warnings[i]) {
                        c->warnings[i] = strdup(text);
                        log_warn("%s", text);
                        break;
                }
        }
        pthread_mutex_unlock(&c->lock);
}

void cache_note_source(struct cache *c, int r) {
        static const int gone[] = { -ENOTCONN, -EIO, -ENODEV, -ENXIO, -ETIMEDOUT, -EHOSTDOWN, -EHOSTUNREACH, -ECONNABORTED };
        bool unreachable = false;

        for (size_t i = 0; i < ARRAY_SIZE(gone); i++)
                unreachable |= r == gone[i];
        if (unreachable || (r >= 0 && c->source_unreachable))
                c->source_unreachable = unreachable;
}

static void policy_part(struct cache *c, struct cache_status *ret) {
        struct policy_stats ps;

        policy_stats(c->policy, &ps);
        ret->capacity_bytes = c->capacity;
        ret->charged_bytes = ps.charged;
        ret->present_bytes = ps.present_bytes;
        ret->extents = ps.present_ranges;
        ret->ghosts = ps.ghost_ranges;
        ret->counters[COUNT_readmitted_bytes] = ps.readmitted_bytes;
        ret->shadow_hit_bytes = ps.shadow_hit_bytes;
        ret->shadow_admitted_bytes = ps.shadow_admitted_bytes;
        ret->policy_active = policy_active(c->policy) == POLICY_LRU ? "lru" : "hotness";
}

void cache_status(struct cache *c, struct cache_status *ret) {
        *ret = (struct cache_status){ .policy_active = "none", .io_backend = io_engine_name(c->io) };
        pthread_mutex_lock(&c->lock);
        for (int i = 0; i < CACHE_COUNTERS; i++)
                ret->counters[i] = c->counters[i];
        if (c->policy)
                policy_part(c, ret);
        ret->size_bytes = c->store ? c->size : 0;
        ret->files = c->file_count;
        ret->queued_bytes = c->queue_bytes;
        ret->source_unreachable = c->source_unreachable;
        size_t n = 0;
        for (size_t i = 0; i < ARRAY_SIZE(c->warnings) && c->warnings[i]; i++)
                if ((ret->warnings[n] = strdup(c->warnings[i])))
                        n++;
        if (ret->source_unreachable)
                ret->warnings[n] = strdup("the source is unreachable: its last call failed");
        pthread_mutex_unlock(&c->lock);
        ret->buffer_bytes = buffer_pool_held(c->buffers);
        if (c->store)
                ret->used_bytes = store_used(c->store);
}
