/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cache: what fuse asks to open, read and change files.
 *
 *   fuse op_read -> cache_read -> plan_read (core) -> mirror (store) or flight (source, io) -> read_sink
 *                                                        flight -> admission queue -> writer -> mirror
 *
 * Invariants:
 *   - A byte is served from the mirror only while its range is present, and it verified (or verify=off).
 *   - A range becomes present only after its bytes were read, as one, from an unchanged source: no write through the
 *     mount since the read began (generation), no writer, a version that had settled (source_settle).
 *   - Where somebody else may have written and no time would tell, what is present is suspect: the source is read, and
 *     its bytes trust the mirror's again or cut them.
 *   - An open file is its inode, under whatever name; a name only finds what was kept while nobody had it open.
 *   - A read that begins after a change through the mount has returned never joins a source read from before it.
 *   - Whatever fails in here is a miss.
 *
 * Threads: every function from anywhere.  One lock (struct cache) holds all state in memory; no I/O happens under it.
 */
#pragma once

#include "config/options.h"
#include "source/source.h"

#include <sys/uio.h>

struct cache;
struct cache_handle; /* one open file */
struct cache_file;   /* one file version that the cache knows */

struct cache_config {
        const struct options *options; /* alive as long as the cache */
        struct source *source;
        const char *owner; /* the mount point, for the lock */
        const char *source_path;
};
#define CACHE_ERROR_MAX 512
/* -errno and a sentence in `error`.  Without options->cache it is a bypass: everything passes through. */
int cache_new(const struct cache_config *cfg, struct cache **ret, char *error);
/* Ends what is under way, writes the index.  False: a read of the source still hangs, so memory was left to it. */
bool cache_free(struct cache *c);
void cache_warn(struct cache *c, const char *text); /* for `warnings` in status; each text once */
/* A call to the source ended with `r` (0 or -errno): does it answer, as `source_state` has it? */
void cache_note_source(struct cache *c, int r);

/* `fd` is open on the file at `path` (relative to the mount; NULL: it has none) and belongs to the handle from now on,
 * on failure too. */
int cache_open(struct cache *c, int fd, const struct stat *st, const char *path, bool writer, struct cache_handle **ret);
void cache_close(struct cache_handle *h);
int cache_fd(const struct cache_handle *h);
struct cache_file *cache_handle_file(const struct cache_handle *h); /* NULL where it is not cached */
/* Had the version settled when this was opened?  False also where nobody asked, since it is not cached. */
bool cache_handle_settled(const struct cache_handle *h);

/* Who asked.  Exactly one of reply and fail is called, from any thread, at the latest when the source answers. */
struct read_sink {
        void (*reply)(struct read_sink *s, const struct iovec *iov, int count);
        void (*fail)(struct read_sink *s, int error); /* error: positive errno */
        /* The answer will come from another thread, to the sink that this returns (never NULL): the last moment to
         * move off the stack and to prepare for being interrupted. */
        struct read_sink *(*wait)(struct read_sink *s);
};
#define CACHE_READ_MAX (1024u * 1024u)
void cache_read(struct cache_handle *h, uint64_t off, size_t len, struct read_sink *sink);

/* Changes through the mount.  Between begin and end the file is neither served from the mirror nor admitted; begin cuts
 * [off, off+len) (UINT64_MAX: to the end).  `before` and `after` are its attributes around the change; where `before`
 * shows a change that was not ours, or `after` is NULL, the whole file is cut.  Unless `alone` (nobody else can have
 * written in between, where the times of our own change would hide it), what is left becomes suspect. */
void cache_change_begin(struct cache_file *f, const struct stat *before, uint64_t off, uint64_t len);
void cache_change_end(struct cache_file *f, const struct stat *after, bool alone);
/* The file that these attributes belong to, referenced, or NULL if the cache does not know it.  `path` may be NULL. */
struct cache_file *cache_file_find(struct cache *c, int fd, const struct stat *st, const char *path);
struct cache_file *cache_file_unref(struct cache_file *f); /* returns NULL */
bool cache_file_has_content(struct cache_file *f); /* something of it is present */
/* Its name goes, or leads elsewhere now.  Where files are known by path this is the end of what is kept of it. */
void cache_file_lose_name(struct cache_file *f);
void cache_forget_paths(struct cache *c); /* a directory was renamed: all files known by path */
/* Somebody saw these attributes: an open file that has changed behind the mount is cut. */
void cache_observe(struct cache *c, const struct stat *st);

enum cache_counter {
#define COUNTER(name, doc) COUNT_##name,
#include "cache/counters.def"
#undef COUNTER
        CACHE_COUNTERS
};
extern const char *const cache_counter_names[CACHE_COUNTERS];

struct cache_status {
        uint64_t counters[CACHE_COUNTERS];
        uint64_t size_bytes, capacity_bytes, charged_bytes, used_bytes, present_bytes, extents, ghosts, files;
        uint64_t shadow_hit_bytes, shadow_admitted_bytes, buffer_bytes, queued_bytes;
        bool source_unreachable;
        const char *policy_active, *io_backend;
        char *warnings[16]; /* owned by the caller; NULL-terminated */
};
void cache_status(struct cache *c, struct cache_status *ret);
