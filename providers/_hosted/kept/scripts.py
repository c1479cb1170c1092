"""The shell script that takes commands over a line and says what they write, byte for byte.

What it adds to their output is in records between \\036. Each stream sends so many pieces and waits
for a word of ours, where a vendor cuts off a reader that falls behind; input goes in pieces that we
are told have been taken.
"""

import shlex

from sandboxkit.providers._hosted import scripts

__all__ = ["INPUT_PIECE", "SERVE"]

INPUT_PIECE = 16384
"""Bytes of input at a time; what is not taken yet must fit a pipe, so that no word waits."""

SERVE = (
    f"_wrapper={shlex.quote(scripts.RUN)}\n"
    """
_nl='
' _rs='\036' _readers= _last=
unset TERM
exec 4>&1
[ "$_apart" = 0 ] || exec 9>&2 2>/dev/null
_to=4
record() { printf %s "$_rs-$_mark:$1$_rs" >&"$_to"; }

feed() {  # pieces of input, each after its size, to the command
  while read -r size && [ "$size" != 0 ]; do
    dd bs="$size" count=1 iflag=fullblock 2>/dev/null || break
    record i
  done
}

out() {  # as it comes; fewer pieces than asked for are the end
  while said=$(LC_ALL=C dd bs="$_piece" count="$_window" 2>&1 >&"$_to"); do
    said=${said%% records in*}
    [ $((${said##*[!0-9+]})) = "$_window" ] || return 0
    record "$_ask" && read -r _word <&"$_from" && [ "$_word" = "$_ask" ] || break
  done
  return 1
}

err() {  # each piece between two records, in one write, which a terminal does not take apart
  piece=/proc/self/fd/8  # open, because a command may remove what is in /tmp
  pieces=0 head="$_rs-$_mark:e$_rs" tail="$_rs-$_mark:s$_rs" end="$_rs$_mark:"
  while
    printf %s "$head" >"$piece" &&
      said=$(LC_ALL=C dd bs="$_piece" count=1 2>&1 >>"$piece")
  do
    case "$said" in
      0+0*) return 0;;
      *[!0-9]3[678]" bytes"*)
        IFS= read -r _word <"$piece"
        case "$_word $said" in "$head$end"*[!0-9]"$((${#_word} - ${#head})) bytes"*)
          printf %s "$_word$tail" >&4  # there is but the end
          read -r _word && exec cat >/dev/null
          return 0;;
        esac;;
    esac
    printf %s "$tail" >>"$piece"
    dd if="$piece" bs=$((2 * _piece)) count=1 2>/dev/null >&4 || break
    pieces=$((pieces + 1))
    [ $((pieces % _window)) != 0 ] || { record r && read -r _word <&7 && [ "$_word" = r ]; } || break
  done
  return 1
}

read_all() {  # with $1 what each command writes to $2, to the output $3, asking on $4 for the word $5
  _to=$3 _from=$4 _ask=$5
  while exec <"$2" && read -r _mark; do
    trap '' HUP TERM  # who still holds its outputs goes on writing
    trap 'record f' EXIT  # where no process can be started any more
    "$1" || { record f; exec cat >/dev/null; }
    trap - HUP TERM EXIT
    exec <&-  # so that the next command, which may be quick, waits until it is opened again
    record x
  done
}

pipes() {
  _d=$(mktemp -d /tmp/.sandboxkit-XXXXXX) || exit 126
  mkfifo "$_d/i" "$_d/o" "$_d/e" "$_d/out" "$_d/err" || exit 126
  exec 5<>"$_d/i" 6<>"$_d/o" 7<>"$_d/e" 8>"$_d/piece"
  [ -z "$_readers" ] || kill $_readers 2>/dev/null
  # A command may remove the pipes: nothing to say on the terminal.
  read_all out "$_d/out" 4 6 o 2>/dev/null &
  _readers=$!
  if [ "$_apart" = 1 ]; then read_all out "$_d/err" 9 7 r; else read_all err "$_d/err" 4 7 r; fi 2>/dev/null &
  _readers="$_readers $!"
}

attach() {
  {
    echo "$_mark"
    echo "$_mark" >&2
    enter "$@"
  } >"$_d/out" 2>"$_d/err" 4>&- 5>&- 6>&- 7>&- 8>&- 9>&- || record f
}

run() {
  [ -p "$_d/out" ] && [ -p "$_d/err" ] || pipes
  if [ "$_has_input" = 1 ]; then feed <&5 | attach "$@"; else attach "$@" </dev/null; fi &
  _last=$!
}

trap 'kill -9 $_readers 2>/dev/null' EXIT  # it may find that no process can be started any more
pipes
while read -r _word _rest; do
  case "$_word" in
    p) _mark=$_rest; record p;;
    c) ${_last:+wait $_last}; eval "$_rest";;
    s) ${_last:+wait $_last}; eval "$(dd bs="$_rest" count=1 iflag=fullblock 2>/dev/null)";;
    i) { echo "$_rest"; [ "$_rest" = 0 ] || dd bs="$_rest" count=1 iflag=fullblock 2>/dev/null; } >&5;;
    o) echo o >&6;;
    r) echo r >&7;;
    q) break;;
  esac
done
trap - EXIT
echo q >&6
echo q >&7
rm -rf "$_d"  # a reader that would open its pipe ends, and one that waits there is told to
kill $_readers 2>/dev/null || :  # they may have ended
"""
)
"""Run commands with their outputs apart, one after the other, and do as we are told until q.

What they write to their standard error comes on ours where `_apart` is 1, with records of its own,
and else between the records e and s.
`_window` is the number of pieces of an output, each of `_piece` bytes at most, that are sent before
a word is awaited.

A command comes as a line after c, or as a script after s and its size. It sets `_mark`, `_has_input`
and `enter`, which runs its arguments with the command's variables, and calls `run`. Two records x
say that nobody holds its outputs any more; until then nothing else may be run.
"""
