/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Globs over paths relative to the mount: * and ? stop at '/', ** crosses it, [a-z] and [!a-z] are sets.
 * A pattern without '/' matches the last component, as in .gitignore, so `*.gguf` means every GGUF file.
 * fnmatch(3) has no **; this is small enough to hold.  Pure.
 */
#pragma once

#include <stdbool.h>

bool glob_match(const char *pattern, const char *path);
