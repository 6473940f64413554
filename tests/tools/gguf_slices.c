/* SPDX-License-Identifier: Apache-2.0 */
/* See gguf_slices.h.  A reader that remembers its first fault, so that the parser need not ask after each word. */
#include "gguf_slices.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GGUF_MAGIC 0x46554747u

struct reader {
        FILE *f;
        bool bad;
        uint64_t alignment;
};

struct tensor {
        char name[80];
        uint32_t type;
        uint64_t dims[4];
        uint64_t off; /* from the start of the data */
};

struct ggml_block ggml_block_of(uint32_t type) {
        switch (type) {
        case GGML_F32:
                return (struct ggml_block){ 1, 4 };
        case GGML_F16:
                return (struct ggml_block){ 1, 2 };
        case GGML_Q4_0:
                return (struct ggml_block){ 32, 18 };
        case GGML_Q8_0:
                return (struct ggml_block){ 32, 34 };
        case GGML_Q4_K:
                return (struct ggml_block){ 256, 144 };
        case GGML_Q5_K:
                return (struct ggml_block){ 256, 176 };
        case GGML_Q6_K:
                return (struct ggml_block){ 256, 210 };
        default:
                return (struct ggml_block){ 0, 0 };
        }
}

static void get(struct reader *r, void *p, size_t n) {
        if (!r->bad && fread(p, 1, n, r->f) == n)
                return;
        r->bad = true;
        memset(p, 0, n);
}

static void skip(struct reader *r, uint64_t n) {
        if (n > INT32_MAX || fseeko(r->f, (off_t)n, SEEK_CUR) < 0)
                r->bad = true;
}

static uint32_t get_u32(struct reader *r) {
        uint32_t v;

        get(r, &v, sizeof(v));
        return v;
}

static uint64_t get_u64(struct reader *r) {
        uint64_t v;

        get(r, &v, sizeof(v));
        return v;
}

/* What does not fit is dropped: the names looked for here are short. */
static void get_string(struct reader *r, char *buf, size_t size) {
        const uint64_t len = get_u64(r);
        const size_t n = len < size - 1 ? (size_t)len : size - 1;

        get(r, buf, n);
        buf[n] = '\0';
        skip(r, len - n);
}

static unsigned scalar_size(uint32_t type) {
        static const unsigned char sizes[] = {
                [GGUF_U8] = 1,  [GGUF_I8] = 1,   [GGUF_U16] = 2, [GGUF_I16] = 2, [GGUF_U32] = 4, [GGUF_I32] = 4,
                [GGUF_F32] = 4, [GGUF_BOOL] = 1, [GGUF_U64] = 8, [GGUF_I64] = 8, [GGUF_F64] = 8
        };

        return type < sizeof(sizes) ? sizes[type] : 0;
}

static void skip_array(struct reader *r) {
        const uint32_t type = get_u32(r);
        const uint64_t n = get_u64(r);

        if (type == GGUF_STRING)
                for (uint64_t i = 0; i < n && !r->bad; i++)
                        skip(r, get_u64(r));
        else if (scalar_size(type) && n < UINT32_MAX)
                skip(r, n * scalar_size(type));
        else
                r->bad = true;
}

static void get_metadata(struct reader *r) {
        char key[64];
        uint32_t type;

        get_string(r, key, sizeof(key));
        type = get_u32(r);
        if (type == GGUF_U32 && strcmp(key, "general.alignment") == 0)
                r->alignment = get_u32(r);
        else if (type == GGUF_STRING)
                skip(r, get_u64(r));
        else if (type == GGUF_ARRAY)
                skip_array(r);
        else if (scalar_size(type))
                skip(r, scalar_size(type));
        else
                r->bad = true;
}

static void get_tensor(struct reader *r, struct tensor *t) {
        uint32_t n;

        get_string(r, t->name, sizeof(t->name));
        n = get_u32(r);
        if (n > 4)
                r->bad = true;
        for (uint32_t i = 0; i < 4; i++)
                t->dims[i] = !r->bad && i < n ? get_u64(r) : 1;
        t->type = get_u32(r);
        t->off = get_u64(r);
}

struct slices {
        struct expert_slice *s;
        size_t count, room;
};

static int add_slice(struct slices *all, const struct expert_slice *s) {
        if (all->count == all->room) {
                const size_t room = all->room ? all->room * 2 : 1024;
                struct expert_slice *grown = realloc(all->s, room * sizeof(*grown));

                if (!grown)
                        return -ENOMEM;
                all->s = grown;
                all->room = room;
        }
        all->s[all->count++] = *s;
        return 0;
}

/* blk.N.ffn_{gate,up,down}_exps.weight: the last dimension counts the experts. */
static int cut(struct slices *all, const struct tensor *t, uint64_t data_off) {
        const struct ggml_block b = ggml_block_of(t->type);
        struct expert_slice s;
        int r = 0, end = 0;

        if (sscanf(t->name, "blk.%u.ffn_%*[a-z]_exps.weight%n", &s.layer, &end) < 1 || end == 0)
                return 0;
        if (b.values == 0 || t->dims[0] % b.values != 0 || t->dims[2] > 65536)
                return -EINVAL;
        memcpy(s.tensor, t->name, sizeof(s.tensor));
        s.len = t->dims[0] / b.values * b.bytes * t->dims[1];
        for (s.expert = 0; s.expert < t->dims[2] && r == 0; s.expert++) {
                s.off = data_off + t->off + s.expert * s.len;
                r = add_slice(all, &s);
        }
        return r;
}

static int parse(struct reader *r, struct slices *all) {
        uint64_t n_tensors, n_metadata, data_off;
        struct tensor *t;
        int err = 0;

        if (get_u32(r) != GGUF_MAGIC || get_u32(r) < 2)
                return -EINVAL;
        n_tensors = get_u64(r);
        n_metadata = get_u64(r);
        if (n_tensors > 1 << 20)
                return -EINVAL;
        for (uint64_t i = 0; i < n_metadata && !r->bad; i++)
                get_metadata(r);
        t = calloc(n_tensors + 1, sizeof(*t));
        if (!t)
                return -ENOMEM;
        for (uint64_t i = 0; i < n_tensors && !r->bad; i++)
                get_tensor(r, &t[i]);
        if (r->bad || r->alignment == 0)
                err = -EINVAL;
        data_off = (uint64_t)ftello(r->f);
        data_off += (r->alignment - data_off % r->alignment) % r->alignment;
        for (uint64_t i = 0; i < n_tensors && err == 0; i++)
                err = cut(all, &t[i], data_off);
        free(t);
        return err;
}

int gguf_slices(const char *path, struct expert_slice **ret, size_t *ret_count) {
        struct reader r = { .f = fopen(path, "re"), .alignment = 32 };
        struct slices all = { 0 };
        int err;

        if (!r.f)
                return -errno;
        err = parse(&r, &all);
        fclose(r.f);
        if (err < 0) {
                free(all.s);
                return err;
        }
        *ret = all.s;
        *ret_count = all.count;
        return 0;
}
