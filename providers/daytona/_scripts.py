"""Shell scripts that make of Daytona's terminal a channel of exact bytes.

A terminal on a WebSocket is the one channel of Daytona that carries bytes both ways as they come,
in one call. Set to raw, it changes none; what we add to it is in records between \\036. Daytona
cuts off a reader that falls 256 messages behind, so each stream sends eight pieces and waits for
a word of ours; input goes in pieces that we are told have been taken.
"""

__all__ = ["ENTER", "INPUT_PIECE", "RUN_APART", "RUN_ON_TERMINAL"]

ENTER = (
    " unset HISTFILE; exec sh -c"
    ' \'stty raw -echo; printf "\\036-%s%s:\\036" {first} {second}; read -r size;'
    ' eval "$(dd bs="$size" count=1 iflag=fullblock 2>/dev/null)"\'\n'
)
"""Typed at the prompt: keep no history, be silent, say so, and take a script after its size."""

INPUT_PIECE = 16384
"""Bytes of input at a time; what is not taken yet must fit a pipe, so that no word waits."""

# Defined before: mark, has_input, enter() which runs its arguments with the command's variables,
# and the arguments, which are the wrapped command.
RUN_APART = """
unset TERM
d=$(mktemp -d /tmp/.sandboxkit-XXXXXX) && mkfifo "$d/i" "$d/o" "$d/e" || exit 126
exec 4>&1 5<>"$d/i" 6<>"$d/o" 7<>"$d/e"
record() { printf '\\036-%s:%s\\036' "$mark" "$1" >&4; }

feed() {  # pieces of input, each after its size, to the command
  while read -r size && [ "$size" != 0 ]; do
    dd bs="$size" count=1 iflag=fullblock 2>/dev/null || break
    record i
  done
}

out() {  # as it comes
  trap '' HUP
  while taken=$(LC_ALL=C dd bs=16384 count=8 2>&1 >&4); do
    case "$taken" in 0+0*) record x; exit;; esac
    record o && read -r word <&6 && [ "$word" = o ] || break
  done
  exec cat >/dev/null
}

err() {  # in records, each in one write so that nothing comes between
  trap '' HUP
  pieces=0
  while dd bs=16384 count=1 >"$d/piece" 2>/dev/null && [ -s "$d/piece" ]; do
    { printf '\\036-%s:e%d\\036' "$mark" "$(wc -c <"$d/piece")"; cat "$d/piece"; } >"$d/record"
    dd if="$d/record" bs=32768 count=1 2>/dev/null >&4 || exec cat >/dev/null
    pieces=$((pieces + 1))
    [ $((pieces % 8)) != 0 ] || { record r && read -r word <&7 && [ "$word" = r ]; } \\
      || exec cat >/dev/null
  done
  record x
}

start() {
  if [ "$has_input" = 1 ]; then
    feed <&5 3>&- | enter "$@" 2>&3 3>&- 4>&- 5>&- 6>&- 7>&-
  else
    enter "$@" </dev/null 2>&3 3>&- 4>&- 5>&- 6>&- 7>&-
  fi
}

{ { start "$@" | out 3>&-; } 3>&1 | err; } &
while read -r word size; do
  case "$word" in
    i) { echo "$size"; [ "$size" = 0 ] || dd bs="$size" count=1 iflag=fullblock 2>/dev/null; } >&5;;
    o) echo o >&6;;
    r) echo r >&7;;
    q) break;;
  esac
done
echo q >&6
echo q >&7
rm -rf "$d"
"""
"""Run the command with its outputs apart, and do as we are told until the word q."""

RUN_ON_TERMINAL = """
trap : INT QUIT TSTP
stty sane
printf '\\036-%s:t\\036' "$mark"
(enter "$@")
status=$?
stty raw -echo
printf '\\036-%s:%s\\036' "$mark" "$status"
while read -r word && [ "$word" != q ]; do :; done
"""
"""Run the command on the terminal itself, say how it ended, and wait for the word q."""
