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

void op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi) {
        struct stat st;
        int r = get_stat(req, ino, fi, &st);

        if (r < 0)
                reply_result(req, r);
        else
                tell_attr(req, fs_node(req, ino), &st);
}

static struct timespec wanted_time(int to_set, int set, int set_now, struct timespec t) {
        if (to_set & set_now)
                return (struct timespec){ .tv_nsec = UTIME_NOW };
        if (to_set & set)
                return t;
        return (struct timespec){ .tv_nsec = UTIME_OMIT };
}

#define SET_TIMES (FUSE_SET_ATTR_ATIME | FUSE_SET_ATTR_MTIME | FUSE_SET_ATTR_ATIME_NOW | FUSE_SET_ATTR_MTIME_NOW)
#define SET_OWNER (FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID)

/* `fd` is open for writing where the size is to be set, and may be a mere path otherwise. */
static int set_attr(int fd, const struct stat *attr, int to_set) {
        if ((to_set & FUSE_SET_ATTR_MODE) && chmod(path_of_fd(fd).text, attr->st_mode) < 0)
                return -errno;
        /* A chown that sets neither comes without a word, and moves the ctime all the same. */
        if (((to_set & SET_OWNER) || to_set == 0) &&
            fchownat(fd, "", to_set & FUSE_SET_ATTR_UID ? attr->st_uid : (uid_t)-1,
                     to_set & FUSE_SET_ATTR_GID ? attr->st_gid : (gid_t)-1, AT_EMPTY_PATH) < 0)
                return -errno;
        if ((to_set & FUSE_SET_ATTR_SIZE) && ftruncate(fd, attr->st_size) < 0)
                return -errno;
        if (to_set & SET_TIMES) {
                const struct timespec times[] = {
                        wanted_time(to_set, FUSE_SET_ATTR_ATIME, FUSE_SET_ATTR_ATIME_NOW, attr->st_atim),
                        wanted_time(to_set, FUSE_SET_ATTR_MTIME, FUSE_SET_ATTR_MTIME_NOW, attr->st_mtim),
                };
                if (utimensat(fd, "", times, AT_EMPTY_PATH) < 0)
                        return -errno;
        }
        return 0;
}

/* The handle's descriptor where that will do, and else one of our own, in `ret_own`. */
static int attr_fd(struct fs *fs, struct node *n, struct fuse_file_info *fi, bool resize, int *ret_own) {
        int handle = fi && fi->fh ? file_fd(fi) : -1;

        if (handle >= 0 && (!resize || (fcntl(handle, F_GETFL) & O_ACCMODE) != O_RDONLY))
                return handle;
        *ret_own = node_open_path(fs->nodes, n);
        if (!resize || *ret_own < 0)
                return *ret_own;
        int path = *ret_own;
        *ret_own = open(path_of_fd(path).text, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
        int r = *ret_own < 0 ? -errno : *ret_own;
        close(path);
        return r;
}

static int change_attr(fuse_req_t req, struct node *n, struct fuse_file_info *fi, const struct stat *attr, int to_set,
                       struct stat *ret_after) {
        struct fs *fs = fs_of(req);
        bool resize = to_set & FUSE_SET_ATTR_SIZE;
        _cleanup_close_ int own = -1;
        int fd = attr_fd(fs, n, fi, resize, &own);
        struct stat before;
        struct change ch;

        if (fd < 0 || fstat(fd, &before) < 0)
                return fd < 0 ? fd : -errno;
        struct change what = { .fs = fs, .node = n, .file = fi && fi->fh ? cache_handle_file(file_of(fi)->handle) : NULL };
        what.attributes_only = !(to_set & (FUSE_SET_ATTR_SIZE | FUSE_SET_ATTR_MTIME | FUSE_SET_ATTR_MTIME_NOW));
        if (resize) {
                what.off = min_u64((uint64_t)before.st_size, (uint64_t)attr->st_size);
                what.len = UINT64_MAX;
        }
        int r = change_begin(&ch, &what, fd);
        if (r < 0)
                return r;
        r = set_attr(fd, attr, to_set);
        bool seen = fstat(fd, ret_after) == 0;
        ch.truncates = resize && seen && ret_after->st_size == attr->st_size;
        change_end(&ch, seen ? ret_after : NULL);
        return r < 0 ? r : seen ? 0 : -EIO;
}

void op_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *attr, int to_set, struct fuse_file_info *fi) {
        struct node *n = fs_node(req, ino);
        struct stat after;
        int r = change_attr(req, n, fi, attr, to_set, &after);

        if (r < 0)
                reply_result(req, r);
        else
                tell_attr(req, n, &after);
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

        if (fd < 0) {
                reply_result(req, fd);
                return;
        }
        struct fd_path path = path_of_fd(fd);
        int r = change_begin(&ch, &(struct change){ .fs = fs, .node = n, .attributes_only = true }, fd);
        if (r < 0) {
                reply_result(req, r);
                return;
        }
        struct creds creds = creds_assume(req);
        r = (remove ? removexattr(path.text, name) : setxattr(path.text, name, value, size, flags)) < 0 ? -errno : 0;
        creds_restore(&creds);
        change_end(&ch, fstat(fd, &st) == 0 ? &st : NULL);
        reply_result(req, r);
}

void op_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name, const char *value, size_t size, int flags) {
        change_xattr(req, ino, name, value, size, flags, false);
}
void op_removexattr(fuse_req_t req, fuse_ino_t ino, const char *name) {
        change_xattr(req, ino, name, NULL, 0, 0, true);
}
