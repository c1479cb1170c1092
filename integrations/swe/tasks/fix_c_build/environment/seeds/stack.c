#include "stack.h"

bool stack_push(struct stack *stack, int value)
{
    if (stack->count > STACK_SIZE)
        return false;
    stack->values[stack->count++] = value;
    return true;
}

bool stack_pop(struct stack *stack, int64_t *value)
{
    if (stack->count == 0)
        return false;
    *value = stack->values[--stack->count];
}
