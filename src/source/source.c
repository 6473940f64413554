/* SPDX-License-Identifier: Apache-2.0 */
#include "source/source.h"

#include "base/util.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>

#ifndef RWF_DONTCACHE
#define RWF_DONTCACHE 0x00000080
#endif

enum { MAX_FS = 64 }; /* file systems (or subvolumes) remembered below one tree; more are asked each time */

struct source {
        int root;
        _Atomic int read_flags;
        pthread_mutex_t lock; /* the table below */
        unsigned fs_count;
        struct {
                dev_t dev;
                struct fs_identity id;
        } fs[MAX_FS];
};

int source_new(const char *path, struct source **ret) {
        struct source *s = calloc(1, sizeof *s);

        if (!s)
                return -ENOMEM;
        s->root = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (s->root < 0) {
                int r = -errno;
                free(s);
                return r;
        }
        pthread_mutex_init(&s->lock, NULL);
        s->read_flags = RWF_DONTCACHE;
        *ret = s;
        return 0;
}

struct source *source_free(struct source *s) {
        if (!s)
                return NULL;
        close(s->root);
        pthread_mutex_destroy(&s->lock);
        free(s);
        return NULL;
}

int source_root(const struct source *s) { return s->root; }

static bool known_fs(struct source *s, dev_t dev, struct fs_identity *ret) {
        bool found = false;

        pthread_mutex_lock(&s->lock);
        for (unsigned i = 0; i < s->fs_count && !found; i++)
                if ((found = s->fs[i].dev == dev))
                        *ret = s->fs[i].id;
        pthread_mutex_unlock(&s->lock);
        return found;
}

static void remember_fs(struct source *s, dev_t dev, const struct fs_identity *id) {
        pthread_mutex_lock(&s->lock);
        if (s->fs_count < MAX_FS) {
                s->fs[s->fs_count].dev = dev;
                s->fs[s->fs_count++].id = *id;
        }
        pthread_mutex_unlock(&s->lock);
}

int source_identity(struct source *s, int fd, const struct stat *st, const char *path, struct identity *ret) {
        struct fs_identity fs;

        if (!known_fs(s, st->st_dev, &fs)) {
                int r = fs_identity_of(fd, &fs);
                if (r < 0)
                        return r;
                if (fs.dev != st->st_dev)
                        return -EXDEV; /* it says nothing about the file's file system */
                remember_fs(s, st->st_dev, &fs);
        }
        *ret = identity_of(&fs, st, path);
        return 0;
}

void source_prepare_fd(int fd) { posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM); }

void source_prepare_read(struct source *s, struct io_op *op, int fd, void *buf, size_t len, uint64_t off) {
        *op = (struct io_op){ .fd = fd, .flags = s->read_flags, .buf = buf, .len = len, .off = off };
}

void source_note_result(struct source *s, const struct io_op *op) {
        if (op->flags == 0)
                s->read_flags = 0;
}
