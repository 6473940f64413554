/* SPDX-License-Identifier: Apache-2.0 */
#include "config/glob.h"

#include <stddef.h>
#include <string.h>

/* `p` points behind '['.  Returns behind ']', or NULL where the set is not closed (then '[' is itself). */
static const char *match_set(const char *p, char c, bool *ret_in) {
        bool negate = *p == '!' || *p == '^', in = false;
        const char *first = p += negate;

        for (; *p && (*p != ']' || p == first); p++) {
                char lo = *p, hi = *p;
                if (p[1] == '-' && p[2] && p[2] != ']') {
                        hi = p[2];
                        p += 2;
                }
                in |= (unsigned char)lo <= (unsigned char)c && (unsigned char)c <= (unsigned char)hi;
        }
        if (!*p)
                return NULL;
        *ret_in = in != negate;
        return p + 1;
}

/* One pattern element against one byte that is not NUL: the pattern behind it, or NULL. */
static const char *match_one(const char *p, char c) {
        const char *after;
        bool in;

        if (*p == '?')
                return c != '/' ? p + 1 : NULL;
        if (*p == '[' && (after = match_set(p + 1, c, &in)))
                return in && c != '/' ? after : NULL;
        if (*p == '\\' && p[1])
                p++;
        return *p == c ? p + 1 : NULL;
}

/* Backtracks to the last star only, and to the last double star behind it: linear memory, at worst quadratic time. */
static bool match_path(const char *p, const char *s) {
        const char *star_p = NULL, *star_s = NULL, *deep_p = NULL, *deep_s = NULL, *next;
        bool whole_names = false; /* the last double star was followed by '/': it ends where a name starts */

        for (;;) {
                if (p[0] == '*' && p[1] == '*') {
                        p += 2;
                        whole_names = *p == '/';
                        p += whole_names;
                        deep_p = p;
                        deep_s = s;
                        star_p = NULL;
                } else if (*p == '*') {
                        star_p = ++p;
                        star_s = s;
                } else if (*s && (next = match_one(p, *s))) {
                        p = next;
                        s++;
                } else if (!*s && !*p) {
                        return true;
                } else if (star_p && *star_s && *star_s != '/') {
                        p = star_p;
                        s = ++star_s;
                } else if (deep_p && *deep_s) {
                        if (whole_names)
                                deep_s += strcspn(deep_s, "/");
                        if (!*deep_s)
                                return false;
                        p = deep_p;
                        s = ++deep_s;
                        star_p = NULL;
                } else {
                        return false;
                }
        }
}

bool glob_match(const char *pattern, const char *path) {
        if (!strchr(pattern, '/')) {
                const char *slash = strrchr(path, '/');
                if (strstr(pattern, "**") == NULL && slash)
                        path = slash + 1;
        }
        return match_path(pattern, path);
}
