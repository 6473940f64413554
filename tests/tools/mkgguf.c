/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mkgguf: write a GGUF v3 file of a mixture-of-experts model, as large as wanted.
 *
 * Everything but the weights' values is as in a real file of the Qwen3-MoE family: metadata, a small byte-level BPE
 * tokenizer that works, tensor names and order, quantised types and their mixture, dimensions, alignment.  The values
 * are random, with scales small enough that what a model computes from them stays finite.  The same arguments give
 * the same bytes.
 *
 * The size is met from below by choosing layers and experts; it is exact to about one expert of each layer.
 * Left out: shards, other architectures, other quantisations.
 */
#include "gguf_slices.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ALIGNMENT 32u
#define HEAD_DIM 128u
#define MAX_TENSORS 2048u
#define BUFFER (4u << 20)

struct model {
        unsigned layers, experts, used;
        unsigned hidden, ff, heads, kv_heads, vocab;
        uint64_t seed;
};

struct tensor {
        char name[64];
        uint32_t type;
        unsigned n_dims;
        uint64_t dims[3];
        uint64_t off, len;
};

struct plan {
        struct tensor t[MAX_TENSORS];
        unsigned count;
        uint64_t data_len;
};

/* ---- which tensors ---- */

static uint64_t align(uint64_t n) { return (n + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

static void add(struct plan *p, const char *name, uint32_t type, uint64_t d0, uint64_t d1, uint64_t d2) {
        struct tensor *t = &p->t[p->count++];
        const struct ggml_block b = ggml_block_of(type);

        snprintf(t->name, sizeof(t->name), "%s.weight", name);
        t->type = type;
        t->dims[0] = d0;
        t->dims[1] = d1 ? d1 : 1;
        t->dims[2] = d2 ? d2 : 1;
        t->n_dims = d2 ? 3 : d1 ? 2 : 1;
        t->off = p->data_len;
        t->len = d0 / b.values * b.bytes * t->dims[1] * t->dims[2];
        p->data_len = align(t->off + t->len);
}

static void add_block(struct plan *p, unsigned layer, const char *name, uint32_t type, uint64_t d0, uint64_t d1,
                      uint64_t d2) {
        char full[48];

        snprintf(full, sizeof(full), "blk.%u.%s", layer, name);
        add(p, full, type, d0, d1, d2);
}

/* Quantised files of this kind spend more bits on the first and last eighth of the layers and on each third between. */
static uint32_t better_type(const struct model *m, unsigned layer) {
        const unsigned eighth = m->layers / 8;
        const bool more = layer < eighth || layer >= 7 * m->layers / 8 || (layer - eighth) % 3 == 2;

        return more ? GGML_Q6_K : GGML_Q4_K;
}

static void add_layer(struct plan *p, const struct model *m, unsigned i) {
        const uint64_t h = m->hidden, q = m->heads * HEAD_DIM, kv = m->kv_heads * HEAD_DIM;

        add_block(p, i, "attn_k", GGML_Q4_K, h, kv, 0);
        add_block(p, i, "attn_k_norm", GGML_F32, HEAD_DIM, 0, 0);
        add_block(p, i, "attn_norm", GGML_F32, h, 0, 0);
        add_block(p, i, "attn_output", GGML_Q4_K, q, h, 0);
        add_block(p, i, "attn_q", GGML_Q4_K, h, q, 0);
        add_block(p, i, "attn_q_norm", GGML_F32, HEAD_DIM, 0, 0);
        add_block(p, i, "attn_v", better_type(m, i), h, kv, 0);
        add_block(p, i, "ffn_down_exps", better_type(m, i), m->ff, h, m->experts);
        add_block(p, i, "ffn_gate_exps", GGML_Q4_K, h, m->ff, m->experts);
        add_block(p, i, "ffn_gate_inp", GGML_F32, h, m->experts, 0);
        add_block(p, i, "ffn_norm", GGML_F32, h, 0, 0);
        add_block(p, i, "ffn_up_exps", GGML_Q4_K, h, m->ff, m->experts);
}

static void make_plan(struct plan *p, const struct model *m) {
        p->count = 0;
        p->data_len = 0;
        add(p, "output", GGML_Q6_K, m->hidden, m->vocab, 0);
        add(p, "output_norm", GGML_F32, m->hidden, 0, 0);
        add(p, "token_embd", GGML_Q4_K, m->hidden, m->vocab, 0);
        for (unsigned i = 0; i < m->layers; i++)
                add_layer(p, m, i);
}

/* ---- the header ---- */

struct bytes {
        char *p;
        size_t len, room;
};

static void put(struct bytes *b, const void *data, size_t n) {
        if (b->len + n > b->room) {
                b->room = (b->len + n) * 2;
                b->p = realloc(b->p, b->room);
                if (!b->p) {
                        perror("mkgguf");
                        exit(2);
                }
        }
        memcpy(b->p + b->len, data, n);
        b->len += n;
}

static void put_u32(struct bytes *b, uint32_t v) { put(b, &v, sizeof(v)); }
static void put_u64(struct bytes *b, uint64_t v) { put(b, &v, sizeof(v)); }

static void put_string(struct bytes *b, const char *s) {
        put_u64(b, strlen(s));
        put(b, s, strlen(s));
}

struct header {
        struct bytes b;
        uint64_t n_metadata;
};

static void key(struct header *h, const char *name, uint32_t type) {
        put_string(&h->b, name);
        put_u32(&h->b, type);
        h->n_metadata++;
}

static void key_string(struct header *h, const char *name, const char *value) {
        key(h, name, GGUF_STRING);
        put_string(&h->b, value);
}

static void key_u32(struct header *h, const char *name, uint32_t value) {
        key(h, name, GGUF_U32);
        put_u32(&h->b, value);
}

static void key_f32(struct header *h, const char *name, float value) {
        key(h, name, GGUF_F32);
        put(&h->b, &value, sizeof(value));
}

static void key_bool(struct header *h, const char *name, bool value) {
        const char v = value;

        key(h, name, GGUF_BOOL);
        put(&h->b, &v, 1);
}

static void key_array(struct header *h, const char *name, uint32_t type, uint64_t count) {
        key(h, name, GGUF_ARRAY);
        put_u32(&h->b, type);
        put_u64(&h->b, count);
}

static void put_model(struct header *h, const struct model *m) {
        key_string(h, "general.architecture", "qwen3moe");
        key_string(h, "general.type", "model");
        key_string(h, "general.name", "random mixture of experts");
        key_u32(h, "general.quantization_version", 2);
        key_u32(h, "general.file_type", 15); /* mostly Q4_K, medium */
        key_u32(h, "general.alignment", ALIGNMENT);
        key_u32(h, "qwen3moe.block_count", m->layers);
        key_u32(h, "qwen3moe.context_length", 32768);
        key_u32(h, "qwen3moe.embedding_length", m->hidden);
        key_u32(h, "qwen3moe.feed_forward_length", 3 * m->hidden);
        key_u32(h, "qwen3moe.attention.head_count", m->heads);
        key_u32(h, "qwen3moe.attention.head_count_kv", m->kv_heads);
        key_u32(h, "qwen3moe.attention.key_length", HEAD_DIM);
        key_u32(h, "qwen3moe.attention.value_length", HEAD_DIM);
        key_f32(h, "qwen3moe.attention.layer_norm_rms_epsilon", 1e-6f);
        key_f32(h, "qwen3moe.rope.freq_base", 1e6f);
        key_u32(h, "qwen3moe.expert_count", m->experts);
        key_u32(h, "qwen3moe.expert_used_count", m->used);
        key_u32(h, "qwen3moe.expert_feed_forward_length", m->ff);
}

/*
 * A byte-level vocabulary names each byte by a printable character: itself, or for those that are not printable the
 * characters from U+0100 on.
 */
static void byte_name(unsigned byte, char *buf) {
        static unsigned names[256], next = 256;
        unsigned c;

        for (unsigned i = 0; next == 256 && i < 256; i++)
                names[i] = (i > 32 && i < 127) || (i > 160 && i != 173) ? i : 0;
        for (unsigned i = 0; i < 256; i++)
                if (names[i] == 0)
                        names[i] = next++;
        c = names[byte];
        if (c < 128) {
                *buf++ = (char)c;
        } else {
                *buf++ = (char)(0xc0 | c >> 6);
                *buf++ = (char)(0x80 | (c & 63));
        }
        *buf = '\0';
}

#define PAIRS (26u * 26u) /* the only merges: two lower case letters */

/* The vocabulary: bytes, pairs of letters, unused ones, and at the end one that ends a text. */
static void token(unsigned id, unsigned vocab, char *buf, size_t size) {
        if (id < 256)
                byte_name(id, buf);
        else if (id < 256 + PAIRS)
                snprintf(buf, size, "%c%c", 'a' + (int)((id - 256) / 26), 'a' + (int)((id - 256) % 26));
        else
                snprintf(buf, size, id == vocab - 1 ? "<|endoftext|>" : "[unused%u]", id);
}

static void put_tokenizer(struct header *h, unsigned vocab) {
        char text[32];

        key_string(h, "tokenizer.ggml.model", "gpt2");
        key_string(h, "tokenizer.ggml.pre", "qwen2");
        key_array(h, "tokenizer.ggml.tokens", GGUF_STRING, vocab);
        for (unsigned i = 0; i < vocab; i++) {
                token(i, vocab, text, sizeof(text));
                put_string(&h->b, text);
        }
        key_array(h, "tokenizer.ggml.token_type", GGUF_I32, vocab);
        for (unsigned i = 0; i < vocab; i++)
                put_u32(&h->b, i < 256 + PAIRS ? 1 : i == vocab - 1 ? 3 : 5); /* normal, control, unused */
        key_array(h, "tokenizer.ggml.merges", GGUF_STRING, PAIRS);
        for (unsigned i = 0; i < PAIRS; i++) {
                snprintf(text, sizeof(text), "%c %c", 'a' + (int)(i / 26), 'a' + (int)(i % 26));
                put_string(&h->b, text);
        }
        key_u32(h, "tokenizer.ggml.eos_token_id", vocab - 1);
        key_u32(h, "tokenizer.ggml.padding_token_id", vocab - 1);
        key_bool(h, "tokenizer.ggml.add_bos_token", false);
}

static void put_tensors(struct bytes *b, const struct plan *p) {
        for (unsigned i = 0; i < p->count; i++) {
                const struct tensor *t = &p->t[i];

                put_string(b, t->name);
                put_u32(b, t->n_dims);
                put(b, t->dims, t->n_dims * sizeof(t->dims[0]));
                put_u32(b, t->type);
                put_u64(b, t->off);
        }
}

static struct bytes make_header(const struct model *m, const struct plan *p) {
        static const char zeros[ALIGNMENT];
        struct header h = { 0 };
        struct bytes b = { 0 };

        put_model(&h, m);
        put_tokenizer(&h, m->vocab);
        put(&b, "GGUF", 4);
        put_u32(&b, 3);
        put_u64(&b, p->count);
        put_u64(&b, h.n_metadata);
        put(&b, h.b.p, h.b.len);
        put_tensors(&b, p);
        put(&b, zeros, align(b.len) - b.len);
        free(h.b.p);
        return b;
}

/* ---- the weights ---- */

/* A counter through a mixer: no chain between the words, so that they are computed side by side. */
static uint64_t mix(uint64_t x) {
        x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
        x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
        return x ^ x >> 31;
}

static void fill_random(char *buf, size_t len, uint64_t *counter) {
        uint64_t c = *counter;

        for (size_t i = 0; i < len; i += 8) {
                const uint64_t w = mix(c += UINT64_C(0x9e3779b97f4a7c15));

                memcpy(buf + i, &w, 8);
        }
        *counter = c;
}

/* A half-precision number between 2^-11 and 2^-10 from any 16 bits. */
static void make_scale(char *p) {
        uint16_t v;

        memcpy(&v, p, 2);
        v = (uint16_t)((v & 0x3ff) | 4 << 10);
        memcpy(p, &v, 2);
}

/* Norms are about one, the router's weights about zero. */
static void make_floats(char *buf, size_t len, bool norm) {
        for (size_t i = 0; i < len; i += 4) {
                int32_t r;
                float v;

                memcpy(&r, buf + i, 4);
                v = (norm ? 1.0f : 0.0f) + (float)r * (0.05f / 2147483648.0f);
                memcpy(buf + i, &v, 4);
        }
}

static void make_valid(const struct tensor *t, char *buf, size_t len) {
        const struct ggml_block b = ggml_block_of(t->type);

        if (t->type == GGML_F32) {
                make_floats(buf, len, t->n_dims == 1);
                return;
        }
        for (size_t i = 0; i < len; i += b.bytes) {
                if (t->type == GGML_Q4_K) {
                        make_scale(buf + i);
                        make_scale(buf + i + 2);
                } else {
                        make_scale(buf + i + b.bytes - 2);
                }
        }
}

static int write_all(int fd, const char *buf, size_t len) {
        while (len > 0) {
                const ssize_t n = write(fd, buf, len);

                if (n < 0 && errno != EINTR)
                        return -errno;
                buf += n < 0 ? 0 : n;
                len -= n < 0 ? 0 : (size_t)n;
        }
        return 0;
}

/* `buf` has room for BUFFER bytes and a word. */
static int write_tensor(int fd, const struct tensor *t, uint64_t seed, char *buf) {
        const unsigned block = ggml_block_of(t->type).bytes;
        uint64_t counter = mix(seed ^ mix(t->off + 1)), left = t->len;
        const size_t padding = (size_t)(align(t->len) - t->len);
        int r = 0;

        while (left > 0 && r == 0) {
                const size_t most = BUFFER / block * block, n = left < most ? (size_t)left : most;

                fill_random(buf, n, &counter);
                make_valid(t, buf, n);
                r = write_all(fd, buf, n);
                left -= n;
        }
        memset(buf, 0, padding);
        return r < 0 ? r : write_all(fd, buf, padding);
}

static int write_model(const char *path, const struct model *m, const struct plan *p) {
        struct bytes header = make_header(m, p);
        char *buf = malloc(BUFFER + 8);
        const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
        int r = !buf ? -ENOMEM : fd < 0 ? -errno : 0;

        /* A full disk should say so now; a file system that cannot tell will say so later. */
        if (r == 0 && (r = -posix_fallocate(fd, 0, (off_t)(header.len + p->data_len))) != -ENOSPC)
                r = 0;
        if (r == 0)
                r = write_all(fd, header.p, header.len);
        for (unsigned i = 0; i < p->count && r == 0; i++)
                r = write_tensor(fd, &p->t[i], m->seed, buf);
        if (fd >= 0 && close(fd) < 0 && r == 0)
                r = -errno;
        free(buf);
        free(header.p);
        return r;
}

/* ---- the size ---- */

static uint64_t file_size(struct plan *p, const struct model *m) {
        struct bytes header;
        uint64_t n;

        make_plan(p, m);
        header = make_header(m, p);
        n = header.len + p->data_len;
        free(header.p);
        return n;
}

/* Dimensions of the real ones where there is room for them. */
static void choose_dimensions(struct model *m, uint64_t size) {
        const bool large = size >= UINT64_C(3) << 30, small = size < UINT64_C(512) << 20;

        m->hidden = small ? 1024 : 2048;
        m->ff = small ? 512 : 768;
        m->heads = small ? 8 : 32;
        m->kv_heads = small ? 2 : 4;
        m->vocab = large ? 151936 : small ? 2048 : 32000;
}

/* First layers with a usual number of experts, then as many experts as still fit.  What the user gave stays. */
static int fit(struct model *m, struct plan *p, uint64_t size) {
        const unsigned usual = size >= UINT64_C(3) << 30 ? 128 : size >= UINT64_C(512) << 20 ? 32 : 8;
        const bool find_layers = m->layers == 0, find_experts = m->experts == 0;

        if (find_experts)
                m->experts = usual;
        if (find_layers)
                m->layers = 1;
        while (find_layers && m->layers < 94 && (m->layers++, file_size(p, m) <= size))
                ;
        while (find_layers && m->layers > 1 && file_size(p, m) > size)
                m->layers--;
        while (find_experts && m->experts < 512 && (m->experts++, file_size(p, m) <= size))
                ;
        while (find_experts && m->experts > 2 && file_size(p, m) > size)
                m->experts--;
        m->used = m->experts < 16 ? (m->experts + 1) / 2 : 8;
        if (file_size(p, m) <= size || (!find_layers && !find_experts))
                return 0;
        fprintf(stderr, "mkgguf: the smallest such model has %" PRIu64 " bytes\n", file_size(p, m));
        return -EINVAL;
}

/* ---- the command ---- */

static uint64_t parse_size(const char *s) {
        const char *units = "KMGT", *unit;
        char *end;
        double v = strtod(s, &end);

        if (end != s && *end && (unit = strchr(units, *end)))
                for (end++; unit >= units; unit--)
                        v *= 1024;
        if (end == s || *end || !(v >= 0 && v < 9e18)) {
                fprintf(stderr, "mkgguf: %s: not a size\n", s);
                exit(1);
        }
        return (uint64_t)v;
}

static int print_slices(const char *path) {
        struct expert_slice *s;
        size_t n;
        const int r = gguf_slices(path, &s, &n);

        if (r < 0) {
                fprintf(stderr, "mkgguf: %s: %s\n", path, r == -EINVAL ? "not a GGUF file" : strerror(-r));
                return 2;
        }
        printf("tensor\tlayer\texpert\toffset\tlength\n");
        for (size_t i = 0; i < n; i++)
                printf("%s\t%u\t%u\t%" PRIu64 "\t%" PRIu64 "\n", s[i].tensor, s[i].layer, s[i].expert, s[i].off,
                       s[i].len);
        free(s);
        return fflush(stdout) == 0 ? 0 : 2;
}

static void usage(FILE *f) {
        fputs("usage: mkgguf OUT --size=SIZE [--layers=N] [--experts=N] [--seed=N]\n"
              "       mkgguf --slices FILE\n"
              "\n"
              "Write a GGUF mixture-of-experts model with random weights; or print where the experts of one lie:\n"
              "tensor, layer, expert, offset, length, separated by tabs, under a line that names them.\n"
              "With both --layers and --experts the size only chooses the dimensions (3G and 512M are the steps).\n",
              f);
}

static int make(const char *path, struct model *m, uint64_t size) {
        struct plan *p = calloc(1, sizeof(*p));
        int r;

        if (!p)
                return 2;
        choose_dimensions(m, size);
        r = fit(m, p, size);
        if (r == 0) {
                r = write_model(path, m, p);
                if (r < 0)
                        fprintf(stderr, "mkgguf: %s: %s\n", path, strerror(-r));
                else
                        printf("%s: %" PRIu64 " bytes, %u layers, %u experts, %u used\n", path, file_size(p, m),
                               m->layers, m->experts, m->used);
        }
        free(p);
        return r < 0 ? 2 : 0;
}

int main(int argc, char **argv) {
        static const struct option longs[] = {
                { "size", required_argument, NULL, 's' },
                { "layers", required_argument, NULL, 'l' },
                { "experts", required_argument, NULL, 'e' },
                { "seed", required_argument, NULL, 'r' },
                { "slices", required_argument, NULL, 'p' },
                { "help", no_argument, NULL, 'h' },
                { NULL, 0, NULL, 0 },
        };
        struct model m = { .seed = 1 };
        uint64_t size = 0;
        int c;

        while ((c = getopt_long(argc, argv, "h", longs, NULL)) != -1)
                switch (c) {
                case 's':
                        size = parse_size(optarg);
                        break;
                case 'l':
                        m.layers = (unsigned)strtoul(optarg, NULL, 10);
                        break;
                case 'e':
                        m.experts = (unsigned)strtoul(optarg, NULL, 10);
                        break;
                case 'r':
                        m.seed = strtoull(optarg, NULL, 10);
                        break;
                case 'p':
                        return print_slices(optarg);
                case 'h':
                        usage(stdout);
                        return 0;
                default:
                        usage(stderr);
                        return 1;
                }
        if (optind + 1 != argc || size == 0 || m.layers > 128 || m.experts > 4096) {
                usage(stderr);
                return 1;
        }
        return make(argv[optind], &m, size);
}
