/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The read plan: its promises one by one, then against a model that looks at each block of a small file.
 */
#include <stdlib.h>
#include <string.h>

#include "core/plan.h"
#include "must.h"

#define BLOCK 4096ull
#define FILE_BLOCKS 80
#define NO_CUT UINT64_MAX
#define ROOM 8

static struct range_map map;
static struct span_tree spans;
static struct range ranges[FILE_BLOCKS];
static struct span spans_made[FILE_BLOCKS];
static size_t range_count, span_count;
static struct piece pieces[FILE_BLOCKS];

static void setup(void) {
        range_map_init(&map, NULL);
        RB_INIT(&spans);
        range_count = span_count = 0;
        memset(pieces, 0xee, sizeof pieces);
}

static struct range *add_range(uint64_t block, uint64_t count, enum range_state state, uint64_t nonce) {
        struct range *r = &ranges[range_count++];

        *r = (struct range){ .off = block * BLOCK, .len = count * BLOCK, .state = state, .nonce = nonce };
        range_map_insert(&map, r);
        return r;
}

static struct span *add_span(uint64_t block, uint64_t count) {
        struct span *s = &spans_made[span_count++];

        *s = (struct span){ .off = block * BLOCK, .len = count * BLOCK };
        span_insert(&spans, s);
        return s;
}

static void expect(size_t at, enum piece_kind kind, uint64_t off, uint64_t len) {
        ck_assert_int_eq(pieces[at].kind, kind);
        ck_assert_uint_eq(pieces[at].off, off);
        ck_assert_uint_eq(pieces[at].len, len);
}

START_TEST(nothing_known_is_one_miss) {
        ck_assert_uint_eq(plan_read(&map, &spans, 5, 9 * BLOCK, NO_CUT, pieces, ROOM), 1);
        expect(0, PIECE_MISS, 5, 9 * BLOCK);
}
END_TEST

START_TEST(no_bytes_are_no_pieces) {
        add_range(0, 10, RANGE_PRESENT, 1);
        ck_assert_uint_eq(plan_read(&map, &spans, BLOCK, 0, NO_CUT, pieces, ROOM), 0);
}
END_TEST

START_TEST(what_is_present_is_one_hit_of_just_what_was_asked) {
        add_range(2, 10, RANGE_PRESENT, 77);
        ck_assert_uint_eq(plan_read(&map, &spans, 3 * BLOCK + 7, 2 * BLOCK, NO_CUT, pieces, ROOM), 1);
        expect(0, PIECE_HIT, 3 * BLOCK + 7, 2 * BLOCK);
        ck_assert_uint_eq(pieces[0].nonce, 77);
}
END_TEST

START_TEST(what_is_suspect_is_missing) {
        add_range(0, 4, RANGE_PRESENT, 1);
        add_range(4, 4, RANGE_PRESENT, 1)->suspect = true;
        add_range(8, 4, RANGE_PRESENT, 1);
        ck_assert_uint_eq(plan_read(&map, &spans, 0, 12 * BLOCK, NO_CUT, pieces, ROOM), 3);
        expect(0, PIECE_HIT, 0, 4 * BLOCK);
        expect(1, PIECE_MISS, 4 * BLOCK, 4 * BLOCK);
        expect(2, PIECE_HIT, 8 * BLOCK, 4 * BLOCK);
}
END_TEST

START_TEST(only_present_ranges_hit) {
        add_range(0, 4, RANGE_GHOST, 1);
        add_range(4, 4, RANGE_PENDING, 1);
        add_range(8, 4, RANGE_PRESENT, 1);
        ck_assert_uint_eq(plan_read(&map, &spans, 0, 12 * BLOCK, NO_CUT, pieces, ROOM), 2);
        expect(0, PIECE_MISS, 0, 8 * BLOCK);
        expect(1, PIECE_HIT, 8 * BLOCK, 4 * BLOCK);
}
END_TEST

START_TEST(neighbours_of_one_nonce_are_one_hit) {
        add_range(0, 4, RANGE_PRESENT, 5);
        add_range(4, 1, RANGE_PRESENT, 5);
        add_range(5, 4, RANGE_PRESENT, 5);
        ck_assert_uint_eq(plan_read(&map, &spans, BLOCK, 7 * BLOCK, NO_CUT, pieces, 1), 1);
        expect(0, PIECE_HIT, BLOCK, 7 * BLOCK);
}
END_TEST

START_TEST(a_hit_ends_where_the_nonce_changes) {
        add_range(0, 4, RANGE_PRESENT, 5);
        add_range(4, 4, RANGE_PRESENT, 6);
        add_range(8, 4, RANGE_PRESENT, 5);
        ck_assert_uint_eq(plan_read(&map, &spans, 0, 12 * BLOCK, NO_CUT, pieces, ROOM), 3);
        for (size_t i = 0; i < 3; i++) {
                expect(i, PIECE_HIT, i * 4 * BLOCK, 4 * BLOCK);
                ck_assert_uint_eq(pieces[i].nonce, i == 1 ? 6 : 5);
        }
}
END_TEST

START_TEST(one_nonce_on_both_sides_of_a_gap_is_two_hits) {
        add_range(0, 2, RANGE_PRESENT, 5);
        add_range(3, 2, RANGE_PRESENT, 5);
        ck_assert_uint_eq(plan_read(&map, &spans, 0, 5 * BLOCK, NO_CUT, pieces, ROOM), 3);
        expect(0, PIECE_HIT, 0, 2 * BLOCK);
        expect(1, PIECE_MISS, 2 * BLOCK, BLOCK);
        expect(2, PIECE_HIT, 3 * BLOCK, 2 * BLOCK);
}
END_TEST

START_TEST(what_somebody_reads_is_joined_and_only_that) {
        struct span *s = add_span(4, 4);

        ck_assert_uint_eq(plan_read(&map, &spans, 2 * BLOCK, 8 * BLOCK, NO_CUT, pieces, ROOM), 3);
        expect(0, PIECE_MISS, 2 * BLOCK, 2 * BLOCK);
        expect(1, PIECE_JOIN, 4 * BLOCK, 4 * BLOCK);
        ck_assert_ptr_eq(pieces[1].span, s);
        expect(2, PIECE_MISS, 8 * BLOCK, 2 * BLOCK);
}
END_TEST

START_TEST(a_join_may_be_narrower_than_its_span) {
        struct span *s = add_span(0, 20);

        ck_assert_uint_eq(plan_read(&map, &spans, 5 * BLOCK + 1, 100, NO_CUT, pieces, ROOM), 1);
        expect(0, PIECE_JOIN, 5 * BLOCK + 1, 100);
        ck_assert_ptr_eq(pieces[0].span, s);
}
END_TEST

START_TEST(neighbouring_spans_are_joined_one_by_one) {
        struct span *second = add_span(4, 4), *first = add_span(0, 4);

        ck_assert_uint_eq(plan_read(&map, &spans, 0, 8 * BLOCK, NO_CUT, pieces, ROOM), 2);
        expect(0, PIECE_JOIN, 0, 4 * BLOCK);
        expect(1, PIECE_JOIN, 4 * BLOCK, 4 * BLOCK);
        ck_assert_ptr_eq(pieces[0].span, first);
        ck_assert_ptr_eq(pieces[1].span, second);
}
END_TEST

START_TEST(a_removed_span_is_not_joined) {
        struct span *s = add_span(0, 4);

        add_span(4, 4);
        span_remove(&spans, s);
        ck_assert_uint_eq(plan_read(&map, &spans, 0, 8 * BLOCK, NO_CUT, pieces, ROOM), 2);
        expect(0, PIECE_MISS, 0, 4 * BLOCK);
        expect(1, PIECE_JOIN, 4 * BLOCK, 4 * BLOCK);
}
END_TEST

START_TEST(present_bytes_win_over_a_span) {
        struct span *s = add_span(0, 10);

        add_range(3, 2, RANGE_PRESENT, 9);
        ck_assert_uint_eq(plan_read(&map, &spans, 0, 10 * BLOCK, NO_CUT, pieces, ROOM), 3);
        expect(0, PIECE_JOIN, 0, 3 * BLOCK);
        expect(1, PIECE_HIT, 3 * BLOCK, 2 * BLOCK);
        expect(2, PIECE_JOIN, 5 * BLOCK, 5 * BLOCK);
        ck_assert_ptr_eq(pieces[2].span, s);
}
END_TEST

START_TEST(a_miss_is_cut_at_the_most_that_one_may_be) {
        ck_assert_uint_eq(plan_read(&map, &spans, 10, 7 * BLOCK, 3 * BLOCK, pieces, ROOM), 3);
        expect(0, PIECE_MISS, 10, 3 * BLOCK);
        expect(1, PIECE_MISS, 10 + 3 * BLOCK, 3 * BLOCK);
        expect(2, PIECE_MISS, 10 + 6 * BLOCK, BLOCK);
}
END_TEST

START_TEST(hits_and_joins_are_not_cut) {
        add_range(0, 10, RANGE_PRESENT, 1);
        add_span(10, 10);
        ck_assert_uint_eq(plan_read(&map, &spans, 0, 20 * BLOCK, BLOCK, pieces, ROOM), 2);
        expect(0, PIECE_HIT, 0, 10 * BLOCK);
        expect(1, PIECE_JOIN, 10 * BLOCK, 10 * BLOCK);
}
END_TEST

START_TEST(more_pieces_than_room_are_none_and_as_many_as_room_are_all) {
        for (uint64_t i = 0; i < 4; i++)
                add_range(2 * i, 1, RANGE_PRESENT, 1);
        ck_assert_uint_eq(plan_read(&map, &spans, 0, 7 * BLOCK, NO_CUT, pieces, 7), 7);
        ck_assert_uint_eq(plan_read(&map, &spans, 0, 8 * BLOCK, NO_CUT, pieces, 7), 0);
        ck_assert_uint_eq(plan_read(&map, &spans, 0, 7 * BLOCK, NO_CUT, pieces, 6), 0);
}
END_TEST

START_TEST(nothing_is_written_behind_the_room) {
        memset(pieces, 0xee, sizeof pieces);
        for (uint64_t i = 0; i < 10; i++)
                add_range(2 * i, 1, RANGE_PRESENT, 1);
        plan_read(&map, &spans, 0, 20 * BLOCK, NO_CUT, pieces, 3);
        for (size_t i = 0; i < sizeof pieces[3]; i++)
                ck_assert_uint_eq(((unsigned char *)&pieces[3])[i], 0xee);
}
END_TEST

START_TEST(offsets_beyond_four_gigabytes_are_not_folded) {
        const uint64_t far = 1ull << 40;
        struct range *r = add_range(0, 4, RANGE_PRESENT, 3);

        range_map_remove(&map, r);
        r->off = far;
        range_map_insert(&map, r);
        ck_assert_uint_eq(plan_read(&map, &spans, far - BLOCK, 2 * BLOCK, NO_CUT, pieces, ROOM), 2);
        expect(0, PIECE_MISS, far - BLOCK, BLOCK);
        expect(1, PIECE_HIT, far, BLOCK);
}
END_TEST

/* What the model knows of one block. */
static struct {
        uint64_t nonce;    /* 0: not present */
        struct span *span; /* or NULL */
} model[FILE_BLOCKS];

static uint64_t stretch(uint64_t at) {
        uint64_t most = FILE_BLOCKS - at;
        uint64_t n = 1 + (uint64_t)rand() % 9;

        return n < most ? n : most;
}

static void fill_randomly(void) {
        setup();
        memset(model, 0, sizeof model);
        for (uint64_t at = 0, n; at < FILE_BLOCKS; at += n) {
                n = stretch(at);
                if (rand() % 3 == 0)
                        continue;
                struct range *r = add_range(at, n, (enum range_state)(rand() % 3), 1 + (uint64_t)rand() % 2);
                for (uint64_t b = at; b < at + n; b++)
                        model[b].nonce = r->state == RANGE_PRESENT ? r->nonce : 0;
        }
        for (uint64_t at = 0, n; at < FILE_BLOCKS; at += n) {
                n = stretch(at);
                if (rand() % 2)
                        continue;
                struct span *s = add_span(at, n);
                for (uint64_t b = at; b < at + n; b++)
                        model[b].span = s;
        }
}

static struct piece model_piece(uint64_t b) {
        struct piece p = { .kind = PIECE_MISS, .off = b * BLOCK, .len = BLOCK };

        if (model[b].nonce) {
                p.kind = PIECE_HIT;
                p.nonce = model[b].nonce;
        } else if (model[b].span) {
                p.kind = PIECE_JOIN;
                p.span = model[b].span;
        }
        return p;
}

static bool same_piece(const struct piece *a, const struct piece *b) {
        return a->kind == b->kind && (a->kind != PIECE_HIT || a->nonce == b->nonce) &&
               (a->kind != PIECE_JOIN || a->span == b->span);
}

/* Block by block; the first and the last are narrower where the request does not lie on blocks. */
static size_t model_plan(uint64_t off, uint64_t end, uint64_t max_miss, struct piece *ret) {
        size_t n = 0;

        for (uint64_t b = off / BLOCK; b * BLOCK < end; b++) {
                struct piece p = model_piece(b);
                uint64_t stop = (b + 1) * BLOCK < end ? (b + 1) * BLOCK : end;
                p.off = b * BLOCK > off ? b * BLOCK : off;
                for (p.len = stop - p.off; p.len > 0;) {
                        struct piece *last = n > 0 && same_piece(&ret[n - 1], &p) ? &ret[n - 1] : NULL;
                        uint64_t most = p.kind == PIECE_MISS ? max_miss : NO_CUT, take;
                        if (!last || last->len == most) {
                                last = &ret[n++];
                                *last = p;
                                last->len = 0;
                        }
                        take = p.len < most - last->len ? p.len : most - last->len;
                        last->len += take;
                        p.off += take;
                        p.len -= take;
                }
        }
        return n;
}

static void compare_once(void) {
        struct piece want[2 * FILE_BLOCKS];
        uint64_t off = (uint64_t)rand() % (FILE_BLOCKS * BLOCK);
        uint64_t end = off + (uint64_t)rand() % (FILE_BLOCKS * BLOCK - off) + 1;
        uint64_t max_miss = rand() % 2 ? NO_CUT : BLOCK * (1 + (uint64_t)rand() % 4);
        size_t max = 1 + (size_t)rand() % FILE_BLOCKS, n, got;

        if (rand() % 2)
                off = off / BLOCK * BLOCK;
        n = model_plan(off, end, max_miss, want);
        got = plan_read(&map, &spans, off, end - off, max_miss, pieces, max);
        must_eq(got, n > max ? 0 : n);
        for (size_t i = 0; i < got; i++) {
                must(same_piece(&pieces[i], &want[i]));
                must_eq(pieces[i].off, want[i].off);
                must_eq(pieces[i].len, want[i].len);
        }
}

START_TEST(random_plans_are_those_of_the_model) {
        srand(11);
        for (int round = 0; round < 3000; round++) {
                fill_randomly();
                for (int i = 0; i < 20; i++)
                        compare_once();
        }
}
END_TEST

int main(void) {
        Suite *s = suite_create("plan");
        TCase *t = tcase_create("all");
        SRunner *runner;
        int failed;

        tcase_add_checked_fixture(t, setup, NULL);
        tcase_set_timeout(t, 60);
        tcase_add_test(t, nothing_known_is_one_miss);
        tcase_add_test(t, no_bytes_are_no_pieces);
        tcase_add_test(t, what_is_present_is_one_hit_of_just_what_was_asked);
        tcase_add_test(t, only_present_ranges_hit);
        tcase_add_test(t, what_is_suspect_is_missing);
        tcase_add_test(t, neighbours_of_one_nonce_are_one_hit);
        tcase_add_test(t, a_hit_ends_where_the_nonce_changes);
        tcase_add_test(t, one_nonce_on_both_sides_of_a_gap_is_two_hits);
        tcase_add_test(t, what_somebody_reads_is_joined_and_only_that);
        tcase_add_test(t, a_join_may_be_narrower_than_its_span);
        tcase_add_test(t, neighbouring_spans_are_joined_one_by_one);
        tcase_add_test(t, a_removed_span_is_not_joined);
        tcase_add_test(t, present_bytes_win_over_a_span);
        tcase_add_test(t, a_miss_is_cut_at_the_most_that_one_may_be);
        tcase_add_test(t, hits_and_joins_are_not_cut);
        tcase_add_test(t, more_pieces_than_room_are_none_and_as_many_as_room_are_all);
        tcase_add_test(t, nothing_is_written_behind_the_room);
        tcase_add_test(t, offsets_beyond_four_gigabytes_are_not_folded);
        tcase_add_test(t, random_plans_are_those_of_the_model);
        suite_add_tcase(s, t);
        runner = srunner_create(s);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed != 0;
}
