#ifndef STACK_H
#define STACK_H

#include <stdbool.h>

enum { STACK_SIZE = 64 };

struct stack {
    int64_t values[STACK_SIZE];
    int count;
};

bool stack_push(struct stack *stack, int64_t value);
bool stack_pop(struct stack *stack, int64_t *value);

#endif
