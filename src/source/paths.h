/* SPDX-License-Identifier: Apache-2.0 */
/* Paths as users give them, compared without resolving anything inside a mount of ours. */
#pragma once

#include <stdbool.h>

/* The absolute form of `path` with "." and ".." and double slashes resolved by text alone.  -ENOMEM, -errno. */
int path_normalise(const char *path, char **ret);

/* Does `path` (or, where it is not there yet, its nearest parent) lie at or below the directory that `dir` is open on?
 * By device and inode, so that no other name for it helps. */
bool path_is_below(const char *path, int dir);
