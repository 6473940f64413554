/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The indexed heap against an array that is searched: the same minimum after every step of a long random walk, with
 * hiding, and positions that always tell the truth.
 */
#include <check.h>
#include <stdlib.h>

#include "base/heap.h"
#include "must.h"

struct item {
        int name;
        double key;
        bool in;
        uint32_t at;
};

#define ITEMS 200

static struct item items[ITEMS];
static struct heap heap;

static bool by_name(const void *a, const void *b) {
        return ((const struct item *)a)->name < ((const struct item *)b)->name;
}

static void setup(void) {
        heap_init(&heap, offsetof(struct item, at), by_name);
        must_eq(heap_reserve(&heap, ITEMS), 0);
        for (int i = 0; i < ITEMS; i++)
                items[i] = (struct item){ .name = i };
}

static void teardown(void) {
        heap_clear(&heap);
}

static struct item *slow_min(void) {
        struct item *min = NULL;

        for (int i = 0; i < ITEMS; i++)
                if (items[i].in && (!min || items[i].key < min->key))
                        min = &items[i];
        return min;
}

static void check_heap(void) {
        struct item *min = slow_min();
        uint32_t in = 0;
        double key;

        must_eq(heap_min(&heap, &key), min);
        if (min)
                must_eq(key, min->key);
        for (int i = 0; i < ITEMS; i++) {
                in += items[i].in;
                must_eq(heap_holds(&heap, &items[i]), items[i].in);
                if (items[i].in)
                        must_eq(heap_key(&heap, &items[i]), items[i].key);
        }
        must_eq(in, heap.count);
}

/* Few distinct keys, so that ties are common. */
static double some_key(void) {
        return rand() % 50;
}

static void insert_remove_or_rekey(struct item *it) {
        if (!it->in) {
                it->key = some_key();
                it->in = true;
                heap_insert(&heap, it, it->key);
        } else if (rand() % 3) {
                it->key = some_key();
                heap_rekey(&heap, it, it->key);
        } else {
                it->in = false;
                heap_remove(&heap, it);
        }
}

START_TEST(random_walk) {
        srand(1);
        for (int step = 0; step < 20000; step++) {
                insert_remove_or_rekey(&items[rand() % ITEMS]);
                check_heap();
        }
}
END_TEST

static int hide_some(struct item **hidden) {
        int n = rand() % 8, k = 0;

        while (k < n) {
                struct item *expect = slow_min(), *got = heap_hide_min(&heap);

                must_eq(got, expect);
                if (!got)
                        break;
                got->in = false;
                hidden[k++] = got;
        }
        return k;
}

START_TEST(hidden_items_come_back_or_go) {
        struct item *hidden[8];

        srand(2);
        for (int step = 0; step < 5000; step++) {
                insert_remove_or_rekey(&items[rand() % ITEMS]);
                int n = hide_some(hidden);

                if (rand() % 2) {
                        heap_restore_hidden(&heap);
                        for (int i = 0; i < n; i++)
                                hidden[i]->in = true;
                } else
                        for (int i = 0; i < n; i++)
                                must_eq(heap_take_hidden(&heap), hidden[i]);
                must_eq(NULL, heap_take_hidden(&heap));
                check_heap();
        }
}
END_TEST

START_TEST(empty) {
        double key = 7;

        must_eq(NULL, heap_min(&heap, &key));
        must_eq(key, 7);
        must_eq(NULL, heap_hide_min(&heap));
        heap_restore_hidden(&heap);
        check_heap();
}
END_TEST

START_TEST(reserving_keeps_the_content) {
        for (int i = 0; i < ITEMS; i++)
                insert_remove_or_rekey(&items[i]);
        must_eq(heap_reserve(&heap, 100000), 0);
        check_heap();
}
END_TEST

int main(void) {
        Suite *s = suite_create("heap");
        TCase *t = tcase_create("all");
        SRunner *runner;
        int failed;

        tcase_add_checked_fixture(t, setup, teardown);
        tcase_add_test(t, random_walk);
        tcase_add_test(t, hidden_items_come_back_or_go);
        tcase_add_test(t, empty);
        tcase_add_test(t, reserving_keeps_the_content);
        suite_add_tcase(s, t);
        runner = srunner_create(s);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed != 0;
}
