/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The slow directory: its root, and reads of its files.  Never written by the cache.
 *
 * The root is opened before the mount comes over it; from then on only *at calls below that descriptor are made, so
 * no path is ever resolved through our own mount.
 *
 * Reads are exact: the kernel's readahead is off on our descriptors (FADV_RANDOM), because it would fetch what nobody
 * asked for on a slow disk, and the mount's own readahead already asks for what a sequential reader wants.  Pages are
 * not left behind in the source's page cache (RWF_DONTCACHE, Linux 6.14) where the file system can: the mount's page
 * cache and the mirror hold the same bytes already.
 *
 * Threads: all functions from anywhere.
 */
#pragma once

#include "io/io.h"
#include "source/identity.h"

#include <stdatomic.h>

struct source;

int source_new(const char *path, struct source **ret); /* opens the directory; -ENOTDIR ... */
int source_start(struct source *s); /* its thread; in the process that will serve */
struct source *source_free(struct source *s);
int source_root(const struct source *s); /* the root's descriptor, ours to keep */

/* `fd` is open on the file's file system (-EXDEV otherwise); `path` is relative to the root.  -errno. */
int source_identity(struct source *s, int fd, const struct stat *st, const char *path, struct identity *ret);
/* The true path of what `fd` (O_PATH will do) is open on, relative to the root, with `/name` behind it unless that is
 * NULL.  From the kernel, not from what was looked up before: folders move behind the mount.  -ENOENT: it has none. */
int source_path(const struct source *s, int fd, const char *name, char **ret);

/* A descriptor that content will be read from. */
void source_prepare_fd(int fd);
/*
 * May what is read from now on be kept under this version?  Only if another change would show in it: it is old enough
 * (file_version_settled), and no page of the source is dirty under a shared map, where stores move no time until the
 * page was written back.  So the source is made to write back first, as the kernel would within seconds by itself, and
 * is looked at again.  False where that takes longer than an open may wait: ask again later.
 * (tmpfs writes nothing back: there stores through a map cannot be seen.)
 */
bool source_settle(struct source *s, int fd, const struct file_version *v);

/*
 * Is anybody else about to write the file?  LEASE_HELD: nobody, and whoever opens it for that waits until the lease ends.
 * Hold it for one change, never across a wait for anything else, and do not open the file meanwhile.  `fd`: open for
 * writing, then nobody else may have the file open at all; or for reading only, then nobody may have it open for writing.
 * LEASE_UNKNOWN: the file system has no leases that count (its files change elsewhere too), or we may not take them.
 */
enum lease { LEASE_HELD, LEASE_REFUSED, LEASE_UNKNOWN };
enum lease source_lease(struct source *s, int fd);
void source_unlease(int fd);

/* Prepare `op` as an exact read; the caller sets done and submits it. */
void source_prepare_read(struct source *s, struct io_op *op, int fd, void *buf, size_t len, uint64_t off);
/* To be told of each result, so that a flag which the source does not know is not tried again. */
void source_note_result(struct source *s, const struct io_op *op);
