/* SPDX-License-Identifier: Apache-2.0 */
#include "source/source.h"

#include "base/sys.h"
#include "base/util.h"
#include "source/settle.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#ifndef RWF_DONTCACHE
#define RWF_DONTCACHE 0x00000080
#endif
#ifndef STATX_MNT_ID_UNIQUE
#define STATX_MNT_ID_UNIQUE 0x00004000u
#endif

enum { MAX_FS = 64 }; /* file systems (or subvolumes) remembered below one tree; more push out the oldest */

struct source {
        int root;
        _Atomic int read_flags;
        struct settler *settler;
        pthread_mutex_t lock; /* the table below */
        unsigned fs_count;
        struct known_fs {
                dev_t dev;
                uint64_t mount; /* a device may show another file system later, by another mount */
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

int source_start(struct source *s) { return settler_new(&s->settler); }

struct source *source_free(struct source *s) {
        if (!s)
                return NULL;
        settler_free(s->settler);
        close(s->root);
        pthread_mutex_destroy(&s->lock);
        free(s);
        return NULL;
}

int source_root(const struct source *s) { return s->root; }

/* 0 where the kernel cannot tell. */
static uint64_t mount_of(int fd) {
        struct statx sx = { 0 };

        if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_MNT_ID_UNIQUE, &sx) < 0 ||
            !(sx.stx_mask & STATX_MNT_ID_UNIQUE))
                statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_MNT_ID, &sx);
        return sx.stx_mask & (STATX_MNT_ID | STATX_MNT_ID_UNIQUE) ? sx.stx_mnt_id : 0;
}

static bool find_fs(struct source *s, dev_t dev, uint64_t mount, struct fs_identity *ret) {
        bool found = false;

        pthread_mutex_lock(&s->lock);
        for (unsigned i = 0; i < min_u64(s->fs_count, MAX_FS) && !found; i++)
                if ((found = s->fs[i].dev == dev && s->fs[i].mount == mount))
                        *ret = s->fs[i].id;
        pthread_mutex_unlock(&s->lock);
        return found;
}

static void remember_fs(struct source *s, dev_t dev, uint64_t mount, const struct fs_identity *id) {
        pthread_mutex_lock(&s->lock);
        s->fs[s->fs_count++ % MAX_FS] = (struct known_fs){ dev, mount, *id };
        pthread_mutex_unlock(&s->lock);
}

int source_identity(struct source *s, int fd, const struct stat *st, const char *path, struct identity *ret) {
        uint64_t mount = mount_of(fd);
        struct fs_identity fs;
        struct stat own;

        if (!find_fs(s, st->st_dev, mount, &fs)) {
                if (fstat(fd, &own) < 0)
                        return -errno;
                if (own.st_dev != st->st_dev)
                        return -EXDEV; /* it says nothing about the file's file system */
                int r = fs_identity_of(fd, &fs);
                if (r < 0)
                        return r;
                remember_fs(s, st->st_dev, mount, &fs);
        }
        *ret = identity_of(&fs, st, path);
        return 0;
}

static int link_text(int fd, char text[PATH_MAX]) {
        ssize_t n = readlink(path_of_fd(fd).text, text, PATH_MAX - 1);

        if (n < 0)
                return -errno;
        text[n] = '\0';
        return 0;
}

/* What was unlinked has " (deleted)" behind its name; a name may end so by itself. */
static bool is_gone(int root, int fd, const char *path) {
        static const char mark[] = " (deleted)";
        size_t len = strlen(path);
        struct stat there, own;

        if (len < sizeof mark - 1 || strcmp(path + len - (sizeof mark - 1), mark) != 0)
                return false;
        return fstat(fd, &own) < 0 || fstatat(root, path, &there, AT_SYMLINK_NOFOLLOW) < 0 ||
               there.st_ino != own.st_ino || there.st_dev != own.st_dev;
}

int source_path(const struct source *s, int fd, const char *name, char **ret) {
        char root[PATH_MAX], path[PATH_MAX];
        int r;

        /* Both each time: the root may be renamed, or leave the mount table, at any time. */
        if ((r = link_text(s->root, root)) < 0 || (r = link_text(fd, path)) < 0)
                return r;
        size_t n = strcmp(root, "/") == 0 ? 0 : strlen(root);
        if (strncmp(path, root, n) != 0 || (path[n] != '/' && path[n] != '\0'))
                return -ENOENT;
        const char *below = path[n] == '/' ? path + n + 1 : path + n;
        if (*below && is_gone(s->root, fd, below))
                return -ENOENT;
        return asprintf(ret, "%s%s%s", below, name && *below ? "/" : "", name ? name : "") < 0 ? -ENOMEM : 0;
}

bool source_settle(struct source *s, int fd, const struct file_version *v) {
        return file_version_settled(v) && settler_write_back(s->settler, fd, v);
}

enum lease source_lease(struct source *s, int fd) {
        int flags = fcntl(fd, F_GETFL);
        struct identity id;
        struct stat st;

        if (flags < 0 || fstat(fd, &st) < 0 || source_identity(s, fd, &st, "", &id) < 0 || !id.local)
                return LEASE_UNKNOWN;
        if (fcntl(fd, F_SETLEASE, (flags & O_ACCMODE) == O_RDONLY ? F_RDLCK : F_WRLCK) == 0)
                return LEASE_HELD;
        return errno == EAGAIN ? LEASE_REFUSED : LEASE_UNKNOWN;
}
void source_unlease(int fd) { fcntl(fd, F_SETLEASE, F_UNLCK); }

void source_prepare_fd(int fd) { posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM); }

void source_prepare_read(struct source *s, struct io_op *op, int fd, void *buf, size_t len, uint64_t off) {
        *op = (struct io_op){ .fd = fd, .flags = s->read_flags, .buf = buf, .len = len, .off = off };
}

void source_note_result(struct source *s, const struct io_op *op) {
        if (op->flags == 0)
                s->read_flags = 0;
}
