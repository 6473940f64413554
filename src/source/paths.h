/* SPDX-License-Identifier: Apache-2.0 */
/* Paths as users give them, compared without resolving anything inside a mount of ours. */
#pragma once

#include <stdbool.h>

/* The absolute form of `path` with "." and ".." and double slashes resolved by text alone.  -ENOMEM, -errno. */
int path_normalise(const char *path, char **ret);

/* Does `path` (or, where it is not there yet, its nearest parent) lie at or below the directory `dir`, under whatever
 * name: through links, through bind mounts, or inside an image below it that a loop device shows elsewhere?  `dir` is
 * absolute, without links, and open as `dir_fd`. */
bool path_is_below(const char *path, const char *dir, int dir_fd);
