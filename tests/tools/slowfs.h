/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slowfs: a FUSE file system over a directory that counts what is read from it and models slow disks.  Read-only,
 * unless asked otherwise.
 *
 *        slowfs.c       options, session, start and end
 *        slowfs_ops.c   the tree: nodes and operations
 *        slowfs_wait.c  requests that are answered later: at the model's time, or when a hold ends
 *
 * The tests' source: what reaches it was not served by the cache above, and it can be made slow, failing or stuck.
 */
#pragma once

#define FUSE_USE_VERSION 312
#include <fuse_lowlevel.h>

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/types.h>

#include "diskmodel.h"

#define SLOWFS_XATTR_STATS "user.slowfs.stats" /* on the root: the counters as JSON */
#define SLOWFS_XATTR_RESET "user.slowfs.reset" /* setting it zeroes them */

/* What may be held. */
enum { HOLD_READ = 1, HOLD_OPEN = 2, HOLD_FSYNC = 4, HOLD_WRITE = 8, HOLD_LOOKUP = 16 };

struct slowfs_options {
        const char *backing;
        char *mountpoint; /* absolute */
        int foreground;
        struct diskmodel_params disk;
        const char *fail;      /* reads fail while this file exists ... */
        const char *fail_glob; /* ... if the file's name matches */
        const char *hold;      /* requests wait while this file exists ... */
        const char *hold_glob; /* ... if the file's name matches ... */
        unsigned hold_ops;     /* ... and they are of these kinds */
        const char *stats;
        const char *log; /* a line per read: nanoseconds, inode, offset, length */
        const char *pidfile;
        int direct_io;
        int writable; /* opens for writing, write and fsync; nothing else that would change the backing */
        uint64_t max_read;
        uint64_t readahead; /* UINT64_MAX: as the kernel chose */
        double timeout;     /* of names and attributes */
};

extern struct slowfs_options slowfs_options; /* constant once the session runs */

/* slowfs_ops.c */
extern const struct fuse_lowlevel_ops slowfs_ops;
int slowfs_tree_open(const char *backing); /* 0 or -errno */

/* slowfs_wait.c.  One lock holds the model, the counters and the two queues. */
int slowfs_wait_start(void);
void slowfs_wait_stop(void); /* what still waits is answered EIO */

struct slowfs_read {
        fuse_req_t req;
        uint64_t file; /* inode number: where it lies on the modelled disks */
        off_t off;
        size_t len;    /* how much of it the file has */
        int fd;        /* of the handle, valid until the reply: the kernel releases no file that is being read */
        bool may_hold; /* the file's name matches hold_glob ... */
        bool may_fail; /* ... fail_glob */
};

/* Answers the request, now or later. */
void slowfs_read(const struct slowfs_read *r);
void slowfs_count_open(void);

/* Another request, kept while it is held.  Whoever parks it allocates it, and `data`; afterwards both are freed. */
struct slowfs_later {
        TAILQ_ENTRY(slowfs_later) link;
        void (*go)(const struct slowfs_later *l); /* answers the request */
        fuse_req_t req;
        fuse_ino_t ino;
        struct fuse_file_info fi;
        off_t off;
        char *data;
        size_t size; /* of data */
};

/* True: it waits, and is answered later.  False: it is not held, and still the caller's.  `matches`: its file's name
 * does. */
bool slowfs_park(unsigned kind, bool matches, const struct slowfs_later *l);
void slowfs_reset(void);
int slowfs_stats_json(char *buf, size_t size); /* as snprintf */
