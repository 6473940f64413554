/* SPDX-License-Identifier: Apache-2.0 */
/* Attributes, extended attributes, symlink targets, statfs. */
#include "base/sys.h"
#include "base/util.h"
#include "fuse/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>

static int get_stat(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi, struct stat *ret) {
        struct fs *fs = fs_of(req);

        if (fi && fi->fh)
                return fstat(file_fd(fi), ret) < 0 ? -errno : 0;
        return node_stat(fs->nodes, fs_node(req, ino), ret);
}

static void reply_attr(fuse_req_t req, fuse_ino_t ino, const struct stat *st) {
        struct fs *fs = fs_of(req);

        fs_observe(fs, fs_node(req, ino), source_root(fs->source), st);
        fuse_reply_attr(req, st, fs->options->attr_timeout);
}

void op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi) {
        struct stat st;
        int r = get_stat(req, ino, fi, &st);

        if (r < 0)
                reply_result(req, r);
        else
                reply_attr(req, ino, &st);
}

static struct timespec wanted_time(int to_set, int set, int set_now, struct timespec t) {
        if (to_set & set_now)
                return (struct timespec){ .tv_nsec = UTIME_NOW };
        if (to_set & set)
                return t;
        return (struct timespec){ .tv_nsec = UTIME_OMIT };
}

/* `size_fd`: one that may be truncated, or -1. */
static int set_attr(int fd, int size_fd, const struct stat *attr, int to_set) {
        struct fd_path path = path_of_fd(fd);

        if ((to_set & FUSE_SET_ATTR_MODE) && chmod(path.text, attr->st_mode) < 0)
                return -errno;
        if ((to_set & (FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID)) &&
            fchownat(fd, "", to_set & FUSE_SET_ATTR_UID ? attr->st_uid : (uid_t)-1,
                     to_set & FUSE_SET_ATTR_GID ? attr->st_gid : (gid_t)-1, AT_EMPTY_PATH) < 0)
                return -errno;
        if ((to_set & FUSE_SET_ATTR_SIZE) &&
            (size_fd < 0 || ftruncate(size_fd, attr->st_size) < 0) && truncate(path.text, attr->st_size) < 0)
                return -errno; /* a handle opened for reading only cannot, the path can */
        if (to_set & (FUSE_SET_ATTR_ATIME | FUSE_SET_ATTR_MTIME | FUSE_SET_ATTR_ATIME_NOW | FUSE_SET_ATTR_MTIME_NOW)) {
                const struct timespec times[] = {
                        wanted_time(to_set, FUSE_SET_ATTR_ATIME, FUSE_SET_ATTR_ATIME_NOW, attr->st_atim),
                        wanted_time(to_set, FUSE_SET_ATTR_MTIME, FUSE_SET_ATTR_MTIME_NOW, attr->st_mtim),
                };
                if (utimensat(fd, "", times, AT_EMPTY_PATH) < 0)
                        return -errno;
        }
        return 0;
}

void op_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *attr, int to_set, struct fuse_file_info *fi) {
        struct fs *fs = fs_of(req);
        struct node *n = fs_node(req, ino);
        struct cache_file *file = fi && fi->fh ? cache_handle_file(file_of(fi)->handle) : NULL;
        int size_fd = fi && fi->fh ? file_fd(fi) : -1;
        _cleanup_close_ int own = size_fd < 0 ? node_open_path(fs->nodes, n) : -1;
        int fd = size_fd >= 0 ? size_fd : own;
        struct stat before, after;
        struct change ch;

        if (fd < 0 || fstat(fd, &before) < 0) {
                reply_result(req, fd < 0 ? fd : -errno);
                return;
        }
        bool resize = to_set & FUSE_SET_ATTR_SIZE;
        uint64_t from = resize ? min_u64((uint64_t)before.st_size, (uint64_t)attr->st_size) : 0;
        change_begin(&ch, fs, n, NULL, file, fd, &before, from, resize ? UINT64_MAX : 0);
        ch.keeps_content = !(to_set & (FUSE_SET_ATTR_SIZE | FUSE_SET_ATTR_MTIME | FUSE_SET_ATTR_MTIME_NOW));
        int r = set_attr(fd, size_fd, attr, to_set);
        bool seen = fstat(fd, &after) == 0;
        if (!seen && r == 0)
                r = -errno;
        change_end(&ch, seen ? &after : NULL);
        if (r < 0)
                reply_result(req, r);
        else
                fuse_reply_attr(req, &after, fs->options->attr_timeout);
}

void op_readlink(fuse_req_t req, fuse_ino_t ino) {
        _cleanup_close_ int fd = node_open_path(fs_of(req)->nodes, fs_node(req, ino));
        char target[4097];

        if (fd < 0) {
                reply_result(req, fd);
                return;
        }
        ssize_t n = readlinkat(fd, "", target, sizeof target - 1);
        if (n < 0) {
                reply_result(req, -errno);
                return;
        }
        target[n] = '\0';
        fuse_reply_readlink(req, target);
}

void op_statfs(fuse_req_t req, fuse_ino_t ino) {
        _cleanup_close_ int fd = node_open_path(fs_of(req)->nodes, fs_node(req, ino));
        struct statvfs sv;

        if (fd < 0)
                reply_result(req, fd);
        else if (fstatvfs(fd, &sv) < 0)
                reply_result(req, -errno);
        else
                fuse_reply_statfs(req, &sv);
}

/* The kernel asks for security.capability before every write; a file system of ours has nothing to add to the errno. */
static void reply_xattr(fuse_req_t req, size_t size, const void *value, ssize_t n) {
        if (n < 0)
                reply_result(req, -errno);
        else if (size == 0)
                fuse_reply_xattr(req, (size_t)n);
        else
                fuse_reply_buf(req, value, (size_t)n);
}

static void *xattr_room(size_t size) { return malloc(size ? size : 1); }

void op_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size) {
        _cleanup_close_ int fd = node_open_path(fs_of(req)->nodes, fs_node(req, ino));
        _cleanup_free_ void *value = xattr_room(size);

        if (fd < 0 || !value)
                reply_result(req, fd < 0 ? fd : -ENOMEM);
        else
                reply_xattr(req, size, value, getxattr(path_of_fd(fd).text, name, value, size));
}

void op_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size) {
        _cleanup_close_ int fd = node_open_path(fs_of(req)->nodes, fs_node(req, ino));
        _cleanup_free_ void *value = xattr_room(size);

        if (fd < 0 || !value)
                reply_result(req, fd < 0 ? fd : -ENOMEM);
        else
                reply_xattr(req, size, value, listxattr(path_of_fd(fd).text, value, size));
}

/* ACLs live in xattrs, and setting one changes the ctime. */
static void change_xattr(fuse_req_t req, fuse_ino_t ino, const char *name, const void *value, size_t size, int flags,
                         bool remove) {
        struct fs *fs = fs_of(req);
        struct node *n = fs_node(req, ino);
        _cleanup_close_ int fd = node_open_path(fs->nodes, n);
        struct change ch;
        struct stat st;

        if (fd < 0 || fstat(fd, &st) < 0) {
                reply_result(req, fd < 0 ? fd : -errno);
                return;
        }
        struct fd_path path = path_of_fd(fd);
        change_begin(&ch, fs, n, NULL, NULL, fd, &st, 0, 0);
        int r = (remove ? removexattr(path.text, name) : setxattr(path.text, name, value, size, flags)) < 0 ? -errno : 0;
        change_end(&ch, fstat(fd, &st) == 0 ? &st : NULL);
        reply_result(req, r);
}

void op_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name, const char *value, size_t size, int flags) {
        change_xattr(req, ino, name, value, size, flags, false);
}
void op_removexattr(fuse_req_t req, fuse_ino_t ino, const char *name) {
        change_xattr(req, ino, name, NULL, 0, 0, true);
}
