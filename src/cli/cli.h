/* SPDX-License-Identifier: Apache-2.0 */
/* The commands.  Each gets its own arguments (argv[0] is the command's name) and returns an exit code. */
#pragma once

enum {
        EXIT_USAGE = 1,
        EXIT_SYSTEM = 2, /* or: the work ended incomplete */
        EXIT_MOUNT = 32, /* as mount(8) */
};

int cmd_mount(int argc, char **argv);
int cmd_status(int argc, char **argv);

/* "hotset: ..." on standard error, one line; returns `code`. */
int cli_fail(int code, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
