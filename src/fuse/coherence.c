/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Versions: what the kernel's pages and the cache's ranges of a file were made from, and what ends them.
 *
 * The kernel keeps a file's pages from one open to the next only while the version it read them from is still there,
 * and was settled then (a change within the same tick of the clock would not show).  A change through the mount is
 * known to the kernel anyway; one behind it is seen at the next lookup, getattr or open, and then the pages are
 * invalidated: by the open's reply, or from a thread of our own, since notifying the kernel from inside a request can
 * wait for a page that this very request would have to fill.
 */
#include "base/thread.h"
#include "base/util.h"
#include "fuse/fs.h"

#include <errno.h>

enum { INVAL_QUEUE = 1024 };

static struct node_version version_of(const struct stat *st) {
        struct node_version v = { .file = file_version_of(st), .known = true };

        v.settled = file_version_settled(&v.file);
        return v;
}

/* ---- changes through the mount ---- */

void change_begin(struct change *ch, struct fs *fs, struct node *n, const char *name, struct cache_file *file, int fd,
                  const struct stat *before, uint64_t off, uint64_t len) {
        char *path = NULL;

        *ch = (struct change){ .fs = fs, .node = name ? NULL : n, .file = file, .before = *before };
        ch->keeps_content = len == 0;
        if (!file && S_ISREG(before->st_mode) && node_path(fs->nodes, n, name, &path) == 0) {
                ch->file = cache_file_find(fs->cache, fd, before, path);
                ch->owned = ch->file;
                free(path);
        }
        if (ch->file)
                cache_change_begin(ch->file, before, off, len);
}

/* A chmod does not move the mtime: somebody else has written meanwhile, maybe long before (NFS caches attributes). */
static bool content_kept(const struct stat *before, const struct stat *after) {
        struct file_version b = file_version_of(before), a = file_version_of(after);

        return a.size == b.size && a.mtime_ns == b.mtime_ns;
}

void change_end(struct change *ch, const struct stat *after) {
        if (after && ch->keeps_content && !content_kept(&ch->before, after))
                after = NULL;
        if (ch->file)
                cache_change_end(ch->file, after);
        if (ch->owned)
                cache_file_unref(ch->file);
        /* Ours: the kernel knows the bytes.  The version is not settled yet, so the next open starts afresh. */
        if (ch->node && after && node_get_version(ch->fs->nodes, ch->node).known) {
                struct node_version v = version_of(after);
                node_swap_version(ch->fs->nodes, ch->node, v);
                node_tell_version(ch->fs->nodes, ch->node, &v.file); /* it updates the attributes by itself */
        }
}

/* ---- changes behind the mount ---- */

struct inval_queue {
        pthread_mutex_t lock;
        pthread_cond_t wake;
        pthread_t thread;
        bool stopping;
        unsigned count;
        uint64_t ids[INVAL_QUEUE];
};

static void inval_push(struct fs *fs, uint64_t id) {
        struct inval_queue *q = fs->invals;

        pthread_mutex_lock(&q->lock);
        if (q->count < INVAL_QUEUE)
                q->ids[q->count++] = id; /* beyond that the next open does it */
        pthread_cond_signal(&q->wake);
        pthread_mutex_unlock(&q->lock);
}

static void *inval_run(void *arg) {
        struct fs *fs = arg;
        struct inval_queue *q = fs->invals;

        pthread_mutex_lock(&q->lock);
        for (;;) {
                while (q->count == 0 && !q->stopping)
                        pthread_cond_wait(&q->wake, &q->lock);
                if (q->stopping)
                        break;
                uint64_t id = q->ids[--q->count];
                pthread_mutex_unlock(&q->lock);
                fuse_lowlevel_notify_inval_inode(fs->session, id, 0, 0);
                pthread_mutex_lock(&q->lock);
        }
        pthread_mutex_unlock(&q->lock);
        return NULL;
}

int inval_start(struct fs *fs) {
        struct inval_queue *q = calloc(1, sizeof *q);

        if (!q)
                return -ENOMEM;
        pthread_mutex_init(&q->lock, NULL);
        pthread_cond_init(&q->wake, NULL);
        fs->invals = q;
        int r = thread_start(&q->thread, "hs-inval", inval_run, fs);
        if (r < 0) {
                free(q);
                fs->invals = NULL;
        }
        return r;
}

/* The connection is gone by now, so no notification can be waiting in the kernel. */
void inval_stop(struct fs *fs) {
        struct inval_queue *q = fs->invals;

        if (!q)
                return;
        pthread_mutex_lock(&q->lock);
        q->stopping = true;
        pthread_cond_signal(&q->wake);
        pthread_mutex_unlock(&q->lock);
        pthread_join(q->thread, NULL);
        free(q);
        fs->invals = NULL;
}

void fs_observe(struct fs *fs, struct node *n, int fd, const struct stat *st) {
        struct node_version seen = version_of(st), old;
        char *path = NULL;

        if (!S_ISREG(st->st_mode))
                return;
        bool changed = node_tell_version(fs->nodes, n, &seen.file);
        old = node_get_version(fs->nodes, n);
        if (!old.known || file_version_equal(&old.file, &seen.file))
                return; /* never opened, or as it was */
        /* The version stays that of the pages, which are still there: an open that finds another one drops them. */
        if (!changed)
                return;
        if (node_path(fs->nodes, n, NULL, &path) == 0)
                cache_observe(fs->cache, fd, st, path);
        free(path);
        inval_push(fs, node_id(n));
}

bool fs_keep_pages(struct fs *fs, struct node *n, const struct stat *st) {
        struct node_version v = version_of(st), unsettled = v, old;

        /* Until this open is answered the old pages are there: nobody else may keep them meanwhile. */
        unsettled.settled = false;
        old = node_get_version(fs->nodes, n);
        bool keep = old.known && old.settled && file_version_equal(&old.file, &v.file);
        if (!keep)
                node_swap_version(fs->nodes, n, unsettled);

        /* An open must not read by a size that attr_timeout still vouches for.  Attributes alone: this takes no page,
         * so it may be done from inside the request. */
        if (node_tell_version(fs->nodes, n, &v.file))
                fuse_lowlevel_notify_inval_inode(fs->session, node_id(n), -1, 0);
        return keep;
}

/* A read within the size that the kernel believes in does not make it ask again, and of two short replies behind the
 * new end it heeds the first, which need not be the right one: zeros would be read there.  A lookup corrects it. */
bool fs_size_is_stale(struct fs *fs, struct node *n, const struct stat *st) {
        struct file_version v = file_version_of(st);

        return node_told_size(fs->nodes, n) != v.size && node_tell_version(fs->nodes, n, &v);
}

void fs_opened(struct fs *fs, struct node *n, const struct stat *st) {
        struct node_version v = version_of(st), now = node_get_version(fs->nodes, n);

        if (v.settled && file_version_equal(&now.file, &v.file))
                node_swap_version(fs->nodes, n, v);
}
