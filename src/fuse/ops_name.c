/* SPDX-License-Identifier: Apache-2.0 */
/* Operations that take a name: looking it up, making, moving and removing it.  All are *at calls below the parent. */
#include "base/sys.h"
#include "base/util.h"
#include "fuse/fs.h"
#include "source/inodes.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/syscall.h>

#ifndef RENAME_EXCHANGE
#define RENAME_EXCHANGE (1 << 1)
#endif

int fs_entry(struct fs *fs, struct node *parent, const char *name, int dirfd, pid_t thread, struct fuse_entry_param *ret) {
        struct fuse_entry_param e = { .attr_timeout = fs->options->attr_timeout, .entry_timeout = fs->options->attr_timeout };

        if (fstatat(dirfd, name, &e.attr, AT_SYMLINK_NOFOLLOW) < 0)
                return -errno;
        inode_tags_meet(fs->tags, e.attr.st_dev, dirfd, name);
        struct node *n = node_seen(fs->nodes, parent, name, &e.attr, thread);
        if (!n)
                return -ENOMEM;
        e.ino = node_id(n);
        e.generation = node_generation(n);
        *ret = e;
        return 0;
}

static void reply_entry(fuse_req_t req, int r, const struct fuse_entry_param *e) {
        if (r < 0)
                reply_result(req, r);
        else
                tell_entry(req, e);
}

void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name) {
        struct fs *fs = fs_of(req);
        struct node *p = fs_node(req, parent);
        struct fuse_entry_param e;
        int dir = node_dir(fs->nodes, p);
        int r = dir < 0 ? dir : fs_entry(fs, p, name, dir, fs_thread(req), &e);

        if (dir >= 0)
                node_dir_done(fs->nodes, p);
        reply_entry(req, r, &e);
}

void op_forget(fuse_req_t req, fuse_ino_t ino, uint64_t nlookup) {
        node_forget(fs_of(req)->nodes, fs_node(req, ino), nlookup);
        fuse_reply_none(req);
}

void op_forget_multi(fuse_req_t req, size_t count, struct fuse_forget_data *forgets) {
        for (size_t i = 0; i < count; i++)
                node_forget(fs_of(req)->nodes, fs_node(req, forgets[i].ino), forgets[i].nlookup);
        fuse_reply_none(req);
}

/* Makes `name` in `parent` with `make`, as the request's user, and answers with its entry. */
struct making {
        mode_t mode;
        dev_t rdev;
        const char *target;
};
static void make_entry(fuse_req_t req, fuse_ino_t parent, const char *name, const struct making *m,
                       int (*make)(int dir, const char *name, const struct making *m)) {
        struct fs *fs = fs_of(req);
        struct node *p = fs_node(req, parent);
        struct fuse_entry_param e;
        int dir = node_dir(fs->nodes, p), r = dir;

        if (dir >= 0) {
                struct creds creds = creds_assume(req);
                r = make(dir, name, m) < 0 ? -errno : 0;
                creds_restore(&creds);
                if (r == 0)
                        r = fs_entry(fs, p, name, dir, fs_thread(req), &e);
                node_dir_done(fs->nodes, p);
        }
        reply_entry(req, r, &e);
}

static int make_node(int dir, const char *name, const struct making *m) { return mknodat(dir, name, m->mode, m->rdev); }
static int make_dir(int dir, const char *name, const struct making *m) { return mkdirat(dir, name, m->mode); }
static int make_symlink(int dir, const char *name, const struct making *m) { return symlinkat(m->target, dir, name); }

void op_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t rdev) {
        make_entry(req, parent, name, &(struct making){ .mode = mode, .rdev = rdev }, make_node);
}
void op_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode) {
        make_entry(req, parent, name, &(struct making){ .mode = mode }, make_dir);
}
void op_symlink(fuse_req_t req, const char *target, fuse_ino_t parent, const char *name) {
        make_entry(req, parent, name, &(struct making){ .target = target }, make_symlink);
}

/* A file whose name or link count changes gets a new ctime, by us: its content stays as it was. */
struct renaming {
        struct change change;
        bool known;
};

static void rename_begin(struct renaming *rn, struct fs *fs, int dir, const char *name) {
        struct stat st;

        *rn = (struct renaming){ 0 };
        if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
                return;
        if (S_ISDIR(st.st_mode))
                cache_forget_paths(fs->cache);
        rn->known = S_ISREG(st.st_mode) && change_begin_name(&rn->change, fs, dir, name) == 0;
}

static void rename_end(struct renaming *rn, bool moved, int dir, const char *name) {
        struct stat after;

        if (!rn->known)
                return;
        bool same = fstatat(dir, name, &after, AT_SYMLINK_NOFOLLOW) == 0 && after.st_ino == rn->change.before.st_ino &&
                    after.st_dev == rn->change.before.st_dev;
        if (moved && rn->change.file)
                cache_file_lose_name(rn->change.file);
        change_end(&rn->change, same ? &after : NULL);
}

static int link_file(struct fs *fs, struct node *n, int dir, const char *name) {
        _cleanup_close_ int fd = node_open_path(fs->nodes, n);
        struct change ch;
        struct stat st;

        if (fd < 0)
                return fd;
        int r = change_begin(&ch, &(struct change){ .fs = fs, .node = n, .attributes_only = true }, fd);
        if (r < 0)
                return r;
        r = linkat(AT_FDCWD, path_of_fd(fd).text, dir, name, AT_SYMLINK_FOLLOW) < 0 ? -errno : 0;
        change_end(&ch, fstat(fd, &st) == 0 ? &st : NULL);
        return r;
}

void op_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t newparent, const char *newname) {
        struct fs *fs = fs_of(req);
        struct node *p = fs_node(req, newparent);
        struct fuse_entry_param e;
        int dir = node_dir(fs->nodes, p), r = dir;

        if (dir >= 0) {
                r = link_file(fs, fs_node(req, ino), dir, newname);
                if (r == 0)
                        r = fs_entry(fs, p, newname, dir, fs_thread(req), &e);
                node_dir_done(fs->nodes, p);
        }
        reply_entry(req, r, &e);
}

static int unlink_below(struct fs *fs, struct node *p, int dir, const char *name, int flags) {
        struct stat st = { 0 }, now;
        struct change ch = { 0 };
        int r = 0;

        /* Held across the unlink: a descriptor tells afterwards whether that was the last name. */
        _cleanup_close_ int fd = openat(dir, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
        bool regular = fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) &&
                       change_begin(&ch, &(struct change){ .fs = fs, .attributes_only = true }, fd) == 0;
        node_pin(fs->nodes, p, name);
        if (unlinkat(dir, name, flags) < 0) {
                r = -errno;
                node_unpin(fs->nodes, p, name);
        } else {
                node_unlinked(fs->nodes, p, name);
        }
        if (regular && r == 0 && ch.file)
                cache_file_lose_name(ch.file);
        if (regular) /* without a name nobody will open it again: its ranges go */
                change_end(&ch, fstat(fd, &now) == 0 && now.st_nlink > 0 ? &now : NULL);
        return r;
}

static void remove_name(fuse_req_t req, fuse_ino_t parent, const char *name, int flags) {
        struct fs *fs = fs_of(req);
        struct node *p = fs_node(req, parent);
        int dir = node_dir(fs->nodes, p), r = dir;

        if (dir >= 0) {
                r = unlink_below(fs, p, dir, name, flags);
                node_dir_done(fs->nodes, p);
        }
        reply_result(req, r);
}

void op_unlink(fuse_req_t req, fuse_ino_t parent, const char *name) { remove_name(req, parent, name, 0); }
void op_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name) { remove_name(req, parent, name, AT_REMOVEDIR); }

static int rename_below(struct fs *fs, struct node *from, int from_dir, const char *name, struct node *to, int to_dir,
                        const char *new_name, unsigned flags) {
        struct renaming moved, target;
        bool exchange = flags & RENAME_EXCHANGE;
        int r = 0;

        rename_begin(&moved, fs, from_dir, name);
        rename_begin(&target, fs, to_dir, new_name);
        node_pin(fs->nodes, to, new_name);
        if (syscall(SYS_renameat2, from_dir, name, to_dir, new_name, flags) < 0) {
                r = -errno;
                node_unpin(fs->nodes, to, new_name);
        } else {
                node_renamed(fs->nodes, from, name, to, new_name, exchange);
        }
        rename_end(&moved, r == 0, r < 0 ? from_dir : to_dir, r < 0 ? name : new_name);
        rename_end(&target, r == 0, r == 0 && exchange ? from_dir : to_dir, r == 0 && exchange ? name : new_name);
        return r;
}

void op_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t newparent, const char *newname,
               unsigned flags) {
        struct fs *fs = fs_of(req);
        struct node *from = fs_node(req, parent), *to = fs_node(req, newparent);
        int from_dir = node_dir(fs->nodes, from), to_dir = node_dir(fs->nodes, to);
        int r = from_dir < 0 ? from_dir : to_dir;

        if (from_dir >= 0 && to_dir >= 0)
                r = rename_below(fs, from, from_dir, name, to, to_dir, newname, flags);
        if (from_dir >= 0)
                node_dir_done(fs->nodes, from);
        if (to_dir >= 0)
                node_dir_done(fs->nodes, to);
        reply_result(req, r);
}
