sed -i 's/^    \$(CC)/\t$(CC)/' Makefile
sed -i 's/#include <stdbool.h>/#include <stdbool.h>\n#include <stdint.h>/' stack.h
sed -i -e 's/int value)/int64_t value)/' -e 's/count > STACK_SIZE/count >= STACK_SIZE/' \
  -e 's/values\[--stack->count\];/&\n    return true;/' stack.c
sed -i -e 's/#include <stdlib.h>/&\n#include <string.h>/' -e '/int unused;/d' \
  -e 's/pop(stack, &left) || !stack_pop(stack, &right)/pop(stack, \&right) || !stack_pop(stack, \&left)/' \
  -e "s/case '\/':/&\n        if (right == 0 || (left == INT64_MIN \&\& right == -1))\n            return false;/" \
  -e 's/strtol(word, &end, 0)/strtoll(word, \&end, 10)/' -e 's/"%d\\n"/"%" PRId64 "\\n"/' \
  -e 's/} else if (!apply/} else if (word[1] != 0 || !apply/' \
  -e 's/return stack_pop(&stack, value);/return stack_pop(\&stack, value) \&\& stack.count == 0;/' main.c
make && echo '3 4 + 2 *' | ./calc
