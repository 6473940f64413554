/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the experts lie in a GGUF file: the header is read, and each stacked expert tensor cut into its slices.
 *
 * For test tools: no file that hostile hands made (the library has a reader for those), one shard.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct expert_slice {
        char tensor[80];
        unsigned layer, expert;
        uint64_t off, len; /* in the file */
};

/* In the order of the file.  0 or -errno; -EINVAL: not a GGUF file or one that is not understood. */
int gguf_slices(const char *path, struct expert_slice **ret, size_t *ret_count);

/* GGML's block of a type: how many values in how many bytes; 0 for a type that is not known here. */
struct ggml_block {
        unsigned values, bytes;
};
struct ggml_block ggml_block_of(uint32_t type);

enum { GGML_F32 = 0, GGML_F16 = 1, GGML_Q4_0 = 2, GGML_Q8_0 = 8, GGML_Q4_K = 12, GGML_Q5_K = 13, GGML_Q6_K = 14 };

/* The types of metadata values. */
enum {
        GGUF_U8,
        GGUF_I8,
        GGUF_U16,
        GGUF_I16,
        GGUF_U32,
        GGUF_I32,
        GGUF_F32,
        GGUF_BOOL,
        GGUF_STRING,
        GGUF_ARRAY,
        GGUF_U64,
        GGUF_I64,
        GGUF_F64
};
