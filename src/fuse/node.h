/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nodes: the files that the kernel knows, one for each inode of the source.
 *
 * A node remembers under which names it was seen (links), not an open descriptor: a tree of a million files must not
 * cost a million descriptors.  Whoever needs the file opens it below its parent's descriptor and checks that it is
 * still the same inode; another one means ESTALE, and the kernel looks up anew.  Only directories in use and unlinked
 * files keep a descriptor, the former in an LRU list.
 *
 * Threads: all functions from anywhere; one lock (struct node_table), never held during I/O.
 */
#pragma once

#include "source/identity.h"

#include <bsd/sys/queue.h>
#include <bsd/sys/tree.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#define NODE_NAME_MAX 1024 /* what FUSE passes */

struct node;
struct node_table;

int node_table_new(int root_fd, int64_t trust_ns, struct node_table **ret);
struct node_table *node_table_free(struct node_table *t);
struct node *node_root(struct node_table *t);
/* FUSE's number for a node, and back. */
uint64_t node_id(const struct node *n);
struct node *node_from_id(struct node_table *t, uint64_t id);
uint64_t node_generation(const struct node *n);

/* The node of the file just seen as `name` in `parent`, with one more lookup by the kernel.  NULL: no memory.
 * `thread`: who looks it up, or 0. */
struct node *node_seen(struct node_table *t, struct node *parent, const char *name, const struct stat *st, pid_t thread);
/* A file without a name (O_TMPFILE); takes `fd` (O_PATH or any) over. */
struct node *node_nameless(struct node_table *t, int fd, const struct stat *st);
void node_forget(struct node_table *t, struct node *n, uint64_t lookups);

/* A directory's descriptor (O_PATH) for *at calls, or -errno.  Give it back with node_dir_done. */
int node_dir(struct node_table *t, struct node *n);
void node_dir_done(struct node_table *t, struct node *n);
void node_hold(struct node_table *t, struct node *n); /* keeps the node alive until node_dir_done */
/* An O_PATH descriptor of the node itself, the caller's to close; -ESTALE where its names lead elsewhere now. */
int node_open_path(struct node_table *t, struct node *n);
/*
 * The same, opened with `flags`, for `thread`.
 *
 * OPEN does not say by which name the program came, and names may have moved behind the mount.  So every name of the
 * node is looked at; one that leads elsewhere now is forgotten and makes it -ESTALE: the kernel looks the path up
 * again.  For as long as it may still trust such a name (`trust_ns`, the entry's timeout), the node is *ambiguous*: an
 * open succeeds only for the thread that has just looked up one of its names, by that name.
 */
int node_open(struct node_table *t, struct node *n, int flags, pid_t thread, struct stat *ret_st);
/* -ESTALE ... */
int node_stat(struct node_table *t, struct node *n, struct stat *ret);

/* Names changed through the mount.  node_pin is called before a name goes, so that a file which somebody holds
 * survives it. */
void node_pin(struct node_table *t, struct node *parent, const char *name);
void node_unpin(struct node_table *t, struct node *parent, const char *name); /* it stayed */
void node_unlinked(struct node_table *t, struct node *parent, const char *name);
void node_renamed(struct node_table *t, struct node *old_parent, const char *old_name, struct node *new_parent,
                  const char *new_name, bool exchange);

/*
 * Versions: what the kernel was told of the file's attributes, and what its pages were read from; see coherence.c.
 */
/* May it be told these attributes at once?  Then they count as told.  Not if it may have pages from before another version
 * was there; but a smaller size shows nothing that is not the file's, and the sooner it knows the better. */
bool node_may_tell(struct node_table *t, struct node *n, const struct file_version *v);
/* It was told after its pages had gone, which is not an answer that it believes.  `grown`: it was made to know a larger
 * size otherwise. */
void node_set_told(struct node_table *t, struct node *n, const struct file_version *v, bool grown);
/* A page that the kernel asked for ended at `end`, or had nothing in it. */
void node_note_end(struct node_table *t, struct node *n, uint64_t end, bool empty);
/* Does it believe this version's size? */
bool node_was_told(struct node_table *t, struct node *n, const struct file_version *v);
bool node_pages_unsettled(struct node_table *t, struct node *n, const struct file_version *v);
/* An open found this version (`settled`: what is read from now on may be kept under it): may the kernel keep the pages
 * that it has?  If not, the old ones are there until the opener has dropped them: nobody keeps any before
 * node_settle_pages. */
bool node_begin_open(struct node_table *t, struct node *n, const struct file_version *v, bool settled);
void node_settle_pages(struct node_table *t, struct node *n, const struct file_version *v);
/* We changed it.  `kernel_knows`: the size that this gave it; `content_kept`: attributes only. */
void node_changed(struct node_table *t, struct node *n, const struct file_version *before, const struct file_version *after,
                  bool kernel_knows, bool content_kept);

/* An open handle, whose descriptor may stand in for the name. */
struct node_handle {
        LIST_ENTRY(node_handle) of_node;
        int fd;
};
void node_add_handle(struct node_table *t, struct node *n, struct node_handle *h);
void node_remove_handle(struct node_table *t, struct node *n, struct node_handle *h);
