/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An indexed binary min-heap: the coldest of many, with cheap changes of mind.
 *
 * Idea.  The array holds (key, item) so that comparing touches no item; every
 * item holds its own position (a uint32_t somewhere inside it, 0 = not here), so
 * that re-keying and removing need no search.  One item may sit in several heaps
 * through several position fields.
 *
 * Hiding.  "Take the coldest ones, but put them back if one turns out too warm"
 * needs no second container: hiding the minimum moves it just behind the live
 * part of the array, where it waits to be restored or taken.
 *
 * Memory: grows only in heap_reserve, so insertion cannot fail.  Threads: the
 * owner's lock.  Left out: merging, bulk construction.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct heap_slot {
        double key;
        void *item;
};

struct heap {
        struct heap_slot *slots;
        uint32_t count;    /* live items, slots[0..count) */
        uint32_t hidden;   /* hidden items, slots[count..count+hidden) */
        uint32_t reserved; /* slots allocated */
        size_t index_at;   /* offset of the uint32_t position inside an item */
        bool (*first)(const void *a, const void *b); /* equal keys: does `a` come first?  May be NULL */
};

void heap_init(struct heap *h, size_t index_at, bool (*first)(const void *a, const void *b));
void heap_clear(struct heap *h); /* frees the array; items must not be used with it afterwards */
int heap_reserve(struct heap *h, uint32_t items);

bool heap_holds(const struct heap *h, const void *item);
double heap_key(const struct heap *h, const void *item);
void heap_insert(struct heap *h, void *item, double key);
void heap_remove(struct heap *h, void *item);
void heap_rekey(struct heap *h, void *item, double key);

/* The minimum without removing it; NULL when empty. */
void *heap_min(const struct heap *h, double *ret_key);

/* Between the first heap_hide_min and the last heap_take_hidden (or heap_restore_hidden), no other change. */
void *heap_hide_min(struct heap *h);
void heap_restore_hidden(struct heap *h);
void *heap_take_hidden(struct heap *h); /* the smallest hidden item leaves the heap; NULL when none is hidden */
