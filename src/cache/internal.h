/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of this folder share.  Everything below is under cache->lock where nothing else is said.
 *
 *   file.c    the table of files, identity, changes through the mount
 *   read.c    the read path
 *   flight.c  reads of the source, shared by everybody who wants the bytes
 *   stream.c  reads of the mirror ahead of a reader that goes from front to back
 *   admit.c   the queue behind the reply, and the one thread that changes mirrors
 *   flush.c   index and budget, behind everything else
 *   load.c    what a restart finds
 */
#pragma once

#include "base/buffers.h"
#include "base/clock.h"
#include "cache/cache.h"
#include "core/plan.h"
#include "core/policy.h"
#include "store/index.h"
#include "store/mirror.h"
#include "store/store.h"

#include <bsd/sys/queue.h>
#include <bsd/sys/tree.h>
#include <pthread.h>
#include <stdatomic.h>

/* The daemon's buffers, all of them (README states the bound).  A quarter is for bytes from mirrors (reads that mix
 * mirror and source, reads ahead), half for the admission queue; what is left is always there for reads of the source,
 * so none of the three can starve the others into a deadlock. */
#define POOL_BYTES (64u * MIB)
#define MIXED_BYTES (POOL_BYTES / 4)
#define QUEUE_BYTES (POOL_BYTES / 2)
#define KNOWN_RANGES_MAX 524288u /* about 100 MB at the worst */
#define MAX_PIECES 16
#define FILE_SIZE_MAX (64ll << 40) /* a file's segments are a bitmap: 128 KiB at most */

struct cache_file {
        RB_ENTRY(cache_file) by_key, by_id, by_inode;
        struct cache *cache;
        struct identity identity;
        dev_t dev; /* where it was met last; while it is open, this is what it is found by (by_inode) */
        ino_t ino;
        bool nameless; /* its key belongs to another file now: whoever has it open reads the source */
        _Atomic bool settled; /* what is read from now on may be kept under this version: source_settle said so */
        int64_t settle_after; /* monotonic ns: not asked again before */
        uint64_t id;    /* names the mirror; another one for another version */
        uint64_t nonce; /* of what is admitted from now on */
        struct range_map map;
        struct mirror *mirror; /* open while the file is, once there is one */
        bool mirror_made;
        bool from_index; /* what a restart found is verified whatever the option says: the index may trail the mirrors */
        unsigned refs, opens, writers, changing;
        bool crowded; /* several of `changing` at once: none of them was alone */
        uint64_t generation; /* counts changes through the mount: what was read before one is not admitted after it */
        uint64_t removals;   /* counts what left the mirror: a hit that raced with one is no corruption */
        struct span_tree flights;

        bool row_dirty, listed;     /* the file's row in the index is stale; it is on cache->dirty */
        uint64_t *dirty;            /* one bit a segment */
        size_t dirty_words;
        TAILQ_ENTRY(cache_file) dirty_link;

        /* The last error of the source: the kernel retries a failed readahead page by page, and a dying disk takes
         * seconds for each. */
        uint64_t error_off, error_end;
        int64_t error_until_ns;
        int error;
};
RB_HEAD(key_tree, cache_file);
RB_HEAD(id_tree, cache_file);
RB_HEAD(inode_tree, cache_file);

/* One read of the mirror, begun before it was asked for.  What it brings is verified when it is used, like any other. */
struct ahead {
        struct io_op io;
        struct cache *cache;
        struct mirror *mirror;
        char *buf;
        uint64_t off, len, removals;
        unsigned refs;
        bool landed, good;
};
enum { AHEADS = 2 };
struct stream {
        uint64_t end;   /* how far the reader has come */
        uint64_t bytes; /* in how long a row */
        struct ahead *aheads[AHEADS]; /* in order; NULL: none */
};

struct cache_handle {
        struct cache *cache;
        struct cache_file *file; /* NULL: passed through */
        int fd;
        bool writer, settled;
        struct stream stream;
        _Atomic unsigned refs; /* the opener's, and one for each read of the source under way: the fd must not be reused */
};

struct flight;
TAILQ_HEAD(flight_queue, flight);

struct removal {
        TAILQ_ENTRY(removal) link;
        struct cache_file *file; /* referenced; NULL: unlink the mirror `id` */
        uint64_t id, off, len;
};
TAILQ_HEAD(removal_queue, removal);

struct cache {
        pthread_mutex_t lock;
        const struct options *options;
        struct source *source;
        struct store *store; /* NULL: a bypass */
        struct policy *policy;
        struct io_engine *io;        /* reads of the source */
        struct io_engine *mirror_io; /* reads ahead of mirrors: a hung source must not hold them up */
        struct buffer_pool *buffers;
        _Atomic int mode;

        struct key_tree files;
        struct id_tree ids;
        struct inode_tree open_files; /* a path may lead elsewhere by now, and one inode has many: what is open goes by it */
        size_t file_count;
        TAILQ_HEAD(, cache_file) dirty_files;
        uint64_t *deleted; /* ids whose rows must go */
        size_t deleted_count, deleted_room;

        size_t mixed_bytes;
        pthread_cond_t ahead_landed;
        struct flight_queue starved; /* waiting for a buffer */
        struct flight_queue queue;   /* waiting for the writer */
        size_t queue_bytes;
        struct removal_queue removals;
        pthread_cond_t work;
        pthread_t writer, flusher;
        bool stopping, writer_runs, flusher_runs;
        pthread_cond_t tick;
        int64_t write_allowed_ns; /* write_rate: not before */

        uint64_t size;     /* the option, or what the disk can give at present where that is less */
        uint64_t capacity; /* what of it is left for ranges */
        _Atomic uint64_t counters[CACHE_COUNTERS];
        _Atomic bool source_unreachable;
        char *warnings[14];
};

static inline void count(struct cache *c, enum cache_counter which, uint64_t n) {
        atomic_fetch_add_explicit(&c->counters[which], n, memory_order_relaxed);
}
uint64_t random_u64(void); /* never 0 */
void cond_wait_ns(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t ns);

/* file.c */
void handle_unref(struct cache_handle *h); /* without the lock */
struct cache_file *file_ref(struct cache_file *f);
void file_unref_locked(struct cache_file *f);
struct cache_file *file_add(struct cache *c, const struct identity *id, uint64_t mirror_id);
struct cache_file *file_by_id(struct cache *c, uint64_t id);
void file_forget_content(struct cache_file *f); /* cut everything, retire the mirror, a new id */
void file_mark_dirty(struct cache_file *f, uint64_t off, uint64_t len);
void files_sweep(struct cache *c);
RB_PROTOTYPE(key_tree, cache_file, by_key, )
RB_PROTOTYPE(id_tree, cache_file, by_id, )
/* Opens the mirror where the file has one; outside the lock. */
void file_open_mirror(struct cache_file *f);
/* Asks the source now and then whether the present version may be kept; outside the lock. */
void file_settle(struct cache_handle *h);

/* flight.c */
struct waiter {
        LIST_ENTRY(waiter) link;
        struct flight *flight;
        void (*landed)(struct waiter *w); /* without the lock */
};
struct flight {
        struct span span; /* in file->flights while `shared` */
        struct cache_handle *handle;
        struct io_op io;
        void *buf;
        ssize_t result; /* valid once landed */
        uint64_t generation;
        _Atomic unsigned refs;
        bool shared, landed;
        bool admissible; /* the file had settled when the read began */
        LIST_HEAD(, waiter) waiters;
        TAILQ_ENTRY(flight) link; /* starved, or queue */
};
/* A read of [off, off+len) that is not under way yet; one reference, the caller's.  NULL: no memory.  Others may join
 * it, and its bytes may be admitted; under the lock. */
struct flight *flight_new(struct cache_handle *h, uint64_t off, size_t len);
/* One that nobody else joins; without the lock. */
struct flight *flight_new_private(struct cache_handle *h, uint64_t off, size_t len, bool admit);
/* Both: without the lock. */
void flight_start(struct flight *fl);
/* Takes a reference (w->flight; the waiter gives it back).  True: w->landed will be called; false: it has landed. */
bool flight_join(struct flight *fl, struct waiter *w);
/* Under the lock: leave it again; `made`: it was ours, and never started. */
void flight_abandon(struct waiter *w, bool made);
void flight_unref(struct flight *fl);                  /* without the lock */
void flight_leave_tree(struct flight *fl);
void flights_detach(struct cache_file *f); /* nobody joins them any more, nothing of them is admitted */
void buffers_kick(struct cache *c);        /* a buffer came back; without the lock */

/* stream.c: under the lock where nothing else is said. */
/* Notes a read of [off, end) that is all present.  An ahead that has to be started, or NULL. */
struct ahead *stream_note(struct cache_handle *h, uint64_t off, uint64_t end);
/* The ahead that holds [off, end), referenced, landed or not; NULL: none. */
struct ahead *stream_find(struct cache_handle *h, uint64_t off, uint64_t end);
void stream_end(struct cache_handle *h);
void ahead_start(struct ahead *a);               /* without the lock */
const char *ahead_wait(struct ahead *a);         /* without the lock: its bytes, or NULL */
void ahead_unref(struct ahead *a);               /* without the lock */

/* admit.c */
bool admission_offer(struct flight *fl); /* true: the queue holds a reference now */
void removal_push(struct cache_file *f, uint64_t off, uint64_t len);
void removal_push_unlink(struct cache *c, uint64_t id);
void sink_evicted(void *ctx, struct range_map *map, uint64_t off, uint64_t len);
void sink_cut(void *ctx, struct range_map *map, uint64_t off, uint64_t len);
/* What the reserve leaves us of the file system, bytes; below 0: what others have taken of it.  Without the lock. */
int64_t space_left(struct cache *c);
int writer_start(struct cache *c);
void writer_stop(struct cache *c);

/* flush.c */
int flusher_start(struct cache *c);
bool flusher_stop(struct cache *c); /* true: all of it is in the index */
uint64_t budget_at_start(struct cache *c);

/* load.c */
int cache_load(struct cache *c);
