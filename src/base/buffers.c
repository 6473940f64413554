/* SPDX-License-Identifier: Apache-2.0 */
#include "base/buffers.h"

#include "base/fault.h"
#include "base/util.h"

#include <errno.h>
#include <pthread.h>
#include <sys/mman.h>

enum { CLASSES = 10 }; /* 4 KiB << 0..9 */

struct idle {
        struct idle *next;
};

struct buffer_pool {
        pthread_mutex_t lock;
        size_t bound, held;
        struct idle *idle[CLASSES];
};

static unsigned class_of(size_t size) {
        unsigned c = 0;
        while (((size_t)BLOCK << c) < size)
                c++;
        return c;
}

size_t buffer_room(size_t size) { return (size_t)BLOCK << class_of(size); }

int buffer_pool_new(size_t bound, struct buffer_pool **ret) {
        struct buffer_pool *p = calloc(1, sizeof *p);
        if (!p)
                return -ENOMEM;
        pthread_mutex_init(&p->lock, NULL);
        p->bound = bound;
        *ret = p;
        return 0;
}

/* Give idle memory of the other classes back to the system until `size` more fits below the bound. */
static void trim(struct buffer_pool *p, size_t size) {
        for (int c = CLASSES - 1; c >= 0 && p->held + size > p->bound; c--)
                while (p->idle[c] && p->held + size > p->bound) {
                        struct idle *b = p->idle[c];
                        p->idle[c] = b->next;
                        p->held -= (size_t)BLOCK << c;
                        munmap(b, (size_t)BLOCK << c);
                }
}

void *buffer_get(struct buffer_pool *p, size_t size) {
        unsigned c = class_of(size);
        size_t full = (size_t)BLOCK << c;
        void *buf;

        if (c >= CLASSES || fault_check(FAULT_BUFFER) < 0)
                return NULL;
        pthread_mutex_lock(&p->lock);
        if ((buf = p->idle[c])) {
                p->idle[c] = p->idle[c]->next;
                pthread_mutex_unlock(&p->lock);
                return buf;
        }
        trim(p, full);
        bool fits = p->held + full <= p->bound;
        if (fits)
                p->held += full;
        pthread_mutex_unlock(&p->lock);
        if (!fits)
                return NULL;

        /* mmap, not malloc: what is trimmed really returns to the system, whatever was allocated around it. */
        buf = mmap(NULL, full, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (buf != MAP_FAILED)
                return buf;
        pthread_mutex_lock(&p->lock);
        p->held -= full;
        pthread_mutex_unlock(&p->lock);
        return NULL;
}

void buffer_put(struct buffer_pool *p, void *buf, size_t size) {
        unsigned c = class_of(size);
        struct idle *b = buf;

        if (!buf)
                return;
        pthread_mutex_lock(&p->lock);
        b->next = p->idle[c];
        p->idle[c] = b;
        pthread_mutex_unlock(&p->lock);
}

size_t buffer_pool_held(struct buffer_pool *p) {
        pthread_mutex_lock(&p->lock);
        size_t held = p->held;
        pthread_mutex_unlock(&p->lock);
        return held;
}

struct buffer_pool *buffer_pool_free(struct buffer_pool *p) {
        if (!p)
                return NULL;
        for (unsigned c = 0; c < CLASSES; c++)
                while (p->idle[c]) {
                        struct idle *b = p->idle[c];
                        p->idle[c] = b->next;
                        munmap(b, (size_t)BLOCK << c);
                }
        pthread_mutex_destroy(&p->lock);
        free(p);
        return NULL;
}
