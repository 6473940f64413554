/* SPDX-License-Identifier: Apache-2.0 */
#include "control/status.h"

#include "base/util.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

/* Names are bytes; JSON is UTF-8.  What is not gets percent-encoded, byte by byte, and '%' with it. */
static json_t *json_name(const char *s) {
        json_t *plain = json_string(s);
        _cleanup_free_ char *coded = plain ? NULL : malloc(3 * strlen(s) + 1);
        char *out = coded;

        if (plain || !coded)
                return plain ? plain : json_null();
        for (; *s; s++)
                if ((unsigned char)*s < 0x80 && *s != '%')
                        *out++ = *s;
                else
                        out += sprintf(out, "%%%02X", (unsigned char)*s);
        *out = '\0';
        return json_string(coded);
}

static json_t *counters_to_json(const struct cache_status *cs) {
        json_t *o = json_object();

        for (int i = 0; i < CACHE_COUNTERS; i++)
                json_object_set_new(o, cache_counter_names[i], json_integer((json_int_t)cs->counters[i]));
        json_object_set_new(o, "shadow_hit_bytes", json_integer((json_int_t)cs->shadow_hit_bytes));
        json_object_set_new(o, "shadow_admitted_bytes", json_integer((json_int_t)cs->shadow_admitted_bytes));
        return o;
}

static json_t *warnings_to_json(struct cache_status *cs) {
        json_t *a = json_array();

        for (size_t i = 0; cs->warnings[i]; i++) {
                json_array_append_new(a, json_name(cs->warnings[i]));
                free(cs->warnings[i]);
        }
        return a;
}

static void set_numbers(json_t *o, const struct cache_status *cs) {
        const struct {
                const char *name;
                uint64_t value;
        } numbers[] = {
                { "size_bytes", cs->size_bytes },       { "capacity_bytes", cs->capacity_bytes },
                { "used_bytes", cs->used_bytes },       { "present_bytes", cs->present_bytes },
                { "charged_bytes", cs->charged_bytes }, { "queued_bytes", cs->queued_bytes },
                { "buffer_bytes", cs->buffer_bytes },   { "extents", cs->extents },
                { "ghosts", cs->ghosts },               { "files", cs->files },
        };

        for (size_t i = 0; i < ARRAY_SIZE(numbers); i++)
                json_object_set_new(o, numbers[i].name, json_integer((json_int_t)numbers[i].value));
}

json_t *status_to_json(const struct control_config *cfg) {
        const struct options *opt = cfg->options;
        struct cache_status cs;
        json_t *o = json_object();

        cache_status(cfg->cache, &cs);
        json_object_set_new(o, "version", json_string(HOTSET_VERSION));
        json_object_set_new(o, "pid", json_integer(getpid()));
        json_object_set_new(o, "mountpoint", json_name(cfg->mountpoint));
        json_object_set_new(o, "source", json_name(cfg->source));
        json_object_set_new(o, "source_state", json_string(cs.source_unreachable ? "unreachable" : "ok"));
        json_object_set_new(o, "cache", opt->cache ? json_name(opt->cache) : json_null());
        json_object_set_new(o, "mode", json_string(options_name("mode", opt->mode)));
        json_object_set_new(o, "policy", json_string(options_name("policy", opt->policy)));
        json_object_set_new(o, "policy_active", json_string(cs.policy_active));
        json_object_set_new(o, "admit", json_string(options_name("admit", opt->admit)));
        json_object_set_new(o, "verify", json_string(options_name("verify", opt->verify)));
        json_object_set_new(o, "io", json_string(cs.io_backend));
        set_numbers(o, &cs);
        json_object_set_new(o, "counters", counters_to_json(&cs));
        json_object_set_new(o, "warnings", warnings_to_json(&cs));
        return o;
}

/* ---- for people ---- */

static uint64_t number(const json_t *o, const char *name) { return (uint64_t)json_integer_value(json_object_get(o, name)); }
static const char *text(const json_t *o, const char *name) {
        const char *s = json_string_value(json_object_get(o, name));
        return s ? s : "none";
}

struct amount {
        char text[24];
};
static struct amount amount(uint64_t bytes) {
        static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB" };
        double v = (double)bytes;
        size_t u = 0;
        struct amount a;

        while (v >= 1024 && u + 1 < ARRAY_SIZE(units)) {
                v /= 1024;
                u++;
        }
        snprintf(a.text, sizeof a.text, u == 0 ? "%.0f %s" : "%.1f %s", v, units[u]);
        return a;
}

static double percent(uint64_t part, uint64_t whole) { return whole ? 100.0 * (double)part / (double)whole : 0; }

void status_print(FILE *f, const json_t *o) {
        const json_t *c = json_object_get(o, "counters");
        uint64_t read = number(c, "read_bytes"), hit = number(c, "hit_bytes");
        size_t i;
        json_t *w;

        fprintf(f, "%s\n", text(o, "mountpoint"));
        fprintf(f, "  source    %s (%s)\n", text(o, "source"), text(o, "source_state"));
        fprintf(f, "  cache     %s: %s of %s used, %" PRIu64 " ranges of %" PRIu64 " files\n", text(o, "cache"),
                amount(number(o, "used_bytes")).text, amount(number(o, "size_bytes")).text, number(o, "extents"),
                number(o, "files"));
        fprintf(f, "  mode      %s, policy %s (now %s), verify %s, pid %" PRIu64 "\n", text(o, "mode"), text(o, "policy"),
                text(o, "policy_active"), text(o, "verify"), number(o, "pid"));
        fprintf(f, "  hit ratio %.1f %% of the %s that were read: %s from the cache, %s from the source\n",
                percent(hit, read), amount(read).text, amount(hit).text, amount(number(c, "source_read_bytes")).text);
        fprintf(f, "  reads     %" PRIu64 " hits, %" PRIu64 " partial, %" PRIu64 " misses; %" PRIu64
                   " not cached (small, excluded, being written)\n", number(c, "hits"), number(c, "partials"),
                number(c, "misses"), number(c, "bypass_reads"));
        fprintf(f, "  admission %s written, %s declined, %s dropped, %s evicted\n", amount(number(c, "admitted_bytes")).text,
                amount(number(c, "declined_bytes")).text, amount(number(c, "dropped_bytes")).text,
                amount(number(c, "evicted_bytes")).text);
        if (number(c, "corrupt_bytes") || number(c, "source_errors") || number(c, "cache_errors"))
                fprintf(f, "  errors    %" PRIu64 " of the source, %" PRIu64 " of the cache, %s did not verify\n",
                        number(c, "source_errors"), number(c, "cache_errors"), amount(number(c, "corrupt_bytes")).text);
        json_array_foreach(json_object_get(o, "warnings"), i, w)
                fprintf(f, "  warning   %s\n", json_string_value(w));
}
