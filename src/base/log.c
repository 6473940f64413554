/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <syslog.h>

static _Atomic int max_level = LOG_LVL_INFO;
static _Atomic bool use_syslog;

void log_set_level(enum log_level level) { max_level = (int)level; }

void log_to_syslog(void) {
        openlog("hotset", LOG_PID, LOG_DAEMON);
        use_syslog = true;
}

void log_msg(enum log_level level, const char *fmt, ...) {
        static const int priority[] = { LOG_ERR, LOG_WARNING, LOG_INFO, LOG_DEBUG };
        char line[1024];
        va_list ap;

        if ((int)level > max_level)
                return;
        va_start(ap, fmt);
        vsnprintf(line, sizeof line, fmt, ap);
        va_end(ap);
        if (use_syslog)
                syslog(priority[level], "%s", line);
        else
                fprintf(stderr, "hotset: %s\n", line);
}
