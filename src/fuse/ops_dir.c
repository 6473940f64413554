/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Directories, with the source's own offsets: a listing that goes on after a pause, or from another offset, goes on
 * where the source would.
 */
#include "base/util.h"
#include "fuse/fs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>

struct dir {
        DIR *stream;
        pthread_mutex_t lock; /* the stream has one position */
        long at;
        struct node *node;
        dev_t dev;
};
static struct dir *dir_of(const struct fuse_file_info *fi) { return (struct dir *)(uintptr_t)fi->fh; }

void op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi) {
        struct fs *fs = fs_of(req);
        struct node *n = fs_node(req, ino);
        struct dir *d = calloc(1, sizeof *d);
        int at = node_dir(fs->nodes, n), r = at < 0 ? at : 0;
        _cleanup_close_ int fd = at < 0 ? -1 : openat(at, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        struct stat st = { 0 };

        if (r == 0 && (fd < 0 || fstat(fd, &st) < 0))
                r = -errno;
        if (at >= 0)
                node_dir_done(fs->nodes, n);
        if (r == 0 && (!d || !(d->stream = fdopendir(fd))))
                r = -ENOMEM;
        if (r < 0) {
                free(d);
                reply_result(req, r);
                return;
        }
        take_fd(&fd);
        pthread_mutex_init(&d->lock, NULL);
        d->node = n;
        d->dev = st.st_dev;
        fi->fh = (uintptr_t)d;
        if (fuse_reply_open(req, fi) < 0) {
                closedir(d->stream);
                free(d);
        }
}

void op_releasedir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi) {
        struct dir *d = dir_of(fi);

        (void)ino;
        closedir(d->stream);
        pthread_mutex_destroy(&d->lock);
        free(d);
        fuse_reply_err(req, 0);
}

void op_fsyncdir(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi) {
        int fd = dirfd(dir_of(fi)->stream);

        (void)ino;
        reply_result(req, (datasync ? fdatasync(fd) : fsync(fd)) < 0 ? -errno : 0);
}

struct listing {
        fuse_req_t req;
        struct dir *dir;
        char *buf;
        size_t room, used;
        bool plus;
};

static bool is_dots(const char *name) { return strcmp(name, ".") == 0 || strcmp(name, "..") == 0; }

/* One that is gone meanwhile, or has to lose its pages first, is listed by its name alone; the kernel looks it up if
 * anybody cares. */
static void add_attributes(struct listing *l, const char *name, struct fuse_entry_param *e) {
        struct fs *fs = fs_of(l->req);
        struct fuse_entry_param full;

        if (is_dots(name) || fs_entry(fs, l->dir->node, name, dirfd(l->dir->stream), 0, &full) < 0)
                return;
        if (tell_at_once(fs, node_from_id(fs->nodes, full.ino), &full.attr))
                *e = full;
        else
                node_forget(fs->nodes, node_from_id(fs->nodes, full.ino), 1);
}

/* Adds one entry; false: no room for it. */
static bool add_entry(struct listing *l, const struct dirent *de) {
        struct fs *fs = fs_of(l->req);
        struct fuse_entry_param e = { .attr.st_dev = l->dir->dev, .attr.st_ino = de->d_ino,
                                      .attr.st_mode = (mode_t)DTTOIF(de->d_type) };
        char *at = l->buf + l->used;
        size_t room = l->room - l->used, need;

        if (!l->plus) {
                show(fs, &e.attr);
                need = fuse_add_direntry(l->req, at, room, de->d_name, &e.attr, de->d_off);
        } else {
                add_attributes(l, de->d_name, &e);
                show(fs, &e.attr);
                need = fuse_add_direntry_plus(l->req, at, room, de->d_name, &e, de->d_off);
                if (need > room && e.ino)
                        node_forget(fs->nodes, node_from_id(fs->nodes, e.ino), 1);
        }
        if (need > room)
                return false;
        l->used += need;
        return true;
}

static int fill(struct listing *l, off_t off) {
        struct dir *d = l->dir;
        struct dirent *de;

        if (off != d->at) {
                seekdir(d->stream, off);
                d->at = off;
        }
        for (;;) {
                errno = 0;
                if (!(de = readdir(d->stream))) {
                        if (errno != 0 && l->used == 0)
                                return -errno;
                        return 0;
                }
                if (!add_entry(l, de)) {
                        seekdir(d->stream, d->at); /* this one comes again */
                        return 0;
                }
                d->at = de->d_off;
        }
}

static void list(fuse_req_t req, size_t size, off_t off, struct fuse_file_info *fi, bool plus) {
        _cleanup_free_ char *buf = malloc(size);
        struct listing l = { .req = req, .dir = dir_of(fi), .buf = buf, .room = size, .plus = plus };
        int r = -ENOMEM;

        if (buf) {
                pthread_mutex_lock(&l.dir->lock);
                r = fill(&l, off);
                pthread_mutex_unlock(&l.dir->lock);
        }
        if (r < 0)
                reply_result(req, r);
        else
                fuse_reply_buf(req, buf, l.used);
}

void op_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi) {
        (void)ino;
        list(req, size, off, fi, false);
}
void op_readdirplus(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi) {
        (void)ino;
        list(req, size, off, fi, true);
}
