/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rules against themselves, written down naively: arrays instead of heaps and trees, a search wherever the policy
 * keeps an order.  Reads repeat exactly here, so that ranges are neither cut nor merged.  After every read the same
 * names must be in every shadow, the same shadow must be followed, and the same ranges be present.
 */
#include <math.h>
#include <stdlib.h>

#include "core/score.h"
#include "policy_check.h"

#define ITEMS 150
#define BLOCK 4096u

struct item {
        uint64_t off, len;
        double score[SHADOW_SCORES];
        int64_t last;
        float gap;
        bool known, late;       /* late: resident of the overdue shadow, past its date */
        bool held[SHADOW_KINDS];
        bool present;
        uint64_t rank; /* place in its list of the real cache: KEPT or VICTIM */
};

struct slow {
        struct item items[ITEMS];
        uint64_t capacity, now, ranks;
        double clock[SHADOW_SCORES], reward[SHADOW_KINDS], traffic;
        bool runs[SHADOW_KINDS];
        unsigned followed;
};

static const double half_life[SHADOW_SCORES] = { 4, 32, 4 };

static double key(const struct item *it, unsigned k) {
        if (k == SHADOW_LRU)
                return (double)it->last;
        return it->score[k] - (k == SHADOW_OVERDUE && it->late ? 1e9 : 0);
}

static uint64_t used(const struct slow *s, unsigned k) {
        uint64_t sum = 0;

        for (int i = 0; i < ITEMS; i++)
                sum += s->items[i].held[k] ? s->items[i].len : 0;
        return sum;
}

static struct item *coldest(struct slow *s, unsigned k, const bool *skip) {
        struct item *min = NULL;

        for (int i = 0; i < ITEMS; i++) {
                struct item *it = &s->items[i];

                if (!it->held[k] || skip[i])
                        continue;
                if (!min || key(it, k) < key(min, k) || (key(it, k) == key(min, k) && it->last < min->last))
                        min = it;
        }
        return min;
}

static void let_go(struct slow *s, struct item *it, unsigned k) {
        it->held[k] = it->late = false;
        if (k == s->followed && it->present)
                it->rank = ++s->ranks;
}

static bool make_room(struct slow *s, unsigned k, uint64_t need, double prior) {
        bool skip[ITEMS] = { false };
        struct item *out[ITEMS], *min;
        uint64_t have = used(s, k);
        int n = 0;

        if (need > s->capacity)
                return false;
        while (have + need > s->capacity) {
                min = coldest(s, k, skip);
                if (!min || !(key(min, k) < prior))
                        return false;
                skip[min - s->items] = true;
                have -= min->len;
                out[n++] = min;
        }
        for (int i = 0; i < n; i++) {
                bool late = out[i]->late;

                let_go(s, out[i], k);
                out[i]->late = late && k != SHADOW_OVERDUE;
        }
        return true;
}

static void use(struct slow *s, struct item *it, unsigned k, bool overdue) {
        double prior = INFINITY;

        if (it->held[k])
                s->reward[k] += (double)it->len;
        if (k != SHADOW_LRU) {
                if (k == SHADOW_OVERDUE && overdue && !it->held[k])
                        it->score[k] = SCORE_NONE;
                prior = it->score[k];
                it->score[k] = score_used(prior, s->clock[k]);
        }
        if (it->held[k] || !make_room(s, k, it->len, prior))
                return;
        it->held[k] = true;
        s->reward[k] -= 0.1 * (double)it->len;
        if (k == s->followed && it->present)
                it->rank = ++s->ranks;
}

static void tick(struct slow *s, uint64_t len) {
        double fade = exp2(-(double)len / (12.0 * (double)(s->capacity + 1)));

        s->now += len;
        s->traffic = s->traffic * fade + (double)len;
        for (unsigned k = 0; k < SHADOW_KINDS; k++)
                s->reward[k] *= fade;
        for (unsigned k = 0; k < SHADOW_SCORES; k++)
                s->clock[k] += (double)len / (half_life[k] * (double)s->capacity);
        for (int i = 0; i < ITEMS; i++) {
                struct item *it = &s->items[i];

                if (!it->held[SHADOW_OVERDUE] || it->gap <= 0)
                        continue;
                if ((double)it->last + 1.5 * (double)it->gap < (double)s->now)
                        it->late = true;
        }
}

static int next_in_list(const struct slow *s, unsigned holder, bool kept) {
        int first = -1;

        for (int i = 0; i < ITEMS; i++)
                if (s->items[i].present && s->items[i].held[holder] == kept &&
                    (first < 0 || s->items[i].rank < s->items[first].rank))
                        first = i;
        return first;
}

static void follow(struct slow *s, unsigned k) {
        uint64_t rank = s->ranks;
        int i;

        for (int kept = 0; kept < 2; kept++)
                while ((i = next_in_list(s, s->followed, kept)) >= 0 && s->items[i].rank <= s->ranks)
                        s->items[i].rank = ++rank;
        s->ranks = rank;
        s->followed = k;
}

static void judge(struct slow *s) {
        unsigned best = s->followed;

        for (unsigned k = 0; k < SHADOW_KINDS; k++)
                if (s->runs[k] && s->reward[k] > s->reward[best])
                        best = k;
        if (s->reward[best] > s->reward[s->followed] + 0.005 * s->traffic)
                follow(s, best);
}

static void admit(struct slow *s, struct item *it) {
        uint64_t sum = it->len;
        int i;

        if (it->present || !it->held[s->followed])
                return;
        for (i = 0; i < ITEMS; i++)
                sum += s->items[i].present ? s->items[i].len : 0;
        while (sum > s->capacity) {
                i = next_in_list(s, s->followed, false);
                ck_assert_int_ge(i, 0);
                s->items[i].present = false;
                sum -= s->items[i].len;
        }
        it->present = true;
        it->rank = ++s->ranks;
}

static void slow_read(struct slow *s, struct item *it, bool contest) {
        bool overdue = false;

        tick(s, it->len);
        if (it->known) {
                float since = (float)((double)((int64_t)s->now - it->last));

                overdue = it->gap > 0 && since > 1.5 * it->gap;
                it->gap = fmaxf(since, 0.98f * it->gap);
        }
        it->known = true;
        it->last = (int64_t)s->now;
        for (unsigned k = 0; k < SHADOW_KINDS; k++)
                if (s->runs[k])
                        use(s, it, k, overdue);
        it->late = false;
        if (it->present && it->held[s->followed])
                it->rank = ++s->ranks;
        if (contest)
                judge(s);
        admit(s, it);
}

static void nobody(void *ctx, struct range_map *m, uint64_t off, uint64_t len) {
        (void)ctx, (void)m, (void)off, (void)len;
}

static void fast_read(struct policy *p, struct range_map *m, const struct item *it) {
        policy_access(p, m, it->off, it->len);
        policy_admit(p, m, it->off, it->len, nobody, NULL);
        policy_commit(p, m, it->off, it->len, 1);
}

static void compare(const struct policy *p, const struct range_map *m, const struct slow *s) {
        must_eq(p->contest.followed, s->followed);
        for (int i = 0; i < ITEMS; i++) {
                const struct item *it = &s->items[i];
                const struct range *r = range_map_find(m, it->off);

                if (!it->known)
                        continue;
                must(r && r->off == it->off && r->len == it->len);
                for (unsigned k = 0; k < SHADOW_KINDS; k++)
                        must_eq(r->at[k] != 0, it->held[k]);
                must_eq(r->state == RANGE_PRESENT, it->present);
        }
}

/* A mix that lets leaders change: a loop, favourites, and now and then other favourites. */
static int pick(int step) {
        static int base;

        if (rand() % 400 == 0)
                base = rand() % ITEMS;
        switch (step / 1500 % 3) {
        case 0:
                return step % ITEMS;
        case 1:
                return (base + (int)(ITEMS * pow(rand() / (RAND_MAX + 1.0), 3))) % ITEMS;
        default:
                return (step / 2 + rand() % 30) % ITEMS;
        }
}

static void set_up(struct slow *s, enum policy_kind kind) {
        uint64_t off = 0;

        *s = (struct slow){ .followed = kind == POLICY_LRU ? SHADOW_LRU : SHADOW_HOT };
        for (unsigned k = 0; k < SHADOW_KINDS; k++)
                s->runs[k] = kind == POLICY_AUTO || k == SHADOW_HOT || k == s->followed;
        for (int i = 0; i < ITEMS; i++) {
                s->items[i].off = off;
                s->items[i].len = (uint64_t)(1 + rand() % 20) * BLOCK;
                off += s->items[i].len;
                for (unsigned k = 0; k < SHADOW_SCORES; k++)
                        s->items[i].score[k] = SCORE_NONE;
        }
        s->capacity = off / (uint64_t)(2 + rand() % 6);
}

static void walk(enum policy_kind kind, unsigned *ret_switches) {
        static struct slow s;
        struct policy_config cfg = { .kind = kind };
        struct range_map map;
        struct policy *p;

        set_up(&s, kind);
        cfg.capacity = s.capacity;
        ck_assert_int_eq(policy_new(&cfg, &p), 0);
        range_map_init(&map, NULL);
        for (int step = 0; step < 9000; step++) {
                struct item *it = &s.items[pick(step)];
                unsigned before = s.followed;

                slow_read(&s, it, kind == POLICY_AUTO);
                fast_read(p, &map, it);
                compare(p, &map, &s);
                *ret_switches += before != s.followed;
        }
        policy_check(p, &map, 1);
        policy_clear_map(p, &map, nobody, NULL);
        policy_free(p);
}

START_TEST(one_rule_alone) {
        unsigned switches = 0;

        srand((unsigned)_i);
        walk(_i % 2 ? POLICY_LRU : POLICY_HOTNESS, &switches);
        ck_assert_uint_eq(switches, 0);
}
END_TEST

START_TEST(contest) {
        unsigned switches = 0;

        srand((unsigned)_i);
        walk(POLICY_AUTO, &switches);
        ck_assert_uint_gt(switches, 0);
}
END_TEST

int main(void) {
        Suite *s = suite_create("policy_rules");
        TCase *t = tcase_create("walk");
        SRunner *runner;
        int failed;

        tcase_set_timeout(t, 60);
        tcase_add_loop_test(t, one_rule_alone, 0, 4);
        tcase_add_loop_test(t, contest, 0, 6);
        suite_add_tcase(s, t);
        runner = srunner_create(s);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed != 0;
}
