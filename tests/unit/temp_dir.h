/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A temporary directory for one test: made by main(), so that it goes away whatever becomes of the tests, and emptied
 * before each of them.
 */
#pragma once

#include <check.h>

extern char temp_dir[];

void temp_dir_empty(void); /* a checked fixture */
/* Runs the suite inside one, below TMPDIR or /tmp, and removes it; what main() returns. */
int temp_dir_run(Suite *s);
