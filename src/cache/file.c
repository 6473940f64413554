/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of files: identity at each open, and changes through the mount.
 *
 * A file is in the table while somebody holds it or the policy knows a range of it.  Its content is forgotten as a
 * whole when its version changes; the new version gets another mirror, so that readers of the old one, the writer
 * and the index never mix the two.  Where only the ctime has moved (chmod, rename, a restored mtime) the content is in
 * doubt, not gone.
 *
 * A file that is open is found by device and inode, a file that is not by its key.  So two names of one file are one
 * file while it is open, and one whose name was given to another keeps its handles to itself.
 */
#include "base/util.h"
#include "cache/internal.h"

#include <errno.h>
#include <string.h>

static int cmp_key(const struct cache_file *a, const struct cache_file *b) {
        return file_key_cmp(&a->identity.key, &b->identity.key);
}
static int cmp_id(const struct cache_file *a, const struct cache_file *b) { return a->id < b->id ? -1 : a->id > b->id; }
static int cmp_inode(const struct cache_file *a, const struct cache_file *b) {
        if (a->dev != b->dev)
                return a->dev < b->dev ? -1 : 1;
        return a->ino < b->ino ? -1 : a->ino > b->ino;
}

RB_GENERATE(key_tree, cache_file, by_key, cmp_key)
RB_GENERATE(id_tree, cache_file, by_id, cmp_id)
RB_GENERATE_INTERNAL(inode_tree, cache_file, by_inode, cmp_inode, static __attribute__((unused)))

struct cache_file *file_ref(struct cache_file *f) {
        f->refs++;
        return f;
}

static void file_free(struct cache_file *f) {
        struct cache *c = f->cache;

        RB_REMOVE(key_tree, &c->files, f);
        RB_REMOVE(id_tree, &c->ids, f);
        c->file_count--;
        if (f->listed)
                TAILQ_REMOVE(&c->dirty_files, f, dirty_link);
        if (f->mirror_made)
                removal_push_unlink(c, f->id);
        mirror_unref(f->mirror);
        free(f->dirty);
        free(f);
}

void file_unref_locked(struct cache_file *f) {
        if (--f->refs == 0 && range_map_find(&f->map, 0) == NULL && !f->listed)
                file_free(f);
}

struct cache_file *cache_file_unref(struct cache_file *f) {
        if (f) {
                struct cache *c = f->cache;
                pthread_mutex_lock(&c->lock);
                file_unref_locked(f);
                pthread_mutex_unlock(&c->lock);
        }
        return NULL;
}

/* Ghosts age away inside the policy, which knows no files: look for empty ones now and then. */
void files_sweep(struct cache *c) {
        struct cache_file *f, *next;

        for (f = RB_MIN(key_tree, &c->files); f; f = next) {
                next = RB_NEXT(key_tree, &c->files, f);
                if (f->refs == 0 && range_map_find(&f->map, 0) == NULL && !f->listed)
                        file_free(f);
        }
}

struct cache_file *file_add(struct cache *c, const struct identity *id, uint64_t mirror_id) {
        struct cache_file *f = calloc(1, sizeof *f);

        if (!f)
                return NULL;
        f->cache = c;
        f->identity = *id;
        f->id = mirror_id ? mirror_id : random_u64();
        f->nonce = random_u64();
        f->mirror_made = f->from_index = f->settled = mirror_id != 0; /* nothing else gets into the index */
        range_map_init(&f->map, f);
        RB_INIT(&f->flights);
        if (RB_INSERT(key_tree, &c->files, f)) {
                free(f);
                return NULL;
        }
        RB_INSERT(id_tree, &c->ids, f);
        c->file_count++;
        return f;
}

struct cache_file *file_by_id(struct cache *c, uint64_t id) {
        struct cache_file key = { .id = id };
        return RB_FIND(id_tree, &c->ids, &key);
}

static struct cache_file *file_by_key(struct cache *c, const struct file_key *k) {
        struct cache_file key = { .identity.key = *k };
        return RB_FIND(key_tree, &c->files, &key);
}

static struct cache_file *file_by_inode(struct cache *c, const struct stat *st) {
        struct cache_file key = { .dev = st->st_dev, .ino = st->st_ino };
        return RB_FIND(inode_tree, &c->open_files, &key);
}

void file_mark_dirty(struct cache_file *f, uint64_t off, uint64_t len) {
        uint64_t first = off / INDEX_SEGMENT, last = (end_of(off, len) - 1) / INDEX_SEGMENT;
        uint64_t limit = f->identity.version.size / INDEX_SEGMENT;
        size_t words = (size_t)(limit / 64) + 1;

        if (words > f->dirty_words) {
                uint64_t *grown = realloc(f->dirty, words * sizeof *grown);
                if (!grown)
                        return; /* the index stays behind: a restart forgets or disbelieves these ranges */
                memset(grown + f->dirty_words, 0, (words - f->dirty_words) * sizeof *grown);
                f->dirty = grown;
                f->dirty_words = words;
        }
        for (uint64_t s = first; s <= min_u64(last, limit); s++)
                f->dirty[s / 64] |= 1ull << (s % 64);
        if (!f->listed) {
                TAILQ_INSERT_TAIL(&f->cache->dirty_files, f, dirty_link);
                f->listed = true;
        }
}

/* The mirror goes as a whole: nothing has to be punched. */
static void sink_unlinked(void *ctx, struct range_map *map, uint64_t off, uint64_t len) {
        struct cache_file *f = map->owner;

        (void)ctx, (void)off, (void)len;
        f->removals++;
}

void file_forget_content(struct cache_file *f) {
        struct cache *c = f->cache;

        flights_detach(f);
        f->generation++;
        f->error_until_ns = 0;
        f->nonce = random_u64();
        if (!f->mirror_made && range_map_find(&f->map, 0) == NULL)
                return;
        policy_cut(c->policy, &f->map, 0, UINT64_MAX, sink_unlinked, NULL);
        removal_push_unlink(c, f->id);
        RB_REMOVE(id_tree, &c->ids, f);
        f->id = random_u64();
        RB_INSERT(id_tree, &c->ids, f);
        f->mirror = mirror_unref(f->mirror);
        f->mirror_made = f->from_index = false;
        f->row_dirty = false;
        if (f->dirty)
                memset(f->dirty, 0, f->dirty_words * sizeof *f->dirty);
}

static void set_version(struct cache_file *f, const struct file_version *v) {
        if (file_version_equal(&f->identity.version, v))
                return;
        f->identity.version = *v;
        f->settled = false;
        f->settle_after = 0;
        f->row_dirty = true;
        file_mark_dirty(f, 0, 1);
}

/* All of it may be other than it was. */
static void doubt(struct cache_file *f) {
        if (range_map_present_bytes(&f->map) > 0 && f->map.any_trusted)
                file_mark_dirty(f, 0, f->identity.version.size);
        f->generation++;
        flights_detach(f);
        policy_doubt(f->cache->policy, &f->map);
}

/* The one place where a version is compared.  While we change the file ourselves its attributes are in motion, and
 * cache_change_end looks again. */
static void meet_version(struct cache_file *f, const struct file_version *v) {
        const struct file_version *old = &f->identity.version;

        if (f->changing > 0 || file_version_equal(old, v))
                return;
        if (old->size == v->size && old->mtime_ns == v->mtime_ns)
                doubt(f);
        else
                file_forget_content(f);
        set_version(f, v);
}

static bool is_cached(const struct cache *c, const struct stat *st, const char *path, bool writer) {
        if (!c->store || c->mode == MODE_OFF || !S_ISREG(st->st_mode) || st->st_size > FILE_SIZE_MAX)
                return false;
        /* A writer's file is always known: what it grows into may be cached, and its writes must cut that. */
        return path && (writer || ((uint64_t)st->st_size >= c->options->min_size && st->st_size > 0 &&
                                   options_path_wanted(c->options, path)));
}

/* Its key is another file's now, or nobody's.  Who has it open goes on by the source alone. */
static void file_lose_key(struct cache_file *f) {
        struct cache *c = f->cache;

        file_forget_content(f);
        RB_REMOVE(key_tree, &c->files, f);
        do
                f->identity.key = (struct file_key){ .fs = random_u64(), .path = random_u64() };
        while (RB_INSERT(key_tree, &c->files, f));
        f->identity.lasting = false;
        f->nameless = true;
}

/* The file by its key.  It may be open as another inode: a path that leads elsewhere now, or a clone of the file system
 * with the same numbers, which may not share an entry with it (NULL). */
static struct cache_file *meet_by_key(struct cache *c, const struct identity *id, const struct stat *st) {
        struct cache_file *f = file_by_key(c, &id->key);

        if (f && f->opens > 0) {
                if (id->key.path == 0)
                        return NULL;
                file_lose_key(f);
                f = NULL;
        }
        if (!f && !(f = file_add(c, id, 0)))
                return NULL;
        if (f->dev != st->st_dev || f->ino != st->st_ino) {
                f->generation++; /* reads that the last holder left under way are another inode's */
                flights_detach(f);
        }
        f->dev = st->st_dev;
        f->ino = st->st_ino;
        return f;
}

/* NULL: no memory, or it cannot be told from another. */
static struct cache_file *meet_file(struct cache *c, const struct identity *id, const struct stat *st) {
        struct cache_file *f = file_by_inode(c, st);

        if (!f && !(f = meet_by_key(c, id, st)))
                return NULL;
        meet_version(f, &id->version);
        if (f->opens++ == 0)
                RB_INSERT(inode_tree, &c->open_files, f);
        return file_ref(f);
}

static void file_closed(struct cache_file *f) {
        if (--f->opens > 0)
                return;
        RB_REMOVE(inode_tree, &f->cache->open_files, f);
        f->mirror = mirror_unref(f->mirror);
}

/* After: handle->file is set where the file takes part. */
static void attach(struct cache_handle *h, const struct identity *id, const struct stat *st) {
        struct cache *c = h->cache;

        pthread_mutex_lock(&c->lock);
        struct cache_file *f = h->file = meet_file(c, id, st);
        if (f && h->writer) {
                f->writers++;
                f->generation++;
                flights_detach(f);
        }
        pthread_mutex_unlock(&c->lock);
        if (!f)
                return;
        file_open_mirror(f);
        file_settle(h);
        h->settled = f->settled;
}

int cache_open(struct cache *c, int fd, const struct stat *st, const char *path, bool writer, struct cache_handle **ret) {
        struct cache_handle *h = calloc(1, sizeof *h);
        struct identity id;

        if (!h) {
                close(fd);
                return -ENOMEM;
        }
        *h = (struct cache_handle){ .cache = c, .fd = fd, .writer = writer, .refs = 1 };
        if (is_cached(c, st, path, writer) && source_identity(c->source, fd, st, path, &id) == 0)
                attach(h, &id, st);
        if (!h->file)
                count(c, COUNT_bypass_opens, 1);
        *ret = h;
        return 0;
}

void handle_unref(struct cache_handle *h) {
        if (--h->refs > 0)
                return;
        close(h->fd);
        cache_file_unref(h->file);
        free(h);
}

void cache_close(struct cache_handle *h) {
        struct cache *c = h->cache;
        struct cache_file *f = h->file;

        if (f) {
                pthread_mutex_lock(&c->lock);
                stream_end(h);
                if (h->writer) {
                        f->writers--;
                        f->generation++;
                }
                file_closed(f);
                pthread_mutex_unlock(&c->lock);
        }
        handle_unref(h);
}

int cache_fd(const struct cache_handle *h) { return h->fd; }
struct cache_file *cache_handle_file(const struct cache_handle *h) { return h->file; }
bool cache_handle_settled(const struct cache_handle *h) { return h->settled; }

void file_settle(struct cache_handle *h) {
        struct cache_file *f = h->file;
        struct cache *c = h->cache;
        int64_t now = monotonic_ns();

        pthread_mutex_lock(&c->lock);
        struct file_version v = f->identity.version;
        bool wanted = !f->settled && !f->nameless && f->writers == 0 && f->changing == 0 && now >= f->settle_after &&
                      file_version_settled(&v);
        pthread_mutex_unlock(&c->lock);
        if (!wanted)
                return;
        bool settled = source_settle(c->source, h->fd, &v);
        pthread_mutex_lock(&c->lock);
        if (!settled)
                f->settle_after = now + 500000000;
        else if (f->changing == 0 && file_version_equal(&f->identity.version, &v))
                f->settled = true;
        pthread_mutex_unlock(&c->lock);
}

void file_open_mirror(struct cache_file *f) {
        struct cache *c = f->cache;
        struct mirror *m = NULL;

        pthread_mutex_lock(&c->lock);
        bool wanted = !f->mirror && f->opens > 0 && range_map_present_bytes(&f->map) > 0;
        uint64_t id = f->id, size = f->identity.version.size;
        pthread_mutex_unlock(&c->lock);
        if (!wanted)
                return;
        int r = mirror_open(c->store, id, size, false, &m);
        pthread_mutex_lock(&c->lock);
        if (r == 0 && f->id == id && !f->mirror && f->opens > 0 && f->identity.version.size == size)
                f->mirror = TAKE_PTR(m);
        else if ((r == -ENOENT || r == -ELOOP || r == -EINVAL || r == -EISDIR) && f->id == id && !f->mirror)
                file_forget_content(f); /* it was deleted, or is no mirror; other errors may pass */
        if (r < 0)
                count(c, COUNT_cache_errors, 1);
        pthread_mutex_unlock(&c->lock);
        mirror_unref(m);
}

struct cache_file *cache_file_find(struct cache *c, int fd, const struct stat *st, const char *path) {
        struct identity id;

        if (!c->store || !S_ISREG(st->st_mode))
                return NULL;
        bool known = source_identity(c->source, fd, st, path ? path : "", &id) == 0 && (path || id.key.path == 0);
        pthread_mutex_lock(&c->lock);
        struct cache_file *f = file_by_inode(c, st);
        if (!f && known && (f = file_by_key(c, &id.key)) && f->opens > 0)
                f = NULL; /* open as another inode */
        if (f)
                file_ref(f);
        pthread_mutex_unlock(&c->lock);
        return f;
}

bool cache_file_has_content(struct cache_file *f) {
        pthread_mutex_lock(&f->cache->lock);
        bool has = range_map_present_bytes(&f->map) > 0;
        pthread_mutex_unlock(&f->cache->lock);
        return has;
}

static bool is_by_path(const struct cache_file *f) { return f->identity.key.path != 0; }

static void lose_name(struct cache_file *f) {
        if (!is_by_path(f) || f->nameless)
                return;
        if (f->opens > 0)
                file_lose_key(f);
        else
                file_forget_content(f);
}

void cache_file_lose_name(struct cache_file *f) {
        pthread_mutex_lock(&f->cache->lock);
        lose_name(f);
        pthread_mutex_unlock(&f->cache->lock);
}

void cache_forget_paths(struct cache *c) {
        struct cache_file *f, *next;

        pthread_mutex_lock(&c->lock);
        for (f = RB_MIN(key_tree, &c->files); f; f = next) {
                next = RB_NEXT(key_tree, &c->files, f); /* one that loses its key may come again, which changes nothing */
                lose_name(f);
        }
        pthread_mutex_unlock(&c->lock);
}

void cache_observe(struct cache *c, const struct stat *st) {
        struct file_version v = file_version_of(st);

        pthread_mutex_lock(&c->lock);
        struct cache_file *f = file_by_inode(c, st);
        if (f)
                meet_version(f, &v);
        pthread_mutex_unlock(&c->lock);
}

/* The block that a change ends or begins in is cut whole: its checksum is over all of it. */
static void cut(struct cache_file *f, uint64_t off, uint64_t len) {
        uint64_t start = block_down(off), end = block_up(end_of(off, len));

        if (len == 0)
                return;
        /* Growth moves the end of what was the tail block. */
        if (off >= f->identity.version.size)
                start = min_u64(start, block_down(f->identity.version.size));
        policy_cut(f->cache->policy, &f->map, start, end - start, sink_cut, NULL);
        f->nonce = random_u64();
}

void cache_change_begin(struct cache_file *f, const struct stat *before, uint64_t off, uint64_t len) {
        struct cache *c = f->cache;
        struct file_version v = file_version_of(before);

        pthread_mutex_lock(&c->lock);
        meet_version(f, &v);
        f->crowded |= f->changing++ > 0;
        f->generation++;
        flights_detach(f);
        cut(f, off, len);
        pthread_mutex_unlock(&c->lock);
}

void cache_change_end(struct cache_file *f, const struct stat *after, bool alone) {
        struct cache *c = f->cache;

        pthread_mutex_lock(&c->lock);
        f->generation++;
        f->changing--;
        if (!after)
                file_forget_content(f);
        else if (!alone || f->crowded)
                doubt(f);
        if (after && f->changing == 0) {
                struct file_version v = file_version_of(after);
                if (v.size != f->identity.version.size)
                        f->mirror = mirror_unref(f->mirror); /* the next one to need it opens it in its new size */
                set_version(f, &v);
        }
        f->crowded &= f->changing > 0;
        pthread_mutex_unlock(&c->lock);
}
