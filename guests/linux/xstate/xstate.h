/* Common parts of the tests of extended state. */
#ifndef XSTATE_H
#define XSTATE_H

void check(const char *name, int good);
void skip(const char *name, const char *why);
void amx(void);
void shadow_stacks(void);

#endif
