/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Versions: what the kernel's attributes, its pages and the cache's ranges of a file were made from.
 *
 * Three rules, each from a fault that was seen:
 *
 *   1. The kernel is never told another version while a page from before it may be in its page cache.  Told of growth, it
 *      would show the zeros behind the old end as the file's.  So the cache hears of the version first (what is read from
 *      then on is new), then the pages go, then the attributes are told: tell.c.
 *   2. An open that finds another version drops the pages, in the opener's thread, some time after our answer.  Until a
 *      request by that very open proves that this has happened, no other open may keep pages.
 *   3. Pages are kept from one open to the next only if the version had settled before they were read (source_settle):
 *      otherwise a change might not show in it.
 *
 * A file that is changing behind the mount at this moment would need this dance at every open, and the kernel would
 * believe a size that is old again before it can be used.  It is opened for direct I/O: the kernel keeps no pages of it
 * and believes no size.  One that has changed a while ago is answered ESTALE once, so that the kernel looks up its size.
 */
#include "base/clock.h"
#include "base/sys.h"
#include "base/util.h"
#include "fuse/fs.h"

#include <errno.h>
#include <fcntl.h>

/* ---- changes through the mount ---- */

static void find_file(struct change *ch, int fd) {
        _cleanup_free_ char *path = NULL;

        source_path(ch->fs->source, fd, NULL, &path);
        ch->file = cache_file_find(ch->fs->cache, fd, &ch->before, path);
        ch->owned = ch->file;
}

/* The times of our own change would hide one by somebody else in between.  To find out is only worth its cost where
 * something is kept.  Attributes do not need the file to be open, so there it is opened for the lease: for reading, which
 * other readers do not mind. */
static void take_lease(struct change *ch, int fd) {
        if (!ch->file || !cache_file_has_content(ch->file))
                return;
        ch->lease_fd = fd;
        if (ch->attributes_only || (fcntl(fd, F_GETFL) & (O_PATH | O_ACCMODE)) == O_PATH)
                ch->lease_fd = ch->own_fd = open(path_of_fd(fd).text, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
        if (ch->lease_fd >= 0)
                ch->lease = source_lease(ch->fs->source, ch->lease_fd);
        if (ch->lease == LEASE_HELD)
                fstat(fd, &ch->before);
}

int change_begin(struct change *ch, const struct change *what, int fd) {
        *ch = *what;
        ch->lease = LEASE_UNKNOWN;
        ch->lease_fd = ch->own_fd = -1;
        if (fstat(fd, &ch->before) < 0)
                return -errno;
        if (!ch->file && S_ISREG(ch->before.st_mode))
                find_file(ch, fd);
        take_lease(ch, fd);
        if (ch->file)
                cache_change_begin(ch->file, &ch->before, ch->off, ch->len);
        return 0;
}

int change_begin_name(struct change *ch, struct fs *fs, int dir, const char *name) {
        _cleanup_close_ int fd = openat(dir, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);

        return fd < 0 ? -errno : change_begin(ch, &(struct change){ .fs = fs, .attributes_only = true }, fd);
}

/* A chmod does not move the mtime: somebody else has written meanwhile, maybe long before (NFS caches attributes). */
static bool content_kept(const struct stat *before, const struct stat *after) {
        struct file_version b = file_version_of(before), a = file_version_of(after);

        return a.size == b.size && a.mtime_ns == b.mtime_ns;
}

static void drop_lease(struct change *ch) {
        if (ch->lease == LEASE_HELD)
                source_unlease(ch->lease_fd);
        closep(&ch->own_fd);
}

void change_end(struct change *ch, const struct stat *after) {
        bool kept = after && ch->attributes_only && content_kept(&ch->before, after);
        /* A restored mtime can hide a write from the one change, hardly ever: only who has leases asks for more. */
        bool alone = ch->lease == LEASE_HELD || (kept && ch->lease == LEASE_UNKNOWN);

        if (ch->attributes_only && !kept)
                after = NULL;
        if (ch->file)
                cache_change_end(ch->file, after, alone);
        drop_lease(ch);
        if (ch->owned)
                cache_file_unref(ch->file);
        if (!ch->node || !after)
                return;
        struct file_version b = file_version_of(&ch->before), a = file_version_of(after);
        bool knows = !ch->misplaced && (alone || kept || ch->truncates || a.size == max_u64(b.size, ch->grows_to));
        node_changed(ch->fs->nodes, ch->node, &b, &a, knows, kept && alone);
}

/* ---- opening ---- */

enum { REFUSALS = 256 };
struct refusals {
        pthread_mutex_t lock;
        int64_t until[REFUSALS]; /* by a hash of thread and file */
};

int refusals_new(struct fs *fs) {
        if (!(fs->refusals = calloc(1, sizeof *fs->refusals)))
                return -ENOMEM;
        pthread_mutex_init(&fs->refusals->lock, NULL);
        return 0;
}

void refusals_free(struct fs *fs) {
        free(fs->refusals);
        fs->refusals = NULL;
}

/* The kernel looks up anew and opens again, once; a second ESTALE would reach the program.  So each thread is refused
 * each file only once in a while. */
static bool may_refuse(struct fs *fs, pid_t thread, struct node *n) {
        struct refusals *r = fs->refusals;
        uint64_t id = node_id(n);
        size_t seat = (size_t)((id >> 4) * 31 + (uint64_t)thread) % REFUSALS;
        int64_t now = monotonic_ns();

        pthread_mutex_lock(&r->lock);
        bool free = r->until[seat] <= now; /* taken by another is as good as taken by us */
        if (free)
                r->until[seat] = now + 1000000000;
        pthread_mutex_unlock(&r->lock);
        return free;
}

enum opening opening_of(struct fs *fs, struct node *n, const struct file_version *v, pid_t thread) {
        if (node_was_told(fs->nodes, n, v))
                return OPEN_PLAIN;
        return file_version_settled(v) && may_refuse(fs, thread, n) ? OPEN_REFUSED : OPEN_CHANGING;
}
