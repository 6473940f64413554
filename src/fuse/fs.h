/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the operations share.  This folder is the only one that knows FUSE.
 *
 *   session.c     mount, INIT, loop, unmount          node.c       what the kernel knows
 *   ops_file.c    open, read, write and their kin     coherence.c  versions: changes by us, opening after others'
 *   ops_attr.c    attributes, xattrs, statfs          tell.c       attributes, after pages that contradict them
 *   ops_name.c    everything that takes a name        read_reply.c a read's answer
 *   ops_dir.c     directories                         waited.c     answers that come later, and their interruption
 *                                                     creds.c      acting as the request's user
 */
#pragma once

#include "cache/cache.h"
#include "fuse/node.h"

#define FUSE_USE_VERSION 317
#include <fuse_lowlevel.h>

struct desks;
struct inode_tags;
struct kill_watch;
struct refusals;
struct tellers;

struct fs {
        const struct options *options;
        struct source *source;
        struct cache *cache;
        struct node_table *nodes;
        struct fuse_session *session;
        struct inode_tags *tags;
        struct desks *desks;
        struct tellers *tellers;
        struct kill_watch *kills;
        struct refusals *refusals;
        bool direct_maps; /* the kernel can map what is open for direct I/O */
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
        struct node_handle known; /* to the node */
        struct file_version version; /* that its open found */
        _Atomic bool proves; /* its first read proves that the pages from before that version are gone */
        /* Appending: the source's descriptor follows the program's O_APPEND, which comes with each write. */
        pthread_mutex_t append_lock; /* the descriptor's flag and its position; only taken where it ever appended */
        _Atomic bool appends;
        bool append_below;
};
static inline struct file *file_of(const struct fuse_file_info *fi) { return (struct file *)(uintptr_t)fi->fh; }
void file_close(struct fs *fs, struct file *f);
static inline int file_fd(const struct fuse_file_info *fi) { return cache_fd(file_of(fi)->handle); }

extern const struct fuse_lowlevel_ops fs_ops;

static inline pid_t fs_thread(fuse_req_t req) { return fuse_req_ctx(req)->pid; }
/* ops_name.c: the entry of what was just seen or made; 0, or -errno with nothing known to the kernel.  To be told. */
int fs_entry(struct fs *fs, struct node *parent, const char *name, int dirfd, pid_t thread, struct fuse_entry_param *ret);

/* tell.c: answers with attributes, after whatever pages contradict them are gone. */
void tell_entry(fuse_req_t req, const struct fuse_entry_param *e); /* an interrupted one is forgotten */
void tell_attr(fuse_req_t req, struct node *n, const struct stat *st);
void tell_stale(fuse_req_t req, struct node *n, const struct stat *st); /* ESTALE, so that they are asked for */
/* Attributes as the mount shows them, for an answer and nothing else: the numbers are no longer the source's. */
void show(struct fs *fs, struct stat *st);
void tell_create(fuse_req_t req, const struct fuse_entry_param *e, const struct fuse_file_info *fi);
void tell_open(fuse_req_t req, struct node *n, const struct stat *st, const struct fuse_file_info *fi);
/* Where no pages are in the way: true, and the caller tells them by itself. */
bool tell_at_once(struct fs *fs, struct node *n, const struct stat *st);
void drop_pages(struct fs *fs, struct node *n); /* soon */
int tellers_start(struct fs *fs);
/* From now on nothing waits for the kernel; false: after `seconds` somebody still did. */
bool tellers_quiet(struct fs *fs, unsigned seconds);
void tellers_stop(struct fs *fs);

/* coherence.c */
struct change {
        struct fs *fs;
        struct node *node;       /* NULL: unknown to the kernel */
        struct cache_file *file; /* of a handle; NULL: it is looked for */
        uint64_t off, len;       /* what is touched; len UINT64_MAX: to the end */
        bool attributes_only;    /* the mtime not among them: size and mtime must be the same after it */
        uint64_t grows_to;       /* the size that the kernel gives the file by itself, if it is larger than before */
        bool truncates;          /* to the size that the kernel is told in the answer */
        bool misplaced;          /* not where the kernel thinks that it is (append) */

        struct stat before; /* filled in by change_begin */
        bool owned;         /* `file` was found here */
        enum lease lease;
        int lease_fd, own_fd; /* what the lease is on; -1, or ours to close */
};
/* A change through the mount, as `what` says; `fd`: open on the file.  Each begin that returns 0 has its end; `after`
 * NULL: nothing of it may be believed any more. */
int change_begin(struct change *ch, const struct change *what, int fd);
/* The same for a name below `dir` that moves or goes. */
int change_begin_name(struct change *ch, struct fs *fs, int dir, const char *name);
void change_end(struct change *ch, const struct stat *after);
/* How to open what was found to be of version `v`: as usual; so that it is looked up anew; or while it changes. */
enum opening { OPEN_PLAIN, OPEN_REFUSED, OPEN_CHANGING };
enum opening opening_of(struct fs *fs, struct node *n, const struct file_version *v, pid_t thread);
int refusals_new(struct fs *fs);
void refusals_free(struct fs *fs);

/* read_reply.c; `page`: for the kernel's cache, not for a program's own buffer */
void reply_read(fuse_req_t req, struct file *f, uint64_t off, size_t size, bool page);
int desks_new(struct fs *fs);
void desks_free(struct fs *fs);

/* creds.c: between these two calls this thread acts on the source as the request's user, under the request's umask. */
struct creds {
        bool changed, masked;
};
struct creds creds_assume(fuse_req_t req);
void creds_restore(const struct creds *c);
bool creds_have_umask(void); /* a thread of ours can have one; if not, the kernel is to apply it */

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
void op_ioctl(fuse_req_t req, fuse_ino_t ino, unsigned cmd, void *arg, struct fuse_file_info *fi, unsigned flags,
              const void *in_buf, size_t in_size, size_t out_size);
void op_lseek(fuse_req_t req, fuse_ino_t ino, off_t off, int whence, struct fuse_file_info *fi);
