/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the operations share.  This folder is the only one that knows FUSE.
 *
 *   session.c     mount, INIT, loop, unmount          node.c       what the kernel knows
 *   ops_file.c    open, read, write and their kin     read_reply.c a read's answer, and its interruption
 *   ops_attr.c    attributes, xattrs, statfs          coherence.c  versions, changes by us and behind us
 *   ops_name.c    everything that takes a name        creds.c      making files as their maker
 *   ops_dir.c     directories
 */
#pragma once

#include "cache/cache.h"
#include "fuse/node.h"

#define FUSE_USE_VERSION 317
#include <fuse_lowlevel.h>

struct inval_queue;
struct kill_watch;

struct fs {
        const struct options *options;
        struct source *source;
        struct cache *cache;
        struct node_table *nodes;
        struct fuse_session *session;
        struct inval_queue *invals;
        struct kill_watch *kills;
};

static inline struct fs *fs_of(fuse_req_t req) { return fuse_req_userdata(req); }
static inline struct node *fs_node(fuse_req_t req, fuse_ino_t ino) { return node_from_id(fs_of(req)->nodes, ino); }

/* The one place where our negative errno becomes FUSE's positive one. */
static inline void reply_result(fuse_req_t req, int r) {
        cache_note_source(fs_of(req)->cache, r);
        fuse_reply_err(req, r < 0 ? -r : 0);
}

/* An open file. */
struct file {
        struct cache_handle *handle;
        struct node *node;
};
static inline struct file *file_of(const struct fuse_file_info *fi) { return (struct file *)(uintptr_t)fi->fh; }
static inline int file_fd(const struct fuse_file_info *fi) { return cache_fd(file_of(fi)->handle); }

extern const struct fuse_lowlevel_ops fs_ops;

/* ops_name.c: answers a lookup of what was just seen or made; 0, or -errno with nothing known to the kernel. */
int fs_entry(struct fs *fs, struct node *parent, const char *name, int dirfd, pid_t thread, struct fuse_entry_param *ret);
static inline pid_t fs_thread(fuse_req_t req) { return fuse_req_ctx(req)->pid; }

/* coherence.c */
struct change {
        struct fs *fs;
        struct node *node; /* NULL: unknown to the kernel */
        struct cache_file *file;
        bool owned; /* found here, not a handle's */
        bool keeps_content; /* attributes only, the mtime not among them: size and mtime must be the same after it */
        struct stat before;
};
/* A change through the mount of [off, off+len) (len 0: attributes only) of the file that `before` describes.
 * `file`: from the handle, or NULL: it is looked for, as `name` below `n` (NULL: `n` itself).  `fd`: any descriptor on
 * its file system.  Each begin has its end; `after` NULL: nothing of it may be believed any more. */
void change_begin(struct change *ch, struct fs *fs, struct node *n, const char *name, struct cache_file *file, int fd,
                  const struct stat *before, uint64_t off, uint64_t len);
void change_end(struct change *ch, const struct stat *after);
/* The kernel is about to be told these attributes: has the file changed behind us? */
void fs_observe(struct fs *fs, struct node *n, int fd, const struct stat *st);
/* At open: may the kernel keep the pages that it has? */
bool fs_keep_pages(struct fs *fs, struct node *n, const struct stat *st);
/* Does the kernel believe in another size?  Told only once: after -ESTALE it looks up anew, and learns. */
bool fs_size_is_stale(struct fs *fs, struct node *n, const struct stat *st);
/* That open was answered: the pages are of this version from now on. */
void fs_opened(struct fs *fs, struct node *n, const struct stat *st);
int inval_start(struct fs *fs);
void inval_stop(struct fs *fs);

/* read_reply.c */
int kill_watch_start(struct fs *fs);
void kill_watch_stop(struct fs *fs);
void reply_read(fuse_req_t req, struct cache_handle *h, uint64_t off, size_t size);

/* creds.c: between these two calls this thread makes files as the request's user. */
struct creds {
        bool changed;
};
struct creds creds_assume(fuse_req_t req);
void creds_restore(const struct creds *c);

/* The operations. */
void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name);
void op_forget(fuse_req_t req, fuse_ino_t ino, uint64_t nlookup);
void op_forget_multi(fuse_req_t req, size_t count, struct fuse_forget_data *forgets);
void op_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t rdev);
void op_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode);
void op_symlink(fuse_req_t req, const char *link, fuse_ino_t parent, const char *name);
void op_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t newparent, const char *newname);
void op_unlink(fuse_req_t req, fuse_ino_t parent, const char *name);
void op_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name);
void op_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t newparent, const char *newname,
               unsigned flags);
void op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void op_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *attr, int to_set, struct fuse_file_info *fi);
void op_readlink(fuse_req_t req, fuse_ino_t ino);
void op_statfs(fuse_req_t req, fuse_ino_t ino);
void op_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name, const char *value, size_t size, int flags);
void op_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size);
void op_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size);
void op_removexattr(fuse_req_t req, fuse_ino_t ino, const char *name);
void op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void op_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi);
void op_readdirplus(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi);
void op_releasedir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void op_fsyncdir(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi);
void op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void op_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, struct fuse_file_info *fi);
void op_tmpfile(fuse_req_t req, fuse_ino_t parent, mode_t mode, struct fuse_file_info *fi);
void op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi);
void op_write(fuse_req_t req, fuse_ino_t ino, const char *buf, size_t size, off_t off, struct fuse_file_info *fi);
void op_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void op_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void op_fsync(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi);
void op_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t off, off_t len, struct fuse_file_info *fi);
void op_copy_file_range(fuse_req_t req, fuse_ino_t ino_in, off_t off_in, struct fuse_file_info *fi_in,
                        fuse_ino_t ino_out, off_t off_out, struct fuse_file_info *fi_out, size_t len, int flags);
void op_lseek(fuse_req_t req, fuse_ino_t ino, off_t off, int whence, struct fuse_file_info *fi);
