"""Shell scripts that make of Daytona's terminal a channel of exact bytes.

A terminal on a WebSocket is the one channel of Daytona that carries bytes both ways as they come,
in one call. Set to raw, it changes none. Daytona cuts off a reader that falls 256 messages behind.
"""

__all__ = ["ENTER", "RUN_ON_TERMINAL"]

ENTER = (
    " unset HISTFILE; exec sh -c"
    ' \'stty raw -echo; printf "\\036-%s%s:\\036" {first} {second}; read -r _size;'
    ' eval "$(dd bs="$_size" count=1 iflag=fullblock 2>/dev/null)"\'\n'
)
"""Typed at the prompt: keep no history, be silent, say so, and take a script after its size."""

RUN_ON_TERMINAL = """
trap : INT QUIT TSTP
stty sane
printf '\\036-%s:t\\036' "$_mark"
(enter "$@")
_status=$?
stty raw -echo
printf '\\036-%s:%s\\036' "$_mark" "$_status"
while read -r _word && [ "$_word" != q ]; do :; done
"""
"""Run the command on the terminal itself, say how it ended, and wait for the word q."""
