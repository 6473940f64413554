/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of this folder share. */
#pragma once

#include "store/store.h"

struct index;

#define MIRROR_PATH_MAX 48
void mirror_path(char path[MIRROR_PATH_MAX], uint64_t id, const char *suffix);

struct store {
        int dir, lock;
        bool direct;         /* O_DIRECT works here */
        bool was_clean;      /* the last owner left in order, and the index is its */
        uint32_t block_size; /* of the file system */
        struct index *index;
};
