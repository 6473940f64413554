/* SPDX-License-Identifier: Apache-2.0 */
/* Open files: reads go to the cache, everything else to the source first and then to the cache's bookkeeping. */
#include "base/util.h"
#include "fuse/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

/* What of a program's flags the source's descriptor gets.  The kernel gives us offsets, so O_APPEND would only move
 * them; O_DIRECT would ask for aligned memory; O_TRUNC comes as a SETATTR of its own. */
static int source_flags(int flags) {
        return (flags & ~(O_APPEND | O_DIRECT | O_TRUNC | O_CREAT | O_EXCL | O_NOFOLLOW | O_NONBLOCK | O_ASYNC));
}

static bool writes(int flags) { return (flags & O_ACCMODE) != O_RDONLY; }

/* Takes `fd`.  After it `fi` is ready to be replied. */
static int open_file(struct fs *fs, struct node *n, const char *path, int fd, const struct stat *st,
                     struct fuse_file_info *fi) {
        struct file *f = malloc(sizeof *f);

        if (!f) {
                close(fd);
                return -ENOMEM;
        }
        int r = cache_open(fs->cache, fd, st, path, writes(fi->flags), &f->handle);
        if (r < 0) {
                free(f);
                return r;
        }
        f->node = n;
        node_add_handle(fs->nodes, n, cache_fd(f->handle));
        fi->fh = (uintptr_t)f;
        fi->keep_cache = fs_keep_pages(fs, n, st);
        fi->noflush = !writes(fi->flags); /* nothing of a reader's needs flushing, and locks stay in the kernel */
        return 0;
}

static void close_file(struct fs *fs, struct file *f) {
        node_remove_handle(fs->nodes, f->node, cache_fd(f->handle));
        cache_close(f->handle);
        free(f);
}

static int open_node(struct fs *fs, struct node *n, pid_t thread, struct fuse_file_info *fi, struct stat *ret_st) {
        _cleanup_free_ char *path = NULL;
        struct stat st;

        if (node_path(fs->nodes, n, NULL, &path) < 0 && !(path = strdup("")))
                return -ENOMEM;
        int fd = node_open(fs->nodes, n, source_flags(fi->flags) | O_NOATIME, thread, &st);
        if (fd == -EPERM)
                fd = node_open(fs->nodes, n, source_flags(fi->flags), thread, &st);
        if (fd < 0)
                return fd;
        if (fs_size_is_stale(fs, n, &st)) {
                close(fd);
                return -ESTALE;
        }
        source_prepare_fd(fd);
        *ret_st = st;
        return open_file(fs, n, path, fd, &st, fi);
}

void op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi) {
        struct fs *fs = fs_of(req);
        struct node *n = fs_node(req, ino);
        struct stat st;
        int r = open_node(fs, n, fs_thread(req), fi, &st);

        if (r < 0) {
                reply_result(req, r);
                return;
        }
        struct file *f = file_of(fi);
        node_hold(fs->nodes, n); /* once answered, the file may be closed and forgotten before we go on */
        if (fuse_reply_open(req, fi) < 0)
                close_file(fs, f);
        else
                fs_opened(fs, n, &st);
        node_dir_done(fs->nodes, n);
}

/* The kernel found no such name; somebody may have made it meanwhile, and then O_TRUNC means what it says. */
static int truncate_found(struct fs *fs, struct node *n, int fd, const struct stat *st) {
        struct change ch;
        struct stat after;

        if (st->st_size == 0)
                return 0;
        change_begin(&ch, fs, n, NULL, NULL, fd, st, 0, UINT64_MAX);
        int r = ftruncate(fd, 0) < 0 ? -errno : 0;
        change_end(&ch, fstat(fd, &after) == 0 ? &after : NULL);
        return r;
}

static int create_below(fuse_req_t req, struct node *p, const char *name, mode_t mode, struct fuse_file_info *fi,
                        struct fuse_entry_param *ret) {
        struct fs *fs = fs_of(req);
        _cleanup_free_ char *path = NULL;
        struct stat st;
        int dir = node_dir(fs->nodes, p);

        if (dir < 0)
                return dir;
        struct creds creds = creds_assume(req);
        int flags = source_flags(fi->flags) | O_CREAT | O_NOFOLLOW | O_CLOEXEC | (fi->flags & O_EXCL);
        _cleanup_close_ int fd = openat(dir, name, flags, mode);
        int r = fd < 0 || fstat(fd, &st) < 0 ? -errno : 0;
        creds_restore(&creds);
        if (r == 0)
                r = fs_entry(fs, p, name, dir, fs_thread(req), ret);
        node_dir_done(fs->nodes, p);
        if (r < 0)
                return r;
        struct node *n = node_from_id(fs->nodes, ret->ino);
        if (ret->attr.st_ino != st.st_ino || ret->attr.st_dev != st.st_dev)
                r = -ESTALE; /* replaced at once */
        if (r == 0 && (fi->flags & O_TRUNC))
                r = truncate_found(fs, n, fd, &st);
        if (r == 0)
                r = node_path(fs->nodes, n, NULL, &path);
        if (r == 0) {
                source_prepare_fd(fd);
                r = open_file(fs, n, path, take_fd(&fd), &st, fi);
        }
        if (r < 0)
                node_forget(fs->nodes, n, 1);
        return r;
}

static void reply_created(fuse_req_t req, int r, const struct fuse_entry_param *e, const struct fuse_file_info *fi) {
        struct fs *fs = fs_of(req);

        if (r < 0) {
                reply_result(req, r);
        } else if (fuse_reply_create(req, e, fi) < 0) {
                close_file(fs, file_of(fi));
                node_forget(fs->nodes, node_from_id(fs->nodes, e->ino), 1);
        }
}

void op_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, struct fuse_file_info *fi) {
        struct fuse_entry_param e;
        int r = create_below(req, fs_node(req, parent), name, mode, fi, &e);

        reply_created(req, r, &e, fi);
}

static int make_tmpfile(fuse_req_t req, struct node *p, mode_t mode, struct fuse_file_info *fi, struct fuse_entry_param *ret) {
        struct fs *fs = fs_of(req);
        struct stat st;
        int dir = node_dir(fs->nodes, p);

        if (dir < 0)
                return dir;
        struct creds creds = creds_assume(req);
        _cleanup_close_ int fd = openat(dir, ".", source_flags(fi->flags) | O_TMPFILE | (fi->flags & O_EXCL) | O_CLOEXEC, mode);
        int r = fd < 0 || fstat(fd, &st) < 0 ? -errno : 0;
        creds_restore(&creds);
        node_dir_done(fs->nodes, p);
        if (r < 0)
                return r;
        int held = fcntl(fd, F_DUPFD_CLOEXEC, 3);
        struct node *n = held < 0 ? NULL : node_nameless(fs->nodes, held, &st);
        if (!n)
                return -ENOMEM;
        *ret = (struct fuse_entry_param){ .ino = node_id(n), .generation = node_generation(n), .attr = st,
                                          .attr_timeout = fs->options->attr_timeout,
                                          .entry_timeout = fs->options->attr_timeout };
        r = open_file(fs, n, "", take_fd(&fd), &st, fi);
        if (r < 0)
                node_forget(fs->nodes, n, 1);
        return r;
}

void op_tmpfile(fuse_req_t req, fuse_ino_t parent, mode_t mode, struct fuse_file_info *fi) {
        struct fuse_entry_param e;
        int r = make_tmpfile(req, fs_node(req, parent), mode, fi, &e);

        reply_created(req, r, &e, fi);
}

void op_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi) {
        (void)ino;
        close_file(fs_of(req), file_of(fi));
        fuse_reply_err(req, 0);
}

void op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi) {
        (void)ino;
        reply_read(req, file_of(fi)->handle, (uint64_t)off, size);
}

/* Runs `act` on the source, around it the bookkeeping of a change of [off, off+len). */
struct action {
        int fd_in, mode;
        const char *buf;
        off_t off_in;
        size_t len;
};
static ssize_t change_file(fuse_req_t req, struct fuse_file_info *fi, off_t off, uint64_t len, const struct action *a,
                           ssize_t (*act)(int fd, off_t off, const struct action *a)) {
        struct file *f = file_of(fi);
        int fd = cache_fd(f->handle);
        struct stat st;
        struct change ch;

        if (fstat(fd, &st) < 0)
                return -errno;
        change_begin(&ch, fs_of(req), f->node, NULL, cache_handle_file(f->handle), fd, &st, (uint64_t)off, len);
        ssize_t n = act(fd, off, a);
        n = n < 0 ? -errno : n;
        change_end(&ch, fstat(fd, &st) == 0 ? &st : NULL);
        return n;
}

static ssize_t act_write(int fd, off_t off, const struct action *a) {
        size_t done = 0;

        while (done < a->len) {
                ssize_t n = pwrite(fd, a->buf + done, a->len - done, off + (off_t)done);
                if (n < 0 && errno == EINTR)
                        continue;
                if (n <= 0)
                        return done > 0 ? (ssize_t)done : n;
                done += (size_t)n;
        }
        return (ssize_t)done;
}

void op_write(fuse_req_t req, fuse_ino_t ino, const char *buf, size_t size, off_t off, struct fuse_file_info *fi) {
        (void)ino;
        ssize_t n = change_file(req, fi, off, size, &(struct action){ .buf = buf, .len = size }, act_write);

        if (n < 0)
                reply_result(req, (int)n);
        else
                fuse_reply_write(req, (size_t)n);
}

static ssize_t act_fallocate(int fd, off_t off, const struct action *a) {
        return fallocate(fd, a->mode, off, (off_t)a->len);
}

void op_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t off, off_t len, struct fuse_file_info *fi) {
        bool moves = mode & (FALLOC_FL_COLLAPSE_RANGE | FALLOC_FL_INSERT_RANGE); /* everything behind it */
        ssize_t n = change_file(req, fi, off, moves ? UINT64_MAX : (uint64_t)len,
                                &(struct action){ .mode = mode, .len = (size_t)len }, act_fallocate);

        (void)ino;
        reply_result(req, (int)n);
}

static ssize_t act_copy(int fd, off_t off, const struct action *a) {
        off_t off_in = a->off_in;
        return copy_file_range(a->fd_in, &off_in, fd, &off, a->len, 0);
}

void op_copy_file_range(fuse_req_t req, fuse_ino_t ino_in, off_t off_in, struct fuse_file_info *fi_in,
                        fuse_ino_t ino_out, off_t off_out, struct fuse_file_info *fi_out, size_t len, int flags) {
        const struct action a = { .fd_in = file_fd(fi_in), .off_in = off_in, .len = len };

        (void)ino_in, (void)ino_out, (void)flags;
        ssize_t n = change_file(req, fi_out, off_out, len, &a, act_copy);
        if (n < 0)
                reply_result(req, (int)n);
        else
                fuse_reply_write(req, (size_t)n);
}

/* Closing a duplicate is how a file system tells of errors that it held back (NFS, quotas). */
void op_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi) {
        int fd = fcntl(file_fd(fi), F_DUPFD_CLOEXEC, 3);

        (void)ino;
        reply_result(req, fd < 0 || close(fd) < 0 ? -errno : 0);
}

void op_fsync(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi) {
        int fd = file_fd(fi);

        (void)ino;
        reply_result(req, (datasync ? fdatasync(fd) : fsync(fd)) < 0 ? -errno : 0);
}

void op_lseek(fuse_req_t req, fuse_ino_t ino, off_t off, int whence, struct fuse_file_info *fi) {
        off_t at = lseek(file_fd(fi), off, whence);

        (void)ino;
        if (at < 0)
                reply_result(req, -errno);
        else
                fuse_reply_lseek(req, at);
}
