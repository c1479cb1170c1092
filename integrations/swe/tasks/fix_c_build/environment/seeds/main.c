#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include "stack.h"

static bool apply(struct stack *stack, char operator)
{
    int64_t left, right;
    if (!stack_pop(stack, &left) || !stack_pop(stack, &right))
        return false;
    switch (operator) {
    case '+':
        return stack_push(stack, left + right);
    case '-':
        return stack_push(stack, left - right);
    case '*':
        return stack_push(stack, left * right);
    case '/':
        return stack_push(stack, left / right);
    }
    return false;
}

static bool evaluate(char *line, int64_t *value)
{
    struct stack stack = {.count = 0};
    for (char *word = strtok(line, " \t\r\n"); word; word = strtok(NULL, " \t\r\n")) {
        char *end;
        int64_t number = strtol(word, &end, 0);
        if (end != word && *end == '\0') {
            if (!stack_push(&stack, number))
                return false;
        } else if (!apply(&stack, word[0])) {
            return false;
        }
    }
    return stack_pop(&stack, value);
}

int main(void)
{
    char line[4096];
    int unused;
    while (fgets(line, sizeof line, stdin)) {
        int64_t value;
        if (evaluate(line, &value))
            printf("%d\n", value);
        else
            puts("error");
    }
    return 0;
}
