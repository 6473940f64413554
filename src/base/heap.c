/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An indexed binary min-heap; see heap.h.  No lock of its own, no allocation
 * outside heap_reserve.
 */
#include "base/heap.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

static uint32_t *position(const struct heap *h, const void *item) {
        return (uint32_t *)((char *)item + h->index_at);
}

static void place(struct heap *h, uint32_t at, struct heap_slot s) {
        h->slots[at] = s;
        *position(h, s.item) = at + 1;
}

static bool precedes(const struct heap *h, const struct heap_slot *a, const struct heap_slot *b) {
        if (a->key < b->key)
                return true;
        if (a->key > b->key || !h->first)
                return false;
        return h->first(a->item, b->item);
}

static void sift_up(struct heap *h, uint32_t at, struct heap_slot s) {
        while (at > 0) {
                uint32_t parent = (at - 1) / 2;

                if (!precedes(h, &s, &h->slots[parent]))
                        break;
                place(h, at, h->slots[parent]);
                at = parent;
        }
        place(h, at, s);
}

static void sift_down(struct heap *h, uint32_t at, struct heap_slot s) {
        for (;;) {
                uint32_t child = 2 * at + 1;

                if (child >= h->count)
                        break;
                if (child + 1 < h->count && precedes(h, &h->slots[child + 1], &h->slots[child]))
                        child++;
                if (!precedes(h, &h->slots[child], &s))
                        break;
                place(h, at, h->slots[child]);
                at = child;
        }
        place(h, at, s);
}

static void settle(struct heap *h, uint32_t at, struct heap_slot s) {
        if (at > 0 && precedes(h, &s, &h->slots[(at - 1) / 2]))
                sift_up(h, at, s);
        else
                sift_down(h, at, s);
}

void heap_init(struct heap *h, size_t index_at, bool (*first)(const void *a, const void *b)) {
        *h = (struct heap){ .index_at = index_at, .first = first };
}

void heap_clear(struct heap *h) {
        free(h->slots);
        heap_init(h, h->index_at, h->first);
}

int heap_reserve(struct heap *h, uint32_t items) {
        uint32_t want = h->reserved ? h->reserved : 64;
        struct heap_slot *slots;

        if (items <= h->reserved)
                return 0;
        while (want < items)
                want = want > UINT32_MAX / 2 ? items : want * 2;
        slots = realloc(h->slots, want * sizeof(*slots));
        if (!slots)
                return -ENOMEM;
        h->slots = slots;
        h->reserved = want;
        return 0;
}

bool heap_holds(const struct heap *h, const void *item) {
        return *position(h, item) != 0;
}

double heap_key(const struct heap *h, const void *item) {
        assert(heap_holds(h, item));
        return h->slots[*position(h, item) - 1].key;
}

void heap_insert(struct heap *h, void *item, double key) {
        assert(!heap_holds(h, item) && h->hidden == 0 && h->count < h->reserved);
        h->count++;
        sift_up(h, h->count - 1, (struct heap_slot){ key, item });
}

void heap_remove(struct heap *h, void *item) {
        uint32_t at = *position(h, item);

        assert(at != 0 && h->hidden == 0);
        at--;
        *position(h, item) = 0;
        h->count--;
        if (at < h->count)
                settle(h, at, h->slots[h->count]);
}

void heap_rekey(struct heap *h, void *item, double key) {
        assert(heap_holds(h, item) && h->hidden == 0);
        settle(h, *position(h, item) - 1, (struct heap_slot){ key, item });
}

void *heap_min(const struct heap *h, double *ret_key) {
        if (h->count == 0)
                return NULL;
        *ret_key = h->slots[0].key;
        return h->slots[0].item;
}

void *heap_hide_min(struct heap *h) {
        struct heap_slot min, last;

        if (h->count == 0)
                return NULL;
        min = h->slots[0];
        last = h->slots[--h->count];
        h->hidden++;
        if (h->count > 0)
                sift_down(h, 0, last);
        place(h, h->count, min);
        return min.item;
}

void heap_restore_hidden(struct heap *h) {
        while (h->hidden > 0) {
                h->hidden--;
                h->count++;
                sift_up(h, h->count - 1, h->slots[h->count - 1]);
        }
}

void *heap_take_hidden(struct heap *h) {
        void *item;

        if (h->hidden == 0)
                return NULL;
        h->hidden--;
        item = h->slots[h->count + h->hidden].item;
        *position(h, item) = 0;
        return item;
}
