/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The words of -o: each option of options.def, what is refused and how, and the globs of include= and exclude=.
 */
#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "config/glob.h"
#include "config/options.h"
#include "must.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))
#define KiB 1024ull
#define MiB (1024 * KiB)
#define GiB (1024 * MiB)
#define TiB (1024 * GiB)

#define OPTION(field, kind, def, val, text) #field,
static const char *const names[] = {
#include "config/options.def"
};
#undef OPTION

static struct options o;
static char error[512];

static void setup(void) {
        error[0] = '\0';
        ck_assert_int_eq(options_init(&o), 0);
}

static void teardown(void) { options_clear(&o); }

static int parse(const char *words) { return options_parse(&o, words, error, sizeof error); }

static void accept(const char *words) {
        int r = parse(words);
        ck_assert_msg(r == 0, "%s: %d %s", words, r, error);
}

static void refuse(const char *words, const char *because) {
        error[0] = '\0';
        ck_assert_msg(parse(words) < 0, "%s was taken", words);
        ck_assert_msg(strstr(error, because), "%s: '%s' instead of '%s'", words, error, because);
}

/* ---- every option ---- */

#define SEEN(name, what) \
        static bool seen_##name(void) { return what; }
SEEN(cache, o.cache && strcmp(o.cache, "/nvme/x") == 0)
SEEN(size, o.size == 3 * GiB)
SEEN(reserve, o.reserve.percent == 12.5 && o.reserve.bytes == 0)
SEEN(mode, o.mode == MODE_SHADOW)
SEEN(policy, o.policy == OPT_POLICY_LRU)
SEEN(admit, o.admit == ADMIT_SECOND)
SEEN(verify, o.verify == VERIFY_OFF)
SEEN(include, o.include.count == 1 && strcmp(o.include.pattern[0], "*.gguf") == 0)
SEEN(exclude, o.exclude.count == 1 && strcmp(o.exclude.pattern[0], "tmp/**") == 0)
SEEN(min_size, o.min_size == MiB)
SEEN(write_rate, o.write_rate == 200 * MiB)
SEEN(promote, o.promote == OPT_OFF)
SEEN(readahead, o.readahead == 2 * MiB)
SEEN(attr_timeout, o.attr_timeout == 0.5)
SEEN(log, o.log == 3)

/* A new option without a line here fails. */
static const struct {
        const char *name, *words, *bad_value; /* NULL: any text is good */
        bool (*seen)(void);
} uses[] = {
        { "cache", "cache=/nvme/x", NULL, seen_cache },
        { "size", "size=3G", "3Q", seen_size },
        { "reserve", "reserve=12.5%", "100%", seen_reserve },
        { "mode", "mode=shadow", "Shadow", seen_mode },
        { "policy", "policy=lru", "mru", seen_policy },
        { "admit", "admit=second", "third", seen_admit },
        { "verify", "verify=off", "", seen_verify },
        { "include", "include=*.gguf", NULL, seen_include },
        { "exclude", "exclude=tmp/**", NULL, seen_exclude },
        { "min_size", "min_size=1M", "-1", seen_min_size },
        { "write_rate", "write_rate=200M", "fast", seen_write_rate },
        { "promote", "promote=off", "yes", seen_promote },
        { "readahead", "readahead=2M", "", seen_readahead },
        { "attr_timeout", "attr_timeout=0.5", "1s", seen_attr_timeout },
        { "log", "log=debug", "trace", seen_log },
};

START_TEST(every_option_takes_effect) {
        ck_assert_uint_eq(COUNT(uses), COUNT(names));
        ck_assert_str_eq(uses[_i].name, names[_i]);
        ck_assert_msg(!uses[_i].seen(), "%s is the default, which tests nothing", uses[_i].words);
        accept(uses[_i].words);
        ck_assert_msg(uses[_i].seen(), "%s has no effect", uses[_i].words);
}
END_TEST

START_TEST(an_option_changes_nothing_else) {
        accept(uses[_i].words);
        for (int k = 0; k < (int)COUNT(uses); k++)
                ck_assert_msg(k == _i || !uses[k].seen(), "%s changes %s", uses[_i].words, uses[k].name);
}
END_TEST

START_TEST(all_options_in_one_line_take_effect) {
        char line[1024] = "";

        for (size_t i = 0; i < COUNT(uses); i++) {
                strcat(line, uses[i].words);
                strcat(line, ",");
        }
        accept(line);
        for (size_t i = 0; i < COUNT(uses); i++)
                ck_assert_msg(uses[i].seen(), "%s has no effect", uses[i].words);
}
END_TEST

START_TEST(a_bad_value_is_refused_with_the_option_and_the_value) {
        char words[64], option[64], value[64];

        if (!uses[_i].bad_value)
                return;
        snprintf(words, sizeof words, "%s=%s", names[_i], uses[_i].bad_value);
        snprintf(option, sizeof option, "option %s:", names[_i]);
        snprintf(value, sizeof value, "'%s'", uses[_i].bad_value);
        refuse(words, option);
        refuse(words, value);
}
END_TEST

START_TEST(an_option_without_a_value_is_refused) {
        refuse(names[_i], "needs a value");
        refuse(names[_i], names[_i]);
}
END_TEST

static void refuse_with_nearest(const char *word, const char *name) {
        char nearest[64];

        snprintf(nearest, sizeof nearest, "did you mean '%s'?", name);
        refuse(word, nearest);
}

START_TEST(a_misspelt_option_is_refused_with_the_nearest_name) {
        char word[64];
        size_t n = strlen(names[_i]);

        snprintf(word, sizeof word, "%s", names[_i]); /* the last letter is missing */
        word[n - 1] = '\0';
        refuse_with_nearest(word, names[_i]);
        snprintf(word, sizeof word, "%ss=1", names[_i]); /* one too many */
        refuse_with_nearest(word, names[_i]);
        snprintf(word, sizeof word, "%s=1", names[_i]); /* a wrong one */
        word[n / 2] = '#';
        refuse_with_nearest(word, names[_i]);
        snprintf(word, sizeof word, "%s=1", names[_i]); /* a capital */
        word[0] &= ~0x20;
        refuse_with_nearest(word, names[_i]);
}
END_TEST

START_TEST(an_unknown_word_is_named_without_its_value) {
        refuse("casche=/x,size=1G", "unknown option 'casche'; did you mean 'cache'?");
}
END_TEST

START_TEST(an_endless_word_is_refused_too) {
        char word[4096];

        memset(word, 'x', sizeof word - 1);
        word[sizeof word - 1] = '\0';
        refuse(word, "unknown option");
        ck_assert_uint_lt(strlen(error), sizeof error);
}
END_TEST

START_TEST(the_defaults_are_those_of_the_readme) {
        ck_assert_ptr_null(o.cache);
        ck_assert_uint_eq(o.size, 64 * GiB);
        ck_assert_double_eq(o.reserve.percent, 5);
        ck_assert_int_eq(o.mode, MODE_PROD);
        ck_assert_int_eq(o.policy, OPT_POLICY_AUTO);
        ck_assert_int_eq(o.admit, ADMIT_FREE);
        ck_assert_int_eq(o.verify, VERIFY_ALWAYS);
        ck_assert_uint_eq(o.include.count + o.exclude.count, 0);
        ck_assert_uint_eq(o.min_size, 64 * KiB);
        ck_assert_uint_eq(o.write_rate, 0);
        ck_assert_int_eq(o.promote, OPT_ON);
        ck_assert_uint_eq(o.readahead, 512 * KiB);
        ck_assert_double_eq(o.attr_timeout, 1);
        ck_assert(!o.ro && !o.nofail && !o.noexec && !o.nosuid && !o.nodev);
}
END_TEST

START_TEST(every_enum_word_is_taken_and_named_again) {
        static const struct {
                const char *option, *words[5];
                int *field;
        } enums[] = {
                { "mode", { "prod", "shadow", "off" }, &o.mode },
                { "policy", { "auto", "hotness", "lru" }, &o.policy },
                { "admit", { "free", "second" }, &o.admit },
                { "verify", { "always", "first", "off" }, &o.verify },
                { "promote", { "off", "on" }, &o.promote },
                { "log", { "error", "warn", "info", "debug" }, &o.log },
        };
        char words[64];

        for (size_t e = 0; e < COUNT(enums); e++)
                for (int v = 0; enums[e].words[v]; v++) {
                        snprintf(words, sizeof words, "%s=%s", enums[e].option, enums[e].words[v]);
                        accept(words);
                        ck_assert_int_eq(*enums[e].field, v);
                        ck_assert_str_eq(options_name(enums[e].option, v), enums[e].words[v]);
                }
        ck_assert_str_eq(options_name("size", 0), "");
        ck_assert_str_eq(options_name("nothing", 0), "");
}
END_TEST

START_TEST(an_enum_word_is_whole_and_exact) {
        refuse("mode=pro", "option mode");
        refuse("mode=prods", "option mode");
        refuse("mode=PROD", "option mode");
        refuse("mode=", "option mode");
        ck_assert_int_eq(o.mode, MODE_PROD);
}
END_TEST

START_TEST(the_help_has_every_option_and_default) {
        char *text = NULL;
        size_t size;
        FILE *f = open_memstream(&text, &size);

        options_help(f);
        fclose(f);
        for (size_t i = 0; i < COUNT(names); i++) {
                char line[64];
                snprintf(line, sizeof line, "  %s=", names[i]);
                ck_assert_msg(strstr(text, line), "%s is not in the help", names[i]);
        }
        ck_assert_ptr_nonnull(strstr(text, "(default 64G)"));
        ck_assert_ptr_nonnull(strstr(text, "nofail"));
        free(text);
}
END_TEST

/* ---- sizes ---- */

START_TEST(good_sizes_are_bytes) {
        static const struct {
                const char *text;
                uint64_t bytes;
        } good[] = {
                { "0", 0 },           { "4096", 4096 },     { "1K", KiB },      { "1k", KiB },
                { "64KiB", 64 * KiB }, { "64KB", 64 * KiB }, { "7B", 7 },        { "1M", MiB },
                { "1.5G", GiB * 3 / 2 }, { ".5k", 512 },    { "0.25M", MiB / 4 }, { "2T", 2 * TiB },
                { "2t", 2 * TiB },    { "1.", 1 },          { "0.1K", 102 },    { "1000000T", 1000000 * TiB },
                { "007", 7 },
        };

        for (size_t i = 0; i < COUNT(good); i++) {
                uint64_t v = 12345;
                ck_assert_msg(parse_size(good[i].text, &v) == 0, "%s is refused", good[i].text);
                ck_assert_msg(v == good[i].bytes, "%s is %llu", good[i].text, (unsigned long long)v);
        }
}
END_TEST

START_TEST(bad_sizes_are_refused_and_change_nothing) {
        static const char *const bad[] = {
                "",    "K",   "-1",  "+1",    " 1",  "1e3",  "1E3",   "0x10",  "0X1p3", "nan",
                "inf", "1P",  "1KK", "1Ki",   "1iB", "1BB",  "1KiBB", "1KiBs", "1,5G",  "1_000",
                ".",   "..5", "1%",  "1.2.3", "G1",  "1G1",  "1G ",   "1\tK",  "1\n",   "many",
                "1 ",  "1 B", "1 iB", "1 K",   "1G\r", "-",    "1-",
        };

        for (size_t i = 0; i < COUNT(bad); i++) {
                uint64_t v = 12345;
                ck_assert_msg(parse_size(bad[i], &v) == -EINVAL, "'%s' is %llu", bad[i], (unsigned long long)v);
                ck_assert_uint_eq(v, 12345);
        }
}
END_TEST

START_TEST(sizes_beyond_an_offset_are_out_of_range) {
        static const char *const large[] = { "9999999T", "9300000000000000000", "99999999999999999999999999999999" };

        for (size_t i = 0; i < COUNT(large); i++) {
                uint64_t v = 12345;
                ck_assert_msg(parse_size(large[i], &v) == -ERANGE, "'%s' is %llu", large[i], (unsigned long long)v);
                ck_assert_uint_eq(v, 12345);
        }
}
END_TEST

START_TEST(the_reserve_is_a_percentage_or_bytes_whichever_came_last) {
        accept("reserve=20G");
        ck_assert_uint_eq(o.reserve.bytes, 20 * GiB);
        ck_assert_double_eq(o.reserve.percent, 0);
        accept("reserve=0.5%");
        ck_assert_uint_eq(o.reserve.bytes, 0);
        ck_assert_double_eq(o.reserve.percent, 0.5);
        accept("reserve=0%");
        ck_assert_uint_eq(o.reserve.bytes, 0);
        ck_assert_double_eq(o.reserve.percent, 0);
        accept("reserve=99.9%,reserve=0");
        ck_assert_uint_eq(o.reserve.bytes, 0);
        ck_assert_double_eq(o.reserve.percent, 0);
}
END_TEST

START_TEST(a_reserve_that_leaves_nothing_or_is_nonsense_is_refused) {
        static const char *const bad[] = { "100%", "150%", "-1%", "nan%", "inf%", "%", "5%%", "5%x", "x%", "",
                                           "-1",   "5 %" };
        char words[64];

        for (size_t i = 0; i < COUNT(bad); i++) {
                snprintf(words, sizeof words, "reserve=%s", bad[i]);
                refuse(words, "option reserve");
        }
}
END_TEST

START_TEST(seconds_may_have_fractions_and_are_at_most_a_day) {
        static const char *const bad[] = { "", "-1", "-0.001", "86401", "nan", "inf", "1s", "x" };
        char words[64];

        accept("attr_timeout=86400");
        ck_assert_double_eq(o.attr_timeout, 86400);
        accept("attr_timeout=0");
        ck_assert_double_eq(o.attr_timeout, 0);
        for (size_t i = 0; i < COUNT(bad); i++) {
                snprintf(words, sizeof words, "attr_timeout=%s", bad[i]);
                refuse(words, "option attr_timeout");
        }
        ck_assert_double_eq(o.attr_timeout, 0);
}
END_TEST

/* ---- words ---- */

START_TEST(an_escaped_comma_belongs_to_the_value) {
        accept("cache=/a\\,b\\,,size=1K");
        ck_assert_str_eq(o.cache, "/a,b,");
        ck_assert_uint_eq(o.size, KiB);
}
END_TEST

START_TEST(an_escaped_backslash_does_not_escape_what_follows) {
        accept("cache=/a\\\\,size=1K");
        ck_assert_str_eq(o.cache, "/a\\");
        ck_assert_uint_eq(o.size, KiB);
}
END_TEST

START_TEST(a_backslash_at_the_end_is_itself) {
        accept("cache=/a\\");
        ck_assert_str_eq(o.cache, "/a\\");
}
END_TEST

START_TEST(the_value_begins_behind_the_first_equals_sign) {
        accept("cache=/a=b=c");
        ck_assert_str_eq(o.cache, "/a=b=c");
}
END_TEST

START_TEST(empty_words_are_nothing) {
        accept("");
        accept(",,,size=1K,,");
        ck_assert_uint_eq(o.size, KiB);
}
END_TEST

START_TEST(the_last_of_a_repeated_option_wins) {
        accept("size=1G,cache=/a,size=2G,cache=/b");
        ck_assert_uint_eq(o.size, 2 * GiB);
        ck_assert_str_eq(o.cache, "/b");
}
END_TEST

START_TEST(globs_are_collected_in_their_order) {
        accept("include=a,include=b");
        accept("include=c\\,d");
        ck_assert_uint_eq(o.include.count, 3);
        ck_assert_str_eq(o.include.pattern[0], "a");
        ck_assert_str_eq(o.include.pattern[1], "b");
        ck_assert_str_eq(o.include.pattern[2], "c,d");
}
END_TEST

START_TEST(generic_words_are_taken_and_change_nothing) {
        struct options before = o;

        accept("defaults,auto,noauto,user,users,nouser,owner,group,_netdev,async,sync,atime,noatime,relatime");
        accept("dev,suid,exec,allow_other,default_permissions");
        accept("x-systemd.automount,x-gvfs-show,X-mount.mkdir=0755,comment=a=b");
        ck_assert_mem_eq(&before, &o, sizeof o);
}
END_TEST

START_TEST(a_prefix_of_a_generic_word_is_no_generic_word) {
        refuse("noaut", "unknown option 'noaut'");
        refuse("defaultss", "unknown option 'defaultss'");
        refuse("x", "unknown option 'x'");
        refuse("comment", "unknown option 'comment'");
}
END_TEST

START_TEST(generic_words_that_matter_set_their_flag_and_no_other) {
        static const struct {
                const char *word;
                bool *flag;
        } flags[] = { { "ro", &o.ro }, { "nofail", &o.nofail }, { "noexec", &o.noexec }, { "nosuid", &o.nosuid },
                      { "nodev", &o.nodev } };

        for (size_t i = 0; i < COUNT(flags); i++) {
                o.ro = o.nofail = o.noexec = o.nosuid = o.nodev = false;
                accept(flags[i].word);
                for (size_t k = 0; k < COUNT(flags); k++)
                        ck_assert_int_eq(*flags[k].flag, k == i);
        }
}
END_TEST

START_TEST(of_ro_and_rw_the_last_wins) {
        accept("ro,rw");
        ck_assert(!o.ro);
        accept("rw,ro");
        ck_assert(o.ro);
}
END_TEST

START_TEST(what_comes_before_a_bad_word_is_no_excuse_for_it) {
        refuse("size=1G,ro,sice=2G,mode=off", "did you mean 'size'?");
        ck_assert_int_eq(o.mode, MODE_PROD);
}
END_TEST

START_TEST(without_globs_every_path_is_wanted) {
        ck_assert(options_path_wanted(&o, "a/b"));
}
END_TEST

START_TEST(include_chooses_and_exclude_wins) {
        accept("include=*.gguf,include=*.safetensors,exclude=old/**");
        ck_assert(options_path_wanted(&o, "m/a.gguf"));
        ck_assert(options_path_wanted(&o, "b.safetensors"));
        ck_assert(!options_path_wanted(&o, "m/a.txt"));
        ck_assert(!options_path_wanted(&o, "old/m/a.gguf"));
}
END_TEST

START_TEST(exclude_alone_leaves_the_rest) {
        accept("exclude=*.txt");
        ck_assert(options_path_wanted(&o, "a.gguf"));
        ck_assert(!options_path_wanted(&o, "d/a.txt"));
}
END_TEST

/* ---- globs ---- */

static const struct {
        const char *pattern, *path;
        bool match;
} globs[] = {
        { "a/b", "a/b", true },          { "a/b", "a/bc", false },        { "a/b", "xa/b", false },
        { "", "", true },                { "", "a", false },              { "A/b", "a/b", false },
        /* a star stays within a name */
        { "a/*", "a/b", true },          { "a/*", "a/", true },           { "a/*", "a/b/c", false },
        { "*/b", "a/b", true },          { "*/b", "a/a/b", false },       { "a/*.gg*", "a/x.gguf", true },
        { "a/x*y*z", "a/xyyzyz", true }, { "a/x*y*z", "a/xyyzy", false }, { "/*", "/a", true },
        /* so does a question mark, and it needs a letter */
        { "a/?", "a/b", true },          { "a/?", "a/", false },          { "a/?", "a/bc", false },
        { "a?b", "a/b", false },         { "a/?" "?", "a/bc", true },     { "a?b/c", "a/b/c", false },
        /* two stars cross */
        { "a/**", "a/b/c", true },       { "a/**", "b/a/c", false },      { "**/c", "a/b/c", true },
        { "**/c", "c", true },           { "**/c", "a/xc", false },       { "a/**/c", "a/c", true },
        { "a/**/c", "a/b/b/c", true },   { "a/**/c", "a/b/xc", false },   { "a/**/c", "ac", false },
        { "**", "a/b/c", true },         { "**", "", true },              { "a**c", "a/b/c", true },
        { "**/b*/**/d", "a/b/x/bb/c/d", true }, { "**/*.gguf", "a/b/c.gguf", true }, { "**/*.gguf", "c.gguf", true },
        { "**.gguf", "a/b.gguf", true }, { "a/**/b/**/c", "a/b/b/x/c", true }, { "a/**/b/**/c", "a/x/c/b", false },
        /* sets */
        { "a/[bc]", "a/c", true },       { "a/[bc]", "a/d", false },      { "a/[a-c]x", "a/bx", true },
        { "a/[!a-c]", "a/b", false },    { "a/[!a-c]", "a/d", true },     { "a/[^a-c]", "a/d", true },
        { "a/[]b]", "a/]", true },       { "a/[!]b]", "a/]", false },     { "a/[!]b]", "a/x", true },
        { "a/[a-]", "a/-", true },       { "a/[z-a]", "a/m", false },     { "a[!b]c", "a/c", false },
        { "a[.-0]c/d", "a/c/d", false }, { "a/[b", "a/[b", true },        { "a/[b", "a/b", false },
        { "a/[\xe0-\xff]", "a/\xf0", true }, { "a/[a-z]", "a/\xf0", false }, { "a/[b]*[d]", "a/bccd", true },
        /* a backslash takes the meaning away */
        { "a/\\*", "a/*", true },        { "a/\\*", "a/b", false },       { "a/\\[b]", "a/[b]", true },
        { "a/\\", "a/\\", true },        { "a/\\\\", "a/\\", true },
        /* without a slash: the last name */
        { "*.gguf", "a.gguf", true },    { "*.gguf", "a/b/c.gguf", true }, { "*.gguf", "a.gguf/b", false },
        { "b", "a/b", true },            { "a", "a/b", false },           { "?", "aa/b", true },
        { "[ab]", "x/b", true },         { "*", "a/b", true },
};

START_TEST(a_glob_matches_what_it_should) {
        ck_assert_msg(glob_match(globs[_i].pattern, globs[_i].path) == globs[_i].match, "'%s' and '%s': not %d",
                      globs[_i].pattern, globs[_i].path, globs[_i].match);
}
END_TEST

/* All ways, one after the other.  `**` followed by a slash takes whole names, or none. */
static bool slow_match(const char *p, const char *s) {
        if (p[0] == '*' && p[1] == '*') {
                bool whole = p[2] == '/';
                p += 2 + whole;
                for (const char *at = s;; at++) {
                        if ((!whole || at == s || at[-1] == '/') && slow_match(p, at))
                                return true;
                        if (!*at)
                                return false;
                }
        }
        if (*p == '*') {
                for (;; s++) {
                        if (slow_match(p + 1, s))
                                return true;
                        if (!*s || *s == '/')
                                return false;
                }
        }
        if (!*p || !*s)
                return *p == *s;
        return (*p == *s || (*p == '?' && *s != '/')) && slow_match(p + 1, s + 1);
}

/* A double star with a slash behind it is only made where a name begins: elsewhere it is not clear what it means. */
static void random_pattern(char *p) {
        static const char *const parts[] = { "a", "b", "a", "b", "/", "*", "?", "**", "/**/", "/**", "*a" };
        char *start = p;

        *p++ = '/';
        if (rand() % 4 == 0)
                p = stpcpy(p, "**/");
        for (int n = 1 + rand() % 7; n > 0; n--) {
                const char *part = parts[rand() % (int)COUNT(parts)];
                if (*part == '/' && p > start + 1 && p[-1] == '*' && p[-2] == '*')
                        continue;
                if (*part == '*' && p[-1] == '*')
                        continue;
                p = stpcpy(p, part);
        }
        *p = '\0';
}

static void random_path(char *s) {
        *s++ = '/';
        for (int n = rand() % 10; n > 0; n--)
                *s++ = "aab/"[rand() % 4];
        *s = '\0';
}

START_TEST(random_globs_match_as_trying_all_ways_does) {
        char pattern[64], path[64];
        int matched = 0;

        srand(41);
        for (int i = 0; i < 300000; i++) {
                random_pattern(pattern);
                random_path(path);
                bool want = slow_match(pattern, path);
                matched += want;
                if (glob_match(pattern, path) != want)
                        ck_abort_msg("'%s' and '%s': not %d", pattern, path, want);
        }
        ck_assert_int_gt(matched, 10000);
}
END_TEST

#ifdef COUNT_STEPS
/* glob.c is compiled so that it calls this in each of its basic blocks. */
void __sanitizer_cov_trace_pc(void);
static uint64_t steps;
void __sanitizer_cov_trace_pc(void) { steps++; }

static uint64_t steps_of(const char *pattern, const char *path) {
        steps = 0;
        ck_assert(!glob_match(pattern, path));
        return steps;
}

/* `times` times `part`, then `end`. */
static char *repeat(const char *part, size_t times, const char *end) {
        char *text = malloc(strlen(part) * times + strlen(end) + 1), *p = text;

        for (size_t i = 0; i < times; i++)
                p = stpcpy(p, part);
        strcpy(p, end);
        return text;
}

/* Each pattern fails at its very end.  Trying all ways would take more steps than there are atoms. */
static const struct {
        const char *part, *end, *path_part;
} cases[] = {
        { "a*", "b", "a" },     { "*", "b", "a" },  { "**a", "b", "a" },    { "**/", "b", "a/" },
        { "*/", "b", "a/" },    { "?*", "b", "a" }, { "[ab]*", "c", "a" },  { "**/a*", "b", "a/" },
        { "**", "b", "a/" },    { "a**", "b", "a/" }, { "*?[!b]", "b", "aa" },
};

START_TEST(a_backtracking_glob_takes_few_steps) {
        char *pattern = repeat(cases[_i].part, 40, cases[_i].end), *path = repeat(cases[_i].path_part, 2000, "");
        const uint64_t most = 20 * strlen(pattern) * strlen(path);

        ck_assert_uint_le(steps_of(pattern, path), most);
        ck_assert_uint_gt(steps, 0);
        free(pattern);
        free(path);
}
END_TEST
#endif

int main(void) {
        Suite *s = suite_create("options");
        TCase *t = tcase_create("all");
        SRunner *runner;
        int failed;

        tcase_add_checked_fixture(t, setup, teardown);
        tcase_set_timeout(t, 60);
        tcase_add_loop_test(t, every_option_takes_effect, 0, (int)COUNT(uses));
        tcase_add_loop_test(t, an_option_changes_nothing_else, 0, (int)COUNT(uses));
        tcase_add_test(t, all_options_in_one_line_take_effect);
        tcase_add_loop_test(t, a_bad_value_is_refused_with_the_option_and_the_value, 0, (int)COUNT(uses));
        tcase_add_loop_test(t, an_option_without_a_value_is_refused, 0, (int)COUNT(names));
        tcase_add_loop_test(t, a_misspelt_option_is_refused_with_the_nearest_name, 0, (int)COUNT(names));
        tcase_add_test(t, an_unknown_word_is_named_without_its_value);
        tcase_add_test(t, an_endless_word_is_refused_too);
        tcase_add_test(t, the_defaults_are_those_of_the_readme);
        tcase_add_test(t, every_enum_word_is_taken_and_named_again);
        tcase_add_test(t, an_enum_word_is_whole_and_exact);
        tcase_add_test(t, the_help_has_every_option_and_default);
        tcase_add_test(t, good_sizes_are_bytes);
        tcase_add_test(t, bad_sizes_are_refused_and_change_nothing);
        tcase_add_test(t, sizes_beyond_an_offset_are_out_of_range);
        tcase_add_test(t, the_reserve_is_a_percentage_or_bytes_whichever_came_last);
        tcase_add_test(t, a_reserve_that_leaves_nothing_or_is_nonsense_is_refused);
        tcase_add_test(t, seconds_may_have_fractions_and_are_at_most_a_day);
        tcase_add_test(t, an_escaped_comma_belongs_to_the_value);
        tcase_add_test(t, an_escaped_backslash_does_not_escape_what_follows);
        tcase_add_test(t, a_backslash_at_the_end_is_itself);
        tcase_add_test(t, the_value_begins_behind_the_first_equals_sign);
        tcase_add_test(t, empty_words_are_nothing);
        tcase_add_test(t, the_last_of_a_repeated_option_wins);
        tcase_add_test(t, globs_are_collected_in_their_order);
        tcase_add_test(t, generic_words_are_taken_and_change_nothing);
        tcase_add_test(t, a_prefix_of_a_generic_word_is_no_generic_word);
        tcase_add_test(t, generic_words_that_matter_set_their_flag_and_no_other);
        tcase_add_test(t, of_ro_and_rw_the_last_wins);
        tcase_add_test(t, what_comes_before_a_bad_word_is_no_excuse_for_it);
        tcase_add_test(t, without_globs_every_path_is_wanted);
        tcase_add_test(t, include_chooses_and_exclude_wins);
        tcase_add_test(t, exclude_alone_leaves_the_rest);
        tcase_add_loop_test(t, a_glob_matches_what_it_should, 0, (int)COUNT(globs));
        tcase_add_test(t, random_globs_match_as_trying_all_ways_does);
#ifdef COUNT_STEPS
        tcase_add_loop_test(t, a_backtracking_glob_takes_few_steps, 0, (int)COUNT(cases));
#endif
        suite_add_tcase(s, t);
        runner = srunner_create(s);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed != 0;
}
