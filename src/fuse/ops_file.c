/* SPDX-License-Identifier: Apache-2.0 */
/* Open files: reads go to the cache, everything else to the source first and then to the cache's bookkeeping. */
#include "base/sys.h"
#include "base/util.h"
#include "fuse/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <string.h>
#include <sys/ioctl.h>

/* What of a program's flags the source's descriptor gets.  O_APPEND stays, since only the source knows its end; O_DIRECT
 * would ask for aligned memory; O_TRUNC comes as a SETATTR of its own. */
static int source_flags(int flags) {
        return (flags & ~(O_DIRECT | O_TRUNC | O_CREAT | O_EXCL | O_NOFOLLOW | O_NONBLOCK | O_ASYNC));
}

static bool writes(int flags) { return (flags & O_ACCMODE) != O_RDONLY; }

static struct file *file_new(struct node *n, int flags, const struct stat *st) {
        struct file *f = calloc(1, sizeof *f);

        if (!f)
                return NULL;
        f->node = n;
        f->version = file_version_of(st);
        f->appends = f->append_below = writes(flags) && (flags & O_APPEND);
        pthread_mutex_init(&f->append_lock, NULL);
        return f;
}

static void file_free(struct file *f) {
        pthread_mutex_destroy(&f->append_lock);
        free(f);
}

/* May the kernel keep the pages that it has?  And may it keep those that it reads from now on, at the next open? */
static bool keep_pages(struct fs *fs, struct file *f) {
        /* What is not cached is asked about at its second open only: most files are opened once. */
        bool again = node_pages_unsettled(fs->nodes, f->node, &f->version);
        bool settled = cache_handle_settled(f->handle) ||
                       (again && source_settle(fs->source, cache_fd(f->handle), &f->version));
        bool keep = node_begin_open(fs->nodes, f->node, &f->version, settled);

        f->proves = settled && !keep;
        return keep;
}

/* Takes `fd`.  After it `fi` is ready to be replied. */
static int open_file(struct fs *fs, struct node *n, int fd, const struct stat *st, struct fuse_file_info *fi) {
        struct file *f = file_new(n, fi->flags, st);
        _cleanup_free_ char *path = NULL;

        if (!f) {
                close(fd);
                return -ENOMEM;
        }
        source_path(fs->source, fd, NULL, &path);
        source_prepare_fd(fd);
        int r = cache_open(fs->cache, fd, st, path, writes(fi->flags), &f->handle);
        if (r < 0) {
                file_free(f);
                return r;
        }
        f->known.fd = cache_fd(f->handle);
        node_add_handle(fs->nodes, n, &f->known);
        fi->fh = (uintptr_t)f;
        fi->keep_cache = keep_pages(fs, f);
        fi->noflush = !writes(fi->flags); /* nothing of a reader's needs flushing, and locks stay in the kernel */
        /* The kernel fills its pages where it thinks that the end is. */
        if (f->appends && (fs->direct_maps || (fi->flags & O_ACCMODE) == O_WRONLY))
                fi->direct_io = true;
        return 0;
}

void file_close(struct fs *fs, struct file *f) {
        node_remove_handle(fs->nodes, f->node, &f->known);
        cache_close(f->handle);
        file_free(f);
}

static int open_source(struct fs *fs, struct node *n, pid_t thread, int flags, struct stat *ret_st) {
        int fd = node_open(fs->nodes, n, source_flags(flags) | O_NOATIME, thread, ret_st);

        return fd == -EPERM ? node_open(fs->nodes, n, source_flags(flags), thread, ret_st) : fd;
}

void op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi) {
        struct fs *fs = fs_of(req);
        struct node *n = fs_node(req, ino);
        struct stat st;
        int fd = open_source(fs, n, fs_thread(req), fi->flags, &st);

        if (fd < 0) {
                reply_result(req, fd);
                return;
        }
        struct file_version v = file_version_of(&st);
        enum opening how = opening_of(fs, n, &v, fs_thread(req));
        if (how == OPEN_REFUSED) {
                close(fd);
                tell_stale(req, n, &st);
                return;
        }
        int r = open_file(fs, n, fd, &st, fi);
        if (r < 0) {
                reply_result(req, r);
                return;
        }
        if (how == OPEN_CHANGING) {
                fi->direct_io |= fs->direct_maps;
                tell_open(req, n, &st, fi);
                return;
        }
        struct file *f = file_of(fi); /* once answered, it may be closed */
        if (fuse_reply_open(req, fi) < 0)
                file_close(fs, f);
}

/* The kernel has found no such name.  If somebody has made it meanwhile, it is looked up after all: only the kernel knows
 * who may open it, and what it is. */
static int make_file(fuse_req_t req, int dir, const char *name, mode_t mode, int flags) {
        struct creds creds = creds_assume(req);
        int fd = openat(dir, name, source_flags(flags) | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
        int r = fd >= 0 ? fd : errno == EEXIST && !(flags & O_EXCL) ? -ESTALE : -errno;

        creds_restore(&creds);
        return r;
}

static int create_below(fuse_req_t req, struct node *p, const char *name, mode_t mode, struct fuse_file_info *fi,
                        struct fuse_entry_param *ret) {
        struct fs *fs = fs_of(req);
        struct stat st;
        int dir = node_dir(fs->nodes, p);

        if (dir < 0)
                return dir;
        _cleanup_close_ int fd = make_file(req, dir, name, mode, fi->flags);
        int r = fd < 0 ? fd : fstat(fd, &st) < 0 ? -errno : fs_entry(fs, p, name, dir, fs_thread(req), ret);
        node_dir_done(fs->nodes, p);
        if (r < 0)
                return r;
        struct node *n = node_from_id(fs->nodes, ret->ino);
        if (ret->attr.st_ino != st.st_ino || ret->attr.st_dev != st.st_dev)
                r = -ESTALE; /* replaced at once */
        if (r == 0)
                r = open_file(fs, n, take_fd(&fd), &ret->attr, fi);
        if (r < 0)
                node_forget(fs->nodes, n, 1);
        return r;
}

void op_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, struct fuse_file_info *fi) {
        struct fuse_entry_param e;
        int r = create_below(req, fs_node(req, parent), name, mode, fi, &e);

        if (r < 0)
                reply_result(req, r);
        else
                tell_create(req, &e, fi);
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
        r = open_file(fs, n, take_fd(&fd), &st, fi);
        if (r < 0)
                node_forget(fs->nodes, n, 1);
        return r;
}

void op_tmpfile(fuse_req_t req, fuse_ino_t parent, mode_t mode, struct fuse_file_info *fi) {
        struct fuse_entry_param e;
        int r = make_tmpfile(req, fs_node(req, parent), mode, fi, &e);

        if (r < 0)
                reply_result(req, r);
        else
                tell_create(req, &e, fi);
}

void op_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi) {
        (void)ino;
        file_close(fs_of(req), file_of(fi));
        fuse_reply_err(req, 0);
}

void op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi) {
        struct file *f = file_of(fi);

        (void)ino;
        if (f->proves && atomic_exchange(&f->proves, false))
                node_settle_pages(fs_of(req)->nodes, f->node, &f->version);
        /* A read into a program's own buffer names the program's table of files as its owner. */
        reply_read(req, f, (uint64_t)off, size, fi->lock_owner == 0);
}

/* Runs `act` on the source, as the request's user, around it the bookkeeping of a change of [off, off+len). */
struct action {
        int fd_in, mode;
        const char *buf;
        off_t off_in;
        size_t len;
};
typedef ssize_t (*act_fn)(int fd, off_t off, const struct action *a);
static ssize_t act_as_user(fuse_req_t req, int fd, off_t off, const struct action *a, act_fn act) {
        struct creds creds = creds_assume(req);
        ssize_t n = act(fd, off, a);
        int r = n < 0 ? -errno : 0;

        creds_restore(&creds);
        return r < 0 ? r : n;
}

static ssize_t change_file(fuse_req_t req, struct fuse_file_info *fi, off_t off, uint64_t len, const struct action *a,
                           act_fn act) {
        struct file *f = file_of(fi);
        int fd = cache_fd(f->handle);
        struct stat st;
        struct change ch;

        int r = change_begin(&ch, &(struct change){ .fs = fs_of(req), .node = f->node, .file = cache_handle_file(f->handle),
                                                    .off = (uint64_t)off, .len = len,
                                                    .grows_to = (uint64_t)off + a->len }, fd);
        if (r < 0)
                return r;
        ssize_t n = act_as_user(req, fd, off, a, act);
        change_end(&ch, fstat(fd, &st) == 0 ? &st : NULL);
        return n;
}

/* Moves on by `n` bytes each time; pwrite, or write where the source knows the end. */
static ssize_t write_all(int fd, off_t off, const struct action *a, bool append) {
        size_t done = 0;

        while (done < a->len) {
                ssize_t n = append ? write(fd, a->buf + done, a->len - done)
                                   : pwrite(fd, a->buf + done, a->len - done, off + (off_t)done);
                if (n < 0 && errno == EINTR)
                        continue;
                if (n <= 0)
                        return done > 0 ? (ssize_t)done : n;
                done += (size_t)n;
        }
        return (ssize_t)done;
}

static ssize_t act_write(int fd, off_t off, const struct action *a) { return write_all(fd, off, a, false); }
static ssize_t act_append(int fd, off_t off, const struct action *a) { return write_all(fd, off, a, true); }

/* Under the append lock: the source's descriptor appends, or not, as the program's does at this moment. */
static int set_append(struct file *f, bool append) {
        int fd = cache_fd(f->handle), flags;

        if (f->append_below == append)
                return 0;
        if ((flags = fcntl(fd, F_GETFL)) < 0 || fcntl(fd, F_SETFL, append ? flags | O_APPEND : flags & ~O_APPEND) < 0)
                return -errno;
        f->append_below = append;
        return 0;
}

/* Where the source's end is now, which may be elsewhere than the kernel believes: then its pages are wrong. */
static ssize_t append_file(fuse_req_t req, struct file *f, off_t off, const struct action *a) {
        struct fs *fs = fs_of(req);
        int fd = cache_fd(f->handle);
        struct change ch;
        struct stat st;

        int r = change_begin(&ch, &(struct change){ .fs = fs, .node = f->node, .file = cache_handle_file(f->handle),
                                                    .off = UINT64_MAX, .len = UINT64_MAX,
                                                    .grows_to = (uint64_t)off + a->len }, fd);
        if (r < 0)
                return r;
        ssize_t n = act_as_user(req, fd, off, a, act_append);
        ch.misplaced = n > 0 && lseek(fd, 0, SEEK_CUR) != off + n;
        change_end(&ch, fstat(fd, &st) == 0 ? &st : NULL);
        if (ch.misplaced)
                drop_pages(fs, f->node);
        return n;
}

static ssize_t write_file(fuse_req_t req, struct fuse_file_info *fi, off_t off, const struct action *a) {
        struct file *f = file_of(fi);
        bool append = fi->flags & O_APPEND;

        if (!append && !f->appends)
                return change_file(req, fi, off, a->len, a, act_write);
        f->appends = true;
        pthread_mutex_lock(&f->append_lock);
        ssize_t n = set_append(f, append);
        if (n == 0)
                n = append ? append_file(req, f, off, a) : change_file(req, fi, off, a->len, a, act_write);
        pthread_mutex_unlock(&f->append_lock);
        return n;
}

void op_write(fuse_req_t req, fuse_ino_t ino, const char *buf, size_t size, off_t off, struct fuse_file_info *fi) {
        (void)ino;
        /* A page that was stored to by map comes with a place of its own. */
        if (fi->writepage)
                fi->flags &= ~O_APPEND;
        ssize_t n = write_file(req, fi, off, &(struct action){ .buf = buf, .len = size });

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
        struct file *f = file_of(fi);

        (void)ino;
        pthread_mutex_lock(&f->append_lock); /* an append looks where it came to */
        off_t at = lseek(file_fd(fi), off, whence);
        int r = at < 0 ? -errno : 0;
        pthread_mutex_unlock(&f->append_lock);
        if (r < 0)
                reply_result(req, r);
        else
                fuse_reply_lseek(req, at);
}

/* The attributes of chattr(1), and the inode's generation.  The kernel has checked who may. */
void op_ioctl(fuse_req_t req, fuse_ino_t ino, unsigned cmd, void *arg, struct fuse_file_info *fi, unsigned flags,
              const void *in_buf, size_t in_size, size_t out_size) {
        struct fs *fs = fs_of(req);
        union {
                int flags;
                int version;
                struct fsxattr x;
        } data = { 0 };
        bool known = cmd == FS_IOC_GETFLAGS || cmd == FS_IOC_SETFLAGS || cmd == FS_IOC_GETVERSION ||
                     cmd == FS_IOC_FSGETXATTR || cmd == FS_IOC_FSSETXATTR;

        (void)arg, (void)fi, (void)flags;
        if (!known || in_size > sizeof data || out_size > sizeof data) {
                fuse_reply_err(req, ENOTTY);
                return;
        }
        _cleanup_close_ int path = node_open_path(fs->nodes, fs_node(req, ino));
        _cleanup_close_ int fd = path < 0 ? -1 : open(path_of_fd(path).text, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
        if (in_size > 0)
                memcpy(&data, in_buf, in_size);
        if (path < 0 || fd < 0 || ioctl(fd, cmd, &data) < 0)
                reply_result(req, path < 0 ? path : -errno);
        else /* its number says long, and programs have always given it an int */
                fuse_reply_ioctl(req, 0, &data, cmd == FS_IOC_GETVERSION ? sizeof(int) : out_size);
}
