/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tree of slowfs: one node per inode of the backing, held by an O_PATH descriptor, found by (device, inode).
 *
 * Inode numbers, times and sizes are the backing's.  An open keeps the kernel's pages if the file is as it was at the
 * last open, as a disk file system would.  Everything that would write answers EROFS (the mount itself is not
 * read-only, so that the counters can be reset through an extended attribute), but for what `writable` allows.
 *
 * The lock holds the table, the nodes' counts and names.  Left out: ACLs, file handles, xattrs of symbolic links.
 */
#include "slowfs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#define BUCKETS 4096

struct node {
        struct node *next; /* in its bucket */
        int fd;            /* O_PATH */
        dev_t dev;
        ino_t ino;
        uint64_t nlookup;
        char *name;  /* the last one that it was looked up by */
        bool opened; /* then: as it was at the last open */
        off_t size;
        struct timespec mtime, ctime;
};

struct handle {
        int fd;
        uint64_t file;
        off_t size; /* at open; a longer file is noticed at the first read beyond */
        bool may_hold, may_fail;
};

struct dir {
        pthread_mutex_t lock; /* the position is shared */
        DIR *stream;
        struct dirent *entry; /* read, not yet given out */
        off_t pos;
};

static pthread_mutex_t nodes_lock = PTHREAD_MUTEX_INITIALIZER;
static struct node *buckets[BUCKETS];
static struct node root = { .fd = -1 };

int slowfs_tree_open(const char *backing) {
        root.fd = open(backing, O_PATH | O_DIRECTORY | O_CLOEXEC);
        return root.fd < 0 ? -errno : 0;
}

static struct node *node_of(fuse_ino_t ino) { return ino == FUSE_ROOT_ID ? &root : (struct node *)(uintptr_t)ino; }

static struct node **bucket_of(dev_t dev, ino_t ino) {
        return &buckets[(((uint64_t)ino ^ (uint64_t)dev << 40) * UINT64_C(0x9e3779b97f4a7c15)) >> 52];
}

/* A path that leads to the node whatever it is called now. */
static void proc_path(const struct node *n, char *buf, size_t size) { snprintf(buf, size, "/proc/self/fd/%d", n->fd); }

/* ---- nodes ---- */

static void rename_node(struct node *n, const char *name) {
        char *copy;

        if (n->name && strcmp(n->name, name) == 0)
                return;
        copy = strdup(name);
        if (!copy)
                return;
        free(n->name);
        n->name = copy;
}

/* Needs the lock.  Takes over fd. */
static struct node *node_get(int fd, const struct stat *st) {
        struct node **bucket = bucket_of(st->st_dev, st->st_ino), *n;

        for (n = *bucket; n; n = n->next)
                if (n->dev == st->st_dev && n->ino == st->st_ino) {
                        close(fd);
                        return n;
                }
        n = calloc(1, sizeof(*n));
        if (!n) {
                close(fd);
                return NULL;
        }
        n->fd = fd;
        n->dev = st->st_dev;
        n->ino = st->st_ino;
        n->next = *bucket;
        *bucket = n;
        return n;
}

static void forget(fuse_ino_t ino, uint64_t count) {
        struct node *n = node_of(ino), **p;

        if (n == &root)
                return;
        pthread_mutex_lock(&nodes_lock);
        n->nlookup -= count;
        if (n->nlookup == 0) {
                for (p = bucket_of(n->dev, n->ino); *p != n; p = &(*p)->next)
                        ;
                *p = n->next;
                close(n->fd);
                free(n->name);
                free(n);
        }
        pthread_mutex_unlock(&nodes_lock);
}

static int lookup(struct node *parent, const char *name, struct fuse_entry_param *ret) {
        struct fuse_entry_param e = {
                .attr_timeout = slowfs_options.timeout,
                .entry_timeout = slowfs_options.timeout,
        };
        struct node *n;
        int fd;

        fd = openat(parent->fd, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0)
                return -errno;
        if (fstat(fd, &e.attr) < 0) {
                const int r = -errno;

                close(fd);
                return r;
        }
        pthread_mutex_lock(&nodes_lock);
        n = node_get(fd, &e.attr);
        if (n) {
                n->nlookup++;
                rename_node(n, name);
        }
        pthread_mutex_unlock(&nodes_lock);
        if (!n)
                return -ENOMEM;
        e.ino = (fuse_ino_t)(uintptr_t)n;
        *ret = e;
        return 0;
}

static void do_lookup(const struct slowfs_later *l) {
        struct fuse_entry_param e;
        const int r = lookup(node_of(l->ino), l->data, &e);

        if (r < 0)
                fuse_reply_err(l->req, -r);
        else
                fuse_reply_entry(l->req, &e);
}

static bool matches(const char *glob, const char *name) { return !glob || (name && fnmatch(glob, name, 0) == 0); }

/* Now, or when a hold ends.  The data is the request's: it is copied. */
static void do_or_park(unsigned kind, bool may_hold, struct slowfs_later *l, const char *data, size_t size) {
        l->data = malloc(size + 1);
        if (!l->data) {
                fuse_reply_err(l->req, ENOMEM);
                return;
        }
        memcpy(l->data, data, size);
        l->data[size] = '\0';
        l->size = size;
        if (slowfs_park(kind, may_hold, l))
                return;
        l->go(l);
        free(l->data);
}

static void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name) {
        struct slowfs_later l = { .go = do_lookup, .req = req, .ino = parent };

        do_or_park(HOLD_LOOKUP, matches(slowfs_options.hold_glob, name), &l, name, strlen(name));
}

static void op_forget(fuse_req_t req, fuse_ino_t ino, uint64_t nlookup) {
        forget(ino, nlookup);
        fuse_reply_none(req);
}

static void op_forget_multi(fuse_req_t req, size_t count, struct fuse_forget_data *forgets) {
        for (size_t i = 0; i < count; i++)
                forget(forgets[i].ino, forgets[i].nlookup);
        fuse_reply_none(req);
}

static void op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi) {
        struct stat st;

        (void)fi;
        if (fstat(node_of(ino)->fd, &st) < 0)
                fuse_reply_err(req, errno);
        else
                fuse_reply_attr(req, &st, slowfs_options.timeout);
}

static void op_readlink(fuse_req_t req, fuse_ino_t ino) {
        char target[4097];
        const ssize_t n = readlinkat(node_of(ino)->fd, "", target, sizeof(target) - 1);

        if (n < 0) {
                fuse_reply_err(req, errno);
                return;
        }
        target[n] = '\0';
        fuse_reply_readlink(req, target);
}

static void op_statfs(fuse_req_t req, fuse_ino_t ino) {
        struct statvfs st;

        if (fstatvfs(node_of(ino)->fd, &st) < 0)
                fuse_reply_err(req, errno);
        else
                fuse_reply_statfs(req, &st);
}

/* ---- files ---- */

static bool same_time(const struct timespec *a, const struct timespec *b) {
        return a->tv_sec == b->tv_sec && a->tv_nsec == b->tv_nsec;
}

/* Is the file as it was at the last open?  Remembers it as it is. */
static bool unchanged(struct node *n, const struct stat *st) {
        const bool same = n->opened && n->size == st->st_size && same_time(&n->mtime, &st->st_mtim) &&
                          same_time(&n->ctime, &st->st_ctim);

        n->opened = true;
        n->size = st->st_size;
        n->mtime = st->st_mtim;
        n->ctime = st->st_ctim;
        return same;
}

static int open_backing(const struct node *n, bool writes) {
        const int flags = (writes ? O_RDWR : O_RDONLY) | O_CLOEXEC;
        char path[64];
        int fd;

        proc_path(n, path, sizeof(path));
        fd = open(path, flags | O_NOATIME);
        if (fd < 0 && errno == EPERM)
                fd = open(path, flags);
        return fd < 0 ? -errno : fd;
}

static bool writes(const struct fuse_file_info *fi) { return (fi->flags & O_ACCMODE) != O_RDONLY; }

static int handle_new(struct node *n, struct fuse_file_info *fi, struct handle **ret) {
        struct handle *h = calloc(1, sizeof(*h));
        struct stat st;
        int r;

        if (!h)
                return -ENOMEM;
        h->fd = r = open_backing(n, writes(fi));
        if (r >= 0 && fstat(h->fd, &st) < 0) {
                r = -errno;
                close(h->fd);
        }
        if (r < 0) {
                free(h);
                return r;
        }
        h->file = st.st_ino;
        h->size = st.st_size;
        pthread_mutex_lock(&nodes_lock);
        fi->keep_cache = unchanged(n, &st);
        h->may_hold = matches(slowfs_options.hold_glob, n->name);
        h->may_fail = matches(slowfs_options.fail_glob, n->name);
        pthread_mutex_unlock(&nodes_lock);
        *ret = h;
        return 0;
}

static void do_open(const struct slowfs_later *l) {
        struct fuse_file_info fi = l->fi;
        struct handle *h;
        int r;

        r = fi.flags & O_TRUNC || (writes(&fi) && !slowfs_options.writable) ? -EROFS : handle_new(node_of(l->ino), &fi, &h);
        if (r < 0) {
                fuse_reply_err(l->req, -r);
                return;
        }
        slowfs_count_open();
        fi.fh = (uintptr_t)h;
        fi.direct_io = slowfs_options.direct_io != 0;
        if (fuse_reply_open(l->req, &fi) < 0) {
                close(h->fd);
                free(h);
        }
}

static void op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi) {
        struct slowfs_later l = { .go = do_open, .req = req, .ino = ino, .fi = *fi };
        bool may_hold;

        pthread_mutex_lock(&nodes_lock);
        may_hold = matches(slowfs_options.hold_glob, node_of(ino)->name);
        pthread_mutex_unlock(&nodes_lock);
        do_or_park(HOLD_OPEN, may_hold, &l, "", 0);
}

static const struct handle *handle_of(const struct fuse_file_info *fi) {
        return (const struct handle *)(uintptr_t)fi->fh;
}

static void do_write(const struct slowfs_later *l) {
        const ssize_t n = pwrite(handle_of(&l->fi)->fd, l->data, l->size, l->off);

        if (n < 0)
                fuse_reply_err(l->req, errno);
        else
                fuse_reply_write(l->req, (size_t)n);
}

static void op_write(fuse_req_t req, fuse_ino_t ino, const char *buf, size_t size, off_t off, struct fuse_file_info *fi) {
        struct slowfs_later l = { .go = do_write, .req = req, .ino = ino, .fi = *fi, .off = off };

        do_or_park(HOLD_WRITE, handle_of(fi)->may_hold, &l, buf, size);
}

static void do_fsync(const struct slowfs_later *l) {
        fuse_reply_err(l->req, fsync(handle_of(&l->fi)->fd) < 0 ? errno : 0);
}

static void op_fsync(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi) {
        struct slowfs_later l = { .go = do_fsync, .req = req, .ino = ino, .fi = *fi };

        (void)datasync;
        do_or_park(HOLD_FSYNC, handle_of(fi)->may_hold, &l, "", 0);
}

static void op_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi) {
        struct handle *h = (struct handle *)(uintptr_t)fi->fh;

        (void)ino;
        close(h->fd);
        free(h);
        fuse_reply_err(req, 0);
}

/* How much of the request the file has: the disks are not asked for what lies behind the end. */
static size_t clip(const struct handle *h, off_t off, size_t size) {
        off_t end = h->size;
        struct stat st;

        if (off + (off_t)size > end && fstat(h->fd, &st) == 0)
                end = st.st_size;
        if (off >= end)
                return 0;
        return (off_t)size < end - off ? size : (size_t)(end - off);
}

static void op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi) {
        const struct handle *h = (const struct handle *)(uintptr_t)fi->fh;
        const struct slowfs_read r = {
                .req = req,
                .file = h->file,
                .off = off,
                .len = clip(h, off, size),
                .fd = h->fd,
                .may_hold = h->may_hold,
                .may_fail = h->may_fail,
        };

        (void)ino;
        if (r.len == 0)
                fuse_reply_buf(req, NULL, 0);
        else
                slowfs_read(&r);
}

static void op_lseek(fuse_req_t req, fuse_ino_t ino, off_t off, int whence, struct fuse_file_info *fi) {
        const struct handle *h = (const struct handle *)(uintptr_t)fi->fh;
        const off_t r = lseek(h->fd, off, whence);

        (void)ino;
        if (r < 0)
                fuse_reply_err(req, errno);
        else
                fuse_reply_lseek(req, r);
}

/* ---- directories ---- */

static void op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi) {
        struct dir *d = calloc(1, sizeof(*d));
        const int fd = openat(node_of(ino)->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        const int err = errno;

        if (d && fd >= 0)
                d->stream = fdopendir(fd);
        if (!d || !d->stream) {
                if (fd >= 0)
                        close(fd);
                free(d);
                fuse_reply_err(req, fd < 0 ? err : ENOMEM);
                return;
        }
        pthread_mutex_init(&d->lock, NULL);
        fi->fh = (uintptr_t)d;
        fuse_reply_open(req, fi);
}

static void op_releasedir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi) {
        struct dir *d = (struct dir *)(uintptr_t)fi->fh;

        (void)ino;
        closedir(d->stream);
        free(d);
        fuse_reply_err(req, 0);
}

static bool is_dot(const char *name) { return strcmp(name, ".") == 0 || strcmp(name, "..") == 0; }

/* One entry into the buffer: its size, or more than `room` if it does not fit, or -errno. */
static ssize_t put_entry(fuse_req_t req, const struct node *dir, const struct dirent *de, bool plus, char *buf,
                         size_t room) {
        struct fuse_entry_param e = { .attr = { .st_ino = de->d_ino, .st_mode = (mode_t)de->d_type << 12 } };
        size_t need;
        int r;

        if (!plus)
                return (ssize_t)fuse_add_direntry(req, buf, room, de->d_name, &e.attr, de->d_off);
        if (!is_dot(de->d_name)) {
                r = lookup((struct node *)(uintptr_t)dir, de->d_name, &e);
                if (r == -ENOENT) /* gone meanwhile: name it, the kernel will ask */
                        e.ino = 0;
                else if (r < 0)
                        return r;
        }
        need = fuse_add_direntry_plus(req, buf, room, de->d_name, &e, de->d_off);
        if (need > room && e.ino)
                forget(e.ino, 1);
        return (ssize_t)need;
}

/* Fill the buffer from the stream's position; 0 or -errno if not even one entry could be given. */
static int fill(fuse_req_t req, const struct node *n, struct dir *d, bool plus, char *buf, size_t size, size_t *ret) {
        size_t used = 0;
        ssize_t r = 0;

        for (;;) {
                if (!d->entry) {
                        errno = 0;
                        d->entry = readdir(d->stream);
                }
                if (!d->entry) {
                        r = -errno;
                        break;
                }
                r = put_entry(req, n, d->entry, plus, buf + used, size - used);
                if (r < 0 || (size_t)r > size - used)
                        break;
                used += (size_t)r;
                d->pos = d->entry->d_off;
                d->entry = NULL;
        }
        *ret = used;
        return r < 0 && used == 0 ? (int)r : 0;
}

static void read_directory(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct dir *d, bool plus) {
        char *buf = malloc(size);
        size_t used = 0;
        int r = -ENOMEM;

        if (buf) {
                pthread_mutex_lock(&d->lock);
                if (off != d->pos) {
                        seekdir(d->stream, off);
                        d->entry = NULL;
                        d->pos = off;
                }
                r = fill(req, node_of(ino), d, plus, buf, size, &used);
                pthread_mutex_unlock(&d->lock);
        }
        if (r < 0)
                fuse_reply_err(req, -r);
        else
                fuse_reply_buf(req, buf, used);
        free(buf);
}

static void op_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi) {
        read_directory(req, ino, size, off, (struct dir *)(uintptr_t)fi->fh, false);
}

static void op_readdirplus(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi) {
        read_directory(req, ino, size, off, (struct dir *)(uintptr_t)fi->fh, true);
}

/* ---- extended attributes ---- */

/* The protocol's two questions: how large is it, and what is it. */
static void reply_xattr(fuse_req_t req, const char *value, ssize_t len, size_t size) {
        if (size == 0)
                fuse_reply_xattr(req, (size_t)len);
        else if ((size_t)len > size)
                fuse_reply_err(req, ERANGE);
        else
                fuse_reply_buf(req, value, (size_t)len);
}

static bool is_symlink(const struct node *n) {
        struct stat st;

        return fstat(n->fd, &st) == 0 && S_ISLNK(st.st_mode);
}

/* The value of an attribute, or without a name their list. */
static void ask_backing(fuse_req_t req, const struct node *n, const char *name, size_t size) {
        char path[64], *buf = size ? malloc(size) : NULL;
        ssize_t r;

        proc_path(n, path, sizeof(path));
        if (size && !buf)
                fuse_reply_err(req, ENOMEM);
        else if ((r = name ? getxattr(path, name, buf, size) : listxattr(path, buf, size)) < 0)
                fuse_reply_err(req, errno);
        else
                reply_xattr(req, buf, r, size);
        free(buf);
}

static void op_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size) {
        const struct node *n = node_of(ino);
        char json[512];

        if (n == &root && strcmp(name, SLOWFS_XATTR_STATS) == 0)
                reply_xattr(req, json, slowfs_stats_json(json, sizeof(json)), size);
        else if (is_symlink(n))
                fuse_reply_err(req, ENODATA);
        else
                ask_backing(req, n, name, size);
}

static void op_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size) {
        if (is_symlink(node_of(ino)))
                reply_xattr(req, NULL, 0, size);
        else
                ask_backing(req, node_of(ino), NULL, size);
}

static void op_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name, const char *value, size_t size, int flags) {
        (void)value, (void)size, (void)flags;
        if (ino == FUSE_ROOT_ID && strcmp(name, SLOWFS_XATTR_RESET) == 0) {
                slowfs_reset();
                fuse_reply_err(req, 0);
        } else {
                fuse_reply_err(req, EROFS);
        }
}

/* ---- what would write ---- */

static void op_name_rofs(fuse_req_t req, fuse_ino_t ino, const char *name) {
        (void)ino, (void)name;
        fuse_reply_err(req, EROFS);
}

static void op_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *attr, int to_set, struct fuse_file_info *fi) {
        (void)ino, (void)attr, (void)to_set, (void)fi;
        fuse_reply_err(req, EROFS);
}

static void op_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t rdev) {
        (void)parent, (void)name, (void)mode, (void)rdev;
        fuse_reply_err(req, EROFS);
}

static void op_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode) {
        (void)parent, (void)name, (void)mode;
        fuse_reply_err(req, EROFS);
}

static void op_symlink(fuse_req_t req, const char *target, fuse_ino_t parent, const char *name) {
        (void)target, (void)parent, (void)name;
        fuse_reply_err(req, EROFS);
}

static void op_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t parent, const char *name) {
        (void)ino, (void)parent, (void)name;
        fuse_reply_err(req, EROFS);
}

static void op_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t newparent, const char *newname,
                      unsigned flags) {
        (void)parent, (void)name, (void)newparent, (void)newname, (void)flags;
        fuse_reply_err(req, EROFS);
}

static void op_init(void *userdata, struct fuse_conn_info *conn) {
        (void)userdata;
        conn->max_read = (unsigned)slowfs_options.max_read;
        /* FUSE's 12 would be the bottleneck of four modelled disks, and held reads would starve the others. */
        conn->max_background = 512;
        conn->congestion_threshold = 384;
        /* Opens decide what is stale.  With this one each buffered read would fetch the attributes first. */
        conn->want &= ~(unsigned)FUSE_CAP_AUTO_INVAL_DATA;
#ifdef FUSE_CAP_DIRECT_IO_ALLOW_MMAP
        if (slowfs_options.direct_io && (conn->capable & FUSE_CAP_DIRECT_IO_ALLOW_MMAP))
                conn->want |= FUSE_CAP_DIRECT_IO_ALLOW_MMAP;
#endif
}

const struct fuse_lowlevel_ops slowfs_ops = {
        .init = op_init,
        .lookup = op_lookup,
        .forget = op_forget,
        .forget_multi = op_forget_multi,
        .getattr = op_getattr,
        .readlink = op_readlink,
        .statfs = op_statfs,
        .open = op_open,
        .write = op_write,
        .fsync = op_fsync,
        .release = op_release,
        .read = op_read,
        .lseek = op_lseek,
        .opendir = op_opendir,
        .releasedir = op_releasedir,
        .readdir = op_readdir,
        .readdirplus = op_readdirplus,
        .getxattr = op_getxattr,
        .listxattr = op_listxattr,
        .setxattr = op_setxattr,
        .removexattr = op_name_rofs,
        .setattr = op_setattr,
        .mknod = op_mknod,
        .mkdir = op_mkdir,
        .unlink = op_name_rofs,
        .rmdir = op_name_rofs,
        .symlink = op_symlink,
        .link = op_link,
        .rename = op_rename,
};
