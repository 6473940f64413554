/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One log for the daemon: standard error in the foreground, syslog (the journal) otherwise.
 * Thread-safe.  Libraries of this tree (core, io, source) return errors and do not log.
 */
#pragma once

enum log_level { LOG_LVL_ERROR, LOG_LVL_WARN, LOG_LVL_INFO, LOG_LVL_DEBUG };

void log_set_level(enum log_level level);
void log_to_syslog(void); /* until then: standard error */
void log_msg(enum log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#define log_error(...) log_msg(LOG_LVL_ERROR, __VA_ARGS__)
#define log_warn(...) log_msg(LOG_LVL_WARN, __VA_ARGS__)
#define log_info(...) log_msg(LOG_LVL_INFO, __VA_ARGS__)
#define log_debug(...) log_msg(LOG_LVL_DEBUG, __VA_ARGS__)
