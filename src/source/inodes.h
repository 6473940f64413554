/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inode numbers as the mount shows them.
 *
 * The mount has one st_dev for everything below it, but below the source there may be several file systems, or
 * subvolumes, each with an inode 256 of its own.  find(1) would take the second for a loop, cp and tar for a hard link.
 * So the source's own file system shows its numbers as they are, and each of the others a tag in the upper 16 bits,
 * which local file systems leave free.  The tag comes from the file system's identity, so that it is the same at the next
 * mount, unless two of them fall on the same.
 *
 * Threads: all functions from anywhere.
 */
#pragma once

#include "source/identity.h"

struct inode_tags;

int inode_tags_new(dev_t root, struct inode_tags **ret);
struct inode_tags *inode_tags_free(struct inode_tags *t);

/* A file of this device was seen, as `name` below `dir`. */
void inode_tags_meet(struct inode_tags *t, dev_t dev, int dir, const char *name);
/* What the mount shows for it.  The device was met. */
ino_t inode_tags_show(struct inode_tags *t, dev_t dev, ino_t ino);
